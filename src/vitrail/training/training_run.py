"""One training run, from DATA to a measured model file: every stage is a function with a frozen result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from vitrail.text import counted
from vitrail.training.loop import run_loop
from vitrail.training.optim.memory import keep_freed_memory
from vitrail.training.plan import Plan
from vitrail.training.run_context import Run, RunRequest, open_run
from vitrail.training.settings import Settings
from vitrail.training.stages.add_teacher import add_teacher, find_teacher
from vitrail.training.stages.build_model import build_model, choose_settings, fit_to_images, load_start, with_drop_path
from vitrail.training.stages.build_trainer import build_trainer, restore_state
from vitrail.training.stages.decode_images import TrainingImages, decode_images
from vitrail.training.stages.finish_run import Finished, best_model, calibrate, write_model
from vitrail.training.stages.keep_calibration import keep_calibration
from vitrail.training.stages.make_plan import make_plan
from vitrail.training.stages.probe_head import probe_head
from vitrail.training.stages.read_data import make_task, read_data
from vitrail.training.stages.read_manifest import read_large_manifest
from vitrail.training.stages.read_unlabelled import add_unlabelled
from vitrail.training.train_step import Trainer


def train(
    data: str | Path,
    out: str | Path,
    settings: Settings,
    *,
    resume: bool = False,
    shard: bool = False,
    command: str = "",
) -> Finished:
    """Train on DATA into the folder OUT. Under torchrun every process calls this, and all return the same.

    `command`: how the run was started, for its report.
    """
    keep_freed_memory()
    request = RunRequest(data=str(data), out=Path(out), settings=settings, resume=resume, shard=shard, command=command)
    with open_run(request) as run:
        training_data = read_large_manifest(run) or read_data(run)
        with readable_errors(run, run.settings):
            task = make_task(training_data, run.settings)
            teacher = find_teacher(run, task)
            loaded = load_start(run.settings, task)
            choice = choose_settings(run, training_data, task, loaded, teacher)
        with readable_errors(run, choice.settings):
            start = build_model(choice.settings, task, loaded)
            images = decode_images(run, choice.settings, training_data, task, start)
            images = add_teacher(run, add_unlabelled(run, images), teacher)
            keep_calibration(run, images)
            start = probe_head(run, images, fit_to_images(start, images))
            planned = make_plan(run, images, start, choice.reasons)
            images = replace(images, quick_images=planned.plan.quick_images)
            start = with_drop_path(start, planned.settings)
            trainer = build_trainer(run, planned.settings, images, start, planned.plan.lengths[0].steps)
            state = restore_state(run, trainer, planned.plan)
            announce(run, trainer, images, planned.plan)
            plan = run_loop(run, trainer, images, planned.plan, state)
            model = best_model(run, trainer, start, planned.settings)
            measured = calibrate(run, images, model, plan, state)
            return write_model(run, images, replace(planned, plan=plan), start, state, measured)


@contextmanager
def readable_errors(run: Run, settings: Settings) -> Iterator[None]:
    """Memory that runs out, or another process that ends, is told in a sentence."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        raise run.explain(error, settings.train) from None


def announce(run: Run, trainer: Trainer, images: TrainingImages, plan: Plan) -> None:
    """What is trained, and what is kept of it."""
    if not images.can_choose_best:
        every, measured = len(images.held_out["val"]), len(images.validation_indices)
        held_out = counted(every, "validation image")
        if measured < every:
            held_out = f"evaluations on the way measure {measured} of {held_out}"
        run.progress.say(f"  {held_out}: too few to choose the best weights by, so the last ones are kept")
    count = sum(parameter.numel() for parameter in trainer.model.parameters())
    run.progress.say(
        f"training {count / 1e6:.3g} M parameters, {trainer.encoder.config.tokens} tokens an image, "
        f"{plan.steps:,} steps of {trainer.loader.sampler.batch_size} images"
    )
