"""The one list of tasks. A task is a folder beside this file; nobody outside of `tasks/` needs to know its name.

Importing this file is light: a task's modules are imported when they are asked for, and those of its data, which
`vitrail check` needs, do not import torch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.tasks.task import Task
    from vitrail.tasks.task_answers import TaskAnswers
    from vitrail.tasks.task_data import TaskData


@dataclass(frozen=True)
class _Entry:
    """Where the two halves of a task are, as `module:class`, and what must be known before they are imported."""

    task: str
    data: str
    answers: str = ""  # the part of the task that answers without torch; "": it has none
    layout: str = ""  # one that only this task reads (`TaskData.own_layout`)
    synthetic: bool = True  # whether `vitrail make-data` writes its truth


# In the order in which people are shown them. A new task is a line here.
_TASKS = {
    "classify": _Entry(
        "classify.classify:Classify", "classify.class_data:ClassData", "classify.class_answers:ClassAnswers"
    ),
    "multilabel": _Entry(
        "multilabel.multilabel:MultiLabel",
        "multilabel.label_data:LabelData",
        "multilabel.label_answers:LabelAnswers",
        synthetic=False,
    ),
    "regress": _Entry(
        "regress.regress:Regress", "regress.number_data:NumberData", "regress.number_answers:NumberAnswers"
    ),
    "segment": _Entry("segment.segment:Segment", "segment.mask_data:MaskData", layout="masks"),
    "detect": _Entry("detect.detect:Detect", "detect.box_data:BoxData"),
    "depth": _Entry("depth.depth:Depth", "depth.depth_data:DepthData", layout="depth"),
}


DEFAULT_TASK = "classify"  # of a model with a head whose file does not say what it does
EMBED = "embed"  # in the place of a task: the model has no head and gives embeddings


def task_of_outputs(classes: int) -> str:
    """What a published model does by its number of outputs: it classifies, or, without a head, gives embeddings."""
    return DEFAULT_TASK if classes else EMBED


def task_names() -> tuple[str, ...]:
    """The names of all tasks, without importing any of them."""
    return tuple(_TASKS)


def synthetic_task_names() -> tuple[str, ...]:
    """The tasks whose truth `vitrail make-data` writes."""
    return tuple(name for name, entry in _TASKS.items() if entry.synthetic)


def own_layouts() -> tuple[str, ...]:
    """The layouts that only one task reads."""
    return tuple(entry.layout for entry in _TASKS.values() if entry.layout)


def task_class(name: str) -> type[Task]:
    """The class of the task of that name."""
    return _imported(_entry(name).task)


def task_for(name: str, labels: Sequence[str], class_weights: str = "none") -> Task:
    """The task of that name. Labels, in the order of the outputs: class names, or the names of regression's numbers."""
    return task_class(name)(labels, class_weights)


def task_answers(name: str, labels: Sequence[str]) -> TaskAnswers | None:
    """The part of the task of that name that answers. Does not import torch; None where its answers need torch."""
    address = _entry(name).answers
    return _imported(address)(labels) if address else None


def labels_or_numbers(name: str, labels: Sequence[str] | None, classes: int) -> list[str]:
    """Names for all outputs: those that are given, else 'class 0', 'class 1' and so on."""
    if labels is not None:
        return list(labels)
    noun, _ = task_data(name).label_noun
    return [f"{noun} {index}" for index in range(classes)]


@functools.cache
def task_data(name: str) -> TaskData:
    """How the task of that name reads, describes and checks its data. Does not import torch."""
    return _imported(_entry(name).data)()


def tasks_of_layout(layout: str) -> list[TaskData]:
    """The tasks that can be learnt from data that lies like this."""
    every = [task_data(name) for name in _TASKS]
    return [data for data in every if layout in data.layouts]


# ---- parts


def _entry(name: str) -> _Entry:
    if name not in _TASKS:
        raise VitrailError(f"the task is {name!r}; choose one of {', '.join(sorted(_TASKS))}")
    return _TASKS[name]


def _imported(address: str) -> Any:
    """What `module:name`, below `vitrail.tasks`, stands for."""
    module, _, name = address.partition(":")
    return getattr(importlib.import_module(f"vitrail.tasks.{module}"), name)
