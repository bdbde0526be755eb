"""The measurement behind `auto`: engines are timed side by side, then the fastest is compared with torch in float32.

It runs in a process of its own, because a runtime may crash on a network: the crash is then that engine's fault and
nobody else's.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from vitrail.inference.auto.candidates import REFERENCE, Candidate
from vitrail.inference.auto.choice_record import Choice
from vitrail.inference.auto.compare import compare, decoded_outputs
from vitrail.inference.auto.crash_record import crashes_of, remember_crash
from vitrail.inference.auto.timing import median_seconds
from vitrail.inference.backends.backend import Backend, load_backend
from vitrail.inference.backends.torch_backend import TorchBackend
from vitrail.inference.calibration.calibration_file import LEAST
from vitrail.inference.calibration.calibration_images import CalibrationImages
from vitrail.inference.child.child_main import report_step
from vitrail.inference.child.run_in_child import ChildCrash, can_be_sent, run_in_child
from vitrail.inference.engine import Engine
from vitrail.terminal import print_error
from vitrail.weights.checkpoint import Checkpoint

TIMED_BATCH = 8  # images at most: enough to be fast, few enough for several rounds in a second or two
GAIN = 1.05  # below that a difference is noise, and the simpler engine is taken
CHECK_SECONDS = 15.0  # of torch in float32: as many of the pictures are compared as it can do


@dataclass(frozen=True)
class Measurement:
    """What the process needs to know."""

    checkpoint: Checkpoint
    network: Checkpoint  # what backends run: the checkpoint, or the same with a network that merges tokens
    batch_size: int
    candidates: Sequence[Candidate]
    images: CalibrationImages
    threads: int


def measure_apart(
    engine: Engine, found: Sequence[Candidate], images: CalibrationImages, fingerprint: str
) -> Choice | None:
    """The choice among these candidates, measured in another process; None: that ended without a result.

    A candidate that crashes is remembered for this network (`crash_record.py`) and left out, then and from then on.
    """
    while True:
        crashes = crashes_of(fingerprint)
        left_out = {str(one): crashes[str(one)] for one in found if str(one) in crashes}
        usable = [one for one in found if str(one) not in left_out]
        measurement = Measurement(
            engine.checkpoint, engine.network, engine.batch_size, usable, images, torch.get_num_threads()
        )
        try:
            run = run_in_child if can_be_sent(engine.checkpoint.model) else _run_here
            choice = run(measure, measurement)
        except ChildCrash as crash:
            candidate = next((one for one in usable if str(one) == crash.step), None)
            if candidate is None:
                print_error(f"engine auto: the measurement of faster engines failed: {crash.how}")
                return None
            print_error(f"engine auto: {candidate} is left out, because it crashes with this model ({crash.how})")
            remember_crash(fingerprint, candidate, crash.how)
            if str(candidate) not in crashes_of(fingerprint):  # nothing can be kept: not again and again
                return None
            continue
        return replace(choice, refused={**choice.refused, **left_out})


def _run_here(function: Callable[[Measurement], Choice], measurement: Measurement) -> Choice:
    """For a network that has modules of the caller's script."""
    return function(measurement)


def measure(measurement: Measurement) -> Choice:
    """The choice among the candidates; each is run once before any is timed."""
    torch.set_num_threads(measurement.threads)
    checkpoint = measurement.checkpoint
    engine = Engine(checkpoint, TorchBackend(checkpoint.model), batch_size=measurement.batch_size)
    engine.network = measurement.network
    timed = timed_images(engine, measurement.images)
    backends: dict[Candidate, Backend] = {REFERENCE: reference_backend(engine)}
    for candidate in measurement.candidates[1:]:
        report_step(str(candidate))
        try:
            backend = load_backend(candidate.engine, engine.network, device="cpu", precision=candidate.precision)
            backend(timed)
            backends[candidate] = backend
        except Exception as error:  # ONNX Runtime's and protobuf's are of no common kind
            reason = str(error).strip().partition("\n")[0]
            print_error(f"engine auto: {candidate} is left out, for it cannot run this model: {reason}")
    return choose(engine, backends, measurement.images)


def reference_backend(engine: Engine) -> TorchBackend:
    """Torch, in float32 also where the file's weights are of another type."""
    network = engine.network.model
    if next(network.parameters()).dtype != torch.float32:
        network = copy.deepcopy(network).float()
    return TorchBackend(network, "float32")


def timed_batch(engine: Engine) -> int:
    """How many images engines are timed with."""
    return min(engine.batch_size, TIMED_BATCH)


def timed_images(engine: Engine, images: CalibrationImages) -> Tensor:
    """So many of the pictures, (B, C, h, w), repeated where there are fewer."""
    batch = timed_batch(engine)
    pixels = [image.pixels for image in images.images[:batch]]
    return engine.processor.transform((pixels * batch)[:batch])


def choose(
    engine: Engine, backends: Mapping[Candidate, Backend], images: CalibrationImages, gain: float = GAIN
) -> Choice:
    """The fastest of these backends, the reference among them, that keeps the promise on these pictures.

    gain: what is not that many times as fast as the reference is not compared."""
    batch, timed = timed_batch(engine), timed_images(engine, images)
    names = {str(candidate): candidate for candidate in backends}
    report_step("")  # their turns are too short to be told apart
    seconds = median_seconds({name: partial(backends[one], timed) for name, one in names.items()})
    slow = seconds[str(REFERENCE)]
    compared = images.images[: max(LEAST, int(CHECK_SECONDS * batch / slow))]
    expected: list[Tensor] | None = None
    chosen, agreement, refused = REFERENCE, None, {}
    for name in sorted(seconds, key=lambda name: seconds[name]):
        if names[name] == REFERENCE:
            continue
        if slow / seconds[name] < gain:
            break
        if expected is None:
            expected = decoded_outputs(engine, backends[REFERENCE], compared)
        report_step(name)
        found = compare(engine, expected, decoded_outputs(engine, backends[names[name]], compared))
        if found.keeps_promise:
            chosen, agreement = names[name], found
            break
        refused[name] = f"{slow / seconds[name]:.2f} times as fast, but {found.in_words()}"
    return Choice(
        engine=chosen.engine,
        precision=chosen.precision,
        speedup=slow / seconds[str(chosen)],
        agreement=agreement,
        pictures=images.source,
        compared=len(compared),
        size=engine.checkpoint.preprocessing.size,
        batch=batch,
        milliseconds={name: 1000 * value for name, value in seconds.items()},
        date=datetime.date.today().isoformat(),
        refused=refused,
    )
