"""The engine that `auto` means: the fastest here whose answers are torch's, by a measurement of a second or two.

Candidates are timed side by side on real pictures. Then the fastest is compared with torch in float32, picture by
picture; if fewer than 99.9 % of its answers are the same, the next one is. The choice is kept (`choice_record.py`).
"""

from __future__ import annotations

from typing import Any

from vitrail.errors import VitrailError
from vitrail.inference.auto.candidates import FAST, NEEDS, Candidate, candidates, is_installed
from vitrail.inference.auto.choice_record import Choice, choice_key, read_choice, write_choice
from vitrail.inference.auto.machine import machine
from vitrail.inference.auto.measure_engines import measure_apart, timed_batch
from vitrail.inference.backends.backend import Backend, Pictures, load_backend
from vitrail.inference.backends.graph_cache import fingerprint
from vitrail.inference.backends.int8_record import int8_records
from vitrail.inference.calibration.calibration_file import LEAST
from vitrail.inference.calibration.calibration_images import CalibrationImages
from vitrail.inference.engine import Engine
from vitrail.option_types import precision as named_precision
from vitrail.tasks.registry import EMBED
from vitrail.terminal import print_error


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
    if not any(is_installed(name) for name in NEEDS):
        print_error(f"engine auto: torch; {FAST} would bring OpenVINO and ONNX Runtime, which are often faster")
        return load_backend("torch", engine.network, device="cpu", precision=precision)
    choice = _choice(engine, precision, pictures)
    if choice is None:
        return load_backend("torch", engine.network, device="cpu", precision=precision)
    wanted = choice.precision if precision == "auto" else precision  # torch in float32 stands for torch in general
    try:
        return load_backend(choice.engine, engine.network, device="cpu", precision=wanted)
    except VitrailError as error:  # the process that measured could, or it could when it was measured
        if choice.engine == "torch":
            raise
        print_error(f"engine auto: torch, because {choice.engine} cannot be loaded: {error}")
        engine.choice = None
        return load_backend("torch", engine.network, device="cpu", precision=precision)


def _choice(engine: Engine, precision: str, pictures: Pictures) -> Choice | None:
    """As it was made before, or made now; None: torch, because there is nothing to choose by. A line says it."""
    model = fingerprint(engine.network)
    has_int8 = any(record["format"] == "openvino" for record in int8_records(model))
    found = candidates(precision, has_int8)
    key = choice_key(model, circumstances(engine) | {"candidates": [str(one) for one in found]})
    choice = read_choice(key)
    images = more_pictures(choice, pictures)
    if images is not None:
        choice = measure_apart(engine, found, images, model)
        if choice is not None:
            write_choice(key, choice)
            write_choice(named_key(engine, model, choice.candidate), choice)  # for workers, to whom it is named
            engine.remark(f"engine auto: {choice.in_words()} ({images.source})", later=_later(choice))
    elif choice is not None:
        engine.remark(_later(choice))
    else:
        print_error(
            "engine auto: torch, because there are no pictures to check a faster engine on: give a folder of "
            "pictures like those that the model will see (--calibration)"
        )
    engine.choice = choice
    return choice


def _later(choice: Choice) -> str:
    return f"engine auto: {choice.in_words()} (measured here on {choice.date})"


def more_pictures(choice: Choice | None, pictures: Pictures) -> CalibrationImages | None:
    """Pictures to choose on; None: an earlier choice stands on enough of them, or there are no more than it had."""
    if choice is not None and choice.compared >= LEAST:
        return None
    images = pictures()
    before = 0 if choice is None else choice.compared
    return images if images is not None and len(images.images) > before else None


def named_key(engine: Engine, model: str, named: Candidate) -> str:
    """The name of the record of an engine that somebody names. model: the fingerprint of the engine's network."""
    return choice_key(model, circumstances(engine) | {"named": list(named)})


def circumstances(engine: Engine) -> dict[str, Any]:
    """What a choice depends on besides the network."""
    return {
        "machine": machine(),
        "size": engine.checkpoint.preprocessing.size,
        "batch": timed_batch(engine),
        "preprocessing": engine.checkpoint.preprocessing.to_dict(),
        "task": engine.checkpoint.task,
        "decoding": None if engine.checkpoint.task == EMBED else engine.task.state_dict(),
    }
