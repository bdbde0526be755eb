"""Batch norm statistics of the weights as they are, computed anew before a model is measured or kept.

Running statistics are an average over the last steps, each of other weights. In a short run with small batches they lag
so far behind that a model is judged by them more than by its weights; averaged weights (EMA) have none of their own.

torch.optim.swa_utils.update_bn does this for a whole module in training mode, where dropout, drop path and the heads'
extra outputs are on, and for torch's own batch norms, not for `SharedBatchNorm`; and it leaves the statistics changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import torch
from torch import Tensor, nn

from vitrail.training.distributed import SharedBatchNorm
from vitrail.training.train_step import Trainer, split_batch

BatchNorm = nn.modules.batchnorm._BatchNorm | SharedBatchNorm
FEWEST, MOST = 32, 256  # training images that suffice: more of them where they are small
PIXELS = 2**21  # of all of them


@contextmanager
def recomputed_statistics(trainer: Trainer) -> Iterator[None]:
    """Inside, the batch norms have the statistics of the model's present weights; afterwards they have again those that
    training goes on with, bit for bit. A model without batch norm, or with frozen ones, is left as it is."""
    layers = trained_batch_norms(trainer.encoder)
    kept = [{name: buffer.clone() for name, buffer in layer.named_buffers()} for layer in layers]
    try:
        if layers:
            recompute_statistics(trainer, layers)
        yield
    finally:
        for layer, buffers in zip(layers, kept, strict=True):
            for name, buffer in layer.named_buffers():
                buffer.copy_(buffers[name])


def trained_batch_norms(model: nn.Module) -> list[BatchNorm]:
    """Those of a model in training whose statistics are not frozen."""
    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    return [norm for norm in norms if norm.training and norm.running_mean is not None]


@torch.no_grad()
def recompute_statistics(trainer: Trainer, layers: list[BatchNorm]) -> None:
    """The mean over some training batches of each batch's mean and variance. Every process runs its share of them, and
    `SharedBatchNorm` sees the whole batch."""
    model, momenta = trainer.encoder, [layer.momentum for layer in layers]
    calls = _Calls(stops=not hasattr(model, "unshard"))  # a sharded model (FSDP) is ready again only after whole passes
    model.eval()  # nothing else differs from evaluation, and nothing is drawn at random
    for layer in layers:
        layer.train()
    try:
        with ExitStack() as hooks:
            for layer in layers:
                hooks.callback(layer.register_forward_hook(calls.count).remove)
            for number, images in enumerate(sample_images(trainer)):
                for layer in layers:
                    layer.momentum = 1 / (number + 1)  # a cumulative average
                with trainer.precision(), suppress(_Done), calls.of_one_pass():
                    model(images.to(trainer.processes.device))
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        model.train()


class _Done(Exception):
    """Nothing that comes in this pass has statistics: most blocks, and most heads."""


class _Calls:
    """How often batch norms were called: in the first pass, which is a whole one, and in each of the others, which ends
    after as many."""

    def __init__(self, stops: bool) -> None:
        self.stops, self.made = stops, 0
        self.whole: int | None = None

    @contextmanager
    def of_one_pass(self) -> Iterator[None]:
        self.made = 0
        yield
        self.whole = self.made

    def count(self, *_: object) -> None:
        self.made += 1
        if self.stops and self.made == self.whole:
            raise _Done


def sample_images(trainer: Trainer) -> Iterator[Tensor]:
    """The images of the first steps' batches, augmented as in training: what the model has learnt to normalise by. The
    same ones each time, so that evaluations can be compared and a resumed run repeats them."""
    loader = trainer.plain_loader
    height, width = loader.preprocessing.size
    count = min(MOST, max(FEWEST, PIXELS // (height * width)))
    with closing(loader.batches(0, -(-count // loader.sampler.batch_size))) as batches:
        for batch in batches:
            for images, *_ in split_batch(batch, trainer.recipe.accumulate):
                yield images
