"""Which engines could run a model here."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

from vitrail.errors import VitrailError
from vitrail.terminal import print_error

FAST = "pip install 'vitrail[fast]'"
NEEDS = {"openvino": ("openvino",), "onnxruntime": ("onnxruntime", "onnx", "onnxscript")}


class Candidate(NamedTuple):
    """An engine, and what it computes in."""

    engine: str
    precision: str

    def __str__(self) -> str:
        return f"{self.engine} in {self.precision}"


REFERENCE = Candidate("torch", "float32")  # whose answers are the right ones


def is_installed(engine: str) -> bool:
    """Whether the packages of an engine are there."""
    return all(importlib.util.find_spec(package) is not None for package in NEEDS.get(engine, ()))


def candidates(precision: str, has_int8: bool = False) -> list[Candidate]:
    """The engines to choose from, the reference first. precision: float32 or bfloat16 leaves those of it; "auto": all.

    has_int8: somebody has asked for int8 before, and it is there; searching it takes minutes. `compiled` is none of
    them either: S/16 compiles for 14 s, and for 11 s more when another batch size comes (1 core of an AMD EPYC), the
    other engines are measured in 2 s. One that is there and cannot be imported is left out, and a line says so.
    """
    from vitrail.model import precision as hardware  # here, for the record of a choice is read without torch

    has_bf16 = hardware.computes_bf16("cpu")
    found = [Candidate("torch", "bfloat16")] if has_bf16 or precision == "bfloat16" else []
    for engine in NEEDS:
        if is_installed(engine):
            try:
                found += [Candidate(engine, name) for name in precisions_of(engine, has_bf16, has_int8)]
            except VitrailError as error:
                print_error(f"engine auto: {engine} is left out: {error}")
    return [REFERENCE, *(one for one in found if precision in ("auto", one.precision))]


def precisions_of(engine: str, has_bf16: bool, has_int8: bool) -> list[str]:
    """What an engine computes in here; VitrailError where it has to be asked and cannot be imported."""
    if engine != "openvino":
        return ["float32"]
    names = ["float32"]
    if has_bf16:
        from vitrail.inference.backends.openvino_backend import OpenVinoBackend

        names.append(OpenVinoBackend.choose_precision("auto"))
    return list(dict.fromkeys(names + ["int8"] * has_int8))
