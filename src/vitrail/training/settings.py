"""All settings of a run: documented, validated, TOML both ways. The run keeps the complete file."""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.files import write_text


def setting(default: Any, doc: str, *, choices: tuple = (), low: float | None = None, high: float | None = None) -> Any:
    return field(default=default, metadata={"doc": doc, "choices": choices, "low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class Data:
    layout: str = setting(
        "auto",
        "how the data lies",
        choices=("auto", "folders", "split-folders", "table", "masks", "coco", "voc", "yolo"),
    )
    task: str = setting(
        "auto", "what is learned", choices=("auto", "classify", "multilabel", "regress", "segment", "detect")
    )
    targets: str = setting("", "columns of a table to predict, with commas between; empty: all that are numbers")
    classes: str = setting("", "masks and boxes: a file with one class name a line; empty: looked for beside the data")
    colours: str = setting("", "masks in RGB: a file with lines 'red green blue name'; empty: looked for")
    ignore: int = setting(-1, "masks: the value of pixels that do not count; -1: 255", low=-1, high=255)
    pairs: str = setting("", "folders of images and masks, 'train:trainannot, val:valannot'; empty: recognised")
    validation: float = setting(
        0.0,
        "part held out when the data has no validation part; 0: a fifth, or a tenth beside a test part",
        low=0,
        high=0.9,
    )
    cache: str = setting(
        "auto",
        "decoded images: kept in memory, in a file, or decoded anew each time",
        choices=("auto", "memory", "disk", "off"),
    )
    cache_gigabytes: float = setting(4.0, "auto keeps at most this much in memory", low=0.0)
    workers: int = setting(2, "threads that decode ahead; 0 decodes in the training thread", low=0)


@dataclass(frozen=True, kw_only=True)
class Model:
    model: str = setting("auto", "a preset such as S/16, or auto: chosen from the data, the time and the machine")
    start: str = setting("", "a model file or hub id to fine-tune; empty: from scratch")
    image_size: int = setting(0, "pixels a side; 0: chosen", low=0)
    image_width: int = setting(0, "of pictures that are not square, image_size then being the height; 0: square", low=0)
    channels: int = setting(0, "1 grey, 3 colour, or as many as the files have; 0: chosen", low=0)
    patch_size: int = setting(0, "pixels a side of a patch; 0: the model's", low=0)
    width: int = setting(0, "of a token; 0: the model's", low=0)
    depth: int = setting(0, "blocks; 0: the model's", low=0)
    heads: int = setting(0, "of attention; 0: the model's, and at least 32 dims each with auto", low=0)
    stem: str = setting("auto", "conv learns more from few images", choices=("auto", "linear", "conv"))
    stem_blocks: int = setting(-1, "residual convolutions after each stride of the conv stem; -1: chosen", low=-1)
    stem_maps: str = setting(
        "auto",
        "of the conv stem: fine, from half the resolution on; wide, from a quarter on with more channels; auto: wide "
        "for photos, fine for segment and detect",
        choices=("auto", "fine", "wide"),
    )
    pool: str = setting(
        "auto", "what the head reads: [CLS] or the mean of the patches", choices=("auto", "cls", "mean")
    )
    head: str = setting(
        "auto",
        "segment: decoder (auto), linear, queries; detect: decoder (auto), tokens",
        choices=("auto", "linear", "decoder", "queries", "tokens"),
    )
    candidates: int = setting(0, "detect: objects that can be found in a picture at most; 0: chosen", low=0)
    resize: str = setting(
        "auto",
        "what happens to pictures of another size; auto: crop, or what the model that is fine-tuned does; segment and "
        "detect: pad; window (segment only): pictures keep their scale and are looked at piece by piece",
        choices=("auto", "crop", "pad", "squash", "window"),
    )
    crop_fraction: float = setting(
        0.0,
        "resize crop and squash: the part of a side, in the middle, that the model is shown; 0: nearly all of small "
        "pictures with classes that are not taken alike, all of others, or as the model that is fine-tuned does; "
        "segment and detect see all",
        low=0,
        high=1,
    )
    train_only: str = setting("all", "what is trained of a model that is fine-tuned", choices=("all", "head", "lora"))
    lora_rank: int = setting(8, "rank of the low-rank updates with train_only = 'lora'", low=1)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    epochs: float = setting(0.0, "passes over the training images; 0: see minutes", low=0)
    minutes: float = setting(0.0, "time for training; 0: see epochs; both 0: chosen", low=0)
    batch_size: int = setting(0, "images a step, over all processes; 0: chosen", low=0)
    accumulate: int = setting(1, "a step's batch is run in so many parts, to save memory", low=1)
    seed: int = setting(0, "of the split, the weights, the order and every augmentation", low=0)
    optimizer: str = setting("auto", "muon from scratch, adamw for fine-tuning", choices=("auto", "muon", "adamw"))
    lr: float = setting(0.0, "peak learning rate of AdamW's parameters; 0: chosen", low=0)
    muon_lr: float = setting(0.02, "peak learning rate of the blocks' matrices under Muon", low=0)
    weight_decay: float = setting(0.05, "pulls matrices towards zero; norms, biases and tokens are left alone", low=0)
    layer_decay: float = setting(0.75, "fine-tuning: each block below learns so much slower", low=0.0, high=1)
    warmup: float = setting(0.05, "part of the steps in which the learning rate rises", low=0, high=0.9)
    clip: float = setting(1.0, "gradients longer than this are shortened; 0: off", low=0)
    average: float = setting(
        0.0,
        "part of the run over which weights are averaged (EMA); 0: off, a learning rate that ends at 0 does the same",
        low=0,
        high=1,
    )
    smoothing: float = setting(0.1, "label smoothing", low=0, high=0.9)
    drop_path: float = setting(-1.0, "of the last block; earlier ones less; -1: chosen", low=-1, high=0.9)
    dropout: float = setting(0.0, "inside the blocks", low=0, high=0.9)
    keep_tokens: float = setting(
        0.0,
        "part of the patch tokens that early training keeps: faster, and it regularises; 0: half, without a conv stem "
        "down to a quarter; all in fine-tuning and for answers about places and numbers",
        low=0,
        high=1,
    )
    keep_until: float = setting(0.7, "part of the steps after which all tokens are kept", low=0, high=1)
    mixup: float = setting(-1.0, "alpha of mixup; 0: off, -1: chosen", low=-1)
    cutmix: float = setting(-1.0, "alpha of cutmix; 0: off, -1: chosen", low=-1)
    class_weights: str = setting("none", "rare classes weigh more in the loss", choices=("none", "sqrt", "inverse"))
    balanced: bool = setting(False, "every class is drawn equally often")
    precision: str = setting(
        "auto", "bfloat16 where the hardware computes in it", choices=("auto", "float32", "bfloat16")
    )
    checkpointing: bool = setting(False, "recompute activations to save memory")
    save_minutes: float = setting(2.0, "the state is saved this often, and at every evaluation", low=0)
    tensorboard: bool = setting(False, "write TensorBoard files too; needs vitrail[tensorboard]")
    patience: int = setting(0, "stop after so many evaluations without a better score; 0: never", low=0)


@dataclass(frozen=True, kw_only=True)
class Augment:
    crop: float = setting(0.0, "smallest part of a picture's area that a crop keeps; 0: chosen", low=0, high=1)
    flip: str = setting(
        "auto",
        "off when it changes the label; auto: horizontal, but none for digits, letters, left and right, and where the "
        "pictures of a class are taken from one side",
        choices=("auto", "none", "horizontal", "vertical", "both"),
    )
    policy: str = setting(
        "auto",
        "one random change (trivial), of colour only (colour), several at one strength (rand), or none; auto: trivial "
        "in runs of many epochs, colour for segment and detect",
        choices=("auto", "none", "trivial", "colour", "rand"),
    )
    changes: int = setting(2, "how many with policy = 'rand'", low=1, high=8)
    strength: float = setting(0.5, "how strong with policy = 'rand'", low=0, high=1)
    erase: float = setting(-1.0, "probability that a rectangle is painted over; -1: chosen", low=-1, high=1)


SECTIONS: dict[str, type] = {"data": Data, "model": Model, "train": Recipe, "augment": Augment}


@dataclass(frozen=True, kw_only=True)
class Settings:
    data: Data = Data()
    model: Model = Model()
    train: Recipe = Recipe()
    augment: Augment = Augment()

    def __post_init__(self) -> None:
        for name, kind in SECTIONS.items():
            _check(name, kind, getattr(self, name))
        if self.train.epochs and self.train.minutes:
            raise VitrailError(
                f"train.epochs {self.train.epochs} and train.minutes {self.train.minutes}: give one of them"
            )

    def with_values(self, values: dict[str, Any]) -> Settings:
        """A copy with some settings changed, by their names such as "train.lr"."""
        sections = {name: dataclasses.asdict(getattr(self, name)) for name in SECTIONS}
        for name, value in values.items():
            section, _, key = name.partition(".")
            if key not in sections.get(section, {}):
                known = [f"{s}.{k}" for s, keys in sections.items() for k in keys]
                close = difflib.get_close_matches(name, known, n=1)
                raise VitrailError(f"there is no setting {name}" + (f": did you mean {close[0]}?" if close else ""))
            if isinstance(sections[section][key], float) and type(value) is int:
                value = float(value)
            sections[section][key] = value
        return Settings(**{name: SECTIONS[name](**sections[name]) for name in SECTIONS})

    @classmethod
    def read(cls, path: str | Path) -> Settings:
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise VitrailError(f"cannot read {path}: {error.strerror or error}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise VitrailError(f"{path} is not TOML: {error}") from None
        values: dict[str, Any] = {}
        for section, keys in content.items():
            if not isinstance(keys, dict):
                raise VitrailError(
                    f"{path}: {section} stands outside a section; the sections are {', '.join(SECTIONS)}"
                )
            values |= {f"{section}.{key}": value for key, value in keys.items()}
        try:
            return cls().with_values(values)
        except VitrailError as error:
            raise VitrailError(f"{path}: {error}") from None

    def write(self, path: str | Path) -> None:
        write_text(path, self.to_toml())

    def to_toml(self) -> str:
        """Every setting with its meaning above it."""
        lines: list[str] = []
        for name, kind in SECTIONS.items():
            lines.append(f"[{name}]")
            for item in dataclasses.fields(kind):
                choices = item.metadata["choices"]
                lines.append(f"# {item.metadata['doc']}" + (f" ({', '.join(choices)})" if choices else ""))
                lines.append(f"{item.name} = {_as_toml(getattr(getattr(self, name), item.name))}")
            lines.append("")
        return "\n".join(lines)


def _as_toml(value: Any) -> str:
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)  # JSON has no inf


def _check(section: str, kind: type, values: Any) -> None:
    for item in dataclasses.fields(kind):
        value, name = getattr(values, item.name), f"{section}.{item.name}"
        if type(value) is not type(item.default):
            words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
            raise VitrailError(f"{name} is {words[type(item.default)]}, not {value!r}")
        choices, low, high = (item.metadata[key] for key in ("choices", "low", "high"))
        if choices and value not in choices:
            raise VitrailError(f"{name} is {value!r}; choose one of {', '.join(choices)}")
        if low is not None and not value >= low:
            raise VitrailError(f"{name} is {value}; it must be at least {low:g}")
        if high is not None and value > high:
            raise VitrailError(f"{name} is {value}; it must be at most {high:g}")
