"""A step without labels, in the place of the one with labels: loop, plan, state and processes are those of training."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitrail.data.loading.augment import Augmentation
from vitrail.data.loading.loader import Batch
from vitrail.data.loading.rng import permutation, step_seed
from vitrail.model.noise import drawing_by
from vitrail.model.vit import ViT
from vitrail.pretraining.attention_record import PICTURES, attention_of, record_attention
from vitrail.pretraining.build_method import build_method
from vitrail.pretraining.health import KNN, RANK, Concern, HealthScores, effective_rank, find_concerns
from vitrail.pretraining.methods.method import Method, Moment
from vitrail.pretraining.methods.schedules import cosine
from vitrail.pretraining.views import View, ViewBatch, ViewLoader
from vitrail.search.knn_probe import knn_means, target_rows
from vitrail.tasks.registry import EMBED
from vitrail.tasks.task_answers import NotFinite
from vitrail.training.distributed import distribute
from vitrail.training.optim.optimizers import optimizers
from vitrail.training.plan import Length, Plan
from vitrail.training.run_context import Run
from vitrail.training.settings import Settings
from vitrail.training.stages.build_trainer import compile_blocks, rates_of, sampler_of
from vitrail.training.stages.decode_images import QUICK_IMAGES, TrainingImages
from vitrail.training.teacher import Teacher
from vitrail.training.train_step import Trainer, draw_tokens, gradients_stay_local, update_weights
from vitrail.training.validate import HeldOutImages, outputs_of
from vitrail.weights.checkpoint import Checkpoint

BANK = 4  # training images whose classes are known, for each held-out one that looks for neighbours among them


@dataclass(frozen=True, kw_only=True)
class Pretrainer(Trainer):
    """What a step without labels works on."""

    method: Method  # is the model
    settings: Settings
    bank: HeldOutImages  # training images as prediction sees them, in a fixed random order
    bank_classes: Tensor
    start: Checkpoint  # what the kept file has besides weights
    fixed: Tensor  # (P, C, H, W): pictures whose attention is recorded
    labelled: bool

    @property
    def encoder(self) -> ViT:
        """The teacher, or the network itself where there is none."""
        return self.method.encoder

    @property
    def plain_loader(self) -> ViewLoader:
        """One whole view of each image, and not blurred, as half of those are that the encoder learns from."""
        assert isinstance(self.loader, ViewLoader)
        return replace(self.loader, views=(replace(self.loader.views[0], blur=0.0),))

    @property
    def scores(self) -> HealthScores:
        """Rank of the embedding, and neighbours where there are classes."""
        return HealthScores(self.labelled)

    @property
    def keeps_last(self) -> bool:
        """No score that is measured on the way is worth choosing weights by."""
        return True

    def gradients(self, batch: Batch, length: Length) -> Tensor:
        """Forward and backward of all views of a batch, in `accumulate` parts."""
        assert isinstance(batch, ViewBatch)
        recipe, processes = self.recipe, self.processes
        torch.manual_seed(step_seed(recipe.seed, batch.step))
        moment = Moment(batch.step, length.steps, recipe.seed)
        keep = draw_tokens(self, batch.step, length)
        parts = split_views(batch.views, recipe.accumulate)
        keys = batch.keys.to(processes.device).split(len(parts[0][0]))
        noisy = self.method.student.config.is_noisy
        total = torch.zeros((), device=processes.device)
        for number, views in enumerate(parts):
            share = len(views[0]) / len(batch.views[0])
            with gradients_stay_local(self.network, number < len(parts) - 1):
                with self.precision(), drawing_by(keys[number] if noisy else None):
                    loss = self.network([view.to(processes.device) for view in views], keep, moment) * share
                loss.backward()
            total += loss.detach()
        return total

    def update(self, step: int, length: Length) -> None:
        """One step of the optimizers; then the teacher follows."""
        moment = Moment(step, length.steps, self.recipe.seed)
        last = self.settings.pretrain.weight_decay_end
        if last is not None:
            decay = cosine(step, length.steps, self.recipe.weight_decay, last)
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["weight_decay"] = decay if group["weight_decay"] else 0.0
        self.method.before_update(moment)
        update_weights(self, step, length)
        self.method.after_update(moment, self.processes)

    def measure(self, images: TrainingImages, precision: str | None = None) -> dict[str, float]:
        """The rank of the held-out images' embeddings, what the method tells of itself, and k-NN where there are
        classes."""
        precision = precision or self.recipe.precision or "auto"
        chosen = images.validation_indices
        embeddings = outputs_of(self.encoder, images.held_out["val"], chosen, self.processes, precision)
        if not bool(embeddings.isfinite().all()):
            raise NotFinite("the embeddings are not finite")
        metrics: dict[str, float] = {}
        if self.labelled:
            known = list(range(min(len(self.bank), BANK * len(chosen))))
            bank = outputs_of(self.encoder, self.bank, known, self.processes, precision)
            items = images.data.dataset.part("val")
            truth = images.task.encode([items[index].target for index in chosen])
            votes = knn_means(bank.numpy(), target_rows(self.bank_classes[known], self.task), embeddings.numpy())
            metrics[KNN] = float((votes.argmax(1) == truth.numpy()).mean())
        return metrics | {RANK: effective_rank(embeddings)} | self.method.health(embeddings)

    def evaluated(self, run: Run, step: int) -> None:
        """Write the model file as it is now, record attention, and say what has begun to go wrong."""
        if not run.processes.is_main:
            return
        kept_model(self.start, self.encoder, step).save(run.folder.model)
        record_attention(run.folder.path, step, attention_of(self.encoder, self.fixed.to(run.processes.device)))
        rows, steps = run.folder.history(), Plan.read(run.folder.plan).steps
        evaluations = [place for place, row in enumerate(rows) if "validation" in row]
        before = rows[: evaluations[-2] + 1] if len(evaluations) > 1 else []
        said = {concern.kind for concern in self.concerns(before, steps)}
        for concern in self.concerns(rows, steps):
            if concern.kind not in said:
                run.progress.say(f"  warning: {concern.sentence}")

    def concerns(self, history: Sequence[Mapping[str, Any]], steps: int) -> list[Concern]:
        """What goes wrong, by the rows of metrics.jsonl, in a run of so many steps."""
        assert self.settings.pretrain.method is not None
        return find_concerns(history, steps, self.method.resting_loss, self.settings.pretrain.method)


def build_pretrainer(
    run: Run,
    settings: Settings,
    images: TrainingImages,
    start: Checkpoint,
    steps: int,
    teacher: Teacher | None = None,
) -> Pretrainer:
    """Ready for the first step. The start is copied, so it can be built from again. teacher: of method features."""
    processes, train = run.processes, settings.train
    torch.manual_seed(train.seed)
    encoder = copy.deepcopy(start.vit).train()
    encoder.checkpointing = train.checkpointing
    if train.compile:
        compile_blocks(encoder, processes.device)
    method = build_method(settings, encoder, images.preprocessing, processes.world, teacher).to(processes.device)
    items = images.data.train
    order = permutation(train.seed, 0, len(items))[: BANK * QUICK_IMAGES].tolist()
    held_out = images.held_out["val"]
    bank = HeldOutImages([items[index].source for index in order], held_out.processor, held_out.workers)
    fixed = images.sample("val", PICTURES)
    pixels = [picture.pixels for picture in held_out.take(fixed)]
    return Pretrainer(
        model=method,
        network=distribute(method, processes, False),
        optimizers=optimizers(method.student, rates_of(settings), method.other_parameters()),
        ema=None,
        task=images.task,
        loader=view_loader(settings, images, (processes.rank, processes.world)),
        recipe=train,
        processes=processes,
        method=method,
        settings=settings,
        bank=bank,
        bank_classes=images.task.encode([items[index].target for index in order]),
        start=start,
        fixed=held_out.processor.transform(pixels, torch.device("cpu")),
        labelled=len(images.data.dataset.labels) > 1,
    )


def view_loader(settings: Settings, images: TrainingImages, share: tuple[int, int]) -> ViewLoader:
    """`share`: this process's rank, of how many."""
    return ViewLoader(
        cache=images.cache,
        targets=images.targets["train"],
        sampler=sampler_of(settings, images),
        preprocessing=images.preprocessing,
        augmentation=Augmentation(),
        seed=settings.train.seed,
        share=share,
        workers=settings.data.workers,
        views=views_for(settings, images.preprocessing.size),
    )


def views_for(settings: Settings, size: tuple[int, int]) -> tuple[View, ...]:
    """The views of an image: two global crops and some local ones, or one crop for methods that need no second."""
    pretrain, flip = settings.pretrain, settings.augment.flip or "horizontal"
    assert pretrain.global_area is not None and pretrain.local_area is not None and pretrain.local_size is not None
    whole = View(size=size, area=(pretrain.global_area, 1.0), flip=flip, colour=pretrain.colour)
    if pretrain.method == "mae":
        return (replace(whole, colour=0.0),)
    if pretrain.method == "features":
        return (whole,)
    local = View(
        size=(pretrain.local_size, pretrain.local_size),
        area=(min(pretrain.local_least, pretrain.local_area), pretrain.local_area),
        flip=flip,
        colour=pretrain.colour,
        blur=0.5,
    )
    first, second = replace(whole, blur=1.0), replace(whole, blur=0.1, solarize=0.2)  # as the paper has them
    return (first, second, *[local] * (pretrain.local_crops or 0))


def split_views(views: Sequence[Tensor], parts: int) -> list[list[Tensor]]:
    """All views of the images of each part of a batch."""
    size = -(-len(views[0]) // parts)
    return [[view[start : start + size] for view in views] for start in range(0, len(views[0]), size)]


def kept_model(start: Checkpoint, encoder: ViT, step: int, history: Mapping[str, Any] | None = None) -> Checkpoint:
    """The encoder as a model that gives embeddings, with what is known of how it was made."""
    provenance = start.provenance | {"source": "vitrail pretrain", "pretraining": {"steps": step, **(history or {})}}
    return Checkpoint(encoder, start.preprocessing, EMBED, None, provenance)
