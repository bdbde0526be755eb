"""The model that is served: reads images for it, runs it, and turns its outputs into answers."""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail import __version__
from vitrail.errors import VitrailError
from vitrail.explanation.forward_pass import explanation_engine
from vitrail.explanation.token_names import prefix_names
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.backends.torch_backend import TorchBackend
from vitrail.inference.engine import Engine, default_batch_size
from vitrail.inference.image_processor import ModelInput
from vitrail.inference.output.writers import familiarity_words
from vitrail.model.block import Block
from vitrail.serving.decoding.picture_reader import Picture, PictureReader
from vitrail.serving.forward_batch import ForwardRequest, ForwardResult, run_batch
from vitrail.serving.http_errors import HttpError, unprocessable
from vitrail.serving.image_explanation import available_methods
from vitrail.serving.limits import Limits
from vitrail.tasks.task import Task
from vitrail.visuals.colours import shown_picture
from vitrail.weights.checkpoint import Checkpoint

QUALITY = 92  # of the JPEG that shows what the model sees
CPU_BATCH = 16  # on a CPU more images at a time are no faster for each, and make the first of them wait


class ServedModel:
    """Its methods run in several threads; none of them changes anything."""

    def __init__(
        self,
        model: Checkpoint | Engine,
        name: str,
        limits: Limits,
        *,
        device: str = "auto",
        precision: str = "auto",
        batch_size: int | None = None,
    ) -> None:
        self.engine = Engine.open(model, device=device, precision=precision, batch_size=batch_size)
        self.checkpoint, self.name, self.limits = self.engine.checkpoint, name, limits
        checkpoint = self.checkpoint
        self.preprocessing = checkpoint.preprocessing
        if batch_size is None and self.engine.backend.device.type == "cpu":
            self.engine.batch_size = min(default_batch_size(checkpoint), CPU_BATCH)
        self.batch_size = self.engine.batch_size
        self.model = checkpoint.model.eval()
        self.dense = checkpoint.config.is_dense
        self.reader = PictureReader(self.preprocessing, self.dense, checkpoint.config.patch_size, limits.pixels)
        self.task: Task | None = None
        self.no_task = ""
        try:
            self.task = self.engine.task
        except VitrailError as error:
            self.no_task = str(error)

    def use_fast_decode(self) -> None:
        """Decode large JPEGs at reduced scale from now on."""
        self.engine = self.engine.with_fast_decode()
        self.reader = replace(self.reader, fast_decode=True)

    @property
    def target_labels(self) -> list[str] | None:
        """Names of the outputs that can be explained. None: the embedding is explained, as of a dense model."""
        return None if self.task is None or self.dense else self.task.labels

    @property
    def looks_inside(self) -> bool:
        """Whether the engine that answers can also give maps and embeddings."""
        return isinstance(self.engine.backend, TorchBackend)

    @functools.cached_property
    def torch_engine(self) -> Engine:
        """For maps and embeddings: the engine that answers, or torch beside it, made when somebody asks."""
        if self.looks_inside:
            return self.engine
        answered_in = self.engine.backend.precision
        precision = "auto" if answered_in == "int8" else answered_in
        beside = Engine.open(self.checkpoint, device="cpu", precision=precision, batch_size=self.batch_size)
        return beside.with_fast_decode() if self.engine.processor.fast_decode else beside

    @functools.cached_property
    def explanation_engine(self) -> Engine:
        """For explanations and the walk, which need gradients."""
        return explanation_engine(self.torch_engine)

    @property
    def grid(self) -> tuple[int, int]:
        (height, width), patch = self.preprocessing.size, self.checkpoint.config.patch_size
        return height // patch[0], width // patch[1]

    def grid_of(self, block: int) -> tuple[int, int]:
        """Tokens (down, across) of a block: fewer than patches where a network has merged them."""
        config = self.checkpoint.config
        return config.replace(image_size=self.preprocessing.size).level_grid(config.level_of(block))

    def windows_of(self, block: int) -> list[int] | None:
        """Of each patch of a block, row by row: those with the same number attend to one another. None: all do."""
        numbers = cast(Block, self.model.blocks[block]).meeting(self.grid_of(block))
        return None if numbers is None else numbers.tolist()

    def read(self, data: bytes, name: str) -> Picture:
        """As the decoding processes do, but in this one."""
        return self.reader.read(data, name)

    def run(self, requests: Sequence[ForwardRequest]) -> list[Any]:
        """In the model's thread: one forward pass, and what each request computes from it. Those that look inside have
        one of their own where only torch can give what they ask for."""
        if self.looks_inside:
            return run_batch(self.engine, requests)
        looking = [request.looks_inside for request in requests]
        results: dict[int, Any] = {}
        for looks in {False, True} & set(looking):
            places = [place for place, other in enumerate(looking) if other == looks]
            engine = self.torch_engine if looks else self.engine
            batch = run_batch(engine, [requests[place] for place in places])
            results |= zip(places, batch, strict=True)
        return [results[place] for place in range(len(requests))]

    def input_of(self, picture: Picture) -> Tensor:
        """(1, C, h, w), normalised, in the model's own precision."""
        return self.engine.transform([picture.pixels]).to(next(self.model.parameters()).dtype)

    def check_unknown(self) -> None:
        """Refuse to answer "unknown" where the model cannot."""
        try:
            self.engine.check_unknown()
        except VitrailError as error:
            raise unprocessable(str(error)) from None

    def answer(
        self,
        picture: Picture,
        result: ForwardResult | None,
        top: int,
        unknown: bool = False,
        take_turns: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """As `vitrail predict` gives it. result: of the picture's pass; None: none was needed for it.

        take_turns: called between forward passes, of which a picture in sliding windows takes many."""
        if self.task is None:
            raise unprocessable(self.no_task)
        pooled: list[Tensor] = []
        if picture.whole is not None:
            image = ModelInput(picture.pixels, picture.letterbox, picture.whole)
            kept = None if self.engine.familiarity is None else pooled
            decoded = self.engine.outputs([image], pooled=kept, before_windows=take_turns)
        else:
            assert result is not None
            letterboxes = [] if picture.letterbox is None else [picture.letterbox]
            decoded = list(self.engine.decode(result.outputs[None], letterboxes))
            pooled = [] if result.pooled is None else [result.pooled]
        return self.engine.answer(decoded, top, pooled, unknown)[0]

    def embedding(self, result: ForwardResult) -> list[float]:
        assert result.pooled is not None
        if not torch.isfinite(result.pooled).all():
            raise HttpError(500, "the model's embedding is not finite: load another model file")
        return result.pooled.flatten().tolist()

    def words(self, answer: dict[str, Any] | None) -> str:
        if answer is None or self.task is None:
            return "an embedding, not an answer"
        return self.task.words(answer) + familiarity_words(answer)

    def describe(self, samples: Sequence[dict[str, str]]) -> dict[str, Any]:
        """For /v1/model."""
        config = self.checkpoint.config
        return {
            "name": self.name,
            "task": self.checkpoint.task,
            "labels": None if self.task is None else self.task.labels,
            "image_size": list(self.preprocessing.size),
            "patch_size": list(config.patch_size),
            "grid": list(self.grid),
            "channels": config.channels,
            "width": config.width,
            "depth": config.depth,
            "heads": config.heads_of(config.depth - 1),
            "prefix": prefix_names(config),
            "pool": config.pool,
            "resize": self.preprocessing.resize,
            "engine": self.engine.backend.name,
            "precision": self.engine.backend.precision,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "methods": available_methods(self.checkpoint),
            "tells_familiarity": self.engine.familiarity is not None,
            "notes": self.checkpoint.notes,
            "samples": list(samples),
            "limits": {"bytes": self.limits.bytes, "pixels": self.limits.pixels, "images": self.limits.images},
            "version": __version__,
        }


def encode_jpeg(pixels: NDArray[np.uint8]) -> bytes:
    """What the model sees, for people: of any number of channels three."""
    buffer = io.BytesIO()
    Image.fromarray(shown_picture(pixels)).save(buffer, "JPEG", quality=QUALITY, subsampling=0)
    return buffer.getvalue()


def error_sentence(error: UnreadableImage) -> str:
    return " ".join(str(error).split())


def split_arrays(answer: dict[str, Any] | None) -> tuple[Any, dict[str, NDArray[Any]]]:
    """An answer fit for JSON, and the arrays of its first level, such as a mask."""
    if answer is None:
        return None, {}
    arrays = {name: value for name, value in answer.items() if isinstance(value, np.ndarray)}
    return to_python({name: value for name, value in answer.items() if name not in arrays}), arrays


def encode_png(array: NDArray[Any]) -> str:
    """A mask in an answer of text: a grey PNG, a level a class, in base64. Nothing is lost."""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def to_python(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's."""
    if isinstance(value, dict):
        return {str(key): to_python(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_python(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value
