"""One line an answer, whatever the task."""

from __future__ import annotations

import torch

from vitrail.infer.words import in_words
from vitrail.tasks.task import task_for


def test_every_task_in_words() -> None:
    logits = torch.tensor([[2.0, 0.0, -2.0]])
    labels = ["cat", "dog", "owl"]
    assert in_words(task_for("classify", labels).answer(logits, 2)[0]) == "cat 86.7 %, dog 11.7 %"
    assert in_words(task_for("multilabel", labels).answer(logits, 2)[0]) == "cat 88.1 %"
    assert in_words(task_for("multilabel", labels).answer(-logits.abs() - 1, 2)[0]) == "no label (at best dog 26.9 %)"
    assert in_words(task_for("regress", ["age", "weight"]).answer(torch.tensor([[31.25, 1e-7]]))[0]) == (
        "age 31.25, weight 1e-07"
    )
