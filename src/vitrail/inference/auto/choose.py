"""The engine that `auto` means: the fastest here whose answers are torch's, by a measurement of a second or two.

Candidates are timed side by side on real pictures. Then the fastest is compared with torch in float32, picture by
picture; if fewer than 99.9 % of its answers are the same, the next one is. The choice is kept (`choice_record.py`).
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.inference.auto.candidates import FAST, NEEDS, REFERENCE, Candidate, candidates, is_installed
from vitrail.inference.auto.choice_record import Choice, choice_key, read_choice, write_choice
from vitrail.inference.auto.compare import compare, decoded_outputs
from vitrail.inference.auto.machine import machine
from vitrail.inference.auto.timing import median_seconds
from vitrail.inference.backends.backend import Backend, Pictures, load_backend
from vitrail.inference.backends.graph_cache import fingerprint
from vitrail.inference.backends.int8_record import int8_records
from vitrail.inference.backends.torch_backend import TorchBackend
from vitrail.inference.calibration.calibration_images import CalibrationImages
from vitrail.inference.engine import Engine
from vitrail.option_types import precision as named_precision
from vitrail.tasks.registry import EMBED
from vitrail.terminal import print_error

TIMED_BATCH = 8  # images at most: enough to be fast, few enough for several rounds in a second or two
GAIN = 1.05  # below that a difference is noise, and the simpler engine is taken
CHECK_SECONDS = 15.0  # of torch in float32: as many of the pictures are compared as it can do
LEAST_PICTURES = 32  # are compared in any case, if there are so many


def choose_backend(engine: Engine, precision: str, pictures: Pictures) -> Backend:
    """The backend that `auto` means for the model of a torch engine; a line on standard error says which, and why.

    precision: of the candidates; "auto": any. pictures: called only where nothing is remembered.
    """
    precision = named_precision(precision)
    if precision == "int8":  # whoever asks for it has it where it runs fastest
        return load_backend("openvino", engine.network, device="cpu", precision=precision, pictures=pictures)
    if engine.backend.device.type != "cpu":
        print_error(f"engine auto: torch on {engine.backend.device.type}; the other engines run on a CPU")
        return load_backend("torch", engine.network, device=str(engine.backend.device), precision=precision)
    model = fingerprint(engine.network)
    has_int8 = any(record["format"] == "openvino" for record in int8_records(model))
    found = candidates(precision, has_int8)
    if not any(is_installed(name) for name in NEEDS):
        print_error(f"engine auto: torch; {FAST} would bring OpenVINO and ONNX Runtime, which are often faster")
        return load_backend("torch", engine.network, device="cpu", precision=precision)
    key = choice_key(model, circumstances(engine) | {"precision": precision, "int8": has_int8})
    choice = read_choice(key)
    if choice is not None and choice.candidate not in found:
        choice = None
    images = more_pictures(choice, pictures)
    if images is not None:
        backends = _load_all(engine, found)
        choice = choose(engine, backends, images)
        write_choice(key, choice)
        print_error(f"engine auto: {choice.in_words()} ({images.source})")
        return backends[choice.candidate]
    if choice is None:
        print_error(
            "engine auto: torch, because there are no pictures to check a faster engine on: give a folder of "
            "pictures like those that the model will see (--calibration)"
        )
        return load_backend("torch", engine.network, device="cpu", precision=precision)
    print_error(f"engine auto: {choice.in_words()} (measured here on {choice.date})")
    return load_backend(choice.engine, engine.network, device="cpu", precision=choice.precision)


def more_pictures(choice: Choice | None, pictures: Pictures) -> CalibrationImages | None:
    """Pictures to choose on; None: an earlier choice stands on enough of them, or there are no more than it had."""
    if choice is not None and choice.compared >= LEAST_PICTURES:
        return None
    images = pictures()
    before = 0 if choice is None else choice.compared
    return images if images is not None and len(images.images) > before else None


def circumstances(engine: Engine) -> dict[str, Any]:
    """What a choice depends on besides the network."""
    return {
        "machine": machine(),
        "size": engine.checkpoint.preprocessing.size,
        "batch": _timed_batch(engine),
        "preprocessing": engine.checkpoint.preprocessing.to_dict(),
        "task": engine.checkpoint.task,
        "decoding": None if engine.checkpoint.task == EMBED else engine.task.state_dict(),
    }


def _timed_batch(engine: Engine) -> int:
    return min(engine.batch_size, TIMED_BATCH)


def _load_all(engine: Engine, found: Sequence[Candidate]) -> dict[Candidate, Backend]:
    """Those of the candidates that can be loaded; what cannot is said."""
    backends: dict[Candidate, Backend] = {REFERENCE: reference_backend(engine)}
    for candidate in found[1:]:
        try:
            backends[candidate] = load_backend(
                candidate.engine, engine.network, device="cpu", precision=candidate.precision
            )
        except (VitrailError, RuntimeError, ImportError) as error:  # whatever a runtime says to a network
            reason = str(error).strip().partition("\n")[0]
            print_error(f"engine auto: {candidate} is left out, for it cannot run this model: {reason}")
    return backends


def reference_backend(engine: Engine) -> TorchBackend:
    """Torch, in float32 also where the file's weights are of another type."""
    network = engine.network.model
    if next(network.parameters()).dtype != torch.float32:
        network = copy.deepcopy(network).float()
    return TorchBackend(network, "float32")


def choose(engine: Engine, backends: Mapping[Candidate, Backend], images: CalibrationImages) -> Choice:
    """The fastest of these backends, the reference among them, that keeps the promise on these pictures."""
    batch = _timed_batch(engine)
    pixels = [image.pixels for image in images.images[:batch]]
    timed = engine.processor.transform((pixels * batch)[:batch])
    names = {str(candidate): candidate for candidate in backends}
    seconds = median_seconds({name: partial(backends[one], timed) for name, one in names.items()})
    slow = seconds[str(REFERENCE)]
    compared = images.images[: max(LEAST_PICTURES, int(CHECK_SECONDS * batch / slow))]
    expected: list[Tensor] | None = None
    chosen, agreement, refused = REFERENCE, None, {}
    for name in sorted(seconds, key=lambda name: seconds[name]):
        if names[name] == REFERENCE or slow / seconds[name] < GAIN:
            break
        if expected is None:
            expected = decoded_outputs(engine, backends[REFERENCE], compared)
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
