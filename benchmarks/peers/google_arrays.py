"""A ViT of timm as Google's own code would have stored it: flax's names and layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    import numpy as np
    from timm.models import VisionTransformer

    Arrays = dict[str, np.ndarray]

FIRST = {"attention": 1, "norm2": 2, "mlp": 3, "positions": "Transformer/posembed_input/pos_embedding"}
LATER = {"attention": 0, "norm2": 1, "mlp": 0, "positions": "pos_embedding"}


def linear(layer: nn.Linear, name: str) -> dict[str, Tensor]:
    return {f"{name}/kernel": layer.weight.T, f"{name}/bias": layer.bias}


def norm(layer: nn.LayerNorm, name: str) -> dict[str, Tensor]:
    return {f"{name}/scale": layer.weight, f"{name}/bias": layer.bias}


def attention(weight: Tensor, bias: Tensor, heads: int, name: str, parts: tuple[str, ...]) -> dict[str, Tensor]:
    """(3 D, D) of torch to query, key and value kernels (D, heads, d), as flax has them."""
    arrays = {}
    for part, w, b in zip(parts, weight.chunk(len(parts)), bias.chunk(len(parts)), strict=True):
        arrays[f"{name}/{part}/kernel"] = w.T.reshape(w.shape[1], heads, -1)
        arrays[f"{name}/{part}/bias"] = b.reshape(heads, -1)
    return arrays


def out(layer: nn.Linear, heads: int, name: str) -> dict[str, Tensor]:
    return {
        f"{name}/out/kernel": layer.weight.T.reshape(heads, -1, layer.weight.shape[0]),
        f"{name}/out/bias": layer.bias,
    }


def arrays_of(model: VisionTransformer, style: dict[str, Any] = FIRST, stacked: bool = False) -> Arrays:
    """A timm model as Google would have stored it."""
    arrays = {
        "embedding/kernel": model.patch_embed.proj.weight.permute(2, 3, 1, 0),
        "embedding/bias": model.patch_embed.proj.bias,
        style["positions"]: model.pos_embed,
        **norm(model.norm, "Transformer/encoder_norm"),
    }
    if model.cls_token is not None:
        arrays["cls"] = model.cls_token
    if isinstance(model.head, nn.Linear):
        arrays |= linear(model.head, "head")
    blocks = [block_arrays(block, style) for block in model.blocks]
    if stacked:
        arrays |= {f"Transformer/encoderblock/{n}": torch.stack([block[n] for block in blocks]) for n in blocks[0]}
    else:
        arrays |= {f"Transformer/encoderblock_{i}/{n}": t for i, block in enumerate(blocks) for n, t in block.items()}
    if model.attn_pool is not None:
        arrays |= pool_arrays(model.attn_pool)
    return {name: tensor.detach().contiguous().numpy() for name, tensor in arrays.items()}


def block_arrays(block: nn.Module, style: dict[str, Any]) -> dict[str, Tensor]:
    name, heads = f"MultiHeadDotProductAttention_{style['attention']}", block.attn.num_heads
    return {
        **norm(block.norm1, "LayerNorm_0"),
        **attention(block.attn.qkv.weight, block.attn.qkv.bias, heads, name, ("query", "key", "value")),
        **out(block.attn.proj, heads, name),
        **norm(block.norm2, f"LayerNorm_{style['norm2']}"),
        **linear(block.mlp.fc1, f"MlpBlock_{style['mlp']}/Dense_0"),
        **linear(block.mlp.fc2, f"MlpBlock_{style['mlp']}/Dense_1"),
    }


def pool_arrays(pool: nn.Module) -> dict[str, Tensor]:
    name, heads = "MAPHead_0/MultiHeadDotProductAttention_0", pool.num_heads
    return {
        "MAPHead_0/probe": pool.latent,
        **attention(pool.q.weight, pool.q.bias, heads, name, ("query",)),
        **attention(pool.kv.weight, pool.kv.bias, heads, name, ("key", "value")),
        **out(pool.proj, heads, name),
        **norm(pool.norm, "MAPHead_0/LayerNorm_0"),
        **linear(pool.mlp.fc1, "MAPHead_0/MlpBlock_0/Dense_0"),
        **linear(pool.mlp.fc2, "MAPHead_0/MlpBlock_0/Dense_1"),
    }
