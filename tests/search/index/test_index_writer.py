"""An index that is written, changed, read meanwhile, and interrupted between any two steps."""

from __future__ import annotations

import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from vitrail.errors import VitrailError
from vitrail.search.embeddings import normalised
from vitrail.search.index import index_writer
from vitrail.search.index.image_index import ImageIndex
from vitrail.search.index.index_manifest import SegmentEntry, read_manifest
from vitrail.search.index.index_segment import swallowed
from vitrail.search.index.index_writer import writing_index
from vitrail.search.vector_file import Row, VectorFacts

pytest.importorskip("pyarrow")
WIDTH = 8
FACTS = VectorFacts("print", "pooled", True, WIDTH, None, "the model")


def row(number: int) -> Row:
    vector = np.random.default_rng(number).standard_normal(WIDTH).astype(np.float32)
    return Row(-1, f"/pictures/{number}.png", f"digest {number}", normalised(vector))


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    return {path: (id_, digest) for id_, path, digest in ImageIndex(folder).entries()}


def test_rows_come_and_go_as_a_model_of_it_says(tmp_path: Path) -> None:
    """100 random changes, against a dictionary."""
    chance, expected, next_id, number = random.Random(0), {}, 0, 0
    with writing_index(tmp_path / "idx", FACTS) as writer:
        for _ in range(100):
            new = [row(number + place) for place in range(chance.randint(0, 9))]
            number += len(new)
            gone = chance.sample(sorted(expected), min(len(expected), chance.choice((0, 0, 1, 5))))
            writer.commit(new, [expected.pop(path)[0] for path in gone])
            for one in new:
                expected[one.path] = (next_id, one.digest)
                next_id += 1
            assert contents(tmp_path / "idx") == expected
            assert writer.by_path == expected
    index = ImageIndex(tmp_path / "idx")
    assert len(index) == len(expected) == read_manifest(tmp_path / "idx").size
    assert len(index.segments) < 8 and index.manifest.removed < 0.2 * index.manifest.rows
    for path, (id_, _) in expected.items():
        np.testing.assert_array_equal(index.vector(id_), row(int(Path(path).stem)).vector)
        assert index.path(id_) == path
    assert len(list((tmp_path / "idx").glob("vectors-*"))) <= 4 * 8  # no heap of old files


def test_search_is_exact_and_leaves_out_what_was_removed(tmp_path: Path) -> None:
    rows = [row(number) for number in range(300)]
    with writing_index(tmp_path / "idx", FACTS) as writer:
        for start in range(0, 300, 100):
            writer.commit(rows[start : start + 100])
        writer.commit(removed=range(30))
    index = ImageIndex(tmp_path / "idx")
    vectors = np.stack([one.vector for one in rows])
    query = row(1000).vector
    scores = vectors @ query
    scores[:30] = -np.inf
    order = np.argsort(-scores)[:10]
    [found] = index.neighbours(query[None], 10)
    assert [one.id for one in found] == order.tolist()
    np.testing.assert_allclose([one.score for one in found], scores[order], atol=1e-6)
    [everything] = index.neighbours(query[None], 1000)
    assert len(everything) == 270
    with pytest.raises(VitrailError, match="no picture 3 in the index"):
        index.vector(3)
    with pytest.raises(VitrailError, match=r"vectors are \(Q, 8\) here, not \(1, 5\)"):
        index.neighbours(np.zeros((1, 5), np.float32))


STEPS = ("replacing", "write_segment", "write_manifest", "unlink")


@pytest.mark.parametrize("step", range(12))
def test_whatever_fails_the_older_index_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """An error at each write and each deletion in turn; then the same change again."""
    folder = tmp_path / "idx"
    with writing_index(folder, FACTS) as writer:
        writer.commit([row(number) for number in range(8)])
        writer.commit([row(number) for number in range(8, 12)], [0])
    before = contents(folder)
    calls = 0

    def failing(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls > step:
                raise KeyboardInterrupt
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        import os

        patch.setattr(os, "replace", failing(os.replace))
        patch.setattr(Path, "unlink", failing(Path.unlink))
        stopped = False
        try:
            with writing_index(folder) as writer:
                writer.commit([row(number) for number in range(12, 20)], [1, 2])
        except KeyboardInterrupt:
            stopped = True
    assert stopped or step > 5
    middle = contents(folder)
    after = set(middle)
    assert middle == before or (len(after) == 17 and {"/pictures/1.png", "/pictures/2.png"}.isdisjoint(after))
    with writing_index(folder) as writer:
        missing = [row(number) for number in range(12, 20) if row(number).path not in writer.by_path]
        writer.commit(missing, [id_ for path, (id_, _) in writer.by_path.items() if path[10:] in ("1.png", "2.png")])
    assert set(contents(folder)) == {row(number).path for number in range(3, 20)}
    assert not list(folder.glob(".*.part"))


def test_a_reader_reads_through_a_write(tmp_path: Path) -> None:
    folder = tmp_path / "idx"
    with writing_index(folder, FACTS) as writer:
        writer.commit([row(number) for number in range(10)])
        reader = ImageIndex(folder)
        for number in range(10, 20):
            writer.commit([row(number)], [number - 10])
        assert len(reader) == 10 and len(ImageIndex(folder)) == 10
        for id_ in range(10):
            np.testing.assert_array_equal(reader.vector(id_), row(id_).vector)
        assert [one.id for one in reader.neighbours(row(3).vector[None], 1)[0]] == [3]


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "idx"
    with writing_index(folder, FACTS):
        pass
    refused = pytest.raises(VitrailError, match="another process is writing to")
    with FileLock(folder / index_writer.LOCK), refused, writing_index(folder):
        pass


def test_caches_are_made_again_from_the_truth(tmp_path: Path) -> None:
    folder = tmp_path / "idx"
    with writing_index(folder, FACTS) as writer:
        writer.commit([row(number) for number in range(10)])
    [array] = folder.glob("*.array")
    whole = array.read_bytes()
    for damage in (lambda: array.unlink(), lambda: array.write_bytes(whole[:200]), lambda: array.write_bytes(b"")):
        damage()
        np.testing.assert_array_equal(ImageIndex(folder).vector(7), row(7).vector)
        assert array.read_bytes() == whole


def test_what_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="is no index: make one by `vitrail index MODEL IMAGES --out"):
        ImageIndex(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo.jpg").touch()
    with pytest.raises(VitrailError, match="is there and is no index"), writing_index(tmp_path / "full", FACTS):
        pass
    with writing_index(tmp_path / "idx", FACTS) as writer:
        writer.commit([row(0)])
    pointer = tmp_path / "idx" / "index.json"
    good = pointer.read_text()
    changes = [("vectors-", "../vectors-"), ('"width": 8', '"width": "8"'), ('"width": 8', '"width": 0')]
    changes += [('"generation": 1', '"generation": "x"'), ('"rows": 1', '"rows": -1'), ('"removed": 0', '"removed": 9')]
    changes += [
        ('"rows": 1', '"rows": 1e999'),
        ('"width": 8', f'"width": {2**63}'),
        ('"next_id": 1', f'"next_id": {2**63}'),
    ]
    edited = [good.replace('"format": 1', '"format": 99'), *(good.replace(*change) for change in changes)]
    assert good not in edited
    for bad in ("", "{}", "[]", *edited):
        pointer.write_text(bad)
        with pytest.raises(VitrailError, match="damaged|newer version|outside of its folder"):
            ImageIndex(tmp_path / "idx")
    pointer.write_text(good)
    next((tmp_path / "idx").glob("*.parquet")).unlink()
    with pytest.raises(VitrailError, match="the index .* is damaged"):
        ImageIndex(tmp_path / "idx")


def index_of(folder: Path, numbers: range = range(3), removed: set[int] = frozenset()) -> Path:  # type: ignore[assignment]
    with writing_index(folder, FACTS) as writer:
        writer.commit([row(number) for number in numbers])
        writer.commit(removed=removed)
    return folder


COLUMNS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "no path": ("path", lambda pa: None),
    "no vectors": ("vector", lambda pa: None),
    "ids of text": ("id", lambda pa: pa.array(["a", "b", "c"])),
    "ids in no order": ("id", lambda pa: pa.array([2, 1, 0])),
    "no ids": ("id", lambda pa: pa.array([0, 1, None], pa.int64())),
    "no name": ("path", lambda pa: pa.array(["a", None, "c"])),
    "names in another encoding": ("path", lambda pa: pa.array([b"a", b"caf\xe9", b"c"]).view(pa.string())),
    "numbers": ("vector", lambda pa: pa.array([1.0, 2.0, 3.0])),
    "other vectors": ("vector", lambda pa: pa.array([[1.0]] * 3, pa.list_(pa.float32(), 1))),
    "no vector": ("vector", lambda pa: pa.array([None] * 3, pa.list_(pa.float32(), WIDTH))),
    "names that repeat": ("path", lambda pa: pa.array(["x" * 25_000_000] * 3)),
}


@pytest.mark.parametrize("change", COLUMNS)
def test_a_segment_of_other_columns_is_damage(tmp_path: Path, change: str) -> None:
    import pyarrow
    import pyarrow.parquet

    [file] = index_of(tmp_path / "idx").glob("*.parquet")
    table, (name, made) = pyarrow.parquet.read_table(file), COLUMNS[change]
    place, column = table.schema.get_field_index(name), made(pyarrow)
    table = table.remove_column(place) if column is None else table.set_column(place, name, column)
    pyarrow.parquet.write_table(table, file, compression="zstd")
    file.with_suffix(".array").unlink()
    with pytest.raises(VitrailError, match="the index .* is damaged"):
        ImageIndex(tmp_path / "idx")


@pytest.mark.parametrize("array", [np.zeros(1), np.zeros((1, 1), np.int64), np.zeros(2, np.int64), "zip", "endless"])
def test_removed_ids_that_are_none_are_damage(tmp_path: Path, array: np.ndarray | str) -> None:
    [file] = index_of(tmp_path / "idx", range(30), {0}).glob("removed-*")
    if isinstance(array, np.ndarray):
        with file.open("wb") as stream:
            np.save(stream, array)
    elif array == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a", "b")
    else:
        file.write_bytes(file.read_bytes().replace(b"(1,), }              ", b"(10000000000000000,),}"))
    with pytest.raises(VitrailError, match="the index .* is damaged"):
        ImageIndex(tmp_path / "idx")


@pytest.mark.parametrize("instead", ["zip", "pipe"])
def test_whatever_stands_in_the_place_of_the_array(tmp_path: Path, instead: str) -> None:
    [array] = index_of(tmp_path / "idx").glob("*.array")
    array.unlink()
    if instead == "pipe":
        os.mkfifo(array)
    else:
        with zipfile.ZipFile(array, "w") as archive:
            archive.writestr("a", "b")
    np.testing.assert_array_equal(ImageIndex(tmp_path / "idx").vector(2), row(2).vector)


def test_few_segments_and_few_copies() -> None:
    """One row at a time, 2,000 times: a row is copied about as often as a number has digits."""
    segments: list[SegmentEntry] = []
    copied = 0
    for _ in range(2000):
        count = swallowed(segments, 1)
        rows = 1 + sum(one.rows for one in segments[len(segments) - count :])
        copied += rows - 1
        segments = [*segments[: len(segments) - count], SegmentEntry("s", rows)]
        assert len(segments) <= 12
    assert sum(one.rows for one in segments) == 2000
    assert copied < 2000 * 12
