"""The one engine: a model is opened once, and every answer is read, transformed, run, decoded and put into words here.

`predict`, `evaluate`, the evaluation in training, the server and `explain` all go through it. What runs the network is
a backend (`backends/`); what the outputs mean is the task's.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.inference.backends.backend import AUTO, POOLED, Backend, Pictures, check_capture, load_backend
from vitrail.inference.image_processor import ImageProcessor, ModelInput, Pixels
from vitrail.inference.output.familiar_answers import check_unknown, with_familiarity
from vitrail.inference.read_source import Source
from vitrail.inference.sliding_window import run_windows
from vitrail.model.encoder import Capture
from vitrail.model.presets import is_preset
from vitrail.tasks.dense_task import DenseTask
from vitrail.tasks.letterbox import Letterbox
from vitrail.tasks.registry import labels_or_numbers, task_for
from vitrail.tasks.task import Task
from vitrail.terminal import print_error
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.familiarity.kept_vectors import KeptVectors
from vitrail.weights.load import load

if TYPE_CHECKING:
    from vitrail.inference.auto.choice_record import Choice
    from vitrail.inference.calibration.calibration_images import CalibrationImages
    from vitrail.inference.calibration.check_images import Calibration

TOKENS = 8192  # in a batch that no one chose: 41 images of 224 px in patches of 16, 5 of DINOv2's 518 px
LARGEST = 64  # images in it, where these are small


class Engine:
    """A checkpoint at work. Labels, preprocessing and calibration are those of its file.

    processor, task: how images are read and what the outputs mean; None: as the checkpoint says.
    batch_size: None: by the number of tokens.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: Backend,
        *,
        processor: ImageProcessor | None = None,
        task: Task | None = None,
        batch_size: int | None = None,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise VitrailError(f"batch_size is {batch_size}: give at least 1")
        self.checkpoint, self.backend = checkpoint, backend
        self.network = checkpoint  # what backends run: the checkpoint, or the same with a network that merges tokens
        self.processor = processor or ImageProcessor(checkpoint.preprocessing, checkpoint.config.is_dense)
        self.batch_size = batch_size or default_batch_size(checkpoint)
        self._task = task
        self.path: Path | None = None  # of the model, where it is from a file or folder
        self.choice: Choice | None = None  # how its backend was chosen, or compared with torch
        self.remarks: list[str] = []  # what every start of it says

    @classmethod
    def open(
        cls,
        model: str | Path | Checkpoint | Engine,
        *,
        untrained: bool = False,
        engine: str = "torch",
        device: str = "auto",
        precision: str = "auto",
        batch_size: int | None = None,
        calibration: Calibration | None = None,
        merge_tokens: int | float | str = 0,
    ) -> Engine:
        """The engine of a file, a folder, a hub id or a checkpoint; an engine is given back as it is.

        untrained: a preset with fresh weights will do, to look at the network. engine: torch, compiled, openvino or
        onnxruntime; auto is the fastest here that gives torch's answers. device: cuda, mps or cpu; auto is the first of
        these that is there. The model moves to it, and stays there. precision: auto, fp32 or bf16; auto is bf16 where
        the device is fast in it. calibration: pictures to check an engine on, as `check_images` takes them.
        merge_tokens: so many for each block, or "0.5%", as many as cost no more than that (`auto/choose_merging.py`).
        """
        if isinstance(model, Engine):
            return model
        checkpoint = model if isinstance(model, Checkpoint) else open_model(model, untrained)
        path = model.path if isinstance(model, Checkpoint) else Path(model)
        chosen_later = engine == AUTO or merge_tokens != 0
        pictures = EnginePictures(checkpoint, path, calibration)
        if chosen_later:
            backend = load_backend("torch", checkpoint, device=device)  # what the others are measured against
        else:
            backend = load_backend(engine, checkpoint, device=device, precision=precision, pictures=pictures)
        opened = cls(checkpoint, backend, batch_size=batch_size)
        opened.path = path
        if chosen_later:
            opened.use(engine, precision, calibration, device, merge_tokens)
        else:
            _check_engine(opened, precision, pictures)
        return opened

    def use(
        self,
        engine: str,
        precision: str = "auto",
        calibration: Calibration | None = None,
        device: str = "auto",
        merge_tokens: int | float | str = 0,
    ) -> None:
        """Run on another backend from now on, the arguments being those of `open`; auto stays on the same device."""
        merging = None
        if merge_tokens != 0:
            from vitrail.inference.auto import choose_merging

            self.network, merging = choose_merging.merge_tokens(self, merge_tokens, calibration)
        pictures = EnginePictures(self.checkpoint, self.path, calibration)
        if engine == AUTO:
            from vitrail.inference.auto.choose import choose_backend

            self.backend = choose_backend(self, precision, pictures)
        else:
            self.backend = load_backend(engine, self.network, device=device, precision=precision, pictures=pictures)
            _check_engine(self, precision, pictures)
        if merging is not None:
            choose_merging.print_merging(self, merging)

    def remark(self, sentence: str, later: str = "") -> None:
        """Say on standard error what was chosen. later: what the next start will say in its place."""
        print_error(sentence)
        self.remarks.append(later or sentence)

    def with_fast_decode(self) -> Engine:
        """The same, but large JPEGs are decoded at reduced scale: faster, and probabilities change a little."""
        fast = copy.copy(self)
        fast.processor = ImageProcessor(self.processor.preprocessing, self.processor.dense, fast_decode=True)
        return fast

    @property
    def task(self) -> Task:
        """What the outputs mean; VitrailError for a model without a head."""
        if self._task is None:
            self._task = task_of(self.checkpoint)
        return self._task

    @property
    def familiarity(self) -> KeptVectors | None:
        """How like the training pictures a new one is; None where the model's file does not tell."""
        return self.checkpoint.familiarity if POOLED in self.backend.captures else None

    # ---- from a source to an answer, step by step

    def read(self, source: Source, name: str = "the image") -> ModelInput:
        """The pixels that the model takes, or UnreadableImage. Safe to call from several threads."""
        return self.processor.read(source, name)

    def transform(self, images: Sequence[Pixels]) -> Tensor:
        """uint8 (h, w, C) each -> normalised (B, C, h, w) on the backend's device."""
        return self.processor.transform(images, self.backend.device)

    def forward(self, images: Tensor, capture: Capture | None = None) -> Tensor:
        """Normalised (B, C, h, w) -> the model's outputs (B, ...), float32, where the backend leaves them.

        capture: what to keep of this pass besides; refused in a sentence where the backend cannot.
        """
        if capture is not None:
            check_capture(self.backend, capture)
        return self.backend(images, capture)

    def run(
        self,
        batch: Sequence[ModelInput],
        pooled: list[Tensor] | None = None,
        before_windows: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[Tensor, list[Letterbox]]]:
        """The outputs (B, ...) of the batch, and where each picture lies in them (for dense tasks).

        Pictures that go through sliding windows differ in size: each comes by itself, (1, K, H', W').
        pooled: is given the vector that the head reads of each picture, (D,); in windows, the mean of theirs.
        before_windows: called before each forward pass of windows; a picture may take many.
        """
        if not self.processor.windows:
            outputs, vectors = self._forward_pooled(
                self.transform([image.pixels for image in batch]), pooled is not None
            )
            if pooled is not None:
                pooled += vectors
            yield outputs, [image.letterbox for image in batch if image.letterbox is not None]
            return
        window, patch = self.processor.preprocessing.size, self.checkpoint.config.patch_size
        for image in batch:
            assert image.whole is not None
            picture, windows = self.transform([image.whole])[0], list[Tensor]()

            def forward(images: Tensor, windows: list[Tensor] = windows) -> Tensor:
                before_windows()
                outputs, vectors = self._forward_pooled(images, pooled is not None)
                windows += vectors
                return outputs

            outputs, letterbox = run_windows(forward, picture, window, patch, self.batch_size)
            if pooled is not None:
                pooled.append(torch.stack(windows).mean(0))
            yield outputs[None], [letterbox]

    def _forward_pooled(self, images: Tensor, keep: bool) -> tuple[Tensor, list[Tensor]]:
        """The outputs and, where they are to be kept, the vectors (D,) that the head reads, float32 on the CPU."""
        if not keep:
            return self.forward(images), []
        capture = Capture()
        outputs = self.forward(images, capture)
        assert capture.pooled is not None
        return outputs, list(capture.pooled.float().cpu())

    def decode(self, outputs: Tensor, letterboxes: Sequence[Letterbox] = ()) -> Sequence[Tensor]:
        """(B, ...) -> one tensor an image on the CPU; for dense tasks in the picture's own pixels."""
        outputs = outputs.cpu()
        if not self.processor.dense:
            return list(outputs)
        assert isinstance(self.task, DenseTask)
        return self.task.decode(outputs, letterboxes)

    def outputs(
        self,
        batch: Sequence[ModelInput],
        decode: bool = True,
        pooled: list[Tensor] | None = None,
        before_windows: Callable[[], None] = lambda: None,
    ) -> list[Tensor]:
        """The outputs of each image, decoded or as the model gives them. pooled, before_windows: see `run`."""
        results = self.run(batch, pooled, before_windows)
        if not decode:
            return [image for outputs, _ in results for image in outputs.cpu()]
        return [image for outputs, boxes in results for image in self.decode(outputs, boxes)]

    def answer(
        self, decoded: Sequence[Tensor], top: int = 5, pooled: Sequence[Tensor] = (), unknown: bool = False
    ) -> list[dict[str, Any]]:
        """Decoded outputs -> the task's answers. `top`: how many guesses, where it makes some.

        pooled: the vectors of the same images, (D,) each: the answers then say how familiar each one is, where the
        model's file tells. unknown: the answer to an unfamiliar one is "unknown".
        """
        if not decoded:
            return []
        answers = self.task.answer(decoded if self.processor.dense else torch.stack(list(decoded)), top)
        if self.familiarity is None or not pooled:
            return answers
        scores = self.familiarity.scores(torch.stack(list(pooled)).numpy()).tolist()
        return with_familiarity(self.task, answers, scores, unknown)

    def check_unknown(self) -> None:
        """VitrailError where the answer "unknown" cannot be given."""
        check_unknown(self.familiarity, self.task.name if self.task.dense else None)


def open_model(source: str | Path, untrained: bool = False) -> Checkpoint:
    """The model of a file, folder or hub id.

    A preset is refused, because its weights are fresh and its answers noise. With `untrained` it is built, from seed 0
    so that it is the same every time.
    """
    text = str(source)
    if not is_preset(text) or Path(source).exists():
        return load(source)
    if not untrained:
        raise VitrailError(f"{text} is a preset with untrained weights: give the model file of a training run")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return load(source)


def task_of(checkpoint: Checkpoint) -> Task:
    """What the model's outputs mean. Outputs without names are 'class 0', 'class 1' and so on."""
    if checkpoint.task == "embed" or not checkpoint.config.classes:
        raise VitrailError("this model has no head and gives embeddings, not answers: train one on it first")
    labels = labels_or_numbers(checkpoint.task, checkpoint.labels, checkpoint.config.classes)
    task = task_for(checkpoint.task, labels)
    learned = checkpoint.provenance.get("training")
    if task.dense and isinstance(learned, dict) and isinstance(learned.get("task"), dict):
        task.load_state_dict(learned["task"])  # other tasks have it in their head's last layer
    return task


def default_batch_size(checkpoint: Checkpoint) -> int:
    """Enough images to keep the processor busy, few enough that their activations fit."""
    (height, width), patch = checkpoint.preprocessing.size, checkpoint.config.patch_size
    tokens = (height // patch[0]) * (width // patch[1]) + checkpoint.config.prefix
    return min(LARGEST, max(1, TOKENS // tokens))


@dataclass(frozen=True)
class EnginePictures:
    """`check_images`, when somebody needs them."""

    checkpoint: Checkpoint
    path: Path | None
    calibration: Calibration | None

    @property
    def folder(self) -> str | None:
        return os.path.abspath(self.calibration) if isinstance(self.calibration, str | Path) else None

    def __call__(self) -> CalibrationImages | None:
        from vitrail.inference.calibration.check_images import check_images  # whose room needs engines itself

        return check_images(self.checkpoint, self.path, self.calibration)


def _check_engine(engine: Engine, precision: str, pictures: Pictures) -> None:
    """Compare what somebody named with torch in float32; not the default, whose first answer does not wait."""
    if engine.backend.name == "torch" and precision == "auto":
        return
    from vitrail.inference.auto.named_engine import check_engine

    check_engine(engine, pictures)
