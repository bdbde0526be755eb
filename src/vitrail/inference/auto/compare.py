"""What several backends say about the same pictures, and how well that agrees."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vitrail.inference.backends.backend import Backend
from vitrail.inference.engine import Engine
from vitrail.inference.image_processor import ModelInput
from vitrail.progress import ProgressBar
from vitrail.tasks.agreement import Agreement, embedding_agreement
from vitrail.tasks.registry import EMBED


def decoded_outputs(engine: Engine, backend: Backend, images: Sequence[ModelInput]) -> list[Tensor]:
    """What a backend says about each picture, decoded."""
    run = Engine(engine.checkpoint, backend, processor=engine.processor, batch_size=engine.batch_size)
    answers = []
    with ProgressBar(f"checking {backend.name}", len(images)) as bar:
        for start in range(0, len(images), run.batch_size):
            batch = images[start : start + run.batch_size]
            answers += run.outputs(batch)
            bar.update(len(answers))
    return answers


def compare(engine: Engine, expected: Sequence[Tensor], given: Sequence[Tensor]) -> Agreement:
    """As the model's task counts it; without a head, by cosine."""
    if engine.checkpoint.task == EMBED or not engine.checkpoint.config.classes:
        return embedding_agreement(expected, given)
    return engine.task.same_answers(expected, given)
