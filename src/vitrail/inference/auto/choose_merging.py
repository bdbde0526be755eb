"""`--merge-tokens`: how many tokens a model merges for each block, as it is told or as much as a drop allows.

The drop is measured on pictures as that of int8 is (`calibration/answer_loss.py`): by the task's metric where there
are enough with labels, else by what float32's probabilities lead to expect. It grows with the number of merged tokens,
so the largest number that stays within the allowed drop is found by halving.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from vitrail import __version__
from vitrail.errors import VitrailError
from vitrail.graphs.graph_file import Floats
from vitrail.inference.auto.choice_record import choice_key
from vitrail.inference.auto.machine import machine
from vitrail.inference.auto.merging_record import Merging, read_merging, write_merging
from vitrail.inference.auto.timing import median_seconds
from vitrail.inference.backends.backend import load_backend
from vitrail.inference.backends.graph_cache import fingerprint
from vitrail.inference.backends.torch_backend import TorchBackend
from vitrail.inference.calibration.answer_loss import ENOUGH, AnswerJudge, AnswerLoss
from vitrail.inference.calibration.calibration_file import LEAST, calibration_beside
from vitrail.inference.calibration.check_images import Calibration, check_images
from vitrail.inference.engine import Engine
from vitrail.model.cost import merged_multiply_adds, multiply_adds
from vitrail.model.efficient.token_merging import merges_in_blocks
from vitrail.model.encoder import Encoder
from vitrail.option_types import merged_tokens
from vitrail.progress import ProgressBar
from vitrail.text import counted
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
        "merges": merges_in_blocks(engine.checkpoint.config, 1),
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
    pictures = check_images(engine.checkpoint, engine.path, calibration)
    if pictures is None:
        raise VitrailError(
            "there are no pictures to measure on what merging costs: give a folder of pictures like those that the "
            "model will see (--calibration), or a number of tokens (--merge-tokens 8)"
        )
    judge = AnswerJudge(engine.checkpoint, pictures, ENOUGH)
    network = engine.checkpoint.model
    measured = partial(Merging, compared=len(pictures.images), date=datetime.date.today().isoformat())
    best = measured(0, f"merging even 1 would cost more than {100 * allowed:g} %")
    low, high = 0, max(1, network.config.patches // network.depth)
    while low < high:
        r = (low + high + 1) // 2
        loss = _loss(judge, network.with_merged_tokens(r), len(pictures.images))
        if loss.points <= 100 * allowed:
            low, best = r, measured(r, f"{_in_words(loss)} ({pictures.source})")
        else:
            high = r - 1
    return best


def _loss(judge: AnswerJudge, network: Encoder, pictures: int) -> AnswerLoss:
    """Of a network that merges, as torch runs it where the weights are."""
    backend = TorchBackend(network)
    with ProgressBar(f"merging {network.merge_tokens} tokens a block", pictures) as bar:
        done = itertools.count(1)

        def forward(image: Floats) -> Floats:
            outputs: Floats = backend(torch.from_numpy(image)).cpu().numpy()
            bar.update(next(done), pictures)
            return outputs

        return judge(forward)


def _in_words(loss: AnswerLoss) -> str:
    agreement = "" if loss.agreement is None else f", {loss.agreement.in_words()}"
    return f"it loses {loss.points:.2f} points of {loss.metric}{agreement}"


def print_merging(engine: Engine, merging: Merging) -> None:
    """A line on standard error: what is merged, how much less work or time that is, and what it changes.

    Of a number that somebody sets only the work: nobody has to wait for it to be measured.
    """
    config = engine.checkpoint.config
    counts = merges_in_blocks(config, merging.r)
    less = 1 - merged_multiply_adds(config, counts) / multiply_adds(config)
    text = f"merging {sum(counts)} of {counted(config.patches, 'patch token')}: {100 * less:.0f} % fewer multiply-adds"
    if merging.change:
        if merging.r and engine.backend.precision == "int8":  # whose other network would be searched for minutes
            text += ", in int8 its speed is not measured"
        elif merging.r:
            text += f", {_remembered_speedup(engine, merging):.2f} times as fast"
        text += f"; {merging.change}, {merging.date}; --merge-tokens {merging.r} sets it without measuring"
    else:
        text += "; of a number neither speed nor cost is measured: --merge-tokens 0.5% measures both"
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
