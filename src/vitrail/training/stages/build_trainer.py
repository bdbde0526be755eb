"""What a step works on, made from complete settings: a copy of the model, optimizers, EMA, loader."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from vitrail.data.loading.augment import Augmentation
from vitrail.data.loading.loader import Loader
from vitrail.data.loading.sampler import Sampler
from vitrail.data.loading.unlabelled_loader import Pile, UnlabelledLoader
from vitrail.data.manifest.manifest_items import ManifestItems
from vitrail.errors import VitrailError
from vitrail.inference.backends.compiled_backend import check_compiler
from vitrail.model.encoder import Encoder
from vitrail.model.heads.mae_decoder import MAEDecoder
from vitrail.tasks.targets import WholeImageTargets
from vitrail.tasks.task import Task
from vitrail.training.auxiliary.masked_patches import JointModel, JointTrainer
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
from vitrail.training.sharding.sharded_state import read_parts
from vitrail.training.stages.decode_images import TrainingImages
from vitrail.training.train_step import Trainer
from vitrail.weights.checkpoint import Checkpoint


def build_trainer(run: Run, settings: Settings, images: TrainingImages, start: Checkpoint, steps: int) -> Trainer:
    """Ready for the first step. The start is copied, so it can be built from again. `steps` of the EMA's horizon."""
    processes, train = run.processes, settings.train
    model = trainable(copy.deepcopy(start.model), settings, processes.device)
    if train.compile:
        compile_blocks(model, processes.device)
    model.heads_apart = images.distillation is not None  # one learns the labels, the other the teacher
    joint = painting_model(model, images)
    learning: nn.Module = model if joint is None else joint
    others = () if joint is None else joint.decoder.named_parameters("decoder")
    parts: dict[str, Any] = {
        "model": learning,
        "network": distribute(learning, processes, run.request.shard),
        "optimizers": optimizers(model, rates_of(settings), others),
        "ema": EMA(learning, train.average * steps) if train.average else None,
        "task": images.task,
        "loader": loader_of(settings, images, (processes.rank, processes.world)),
        "recipe": train,
        "processes": processes,
        "distillation": images.distillation,
    }
    if joint is None or images.pile is None:
        return Trainer(**parts)
    assert train.batch_size is not None
    return JointTrainer(**parts, unlabelled=images.pile.batch_size(train.batch_size, processes.world))


def painting_model(model: Encoder, images: TrainingImages) -> JointModel | None:
    """The model with a decoder that paints hidden patches; None: there are no pictures without labels, or a teacher
    answers about them."""
    if images.pile is None or images.distillation is not None:
        return None
    return JointModel(model, MAEDecoder(model.config).to(next(model.parameters()).device))


def trainable(model: Encoder, settings: Settings, device: torch.device) -> Encoder:
    """Add LoRA, freeze what is not trained, and move the model to the device."""
    torch.manual_seed(settings.train.seed)
    if settings.model.train_only == "lora":
        add_low_rank(model, settings.model.lora_rank)
    choose_trained(model, settings.model.train_only, settings.model.freeze_cnn)
    model.freeze_stem_statistics(settings.model.train_only != "all" or settings.model.freeze_cnn)
    model.checkpointing = settings.train.checkpointing
    return model.to(device).train()


def compile_blocks(model: Encoder, device: torch.device) -> None:
    """Each block becomes a compiled program when it first runs; those that are alike share one."""
    check_compiler(device, "train.compile", "set it to false")
    import torch._dynamo

    # blocks differ in their drop path, and steps in their tokens: more programs than torch makes by itself
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 8 * model.depth)
    for block in model.block_modules():
        block.compile()


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
    if isinstance(items, ManifestItems):
        return items.sampler(train.batch_size, train.seed)
    classes = [item.target for item in items if isinstance(item.target, int)] if train.balanced else None
    return Sampler(len(items), train.batch_size, train.seed, classes)


def loader_of(settings: Settings, images: TrainingImages, share: tuple[int, int]) -> Loader | UnlabelledLoader:
    """`share`: this process's rank, of how many."""
    train = settings.train
    labelled = Loader(
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
    return labelled if images.pile is None else UnlabelledLoader(labelled, pile_loader(labelled, images.pile))


def pile_loader(labelled: Loader, pile: Pile) -> Loader:
    """Draws and augments pictures without labels as those with labels, and mixes none."""
    seed, batch = labelled.seed + 1, pile.batch_size(labelled.sampler.batch_size, labelled.share[1])
    return replace(
        labelled,
        cache=pile.cache,
        targets=WholeImageTargets(torch.zeros(pile.count)),
        sampler=Sampler(pile.count, batch, seed),
        mixup=0.0,
        cutmix=0.0,
        seed=seed,
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
            tensors = saved.tensors
            if saved.parts is not None:  # each process reads what it needs
                tensors = read_parts(saved.parts, trainer.model, trainer.optimizers)
            restore_tensors(tensors, trainer.model, trainer.optimizers, trainer.ema)
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
