"""What trainers put around weights: entries of a checkpoint and prefixes of names, in any order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

# Where a training checkpoint keeps its weights, best first: DINO's teacher is what one wants of it, not the student.
WRAPPERS = (
    *("teacher", "state_dict_ema", "model_ema", "ema_state_dict", "ema"),
    *("model_state_dict", "model_state", "state_dict", "model", "module", "net", "network", "student"),
    *("encoder", "target_encoder"),  # I-JEPA; timm and transformers take the first
)
# Always stripped; where only some names have one of them, the others are not the network's.
PREFIXES = ("teacher.", "module.", "_orig_mod.", "backbone.")
# Stripped where they stand before a patch embedding that some family has under this name.
WORDS = {"model", "net", "network", "vit", "encoder", "visual", *(prefix[:-1] for prefix in PREFIXES)}
PATCHES = (
    "patch_embed.proj.weight",  # timm, Meta
    "embeddings.patch_embeddings.projection.weight",  # transformers; it has a "vit." or "swin." of its own before it
    "embeddings.patch_embedding.weight",  # transformers' towers
    "embeddings.patch_embeddings.weight",  # transformers' DINOv3
    "conv_proj.weight",  # torchvision
    "visual.conv1.weight",  # Perception Encoder
)
DEPTH = 4  # of entries within entries: a pickle may hold itself


def unwrap(content: Any, depth: int = 0) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors of a training checkpoint, and the entries they were found under."""
    if not isinstance(content, dict):
        return {}, ()
    for key in WRAPPERS if depth < DEPTH else ():
        tensors, under = unwrap(content.get(key), depth + 1)
        if any(tensor.dim() > 1 for tensor in tensors.values()):  # not just the decay of an EMA
            return tensors, (key, *under)
    named = {name: t.detach() for name, t in content.items() if isinstance(name, str) and isinstance(t, Tensor)}
    return named, ()


def strip_prefixes(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Names without what trainers put before them, and what was stripped."""
    inside, stripped = dict(tensors), []
    again = True
    while again:
        again = False
        for prefix in PREFIXES:
            found = {name.removeprefix(prefix): t for name, t in inside.items() if name.startswith(prefix)}
            if found:
                inside, again = found, True
                stripped.append(prefix)
        words = _words_before_patches(inside)
        if words:
            inside, again = {n.removeprefix(words): t for n, t in inside.items() if n.startswith(words)}, True
            stripped.append(words)
    return inside, tuple(stripped)


def _words_before_patches(tensors: Mapping[str, Tensor]) -> str:
    """Lightning's "model.", "net." and so on: what stands before the patch embedding, if it is such words alone."""
    for patches in PATCHES:
        for name in tensors:
            if name != patches and name.endswith("." + patches):
                words = name.removesuffix(patches).split(".")[:-1]
                if patches.startswith("embeddings.patch_embeddings") and words[-1] in ("vit", "swin", "swinv2"):
                    words.pop()  # transformers' own, beside which its classifier stands
                if words and set(words) <= WORDS:
                    return ".".join(words) + "."
    return ""
