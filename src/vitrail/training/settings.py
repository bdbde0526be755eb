"""All settings of a run: documented, validated, TOML both ways. The run keeps the complete file.

A setting that is None is not set: training chooses its value from the data, the time and the machine, or does without
it. TOML has no null, so an unset setting is a line that is commented out. Earlier versions spelled unset "auto", "", 0
or -1, each for its own settings; these spellings are still read, and become None.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from vitrail.data.layouts.layout_names import layout_names
from vitrail.errors import VitrailError
from vitrail.files import write_text
from vitrail.option_types import PRECISIONS
from vitrail.tasks.registry import task_names
from vitrail.training.setting_fields import Section, as_toml, check_field, optional, setting

_MOST_DOTS = 200  # of a line of TOML: Python's parser takes time that grows with the square of a name's parts


@dataclass(frozen=True, kw_only=True)
class Data(Section):
    """[data]: what is learned from, and how it is read."""

    layout: str | None = optional(
        "auto",
        "how the data lies; not set: recognised",
        choices=layout_names,
    )
    task: str | None = optional("auto", "what is learned; not set: recognised", choices=task_names)
    targets: str | None = optional("", "columns of a table to predict, with commas between; not set: all numbers")
    classes: str | None = optional("", "masks and boxes: a file with one class name a line; not set: looked for")
    colours: str | None = optional("", "masks in RGB: a file with lines 'red green blue name'; not set: looked for")
    ignore: int | None = optional(-1, "masks: the value of pixels that do not count; not set: 255", low=0, high=255)
    pairs: str | None = optional(
        "", "folders of images and masks, 'train:trainannot, val:valannot'; not set: recognised"
    )
    unlabelled: str | None = optional(
        "",
        "a folder of pictures without labels that join the run; with train.teacher its answers about them are learnt, "
        "else their hidden patches are painted (MAE) by a decoder that is thrown away; not set: none",
    )
    validation: float | None = optional(
        0.0,
        "part held out when the data has no validation part; not set: a fifth, or a tenth beside a test part",
        low=0,
        high=0.9,
    )
    cache: str | None = optional(
        "auto",
        "decoded images: kept in memory, in a file, or decoded anew each time; not set: where they fit",
        choices=("memory", "disk", "off"),
    )
    cache_gigabytes: float = setting(4.0, "without a cache set: keep at most this much in memory", low=0.0)
    manifest_items: int = setting(
        100_000,
        "images of a manifest, up to which each is kept in memory by its address and checked as in a folder; of more, "
        "each is a few numbers, and is drawn by windows of shards",
        low=0,
    )
    calibration_images: int = setting(
        300,
        "training pictures, at the model's size, that travel with the run in calibration.zip: int8 is calibrated on "
        "them, faster engines are checked on them; 0: none, where pictures must stay where they are",
        low=0,
        high=300,
    )
    familiarity_images: int = setting(
        2000,
        "training pictures of which the model file keeps what its head reads, as vectors, 0.7 MB at most: answers then "
        "say how like them a new picture is; 0: none",
        low=0,
    )
    workers: int = setting(2, "threads that decode ahead; 0 decodes in the training thread", low=0)


@dataclass(frozen=True, kw_only=True)
class Model(Section):
    """[model]: the network, what it starts from and what images it takes."""

    model: str | None = optional(
        "auto", "a preset such as S/16 or swin-T; not set: chosen from the data, the time, the machine"
    )
    start: str | None = optional(
        "", "a model file, a name that `vitrail models` lists, or a hub id to fine-tune; not set: from scratch"
    )
    image_size: int | None = optional(0, "pixels a side; not set: chosen", low=0)
    image_width: int | None = optional(
        0, "of pictures that are not square, image_size then being the height; not set: square", low=0
    )
    channels: int | None = optional(0, "1 grey, 3 colour, or as many as the files have; not set: chosen", low=0)
    patch_size: int | None = optional(0, "pixels a side of a patch; not set: the model's", low=0)
    width: int | None = optional(0, "of a token; not set: the model's", low=0)
    depth: int | None = optional(0, "blocks; not set: the model's", low=0)
    heads: int | None = optional(0, "of attention; not set: the model's, or one for 32 dims", low=0)
    stem: str | None = optional(
        "auto",
        "conv learns more from few images; features: those of the CNN; not set: the model's, or conv",
        choices=("linear", "conv", "features"),
    )
    cnn: str | None = optional(
        "",
        "a pre-trained CNN whose feature map becomes the tokens: timm's name of its weights, such as "
        "timm:resnet18.a1_in1k, or a file of them; patch_size is the stride of the map; needs vitrail[timm]; not set: "
        "none",
    )
    freeze_cnn: bool = setting(False, "the CNN keeps its weights, and only what follows it is trained")
    stem_blocks: int | None = optional(
        -1, "residual convolutions after each stride of the conv stem; not set: chosen", low=0
    )
    stem_maps: str | None = optional(
        "auto",
        "of the conv stem: fine, from half the resolution on; wide, from a quarter on with more channels; not set: "
        "wide for photos, fine for answers about places",
        choices=("fine", "wide"),
    )
    attention_window: int | None = optional(
        -1,
        "patches a side of the windows that attention stays in, for large images; 0: full attention; not set: the "
        "model's, or 0",
        low=0,
    )
    global_blocks: int | None = optional(
        -1,
        "with attention_window: blocks whose attention is full all the same; not set: the model's, or a third of the "
        "blocks, 4 at most",
        low=0,
    )
    pool: str | None = optional(
        "auto", "what the head reads: [CLS] or the mean of the patches; not set: the model's", choices=("cls", "mean")
    )
    head: str | None = optional(
        "auto",
        "for answers about places; masks: decoder, linear, queries; boxes: decoder, tokens; not set: decoder",
        choices=("linear", "decoder", "queries", "tokens"),
    )
    candidates: int | None = optional(
        0, "boxes: objects that can be found in a picture at most; not set: chosen", low=0
    )
    resize: str | None = optional(
        "auto",
        "what happens to pictures of another size; not set: crop, or what the model that is fine-tuned does; numbers "
        "and answers about places: pad; window (masks only): pictures keep their scale and are looked at piece by "
        "piece",
        choices=("crop", "pad", "squash", "window"),
    )
    crop_fraction: float | None = optional(
        0.0,
        "resize crop and squash: the part of a side, in the middle, that the model is shown; not set: nearly all of "
        "small pictures with classes that are not taken alike, all of others, or as the model that is fine-tuned does; "
        "with answers about places all",
        low=0,
        high=1,
    )
    train_only: str = setting("all", "what is trained of a model that is fine-tuned", choices=("all", "head", "lora"))
    lora_rank: int = setting(8, "rank of the low-rank updates with train_only = 'lora'", low=1)


@dataclass(frozen=True, kw_only=True)
class Recipe(Section):
    """[train]: how long and how it is trained."""

    epochs: float | None = optional(0.0, "passes over the training images; not set: see minutes", low=0, high=1e9)
    minutes: float | None = optional(
        0.0, "time for training; not set: see epochs; both not set: chosen", low=0, high=1e9
    )
    batch_size: int | None = optional(0, "images a step, over all processes; not set: chosen", low=0)
    accumulate: int = setting(1, "a step's batch is run in so many parts, to save memory", low=1)
    seed: int = setting(0, "of the split, the weights, the order and every augmentation", low=0)
    optimizer: str | None = optional(
        "auto", "not set: muon from scratch, adamw for fine-tuning", choices=("muon", "adamw")
    )
    lr: float | None = optional(0.0, "peak learning rate of AdamW's parameters; not set: chosen", low=0)
    muon_lr: float = setting(0.02, "peak learning rate of the blocks' matrices under Muon", low=0)
    weight_decay: float = setting(0.05, "pulls matrices towards zero; norms, biases and tokens are left alone", low=0)
    layer_decay: float = setting(0.75, "fine-tuning: each block below learns so much slower", low=0.0, high=1)
    probe: bool = setting(True, "fine-tuning: a new linear head is fitted to the frozen features first")
    warmup: float = setting(0.05, "part of the steps in which the learning rate rises", low=0, high=0.9)
    clip: float = setting(1.0, "gradients longer than this are shortened; 0: off", low=0)
    average: float = setting(
        0.0,
        "part of the run over which weights are averaged (EMA); 0: off, a learning rate that ends at 0 does the same",
        low=0,
        high=1,
    )
    smoothing: float = setting(0.1, "label smoothing", low=0, high=0.9)
    drop_path: float | None = optional(-1.0, "of the last block; earlier ones less; not set: chosen", low=0, high=0.9)
    dropout: float = setting(0.0, "inside the blocks", low=0, high=0.9)
    keep_tokens: float | None = optional(
        0.0,
        "part of the patch tokens that early training keeps: faster, and it regularises; not set: half, without a conv "
        "stem down to a quarter; all in fine-tuning and for answers about places and numbers",
        low=0,
        high=1,
    )
    keep_until: float = setting(0.7, "part of the steps after which all tokens are kept", low=0, high=1)
    mixup: float | None = optional(-1.0, "alpha of mixup; 0: off; not set: chosen", low=0)
    cutmix: float | None = optional(-1.0, "alpha of cutmix; 0: off; not set: chosen", low=0)
    class_weights: str = setting("none", "rare classes weigh more in the loss", choices=("none", "sqrt", "inverse"))
    balanced: bool = setting(False, "every class is drawn equally often")
    teacher: str | None = optional(
        "",
        "a finished model whose answers are learnt beside the labels: a file, a published name or a hub id, or a CNN "
        "such as timm:resnet18.a1_in1k, with the data's own classes; not set: none",
    )
    distillation: str | None = optional(
        "auto",
        "what is learnt of the teacher; hard: the class that it gives, by a distillation token and a head of its own "
        "where the network has or can have them (DeiT); soft: its probabilities; not set: soft, but hard for a network "
        "with a distillation token",
        choices=("hard", "soft"),
    )
    distillation_temperature: float | None = optional(
        0.0, "soft: what logits are divided by; higher tells more of the less probable classes; not set: chosen", low=0
    )
    distillation_weight: float | None = optional(
        -1.0, "of the teacher in the loss; the labels have the rest; not set: chosen", low=0, high=1
    )
    unlabelled_weight: float = setting(
        1.0, "data.unlabelled without a teacher: what the painting of hidden patches weighs beside the task", low=0
    )
    precision: str | None = optional(
        "auto",
        "not set: bfloat16 where the hardware computes in it",
        choices=tuple(PRECISIONS.values()),
        spellings=PRECISIONS,
    )
    checkpointing: bool = setting(False, "recompute activations to save memory")
    compile: bool = setting(
        False, "run the blocks as compiled programs (torch.compile), made in the first steps; on a CPU it needs g++"
    )
    save_minutes: float = setting(2.0, "the state is saved this often, and at every evaluation", low=0)
    tensorboard: bool = setting(False, "write TensorBoard files too; needs vitrail[tensorboard]")
    patience: int = setting(0, "stop after so many evaluations without a better score; 0: never", low=0)


@dataclass(frozen=True, kw_only=True)
class Augment(Section):
    """[augment]: random changes of the training images."""

    crop: float | None = optional(
        0.0, "smallest part of a picture's area that a crop keeps; not set: chosen", low=0, high=1
    )
    flip: str | None = optional(
        "auto",
        "not set: horizontal, but none for digits, letters, left and right, and classes shown from one side only",
        choices=("none", "horizontal", "vertical", "both"),
    )
    policy: str | None = optional(
        "auto",
        "one random change (trivial), of colour only (colour), several at one strength (rand), or none; not set: "
        "trivial in runs of many epochs, colour for answers about places",
        choices=("none", "trivial", "colour", "rand"),
    )
    changes: int = setting(2, "how many with policy = 'rand'", low=1, high=8)
    strength: float = setting(0.5, "how strong with policy = 'rand'", low=0, high=1)
    erase: float | None = optional(-1.0, "probability that a rectangle is painted over; not set: chosen", low=0, high=1)


@dataclass(frozen=True, kw_only=True)
class Pretrain(Section):
    """[pretrain]: how a network learns without labels. Only `vitrail pretrain` has this section."""

    method: str | None = optional("auto", "not set: chosen", choices=("dino", "simdino", "mae", "features"))
    teacher: str | None = optional(
        "", "method features: the model whose features are learnt: a file, a published name or a hub id"
    )
    global_area: float | None = optional(
        0.0, "smallest part of a picture's area that a global crop shows; not set: chosen", low=0, high=1
    )
    local_crops: int | None = optional(-1, "small crops of each picture; not set: chosen", low=0, high=32)
    local_area: float | None = optional(
        0.0, "largest part of a picture's area that a local crop shows; not set: chosen", low=0, high=1
    )
    local_least: float = setting(0.1, "smallest part of a picture's area that a local crop shows", low=0.01, high=1)
    local_size: int | None = optional(0, "pixels a side of a local crop; not set: about half of a global one", low=0)
    colour: float = setting(1.0, "how strongly colours are changed; 0: not at all", low=0, high=2)
    hidden: int | None = optional(0, "width of the projection head; not set: chosen", low=0)
    outputs: int | None = optional(
        0, "dino: prototypes; simdino: dimensions that the coding rate is computed in; not set: chosen", low=0
    )
    head_norm: bool = setting(False, "simdino: batch norm in the projection head")
    momentum: float | None = optional(
        -1.0, "of the teacher at the start; not set: 0.996, less in short runs; simdino: 0.9", low=0, high=1
    )
    momentum_end: float | None = optional(
        -1.0, "of the teacher at the end; not set: 1, where it stands still", low=0, high=1
    )
    teacher_temperature: float = setting(0.04, "dino: of the teacher after its warm-up; lower is sharper", low=0.001)
    student_temperature: float = setting(0.1, "dino: of the student", low=0.001)
    centre_momentum: float = setting(0.9, "dino: of the centre that is taken off the teacher's outputs", low=0, high=1)
    coding_rate: float = setting(1.0, "simdino: weight of the coding rate, which keeps features apart", low=0)
    rate_crops: str = setting("global", "simdino: the crops whose coding rate is taken", choices=("global", "all"))
    distortion: float = setting(0.5, "simdino: epsilon of the coding rate; lower asks for more bits", low=0.001)
    target: str = setting(
        "teacher",
        "simdino: what a crop agrees with: the teacher, or the mean of all crops",
        choices=("teacher", "mean"),
    )
    weight_decay_end: float | None = optional(
        -1.0, "the weight decay rises from train.weight_decay to this; not set: it stays", low=0
    )
    mask: float = setting(0.75, "mae: part of the patches that are hidden", low=0.05, high=0.95)


SECTIONS: dict[str, type[Any]] = {
    "data": Data,
    "model": Model,
    "train": Recipe,
    "augment": Augment,
    "pretrain": Pretrain,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All sections. A setting is named by its section and its own name, such as "train.lr"."""

    data: Data = Data()
    model: Model = Model()
    train: Recipe = Recipe()
    augment: Augment = Augment()
    pretrain: Pretrain = Pretrain()

    def __post_init__(self) -> None:
        for section in SECTIONS:
            values = getattr(self, section)
            for field in fields(values):
                check_field(f"{section}.{field.name}", field, getattr(values, field.name))
        if self.train.epochs and self.train.minutes:
            raise VitrailError(
                f"train.epochs {self.train.epochs} and train.minutes {self.train.minutes}: give one of them"
            )

    def with_values(self, values: Mapping[str, Any]) -> Settings:
        """A copy with some settings changed, by their names such as "train.lr"; None unsets one."""
        sections = {name: asdict(getattr(self, name)) for name in SECTIONS}
        for name, value in values.items():
            section, _, key = name.partition(".")
            if key not in sections.get(section, {}):
                names = [f"{section}.{key}" for section, keys in sections.items() for key in keys]
                close = difflib.get_close_matches(name, names, n=1)
                raise VitrailError(f"there is no setting {name}" + (f": did you mean {close[0]}?" if close else ""))
            sections[section][key] = value
        return Settings(**{name: SECTIONS[name](**sections[name]) for name in SECTIONS})

    def where_unset(self, values: Mapping[str, Any]) -> Settings:
        """A copy with these values where nothing is set; what is set wins."""
        return self.with_values({name: value for name, value in values.items() if self.value(name) is None})

    def value(self, name: str) -> Any:
        """One setting by its name such as "train.lr"."""
        section, _, key = name.partition(".")
        return getattr(getattr(self, section), key)

    def changed(self) -> dict[str, Any]:
        """The settings that are not at their defaults, by name."""
        names = [f"{section}.{field.name}" for section, kind in SECTIONS.items() for field in fields(kind)]
        usual = Settings()
        return {name: self.value(name) for name in names if self.value(name) != usual.value(name)}

    @classmethod
    def read(cls, path: str | Path) -> Settings:
        """The settings of a TOML file. What it does not name is not set, or has its usual value."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            dots = max((line.count(".") for line in text.splitlines()), default=0)
            if dots > _MOST_DOTS:
                raise ValueError(f"it has a line with {dots:,} dots")
            content = tomllib.loads(text)
        except OSError as error:
            raise VitrailError(f"cannot read {path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, a number of thousands of digits
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
        """As a TOML file that `read` takes."""
        write_text(path, self.to_toml())

    def to_toml(self) -> str:
        """Every setting with its meaning above it; those that are not set are commented out."""
        lines: list[str] = []
        for section, kind in SECTIONS.items():
            if section == "pretrain" and self.pretrain == Pretrain():
                continue  # a run that learns from labels has none
            lines.append(f"[{section}]")
            for field in fields(kind):
                lines += as_toml(field, self.value(f"{section}.{field.name}"))
            lines.append("")
        return "\n".join(lines)
