"""How long a run is, and with it the rest of the recipe. Both are kept in the run from here on."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from vitrail.errors import VitrailError
from vitrail.inference.evaluation import MEASURED_IN
from vitrail.model.precision import is_mixed
from vitrail.tasks.task import WORST
from vitrail.text import shown
from vitrail.training.choices.facts import Facts
from vitrail.training.choices.model_choice import Choice
from vitrail.training.choices.recipe_choice import choose_recipe
from vitrail.training.loop import keep_until
from vitrail.training.plan import SHARE, Length, Plan, StepTiming, length_of, steps_within, without_ending
from vitrail.training.run_context import Run
from vitrail.training.settings import Settings
from vitrail.training.stages.build_trainer import build_trainer, sampler_of
from vitrail.training.stages.decode_images import QUICK_IMAGES, TrainingImages
from vitrail.training.stages.learn_familiarity import time_for
from vitrail.training.step_timing import ENDLESS, measure_evaluation, measure_steps
from vitrail.training.teacher import Teacher
from vitrail.training.train_step import Trainer
from vitrail.weights.checkpoint import Checkpoint

VIEWS = 500_000  # images seen in a run from scratch that was given neither epochs nor minutes
TUNING_EPOCHS = 10.0
FEWEST_EVALUATIONS = 6  # on the way, in a run that lasts minutes
SMALLEST_SAMPLE = 32  # images of an evaluation on the way, even where it takes long
SMALLEST_DENSE_SAMPLE = 4  # where every image has many answers, and a large photo may take seconds
FINAL_SHARE = 0.15  # of the time, for the last measure; where that does not suffice, it takes a sample
LARGEST_FINAL_SHARE = 0.25  # of the time, where fewer than SMALLEST_FINAL images could be measured in the above
SMALLEST_FINAL = 100  # images of the last measure, unless each takes long
FEWEST_FINAL = 8  # even then
MEASURE_SHARE = 0.01  # of the time, to find out what an evaluation takes
REPORT = 4.0  # seconds for intervals and the report, beside running the model


@dataclass(frozen=True)
class Planned:
    plan: Plan
    settings: Settings  # complete


@dataclass(frozen=True)
class _Duration:
    """The length of a run in steps, and what was measured to know it."""

    length: Length
    deadline: float = 0.0  # seconds from here to the end of the run; 0: the length is not a matter of time
    timing: StepTiming | None = None
    quick_images: int | None = None


@dataclass(frozen=True)
class Learning:
    """How a kind of run learns: what its plan depends on. The defaults are those of learning from labels."""

    trainer: Callable[[Run, Settings, TrainingImages, Checkpoint, int], Trainer] = build_trainer
    recipe: Callable[[Settings, Facts, float], Choice] = choose_recipe
    teacher: Teacher | None = None  # whose features are learnt; one whose answers are learnt comes with the images


def make_plan(
    run: Run, images: TrainingImages, start: Checkpoint, reasons: tuple[str, ...], learning: Learning | None = None
) -> Planned:
    """The plan of a new run, written down with the complete settings, or that of a resumed one."""
    learning = learning or Learning()
    teacher = teacher_of(images, learning)
    if run.request.resume:
        return Planned(read_plan(run, images, teacher), images.settings)

    def build() -> Trainer:
        return learning.trainer(run, images.settings, images, start, ENDLESS.steps)

    duration = timed_duration(run, images, build) if images.settings.train.minutes else fixed_duration(images, build)
    sampler = sampler_of(images.settings, images)
    epochs = duration.length.steps * sampler.batch_size / sampler.count
    choice = learning.recipe(images.settings, images.facts, epochs)
    plan = Plan(
        lengths=(duration.length,),
        data=images.data.fingerprint,
        started=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        command=run.request.command,
        deadline=duration.deadline,
        timing=duration.timing,
        quick_images=duration.quick_images,
        teacher=teacher,
        unlabelled="" if images.pile is None else images.pile.fingerprint,
        reasons=(*reasons, *choice.reasons),
    )
    for line in plan.reasons:
        run.progress.say(line)
    if run.processes.is_main:
        choice.settings.write(run.folder.settings)
        plan.write(run.folder.plan)
    return Planned(plan, choice.settings)


def teacher_of(images: TrainingImages, learning: Learning) -> str:
    """The fingerprint of the teacher; "" without one."""
    teacher = learning.teacher if images.distillation is None else images.distillation.teacher
    return "" if teacher is None else teacher.fingerprint


def read_plan(run: Run, images: TrainingImages, teacher: str) -> Plan:
    """The plan that the run began with. teacher: the fingerprint of the one that is there now."""
    plan = Plan.read(run.folder.plan)
    if plan.data != images.data.fingerprint:
        raise VitrailError(
            f"the images of {shown(run.request.data)} changed since the run in {run.folder.path} began: a resumed run "
            "is the same run, so put them back, or start a new one with another --out"
        )
    if images.pile is not None and plan.unlabelled != images.pile.fingerprint:
        raise VitrailError(
            f"the pictures of {images.settings.data.unlabelled} changed since the run in {run.folder.path} began: put "
            "them back, or start a new run with another --out"
        )
    if plan.teacher != teacher:
        name = images.settings.train.teacher or images.settings.pretrain.teacher
        raise VitrailError(
            f"the teacher {name} is not the one that the run in {run.folder.path} began with: "
            "put that one back, or start a new run with another --out"
        )
    return plan


def fixed_duration(images: TrainingImages, build: Callable[[], Trainer]) -> _Duration:
    """So many epochs."""
    train, sampler = images.settings.train, sampler_of(images.settings, images)
    if train.keep_tokens is not None and train.keep_tokens < 1:
        try_all_tokens(build())
    steps = max(1, round(epochs_of(images) * sampler.count / sampler.batch_size))
    return _Duration(length_of(steps, keep_until(train), train.warmup))


def epochs_of(images: TrainingImages) -> float:
    if images.settings.train.epochs is not None:
        return images.settings.train.epochs
    if images.settings.model.start is not None:
        return TUNING_EPOCHS
    return float(min(300, max(20, round(VIEWS / len(images.data.train)))))


def try_all_tokens(trainer: Trainer) -> None:
    """One step as the last ones will be: memory that does not suffice shows now, not after most of the run."""
    with closing(trainer.loader.batches(0, 1)) as batches:
        trainer.gradients(next(batches), ENDLESS)


def timed_duration(run: Run, images: TrainingImages, build: Callable[[], Trainer]) -> _Duration:
    """As many steps as fit into the minutes, by the time of a few steps of a copy."""
    train = images.settings.train
    assert train.minutes is not None
    budget = 60 * train.minutes
    trainer = build()
    few_tokens, all_tokens = measure_steps(trainer, budget)
    image_seconds = image_time(run, images, trainer)
    mixed = is_mixed(run.processes.device, train.precision or "auto")
    final_seconds = image_time(run, images, trainer, MEASURED_IN) if mixed else image_seconds
    fixed = REPORT + time_for(images)  # however slow the machine becomes: the vectors of familiarity stop by the clock
    cost = FinalCost(final_seconds, final_seconds if images.task.dense else 0.0)
    ending = fixed + cost.seconds(final_sample(cost, budget, images.measured_at_end))
    deadline = budget - (time.monotonic() - run.began)
    left = without_ending(deadline, ending)
    if left < all_tokens:
        run.progress.say(f"  warning: {train.minutes:g} minutes are over before the first step: one is made")
    smallest = SMALLEST_DENSE_SAMPLE if images.task.dense else SMALLEST_SAMPLE
    quick = quick_sample(image_seconds, left, len(images.held_out["val"]), smallest)
    timing = StepTiming(
        few_tokens=few_tokens,
        all_tokens=all_tokens,
        evaluation=image_seconds * quick,
        ending=ending,
        report=fixed,
        final_slower=final_seconds / image_seconds,
        image=image_seconds,
    )
    evaluations = timing.evaluations(left)
    steps = steps_within(left, timing, keep_until(train), evaluations=evaluations)
    length = length_of(steps, keep_until(train), train.warmup, evaluations=evaluations)
    own = _Duration(length, max(deadline, 1.0), timing, quick)
    return run.processes.from_main(lambda: own)


def image_time(run: Run, images: TrainingImages, trainer: Trainer, precision: str | None = None) -> float:
    """Seconds to evaluate one held-out image; precision: None is the one that is trained in."""
    return measure_evaluation(
        lambda count: trainer.measure(replace(images, quick_images=count), precision),
        len(images.held_out["val"]),
        run.processes.agree,
        MEASURE_SHARE * 60 * (images.settings.train.minutes or math.inf),
    )


@dataclass(frozen=True)
class FinalCost:
    """What an image takes after the last step, in seconds."""

    measured: float
    drawn: float = 0.0  # once more, for the worst mistakes that the report shows: answers about places are not kept

    def seconds(self, images: int) -> float:
        return images * self.measured + min(images, WORST) * self.drawn

    def images(self, seconds: float) -> int:
        """How many so many seconds suffice for."""
        all_drawn = int(seconds / (self.measured + self.drawn))
        return all_drawn if all_drawn < WORST else int((seconds - WORST * self.drawn) / self.measured)


def quick_sample(image_seconds: float, seconds: float, available: int, smallest: int) -> int:
    """How many held-out images an evaluation on the way takes, so that enough evaluations fit into the time of the
    loop; at least `smallest`."""
    affordable = int(SHARE * max(0.0, seconds) / FEWEST_EVALUATIONS / image_seconds)
    return min(available, QUICK_IMAGES, max(affordable, smallest))


def final_sample(cost: FinalCost, seconds: float, available: int) -> int:
    """How many images the last measure takes, so that most of the time is left for learning."""
    usual, most = (cost.images(share * seconds) for share in (FINAL_SHARE, LARGEST_FINAL_SHARE))
    return min(available, max(usual, smallest_final(most)))


def smallest_final(affordable: int) -> int:
    """How many images the last measure takes at least, where so many can be measured in the time that it may take."""
    return max(min(SMALLEST_FINAL, affordable), FEWEST_FINAL)
