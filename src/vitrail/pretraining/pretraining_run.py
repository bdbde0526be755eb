"""One run without labels, from DATA to an encoder that gives embeddings: the stages of training, but for labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail import __version__
from vitrail.findings import Finding
from vitrail.pretraining.attention_record import forget_attention_after
from vitrail.pretraining.choose_pretraining import build_encoder, choose_pretraining, complete_recipe, load_encoder
from vitrail.pretraining.pile import PileData, read_pile
from vitrail.pretraining.pretrainer import Pretrainer, build_pretrainer, kept_model
from vitrail.text import counted
from vitrail.training.checkpointing import restore_tensors
from vitrail.training.loop import TrainState, run_loop
from vitrail.training.optim.memory import keep_freed_memory
from vitrail.training.plan import Plan
from vitrail.training.run_context import Run, RunRequest, open_run
from vitrail.training.run_folder import RunFolder
from vitrail.training.settings import Settings
from vitrail.training.stages.build_model import fit_to_images
from vitrail.training.stages.build_trainer import restore_state
from vitrail.training.stages.decode_images import TrainingImages, decode_images
from vitrail.training.stages.finish_run import images_in_time
from vitrail.training.stages.keep_calibration import keep_calibration
from vitrail.training.stages.make_plan import Learning, make_plan
from vitrail.training.stages.read_data import make_task
from vitrail.training.teacher import load_teacher
from vitrail.training.training_run import readable_errors
from vitrail.weights.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A run at its end, with all that its report tells."""

    folder: RunFolder
    checkpoint: Checkpoint
    settings: Settings
    plan: Plan
    state: TrainState
    description: str
    findings: Sequence[Finding]
    metrics: dict[str, float]  # of the kept encoder
    images: int  # that they were measured on
    labelled: bool
    concerns: Sequence[str]  # sentences on what went wrong
    fixed: Tensor  # (P, C, H, W): the pictures whose attention was recorded
    root: Path

    @property
    def results(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {"images": self.images, "metrics": self.metrics, "concerns": list(self.concerns)}


def pretrain(
    data: str | Path, out: str | Path, settings: Settings, *, resume: bool = False, command: str = ""
) -> Pretrained:
    """Learn from DATA without labels into the folder OUT. Under torchrun every process calls this."""
    keep_freed_memory()
    request = RunRequest(
        data=str(data), out=Path(out), settings=settings, resume=resume, command=command, verb="pretrain"
    )
    with open_run(request) as run:
        pile = read_pile(run)
        with readable_errors(run, run.settings):
            loaded = load_encoder(run.settings)
            choice = choose_pretraining(run, pile, loaded)
            name = choice.settings.pretrain.teacher
            teacher = None if name is None else load_teacher(name)
        with readable_errors(run, choice.settings):
            start = build_encoder(choice.settings, loaded)
            task = make_task(pile, choice.settings)
            images = decode_images(run, choice.settings, pile, task, start)
            keep_calibration(run, images)
            start = fit_to_images(start, images)
            build = partial(build_pretrainer, teacher=teacher)
            planned = make_plan(run, images, start, choice.reasons, Learning(build, complete_recipe, teacher))
            images = replace(images, quick_images=planned.plan.quick_images)
            trainer = build(run, planned.settings, images, start, planned.plan.steps)
            state = restore_state(run, trainer, planned.plan)
            if run.processes.is_main:
                forget_attention_after(run.folder.path, state.step)
            announce(run, trainer, planned.plan)
            plan = run_loop(run, trainer, images, planned.plan, state)
            return finish(run, trainer, images, replace(planned, plan=plan).plan, state)


def announce(run: Run, trainer: Pretrainer, plan: Plan) -> None:
    """What is learnt, by what."""
    count = sum(parameter.numel() for parameter in trainer.method.student.parameters())
    run.progress.say(
        f"learning {count / 1e6:.3g} M parameters without labels, {plan.steps:,} steps of "
        f"{counted(trainer.loader.sampler.batch_size, 'image')}"
    )


def finish(run: Run, trainer: Pretrainer, images: TrainingImages, plan: Plan, state: TrainState) -> Pretrained:
    """Measure the encoder that is kept, on as many images as there is time for, and write its file once more."""
    best = run.processes.from_main(run.checkpoints.load_best)
    if best is not None:
        restore_tensors(best.tensors, trainer.encoder, (), None)
    count = run.processes.from_main(lambda: images_in_time(images, plan, state))
    metrics = trainer.measure(replace(images, quick_images=count), "float32")
    settings, pretrain = trainer.settings, trainer.settings.pretrain
    history = {
        "vitrail": __version__,
        "torch": torch.__version__,
        "method": pretrain.method,
        "images": len(images.data.train),
        "seed": settings.train.seed,
        "sample": images.data.sample,
        "metrics": metrics,
    }
    checkpoint = kept_model(trainer.start, trainer.encoder.cpu().eval(), state.best_step or state.step, history)
    if run.processes.is_main:
        checkpoint.save(run.folder.model)
    assert isinstance(images.data, PileData)
    return Pretrained(
        folder=run.folder,
        checkpoint=checkpoint,
        settings=settings,
        plan=plan,
        state=state,
        description=images.data.description,
        findings=images.data.findings,
        metrics=metrics,
        images=min(count, len(images.held_out["val"])),
        labelled=images.data.is_labelled,
        concerns=[concern.sentence for concern in trainer.concerns(run.folder.history(), plan.steps)],
        fixed=trainer.fixed,
        root=images.data.dataset.root,
    )
