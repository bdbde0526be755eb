"""The answers of multi-label classification: the labels that are given, and the most probable ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vitrail.tasks.task_answers import UNKNOWN, TaskAnswers, guesses, sigmoid


class LabelAnswers(TaskAnswers):
    """Outputs are logits (M, K) of labels, each by itself. A label is given when its probability is above 0.5."""

    name = "multilabel"

    def answer(self, outputs: Any, top: int = 5) -> list[dict[str, Any]]:
        """`labels` are those above 0.5, `top` the most probable ones: as many as asked, but all that are above 0.5."""
        logits = self._numbers(outputs)
        answers = []
        for z, p in zip(logits, sigmoid(logits).tolist(), strict=True):
            order = np.argsort(-z, kind="stable")
            given = int((z > 0).sum())
            answers.append(
                {
                    "labels": [self.labels[i] for i in order[:given]],
                    "top": [{"label": self.labels[i], "probability": p[i]} for i in order[: max(top, given)]],
                }
            )
        return answers

    def unknown_answer(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        return {**answer, "labels": [UNKNOWN], "unknown": True}

    def words(self, answer: Mapping[str, Any]) -> str:
        if answer.get("unknown"):
            return f"{UNKNOWN} (at best {guesses(answer['top'][:1])})"
        given = len(answer["labels"])
        return guesses(answer["top"][:given]) if given else f"no label (at best {guesses(answer['top'][:1])})"

    def row(self, answer: Mapping[str, Any]) -> dict[str, str | float]:
        """The given labels with | between, as a label file has them, and their probabilities likewise."""
        if answer.get("unknown"):
            return {"labels": UNKNOWN, "probabilities": ""}
        given = answer["top"][: len(answer["labels"])]
        probabilities = "|".join(f"{guess['probability']:.4g}" for guess in given)
        return {"labels": "|".join(answer["labels"]), "probabilities": probabilities}
