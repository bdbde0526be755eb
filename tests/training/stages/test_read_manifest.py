"""What is known of the images of a large manifest takes a few bytes each, however many there are."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from vitrail.data.loading import window_sampler
from vitrail.data.manifest.manifest_file import Manifest, Shard
from vitrail.data.manifest.survey import RECORD, Survey
from vitrail.training.stages.read_manifest import divided, fingerprint_of, in_parts, other_channels

SHARD = 5000


def manifest(shards: int) -> Manifest:
    """One whose shards are nowhere."""
    every = tuple(Shard(number, f"shard-{number}.parquet", SHARD, "") for number in range(shards))
    return Manifest("m", "/data", shards * SHARD, 0, SHARD, every, None)


def seen(number: int) -> Survey:
    records = np.zeros(SHARD, RECORD)
    records["number"] = np.random.default_rng(number).random(SHARD)
    records["target"] = np.arange(SHARD) % 10
    records["split"] = -1
    return Survey([records], [f"class {place}" for place in range(10)], sizes=[(8, 8)])


def memory(shards: int) -> tuple[int, int]:
    """Bytes that stay while it trains, and the most that there were before."""
    tracemalloc.start()
    survey, about = Survey(), manifest(shards)
    for number in range(shards):
        survey.add(seen(number))
    labels, records = survey.in_order()
    labelled = records["target"] >= 0
    part = divided(records, np.zeros(len(records), np.int8), labelled, 0.01)
    parts = in_parts(about, records, part, labelled).parts
    fingerprint_of(labels, records["number"][labelled])
    most = tracemalloc.get_traced_memory()[1]
    train = parts["train"]
    assert len(train) + len(parts["val"]) == shards * SHARD and 0.005 < len(parts["val"]) / len(records) < 0.015
    del survey, records, labelled, part, parts
    sampler = train.sampler(256, 0)  # type: ignore[attr-defined]
    assert len(set(sampler.of_step(3).indices)) == 256
    left = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return left, most


def test_memory_is_a_few_bytes_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_sampler, "WINDOW", 20_000)
    few, many = memory(10), memory(50)
    left, most = ((after - before) / (40 * SHARD) for before, after in zip(few, many, strict=True))
    assert left < 12, f"{left:.1f} bytes an image while it trains"
    assert most < 80, f"{most:.1f} bytes an image before that"


def test_images_of_other_channels_are_left_out() -> None:
    records = np.zeros(5, RECORD)
    for channels, own, out in (
        (3, [3, 1, 5, 4, 0], [0, 0, 1, 1, 0]),
        (5, [5, 5, 6, 5, 0], [0, 0, 1, 0, 0]),
        (1, [1, 3, 2, 1, 1], [0, 0, 1, 0, 0]),
    ):
        records["channels"] = own
        assert other_channels(records, channels).tolist() == [bool(one) for one in out]
