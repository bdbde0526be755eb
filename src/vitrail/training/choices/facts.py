"""What the choices look at: the images, the task, the machine and the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vitrail.tasks.registry import task_class
from vitrail.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class Facts:
    images: int  # for training
    height: int  # median
    width: int
    grey: bool
    channels: int  # of the files, where they have more than colour
    labels: Sequence[str]
    task: str
    cores: int
    device: str
    minutes: float | None  # None: not given
    named: bool = True  # whether the user gave the labels their names; False: they are the indices of masks or boxes
    objects: int = 0  # in the picture that has most of them; 0: there are none to detect
    alike: bool = False  # the pictures of a class are all taken from one side, at one place

    @property
    def task_class(self) -> type[Task]:
        return task_class(self.task)
