"""Decoded pictures: the same from memory, from the shared file and decoded anew; two runs at once do no harm."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.loading.cache import (
    CacheSubset,
    NoCache,
    Shape,
    cache_folder,
    keep_in_file,
    keep_in_memory,
    open_cache,
    read_squashed,
)


@pytest.fixture
def paths(tmp_path) -> list[Path]:
    made = []
    for number, size in enumerate([(40, 20), (16, 16), (300, 500), (7, 9)]):
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        made.append(tmp_path / f"{number}.png")
        Image.fromarray(pixels).save(made[-1])
    return made


def test_all_three_ways_give_the_same(paths, tmp_path):
    shape, indices = Shape(16, 16, 3), np.array([2, 0, 2])
    caches = [
        NoCache(paths, shape, workers=2),
        NoCache(paths, shape, workers=0),
        keep_in_memory(paths, shape, workers=2),
        keep_in_file(paths, shape, tmp_path / "cache", workers=1),
        keep_in_file(paths, shape, tmp_path / "cache", workers=1),  # from the file this time
    ]
    first, sizes = caches[0].take(indices)
    assert first.shape == (3, 16, 16, 3) and sizes.tolist() == [[300, 500], [40, 20], [300, 500]]
    for cache in caches[1:]:
        pixels, own = cache.take(indices)
        assert (pixels == first).all() and np.array_equal(own, sizes)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_picture_of_the_right_size_is_kept_to_the_pixel(paths):
    pixels, size = read_squashed(paths[1], Shape(16, 16, 3))
    assert np.array_equal(pixels, np.asarray(Image.open(paths[1]))) and size == (16, 16)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_other_channels_are_squashed_too(paths, channels):
    pixels, _ = read_squashed(paths[0], Shape(8, 12, channels))
    assert pixels.shape == (8, 12, channels) and pixels.dtype == np.uint8


def test_changed_files_are_decoded_again(paths, tmp_path):
    shape, place = Shape(16, 16, 3), np.array([1])
    before, _ = keep_in_file(paths, shape, tmp_path / "cache", workers=1).take(place)
    Image.new("RGB", (16, 16), "red").save(paths[1])
    os.utime(paths[1], ns=(1, 1))
    after, _ = keep_in_file(paths, shape, tmp_path / "cache", workers=1).take(place)
    assert not (before == after).all() and after[0, 0, 0].tolist() == [255, 0, 0]


FILL = """
import sys
from pathlib import Path
import numpy as np
from vitrail.data.loading.cache import Shape, keep_in_file
folder, *paths = map(Path, sys.argv[1:])
print(int(keep_in_file(paths, Shape(16, 16, 3), folder, workers=1).take(np.arange(4))[0].long().sum()))
"""


def test_two_runs_that_start_at_once_share_the_file(paths, tmp_path):
    command = [sys.executable, "-c", FILL, str(tmp_path / "cache"), *map(str, paths)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    sums = [run.communicate(timeout=300)[0] for run in runs]
    assert sums[0] == sums[1] != ""
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".npy", ".npy"]


@pytest.mark.parametrize("mode", ["memory", "disk", "off"])
def test_broken_files_are_known_and_the_others_move_up(paths, tmp_path, monkeypatch, mode):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    whole = open_cache(paths, Shape(16, 16, 3), mode).take(np.array([0, 1, 3]))
    paths[2].write_bytes(paths[2].read_bytes()[:2000])
    for _ in range(2):  # the second time from the file
        opened = open_cache(paths, Shape(16, 16, 3), mode)
        assert list(opened.broken) == [2] and "2.png is truncated" in str(opened.broken[2])
        pixels, sizes = CacheSubset(opened, 4, opened.broken).take(np.array([0, 1, 2]))
        assert (pixels == whole[0]).all() and np.array_equal(sizes, whole[1])


def test_the_cache_folder_can_be_set(monkeypatch, tmp_path):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("VITRAIL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "vitrail"


@pytest.mark.parametrize("sizes_file", [False, True])
@pytest.mark.parametrize("damage", ["cut", "empty", "another shape", "text", "zip"])
def test_a_damaged_file_is_named_and_made_anew(paths, tmp_path, sizes_file, damage):
    shape, indices = Shape(16, 16, 3), np.arange(4)
    good, sizes = keep_in_file(paths, shape, tmp_path / "cache", workers=1).take(indices)
    file = next(path for path in (tmp_path / "cache").iterdir() if path.name.endswith(".sizes.npy") == sizes_file)
    content = file.read_bytes()
    if damage == "another shape":
        np.save(file, np.zeros((2, 3)))
    else:
        cut = content[: len(content) * 3 // 4]
        file.write_bytes({"cut": cut, "empty": b"", "text": b"not an array", "zip": b"PK\x03\x04"}[damage])
    cache = keep_in_file(paths, shape, tmp_path / "cache", workers=1)
    pixels, own = cache.take(indices)
    assert (pixels == good).all() and np.array_equal(own, sizes)
    assert len(cache.notes) == 1 and file.name in cache.notes[0] and "decoded again" in cache.notes[0]
    assert not keep_in_file(paths, shape, tmp_path / "cache", workers=1).notes
