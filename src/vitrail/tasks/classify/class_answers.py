"""The answers of classification: the most probable classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vitrail.tasks.task_answers import UNKNOWN, TaskAnswers, guesses, softmax


class ClassAnswers(TaskAnswers):
    """Outputs are logits (M, K) of classes that exclude one another."""

    name = "classify"

    def answer(self, outputs: Any, top: int = 5) -> list[dict[str, Any]]:
        probabilities = softmax(self._numbers(outputs))
        first = np.argsort(-probabilities, axis=1, kind="stable")[:, : max(top, 1)]
        answers = []
        for p, order in zip(probabilities, first, strict=True):
            ranked = [{"label": self.labels[i], "probability": float(p[i])} for i in order]
            answers.append({**ranked[0], "top": ranked})
        return answers

    def unknown_answer(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        return {**answer, "label": UNKNOWN, "probability": None, "unknown": True}

    def words(self, answer: Mapping[str, Any]) -> str:
        if answer.get("unknown"):
            return f"{UNKNOWN} (at best {guesses(answer['top'][:1])})"
        return guesses(answer["top"])

    def row(self, answer: Mapping[str, Any]) -> dict[str, str | float]:
        """label, probability, label_2, probability_2 and so on; of an unknown image the label alone."""
        if answer.get("unknown"):
            return {"label": UNKNOWN}
        return {
            key if place == 1 else f"{key}_{place}": value
            for place, guess in enumerate(answer["top"], start=1)
            for key, value in guess.items()
        }
