"""One training step: forward, loss, backward, then the optimizers and the EMA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from vitrail.data.loading.loader import Batch, Loader
from vitrail.data.loading.rng import step_seed
from vitrail.data.loading.unlabelled_loader import UnlabelledLoader
from vitrail.model.encoder import Encoder
from vitrail.model.noise import drawing_by
from vitrail.model.precision import autocast
from vitrail.tasks.task import Mix, Task
from vitrail.training.auxiliary.distillation import Distillation
from vitrail.training.distributed import Processes
from vitrail.training.optim.ema import EMA
from vitrail.training.plan import Length
from vitrail.training.run_context import Run
from vitrail.training.settings import Recipe
from vitrail.training.stages.decode_images import TrainingImages, quick_metrics


class Scores(Protocol):
    """What the loop needs to know of the metrics that it reports."""

    @property
    def main_metric(self) -> str:
        """The one that picks the best evaluation; higher is better."""
        ...

    def show(self, metric: str, value: float) -> str:
        """A metric's value as people read it."""
        ...

    def title_of(self, metric: str) -> str:
        """What a metric is called on a page."""
        ...


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """What a step works on."""

    model: nn.Module  # all that learns: the network that is trained, and what is trained beside it
    network: nn.Module  # the model, or what distributes it (DDP, FSDP2)
    optimizers: Sequence[Optimizer]
    ema: EMA | None
    task: Task
    loader: Loader | UnlabelledLoader
    recipe: Recipe
    processes: Processes
    distillation: Distillation | None = None

    def precision(self) -> AbstractContextManager[None]:
        """The autocast context of the forward pass."""
        return autocast(self.processes.device, self.recipe.precision or "auto")

    # ---- what a run that learns otherwise, such as pretraining, does in its own way

    @property
    def encoder(self) -> Encoder:
        """The network that is measured and kept."""
        assert isinstance(self.model, Encoder)
        return self.model

    @property
    def scores(self) -> Scores:
        """What evaluations measure."""
        return self.task

    @property
    def keeps_last(self) -> bool:
        """Whether the last weights are kept, however good those of an earlier evaluation were."""
        return False

    @property
    def plain_loader(self) -> Loader:
        """The images that batch norms take their statistics from."""
        return self.loader.labelled if isinstance(self.loader, UnlabelledLoader) else self.loader

    def forward(
        self, images: Tensor, unlabelled: Tensor | None, step: int, **options: Any
    ) -> tuple[Tensor, Tensor | float]:
        """The network's outputs for a part of a step, and what pictures without labels add to the step's loss by
        themselves. options: of the network's forward pass."""
        return self.network(images, **options), 0.0

    def gradients(self, batch: Batch, length: Length) -> Tensor:
        """Forward and backward of one batch; the mean over the processes is the loss of the step."""
        return compute_gradients(self, batch, length)

    def update(self, step: int, length: Length) -> None:
        """One step of the optimizers, and of what follows the weights."""
        update_weights(self, step, length)

    def measure(self, images: TrainingImages, precision: str | None = None) -> dict[str, float]:
        """What an evaluation on the way tells. precision: None is the one that is trained in."""
        return quick_metrics(images, self.network, self.processes, precision)

    def evaluated(self, run: Run, step: int) -> None:
        """Called after every evaluation, while the encoder still is as it was measured."""


def compute_gradients(trainer: Trainer, batch: Batch, length: Length) -> Tensor:
    """Forward and backward of one batch, in `accumulate` parts. Returns a scalar tensor; its mean over the processes is
    the loss of the step."""
    recipe, task, processes = trainer.recipe, trainer.task, trainer.processes
    torch.manual_seed(step_seed(recipe.seed, batch.step))  # for what is drawn by no key, such as in a user's CNN
    keep = draw_tokens(trainer, batch.step, length)
    parts = list(split_batch(batch, recipe.accumulate))
    others = list(split_unlabelled(batch, len(parts)))
    counts = processes.sum(task.loss_counts(batch.targets).to(processes.device))  # of the whole step, on all processes
    total = torch.zeros((), device=processes.device)
    for number, (images, targets, mix, keys) in enumerate(parts):
        images, targets, keys = (tensor.to(processes.device) for tensor in (images, targets, keys))
        queries = task.denoising_queries(targets, keys)
        pictures: Tensor | None = None
        if others:
            pictures, other_keys = (tensor.to(processes.device) for tensor in others[number])
            keys = torch.cat([keys, other_keys])
            if trainer.distillation is not None:
                images = torch.cat([images, pictures])  # the teacher answers about all of them
        with gradients_stay_local(trainer.network, number < len(parts) - 1):
            with trainer.precision(), drawing_by(keys if trainer.encoder.config.is_noisy else None):
                outputs, beside = trainer.forward(images, pictures, batch.step, keep=keep, denoising_queries=queries)
            loss = loss_share(trainer, images, outputs, targets, counts, mix) + beside
            loss = loss * processes.world  # DDP and FSDP take the mean over the processes: here it must be the sum
            loss.backward()
        total += loss.detach()
    return total


def loss_share(
    trainer: Trainer, images: Tensor, outputs: Tensor, targets: Tensor, counts: Tensor, mix: Mix | None
) -> Tensor:
    """What a part of a step adds to the step's loss: that of the labels (`Task.loss_share`), and with a teacher that of
    its answers about the same images. The first of these have targets; with a teacher more may follow."""
    task, distillation = trainer.task, trainer.distillation
    if distillation is None:
        return task.loss_share(outputs, targets, counts, mix=mix, smoothing=trainer.recipe.smoothing)
    own, taught = outputs.unbind(1) if outputs.dim() == 3 else (outputs, outputs)  # DeiT's two heads, or one
    labels = task.loss_share(own[: len(targets)], targets, counts, mix=mix, smoothing=trainer.recipe.smoothing)
    with trainer.precision():
        answers = distillation.answers(images)
    taught_share = distillation.loss_share(task, taught, answers, counts)
    return (1 - distillation.weight) * labels + distillation.weight * taught_share


def update_weights(trainer: Trainer, step: int, length: Length) -> None:
    """Clip the gradients, step every optimizer at this step's learning rate, update the EMA."""
    if trainer.recipe.clip > 0:
        trained = [parameter for parameter in trainer.model.parameters() if parameter.grad is not None]
        nn.utils.clip_grad_norm_(trained, trainer.recipe.clip)
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = length.learning_rate(step, group["peak"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if trainer.ema is not None:
        trainer.ema.update(trainer.model, step)


def draw_tokens(trainer: Trainer, step: int, length: Length) -> Tensor | None:
    """The patches (K,) that this step sees, the same for the whole batch and on every process; None: all."""
    recipe, patches = trainer.recipe, trainer.encoder.config.patches
    assert recipe.keep_tokens is not None
    count = max(1, round(recipe.keep_tokens * patches))
    if step >= length.full_from or count >= patches:
        return None
    drawn = np.random.default_rng(step_seed(recipe.seed, step)).permutation(patches)[:count]
    return torch.from_numpy(np.sort(drawn)).to(trainer.processes.device)


def gradients_stay_local(network: nn.Module, more_parts_follow: bool) -> AbstractContextManager[None]:
    """DDP averages gradients over the processes in every backward pass; of an accumulated step only in the last."""
    if more_parts_follow and isinstance(network, DistributedDataParallel):
        return network.no_sync()
    return nullcontext()


def split_batch(batch: Batch, parts: int) -> Iterator[tuple[Tensor, Tensor, Mix | None, Tensor]]:
    """Images, targets, mix and keys of each part. Parts have an even size, so that mixed neighbours stay together."""
    count = len(batch.targets)
    size = -(-count // parts)
    size += size % 2
    for start in range(0, count, size):
        part = slice(start, start + size)
        mix = None
        if batch.mix is not None:
            mix = Mix(batch.mix.partner[part] - start, batch.mix.ratio[part])
        yield batch.images[part], batch.targets[part], mix, batch.keys[part]


def split_unlabelled(batch: Batch, parts: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The pictures without labels of each part, and their keys; none at all where the batch has none."""
    if batch.unlabelled is None or batch.unlabelled_keys is None:
        return iter(())
    return zip(batch.unlabelled.tensor_split(parts), batch.unlabelled_keys.tensor_split(parts), strict=True)
