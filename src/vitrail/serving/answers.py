"""What the server knows of its model: how pictures become its input, and how its outputs become answers."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail import __version__
from vitrail.data.inputs import normalise, prepare
from vitrail.data.unreadable import UnreadableImage
from vitrail.errors import VitrailError
from vitrail.explanation.colours import shown_picture
from vitrail.explanation.tokens import prefix_names
from vitrail.infer.opening import task_of
from vitrail.infer.predictor import Predictor, chosen_device, usual_batch
from vitrail.infer.reading import read_picture, read_source
from vitrail.model.vit import without_head
from vitrail.serving.explaining import methods_of
from vitrail.serving.framing import frame_shown
from vitrail.serving.limits import Limits, check_picture, check_windows
from vitrail.serving.passing import Part, Passed, passed
from vitrail.serving.refusals import Refusal, unfit
from vitrail.tasks.dense import Dense
from vitrail.tasks.frame import Frame
from vitrail.tasks.task import Task
from vitrail.weights.checkpoint import Checkpoint

QUALITY = 92  # of the JPEG that shows what the model sees
CPU_BATCH = 16  # on a CPU more images at a time are no faster for each, and make the first of them wait


@dataclass(frozen=True)
class Picture:
    """One decoded image."""

    pixels: NDArray[np.uint8]  # (h, w, C), what the model sees
    size: tuple[int, int]  # (height, width) of the original, upright
    frame: Frame | None = None  # of an answer about places: where the original lies in what the model sees
    whole: NDArray[np.uint8] | None = None  # (H, W, C), the original, where it is seen through windows


class Served:
    """A checkpoint that is served. Its methods run in threads; none of them changes anything."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        name: str,
        limits: Limits,
        *,
        device: str = "auto",
        batch_size: int | None = None,
    ) -> None:
        self.checkpoint, self.name, self.limits = checkpoint, name, limits
        self.preprocessing = checkpoint.preprocessing
        self.device = chosen_device(device)
        self.model = checkpoint.model.to(self.device).eval()
        self.dense = checkpoint.config.is_dense
        self.windows = self.dense and self.preprocessing.resize == "window"
        # What answers about places has no one number to explain: then its encoder is looked at.
        self.looked_at = checkpoint
        if self.dense:
            self.looked_at = Checkpoint(without_head(self.model), self.preprocessing, "embed")
        usual = usual_batch(checkpoint)
        self.batch_size = batch_size or (min(usual, CPU_BATCH) if self.device.type == "cpu" else usual)
        self.predictor = Predictor(checkpoint, batch_size=self.batch_size, workers=1, device=device)
        self.task: Task | None = None
        self.no_task = ""
        try:
            self.task = task_of(checkpoint)
        except VitrailError as error:
            self.no_task = str(error)

    @property
    def looked_at_labels(self) -> list[str] | None:
        """Of what can be explained."""
        return None if self.task is None or self.dense else self.task.labels

    @property
    def grid(self) -> tuple[int, int]:
        (height, width), patch = self.preprocessing.size, self.checkpoint.config.patch_size
        return height // patch[0], width // patch[1]

    def read(self, data: bytes, name: str) -> Picture:
        """Decoded to the model's size, after its header was looked at; or UnreadableImage."""
        size = check_picture(data, self.preprocessing, self.limits, name)
        if not self.dense:
            return Picture(read_source(data, self.preprocessing, name), size)
        if self.windows:
            check_windows(size, self.preprocessing, self.checkpoint.config.patch_size, name)
        whole = read_picture(data, self.preprocessing.channels, name)
        frame = frame_shown((whole.shape[0], whole.shape[1]), self.preprocessing)
        return Picture(prepare(whole, self.preprocessing), size, frame, whole if self.windows else None)

    def run(self, parts: Sequence[Part]) -> list[Any]:
        return passed(self.model, self.preprocessing, parts)

    def input_of(self, picture: Picture) -> Tensor:
        """(1, C, h, w), normalised."""
        weight = next(self.model.parameters())
        return normalise(torch.from_numpy(picture.pixels[None]).to(self.device), self.preprocessing).to(weight.dtype)

    def answer(self, picture: Picture, result: Passed | None, top: int) -> dict[str, Any]:
        """As `vitrail predict` gives it. result: of the picture's pass; None: none was needed for it."""
        if self.task is None:
            raise unfit(self.no_task)
        if picture.whole is not None:
            [prediction] = self.predictor.predict([picture.whole], top)
            assert prediction.answer is not None
            return prediction.answer
        assert result is not None
        if not isinstance(self.task, Dense):
            return self.task.answer(result.outputs[None], top)[0]
        assert picture.frame is not None
        decoded = self.task.decode(result.outputs[None], [picture.frame])
        return self.task.answer(decoded, top)[0]  # type: ignore[arg-type]

    def embedding(self, result: Passed) -> list[float]:
        if not torch.isfinite(result.pooled).all():
            raise Refusal(500, "the model's embedding is not finite: load another model file")
        return result.pooled.flatten().tolist()

    def words(self, answer: dict[str, Any] | None) -> str:
        return "an embedding, not an answer" if answer is None or self.task is None else self.task.words(answer)

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
            "heads": config.heads,
            "prefix": prefix_names(config),
            "pool": config.pool,
            "resize": self.preprocessing.resize,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "methods": methods_of(self.looked_at),
            "notes": self.checkpoint.notes,
            "samples": list(samples),
            "limits": {"bytes": self.limits.bytes, "pixels": self.limits.pixels, "images": self.limits.images},
            "version": __version__,
        }


def as_jpeg(pixels: NDArray[np.uint8]) -> bytes:
    """What the model sees, for people: of any number of channels three."""
    buffer = io.BytesIO()
    Image.fromarray(shown_picture(pixels)).save(buffer, "JPEG", quality=QUALITY, subsampling=0)
    return buffer.getvalue()


def sentence_of(error: UnreadableImage) -> str:
    return " ".join(str(error).split())


def without_arrays(answer: dict[str, Any] | None) -> tuple[Any, dict[str, NDArray[Any]]]:
    """An answer fit for JSON, and the arrays of its first level, such as a mask."""
    if answer is None:
        return None, {}
    arrays = {name: value for name, value in answer.items() if isinstance(value, np.ndarray)}
    return plain({name: value for name, value in answer.items() if name not in arrays}), arrays


def as_png(array: NDArray[Any]) -> str:
    """A mask in an answer of text: a grey PNG, a level a class, in base64. Nothing is lost."""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value
