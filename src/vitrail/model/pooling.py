"""From all tokens to one vector: [CLS], the mean of the patches, both side by side, or attention by a learned query."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.model.attention import attend
from vitrail.model.block import MLP
from vitrail.model.config import ViTConfig


class AttentionPool(nn.Module):
    """(B, M, D) -> (B, D): one learned query looks at every token, then an MLP with a residual (SigLIP, big_vision)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.head_dim
        self.query = nn.Parameter(torch.empty(1, config.width))
        self.q = nn.Linear(config.width, config.width)
        self.kv = nn.Linear(config.width, 2 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q = self.q(self.query).reshape(1, 1, self.heads, self.head_dim).transpose(1, 2).expand(batch, -1, -1, -1)
        kv = self.kv(x).reshape(batch, tokens, 2, self.heads, self.head_dim)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, heads, M, d)
        pooled = self.out(attend(q, k, v, training=self.training).reshape(batch, 1, width))  # (B, 1, D)
        return (pooled + self.mlp(self.norm(pooled))).squeeze(1)  # (B, D)


class Pool(nn.Module):
    """(B, prefix + N, D) -> (B, D), (B, 2 D) for cls_mean, or (B, N, D) for none: every patch token is kept."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.kind, self.prefix = config.pool, config.prefix
        self.attention = AttentionPool(config) if config.pool == "attention" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "cls":
            return x[:, 0]
        if self.attention is not None:
            return self.attention(x)
        patches = x[:, self.prefix :]
        if self.kind == "none":
            return patches
        mean = patches.mean(dim=1)
        return mean if self.kind == "mean" else torch.cat([x[:, 0], mean], dim=-1)
