"""The Vision Transformer, in the order a lecture tells it: patches, [CLS], positions, blocks, pooling, head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.errors import VitrailError
from vitrail.model.block import Block, Branch
from vitrail.model.config import QUERIES_AMONG_TOKENS, ViTConfig
from vitrail.model.dense import DenseHead, Seen, build_dense_head
from vitrail.model.patches import ConvStem, build_stem, check_images, pad_to_patches
from vitrail.model.pooling import AttentionPool, Pool
from vitrail.model.positions import BlockPositions, RotaryPositions, build_positions
from vitrail.model.presets import preset


class Features(NamedTuple):
    """What the encoder made of an image, token by token, after the final norm if it is one over tokens."""

    cls: Tensor | None  # (B, D)
    distillation: Tensor | None  # (B, D)
    registers: Tensor  # (B, R, D)
    queries: Tensor  # (B, Q, D)
    patches: Tensor  # (B, N, D), row by row
    grid: tuple[int, int]  # N = h w
    blocks: tuple[Tensor, ...] = ()  # the asked blocks' outputs, (B, prefix + N, D) each, before the final norm


class Head(nn.Module):
    """Dropout, then one linear layer, or an MLP with one tanh layer as in the ViT paper's pre-training."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.head_dropout)
        width = config.pooled_width
        self.hidden = nn.Linear(width, config.head_width) if config.head_width is not None else None
        self.out = nn.Linear(config.head_width or width, config.classes, bias=config.head_bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(x)
        if self.hidden is not None:
            x = torch.tanh(self.hidden(x))
        return self.out(x)


def without_head(model: ViT) -> ViT:
    """The same network, its weights shared, that ends in the pooled vector. Queries among the tokens stay there."""
    encoder = ViT(model.config.replace(classes=0), getattr(model.stem, "cnn", None))
    kept = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("head.")}
    encoder.load_state_dict(kept, assign=True)
    return encoder.train(model.training)


class ViT(nn.Module):
    """`ViT("S/16")` or `ViT(ViTConfig(...))`. `cnn` is the user's feature extractor for stem="features"."""

    def __init__(self, config: ViTConfig | str, cnn: nn.Module | None = None, freeze_cnn: bool = False) -> None:
        super().__init__()
        config = preset(config) if isinstance(config, str) else config
        self.config = config
        self.stem = build_stem(config, cnn, freeze_cnn)
        self.cls_token = nn.Parameter(torch.empty(1, config.width)) if config.cls_token else None
        self.distillation_token = nn.Parameter(torch.empty(1, config.width)) if config.distillation else None
        self.registers = nn.Parameter(torch.empty(config.registers, config.width)) if config.registers else None
        among = config.queries if config.head in QUERIES_AMONG_TOKENS else 0
        self.queries = nn.Parameter(torch.empty(among, config.width)) if among else None
        self.positions = build_positions(config)
        self.rotary = RotaryPositions(config) if config.positions == "rotary" else None
        self.block_positions = BlockPositions(config) if config.block_positions and config.depth > 1 else None
        self.dropout = nn.Dropout(config.dropout)
        self.stem_norm = nn.LayerNorm(config.width, eps=config.norm_eps) if config.stem_norm else None
        last = config.depth - 1
        drop_paths = [config.drop_path * (i / last if last else 1) for i in range(config.depth)]
        self.blocks = nn.ModuleList(Block(config, drop_path) for drop_path in drop_paths)
        norm_width = config.pooled_width if config.final_norm == "pooled" else config.width
        self.norm = nn.LayerNorm(norm_width, eps=config.norm_eps) if config.final_norm != "none" else None
        self.pool = Pool(config)
        self.head: Head | DenseHead | None = None
        if config.classes:
            self.head = build_dense_head(config) if config.is_dense else Head(config)
        two_heads = config.classes and config.distillation and not config.is_dense
        self.distillation_head = Head(config) if two_heads else None
        self.checkpointing = False  # recompute each block's activations in the backward pass, to save memory
        self.initialise()

    def forward(
        self, images: Tensor, pad: bool = False, keep: Tensor | None = None, hints: Tensor | None = None
    ) -> Tensor:
        """(B, C, H, W) -> (B, classes), or the pooled (B, D) when there is no head, or what a dense head gives.

        `keep` (K,): training on some of the patches only, by their numbers. They know their places already, so the
        others can be left out: half the tokens are half the work, and every one learns not to rely on the rest.
        """
        if isinstance(self.head, DenseHead):
            return self.head(self.seen(images, self.head.taps, pad), hints)
        x, turns, grid = self.embed(images, pad)  # (B, prefix + N, D)
        rows = None
        if keep is not None:
            prefix = torch.arange(self.config.prefix, device=keep.device)
            rows = torch.cat([prefix, keep + self.config.prefix])
            x = x.index_select(1, rows)  # (B, prefix + K, D)
            turns = None if turns is None else turns.index_select(1, keep)
        # With [CLS] pooling nobody reads the last block's patches, so they are attended to but not carried on: the same
        # answer, for 7 % fewer multiply-adds in S/16.
        read = 1 + int(self.config.distillation) if self.config.pool == "cls" else None
        for i, block in enumerate(self.blocks[:-1]):
            x = self.placed_again(self.run(block, x, turns), i, grid, rows)
        x = self.run(self.blocks[-1], x, turns, read)
        if self.distillation_head is not None:  # DeiT: two tokens, two heads, the mean of their answers
            assert self.head is not None
            cls, distillation = (x if self.norm is None else self.norm(x)).unbind(1)
            return (self.head(cls) + self.distillation_head(distillation)) / 2
        return self.answer(x)

    def answer(self, x: Tensor) -> Tensor:
        """(B, prefix + N, D) -> pooling, norm, head -> (B, classes)."""
        if self.config.final_norm == "pooled":
            assert self.norm is not None
            x = self.norm(self.pool(x))  # (B, D)
        else:
            x = self.pool(self.normed(x))
        return self.head(x) if isinstance(self.head, Head) else x

    def seen(self, images: Tensor, taps: Sequence[int], pad: bool = False) -> Seen:
        """What a dense head reads: the patches after some blocks, and the queries after the last."""
        images, grid = self.in_patches(images, pad)
        maps: tuple[Tensor, ...] = ()
        if isinstance(self.stem, ConvStem):
            maps = self.stem.maps(images)
            tokens = self.stem.tokens(maps[-1])
        else:
            tokens = self.stem(images)
        x, turns = self.placed(tokens, grid)
        patches = []
        for i, block in enumerate(self.blocks):
            x = self.placed_again(self.run(block, x, turns), i, grid)
            if i == len(self.blocks) - 1:
                x = self.normed(x)
            if i in taps:
                patches.append(x[:, self.config.prefix :])
        return Seen(images, maps, grid, tuple(patches), self.split(x, grid).queries)

    def features(self, images: Tensor, blocks: Sequence[int] = (), pad: bool = False) -> Features:
        """All tokens by name; `blocks` asks for those blocks' outputs too (0 is the first, -1 the last)."""
        depth = self.config.depth
        for i in blocks:
            if not -depth <= i < depth:
                raise VitrailError(f"there is no block {i}: the model has {depth}, 0 to {depth - 1}")
        asked = [i % depth for i in blocks]
        x, turns, grid = self.embed(images, pad)
        kept: dict[int, Tensor] = {}
        for i, block in enumerate(self.blocks):
            x = self.placed_again(self.run(block, x, turns), i, grid)
            if i in asked:
                kept[i] = x
        return self.split(self.normed(x), grid)._replace(blocks=tuple(kept[i] for i in asked))

    def embed(self, images: Tensor, pad: bool = False) -> tuple[Tensor, Tensor | None, tuple[int, int]]:
        """Images to what the first block takes: tokens (B, prefix + N, D), rotary turns or None, and the grid."""
        images, grid = self.in_patches(images, pad)
        return *self.placed(self.stem(images), grid), grid

    def in_patches(self, images: Tensor, pad: bool) -> tuple[Tensor, tuple[int, int]]:
        """Images that divide into whole patches, and the grid of them."""
        if pad and images.dim() == 4:  # check_images refuses any other shape
            images = pad_to_patches(images, self.config.patch_size)
        check_images(images, self.config.channels, self.config.patch_size)
        down, across = self.config.patch_size
        return images, (images.shape[2] // down, images.shape[3] // across)

    def placed(self, x: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor | None]:
        """Patches (B, N, D) with the prefix before them and positions added, and rotary turns or None."""
        x = x.to(self.stem.projection.weight.dtype)  # type: ignore[union-attr, arg-type]  # autocast's sums stay float32
        learned = (self.cls_token, self.distillation_token, self.registers, self.queries)
        prefix = [t for t in learned if t is not None]
        x = torch.cat([t.to(x.dtype).expand(x.shape[0], -1, -1) for t in prefix] + [x], dim=1)  # (B, prefix + N, D)
        if self.positions is not None:
            x = x + self.positions(grid).to(x.dtype)
        x = self.dropout(x)
        if self.stem_norm is not None:
            x = self.stem_norm(x)
        return x, None if self.rotary is None else self.rotary(grid)

    def split(self, x: Tensor, grid: tuple[int, int]) -> Features:
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

    def run(self, block: nn.Module, x: Tensor, turns: Tensor | None, queries: int | None = None) -> Tensor:
        if self.checkpointing and self.training and torch.is_grad_enabled():
            return checkpoint(block, x, turns, queries, use_reentrant=False)
        return block(x, turns, queries)

    def placed_again(self, x: Tensor, block: int, grid: tuple[int, int], rows: Tensor | None = None) -> Tensor:
        """YOLOS adds positions after every block but the last; others add none. `rows`: the tokens that are left."""
        if self.block_positions is None or block == self.config.depth - 1:
            return x
        places = self.block_positions(block, grid)
        return x + (places if rows is None else places.index_select(0, rows)).to(x.dtype)

    def normed(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.norm is not None and self.config.final_norm == "tokens" else x

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
            elif isinstance(module, Branch) and module.scale is not None:
                nn.init.constant_(module.scale, self.config.layer_scale or 0.0)
            elif isinstance(module, AttentionPool):
                nn.init.normal_(module.query, std=0.02)
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
