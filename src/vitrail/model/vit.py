"""The Vision Transformer, in the order a lecture tells it: patches, [CLS], positions, blocks, pooling, head."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import cast

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.model.block import Block, LayerScaleDropPath
from vitrail.model.config import ViTConfig
from vitrail.model.efficient.token_merging import TokenMerging, merges_in_blocks
from vitrail.model.encoder import Capture, Embedding, Encoder, Features, build_head
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.heads.dense_head import DenseHead, EncoderFeatures
from vitrail.model.heads.linear_head import LinearHead
from vitrail.model.noise import Dropout
from vitrail.model.patches import ConvStem, FeatureStem, build_stem
from vitrail.model.pooling import AttentionPool, Pool
from vitrail.model.positions import BlockPositions, Grid, RelativeBias, RotaryPositions, build_positions, resample
from vitrail.model.precision import in_float32
from vitrail.model.presets import vit_preset


class ViT(Encoder):
    """`ViT("S/16")` or `ViT(ViTConfig(...))`. `cnn` is the user's feature extractor for stem="features"."""

    config: ViTConfig

    def __init__(self, config: ViTConfig | str, cnn: nn.Module | None = None, freeze_cnn: bool = False) -> None:
        super().__init__()
        config = vit_preset(config) if isinstance(config, str) else config
        self.config = config
        self.stem = build_stem(config, cnn, freeze_cnn)
        self.cls_token = nn.Parameter(torch.empty(1, config.width)) if config.cls_token else None
        self.distillation_token = nn.Parameter(torch.empty(1, config.width)) if config.distillation else None
        self.registers = nn.Parameter(torch.empty(config.registers, config.width)) if config.registers else None
        self.queries = nn.Parameter(torch.empty(config.query_tokens, config.width)) if config.query_tokens else None
        self.positions = build_positions(config)
        self.rotary = RotaryPositions(config) if config.is_rotary else None
        self.block_positions = BlockPositions(config) if config.block_positions and config.depth > 1 else None
        self.dropout = Dropout(config.dropout, "positions")
        self.stem_norm = nn.LayerNorm(config.width, eps=config.norm_eps) if config.stem_norm else None
        last = config.depth - 1
        drop_paths = [config.drop_path * (i / last if last else 1) for i in range(config.depth)]
        self.blocks = nn.ModuleList(map(Block, repeat(config), drop_paths, config.block_windows))
        norm_width = config.pooled_width if config.final_norm == "pooled" else config.width
        self.norm = nn.LayerNorm(norm_width, eps=config.norm_eps) if config.final_norm != "none" else None
        self.pool = Pool(config)
        self.head = build_head(config)
        two_heads = config.classes and config.distillation and not config.is_dense
        self.distillation_head = LinearHead(config) if two_heads else None
        # no memory yet: weights are loaded. normal_ would import torch._dynamo
        if not next(self.blocks.parameters()).is_meta:
            self.initialise()

    @property
    def prefix(self) -> int:
        """The number of tokens before the patches."""
        return self.config.prefix

    def forward_embedding(
        self, embedding: Embedding, keep: Tensor | None = None, capture: Capture | None = None
    ) -> Tensor:
        """From what the first block takes to the answer of a head that reads one vector."""
        kept = None
        if keep is not None:
            embedding, kept = self.keep_patches(embedding, keep)
        # With [CLS] pooling nobody reads the last block's patches, so they are attended to but not carried on: the same
        # answer, for 7 % fewer multiply-adds in S/16.
        carry = 1 + int(self.config.distillation) if self.config.pool == "cls" else None
        if self.merge_tokens and kept is None and not (capture is not None and (capture.blocks or capture.all_tokens)):
            counts = merges_in_blocks(self.config, self.merge_tokens, embedding.tokens.shape[1] - self.prefix)
            embedding = embedding._replace(merging=TokenMerging(counts, self.prefix))
        for step in self.steps(embedding, capture, kept, carry):
            embedding = step.result
        sizes = None if embedding.merging is None else embedding.merging.sizes
        return self.answer(embedding.tokens, capture, sizes)

    def keep_patches(self, embedding: Embedding, keep: Tensor) -> tuple[Embedding, Tensor]:
        """Only the patches with the numbers keep (K,), tokens (B, prefix + K, D), and the numbers of all tokens that
        are left, (prefix + K,), which blocks need to know."""
        if self.config.attention_window:
            raise VitrailError("attention_window needs all patches: keep must be None (train.keep_tokens = 1)")
        prefix = torch.arange(self.prefix, device=keep.device)
        kept = torch.cat([prefix, keep + self.prefix])
        rope = None if embedding.rope is None else embedding.rope.index_select(1, keep)
        return Embedding(embedding.tokens.index_select(1, kept), rope, embedding.grid), kept

    def answer(self, x: Tensor, capture: Capture | None = None, sizes: Tensor | None = None) -> Tensor:
        """The last block's output (B, M, D) -> final norm, pooling, head -> (B, classes); see `heads_apart`."""
        if self.distillation_head is None:
            return super().answer(x, capture, sizes)
        assert self.head is not None  # DeiT: two tokens, two heads, the mean of their answers
        x = self.norm_tokens(x)
        pooled, distillation = self.norm_pooled(x[:, 0]), self.norm_pooled(x[:, 1])
        if capture is not None:
            capture.normed, capture.pooled = x, pooled
        answers = in_float32(self.head, pooled), in_float32(self.distillation_head, distillation)
        return torch.stack(answers, dim=1) if self.heads_apart and self.training else (answers[0] + answers[1]) / 2

    def norm_tokens(self, x: Tensor) -> Tensor:
        """The final norm, where it is one over tokens: (B, M, D) -> (B, M, D)."""
        return self.norm(x) if self.norm is not None and self.config.final_norm == "tokens" else x

    def pool_tokens(self, x: Tensor, sizes: Tensor | None = None) -> Tensor:
        """(B, prefix + N, D), after `norm_tokens` -> (B, D); (B, N, D) with pool "none"."""
        return self.norm_pooled(self.pool(x, sizes))

    def pool_weights(self, x: Tensor) -> Tensor:
        """(B, M, D), after `norm_tokens` -> (B, M): how much of each token is in the pooled vector. Rows sum to 1."""
        return self.pool.weights(x)

    def pool_attention(self, x: Tensor) -> Tensor:
        """Of attention pooling: (B, prefix + N, D), after `norm_tokens` -> (B, heads, prefix + N), rows sum to 1."""
        if self.pool.attention is None:
            raise VitrailError(
                f"this model pools by {self.config.pool!r}: only pool 'attention' has a query of its own"
            )
        return self.pool.attention.weights(x)

    def norm_pooled(self, x: Tensor) -> Tensor:
        """The final norm, where it is one over the pooled vector (B, D)."""
        return self.norm(x) if self.norm is not None and self.config.final_norm == "pooled" else x

    def encoder_features(
        self, images: Tensor, out_indices: Sequence[int], pad: bool = False, capture: Capture | None = None
    ) -> EncoderFeatures:
        """What a dense head reads: the patches after some blocks, and the queries after the last."""
        images, grid = self.in_patches(images, pad)
        maps: tuple[Tensor, ...] = ()
        if isinstance(self.stem, ConvStem):
            maps = self.stem.maps(images)
            tokens = self.stem.tokens(maps[-1])
        else:
            tokens = self.stem(images)
        patches = []
        for step in self.steps(self.add_positions(tokens, grid), capture):
            x = self.norm_tokens(step.output) if step.index == self.depth - 1 else step.output
            if step.index in out_indices:
                patches.append(x[:, self.prefix :])
        if capture is not None:
            capture.normed, capture.pooled = x, patches[-1].mean(1)
        return EncoderFeatures(
            images, maps, (grid,) * len(patches), tuple(patches), self.split(x, grid).queries, capture
        )

    def embed(self, images: Tensor, pad: bool = False) -> Embedding:
        """Images to what the first block takes: tokens (B, prefix + N, D), rotary positions or None, and the grid."""
        images, grid = self.in_patches(images, pad)
        return self.add_positions(self.stem(images), grid)

    def add_positions(self, patches: Tensor, grid: Grid) -> Embedding:
        """Patches (B, N, D) with the prefix tokens before them and positions added."""
        x = patches.to(self.stem.projection.weight.dtype)  # type: ignore[union-attr, arg-type]  # autocast's sums stay float32
        prefix = [t.to(x.dtype).expand(x.shape[0], -1, -1) for t in self._prefix_parts()]
        x = torch.cat([*prefix, x], dim=1)  # (B, prefix + N, D)
        if self.positions is not None:
            x = x + self.positions(grid).to(x.dtype)
        x = self.dropout(x)
        if self.stem_norm is not None:
            x = self.stem_norm(x)
        return Embedding(x, None if self.rotary is None else self.rotary(grid), grid)

    def split(self, x: Tensor, grid: Grid) -> Features:
        """(B, prefix + N, D), such as a block's output, to its named parts."""
        config = self.config
        specials = int(config.cls_token) + int(config.distillation)
        queries = specials + config.registers
        return Features(
            cls=x[:, 0] if config.cls_token else None,
            distillation=x[:, 1] if config.distillation else None,
            registers=x[:, specials:queries],
            queries=x[:, queries : config.prefix],
            patches=x[:, config.prefix :],
            grid=grid,
        )

    def run_block(self, index: int, x: Embedding, kept: Tensor | None = None, carry: int | None = None) -> Embedding:
        """One block. YOLOS adds positions after every block but the last; others add none."""
        if x.merging is not None:
            r = x.merging.counts[index]
            tokens, merging = cast(Block, self.blocks[index]).forward_merging(x.tokens, x.merging, r, carry)
            return x._replace(tokens=tokens, merging=merging)
        tokens = self.blocks[index](x.tokens, x.rope, carry, x.grid, kept)
        if self.block_positions is not None and index < self.depth - 1:
            table = self.block_positions(index, x.grid)  # (prefix + N, D)
            tokens = tokens + (table if kept is None else table.index_select(0, kept)).to(tokens.dtype)
        return x._replace(tokens=tokens)

    # ---- what others need of the network's parts, by what it is

    def patch_tokens(self, images: Tensor) -> Tensor:
        """What the stem makes of images (B, C, H, W), before prefix and positions: (B, N, D)."""
        return self.stem(images)

    @property
    def patch_inputs(self) -> int:
        """How many numbers of a patch the stem's last linear map takes."""
        return self.stem.projection.in_features  # type: ignore[union-attr, return-value]

    def prefix_vectors(self) -> Tensor | None:
        """The learned tokens before the patches, (prefix, D): [CLS], distillation, registers, queries."""
        parts = self._prefix_parts()
        return torch.cat(parts) if parts else None

    def _prefix_parts(self) -> list[Tensor]:
        parts = (self.cls_token, self.distillation_token, self.registers, self.queries)
        return [part for part in parts if part is not None]

    def position_table(self, grid: Grid | None = None) -> Tensor | None:
        """The positions that are added before the first block, (prefix + N, D), on the native grid or on another."""
        return None if self.positions is None else self.positions(grid or self.config.grid)

    def block_position_table(self, grid: Grid) -> Tensor | None:
        """The positions that are added after each block but the last, (L - 1, prefix + N, D)."""
        if self.block_positions is None:
            return None
        return torch.stack([self.block_positions(index, grid) for index in range(self.depth - 1)])

    @torch.no_grad()
    def state_for(self, config: EncoderConfig) -> tuple[dict[str, Tensor], str]:
        """The weights with learned positions, absolute and relative ones, resampled to another grid."""
        grid, config = config.grid, self.config
        state, changed = self.state_dict(), ""
        if grid == config.grid:
            return state, ""
        for name, module in self.named_modules():
            if isinstance(module, RelativeBias):
                state[f"{name}.table"] = module.table_for(grid)
                changed = f", and its steps between patches from a grid of {config.grid} to {grid} by {config.resample}"
        if config.positions != "learned":
            return state, changed
        table, prefix = state["positions.table"], config.prefix_positions
        patches = resample(table[prefix:], config.grid, grid, config.resample)
        state["positions.table"] = torch.cat([table[:prefix], patches])
        if (tables := self.block_position_table(grid)) is not None:
            state["block_positions.table"] = tables
        return state, f"{changed}, and its positions from a grid of {config.grid} to {grid} by {config.resample}"

    def output_layers(self) -> list[nn.Linear]:
        """The last layer of each head that reads one vector: two in a distilled model, none with a dense head."""
        return [head.out for head in (self.head, self.distillation_head) if isinstance(head, LinearHead)]

    @property
    def feature_cnn(self) -> nn.Module | None:
        """The user's CNN, of stem "features"."""
        return self.stem.cnn if isinstance(self.stem, FeatureStem) else None

    def first_convolution(self) -> nn.Conv2d | None:
        """The first convolution of a conv stem; None with another stem."""
        return self.stem.first_convolution if isinstance(self.stem, ConvStem) else None

    def freeze_stem_statistics(self, frozen: bool) -> None:
        """Whether the batch norms of a conv stem or a CNN keep their running statistics in training."""
        if isinstance(self.stem, ConvStem | FeatureStem):
            self.stem.frozen = frozen

    @torch.no_grad()
    def initialise(self) -> None:
        """Fresh weights: normal(0.02) cut at two deviations for maps, tokens and positions, zeros for biases."""
        for name, module in self.named_modules():
            if name.startswith("stem.cnn"):
                continue  # the user's, with weights of its own
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, LayerScaleDropPath) and module.scale is not None:
                nn.init.constant_(module.scale, self.config.layer_scale or 0.0)
            elif isinstance(module, AttentionPool):
                nn.init.normal_(module.query, std=0.02)
            elif isinstance(module, RelativeBias):
                nn.init.zeros_(module.table)
        for token in (self.cls_token, self.distillation_token, self.registers):
            if token is not None:
                nn.init.normal_(token, std=0.02 if self.config.cls_init == "normal" else 0.0)
        if self.queries is not None:
            nn.init.normal_(self.queries, std=0.02)
        if isinstance(self.head, DenseHead):
            self.head.initialise()
        if self.positions is not None and self.positions.table is not None:
            nn.init.trunc_normal_(self.positions.table, std=0.02, a=-0.04, b=0.04)  # type: ignore[arg-type]
        if self.block_positions is not None:
            nn.init.zeros_(self.block_positions.table)
