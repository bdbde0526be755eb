"""One line an answer, whatever the task."""

from __future__ import annotations

import torch

from vitrail.tasks.registry import task_for


def test_every_task_in_words() -> None:
    logits = torch.tensor([[2.0, 0.0, -2.0]])
    labels = ["cat", "dog", "owl"]
    classify, multilabel = task_for("classify", labels), task_for("multilabel", labels)
    regress = task_for("regress", ["age", "weight"])
    assert classify.words(classify.answer(logits, 2)[0]) == "cat 86.7 %, dog 11.7 %"
    assert multilabel.words(multilabel.answer(logits, 2)[0]) == "cat 88.1 %"
    assert multilabel.words(multilabel.answer(-logits.abs() - 1, 2)[0]) == "no label (at best dog 26.9 %)"
    assert regress.words(regress.answer(torch.tensor([[31.25, 1e-7]]))[0]) == "age 31.25, weight 1e-07"
