"""`--merge-tokens`: how many tokens a model merges in each block, as it is told or as much as a drop allows.

The drop is measured on pictures: by the task's main metric where they have labels (a folder that `evaluate` would
take), else by how many answers stay what they were. It grows with the number of merged tokens, so the largest number
that stays within the allowed drop is found by halving.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail import __version__
from vitrail.data.loading.rng import permutation
from vitrail.errors import VitrailError
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.auto.choice_record import choice_key
from vitrail.inference.auto.compare import compare, decoded_outputs
from vitrail.inference.auto.machine import machine
from vitrail.inference.auto.merging_record import Merging, read_merging, write_merging
from vitrail.inference.auto.timing import median_seconds
from vitrail.inference.backends.backend import load_backend
from vitrail.inference.backends.graph_cache import fingerprint
from vitrail.inference.backends.torch_backend import TorchBackend
from vitrail.inference.calibration.calibration_file import LEAST, MOST, calibration_beside
from vitrail.inference.calibration.check_images import Calibration, check_images
from vitrail.inference.engine import Engine
from vitrail.inference.image_processor import ModelInput
from vitrail.model.cost import merged_multiply_adds, multiply_adds
from vitrail.option_types import merged_tokens
from vitrail.tasks.task import Task
from vitrail.weights.checkpoint import Checkpoint

TIMED_BATCH = 8


def merge_tokens(
    engine: Engine, tokens: int | float | str, calibration: Calibration | None
) -> tuple[Checkpoint, Merging]:
    """The engine's checkpoint with a network that merges, and how much. tokens: see `option_types.merged_tokens`."""
    wanted, checkpoint = merged_tokens(tokens), engine.checkpoint
    checkpoint.model.with_merged_tokens(0 if isinstance(wanted, float) else wanted)  # what cannot merge is refused now
    merging = Merging(wanted) if isinstance(wanted, int) else remembered_merging(engine, wanted, calibration)
    return replace(checkpoint, model=checkpoint.model.with_merged_tokens(merging.r)), merging


def remembered_merging(engine: Engine, allowed: float, calibration: Calibration | None) -> Merging:
    """What `choose_merging` found before for this network, drop and folder of pictures; found now where it did not, or
    on fewer than 32 pictures when there are more."""
    key = _key(engine, allowed, calibration)
    before = read_merging(key)
    if before is not None and not _has_more_pictures(before, engine, calibration):
        return before
    found = replace(choose_merging(engine, allowed, calibration), key=key)
    write_merging(found)
    return found


def _key(engine: Engine, allowed: float, calibration: Calibration | None) -> str:
    """Of all that the number depends on. Not of the machine: every engine merges the same tokens."""
    circumstances = {
        "allowed": allowed,
        "vitrail": __version__,
        "preprocessing": engine.checkpoint.preprocessing.to_dict(),
        "task": engine.checkpoint.task,
        "folder": os.path.abspath(calibration) if isinstance(calibration, str | Path) else None,
    }
    return choice_key(fingerprint(engine.checkpoint), circumstances)


def _has_more_pictures(before: Merging, engine: Engine, calibration: Calibration | None) -> bool:
    """Whether it was measured on few pictures, and there may be more now."""
    if before.compared >= LEAST:
        return False
    if isinstance(calibration, str | Path) or calibration_beside(engine.path) is not None:
        return True
    return len(calibration or ()) > before.compared


def choose_merging(engine: Engine, allowed: float, calibration: Calibration | None) -> Merging:
    """The most tokens whose measured drop is at most `allowed`, a share: 0.005 is half a point of accuracy."""
    pictures = _labelled(engine, calibration)
    if pictures is None:
        images = check_images(engine.checkpoint, engine.path, calibration)
        if images is None:
            raise VitrailError(
                "there are no pictures to measure on what merging costs: give a folder of pictures like those that the "
                "model will see (--calibration), or a number of tokens (--merge-tokens 8)"
            )
        pictures = Pictures(images.images, images.source, None)
    network = engine.checkpoint.model
    run = partial(decoded_outputs, engine, images=pictures.images)
    plain = run(TorchBackend(network))
    measured = partial(Merging, compared=len(pictures.images), date=datetime.date.today().isoformat())
    best = measured(0, f"merging even 1 would change more than {100 * allowed:g} %")
    low, high = 0, max(1, network.config.patches // network.depth)
    while low < high:
        r = (low + high + 1) // 2
        drop, words = pictures.drop(engine, plain, run(TorchBackend(network.with_merged_tokens(r))))
        if drop <= allowed:
            low, best = r, measured(r, f"{words} ({pictures.source})")
        else:
            high = r - 1
    return best


def print_merging(engine: Engine, merging: Merging) -> None:
    """A line on standard error: what is merged, how much less work or time that is, and what it changes."""
    config = engine.checkpoint.config
    less = 1 - merged_multiply_adds(config, merging.r) / multiply_adds(config)
    text = f"merging {merging.r} tokens a block: {100 * less:.0f} % fewer multiply-adds"
    if merging.change:
        measured = merging.r and engine.backend.precision != "int8"  # whose other network would be searched for minutes
        text += f", {_remembered_speedup(engine, merging):.2f} times as fast" if measured else ""
        text += f"; {merging.change}, {merging.date}; --merge-tokens {merging.r} sets it without measuring"
    engine.remark(text)


def _remembered_speedup(engine: Engine, merging: Merging) -> float:
    """As it was measured before with this engine and batch on this machine; else it is measured, and kept."""
    backend = engine.backend
    runs = [backend.name, backend.precision, min(engine.batch_size, TIMED_BATCH), machine()]
    name = hashlib.sha256(json.dumps(runs, sort_keys=True).encode()).hexdigest()[:16]
    if name in merging.speedups:
        return merging.speedups[name]
    speedup = _speedup(engine)
    if merging.key:
        write_merging(replace(merging, speedups={**merging.speedups, name: speedup}))
    return speedup


def _speedup(engine: Engine) -> float:
    """Of the engine's backend, against the same one without merging."""
    backend = engine.backend
    plain = load_backend(backend.name, engine.checkpoint, device=backend.device.type, precision=backend.precision)
    size = engine.checkpoint.preprocessing.size
    images = torch.zeros(min(engine.batch_size, TIMED_BATCH), engine.checkpoint.config.channels, *size)
    images = images.to(backend.device)
    seconds = median_seconds({"plain": partial(plain, images), "merging": partial(backend, images)})
    return seconds["plain"] / seconds["merging"]


class Pictures(NamedTuple):
    """What the drop is measured on."""

    images: Sequence[ModelInput]
    source: str  # in words
    targets: Tensor | None  # (M, ...), as the task encodes them; None: no labels

    def drop(self, engine: Engine, plain: Sequence[Tensor], merged: Sequence[Tensor]) -> tuple[float, str]:
        """How much worse the merged outputs are, as a share, and in words."""
        if self.targets is None:
            agreement = compare(engine, plain, merged)
            return 1 - agreement.share, agreement.in_words()
        before, after = (_main_metric(engine.task, outputs, self.targets) for outputs in (plain, merged))
        name = engine.task.main_metric
        return before - after, f"{name} {after:.4f} instead of {before:.4f}"


def _main_metric(task: Task, outputs: Sequence[Tensor], targets: Tensor) -> float:
    value: float = task.evaluate(torch.stack(list(outputs)), targets, bootstrap=0)["metrics"][task.main_metric]
    return value


def _labelled(engine: Engine, calibration: Calibration | None) -> Pictures | None:
    """The pictures of a folder or table with labels that the model knows; None where it is none."""
    from vitrail.inference.evaluation import dataset_for  # here, for it needs an engine
    from vitrail.inference.label_matching import targets_for

    if not isinstance(calibration, str | Path) or engine.checkpoint.labels is None:
        return None
    task = engine.task
    try:
        dataset = dataset_for(engine, calibration)
        named = targets_for(dataset.items, dataset.labels, engine.checkpoint.labels, task.labels_are_columns)
    except VitrailError:
        return None  # pictures without labels, or with others: answers are compared
    images, targets = [], []
    for index in sorted(permutation(0, 0, len(named))[:MOST].tolist()):
        try:
            images.append(engine.read(dataset.items[index].source))
            targets.append(named[index])
        except UnreadableImage:
            continue
    if not images:
        return None
    return Pictures(images, f"{len(images):,} labelled pictures of {Path(calibration)}", task.encode(targets))
