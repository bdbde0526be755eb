"""Swin: patches, stages of blocks with shifted windows, patches merged between stages, the mean, a head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.model.encoder import Capture, Embedding, Encoder, Features, build_head
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.heads.dense_head import DenseHead, EncoderFeatures
from vitrail.model.noise import Dropout
from vitrail.model.patches import LinearStem
from vitrail.model.positions import Grid
from vitrail.model.presets import swin_preset
from vitrail.model.swin.relative_bias import resample_table
from vitrail.model.swin.swin_attention import WindowAttention
from vitrail.model.swin.swin_block import PatchMerging, SwinBlock
from vitrail.model.swin.swin_config import SwinConfig


class Swin(Encoder):
    """`Swin("swin-T")` or `Swin(SwinConfig(...))`, version 1 or 2.

    Attention costs O(N): a token sees its window, not the whole grid."""

    config: SwinConfig

    def __init__(self, config: SwinConfig | str) -> None:
        super().__init__()
        config = swin_preset(config) if isinstance(config, str) else config
        self.config = config
        self.stem = LinearStem(config)
        self.stem_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.dropout = Dropout(config.dropout, "positions")
        stages, last = config.stage_of_block, config.depth - 1
        drop_paths = [config.drop_path * (i / last if last else 1) for i in range(config.depth)]
        self.blocks = nn.ModuleList(
            SwinBlock(config, stage, is_shifted(config, i), drop_paths[i]) for i, stage in enumerate(stages)
        )
        # by the number of the block that takes what they give, so that names sort as the network runs
        firsts = [level.block + 1 for level in config.levels[:-1]]
        self.merges = nn.ModuleDict({str(first): PatchMerging(config, i) for i, first in enumerate(firsts)})
        self.norm = nn.LayerNorm(config.pooled_width, eps=config.norm_eps)
        self.head = build_head(config)
        if not next(self.parameters()).is_meta:  # no memory yet: weights are loaded
            self.initialise()

    @property
    def prefix(self) -> int:
        """No tokens stand before the patches."""
        return 0

    def embed(self, images: Tensor, pad: bool = False) -> Embedding:
        """Images to what the first block takes: tokens (B, N, D) and the grid."""
        images, grid = self.in_patches(images, pad)
        return Embedding(self.dropout(self.patch_tokens(images)), None, grid)

    def patch_tokens(self, images: Tensor) -> Tensor:
        """What the stem and its norm make of images (B, C, H, W): (B, N, D)."""
        return self.stem_norm(self.stem(images).to(self.stem.projection.weight.dtype))  # autocast's sums stay float32

    @property
    def patch_inputs(self) -> int:
        """How many numbers of a patch the stem's linear map takes."""
        return self.stem.projection.in_features

    def before_block(self, index: int, x: Embedding) -> Embedding:
        """Where a stage begins, 2 x 2 tokens become one: (B, h w, D) -> (B, h/2 w/2, 2 D)."""
        if str(index) not in self.merges:
            return x
        tokens, grid = self.merges[str(index)](x.tokens, x.grid)
        return Embedding(tokens, None, grid)

    def run_block(self, index: int, x: Embedding, kept: Tensor | None = None, carry: int | None = None) -> Embedding:
        """One block; every token of the grid goes through it."""
        return x._replace(tokens=self.blocks[index](x.tokens, x.grid))

    def forward_embedding(
        self, embedding: Embedding, keep: Tensor | None = None, capture: Capture | None = None
    ) -> Tensor:
        """From what the first block takes to the answer of a head that reads one vector."""
        if keep is not None:
            raise VitrailError("Swin cannot train on some of its patches: a window needs all of its tokens")
        return self.answer(self.encode(embedding, capture), capture)

    def norm_tokens(self, x: Tensor) -> Tensor:
        """The final norm: (B, M, D) -> (B, M, D)."""
        return self.norm(x)

    def pool_tokens(self, x: Tensor, sizes: Tensor | None = None) -> Tensor:
        """(B, N, D), after `norm_tokens` -> the mean, (B, D)."""
        return x.mean(dim=1)

    def pool_weights(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N): every token has the same part."""
        return x.new_full(x.shape[:2], 1 / x.shape[1], dtype=torch.float32)

    def encoder_features(
        self, images: Tensor, out_indices: Sequence[int], pad: bool = False, capture: Capture | None = None
    ) -> EncoderFeatures:
        """What a dense head reads: the tokens after some blocks, each on the grid of its stage."""
        images, _ = self.in_patches(images, pad)
        patches, grids = [], []
        for step in self.steps(self.embed(images), capture):
            x = self.norm_tokens(step.output) if step.index == self.depth - 1 else step.output
            if step.index in out_indices:
                patches.append(x)
                grids.append(step.grid)
        if capture is not None:
            capture.normed, capture.pooled = x, self.pool_tokens(x)
        return EncoderFeatures(images, (), tuple(grids), tuple(patches), x[:, :0], capture)

    def split(self, x: Tensor, grid: Grid) -> Features:
        """(B, N, D): all tokens are patches."""
        return Features(cls=None, distillation=None, registers=x[:, :0], queries=x[:, :0], patches=x, grid=grid)

    @torch.no_grad()
    def state_for(self, config: EncoderConfig) -> tuple[dict[str, Tensor], str]:
        """The weights with version 1's bias tables resampled to another config's windows; version 2 has none."""
        assert isinstance(config, SwinConfig)
        state, changed = self.state_dict(), ""
        for index, stage in enumerate(self.config.stage_of_block):
            name = f"blocks.{index}.attention.positions.table"
            old, new = self.config.stage_window(stage), config.stage_window(stage)
            if name in state and old != new:
                state[name] = resample_table(state[name], old, new)
                changed = ", and the bias tables of its windows with it"
        return state, changed

    @torch.no_grad()
    def initialise(self) -> None:
        """Fresh weights: normal(0.02) cut at two deviations for maps and tables, zeros for biases."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, WindowAttention):
                module.initialise()
            elif isinstance(module, SwinBlock) and not module.pre:  # branches that begin as nothing, as published
                nn.init.zeros_(module.norm1.weight)
                nn.init.zeros_(module.norm2.weight)
        if isinstance(self.head, DenseHead):
            self.head.initialise()


def is_shifted(config: SwinConfig, block: int) -> bool:
    """Whether a block's windows are shifted: every other one of a stage."""
    stage = config.stage_of_block[block]
    return (block - sum(config.depths[:stage])) % 2 == 1
