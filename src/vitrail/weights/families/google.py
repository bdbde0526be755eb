"""Google's own weights, .npz: of its vision_transformer repository (ViT, AugReg) and of big_vision (SigLIP too)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.tasks.registry import task_of_outputs
from vitrail.weights.family import Foreign, count_blocks, count_heads, native_layout, shape_of
from vitrail.weights.naming import Names, to_ours
from vitrail.weights.preprocessing import HALF, Preprocessing
from vitrail.weights.source import Source

NAME = "google"

# ---- names of tensors

ROOTS = ("params/img/", "params/", "opt/target/", "img/", "")  # what stands before the network's names, best first

BLOCK = "Transformer/encoderblock_{i}/"
ATTENTION = BLOCK + "MultiHeadDotProductAttention_1/"
POOL = "MAPHead_0/"
POOL_ATTENTION = POOL + "MultiHeadDotProductAttention_0/"
POSITIONS = "Transformer/posembed_input/pos_embedding"

LATER_NAMES = (  # big_vision's, and the first ones that they stand for
    (r"^(Transformer/)?pos_embedding$", POSITIONS),
    (r"(encoderblock_\d+/)LayerNorm_1/", r"\1LayerNorm_2/"),
    (r"(encoderblock_\d+/)MultiHeadDotProductAttention_0/", r"\1MultiHeadDotProductAttention_1/"),
    (r"(encoderblock_\d+/)MlpBlock_0/", r"\1MlpBlock_3/"),
)

NAMES = Names(
    modules={
        "stem.projection": "embedding",
        "blocks.{i}.norm1": BLOCK + "LayerNorm_0",
        "blocks.{i}.attention.qkv": (ATTENTION + "query", ATTENTION + "key", ATTENTION + "value"),
        "blocks.{i}.attention.out": ATTENTION + "out",
        "blocks.{i}.norm2": BLOCK + "LayerNorm_2",
        "blocks.{i}.mlp.up": BLOCK + "MlpBlock_3/Dense_0",
        "blocks.{i}.mlp.down": BLOCK + "MlpBlock_3/Dense_1",
        "norm": "Transformer/encoder_norm",
        "pool.attention.q": POOL_ATTENTION + "query",
        "pool.attention.kv": (POOL_ATTENTION + "key", POOL_ATTENTION + "value"),
        "pool.attention.out": POOL_ATTENTION + "out",
        "pool.attention.norm": POOL + "LayerNorm_0",
        "pool.attention.mlp.up": POOL + "MlpBlock_0/Dense_0",
        "pool.attention.mlp.down": POOL + "MlpBlock_0/Dense_1",
        "head.hidden": "pre_logits",
        "head.out": "head",
    },
    tensors={"cls_token": "cls", "positions.table": POSITIONS, "pool.attention.query": POOL + "probe"},
)

LAYOUTS: tuple[tuple[str, int, Callable[[Tensor], Tensor]], ...] = (  # by the end of a name: dims, and as torch has it
    (r"^embedding/kernel$", 4, lambda kernel: kernel.permute(3, 2, 0, 1)),  # (P, P, C, D) -> (D, C, P, P)
    (r"/(query|key|value)/kernel$", 3, lambda kernel: kernel.flatten(1).T),  # (D, heads, d) -> (D, D)
    (r"/(query|key|value)/bias$", 2, lambda bias: bias.flatten()),  # (heads, d) -> (D,)
    (r"/out/kernel$", 3, lambda kernel: kernel.flatten(0, 1).T),  # (heads, d, D) -> (D, D)
    (r"/kernel$", 2, lambda kernel: kernel.T),
)


def recognises(source: Source) -> bool:
    """Whether the arrays have the names of Google's JAX code."""
    return any(root + "embedding/kernel" in source.tensors for root in ROOTS)


def convert(source: Source, settings: Mapping[str, Any]) -> Foreign:
    """Google's arrays, brought into torch's layout, as a config and tensors of ours."""
    arrays = _first_names(source.tensors)
    _refuse_other_networks(arrays)
    config, heads_from = _config(arrays, settings)
    tensors = dict(_torch_layout(name, array) for name, array in arrays.items())
    notes = []
    if "activation" not in settings:
        notes.append("GELU is computed by tanh, as in Google's own code; activation='gelu' is timm's exact one")
    return Foreign(
        config=config,
        tensors=to_ours(tensors, NAMES, config),
        preprocessing=_preprocessing(config),
        heads_from=heads_from,
        task=task_of_outputs(config.classes),
        notes=notes,
    )


def _first_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The network's arrays under the names of the first published files, one block at a time."""
    root = next((root for root in ROOTS if root + "embedding/kernel" in tensors), None)
    if root is None:
        raise VitrailError("it has no embedding/kernel, so these are not Google's ViT names")
    arrays: dict[str, Tensor] = {}
    for name, array in tensors.items():
        if not name.startswith(root):
            continue  # a text tower, an optimiser's state
        name = name.removeprefix(root)
        stacked = "Transformer/encoderblock/" in name  # all blocks in one array, for JAX's scan
        parts = array.unbind(0) if stacked and array.dim() else [array]
        for i, part in enumerate(parts):
            arrays[_first_name(name.replace("encoderblock/", f"encoderblock_{i}/"))] = part
    return arrays


def _first_name(name: str) -> str:
    for later, first in LATER_NAMES:
        name = re.sub(later, first, name)
    return name


def _torch_layout(name: str, array: Tensor) -> tuple[str, Tensor]:
    """An array as torch keeps it, outputs first, under a torch-like ending: `head/kernel` -> `head.weight`."""
    for ending, dims, layout in LAYOUTS:
        if re.search(ending, name):
            shape_of({name: array}, name, dims)
            array = layout(array)
            break
    return re.sub(r"/(kernel|scale)$", ".weight", re.sub(r"/bias$", ".bias", name)), array


# ---- config


def _refuse_other_networks(arrays: Mapping[str, Tensor]) -> None:
    if "conv_root/kernel" in arrays:
        raise VitrailError("it is a hybrid, a ResNet (conv_root) before the ViT, and only plain ViTs are read")
    if POSITIONS not in arrays:
        raise VitrailError(
            "it stores no positions (big_vision's sincos2d computes them), so its native size is unknown"
        )


def _config(arrays: Mapping[str, Tensor], settings: Mapping[str, Any]) -> tuple[ViTConfig, str]:
    down, across, channels, width = shape_of(arrays, "embedding/kernel", 4)
    _, heads, _ = shape_of(arrays, ATTENTION.format(i=0) + "query/kernel", 3)
    heads, heads_from = count_heads(width, settings, heads, "the shape of the query kernel, (D, heads, d)")
    cls = "cls" in arrays
    rows = shape_of(arrays, POSITIONS, 3)[1]
    prefix, image_size = native_layout(rows, (1, 0) if cls else (0,), (down, across), settings)
    config = ViTConfig(
        image_size=image_size,
        patch_size=(down, across),
        channels=channels,
        cls_token=cls,
        cls_init="zeros",
        cls_position="learned" if prefix else "none",
        resample="linear",
        width=width,
        depth=count_blocks(arrays, "Transformer/encoderblock_", "/"),
        heads=heads,
        mlp_width=shape_of(arrays, BLOCK.format(i=0) + "MlpBlock_3/Dense_0/kernel", 2)[1],
        activation="gelu_tanh",  # flax's gelu is the tanh one unless asked otherwise, and Google's code does not ask
        norm_eps=1e-6,
        pool="attention" if POOL + "probe" in arrays else "cls" if cls else "mean",
        classes=shape_of(arrays, "head/kernel", 2)[1] if "head/kernel" in arrays else 0,
        head="mlp" if "pre_logits/kernel" in arrays else "linear",
        head_width=shape_of(arrays, "pre_logits/kernel", 2)[1] if "pre_logits/kernel" in arrays else None,
    )
    return config, heads_from


# ---- preprocessing


def _preprocessing(config: ViTConfig) -> Preprocessing:
    """Pixels in [-1, 1], both sides brought to the size whatever the aspect, linearly, as in Google's evaluation."""
    mean, std = HALF
    preprocessing = Preprocessing(size=config.image_size, resize="squash", interpolation="bilinear", mean=mean, std=std)
    return preprocessing.for_channels(config.channels)
