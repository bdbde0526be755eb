"""Embeddings in a Parquet file: what is in it, and runs that are stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

import vitrail
from tests.image_files import photo
from vitrail.errors import VitrailError
from vitrail.inference.sources import images_of
from vitrail.search import embedding_file
from vitrail.search.embedding_file import PartFolder, embed_to_file
from vitrail.search.embeddings import Embedder, embed_all
from vitrail.search.vector_file import read_facts

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_file, "PART_ROWS", 4)


@pytest.fixture
def embedder(model_file: Path) -> Embedder:
    return Embedder(model_file, batch_size=2)


class Stop(Exception):
    """As Ctrl-C comes: at any image."""


def test_a_row_an_image(embedder: Embedder, pile: Path, tmp_path: Path) -> None:
    broken = pile / "even" / "broken.jpg"
    broken.write_bytes(b"no image")
    paths = images_of(pile)
    out = tmp_path / "emb.parquet"
    summary = embed_to_file(embedder, paths, out, "the model")
    assert (summary.images, summary.unreadable, summary.kept) == (21, 1, 0)
    table = parquet.read_table(out)
    assert table.column_names == ["id", "path", "digest", "vector", "error"]
    assert table.column("id").to_pylist() == list(range(21))
    assert table.column("path").to_pylist() == [str(path) for path in paths]
    [bad] = [row for row in table.to_pylist() if row["vector"] is None]
    assert bad["path"] == str(broken) and "image" in bad["error"] and bad["digest"]
    assert (
        str(table.schema.field("vector").type).startswith("fixed_size_list<")
        and table.schema.field("vector").type.list_size == 32
    )
    facts = json.loads(table.schema.metadata[b"vitrail"])
    assert facts["width"] == 32 and facts["what"] == "pooled" and facts["model"] == "the model"
    assert facts["fingerprint"] == embedder.fingerprint and facts["normalise"] is False
    assert facts["vitrail"] == vitrail.__version__
    vectors, places, _ = embed_all(embedder, paths)
    read, names, _ = vitrail.read_vectors(out)
    np.testing.assert_array_equal(read, vectors)
    assert names == [str(paths[place]) for place in places]
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".parts")]


def test_patches_have_a_grid(model_file: Path, pile: Path, tmp_path: Path) -> None:
    embedder = Embedder(model_file, what="patches")
    embed_to_file(embedder, images_of(pile), tmp_path / "p.parquet", "m")
    facts = read_facts(tmp_path / "p.parquet")
    assert facts.grid == (4, 4) and facts.width == 32
    read, _, _ = vitrail.read_vectors(tmp_path / "p.parquet")
    np.testing.assert_array_equal(read.reshape(20, 16, 32), embed_all(embedder, images_of(pile))[0])


@pytest.mark.parametrize("stopped_at", [1, 4, 5, 11, 19])
def test_a_stopped_run_goes_on_to_the_very_bytes(
    embedder: Embedder, pile: Path, tmp_path: Path, stopped_at: int
) -> None:
    whole, out = tmp_path / "whole.parquet", tmp_path / "emb.parquet"
    embed_to_file(embedder, images_of(pile), whole, "m")
    seen = 0

    def stop(_: bool) -> None:
        nonlocal seen
        seen += 1
        if seen == stopped_at:
            raise Stop

    with pytest.raises(Stop):
        embed_to_file(embedder, images_of(pile), out, "m", stop)
    assert not out.exists()
    summary = embed_to_file(embedder, images_of(pile), out, "m")
    assert summary.kept == (stopped_at - 1) // 4 * 4 and summary.images == 20
    assert out.read_bytes() == whole.read_bytes()


def stop_after(embedder: Embedder, pile: Path, out: Path, images: int) -> None:
    seen = iter(range(images))
    with pytest.raises(Stop):
        embed_to_file(embedder, images_of(pile), out, "m", lambda _: next(seen, None) is None and _stop())


def _stop(*_: object) -> None:
    raise Stop


def test_what_no_longer_holds_is_made_again(embedder: Embedder, pile: Path, tmp_path: Path) -> None:
    """Another model, a picture that changed, a picture that came before the others."""
    out = tmp_path / "emb.parquet"
    stop_after(embedder, pile, out, 13)
    other = Embedder(embedder.checkpoint, what="mean", batch_size=2)
    assert embed_to_file(other, images_of(pile), out, "m").kept == 0
    assert read_facts(out).what == "mean"
    stop_after(embedder, pile, out, 13)
    changed = Path(images_of(pile)[6])
    photo(99).save(changed)
    earlier = changed.stat().st_mtime - 1000  # as a copy has that keeps the time of its original
    os.utime(changed, (earlier, earlier))
    assert embed_to_file(embedder, images_of(pile), out, "m").kept == 4
    np.testing.assert_array_equal(vitrail.read_vectors(out)[0], embed_all(embedder, images_of(pile))[0])
    stop_after(embedder, pile, out, 13)
    photo(100).save(pile / "even" / "00.png")
    assert embed_to_file(embedder, images_of(pile), out, "m").kept == 0
    assert len(vitrail.read_vectors(out)[0]) == 21


def test_an_image_that_was_replaced_before_its_part_was_written(embedder: Embedder, pile: Path, tmp_path: Path) -> None:
    """The part is newer than the image, and has the vector of what was there before."""
    out, images, seen = tmp_path / "emb.parquet", images_of(pile), 0

    def replace_one(_: bool) -> None:
        nonlocal seen
        seen += 1
        if seen == 3:
            photo(99).save(images[0])
        if seen == 5:
            raise Stop

    with pytest.raises(Stop):
        embed_to_file(embedder, images, out, "m", replace_one)
    assert embed_to_file(embedder, images, out, "m").kept == 0
    np.testing.assert_array_equal(vitrail.read_vectors(out)[0], embed_all(embedder, images)[0])


def test_kept_images_count_as_progress(embedder: Embedder, pile: Path, tmp_path: Path) -> None:
    out = tmp_path / "emb.parquet"
    (pile / "even" / "broken.png").write_bytes(b"no image")
    stop_after(embedder, pile, out, 17)
    told: list[bool] = []
    assert embed_to_file(embedder, images_of(pile), out, "m", told.append).kept == 16
    assert len(told) == 21 and sum(told) == 1


def test_a_kill_while_parts_are_deleted_leaves_none_behind_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = PartFolder(tmp_path / "emb.parquet")
    folder.path.mkdir()
    for number in range(4):
        folder.part(number).touch()
    unlink = Path.unlink

    def killed(path: Path) -> None:
        monkeypatch.setattr(Path, "unlink", _stop)
        unlink(path)

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(Stop):
        folder.forget_from(1)
    assert sorted(folder.path.iterdir()) == folder.parts() == [folder.part(number) for number in range(3)]


def test_two_at_once_and_a_folder_are_refused(embedder: Embedder, pile: Path, tmp_path: Path) -> None:
    out = tmp_path / "emb.parquet"
    parts = tmp_path / ".emb.parquet.parts"
    parts.mkdir()
    with FileLock(parts / "lock"), pytest.raises(VitrailError, match="another process is writing"):
        embed_to_file(embedder, images_of(pile), out, "m")
    with pytest.raises(VitrailError, match="is a folder: give the name of a file"):
        embed_to_file(embedder, images_of(pile), pile, "m")


def test_other_files_are_refused(pile: Path, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="does not exist"):
        read_facts(tmp_path / "nowhere.parquet")
    with pytest.raises(VitrailError, match="cannot read"):
        read_facts(pile / "even" / "0.png")
    import pyarrow

    parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(VitrailError, match="holds no vectors that vitrail wrote"):
        vitrail.read_vectors(tmp_path / "other.parquet")
