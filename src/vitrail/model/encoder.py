"""The contract that every network fulfils, and the one loop over its blocks.

An encoder embeds images as tokens, runs its blocks one after another, and pools. Whoever looks inside (a dense head,
attention maps, rollout, relevance, the walk, the server) takes part in the same loop instead of writing it again:

    for step in model.steps(model.embed(images)):
        step.input             # what goes into this block, (B, M, D)
        step.attention(tokens) # attention weights of some query tokens, recomputed from the input
        step.output            # what comes out, (B, M, D)

or asks a forward pass to keep what is needed: `model(images, capture=Capture(blocks=[0, 5]))`.

To add a network: subclass `Encoder`, with `embed`, `run_block`, `norm_tokens`, `pool_tokens` and `pool_weights`, and
name it in `presets.py`. Each step has its own grid: `before_block` may merge patches, so that a step's output has the
grid of its input; the prefix may be empty; a block whose attention has windows gives rows with zeros outside of them.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.errors import VitrailError
from vitrail.model.attention import QUERY_ROWS, AttentionGroup
from vitrail.model.block import Block
from vitrail.model.efficient.token_merging import TokenMerging, check_merging
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.heads.dense_head import DenseHead, EncoderFeatures, build_dense_head
from vitrail.model.heads.linear_head import LinearHead
from vitrail.model.noise import drawing_by, keys_for
from vitrail.model.patches import check_images, pad_to_patches
from vitrail.model.positions import Grid
from vitrail.model.precision import in_float32


class Embedding(NamedTuple):
    """What a block takes. `embed` gives that of the first block."""

    tokens: Tensor  # (B, prefix + N, D)
    rope: Tensor | None  # (2, N, head_dim), cosines and sines; None without rotary positions
    grid: Grid  # N = h w
    merging: TokenMerging | None = None  # where this pass merges tokens, which then have no grid


class Features(NamedTuple):
    """What the encoder made of an image, token by token, after the final norm if it is one over tokens."""

    cls: Tensor | None  # (B, D)
    distillation: Tensor | None  # (B, D)
    registers: Tensor  # (B, R, D)
    queries: Tensor  # (B, Q, D)
    patches: Tensor  # (B, N, D), row by row
    grid: tuple[int, int]  # N = h w
    blocks: tuple[Tensor, ...] = ()  # the requested blocks' outputs, (B, prefix + N, D) each, before the final norm


class BlockStep:
    """One block of a forward pass: its input and, computed when it is first read, its output."""

    def __init__(
        self,
        index: int,
        block: Block,
        embedding: Embedding,
        run: Callable[[], Embedding],
        keep_heads_output: bool = False,
    ) -> None:
        self.index, self.block = index, block
        self.input, self.rope, self.grid, _ = embedding  # input: (B, M, D)
        self.heads_output: Tensor | None = None  # (B, M, D), the heads side by side before W_O, where it is kept
        self._run, self._keep_heads_output = run, keep_heads_output
        self._result: Embedding | None = None
        self._qkv: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def result(self) -> Embedding:
        """What the next block takes."""
        if self._result is None:
            if self._keep_heads_output:
                with captured_input(self.block.attention.out, partial(setattr, self, "heads_output")):
                    self._result = self._run()
            else:
                self._result = self._run()
        return self._result

    @property
    def output(self) -> Tensor:
        """(B, M, D), with the positions that some networks add after a block."""
        return self.result.tokens

    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of all tokens as attention takes them, (B, heads, M, d) each."""
        if self._qkv is None:
            self._qkv = self.block.qkv(self.input, self.rope)
        return self._qkv

    def attention(self, queries: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Attention weights of the query tokens (Q,), None: of all. Some rows at a time: their token numbers (R,), and
        (B, heads, R, M) in float32. Fused attention never holds its weights; they are recomputed from the input."""
        queries = self._all_tokens() if queries is None else queries
        q, k, _ = self.qkv()
        for part in queries.split(QUERY_ROWS):
            yield part, self.block.attention_rows(q, k, part, self.grid)

    def attention_groups(self, queries: Tensor | None = None) -> Iterator[AttentionGroup]:
        """The same weights in groups of queries with the tokens that they see: with windows that is O(N) in all."""
        q, k, _ = self.qkv()
        return self.block.attention_groups(q, k, self._all_tokens() if queries is None else queries, self.grid)

    def meeting(self) -> Tensor | None:
        """(N,), of the patches: those with the same number attend to one another. None: all to all."""
        return self.block.meeting(self.grid)

    def _all_tokens(self) -> Tensor:
        return torch.arange(self.input.shape[1], device=self.input.device)

    def of_image(self, index: int) -> BlockStep:
        """The step of one image of the batch, as a batch of one."""
        own = slice(index, index + 1)
        embedding = Embedding(self.input[own], self.rope, self.grid)
        return BlockStep(
            self.index, self.block, embedding, lambda: self.result._replace(tokens=self.result.tokens[own])
        )


@dataclass
class Capture:
    """What a forward pass is asked to keep, and what it kept: `model(images, capture=Capture(blocks=[-1]))`."""

    blocks: Collection[int] = ()  # keep the steps of these blocks; -1 is the last
    all_tokens: bool = False  # run all tokens through the last block, even where only [CLS] is read
    heads_output: bool = False  # keep each captured step's `heads_output`, whose gradient weighted attention needs
    query_attention: bool = False  # keep what a box decoder's queries attend to
    steps: dict[int, BlockStep] = field(default_factory=dict)  # by block, counted from 0
    normed: Tensor | None = None  # (B, M, D): the last block's output after the final norm over tokens, before pooling
    pooled: Tensor | None = None  # (B, D): the vector that the head reads; of a dense head the mean of its patches
    decoder_attention: Tensor | None = None  # (B, heads, Q, N), of a box decoder's last block

    def wants(self, index: int, depth: int) -> bool:
        """Whether `blocks` has this block of `depth`, counted from the first or from the last."""
        return index in self.blocks or index - depth in self.blocks


class Encoder(nn.Module, ABC):
    """A network that embeds images, runs blocks, pools, and answers by a head. `ViT` is one, `Swin` another."""

    config: EncoderConfig
    blocks: nn.ModuleList
    head: LinearHead | DenseHead | None
    checkpointing: bool = False  # recompute each block's activations in the backward pass, to save memory
    heads_apart: bool = False  # of DeiT's two heads, in training: both answers, (B, 2, classes), not their mean
    merge_tokens: int = 0  # patches merged for each block of a pass that nobody looks into; see `with_merged_tokens`

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    @property
    @abstractmethod
    def prefix(self) -> int:
        """The number of tokens before the patches: [CLS], distillation, registers, queries. May be 0."""

    # ---- from images to answers

    def forward(
        self,
        images: Tensor,
        pad: bool = False,
        keep: Tensor | None = None,
        denoising_queries: Tensor | None = None,
        capture: Capture | None = None,
    ) -> Tensor:
        """(B, C, H, W) -> (B, classes), or the pooled (B, D) when there is no head, or what a dense head gives.

        keep (K,): train on some of the patches only, by their numbers. They carry their positions already, so the
        others can be left out: half the tokens are half the work, and every token learns not to rely on the rest.
        capture: what to keep of this pass, for looking inside.
        """
        if isinstance(self.head, DenseHead):
            return self.head(self.encoder_features(images, self.head.out_indices, pad, capture), denoising_queries)
        return self.forward_embedding(self.embed(images, pad), keep, capture)

    @abstractmethod
    def forward_embedding(
        self, embedding: Embedding, keep: Tensor | None = None, capture: Capture | None = None
    ) -> Tensor:
        """From what the first block takes to the answer of a head that reads one vector. keep: see `forward`."""

    @abstractmethod
    def encoder_features(
        self, images: Tensor, out_indices: Sequence[int], pad: bool = False, capture: Capture | None = None
    ) -> EncoderFeatures:
        """What a dense head reads: the patches after some blocks, and the queries after the last."""

    def features(self, images: Tensor, blocks: Sequence[int] = (), pad: bool = False) -> Features:
        """All tokens by name; blocks: also those blocks' outputs (0 is the first, -1 the last)."""
        for i in blocks:
            if not -self.depth <= i < self.depth:
                raise VitrailError(f"there is no block {i}: the model has {self.depth}, 0 to {self.depth - 1}")
        capture = Capture([*blocks, -1])
        x = self.norm_tokens(self.encode(self.embed(images, pad), capture))  # (B, prefix + N, D)
        outputs = tuple(capture.steps[i % self.depth].output for i in blocks)
        return self.split(x, capture.steps[self.depth - 1].grid)._replace(blocks=outputs)

    @abstractmethod
    def split(self, x: Tensor, grid: Grid) -> Features:
        """(B, prefix + N, D), such as a block's output, to its named parts."""

    def with_merged_tokens(self, r: int) -> Self:
        """The same network with the same weights, which merges r patches for each block (`token_merging.py`); 0: none.

        Only where nobody looks inside: a pass that is to keep blocks, and `features`, run all tokens."""
        check_merging(self.config, r)
        merging = copy.copy(self)
        merging.merge_tokens = r
        return merging

    def answer(self, x: Tensor, capture: Capture | None = None, sizes: Tensor | None = None) -> Tensor:
        """The last block's output (B, M, D) -> final norm, pooling, head -> (B, classes).

        Without a head that reads one vector (none at all, or a dense one): the pooled vector, (B, D).
        sizes: (B, M, 1), of merged tokens."""
        x = self.norm_tokens(x)
        pooled = self.pool_tokens(x, sizes)
        outputs = in_float32(self.head, pooled) if isinstance(self.head, LinearHead) else pooled
        if capture is not None:
            capture.normed = x
            capture.pooled = pooled if pooled.dim() == 2 else pooled.mean(1)
        return outputs

    # ---- the parts that a network gives

    @abstractmethod
    def embed(self, images: Tensor, pad: bool = False) -> Embedding:
        """(B, C, H, W) -> what the first block takes. `pad`: images are padded to whole patches."""

    def in_patches(self, images: Tensor, pad: bool) -> tuple[Tensor, Grid]:
        """Images that divide into whole patches, and the grid of them."""
        if pad and images.dim() == 4:  # check_images refuses any other shape
            images = pad_to_patches(images, self.config.patch_size)
        check_images(images, self.config.channels, self.config.patch_size)
        down, across = self.config.patch_size
        return images, (images.shape[2] // down, images.shape[3] // across)

    @abstractmethod
    def run_block(self, index: int, x: Embedding, kept: Tensor | None = None, carry: int | None = None) -> Embedding:
        """One block, and whatever follows before the next one. kept, carry: see `steps`; carry is None but for the
        last block."""

    def before_block(self, index: int, x: Embedding) -> Embedding:
        """What stands between two blocks: nothing, or patches are merged where a stage begins."""
        return x

    @abstractmethod
    def norm_tokens(self, x: Tensor) -> Tensor:
        """The final norm, where it is one over tokens: (B, M, D) -> (B, M, D)."""

    @abstractmethod
    def pool_tokens(self, x: Tensor, sizes: Tensor | None = None) -> Tensor:
        """The last block's output after `norm_tokens`, (B, M, D) -> the vector that a head reads, (B, D).
        sizes: (B, M, 1), of merged tokens."""

    @abstractmethod
    def pool_weights(self, x: Tensor) -> Tensor:
        """(B, M, D), as for `pool_tokens` -> (B, M): how much of each token the pooled vector holds. Rows sum to 1."""

    # ---- the loop

    def steps(
        self, embedding: Embedding, capture: Capture | None = None, kept: Tensor | None = None, carry: int | None = None
    ) -> Iterator[BlockStep]:
        """The one loop over the blocks. A block runs when its output is read, or the next step is asked for.

        kept: (M,), the token numbers that are left, where some patches were dropped for training.
        carry: the last block carries on only its first so many tokens, where nobody reads the others.
        """
        keep_heads_output = False
        if capture is not None:
            keep_heads_output, carry = capture.heads_output, None if capture.all_tokens else carry
        for index in range(self.depth):
            embedding = self.before_block(index, embedding)
            last = index == self.depth - 1
            run = partial(self._run_block, index, embedding, kept, carry if last else None)
            step = BlockStep(index, cast(Block, self.blocks[index]), embedding, run, keep_heads_output)
            if capture is not None and capture.wants(index, self.depth):
                capture.steps[index] = step
            yield step
            embedding = step.result

    def encode(
        self, embedding: Embedding, capture: Capture | None = None, kept: Tensor | None = None, carry: int | None = None
    ) -> Tensor:
        """The last block's output, (B, M, D), before the final norm. kept, carry: see `steps`."""
        x = embedding.tokens
        for step in self.steps(embedding, capture, kept, carry):
            x = step.output
        return x

    # ---- what training and model files need of a network's parts; most networks have few of them

    def block_modules(self) -> list[nn.Module]:
        """The blocks, for whoever wraps or changes each of them: FSDP, LoRA."""
        return list(self.blocks)

    def output_layers(self) -> list[nn.Linear]:
        """The last layer of each head that reads one vector: two in a distilled ViT, none with a dense head."""
        return [self.head.out] if isinstance(self.head, LinearHead) else []

    def state_for(self, config: EncoderConfig) -> tuple[dict[str, Tensor], str]:
        """The weights of the same network for another native grid or window, and what was resampled, in words."""
        return self.state_dict(), ""

    @property
    def feature_cnn(self) -> nn.Module | None:
        """The user's CNN, of a ViT with stem "features"."""
        return None

    def first_convolution(self) -> nn.Conv2d | None:
        """The first convolution of a conv stem; None with another stem."""
        return None

    def freeze_stem_statistics(self, frozen: bool) -> None:
        """Whether a conv stem's batch norms keep their running statistics in training."""

    def _run_block(self, index: int, x: Embedding, kept: Tensor | None, carry: int | None) -> Embedding:
        keys = keys_for(index)
        run = self.run_block if keys is None else partial(self._run_drawing, keys)
        if self.checkpointing and self.training and torch.is_grad_enabled():
            return checkpoint(run, index, x, kept, carry, use_reentrant=False)
        return run(index, x, kept, carry)

    def _run_drawing(self, keys: Tensor, index: int, x: Embedding, kept: Tensor | None, carry: int | None) -> Embedding:
        """With the keys of the forward pass, also where it is repeated in the backward pass."""
        with drawing_by(keys):
            return self.run_block(index, x, kept, carry)


def build_head(config: EncoderConfig) -> LinearHead | DenseHead | None:
    """The head that the config names; None without classes."""
    if not config.classes:
        return None
    return build_dense_head(config) if config.is_dense else LinearHead(config)


@contextmanager
def captured_input(module: nn.Module, keep: Callable[[Tensor], None]) -> Iterator[None]:
    """Inside, `keep` is given the first argument of each call of the module."""

    def hook(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        keep(arguments[0])

    handle = module.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()
