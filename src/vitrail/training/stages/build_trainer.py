"""What a step works on, made from complete settings: a copy of the model, optimizers, EMA, loader."""

from __future__ import annotations

import copy

import torch

from vitrail.data.loading.augment import Augmentation
from vitrail.data.loading.loader import Loader
from vitrail.data.loading.sampler import Sampler
from vitrail.errors import VitrailError
from vitrail.model.encoder import Encoder
from vitrail.tasks.task import Task
from vitrail.training.checkpointing import restore_tensors
from vitrail.training.distributed import distribute
from vitrail.training.failure import is_out_of_memory
from vitrail.training.loop import TrainState
from vitrail.training.optim.ema import EMA
from vitrail.training.optim.lora import add_low_rank
from vitrail.training.optim.optimizers import CNN_RATE, Rates, choose_trained, optimizers
from vitrail.training.plan import Plan
from vitrail.training.run_context import Run
from vitrail.training.settings import Augment, Settings
from vitrail.training.stages.decode_images import TrainingImages
from vitrail.training.train_step import Trainer
from vitrail.weights.checkpoint import Checkpoint


def build_trainer(run: Run, settings: Settings, images: TrainingImages, start: Checkpoint, steps: int) -> Trainer:
    """Ready for the first step. The start is copied, so it can be built from again. `steps` of the EMA's horizon."""
    processes, train = run.processes, settings.train
    model = trainable(copy.deepcopy(start.model), settings, processes.device)
    network = distribute(model, processes, run.request.shard)
    return Trainer(
        model=model,
        network=network,
        optimizers=optimizers(model, rates_of(settings)),
        ema=EMA(model, train.average * steps) if train.average else None,
        task=images.task,
        loader=loader_of(settings, images, (processes.rank, processes.world)),
        recipe=train,
        processes=processes,
    )


def trainable(model: Encoder, settings: Settings, device: torch.device) -> Encoder:
    """Add LoRA, freeze what is not trained, and move the model to the device."""
    torch.manual_seed(settings.train.seed)
    if settings.model.train_only == "lora":
        add_low_rank(model, settings.model.lora_rank)
    choose_trained(model, settings.model.train_only, settings.model.freeze_cnn)
    model.freeze_stem_statistics(settings.model.train_only != "all" or settings.model.freeze_cnn)
    model.checkpointing = settings.train.checkpointing
    return model.to(device).train()


def rates_of(settings: Settings) -> Rates:
    train = settings.train
    assert train.lr is not None
    return Rates(
        adamw=train.lr,
        muon=train.muon_lr if train.optimizer == "muon" else None,
        weight_decay=train.weight_decay,
        layer_decay=train.layer_decay if settings.model.start is not None else 1.0,
        cnn=CNN_RATE if settings.model.cnn is not None else 1.0,
    )


def sampler_of(settings: Settings, images: TrainingImages) -> Sampler:
    train, items = settings.train, images.data.train
    assert train.batch_size is not None
    classes = [item.target for item in items if isinstance(item.target, int)] if train.balanced else None
    return Sampler(len(items), train.batch_size, train.seed, classes)


def loader_of(settings: Settings, images: TrainingImages, share: tuple[int, int]) -> Loader:
    """`share`: this process's rank, of how many."""
    train = settings.train
    return Loader(
        cache=images.cache,
        targets=images.targets["train"],
        sampler=sampler_of(settings, images),
        preprocessing=images.preprocessing,
        augmentation=augmentation_of(settings.augment, type(images.task)),
        mixup=train.mixup or 0.0,
        cutmix=train.cutmix or 0.0,
        seed=train.seed,
        share=share,
        workers=settings.data.workers,
    )


def augmentation_of(augment: Augment, task: type[Task] | None = None) -> Augmentation:
    """What is not chosen yet, while the time of a step is measured, is taken to be the slowest.

    A picture that is kept whole is not moved either where its target may depend on places (`task`).
    """
    crop = augment.crop or 0.5
    narrowest = max(crop, 3 / 4)  # another aspect cuts away too: an image that is kept whole keeps its own
    return Augmentation(
        crop=(crop, 1.0),
        aspect=(narrowest, 1 / narrowest),
        anywhere=task is None or task.crops_and_flips or crop < 1,
        flip=augment.flip or "horizontal",
        policy=augment.policy or "trivial",
        changes=augment.changes,
        strength=augment.strength,
        erase=augment.erase or 0.0,
    )


def restore_state(run: Run, trainer: Trainer, plan: Plan) -> TrainState:
    """The train state of a resumed run, its tensors loaded into the trainer; that of a new run is empty."""
    if not run.request.resume:
        return TrainState()
    saved, notes = run.processes.from_main(run.checkpoints.load_last)
    for note in notes:
        run.progress.say(f"  warning: {note}")
    state = TrainState()
    if saved is not None:
        try:
            restore_tensors(saved.tensors, trainer.model, trainer.optimizers, trainer.ema)
            state = TrainState(**saved.facts)
        except (RuntimeError, KeyError, IndexError, ValueError, TypeError) as error:
            if is_out_of_memory(error):
                raise
            raise VitrailError(
                f"the state saved in {run.folder.checkpoints} does not fit {run.folder.settings}: undo what was "
                "changed there, or start a new run with another --out"
            ) from None
    if run.processes.is_main:
        run.folder.forget_after(state.step)
    if state.best is not None:
        run.progress.best = trainer.scores.show(trainer.scores.main_metric, state.best)
    run.progress.say(f"resumed after step {state.step:,} of {plan.steps:,}")
    return state
