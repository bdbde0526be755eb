"""What an index makes of files that are new, copied, changed, moved, broken."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.image_files import photo
from vitrail.inference.prefetch import PAUSE, Pause
from vitrail.inference.sources import images_of
from vitrail.search.embeddings import Embedder, embed_all
from vitrail.search.index import add_images as adding
from vitrail.search.index.add_images import Addition, AddSummary, add_images, remove_images
from vitrail.search.index.image_index import ImageIndex
from vitrail.search.index.index_writer import IndexWriter, writing_index
from vitrail.search.vector_file import Row, VectorFacts, file_digest

pytest.importorskip("pyarrow")


@pytest.fixture
def idx(tmp_path: Path) -> Path:
    return tmp_path / "idx"


@pytest.fixture
def add(idx: Path, embedder: Embedder, facts: VectorFacts) -> object:
    def added(*paths: Path) -> AddSummary:
        with writing_index(idx, facts) as writer:
            return add_images(writer, embedder, [image for path in paths for image in images_of(path)])

    return added


def names(idx: Path) -> set[str]:
    return {Path(path).name for _, path, _ in ImageIndex(idx).entries()}


def test_new_ones_once(add, idx: Path, pile: Path, embedder: Embedder) -> None:  # type: ignore[no-untyped-def]
    first = add(pile)
    assert (first.added, first.errors) == (20, []) and first.in_words() == "20 added"
    again = add(pile)
    assert (again.added, again.present) == (0, 20) and again.in_words() == "0 added, 20 already there"
    index = ImageIndex(idx)
    expected = embed_all(embedder, images_of(pile))[0]
    np.testing.assert_allclose(np.stack([index.vector(id_) for id_, _, _ in index.entries()]), expected, atol=1e-6)


def test_copies_changes_and_moves(add, idx: Path, pile: Path, embedder: Embedder) -> None:  # type: ignore[no-untyped-def]
    add(pile)
    one, two, three = (pile / "odd" / f"{number}.png" for number in (1, 3, 5))
    shutil.copy(one, pile / "odd" / "copy of 1.png")
    photo(100).save(two)
    three.rename(pile / "odd" / "5 renamed.png")
    summary = add(pile)
    assert (summary.added, summary.replaced, summary.copies, summary.moved) == (0, 1, 1, 1)
    assert summary.in_words() == "0 added, 1 replaced, 1 moved, 18 already there, 1 copy left out"
    index = ImageIndex(idx)
    assert len(index) == 20 and "5 renamed.png" in names(idx) and not {"5.png", "copy of 1.png"} & names(idx)
    by_path = {path: id_ for id_, path, _ in index.entries()}
    [vector] = embed_all(embedder, [two])[0]
    np.testing.assert_allclose(index.vector(by_path[str(two)]), vector, atol=1e-6)
    assert add(pile).in_words() == "0 added, 20 already there, 1 copy left out"


def test_two_new_files_of_one_content_and_a_file_that_becomes_a_copy(add, idx: Path, pile: Path) -> None:  # type: ignore[no-untyped-def]
    shutil.copy(pile / "odd" / "1.png", pile / "odd" / "1 again.png")
    summary = add(pile)
    assert (summary.added, summary.copies) == (20, 1) and len(ImageIndex(idx)) == 20
    shutil.copy(pile / "even" / "0.png", pile / "even" / "2.png")
    assert add(pile).copies == 2
    assert len(ImageIndex(idx)) == 19 and "2.png" not in names(idx)


@pytest.mark.parametrize("copy", ["0 copy.png", "zz copy.png"])
def test_a_copy_stays_when_the_first_of_them_changes(add, idx: Path, pile: Path, copy: str) -> None:  # type: ignore[no-untyped-def]
    """Whichever of the two is met first; found by killing (benchmarks/search.py)."""
    add(pile)
    shutil.copy(pile / "odd" / "1.png", pile / "odd" / copy)
    photo(100).save(pile / "odd" / "1.png")
    add(pile)
    digests = {digest for _, _, digest in ImageIndex(idx).entries()}
    assert {file_digest(path) for path in images_of(pile)} == digests and len(ImageIndex(idx)) == 21
    assert copy in names(idx)


def test_broken_files_are_named_and_left_out(add, idx: Path, pile: Path) -> None:  # type: ignore[no-untyped-def]
    (pile / "even" / "broken.png").write_bytes(b"no image")
    (pile / "even" / "empty.png").touch()
    summary = add(pile, pile / "nowhere.png")
    assert summary.added == 20 and len(summary.errors) == 3
    assert {Path(error.name).name for error in summary.errors} == {"broken.png", "empty.png", "nowhere.png"}
    assert len(ImageIndex(idx)) == 20


def test_a_name_that_is_no_text(add, idx: Path, pile: Path) -> None:  # type: ignore[no-untyped-def]
    odd = pile / "odd" / b"\xff.png".decode("utf-8", "surrogateescape")
    photo(50).save(odd)
    [error] = add(pile).errors
    assert "not UTF-8" in str(error) and len(ImageIndex(idx)) == 20


def test_an_interruption_keeps_what_has_come(
    idx: Path, pile: Path, embedder: Embedder, facts: VectorFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adding, "COMMIT_ROWS", 3)
    seen = 0

    def stop() -> None:
        nonlocal seen
        seen += 1
        if seen == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), writing_index(idx, facts) as writer:
        add_images(writer, embedder, images_of(pile), stop)
    assert len(ImageIndex(idx)) == 8
    with writing_index(idx) as writer:
        summary = add_images(writer, embedder, images_of(pile))
    assert (summary.added, summary.present) == (12, 8) and len(ImageIndex(idx)) == 20


def test_an_interruption_after_the_pointer_was_written_doubles_nothing(
    idx: Path, pile: Path, embedder: Embedder, facts: VectorFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adding, "COMMIT_ROWS", 5)
    delete_unused = IndexWriter._delete_unused

    def interrupted(*_: object) -> None:
        monkeypatch.setattr(IndexWriter, "_delete_unused", delete_unused)
        raise KeyboardInterrupt

    monkeypatch.setattr(IndexWriter, "_delete_unused", interrupted)
    with pytest.raises(KeyboardInterrupt), writing_index(idx, facts) as writer:
        add_images(writer, embedder, images_of(pile))
    assert len(ImageIndex(idx)) == len(names(idx)) == 5
    with writing_index(idx) as writer:
        assert add_images(writer, embedder, images_of(pile)).in_words() == "15 added, 5 already there"


def test_moved_pictures_are_committed_on_the_way(  # type: ignore[no-untyped-def]
    add, idx: Path, pile: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(pile)
    moved = pile.rename(pile.with_name("moved"))
    monkeypatch.setattr(adding, "COMMIT_ROWS", 5)
    generations: list[int] = []
    with writing_index(idx) as writer:
        summary = add_images(writer, embedder, images_of(moved), lambda: generations.append(writer.manifest.generation))
    assert summary.in_words() == "0 added, 20 moved" and len(set(generations)) == 5
    assert {Path(path).parents[1] for _, path, _ in ImageIndex(idx).entries()} == {moved}


def test_moved_pictures_that_come_one_by_one_are_there_at_once(add, idx: Path, pile: Path, embedder: Embedder) -> None:  # type: ignore[no-untyped-def]
    add(pile)
    moved = pile.rename(pile.with_name("moved"))
    seen = []

    def sources() -> Iterator[Path | Pause]:
        for path in list(images_of(moved))[:3]:
            yield Path(path)
            yield PAUSE
            seen.append(str(path) in {known for _, known, _ in ImageIndex(idx).entries()})

    with writing_index(idx) as writer:
        add_images(writer, embedder, sources())
    assert seen == [True, True, True]


def test_what_comes_one_by_one_is_there_at_once(idx: Path, pile: Path, embedder: Embedder, facts: VectorFacts) -> None:
    """As paths from standard input do, with a pause after each."""
    sizes = []

    def sources() -> Iterator[Path | Pause]:
        for path in list(images_of(pile))[:4]:
            yield Path(path)
            yield PAUSE
            sizes.append(len(ImageIndex(idx)))

    with writing_index(idx, facts) as writer:
        add_images(writer, embedder, sources())
    assert sizes == [1, 2, 3, 4]


def test_an_index_among_its_pictures(pile: Path, embedder: Embedder, facts: VectorFacts) -> None:
    for _ in range(2):
        with writing_index(pile / "idx", facts) as writer:
            summary = add_images(writer, embedder, images_of(pile))
            assert not summary.errors and len(writer.by_path) == 20
            writer.commit(removed=[0])


def test_removal_by_path_and_folder(add, idx: Path, pile: Path) -> None:  # type: ignore[no-untyped-def]
    add(pile)
    shutil.rmtree(pile / "odd")  # what is removed need not be there
    with writing_index(idx) as writer:
        count, unknown = remove_images(writer, [pile / "odd", pile / "even" / "0.png", pile / "od"])
    assert count == 11 and unknown == [str(pile / "od")]
    assert (
        len(ImageIndex(idx)) == 9 and ImageIndex(idx).manifest.removed == 0
    )  # written anew: more than a fifth is gone


def test_pictures_of_a_store_are_removed_by_their_addresses(idx: Path, facts: VectorFacts) -> None:
    with writing_index(idx, facts) as writer:
        addition = Addition(writer)
        for number in range(4):
            vector = np.full(facts.width, number, np.float32)
            addition.add_row(Row(-1, f"s3://bucket/{number % 2}/{number}.png", f"{number:032x}", vector))
        addition.commit()
        assert remove_images(writer, ["s3://bucket/0", "s3://bucket/1/3.png", "s3://buck"]) == (3, ["s3://buck"])
    assert names(idx) == {"1.png"}
