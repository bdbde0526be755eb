"""The training loop: one step after another, measured and saved on the way, stopped politely."""

from __future__ import annotations

import math
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from vitrail.data.feed import Batch, Feed
from vitrail.data.randomness import step_seed
from vitrail.errors import VitrailError
from vitrail.model.vit import ViT
from vitrail.tasks.task import Mix, NotFinite, Task
from vitrail.training.average import Average
from vitrail.training.distributed import Processes
from vitrail.training.plan import Plan
from vitrail.training.progress import Progress
from vitrail.training.settings import Recipe

LOG_STEPS = 200  # rows of metrics.jsonl about training in a run, at least


@dataclass
class Standing:
    """Where a run stands; saved with its weights."""

    step: int = 0  # steps done
    seconds: float = 0.0  # of training, over all sessions of the run
    best: float | None = None
    best_loss: float = math.inf  # decides between equal scores
    best_step: int = 0
    since_best: int = 0  # evaluations


class Diverged(VitrailError):
    """The weights went astray: there is nothing to go on with."""


class Stopped(Exception):
    """The user, or the system, asked to stop; everything is saved."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number


@dataclass(kw_only=True)
class Loop:
    model: ViT
    network: nn.Module  # the model, or what distributes it
    optimizers: Sequence[Optimizer]
    average: Average | None
    task: Task
    feed: Feed
    plan: Plan
    recipe: Recipe
    processes: Processes
    progress: Progress
    precision: Callable[[], Any]  # a context for the forward pass
    measure: Callable[[], dict[str, float]]  # quick metrics on the held-out images
    save: Callable[[Standing], None]
    save_best: Callable[[Standing], None]
    correct: Callable[[Plan], None]  # keep a plan that was set right
    standing: Standing
    updating: bool = False  # between two states: what is in memory now is neither

    def run(self) -> None:
        """From where the run stands to the end of the plan. What is saved on an error is the last whole step."""
        with watched_signals() as asked:
            while self.standing.step < self.plan.steps and not self._is_out_of_patience():
                self._until_the_plan_changes(asked)
            _, stop = self.shared(torch.zeros(()), asked())
            if stop:  # during the last measurement, which is saved
                raise Stopped(stop)

    def _until_the_plan_changes(self, asked: Callable[[], int]) -> None:
        pace = Speed()
        saved = time.monotonic()
        begun = time.monotonic() - self.standing.seconds
        log_every = max(1, self.plan.steps // LOG_STEPS)
        with closing(self.feed.batches(self.standing.step, self.plan.steps)) as batches:
            for batch in batches:
                loss, stop = self.shared(self.step(batch), asked())
                if not math.isfinite(loss):
                    raise self._diverged(f"the loss became {loss}")
                self.updating = True
                self.update(batch.step)
                self.updating = False
                self.standing.step = done = batch.step + 1
                self.standing.seconds = time.monotonic() - begun  # waiting for data and measuring included
                pace.add(time.perf_counter())
                self._tell(done, loss, pace, done % log_every == 0 or done == self.plan.steps)
                measured = self.plan.is_evaluated(done)
                if measured:
                    self._evaluate()
                due = time.monotonic() - saved > 60 * self.recipe.save_minutes
                if stop or measured or self.together(due):
                    self.save(self.standing)
                    saved = time.monotonic()
                if stop:
                    raise Stopped(stop)
                if (measured and self._is_out_of_patience()) or self._corrected(pace):
                    return

    def step(self, batch: Batch) -> Tensor:
        """Gradients of one batch, in `accumulate` parts; the loss as a tensor."""
        recipe, rank = self.recipe, self.processes.rank
        torch.manual_seed(step_seed(recipe.seed, batch.step, rank))
        keep = self.kept_tokens(batch.step)
        parts = list(split(batch, recipe.accumulate))
        total = torch.zeros((), device=self.processes.device)
        for number, (images, targets, mix) in enumerate(parts):
            share = len(targets) / len(batch.targets)
            targets = targets.to(self.processes.device)
            hints = self.task.hints(targets, step_seed(recipe.seed, batch.step, rank + number * self.processes.world))
            wait = number < len(parts) - 1 and isinstance(self.network, DistributedDataParallel)
            with self.network.no_sync() if wait else nullcontext():  # type: ignore[operator]
                with self.precision():
                    outputs = self.network(images.to(self.processes.device), keep=keep, hints=hints)
                loss = self.task.loss(outputs, targets, mix=mix, smoothing=recipe.smoothing) * share
                loss.backward()
            total += loss.detach()
        return total

    def shared(self, loss: Tensor, stop: int) -> tuple[float, int]:
        """The loss over all processes, and the signal that any of them got: all stop after the same step."""
        if self.processes.world == 1:
            return loss.item(), stop
        both = torch.tensor([loss.item() / self.processes.world, stop], dtype=torch.float64)
        total, signals = self.processes.sum(both.to(self.processes.device)).tolist()
        return total, int(signals > 0) and (stop or signal.SIGTERM)

    def together(self, due: bool) -> bool:
        """Whether any process wants to save: it takes all of them when the model is cut up among them."""
        return due if self.processes.world == 1 else bool(self.processes.from_main(lambda: due))

    def kept_tokens(self, step: int) -> Tensor | None:
        """Which patches this step sees, the same for the whole batch and on every process; None: all."""
        patches = self.model.config.patches
        count = max(1, round(self.recipe.keep_tokens * patches))
        if step >= self.plan.at(step).full_from or count >= patches:
            return None
        chosen = np.random.default_rng(step_seed(self.recipe.seed, step)).permutation(patches)[:count]
        return torch.from_numpy(np.sort(chosen)).to(self.processes.device)

    def update(self, step: int) -> None:
        if self.recipe.clip > 0:
            free = [p for p in self.model.parameters() if p.grad is not None]
            nn.utils.clip_grad_norm_(free, self.recipe.clip)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.plan.learning_rate(step, group["peak"])
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.model, step)

    def _corrected(self, pace: Speed) -> bool:
        """Whether the plan was set right: then it goes on from here with another end."""
        done, seconds, recipe = self.standing.step, self.standing.seconds, self.recipe
        if not self.plan.seconds or not self.together(self.plan.correction_is_due(done, seconds)):
            return False
        keep_until = recipe.keep_until if recipe.keep_tokens < 1 else 0.0
        mine = self.plan.corrected(done, seconds, 1 / pace.steps_per_second(), keep_until, recipe.warmup)
        plan = self.processes.from_main(lambda: mine)
        assert isinstance(plan, Plan)
        self.plan = plan
        self.correct(plan)
        return True

    def _is_out_of_patience(self) -> bool:
        return 0 < self.recipe.patience <= self.standing.since_best

    def _evaluate(self) -> None:
        """Measure, and keep the best."""
        standing = self.standing
        with self.average.applied(self.model) if self.average is not None else nullcontext():
            try:
                found = self.measure()
            except NotFinite:
                raise self._diverged("the model's outputs were no longer finite") from None
            score, loss = found[self.task.main_metric], found["loss"]
            better = standing.best is None or (score, -loss) > (standing.best, -standing.best_loss)
            if better:
                standing.best, standing.best_loss = score, loss
                standing.best_step, standing.since_best = standing.step, 0
                self.save_best(standing)
            else:
                standing.since_best += 1
        self.progress.best = self.task.show(self.task.main_metric, standing.best or 0.0)
        self.progress.record({**self._row(), "validation": found, "best": better})
        shown = ", ".join(f"{name} {self.task.show(name, value)}" for name, value in found.items())
        self.progress.say(f"epoch {self._row()['epoch']:g}: {shown}{' (best)' if better else ''}")

    def _row(self) -> dict[str, Any]:
        epoch = round(self.standing.step * self.feed.order.batch / self.feed.order.count, 3)
        return {"step": self.standing.step, "epoch": epoch, "seconds": round(self.standing.seconds, 3)}

    def _tell(self, done: int, loss: float, pace: Speed, log: bool) -> None:
        speed = pace.steps_per_second() * self.feed.order.batch
        if log:
            rate = self.plan.learning_rate(done - 1, self.recipe.lr)
            self.progress.record({**self._row(), "loss": loss, "lr": rate, "images_per_second": round(speed, 1)})
        left = (self.plan.steps - done) / max(pace.steps_per_second(), 1e-9)
        self.progress.step(done, self.plan.steps, loss, speed, left)

    def _diverged(self, what: str) -> Diverged:
        names = "train.lr, now " + f"{self.recipe.lr:g}"
        names += f", and train.muon_lr, now {self.recipe.muon_lr:g}" if len(self.optimizers) > 1 else ""
        return Diverged(f"{what} in step {self.standing.step + 1}: start again with a lower {names}")


def split(batch: Batch, parts: int) -> Iterator[tuple[Tensor, Tensor, Mix | None]]:
    """A batch in parts of an even size, so that mixed neighbours stay together."""
    count = len(batch.targets)
    size = -(-count // parts)
    size += size % 2
    for start in range(0, count, size):
        here = slice(start, start + size)
        mix = None
        if batch.mix is not None:
            mix = Mix(batch.mix.partner[here] - start, batch.mix.ratio[here])
        yield batch.images[here], batch.targets[here], mix


class Speed:
    """Steps a second, over the last ones: the first steps are slow and would spoil the time left."""

    def __init__(self) -> None:
        self.times: list[float] = [time.perf_counter()]

    def add(self, now: float) -> None:
        self.times = [*self.times[-32:], now]

    def steps_per_second(self) -> float:
        """By the usual step: a measurement in between does not count."""
        return 1 / max(statistics.median(b - a for a, b in pairwise(self.times)), 1e-9)


@contextmanager
def watched_signals() -> Iterator[Callable[[], int]]:
    """SIGINT and SIGTERM are noted, not obeyed at once: the step is finished and saved. A second SIGINT stops hard."""
    asked: list[int] = []

    def note(number: int, frame: Any) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, where signals cannot be caught
        yield lambda: 0
        return
    try:
        yield lambda: asked[-1] if asked else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
