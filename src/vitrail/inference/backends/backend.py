"""The contract of a backend, and the list of backends.

A backend turns a checkpoint into "images in, outputs out". To add one, write one file here with a class like
`TorchBackend`, and add its line to `BACKENDS`. Reading, normalising, sliding windows and decoding are the engine's.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

from vitrail.errors import VitrailError
from vitrail.option_types import precision as named_precision

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vitrail.inference.calibration.calibration_images import CalibrationImages
    from vitrail.model.encoder import Capture
    from vitrail.weights.checkpoint import Checkpoint


class Pictures(Protocol):
    """Pictures to check an engine on, or to calibrate int8 on; they are read only where they are needed."""

    @property
    def folder(self) -> str | None:
        """Its absolute path, if somebody named one."""
        ...

    def __call__(self) -> CalibrationImages | None:
        """None: there are none."""
        ...


# What a forward pass can be asked to keep besides its outputs, and what people call it.
BLOCKS = "blocks"  # what goes into a block, for its attention maps
POOLED = "pooled"  # the vector that the head reads, (B, D)
QUERY_ATTENTION = "query attention"  # what a box decoder's queries attend to
CAPTURES = {
    BLOCKS: "attention maps",
    POOLED: "embeddings",
    QUERY_ATTENTION: "the attention of a decoder's queries",
}

AUTO = "auto"  # the name of no backend: the fastest one that gives torch's answers (`inference/auto/`)

# name: the module and the class, imported when it is used.
BACKENDS = {
    "torch": "vitrail.inference.backends.torch_backend:TorchBackend",
    "compiled": "vitrail.inference.backends.compiled_backend:CompiledBackend",
    "openvino": "vitrail.inference.backends.openvino_backend:OpenVinoBackend",
    "onnxruntime": "vitrail.inference.backends.onnxruntime_backend:OnnxRuntimeBackend",
}


class Backend(Protocol):
    """A model that is ready to run. It sets its precision itself."""

    name: str
    captures: frozenset[str]  # those of CAPTURES that it can keep

    @property
    def device(self) -> torch.device:
        """Where it takes images from."""
        ...

    @property
    def precision(self) -> str:
        """What it computes in: "float32", "bfloat16", "int8"."""
        ...

    @classmethod
    def load(cls, checkpoint: Checkpoint, *, device: str, precision: str, pictures: Pictures | None = None) -> Backend:
        """The checkpoint's model, ready to run. "auto" leaves the choice to the backend. pictures: for int8."""
        ...

    def __call__(self, images: Tensor, capture: Capture | None = None) -> Tensor:
        """Normalised float32 (B, C, H, W) on its device -> the model's outputs, (B, ...), float32.

        `capture` is filled with what it asks for. The engine has checked that it asks for nothing beyond `captures`.
        """
        ...


def load_backend(
    name: str,
    checkpoint: Checkpoint,
    *,
    device: str = "auto",
    precision: str = "auto",
    pictures: Pictures | None = None,
) -> Backend:
    """The backend of that name, with the checkpoint's model in it."""
    if name not in BACKENDS:
        raise VitrailError(f"there is no engine {name!r}; choose one of {AUTO}, {', '.join(BACKENDS)}")
    module, _, kind = BACKENDS[name].partition(":")
    backend: type[Backend] = getattr(importlib.import_module(module), kind)
    return backend.load(checkpoint, device=device, precision=named_precision(precision), pictures=pictures)


def check_capture(backend: Backend, capture: Capture) -> None:
    """Refuse what the backend cannot keep, in words that name what is asked for."""
    requested = {POOLED: True, BLOCKS: bool(capture.blocks), QUERY_ATTENTION: capture.query_attention}
    for name in CAPTURES:
        if requested[name] and name not in backend.captures:
            raise VitrailError(
                f"the engine {backend.name} gives answers, but not {CAPTURES[name]}: use the engine torch for them"
            )
