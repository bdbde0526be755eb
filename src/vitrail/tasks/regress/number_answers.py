"""The answers of regression: numbers by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.tasks.task_answers import UNKNOWN, TaskAnswers


class NumberAnswers(TaskAnswers):
    """Outputs are numbers (M, K) in real units."""

    name = "regress"

    def answer(self, outputs: Any, top: int = 5) -> list[dict[str, Any]]:
        return [{"values": dict(zip(self.labels, row, strict=True))} for row in self._numbers(outputs).tolist()]

    def unknown_answer(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        return {**answer, "values": dict.fromkeys(answer["values"]), "unknown": True}

    def words(self, answer: Mapping[str, Any]) -> str:
        if answer.get("unknown"):
            return UNKNOWN
        return ", ".join(f"{name} {value:.6g}" for name, value in answer["values"].items())

    def row(self, answer: Mapping[str, Any]) -> dict[str, str | float]:
        return {name: "" if value is None else value for name, value in answer["values"].items()}
