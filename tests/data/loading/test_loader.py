"""Batches are the same for any number of workers, processes and any start, and memory stays flat without a cache."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.loading.augment import Augmentation
from vitrail.data.loading.cache import ArrayCache, NoCache, Shape, open_cache
from vitrail.data.loading.loader import Loader
from vitrail.data.loading.sampler import Sampler
from vitrail.errors import VitrailError
from vitrail.tasks.targets import WholeImageTargets
from vitrail.weights.preprocessing import Preprocessing


def paths(folder, count, side=12):
    random = np.random.default_rng(0)
    found = []
    for place in range(count):
        found.append(folder / f"{place}.png")
        Image.fromarray(random.integers(0, 256, (side, side, 3), np.uint8)).save(found[-1])
    return found


def loader(cache, count, **changes):
    values = {
        "cache": cache,
        "targets": WholeImageTargets(torch.arange(count)),
        "sampler": Sampler(count, 8, seed=4),
        "preprocessing": Preprocessing(size=(8, 8)),
        "augmentation": Augmentation(),
        "mixup": 0.2,
        "seed": 4,
    }
    return Loader(**{**values, **changes})


def test_any_cache_and_any_number_of_workers_give_the_same_batches(tmp_path):
    files, shape = paths(tmp_path, 30), Shape(10, 10, 3)
    caches = [open_cache(files, shape, mode, workers=2) for mode in ("memory", "off")]
    assert isinstance(caches[0], ArrayCache) and isinstance(caches[1], NoCache)
    expected = list(loader(caches[0], 30, workers=0).batches(0, 7))
    assert [batch.step for batch in expected] == list(range(7))
    for cache in caches:
        for workers in (0, 1, 2):
            found = list(loader(cache, 30, workers=workers).batches(0, 7))
            for one, other in zip(expected, found, strict=True):
                assert torch.equal(one.images, other.images)
                np.testing.assert_array_equal(one.indices, other.indices)
                assert one.targets.tolist() == one.indices.tolist()
    later = list(loader(caches[1], 30).batches(4, 6))
    assert [batch.step for batch in later] == [4, 5]
    assert torch.equal(later[1].images, expected[5].images)


@pytest.mark.parametrize("world", [2, 4])
def test_processes_see_the_parts_of_each_batch(tmp_path, world):
    """With the keys that one process gives the images; those of two steps differ."""
    cache = open_cache(paths(tmp_path, 24), Shape(12, 12, 3), "memory")
    whole = list(loader(cache, 24).batches(0, 3))
    parts = [list(loader(cache, 24, share=(rank, world)).batches(0, 3)) for rank in range(world)]
    for step in range(3):
        torch.testing.assert_close(torch.cat([part[step].images for part in parts]), whole[step].images)
        assert torch.equal(torch.cat([part[step].keys for part in parts]), whole[step].keys)
    assert len(torch.cat([batch.keys for batch in whole]).unique()) == sum(len(batch.keys) for batch in whole)


def test_a_vanished_file_is_named(tmp_path):
    files = paths(tmp_path, 16)
    cache = open_cache(files, Shape(8, 8, 3), "off")
    files[3].unlink()
    for workers in (0, 2):
        with pytest.raises(VitrailError, match=r"3\.png does not exist: it was readable when the run began"):
            list(loader(cache, 16, workers=workers).batches(0, 2))


def test_stopping_in_the_middle_leaves_no_thread_behind(tmp_path):
    import threading

    before = threading.active_count()
    batches = loader(open_cache(paths(tmp_path, 16), Shape(8, 8, 3), "off"), 16).batches(0, 1000)
    next(batches)
    batches.close()
    assert threading.active_count() == before


MEMORY = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from vitrail.data.loading.augment import Augmentation
from vitrail.data.loading.loader import Loader
from vitrail.data.loading.sampler import Sampler
from vitrail.data.loading.cache import Shape, open_cache
from vitrail.tasks.targets import WholeImageTargets
from vitrail.weights.preprocessing import Preprocessing
import torch
path = Path({path!r})
count = int(sys.argv[1])
cache = open_cache([path] * count, Shape(128, 128, 3), "off", workers=2)
how = dict(preprocessing=Preprocessing(size=(112, 112)), augmentation=Augmentation())
loader = Loader(cache=cache, targets=WholeImageTargets(torch.zeros(count)), sampler=Sampler(count, 8, 0), **how)
for batch in loader.batches(0, count // 8):
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_stays_flat_without_a_cache(tmp_path):
    """48 KB a picture: 1,200 more of them would be 58 MB if they were kept."""
    (path,) = paths(tmp_path, 1, side=128)
    code = MEMORY.format(path=str(path), tests=str(tmp_path))
    peaks = []
    for count in (80, 1280):
        done = subprocess.run([sys.executable, "-c", code, str(count)], capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 25, peaks
