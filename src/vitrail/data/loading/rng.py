"""Randomness as a function of (seed, epoch, index): the same for any order, batch size, worker or restart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MASK = 0xFFFFFFFFFFFFFFFF
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: splitmix64's step


def uniform(seed: int, epoch: int, indices: np.ndarray, count: int, stream: str) -> np.ndarray:
    """(len(indices), count) numbers in [0, 1), one row an image. `stream` keeps one use apart from another."""
    rows = _hash(seed, epoch, indices, stream)
    columns = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)  # wraps around, as it should
    return (_mix(rows[:, None] + columns) >> np.uint64(11)) * 2.0**-53


def permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    """The order in which an epoch visits `count` images."""
    return np.random.Generator(np.random.Philox(key=[seed & MASK, epoch & MASK])).permutation(count)


def step_seed(seed: int, step: int) -> int:
    """The seed of what a training step draws once, for all of its images."""
    return _mix_number(_mix_number(seed) ^ (step << 16)) >> 1  # torch takes 63 bits


def image_keys(seed: int, step: int, places: np.ndarray) -> NDArray[np.int32]:
    """(len(places),) what dropout and drop path of the images at these places of a step's whole batch follow from."""
    return (_hash(seed, step, places, "network") >> np.uint64(32)).astype(np.uint32).view(np.int32)


def _hash(seed: int, epoch: int, indices: np.ndarray, stream: str) -> NDArray[np.uint64]:
    key = _mix_number(_mix_number(_mix_number(seed) ^ epoch) ^ int.from_bytes(stream.encode()[:8], "little"))
    return _mix(np.asarray(indices).astype(np.uint64) ^ np.uint64(key))


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser: every bit of the result depends on every bit of the input."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mix_number(x: int) -> int:
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)
