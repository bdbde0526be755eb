"""An engine whose outputs are embeddings: the checkpoint's network without its head, with another pooling if asked for.

Pooling is a setting of the config, so every backend runs it. What no config describes, torch reads off the tokens.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.inference.backends.backend import Backend, load_backend
from vitrail.inference.engine import Engine, open_model
from vitrail.inference.image_processor import ImageProcessor
from vitrail.inference.running_options import AnsweringOptions
from vitrail.model.config import ViTConfig
from vitrail.model.encoder import Capture
from vitrail.model.vit import ViT
from vitrail.weights.adapt import without_head
from vitrail.weights.checkpoint import Checkpoint

POOLED = "pooled"  # the model's own pooling, the vector that its head reads; of a dense head the mean of the patches
POOLS = {"cls": "cls", "mean": "mean", "both": "cls_mean", "patches": "none"}  # what each is called in a config
WHAT = tuple(POOLS)


def embedding_engine(model: str | Path | Checkpoint | Engine, what: str, options: AnsweringOptions) -> Engine:
    """The engine of a model without its head. Of an engine, its own backend, precision and batch size are used."""
    if what not in (POOLED, *WHAT):
        raise VitrailError(f"what is {what!r}; choose one of {', '.join((POOLED, *WHAT))}")
    if isinstance(model, Engine):
        engine = _like(model, what)
    else:
        checkpoint = model if isinstance(model, Checkpoint) else open_model(model)
        engine = _opened(checkpoint, what, options, Path(model) if isinstance(model, str | Path) else None)
    if options["fast_decode"]:
        engine.processor = ImageProcessor(engine.checkpoint.preprocessing, fast_decode=True)
    return engine


def embedding_width(headless: Checkpoint, what: str) -> int:
    """D, the numbers of one vector; for patches, of one patch's."""
    width = headless.config.levels[-1].width
    return headless.config.pooled_width if what == POOLED else 2 * width if what == "both" else width


def _like(engine: Engine, what: str) -> Engine:
    """On the backend of an engine that is there. int8 was calibrated for answers: embeddings are float32 there."""
    headless, by_tokens = headless_checkpoint(engine.network, what)
    precision = "float32" if engine.backend.precision == "int8" else engine.backend.precision
    name = "torch" if by_tokens else engine.backend.name
    backend = load_backend(name, headless, device=str(engine.backend.device), precision=precision)
    if by_tokens:
        return TokenEngine(headless, backend, what, batch_size=engine.batch_size)
    return Engine(headless, backend, batch_size=engine.batch_size)


def _opened(checkpoint: Checkpoint, what: str, options: AnsweringOptions, path: Path | None) -> Engine:
    headless, by_tokens = headless_checkpoint(checkpoint, what)
    device, precision, batch_size = options["device"], options["precision"], options["batch_size"]
    merges, elsewhere = options["merge_tokens"] != 0, options["engine"] not in ("torch", "auto")
    if what == "patches" and merges:
        raise VitrailError("merged tokens have no place in the picture: leave out merge_tokens to embed patches")
    if by_tokens:
        if elsewhere or merges:
            raise VitrailError(f"{what!r} of this model comes from the engine torch alone: leave out the engine")
        backend = load_backend("torch", headless, device=device, precision=precision)
        return TokenEngine(headless, backend, what, batch_size=batch_size)
    if options["engine"] == "torch" and not merges:
        return Engine.open(headless, device=device, precision=precision, batch_size=batch_size)
    engine = Engine.open(headless, device=device, batch_size=batch_size)
    engine.path = path  # pictures to check an engine on may lie beside the model
    engine.use(options["engine"], precision, options["calibration"], device, options["merge_tokens"])
    return engine


def headless_checkpoint(checkpoint: Checkpoint, what: str) -> tuple[Checkpoint, bool]:
    """The checkpoint without its head, pooled as `what` says, and whether that is still to be read off its tokens."""
    config = checkpoint.config
    has_cls = isinstance(config, ViTConfig) and config.cls_token
    if what in ("cls", "both") and not has_cls:
        raise VitrailError(f"this model has no [CLS] token for {what!r}: choose pooled, mean or patches")
    pool = POOLS.get(what) or ("mean" if config.pool == "none" else config.pool)
    if not isinstance(config, ViTConfig):
        return without_head(checkpoint), pool != config.pool
    if config.final_norm == "pooled" and "cls_mean" in (pool, config.pool) and pool != config.pool:
        return without_head(checkpoint), True  # its one norm has another width
    return without_head(checkpoint, pool), False


class TokenEngine(Engine):
    """Outputs that are pooled here from the tokens of a forward pass; on torch, which alone shows them."""

    def __init__(self, headless: Checkpoint, backend: Backend, what: str, batch_size: int | None = None) -> None:
        super().__init__(headless, backend, batch_size=batch_size)
        self.what = what

    @torch.inference_mode()
    def forward(self, images: Tensor, capture: Capture | None = None) -> Tensor:
        """Normalised (B, C, h, w) -> (B, D), or (B, N, D) for patches, float32."""
        capture = Capture(blocks=[-1], all_tokens=True)
        super().forward(images, capture)
        network = self.checkpoint.model
        assert capture.normed is not None
        tokens = capture.normed.float()  # (B, prefix + N, D)
        patches = tokens[:, network.prefix :]
        if self.what == "patches":
            return patches
        if self.what == "mean":
            return patches.mean(dim=1)
        assert isinstance(network, ViT)
        if self.what == "cls":
            return tokens[:, 0]
        return torch.cat([network.norm_pooled(tokens[:, 0]), network.norm_pooled(patches.mean(dim=1))], dim=-1)
