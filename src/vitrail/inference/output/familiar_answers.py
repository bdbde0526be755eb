"""Answers that say how familiar a picture is, where the model's file tells. Nothing here waits for torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vitrail.errors import VitrailError
from vitrail.tasks.task_answers import TaskAnswers
from vitrail.weights.familiarity.kept_vectors import UNFAMILIAR


def with_familiarity(
    task: TaskAnswers, answers: Sequence[dict[str, Any]], scores: Iterable[float], unknown: bool
) -> list[dict[str, Any]]:
    """The answers with `familiarity` and `familiar`. unknown: the answer to an unfamiliar picture is "unknown"."""
    return [
        (task.unknown_answer(answer) if unknown and score < UNFAMILIAR else answer)
        | {"familiarity": round(score, 4), "familiar": score >= UNFAMILIAR}
        for answer, score in zip(answers, scores, strict=True)
    ]


def check_unknown(familiarity: object | None, dense_task: str | None = None) -> None:
    """VitrailError where the answer "unknown" cannot be given. dense_task: the name of a task that is about places."""
    if familiarity is None:
        raise VitrailError(
            "this model's file does not tell what its training pictures were like, so nothing is unknown to it: "
            "train it with this version of Vitrail, or leave out unknown"
        )
    if dense_task is not None:
        raise VitrailError(
            f"'unknown' is an answer about a whole image, and the model's task is {dense_task}: leave it out, "
            "and read 'familiar' of each answer"
        )
