"""The training loop: one step after another, evaluated and saved on the way, stopped politely."""

from __future__ import annotations

import math
import signal
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.tasks.task_answers import NotFinite
from vitrail.training.checkpointing import are_cut_up, collect_tensors, own_tensors
from vitrail.training.distributed import Processes
from vitrail.training.failure import Diverged, is_out_of_memory
from vitrail.training.optim.batch_norm import recomputed_statistics
from vitrail.training.plan import Plan, StepTiming
from vitrail.training.run_context import Run
from vitrail.training.settings import Recipe
from vitrail.training.stages.decode_images import TrainingImages
from vitrail.training.train_step import Trainer

COLD_STEPS = 2  # of a session, whose time says nothing about the others: memory is new, threads start
SAME_LOSS = 1e-4  # of the loss: a smaller gain is none, or patience would never run out where weights hardly move
FEWEST_STEPS = 4  # that tell how fast the machine is
LOG_STEPS = 200  # rows of metrics.jsonl about training in a run, at least


@dataclass
class TrainState:
    """How far a run is; saved with its weights."""

    step: int = 0  # steps done
    seconds: float = 0.0  # of training, over all sessions of the run
    best: float | None = None
    best_loss: float = math.inf  # decides between equal scores
    best_step: int = 0  # of the weights that are kept
    since_best: int = 0  # evaluations
    updating: bool = field(default=False, repr=False)  # between two steps, or not evaluated yet: not to be saved

    def facts(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {name: value for name, value in asdict(self).items() if name != "updating"}


class Stopped(Exception):
    """The user, or the system, asked to stop; everything is saved."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number


def run_loop(run: Run, trainer: Trainer, images: TrainingImages, plan: Plan, state: TrainState) -> Plan:
    """Train from where `state` stands to the end of the plan, and return the plan as it was corrected on the way.

    An error saves the last whole step, and becomes a sentence with the command that goes on.
    """
    try:
        with watched_signals() as received:
            if state.step < plan.steps and not is_out_of_patience(trainer.recipe, state):
                plan = run_steps(run, trainer, images, plan, state, received)
            _, stop = share_loss(torch.zeros(()), received(), run.processes)
            if stop:  # during the last evaluation, which is saved
                raise Stopped(stop)
    except Stopped:
        run.progress.say(
            f"stopped after step {state.step:,} of {plan.steps:,}, everything is saved; go on with:\n"
            f"  {run.resume_command}"
        )
        raise
    except (VitrailError, MemoryError, RuntimeError) as error:
        save_last_whole_step(run, trainer, state, error)
        raise run.explain(error, trainer.recipe) from None
    return plan


def run_steps(
    run: Run, trainer: Trainer, images: TrainingImages, plan: Plan, state: TrainState, received: Callable[[], int]
) -> Plan:
    """Steps until the plan ends or patience runs out. Returns the plan as it was corrected."""
    timer = StepTimer()
    saved_at, began = time.monotonic(), time.monotonic() - state.seconds
    last = 10**9 if plan.deadline else plan.steps  # where the plan changes on the way, so does its end
    with closing(trainer.loader.batches(state.step, last)) as batches:
        for batch in batches:
            length = plan.at(batch.step)
            loss, stop = share_loss(trainer.gradients(batch, length), received(), run.processes)
            if not math.isfinite(loss):
                raise diverged(f"the loss became {loss}", trainer, state)
            state.updating = True
            trainer.update(batch.step, length)
            state.step = batch.step + 1
            state.seconds = time.monotonic() - began  # waiting for data and evaluations included
            timer.step_done(batch.step < length.full_from)
            report_step(run, trainer, plan, state, loss, timer)
            evaluated = plan.is_evaluated(state.step)
            if evaluated:
                timer.images_evaluated(evaluate(run, trainer, images, state), len(images.validation_indices))
            state.updating = False  # a step is whole with its evaluation, which a resumed run would not make up for
            overdue = time.monotonic() - saved_at > 60 * trainer.recipe.save_minutes
            if stop or evaluated or run.processes.agree(overdue):
                save_state(run, trainer, state)
                saved_at = time.monotonic()
            if evaluated:
                timer.evaluation_done()
                state.seconds = time.monotonic() - began
            if stop:
                raise Stopped(stop)
            if state.step >= plan.steps or (evaluated and is_out_of_patience(trainer.recipe, state)):
                break
            plan = correct_plan(run, trainer.recipe, plan, state, timer)
    return plan


def evaluate(run: Run, trainer: Trainer, images: TrainingImages, state: TrainState) -> float:
    """Measure the model, by its EMA weights if there are some, on the validation images, and keep the best with the
    batch norm statistics that it was measured with; the last where the images are too few to tell the best. Returns the
    seconds that the images took."""
    scores = trainer.scores
    averaged = trainer.ema.applied(trainer.model) if trainer.ema is not None else nullcontext()
    with averaged, recomputed_statistics(trainer):
        began = time.perf_counter()
        try:
            metrics = trainer.measure(images)
        except NotFinite:
            raise diverged("the model's outputs were no longer finite", trainer, state) from None
        seconds = time.perf_counter() - began
        score, loss = metrics[scores.main_metric], metrics.get("loss", math.inf)
        lower = loss < (1 - SAME_LOSS) * state.best_loss
        is_best = state.best is None or score > state.best or (score == state.best and lower)
        if is_best:
            state.best, state.best_loss, state.since_best = score, loss, 0
        else:
            state.since_best += 1
        is_kept = is_best or trainer.keeps_last or not images.can_choose_best
        if is_kept:
            state.best_step = state.step
            save_best(run, trainer, state)
        row = progress_row(trainer, state)
        run.progress.best = scores.show(scores.main_metric, state.best or 0.0)
        run.progress.record({**row, "validation": metrics, "best": is_best, "kept": is_kept})
        text = ", ".join(f"{name} {scores.show(name, value)}" for name, value in metrics.items())
        run.progress.say(f"epoch {row['epoch']:g}: {text}{' (best)' if is_best else ''}")
        trainer.evaluated(run, state.step)
    return seconds


def is_out_of_patience(recipe: Recipe, state: TrainState) -> bool:
    return 0 < recipe.patience <= state.since_best


def correct_plan(run: Run, recipe: Recipe, plan: Plan, state: TrainState, timer: StepTimer) -> Plan:
    """The plan with another end, where it is time to correct it; written down before it is used."""
    if not plan.deadline or not run.processes.agree(plan.correction_is_due(state.step, state.seconds)):
        return plan
    assert plan.timing is not None
    timing = timer.timing(plan.timing)
    own = plan.corrected(state.step, state.seconds, timing, keep_until(recipe), recipe.warmup)
    corrected = run.processes.from_main(lambda: own)
    if run.processes.is_main:
        corrected.write(run.folder.plan)
    return corrected


def keep_until(recipe: Recipe) -> float:
    """The part of the steps that see fewer tokens."""
    return recipe.keep_until if recipe.keep_tokens is not None and recipe.keep_tokens < 1 else 0.0


# ---- state


def save_state(run: Run, trainer: Trainer, state: TrainState) -> None:
    tensors = own_tensors(trainer.model, trainer.optimizers, trainer.ema)
    if are_cut_up(tensors):
        run.checkpoints.save_parts(state.step, tensors, state.facts(), run.processes)
    elif run.processes.is_main:
        run.checkpoints.save(state.step, tensors, state.facts())


def save_best(run: Run, trainer: Trainer, state: TrainState) -> None:
    tensors = collect_tensors(trainer.encoder, (), None)  # every process gives its part
    if run.processes.is_main:
        run.checkpoints.save_best(tensors, state.facts())


def save_last_whole_step(run: Run, trainer: Trainer, state: TrainState, error: Exception) -> None:
    """After an error that leaves good weights behind. Several processes cannot do it: one of them may be gone."""
    expected = isinstance(error, VitrailError) or is_out_of_memory(error)
    good = expected and not state.updating and not isinstance(error, Diverged)
    if good and run.processes.world == 1 and state.step > max(run.checkpoints.steps(), default=0):
        with suppress(VitrailError):  # the disk may be full: the checkpoint before this one is still there
            save_state(run, trainer, state)


# ---- reports


def progress_row(trainer: Trainer, state: TrainState) -> dict[str, Any]:
    sampler = trainer.loader.sampler
    epoch = round(state.step * sampler.batch_size / sampler.count, 3)
    return {"step": state.step, "epoch": epoch, "seconds": round(state.seconds, 3)}


def report_step(run: Run, trainer: Trainer, plan: Plan, state: TrainState, loss: float, timer: StepTimer) -> None:
    steps_per_second = timer.steps_per_second()
    speed = steps_per_second * trainer.loader.sampler.batch_size
    if state.step % max(1, plan.steps // LOG_STEPS) == 0 or state.step == plan.steps:
        assert trainer.recipe.lr is not None
        rate = plan.learning_rate(state.step - 1, trainer.recipe.lr)
        row = progress_row(trainer, state)
        run.progress.record({**row, "loss": loss, "lr": rate, "images_per_second": round(speed, 1)})
    left = plan.loop_seconds - state.seconds if plan.deadline else (plan.steps - state.step) / steps_per_second
    run.progress.step(state.step, plan.steps, loss, speed, left)


def diverged(what: str, trainer: Trainer, state: TrainState) -> Diverged:
    recipe = trainer.recipe
    names = f"train.lr, now {recipe.lr:g}"
    names += f", and train.muon_lr, now {recipe.muon_lr:g}" if len(trainer.optimizers) > 1 else ""
    return Diverged(f"{what} in step {state.step + 1}: start again with a lower {names}")


# ---- processes, time and signals


def share_loss(loss: Tensor, stop: int, processes: Processes) -> tuple[float, int]:
    """The loss over all processes, and the signal that any of them received: all stop after the same step."""
    if processes.world == 1:
        return loss.item(), stop
    values = torch.tensor([loss.item() / processes.world, stop], dtype=torch.float64)
    total, signals = processes.sum(values.to(processes.device)).tolist()
    return total, int(signals > 0) and (stop or signal.SIGTERM)


class StepTimer:
    """What the last steps and evaluations of this session took."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._count = 0
        self._steps: deque[tuple[float, bool]] = deque(maxlen=64)  # seconds, and whether it saw a part of the tokens
        self._evaluations: deque[float] = deque(maxlen=3)
        self._images: deque[float] = deque(maxlen=3)  # seconds of one image in each of these

    def step_done(self, few_tokens: bool) -> None:
        self._count += 1
        self._steps.append((self._since_last(), few_tokens))

    def images_evaluated(self, seconds: float, images: int) -> None:
        """What the images of an evaluation took, which `evaluation_done` ends."""
        self._images.append(seconds / images)

    def evaluation_done(self) -> None:
        """An evaluation, and the state saved after it, do not count as a part of a step."""
        self._evaluations.append(self._since_last())

    def _since_last(self) -> float:
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return seconds

    def steps_per_second(self) -> float:
        return 1 / max(statistics.median(seconds for seconds, _ in self._steps), 1e-9)

    def timing(self, planned: StepTiming) -> StepTiming:
        """What was planned, at the speed of the last steps and evaluations."""
        cold = max(0, COLD_STEPS - (self._count - len(self._steps)))
        warm = list(self._steps)[cold:]
        expected = sum(planned.few_tokens if few else planned.all_tokens for _, few in warm)
        slower = sum(seconds for seconds, _ in warm) / expected if len(warm) >= FEWEST_STEPS else 1.0
        evaluation = statistics.median(self._evaluations) if self._evaluations else None
        image = statistics.median(self._images) if self._images else None
        return planned.scaled(slower, evaluation, image)


@contextmanager
def watched_signals() -> Iterator[Callable[[], int]]:
    """SIGINT and SIGTERM are noted, not obeyed at once: the step is finished and saved. A second SIGINT stops hard.

    Gives a function that returns the last signal, or 0.
    """
    received: list[int] = []

    def note(number: int, frame: Any) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    try:
        handlers = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, where signals cannot be caught
        yield lambda: 0
        return
    try:
        yield lambda: received[-1] if received else 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
