"""`vitrail index --add`, killed at random moments while files come, change, move and go (see `search.py`)."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.kills import Tally, finished, killed, save_model
from tests.image_files import photo
from tests.warm_process import begin_vitrail
from vitrail.search.index.image_index import ImageIndex
from vitrail.search.vector_file import file_digest


def kill_index(folder: Path, kills: int, chance: random.Random) -> Tally:
    """Add, change, copy, rename and delete pictures; kill `index --add` until it ends; then compare with the files."""
    tally = Tally("index --add")
    model, pictures, idx = save_model(folder / "model.safetensors", 0), folder / "pictures", folder / "idx"
    pictures.mkdir()
    number = change_pictures(pictures, 0, chance, new=30)
    finished(["index", model, pictures, "--out", idx], tally)
    seconds = finished(["index", idx, pictures, "--add"], tally) + 0.3
    while tally.counts["kills"] < kills:
        number = change_pictures(pictures, number, chance, new=25)
        before = contents(idx)
        for _ in range(chance.randint(1, 5)):  # one after the other, until one ends
            if not killed(begin_vitrail(["index", idx, pictures, "--add"]), seconds, chance, (idx,)):
                break
            tally.counts["kills"] += 1
            check_whole(idx, before, pictures, tally)
        finished(["index", idx, pictures, "--add"], tally)
        check_complete(idx, pictures, tally)
        tally.counts["ended"] += 1
        tally.counts["left over"] += len([*idx.glob(".*.part")])
    return tally


def change_pictures(folder: Path, number: int, chance: random.Random, new: int) -> int:
    """So many new pictures, and some of the others copied, changed, renamed, deleted. The next number."""
    older = sorted(folder.glob("*.png"))
    chance.shuffle(older)
    for place, path in enumerate(older[:8]):
        if place < 2:
            shutil.copy(path, folder / f"copy-{number + place}.png")
        elif place < 4:
            photo(10**6 + number + place, (64, 64)).save(path)
        elif place < 6:
            path.rename(folder / f"renamed-{number + place}.png")
        else:
            path.unlink()
    for place in range(new):
        photo(number + place, (64, 64)).save(folder / f"{number + place}.png")
    return number + new


def contents(idx: Path) -> dict[str, str]:
    """Digest by path."""
    return {path: digest for _, path, digest in ImageIndex(idx).entries()}


def check_whole(idx: Path, before: dict[str, str], pictures: Path, tally: Tally) -> None:
    """After a kill: every picture that is still a file of the same content is there, and nothing is there twice."""
    try:
        opened = ImageIndex(idx)
        digests = Counter(digest for _, _, digest in opened.entries())
        for id_, _, _ in opened.entries():
            if abs(float(np.linalg.norm(opened.vector(id_))) - 1) > 1e-3:
                tally.fail(f"the vector of {id_} is none")
    except Exception as error:
        tally.fail(f"the index cannot be read: {error}")
        return
    if max(digests.values(), default=0) > 1:
        tally.fail("a picture is there twice")
    kept = {file_digest(path) for path in pictures.glob("*.png")}
    if any(digest in kept and digest not in digests for digest in before.values()):
        tally.fail("a picture is lost")


def check_complete(idx: Path, pictures: Path, tally: Tally) -> None:
    """At the end: the index has each content of the folder once, and of what is gone only what nobody removed."""
    check_whole(idx, {}, pictures, tally)
    here = {file_digest(path) for path in pictures.glob("*.png")}
    held = contents(idx)
    if not here <= set(held.values()):
        tally.fail(f"{len(here - set(held.values()))} pictures are missing")
    stale = [path for path, digest in held.items() if os.path.exists(path) and file_digest(path) != digest]
    if stale:
        tally.fail(f"{stale[0]} has another content than the index says")
