"""The model at its start, from complete settings: fresh, or loaded and fitted to these labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from vitrail.errors import VitrailError
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.presets import build_network
from vitrail.tasks.dense_task import DenseTask
from vitrail.tasks.task import Task
from vitrail.training.choices.compatibility import check_network, check_sharing, check_start, check_task
from vitrail.training.choices.distillation_choice import check_unlabelled, choose_distillation
from vitrail.training.choices.facts import Facts
from vitrail.training.choices.model_choice import Choice, choose_model, config_of, window_fields
from vitrail.training.choices.recipe_choice import choose_optimizer, rate_warning
from vitrail.training.choices.size_choice import (
    StepCost,
    candidate_configs,
    fit_size_to_time,
    fit_tuned_size_to_time,
    measure_step_cost,
    measure_teacher,
    small_config,
)
from vitrail.training.optim.whitening import start_from_images
from vitrail.training.run_context import Run
from vitrail.training.settings import Model, Settings
from vitrail.training.stages.decode_images import TrainingImages
from vitrail.training.stages.read_data import TrainingData
from vitrail.training.teacher import Teacher
from vitrail.weights.adapt import adapt
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.load import load
from vitrail.weights.preprocessing import Preprocessing
from vitrail.weights.pretrained_cnn import find_cnn

TUNED_BATCH = 32


def load_start(settings: Settings, task: Task) -> Checkpoint | None:
    """The model to fine-tune, with a head for these labels; None: from scratch."""
    model, train = settings.model, settings.train
    check_start(settings)
    if model.start is None:
        return None
    torch.manual_seed(train.seed)
    size = input_size(model) if model.image_size else None  # None: its own
    extra: dict[str, Any] = {"drop_path": train.drop_path or 0.0, "dropout": train.dropout}
    extra |= window_fields(model)
    checkpoint = load(model.start, channels=model.channels, image_size=size, **extra)
    if checkpoint.task == task.name and checkpoint.labels == task.labels:
        for layer in checkpoint.model.output_layers():
            task.unfold(layer)  # it answers in real units, and learns in standardised ones
    checkpoint = adapt(checkpoint, labels=task.labels, head=head_fields(settings, task))
    checkpoint.task = task.name
    return checkpoint


def input_size(model: Model) -> tuple[int, int]:
    """Height and width of settings that have one."""
    assert model.image_size is not None
    return model.image_size, model.image_width or model.image_size


def choose_settings(
    run: Run, data: TrainingData, task: Task, loaded: Checkpoint | None, teacher: Teacher | None = None
) -> Choice:
    """Settings with all that the network and the time of a step depend on. What is set stays, so a resumed run, whose
    settings are complete, goes through this unchanged."""
    settings = run.settings.where_unset({"data.validation": data.holdout})
    settings, taught = choose_distillation(settings, task, None if loaded is None else loaded.config)
    if loaded is not None:
        facts = data.facts(run.processes.device.type, settings.train.minutes)
        tuned = _fine_tuning_choice(settings, data, task, loaded)
        choice = tuned_size_in_time(run, facts, task, loaded, tuned, teacher)
    else:
        if not run.request.resume:
            settings = settings.where_unset({"model.resize": usual_resize(type(task), "crop")})
        facts = data.facts(run.processes.device.type, settings.train.minutes)
        choice = size_in_time(run, settings, facts, task, teacher)
    batch = min(choice.settings.train.batch_size or TUNED_BATCH, len(data.train))
    settings = choice.settings.with_values({"train.batch_size": batch})
    config = config_of(settings, head_fields(settings, task)) if loaded is None else loaded.config
    settings = choose_optimizer(settings, run.request.shard, task.every_patch or not config.drops_tokens)
    if not run.request.resume and (warning := rate_warning(settings)):
        run.progress.say(f"  warning: {warning}")
    alone = run.request.resume and run.processes.world == 1  # a sharded run goes on with one process too
    check_sharing(settings.train, run.processes.world, run.request.shard and not alone)
    check_task(settings, task)
    check_network(settings, config)
    check_unlabelled(settings, config, run.request.shard)
    return Choice(settings, (*choice.reasons, *taught))


def size_in_time(run: Run, settings: Settings, facts: Facts, task: Task, teacher: Teacher | None = None) -> Choice:
    """The choice from scratch, at a size whose images can be seen often enough; at the usual one where there is no time
    given, and as it is where size or network were asked for."""
    model, choice = settings.model, choose_model(settings, facts)
    if run.request.resume or not facts.minutes or model.image_size or model.model is not None:
        return choice
    config = config_of(choice.settings, head_fields(choice.settings, task))
    configs = candidate_configs(settings, facts, config)
    if len(configs) == 1:
        return choice
    muon = settings.train.optimizer != "adamw" and not run.request.shard
    cost = _step_cost(run, settings, small_config(config), muon, teacher)
    return fit_size_to_time(settings, facts, choice, configs, cost)


def tuned_size_in_time(
    run: Run, facts: Facts, task: Task, loaded: Checkpoint, choice: Choice, teacher: Teacher | None = None
) -> Choice:
    """The choice at the model's own size, or at a smaller one whose images can be seen often enough. Where classes are
    told from all of a network that learns: smaller pictures were measured there, and there they save most."""
    model, train = choice.settings.model, choice.settings.train
    if run.request.resume or not facts.minutes or model.image_size or model.train_only != "all":
        return choice
    if not task.classifies_images or loaded.model.feature_cnn is not None:
        return choice
    cost = _step_cost(run, choice.settings, small_config(loaded.config), train.optimizer == "muon", teacher)
    return fit_tuned_size_to_time(facts, choice, loaded.config, cost)


def _step_cost(
    run: Run, settings: Settings, config: EncoderConfig, muon: bool, teacher: Teacher | None = None
) -> StepCost:
    """What a training step takes, by all processes together."""
    precision, world = settings.train.precision or "auto", run.processes.world
    own = measure_step_cost(config, run.processes.device, precision, muon)
    if teacher is not None:
        own = replace(own, teacher_seconds=measure_teacher(teacher, precision))
    cost = run.processes.from_main(lambda: own)
    network, asked = cost.multiply_add_seconds / world, cost.teacher_seconds / world
    return replace(cost, multiply_add_seconds=network, teacher_seconds=asked)


def _fine_tuning_choice(settings: Settings, data: TrainingData, task: Task, loaded: Checkpoint) -> Choice:
    """What the model to fine-tune has already decided."""
    own = loaded.preprocessing
    chosen = settings.where_unset(
        {
            "model.channels": loaded.config.channels,
            "model.resize": usual_resize(type(task), own.resize),
            "model.crop_fraction": own.crop_fraction if task.crops_and_flips else 1.0,
            "train.batch_size": min(TUNED_BATCH, len(data.train)),
        }
    )
    return Choice(chosen, (f"model: {settings.model.start}, fine-tuned ({settings.model.train_only})",))


def usual_resize(task: type[Task], rule: str) -> str:
    """The resize rule where none is set: `rule`, unless it cuts off what an answer about places or a number, which may
    be a place, a size or a count, needs."""
    return "pad" if rule == "crop" and (task.dense or not task.crops_and_flips) else rule


def build_model(settings: Settings, task: Task, loaded: Checkpoint | None) -> Checkpoint:
    """The network with its preprocessing, before any image was seen; a loaded one gets only the latter."""
    model = settings.model
    fraction = 1.0 if task.dense else model.crop_fraction or 1.0  # answers about places need all of an image
    if loaded is not None:
        if model.image_size is not None and loaded.config.image_size != (size := input_size(model)):
            loaded = adapt(loaded, image_size=size)  # chosen by the time
        return replace(loaded, preprocessing=loaded.preprocessing.replace(resize=model.resize, crop_fraction=fraction))
    torch.manual_seed(settings.train.seed)
    config = config_of(settings, head_fields(settings, task))
    resize = model.resize or ("pad" if task.dense else "crop")  # not set: a run of an earlier version, resumed
    preprocessing = Preprocessing(size=config.image_size, resize=resize, crop_fraction=fraction)
    cnn = None
    if model.cnn is not None:
        pretrained = find_cnn(model.cnn)
        cnn = pretrained.build(config.patch_size[0], config.channels)
        preprocessing = preprocessing.replace(mean=pretrained.mean, std=pretrained.std)
    network = build_network(config, cnn)
    return Checkpoint(network, preprocessing.for_channels(network.config.channels), task.name, list(task.labels))


def head_fields(settings: Settings, task: Task) -> dict[str, Any]:
    """The fields of the config that say what the head is."""
    fields = {"classes": len(task.labels), "head": "linear", "queries": 0, "head_depth": 0}
    if not isinstance(task, DenseTask):
        return fields
    requested = settings.model.head
    heads = {name.partition("_")[2]: name for name in task.heads}
    if requested is not None and requested not in heads:
        raise VitrailError(f"model.head is {requested!r}; the task {task.name} has {', '.join(heads)}")
    head = task.heads[0] if requested is None else heads[requested]
    return fields | task.head_fields(head, settings.model.candidates or 0)


def fit_to_images(start: Checkpoint, images: TrainingImages) -> Checkpoint:
    """The preprocessing that was chosen from the images; from scratch, the first kernels are made from them too."""
    if images.settings.model.start is None:
        start_from_images(start.model, images.cache, len(images.data.train), images.preprocessing)
    return replace(start, preprocessing=images.preprocessing)


def with_drop_path(start: Checkpoint, settings: Settings) -> Checkpoint:
    """The same weights in a network with the drop path that the recipe chose once the length of the run was known."""
    drop_path = settings.train.drop_path or 0.0
    if start.config.drop_path == drop_path:
        return start
    model = build_network(start.config.replace(drop_path=drop_path), start.model.feature_cnn)
    model.load_state_dict(start.model.state_dict())
    return replace(start, model=model)
