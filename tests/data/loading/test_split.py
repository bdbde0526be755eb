"""The automatic split: the same for ever, in proportion, and nothing divided that belongs together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vitrail.data.description import describe
from vitrail.data.layouts.recognise import read_dataset
from vitrail.data.loading.split import ENOUGH, digest_files, held_out_units, hold_out, make_units, number_of
from vitrail.dataset import Dataset, Item
from vitrail.errors import VitrailError

FRACTION = 0.2


def make(contents: list[tuple[bytes, int, str | None]]) -> tuple[Dataset, list[bytes]]:
    """A collection of (bytes, class, group) that needs no disk."""
    items = tuple(Item(Path(f"/data/{n}"), label, None, group) for n, (_, label, group) in enumerate(contents))
    labels = tuple(str(n) for n in range(1 + max((label for _, label, _ in contents), default=0)))
    return Dataset(Path("/data"), "folders", "classify", labels, items), [data for data, _, _ in contents]


def sides(contents: list[tuple[bytes, int, str | None]], seed: int = 0) -> list[str]:
    dataset, digests = make(contents)
    return [item.split or "" for item in hold_out(dataset, FRACTION, seed, digests).items]


images = st.tuples(st.binary(min_size=2, max_size=2), st.integers(0, 3), st.none())
sets = st.lists(images, min_size=1, max_size=60, unique_by=lambda image: image[0])


@given(sets, st.randoms())
@settings(deadline=None)
def test_the_order_of_the_files_does_not_matter(contents: list, random: object) -> None:
    shuffled = list(contents)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    before, after = dict(zip(contents, sides(contents), strict=True)), dict(zip(shuffled, sides(shuffled), strict=True))
    assert before == after


@given(sets)
@settings(deadline=None)
def test_a_class_of_five_has_both_sides_and_every_class_is_trained_on(contents: list) -> None:
    where = sides(contents)
    for label in {label for _, label, _ in contents}:
        own = [side for side, (_, one, _) in zip(where, contents, strict=True) if one == label]
        assert "train" in own
        assert "val" in own or len(own) < ENOUGH


@given(sets, sets)
@settings(max_examples=150, deadline=None)
def test_added_files_move_nothing_but_the_exceptions(old: list, new: list) -> None:
    known = {data for data, _, _ in old}
    new = [image for image in new if image[0] not in known]
    assume(new)
    before, after = sides(old), sides(old + new)[: len(old)]
    for label in range(4):
        moved = [n for n, image in enumerate(old) if image[1] == label and before[n] != after[n]]
        numbers = [number_of(f"bytes {data.hex()}", 0) for data, one, _ in old if one == label]
        settled = any(n < FRACTION for n in numbers) and any(n >= FRACTION for n in numbers)
        assert len(moved) <= (0 if settled else 1)


@given(sets, st.data())
@settings(deadline=None)
def test_removed_files_move_nothing_in_settled_classes(contents: list, data: st.DataObject) -> None:
    gone = data.draw(st.integers(0, len(contents) - 1))
    rest = contents[:gone] + contents[gone + 1 :]
    assume(rest)
    before, after = sides(contents), sides(rest)
    before.pop(gone)
    for label in range(4):
        own = [n for n, image in enumerate(rest) if image[1] == label]
        numbers = [number_of(f"bytes {rest[n][0].hex()}", 0) for n in own]
        if any(n < FRACTION for n in numbers) and any(n >= FRACTION for n in numbers):
            assert all(before[n] == after[n] for n in own)


tied = st.lists(
    st.tuples(st.binary(min_size=1, max_size=1), st.integers(0, 2), st.sampled_from([None, "a", "b", "c", "é"])),
    min_size=1,
    max_size=40,
)


@given(tied, st.integers(0, 5))
@settings(deadline=None)
def test_identical_images_and_groups_are_never_divided(contents: list, seed: int) -> None:
    where = sides(contents, seed)
    for key in ({("bytes", data) for data, _, _ in contents}) | {("group", group) for _, _, group in contents if group}:
        together = {
            side
            for side, (data, _, group) in zip(where, contents, strict=True)
            if (data if key[0] == "bytes" else group) == key[1]
        }
        assert len(together) == 1, key


def test_a_group_keeps_its_side_when_it_grows() -> None:
    others = [(bytes([9, n]), n % 2, None) for n in range(200)]
    for patient in "abcdefgh":
        small = [(f"{patient}1".encode(), 0, patient), (f"{patient}2".encode(), 0, patient)]
        grown = [*small, *((bytes([n, n, n]), 0, patient) for n in range(50))]
        assert sides(others + small)[200] == sides(others + grown)[200], patient


def test_large_classes_are_held_out_in_proportion() -> None:
    contents = [(n.to_bytes(3, "big"), n % 3, None) for n in range(6000)]
    where = sides(contents)
    for label in range(3):
        held = sum(side == "val" for side, (_, one, _) in zip(where, contents, strict=True) if one == label)
        assert 0.17 < held / 2000 < 0.23  # four standard deviations
    other = sides(contents, seed=1)
    assert 0.2 < sum(a != b for a, b in zip(where, other, strict=True)) / 6000 < 0.45  # another seed, another split


def test_numbers_are_the_same_on_every_machine() -> None:
    assert number_of("bytes 00", 0) == pytest.approx(0.7562804608596844, abs=1e-12)


def test_several_labels_and_no_labels() -> None:
    dataset = Dataset(
        Path("/d"), "table", "multilabel", ("a", "b"),
        tuple(Item(Path(f"/d/{n}"), ((), (0,), (0, 1), (1,))[n % 4]) for n in range(40)),
    )  # fmt: skip
    parted = hold_out(dataset, FRACTION, 0, [bytes([n]) for n in range(40)])
    assert all(parted.class_counts("val")) and all(parted.class_counts("train"))


def test_regression_is_one_class() -> None:
    items = tuple(Item(Path(f"/d/{n}"), (float(n),)) for n in range(5))
    dataset = Dataset(Path("/d"), "table", "regress", ("age",), items)
    for seed in range(30):
        parted = hold_out(dataset, FRACTION, seed, [bytes([n]) for n in range(5)])
        assert {item.split for item in parted.items} == {"train", "val"}


def test_training_wins_where_classes_share_all_they_have() -> None:
    units, numbers = make_units([b"x"], [None], 0)
    assert held_out_units(units, dict.fromkeys(numbers, 0.1), [(0,)], FRACTION) == set()


def test_given_parts_stay(photos: Callable[..., Path]) -> None:
    folder = photos(*(f"train/{label}/{n}.png" for label in "ab" for n in range(6)), "test/a/1.png", "test/b/2.png")
    parted = hold_out(read_dataset(folder))
    assert len(parted.part("test")) == 2 and parted.part("val") and parted.part("train")
    assert "10 % of train will be held out" in describe(read_dataset(folder))
    folder = photos("val/a/9.png", "val/b/9.png")
    again = hold_out(read_dataset(folder))
    assert len(again.part("val")) == 2 and len(again.part("train")) == 12


def test_the_bytes_decide_not_the_name(photos: Callable[..., Path], make: SimpleNamespace) -> None:
    folder = photos(*(f"{label}/{n}.png" for label in "ab" for n in range(12)))
    before = {item.path.name + item.path.parent.name: item.split for item in hold_out(read_dataset(folder)).items}
    (folder / "a").rename(folder / "c")
    for path in (folder / "c").iterdir():
        path.rename(path.with_stem("new" + path.stem))
    after = {item.path.name[3:] + "a": item.split for item in hold_out(read_dataset(folder)).items if item.target == 1}
    assert after.items() <= before.items() and len(after) == 12


def test_a_vanished_file_does_not_stop_the_split(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    seen: list[tuple[int, int]] = []
    digests = digest_files([tmp_path / "a", tmp_path / "gone"], progress=lambda *done: seen.append(done))
    assert len(set(digests)) == 2 and seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_a_fraction_that_is_none(fraction: float) -> None:
    with pytest.raises(VitrailError, match="between 0 and 1"):
        hold_out(make([(b"1", 0, None)])[0], fraction)
