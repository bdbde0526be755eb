"""What transformers keeps beside its weights, config.json and preprocessor_config.json, in our terms.

`transformers_folder.py` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitrail.errors import VitrailError
from vitrail.model.encoder_config import EncoderConfig
from vitrail.weights.family import count_heads, native_size
from vitrail.weights.preprocessing import CLIP, HALF, IMAGENET, Preprocessing

# hidden_act -> activation; the names of one value are the same function to the last bits
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
TASKS = {
    "single_label_classification": "classify",
    "multi_label_classification": "multilabel",
    "regression": "regress",
}
INEXPRESSIBLE = (  # settings that change what a block computes, or how the weights are stored
    "use_mean_pooling",
    "use_relative_position_bias",
    "use_shared_relative_position_bias",
    "use_relative_position_embeddings",
    "window_size",
    "window_block_indices",
    "quantization_config",
)
INTERPOLATION = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers

# What a processor does where preprocessor_config.json is silent. One number as a size is a square to some, and to the
# others the shorter side.
_IN_HALVES = {"image_mean": HALF[0], "image_std": HALF[1]}
_AS_CLIP = {"image_mean": CLIP[0], "image_std": CLIP[1]}
_AS_IMAGENET = {"image_mean": IMAGENET[0], "image_std": IMAGENET[1]}
_TO_224 = {"do_center_crop": True, "crop_size": 224}
PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": {"size": 224, "square": True, "resample": 2, **_IN_HALVES},
    "DeiT": {"size": 256, "square": True, **_TO_224, "resample": 3, **_IN_HALVES},
    "Tipsv2": {"size": {"height": 448, "width": 448}, "resample": 2, "do_normalize": False},
    "DINOv3ViT": {"size": {"height": 224, "width": 224}, "resample": 2, **_AS_IMAGENET},
    "Beit": {"size": 224, "square": True, "crop_size": 224, "resample": 3, **_IN_HALVES},
    "Siglip": {"size": {"height": 224, "width": 224}, "resample": 3, **_IN_HALVES},
    "CLIP": {"size": 224, **_TO_224, "resample": 3, **_AS_CLIP},
    "Bit": {"size": 224, **_TO_224, "resample": 3, **_AS_CLIP},
}


@dataclass(frozen=True)
class Usual:
    """What holds for a type of model where its files do not say."""

    norm_eps: float
    hidden_act: str
    resample: str
    processor: str
    preprocessing: Preprocessing  # as published; its size is the model's native one


@dataclass(frozen=True)
class Shapes:
    """What the shapes of the tensors show."""

    patch: tuple[int, ...]  # of the convolution over patches: (D, C, P, P)
    depth: int
    mlp_width: int
    positions: int  # of patches

    @property
    def width(self) -> int:
        """D, the width of a token."""
        return self.patch[0]

    @property
    def channels(self) -> int:
        """C, the channels of an image."""
        return self.patch[1]

    @property
    def patch_size(self) -> tuple[int, int]:
        """(height, width) of a patch."""
        return self.patch[2], self.patch[3]


def without_nulls(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What a JSON file says: transformers writes null for what it leaves open."""
    return {name: value for name, value in stored.items() if value is not None}


# ---- config.json


def tower_config(whole: Mapping[str, Any]) -> dict[str, Any]:
    """The image tower's settings: they lie within those of the whole model, or are all there is."""
    inside = whole.get("vision_config")
    if not isinstance(inside, dict):
        return dict(whole)
    newer = whole.get("vision_config_dict", {})  # some files have both, and then this one holds
    return without_nulls(
        {"model_type": whole.get("model_type"), **inside, **(newer if isinstance(newer, dict) else {})}
    )


def known_type(name: Any, types: Mapping[str, Usual]) -> str:
    """The model_type, if it is one of these; VitrailError otherwise."""
    if not isinstance(name, str) or name not in types:
        raise VitrailError(f"config.json has model_type {name!r}; read as plain ViTs are {', '.join(types)}")
    return name


def encoder_fields(
    stored: Mapping[str, Any], usual: Usual, shapes: Shapes, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """The fields of ViTConfig that every transformers model tells alike, and how the number of heads is known."""
    _check_expressible(stored, shapes)
    heads, heads_from = _heads(stored, shapes.width, settings)
    fields = {
        "image_size": _image_size(stored, shapes, settings),
        "patch_size": shapes.patch_size,
        "channels": shapes.channels,
        "width": shapes.width,
        "depth": shapes.depth,
        "heads": heads,
        "mlp_width": shapes.mlp_width,
        "activation": hidden_act(stored, usual),
        "norm_eps": stored.get("layer_norm_eps", usual.norm_eps),
        "resample": usual.resample,
        "dropout": stored.get("hidden_dropout_prob", 0.0),
        "attention_dropout": stored.get("attention_probs_dropout_prob", stored.get("attention_dropout", 0.0)),
        "drop_path": stored.get("drop_path_rate", 0.0),
    }
    return fields, heads_from


def _check_expressible(stored: Mapping[str, Any], shapes: Shapes) -> None:
    for name in INEXPRESSIBLE:
        if stored.get(name):
            raise VitrailError(f"config.json has {name} {stored[name]!r}, which a plain ViT does not have"[:200])
    from_weights = {"hidden_size": shapes.width, "num_hidden_layers": shapes.depth, "num_channels": shapes.channels}
    for name, number in from_weights.items():
        if stored.get(name, number) != number:
            raise VitrailError(f"config.json has {name} {stored[name]!r}, but the weights have {number}")
    if "patch_size" in stored and pair_of("patch_size", stored["patch_size"]) != shapes.patch_size:
        raise VitrailError(
            f"config.json has patch_size {stored['patch_size']}, but the weights have {shapes.patch_size}"
        )


def hidden_act(stored: Mapping[str, Any], usual: Usual) -> str:
    """Our name of the activation in config.json."""
    name = stored.get("hidden_act", usual.hidden_act)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise VitrailError(f"config.json has hidden_act {name!r}; Vitrail has {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _heads(stored: Mapping[str, Any], width: int, settings: Mapping[str, Any]) -> tuple[int, str]:
    heads, where = stored.get("num_attention_heads"), "num_attention_heads of config.json"
    if heads is None and stored.get("model_type"):
        heads, where = 12, "transformers' default of 12; config.json does not say"
    if heads is not None and (type(heads) is not int or heads < 1):
        raise VitrailError(f"config.json has num_attention_heads {heads!r}, not a whole number above 0")
    heads, where = count_heads(width, settings, heads, where)
    head_dim = stored.get("head_dim")
    if head_dim is not None and head_dim != width / heads:
        raise VitrailError(f"config.json has head_dim {head_dim!r}; Vitrail has width / heads, {width} / {heads}")
    return heads, where


def _image_size(stored: Mapping[str, Any], shapes: Shapes, settings: Mapping[str, Any]) -> tuple[int, int]:
    size = None
    if "image_size" in stored:
        # SigLIP so400m: 384 px with patches of 14. The convolution never sees the last 6 rows and columns.
        size = whole_patches(pair_of("image_size", stored["image_size"]), shapes.patch_size)
        grid = size[0] // shapes.patch_size[0], size[1] // shapes.patch_size[1]
        if grid[0] * grid[1] != shapes.positions:
            raise VitrailError(
                f"config.json has image_size {stored['image_size']}, which is {grid[0]} x {grid[1]} patches, "
                f"but the weights have {shapes.positions} positions"
            )
    return native_size(shapes.positions, shapes.patch_size, settings, size)


def read_task(stored: Mapping[str, Any], classes: int) -> str:
    """Our name of the task: from problem_type, else by the number of outputs."""
    if not classes:
        return "embed"
    # one output and nothing said: transformers trains it as a number
    kind = stored.get("problem_type") or ("regression" if classes == 1 else "single_label_classification")
    if not isinstance(kind, str) or kind not in TASKS:
        raise VitrailError(f"config.json has problem_type {kind!r}; Vitrail knows {', '.join(TASKS)}")
    return TASKS[kind]


def read_labels(stored: Mapping[str, Any], classes: int) -> list[str] | None:
    """The class names in the order of the outputs, if config.json spells them out."""
    names = stored.get("id2label")
    if not names or not classes:
        return None
    if not isinstance(names, dict):
        raise VitrailError(f"config.json has id2label {str(names)[:40]!r}, which is no object of names")
    if {str(i) for i in range(classes)} != set(names):
        raise VitrailError(
            f"config.json has id2label for {len(names)} classes, the head has outputs 0 to {classes - 1}"
        )
    return [str(names[str(i)]) for i in range(classes)]


# ---- preprocessor_config.json


def read_preprocessing(
    stored: Mapping[str, Any], usual: Usual, config: EncoderConfig, notes: list[str]
) -> Preprocessing:
    """How images are prepared: as the processor's file says, else as the model was published, which is noted."""
    if not stored:
        # DINOv2's 518 px are those of its last phase of training: it is used at 224.
        size = (224, 224) if config.image_size == (518, 518) else config.image_size
        published = usual.preprocessing.replace(size=size).for_channels(config.channels)
        notes.append(
            "there is no preprocessor_config.json: the published preprocessing was assumed ("
            f"mean {published.mean}, std {published.std}, {published.resize} to {published.size}, "
            f"{published.interpolation})"
        )
        return published
    kind = re.match(r"(\w+?)(ImageProcessor|FeatureExtractor)", _processor_type(stored))
    values = {**PROCESSORS.get(kind[1] if kind else "", PROCESSORS[usual.processor]), **without_nulls(stored)}
    size, resize, fraction = _resizing(values, notes)
    whole = whole_patches(size, config.patch_size)
    if whole != size:
        notes.append(
            f"images are prepared at {whole}, not {size}, which the patch size {config.patch_size} does not divide"
        )
    mean, std = _normalisation(values, config.channels)
    return Preprocessing(
        size=whole,
        resize=resize,
        crop_fraction=fraction,
        interpolation=_interpolation(values["resample"]),
        mean=mean,
        std=std,
    )


def _processor_type(stored: Mapping[str, Any]) -> str:
    return str(stored.get("image_processor_type") or stored.get("feature_extractor_type") or "")


def _resizing(values: Mapping[str, Any], notes: list[str]) -> tuple[tuple[int, int], str, float]:
    """The final size, the resize rule, and the crop's share of the shorter side."""
    edge = _shortest_edge(values)
    crop = pair_of("crop_size", values["crop_size"]) if values.get("do_center_crop") else None
    if edge is None:
        size = pair_of("size", values["size"])
        if crop is None:
            return size, "squash", 1.0
        fraction = min(1.0, crop[0] / size[0])
        if Preprocessing(size=crop, crop_fraction=fraction).before_crop == size:
            if crop != size:
                notes.append(
                    f"the processor squashes images to {size} before it cuts out {crop}, and so does Vitrail; "
                    "a processor whose size has shortest_edge keeps their aspect"
                )
            return crop, "squash", fraction
        notes.append(f"the processor squashes images to {size} before it cuts out {crop}; Vitrail keeps their aspect")
        edge = min(size)
    elif crop is None:
        crop = (edge, edge)
        notes.append(
            f"the processor leaves images at their own aspect, {edge} px across; Vitrail cuts out the centre square"
        )
    if min(crop) > edge:
        notes.append(f"the processor resizes to {edge} px and pads with black to {crop}; Vitrail resizes to fill it")
    return crop, "crop", min(1.0, min(crop) / edge)


def _shortest_edge(values: Mapping[str, Any]) -> int | None:
    """The length that the shorter side goes to, or None where both sides have their own."""
    size = values["size"]
    if isinstance(size, dict) and set(size) & {"longest_edge", "max_pixels", "min_pixels"}:
        raise VitrailError(f"preprocessor_config.json has size {size}, which leaves the image size open")
    edge = size.get("shortest_edge") if isinstance(size, dict) else None if values.get("square") else size
    if edge is None or isinstance(edge, list):
        return None
    if type(edge) is not int or edge < 1:
        raise VitrailError(f"preprocessor_config.json has size {size!r}, not whole numbers above 0")
    return edge


def read_normalisation(
    stored: Mapping[str, Any], usual: Usual, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std alone: of a processor whose images keep their own aspect."""
    published = {"image_mean": usual.preprocessing.mean, "image_std": usual.preprocessing.std}
    return _normalisation({**published, **without_nulls(stored)}, channels)


def _normalisation(values: Mapping[str, Any], channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std for pixels in 0..1, whatever the processor scales them by first."""
    mean, std = (values["image_mean"], values["image_std"]) if values.get("do_normalize", True) else (0.0, 1.0)
    factor = values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1.0
    if not isinstance(factor, int | float) or factor <= 0:
        raise VitrailError(f"preprocessor_config.json has rescale_factor {factor!r}, not a number above 0")
    scale = 255 * factor
    both = []
    for name, numbers in (("image_mean", mean), ("image_std", std)):
        several = [numbers] * channels if isinstance(numbers, int | float) else numbers
        if not isinstance(several, list | tuple) or not all(isinstance(v, int | float) for v in several):
            raise VitrailError(f"preprocessor_config.json has {name} {numbers!r}, not one number a channel")
        # not divided when nothing is to be: 0.5 stays 0.5 to the last bit
        both.append(tuple(float(v) if abs(scale - 1) < 1e-6 else v / scale for v in several))
    prepared = Preprocessing(mean=both[0], std=both[1]).for_channels(channels)
    return prepared.mean, prepared.std


def _interpolation(number: Any) -> str:
    if type(number) is not int or number not in INTERPOLATION:
        raise VitrailError(f"preprocessor_config.json has resample {number!r}; Vitrail has {INTERPOLATION}")
    return INTERPOLATION[number]


# ---- sizes


def whole_patches(size: tuple[int, int], patch_size: tuple[int, int]) -> tuple[int, int]:
    """The size cut down to whole patches, at least one a side."""
    height, width = (max(patch, side // patch * patch) for side, patch in zip(size, patch_size, strict=True))
    return height, width


def pair_of(name: str, value: Any) -> tuple[int, int]:
    """224, [224, 224] and {"height": 224, "width": 224} are all (224, 224)."""
    if isinstance(value, dict):
        value = [value.get("height"), value.get("width")]
    pair = value if isinstance(value, list | tuple) else (value, value)
    if len(pair) != 2 or any(type(side) is not int or side < 1 for side in pair):
        raise VitrailError(f"{name} is {value!r}, not one or two whole numbers above 0")
    return pair[0], pair[1]
