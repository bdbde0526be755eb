"""Pictures that show nothing of what the set is about: nearly blank ones, and a site's "image not available".

A finding is about being odd in a set: where many pictures are drawings, drawings are what the set is about."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from vitrail.data.checks.copy_checks import example_of_copies, same_bytes
from vitrail.data.checks.examine import Examined
from vitrail.data.checks.perceptual_hash import Small, is_flat
from vitrail.dataset import Dataset
from vitrail.findings import Example, Finding, about_files
from vitrail.tasks.registry import task_data
from vitrail.text import counted

FLAT, SHADED = 0.8, 0.4  # a placeholder is at least so flat, and at most this share of its steps are shades
FLAT_COPIES, SHADED_COPIES, COPIES = 0.7, 0.75, 3  # of so many copies with different labels less is asked
LEAST_SIDE = 40  # pixels: no text fits into less, and small pictures have few colours anyway
ODD = 0.2  # the largest share of the set's different pictures that can still be odd ones
USUAL_FLAT = 0.8  # flat share of the usual picture from which on the set is one of drawings

NEAR = 4  # levels around its ground within which nearly all of a nearly blank picture lies
SPECKED = 0.02  # share of the small picture's pixels that may be darker, and that may be brighter
DARK = 40  # brightest level of a ground that may be a night sky, which is not called blank


@dataclass(frozen=True)
class Placeholders:
    """Items that stand for missing images, by their indices."""

    nearly_blank: frozenset[int] = frozenset()
    flat_coloured: frozenset[int] = frozenset()
    repeated: tuple[tuple[int, ...], ...] = ()  # groups of identical files, which are in neither of the above

    @property
    def indices(self) -> frozenset[int]:
        """All of them together."""
        return self.nearly_blank | self.flat_coloured | {index for group in self.repeated for index in group}


def find_placeholders(dataset: Dataset, examined: Sequence[Examined]) -> Placeholders:
    """The placeholders; `examined` in the order of the items. None after a fast look, which sees no pixels."""
    smalls = {
        index: look.small for index, look in enumerate(examined) if look.small is not None and look.problem is None
    }
    if not smalls:
        return Placeholders()
    even = _nearly_even(smalls)
    blank = {index for index in even if is_flat(smalls[index])}
    rest = smalls.keys() - blank
    nearly = _if_odd({index for index in even - blank if not _is_dark(smalls[index])}, rest, examined)
    rest -= nearly
    flat = {index for index in rest if _is_flat_coloured(examined[index], FLAT, SHADED)}
    for group in same_bytes(examined):
        if len(group) >= COPIES and len({dataset.items[index].target for index in group}) > 1:
            flat |= {index for index in group if _is_flat_coloured(examined[index], FLAT_COPIES, SHADED_COPIES)} & rest
    usual = statistics.median([examined[index].flatness.flat for index in rest - flat] or [1.0])
    flat = _if_odd(flat, rest, examined) if usual < USUAL_FLAT else set()
    groups = tuple(tuple(group) for group in same_bytes(examined) if group[0] in blank | nearly | flat)
    repeated = {index for group in groups for index in group}
    return Placeholders(frozenset(nearly - repeated), frozenset(flat - repeated), groups)


def check_placeholders(dataset: Dataset, placeholders: Placeholders) -> list[Finding]:
    """What to report about them. `dataset` with every item in a part."""
    findings = _repeated(dataset, placeholders.repeated)
    paths = [dataset.items[index].path for index in sorted(placeholders.flat_coloured)]
    title = f"{counted(len(paths), 'image is', 'images are')} of a few flat colours, as 'image not available' is"
    advice = "remove placeholders of missing images; keep a drawing that is meant"
    findings += about_files("placeholder", "warning", title, advice, paths)
    paths = [dataset.items[index].path for index in sorted(placeholders.nearly_blank)]
    title = f"{counted(len(paths), 'image is', 'images are')} nearly blank: one colour but for specks"
    return findings + about_files(
        "nearly-blank", "warning", title, "look at them, and remove what shows nothing", paths
    )


def _repeated(dataset: Dataset, groups: Sequence[Sequence[int]]) -> list[Finding]:
    """One finding for the placeholders with different labels, one for those in more than one part, one for the rest."""
    contradicting, crossing, plain = [], [], []
    for group in groups:
        items = [dataset.items[index] for index in group]
        example = example_of_copies(items, dataset)
        if len({item.target for item in items}) > 1:
            contradicting.append(example)
        elif len({item.split for item in items}) > 1:
            crossing.append(example)
        else:
            plain.append(example)
    sorts: list[tuple[list[Example], str, str]] = [
        (contradicting, "error", f", with different {task_data(dataset.task).target_noun[1]}"),
        (crossing, "error", ", in more than one part"),
        (plain, "warning", ""),
    ]
    advice = "remove every copy: nothing can be learnt from it"
    findings: list[Finding] = []
    for examples, severity, problem in sorts:
        images = counted(sum(len(example.files) for example in examples), "image")
        title = f"{counted(len(examples), 'placeholder stands', 'placeholders stand')} for {images}{problem}"
        findings += about_files("repeated-placeholder", severity, title, advice, examples)
    return findings


# ---- pictures


def _nearly_even(smalls: dict[int, Small]) -> set[int]:
    """Indices of the pictures (SIDE, SIDE, 3) that are of one colour but for specks."""
    even = [*smalls]
    for channel in (1, 0, 2):  # hardly any photo is left after the first
        levels = np.array([smalls[index][..., channel].ravel() for index in even], np.int16)  # (N, SIDE * SIDE)
        if levels.size:
            few, half = round(SPECKED * levels.shape[1]), levels.shape[1] // 2
            low, ground, high = np.partition(levels, (few, half, -1 - few), axis=1).T[[few, half, -1 - few]]
            near = np.maximum(ground - low, high - ground) <= NEAR
            even = [index for index, is_near in zip(even, near.tolist(), strict=True) if is_near]
    return {*even}


def _is_dark(small: Small) -> bool:
    return bool(np.median(small, axis=(0, 1)).max() <= DARK)


def _is_flat_coloured(picture: Examined, flat: float, shaded: float) -> bool:
    facts, flatness = picture.facts, picture.flatness
    if facts is None or min(facts.width, facts.height) < LEAST_SIDE:
        return False
    return flatness.flat >= flat and flatness.shaded <= shaded


def _if_odd(indices: set[int], among: Collection[int], examined: Sequence[Examined]) -> set[int]:
    """The indices, or none where so many of the set are alike that this is what the set is about. Copies count once."""
    odd, different = (len({examined[index].digest for index in some}) for some in (indices, among))
    return indices if odd <= max(1, ODD * different) else set()
