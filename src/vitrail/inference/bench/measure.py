"""The measurement: a process an engine, and rounds in which each has its turn, so that a busy moment hits all."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.inference.auto.candidates import NEEDS, Candidate
from vitrail.inference.auto.compare import compare
from vitrail.inference.backends.openvino_run import MOST_FIXED
from vitrail.inference.backends.torch_backend import TorchBackend
from vitrail.inference.bench.bench_process import WorkerProcess
from vitrail.inference.bench.contenders import choose_contenders
from vitrail.inference.bench.matmul_peak import MatmulPeak
from vitrail.inference.calibration.check_images import check_images
from vitrail.inference.engine import Engine
from vitrail.inference.image_processor import ModelInput
from vitrail.model.cost import merged_multiply_adds, multiply_adds
from vitrail.model.efficient.token_merging import merges_in_blocks
from vitrail.progress import ProgressBar

PICTURES = 64  # at most, that answers are compared on
NOISE = 16  # pictures of noise, where there are no others


@dataclass
class Measured:
    """One engine in one precision at one batch size."""

    candidate: Candidate
    batch: int
    agreement: float
    peak_bytes: int | None
    rounds: list[list[float]] = field(default_factory=list)  # the seconds of each run, round by round

    def row(self, operations: float, peak: float) -> dict[str, Any]:
        """As JSON has it. operations: of one image; peak: operations a second that matrix products reach here."""
        rates = sorted(self.batch * len(times) / sum(times) for times in self.rounds)
        rate, runs = statistics.median(rates), [1000 * seconds for times in self.rounds for seconds in times]
        return {
            "engine": self.candidate.engine,
            "precision": self.candidate.precision,
            "batch": self.batch,
            "images_per_second": rate,
            "p50_ms": float(np.percentile(runs, 50)),
            "p95_ms": float(np.percentile(runs, 95)),
            "peak_mb": None if self.peak_bytes is None else self.peak_bytes / 1e6,
            "agreement": self.agreement,
            "peak_share": operations * rate / peak,
            "spread": (rates[-1] - rates[0]) / (2 * rate),  # half of the way from the slowest round to the fastest
            "rounds": len(self.rounds),
        }


@dataclass
class BenchResult:
    """What was measured; less than was asked for after Ctrl-C."""

    rows: list[dict[str, Any]]
    notes: list[str]  # on what was left out, a sentence each
    pictures: str  # that answers were compared on, in words
    merged: int  # tokens merged for each block
    peak: float  # operations a second of matrix products
    peak_type: str
    interrupted: bool = False


@dataclass(frozen=True)
class BenchPlan:
    """What to measure, and how long."""

    engines: Sequence[str] | None = None
    batches: Sequence[int] = (1, 16)
    rounds: int = 7
    seconds: float = 0.5  # of each turn
    calibration: str | Path | None = None
    merge_tokens: int | float | str = 0


class Bench:
    """A measurement of one model. engine: the model in torch; model: where the processes load it from."""

    def __init__(self, engine: Engine, model: str, plan: BenchPlan) -> None:
        self.candidates, self.notes = choose_contenders(plan.engines)
        if not self.candidates:
            raise VitrailError("; ".join(self.notes))
        self.engine, self.model, self.plan = engine, model, plan
        self.merged = _merged_tokens(engine, plan)
        self.images, self.pictures = _pictures(engine, plan)
        self.peak = MatmulPeak()
        self._measured: list[Measured] = []

    def run(self) -> BenchResult:
        """All rounds, or those until Ctrl-C."""
        interrupted = False
        with contextlib.ExitStack() as stack:
            try:
                self._run_rounds(list(self._start(stack)))
            except KeyboardInterrupt:
                interrupted = True
        rows = self._rows()
        if interrupted and not rows:
            raise KeyboardInterrupt
        if not rows:
            raise VitrailError("nothing could be measured: " + "; ".join(self.notes))
        return BenchResult(rows, self.notes, self.pictures, self.merged, *self.peak.operations, interrupted)

    def _run_rounds(self, turns: Sequence[tuple[WorkerProcess, Measured]]) -> None:
        with ProgressBar("measuring", self.plan.rounds * len(turns)) as bar:
            gone: list[WorkerProcess] = []
            for _ in range(self.plan.rounds):
                self.peak.measure()
                for worker, entry in turns:
                    if worker not in gone:
                        try:
                            seconds = worker.ask("run", batch=entry.batch, seconds=self.plan.seconds)["seconds"]
                            entry.rounds.append(seconds)
                        except VitrailError as error:  # the others go on
                            gone.append(worker)
                            self.notes.append(f"{entry.candidate} ended in batches of {entry.batch}: {error}")
                    bar.step()

    def _rows(self) -> list[dict[str, Any]]:
        done = [entry for entry in self._measured if entry.rounds]
        if not done:
            return []
        config = self.engine.checkpoint.config
        each = multiply_adds(config)
        if self.merged:
            each = merged_multiply_adds(config, merges_in_blocks(config, self.merged))
        return [entry.row(2 * each, self.peak.operations[0]) for entry in done]

    def _start(self, stack: contextlib.ExitStack) -> Iterator[tuple[WorkerProcess, Measured]]:
        """Each engine's processes, once for every batch size; what cannot run is noted."""
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pixels = self.engine.processor.transform([image.pixels for image in self.images], torch.device("cpu"))
        np.save(folder / "pictures.npy", pixels.numpy())
        expected = self._decoded(TorchBackend(self.engine.checkpoint.model, "float32")(pixels))
        with ProgressBar("loading", len(self.candidates)) as bar:
            for candidate in self.candidates:
                try:
                    if candidate.engine in NEEDS:  # traced and kept by another, so that its memory is not in this one
                        self._load(candidate, folder).close()
                    for batches in self._batches():
                        worker = self._load(candidate, folder)
                        stack.callback(worker.close)
                        worker.ask("outputs", path=str(folder / "outputs.npy"), batch=batches[0])
                        given = self._decoded(torch.from_numpy(np.load(folder / "outputs.npy")))
                        agreement = compare(self.engine, expected, given).share
                        for batch in batches:
                            peak = worker.ask("warm_up", batch=batch)["peak_bytes"]
                            self._measured.append(Measured(candidate, batch, agreement, peak))
                            yield worker, self._measured[-1]
                except VitrailError as error:
                    self.notes.append(f"{candidate} is left out: {error}")
                bar.step()

    def _batches(self) -> list[list[int]]:
        """The batch sizes of each process: as many as OpenVINO keeps a graph of their own for."""
        sizes = sorted(set(self.plan.batches))
        return [sizes[start : start + MOST_FIXED] for start in range(0, len(sizes), MOST_FIXED)]

    def _load(self, candidate: Candidate, folder: Path) -> WorkerProcess:
        calibration = self.plan.calibration
        return WorkerProcess(
            model=self.model,
            pictures=str(folder / "pictures.npy"),
            engine=candidate.engine,
            precision=candidate.precision,
            calibration=None if calibration is None else str(calibration),
            merge_tokens=self.merged,
        )

    def _decoded(self, outputs: Tensor) -> list[Tensor]:
        letterboxes = [image.letterbox.of_visible for image in self.images if image.letterbox is not None]
        return list(self.engine.decode(outputs, letterboxes))


def _merged_tokens(engine: Engine, plan: BenchPlan) -> int:
    """How many tokens are merged; a share is measured once, here, for all engines."""
    if plan.merge_tokens == 0:
        return 0
    from vitrail.inference.auto.choose_merging import merge_tokens

    return merge_tokens(engine, plan.merge_tokens, plan.calibration)[1].r


def _pictures(engine: Engine, plan: BenchPlan) -> tuple[list[ModelInput], str]:
    """Pictures to compare answers on, and what they are in words: the user's, training's, or noise."""
    found = check_images(engine.checkpoint, engine.path, plan.calibration)
    if found is not None:
        step = -(-len(found.images) // PICTURES)
        return list(found.images[::step]), found.source
    (height, width), channels = engine.checkpoint.preprocessing.size, engine.checkpoint.config.channels
    generator = np.random.default_rng(0)
    noise = [generator.integers(0, 256, (height, width, channels), dtype=np.uint8) for _ in range(NOISE)]
    return [engine.read(picture) for picture in noise], f"{NOISE} pictures of noise: --calibration names real ones"
