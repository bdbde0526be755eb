"""From all tokens to one vector: [CLS], the mean of the patches, both side by side, or attention by a learned query."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.model.attention import attend, attention_weights
from vitrail.model.block import MLP
from vitrail.model.config import ViTConfig
from vitrail.model.efficient.token_merging import attention_bias, mean_by_size


class AttentionPool(nn.Module):
    """(B, M, D) -> (B, D): one learned query looks at every token, then an MLP with a residual (SigLIP, big_vision)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.pool_heads or config.heads
        self.head_dim = config.width // self.heads
        self.query = nn.Parameter(torch.empty(1, config.width))
        self.q = nn.Linear(config.width, config.width)
        self.kv = nn.Linear(config.width, 2 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        mlp_width = config.pool_mlp_width or config.mlp_width
        assert mlp_width is not None
        mlp_norm = config.norm_eps if config.mlp_norm else None
        self.mlp = MLP(config.width, mlp_width, config.activation, config.dropout, mlp_norm)

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Q of the learned query, (B, heads, 1, d); K and V of the tokens, (B, heads, M, d) each."""
        batch, tokens, _ = x.shape
        q = self.q(self.query).reshape(1, 1, self.heads, self.head_dim).transpose(1, 2).expand(batch, -1, -1, -1)
        kv = self.kv(x).reshape(batch, tokens, 2, self.heads, self.head_dim)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def weights(self, x: Tensor) -> Tensor:
        """(B, M, D) -> (B, heads, M): how much the learned query attends to each token. Rows sum to 1."""
        q, k, _ = self.qkv(x)
        return attention_weights(q, k)[:, :, 0]

    def forward(self, x: Tensor, sizes: Tensor | None = None) -> Tensor:
        """(B, M, D) -> (B, D). sizes: (B, M, 1), of merged tokens: one of size s counts s times."""
        batch, _, width = x.shape
        q, k, v = self.qkv(x)
        heads = attend(q, k, v, training=self.training, bias=attention_bias(sizes))
        pooled = self.out(heads.reshape(batch, 1, width))  # (B, 1, D)
        return (pooled + self.mlp(self.norm(pooled))).squeeze(1)  # (B, D)


class Pool(nn.Module):
    """(B, prefix + N, D) -> (B, D), (B, 2 D) for cls_mean, or (B, N, D) for none: every patch token is kept."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.kind, self.prefix = config.pool, config.prefix
        self.class_tokens = 1 + int(config.distillation)  # [CLS], and DeiT's [DIST], whose head has the same say
        self.attention = AttentionPool(config) if config.pool == "attention" else None

    def forward(self, x: Tensor, sizes: Tensor | None = None) -> Tensor:
        """(B, prefix + N, D), after the final norm if it is one over tokens -> the pooled vector or vectors.
        sizes: (B, M, 1), of merged tokens."""
        if self.kind == "cls":
            return x[:, 0]
        if self.attention is not None:
            return self.attention(x, sizes)
        patches = x[:, self.prefix :]
        if self.kind == "none":
            return patches
        mean = patches.mean(dim=1) if sizes is None else mean_by_size(patches, sizes[:, self.prefix :])
        return mean if self.kind == "mean" else torch.cat([x[:, 0], mean], dim=-1)

    def weights(self, x: Tensor) -> Tensor:
        """(B, M, D) -> (B, M): how much of each token the pooled vector holds. Rows sum to 1."""
        if self.attention is not None:
            return self.attention.weights(x).mean(1)
        weights = x.new_zeros(x.shape[:2], dtype=torch.float32)
        if self.kind in ("cls", "cls_mean"):
            weights[:, : self.class_tokens] = 1 / self.class_tokens
        if self.kind in ("mean", "cls_mean", "none"):
            weights[:, self.prefix :] = 1 / (x.shape[1] - self.prefix)
        return weights / weights.sum(dim=1, keepdim=True)
