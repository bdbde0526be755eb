"""A score of few held-out images by a nested split: what is chosen on one half of them is measured on the other.

Temperature, threshold and overlap are chosen on the validation images. Of many images that changes no score; of few it
flatters the score that is measured on the same ones.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from vitrail.tasks.task import AnsweredPart, Task


def nested_metrics(
    task: Task, outputs: Tensor, targets: Tensor, groups: Sequence[int] | None = None, seed: int = 0
) -> dict[str, float]:
    """The metrics of `task.evaluate`, each half of the images answered with what the other half chose, and all of them
    measured together: of half as many images a calibration error is larger, and a mean over classes another, whatever
    was chosen.

    outputs, targets: of M images, as `choose_decoding` takes them. groups: images of one group stay together. Empty
    where there are no two halves.
    """
    first, second = halves(len(outputs), groups, seed)
    if not len(first) or not len(second):
        return {}
    parts = []
    for measured, chosen_on in ((first, second), (second, first)):
        fitted = copy.deepcopy(task)
        fitted.calibrate(fitted.choose_decoding(outputs[chosen_on], targets[chosen_on]), targets[chosen_on])
        answers = fitted.meant(fitted.with_decoding(outputs[measured]))
        parts.append(AnsweredPart(fitted, answers, targets[measured]))
    return {name: value for name, value in task.metrics_of(parts).items() if math.isfinite(value)}


def halves(count: int, groups: Sequence[int] | None, seed: int) -> tuple[list[int], list[int]]:
    """The indices of two halves, as equal as whole groups allow."""
    groups = range(count) if groups is None else groups
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    shuffled = np.random.default_rng(seed).permutation(list(members)).tolist()
    parts: tuple[list[int], list[int]] = ([], [])
    for group in sorted(shuffled, key=lambda group: -len(members[group])):
        min(parts, key=len).extend(members[group])
    return sorted(parts[0]), sorted(parts[1])


def nested_note(task: Task, results: dict[str, float], nested: dict[str, float], images: int) -> str | None:
    """What is said where the choices made a difference. results: the metrics with the choices of all images."""
    differing = [name for name, value in nested.items() if task.show(name, value) != task.show(name, results[name])]
    if not differing:
        return None
    shown = ", ".join(f"{task.title_of(name)} {task.show(name, nested[name])}" for name in differing)
    return f"calibrated on these {images} images; calibrated on one half and measured on the other: {shown}"
