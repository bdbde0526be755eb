"""What is measured: every engine in every precision that it has here, or those that are asked for."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.errors import VitrailError
from vitrail.inference.auto.candidates import FAST, Candidate, is_installed
from vitrail.inference.backends.backend import BACKENDS
from vitrail.model import precision as hardware
from vitrail.option_types import PRECISIONS

PRECISIONS_OF = {  # short names, as --precision takes them
    "torch": ("fp32", "bf16"),
    "compiled": ("fp32", "bf16"),
    "openvino": ("fp32", "bf16", "int8"),
    "onnxruntime": ("fp32", "int8"),
}


def choose_contenders(asked: Sequence[str] | None) -> tuple[list[Candidate], list[str]]:
    """Engines and precisions, and a sentence on each that is left out.

    asked: such as "openvino", in all its precisions, or "openvino:bf16"; None: all. What was asked for by name and
    precision is never left out here: its process will say why it cannot run.
    """
    found: list[Candidate] = []
    notes = []
    for name in asked or list(BACKENDS):
        engine, colon, precision = name.partition(":")
        if engine not in BACKENDS:
            raise VitrailError(f"there is no engine {engine!r}; choose some of {', '.join(BACKENDS)}")
        if colon and precision not in (*PRECISIONS, "int8"):
            raise VitrailError(f"there is no precision {precision!r}; choose one of fp32, bf16, int8 after {engine}:")
        if not is_installed(engine):
            notes.append(f"{engine} is not installed: {FAST}")
            continue
        found += [Candidate(engine, one) for one in ([precision] if colon else _precisions_here(engine))]
    return list(dict.fromkeys(found)), list(dict.fromkeys(notes))


def _precisions_here(engine: str) -> list[str]:
    has_bf16 = hardware.computes_bf16("cpu")
    return [name for name in PRECISIONS_OF[engine] if name != "bf16" or has_bf16]
