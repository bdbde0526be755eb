"""What a model is measured on: never in silence on images that it was trained on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vitrail.data.checks.check_dataset import check_dataset
from vitrail.data.loading.split import digest_files, hold_out
from vitrail.dataset import Dataset, Item
from vitrail.errors import VitrailError
from vitrail.inference.evaluation_part import TrainingRecord, choose_part


@pytest.fixture
def data(tmp_path: Path) -> Callable[..., Dataset]:
    """So many files of a part each, of two classes."""

    def made(**counts: int) -> Dataset:
        items = []
        for part, count in counts.items():
            for number in range(count):
                path = tmp_path / f"{part}{number}.png"
                path.write_bytes(path.name.encode())
                items.append(Item(path, number % 2, None if part == "none" else part))
        return Dataset(tmp_path, "folders", "classify", ("cat", "dog"), tuple(items))

    return made


def trained(dataset: Dataset, holdout: float | None = None, seed: int = 0) -> dict[str, Any]:
    """What training on the collection would leave in the model's file."""
    divided = hold_out(dataset, holdout, seed) if holdout else dataset
    digests = sorted(digest_files([item.path for item in divided.part("train")]))
    return {"training": {"holdout": holdout, "seed": seed, "sample": [digest.hex() for digest in digests[:64]]}}


def test_auto_is_test_then_val_then_all(data: Callable[..., Dataset]) -> None:
    assert choose_part(data(train=3, val=2, test=1), "auto", {}).part == "test"
    assert choose_part(data(train=3, val=2), "auto", {}).part == "val"
    assert len(choose_part(data(train=3, val=2), "auto", {}).items) == 2
    for dataset in (data(none=5), data(train=5)):
        chosen = choose_part(dataset, "auto", {})
        assert (chosen.part, len(chosen.items), chosen.notes) == ("all", 5, ())


def test_a_part_that_is_asked_for(data: Callable[..., Dataset]) -> None:
    dataset = data(train=3, val=2, test=1)
    for part, count in (("train", 3), ("val", 2), ("test", 1), ("all", 6)):
        chosen = choose_part(dataset, part, {})
        assert (chosen.part, len(chosen.items)) == (part, count)
    assert len(choose_part(data(none=4), "train", {}).items) == 4


@pytest.mark.parametrize(
    ("counts", "part", "sentence"),
    [
        ({"none": 4}, "val", "has no val part, it is not divided into parts"),
        ({"none": 4}, "test", "has no test part"),
        ({"train": 2, "test": 2}, "val", "no val part, it has train and test"),
        ({"test": 2}, "train", "no train part, it has test"),
        ({"none": 4}, "most", "part is 'most'; choose one of auto, train"),
    ],
)
def test_a_part_that_is_not_there(
    data: Callable[..., Dataset], counts: dict[str, int], part: str, sentence: str
) -> None:
    with pytest.raises(VitrailError, match=sentence):
        choose_part(data(**counts), part, {})


@pytest.mark.parametrize("part", ["auto", "val"])
def test_what_training_held_out_is_found_again(data: Callable[..., Dataset], part: str) -> None:
    dataset = data(none=60)
    expected = hold_out(dataset, 0.3, seed=5).part("val")
    chosen = choose_part(dataset, part, trained(dataset, 0.3, seed=5))
    assert chosen.items == expected and chosen.part == "val"
    assert chosen.notes == (f"left out {60 - len(expected)} images the model was trained on",)


@pytest.mark.parametrize("seed", range(6))
def test_empty_files_do_not_change_what_training_held_out(data: Callable[..., Dataset], seed: int) -> None:
    """Training, which looks at files before it divides them, once knew each by its name, and `evaluate` all by the
    bytes that they do not have: the other images of a small class then changed sides."""
    dataset = data(none=24)
    for item in dataset.items[:6]:
        item.path.write_bytes(b"")
    training = check_dataset(dataset, fast=True, fraction=0.2, seed=seed).dataset
    provenance = trained(training, 0.2, seed)
    assert set(choose_part(dataset, "auto", provenance).items) == set(training.part("val"))


def test_what_training_held_out_beside_a_test_part(data: Callable[..., Dataset]) -> None:
    dataset = data(train=60, test=4)
    provenance = trained(dataset, 0.3)
    assert choose_part(dataset, "auto", provenance).part == "test"
    chosen = choose_part(dataset, "val", provenance)
    assert chosen.part == "val" and 0 < len(chosen.items) < 60


def test_other_data_is_used_whole(data: Callable[..., Dataset], tmp_path: Path) -> None:
    provenance = trained(data(none=60), 0.3)
    for number in range(8):
        (tmp_path / f"other{number}.png").write_bytes(b"other %d" % number)
    others = tuple(Item(tmp_path / f"other{number}.png", 0) for number in range(8))
    dataset = Dataset(tmp_path, "folders", "classify", ("cat",), others)
    chosen = choose_part(dataset, "auto", provenance)
    assert (chosen.part, len(chosen.items), chosen.notes) == ("all", 8, ())


def with_others(dataset: Dataset, copies: int, others: int) -> Dataset:
    """Some of the images, and images that nothing was trained on."""
    paths = [dataset.root / f"other{number}.png" for number in range(others)]
    for path in paths:
        path.write_bytes(path.name.encode())
    items = [*dataset.items[:copies], *(Item(path, number % 2) for number, path in enumerate(paths))]
    return dataset.replace(items=tuple(items))


def test_a_copy_of_a_training_image_among_others_does_not_make_them_the_training_data(
    data: Callable[..., Dataset],
) -> None:
    """One copy in 293 images of a test folder left out 269 of them, as images that the model was trained on."""
    trained_on = data(none=60)
    provenance = trained(trained_on, 0.3)
    sample = TrainingRecord.read(provenance).sample
    known = [item for item in trained_on.items if digest_files([item.path])[0].hex() in sample]
    mixed = with_others(trained_on.replace(items=(known[0],)), 1, 200)
    chosen = choose_part(mixed, "auto", provenance)
    assert (chosen.part, len(chosen.items)) == ("all", 201)
    assert chosen.notes == ("the model was trained on some of these images: the score is flattered",)
    with pytest.raises(VitrailError, match="has no val part"):
        choose_part(mixed, "val", provenance)


def test_of_training_images_among_others_only_those_that_were_held_out_are_taken(data: Callable[..., Dataset]) -> None:
    trained_on = data(none=60)
    provenance = trained(trained_on, 0.3)
    chosen = choose_part(with_others(trained_on, 60, 60), "auto", provenance)
    learnt = {item.path for item in hold_out(trained_on, 0.3).part("train")}
    assert chosen.part == "val" and not learnt & {item.path for item in chosen.items}
    assert re.fullmatch(
        r"left out \d+ images, about [3-7]\d % of which the model was trained on", "".join(chosen.notes)
    )


def test_a_score_on_images_that_were_trained_on_is_called_flattered(data: Callable[..., Dataset]) -> None:
    undivided, divided = data(none=60), data(train=20, val=5)
    for chosen in (
        choose_part(undivided, "all", trained(undivided, 0.3)),
        choose_part(undivided, "train", trained(undivided, 0.3)),
        choose_part(undivided, "auto", trained(undivided)),
        choose_part(divided, "train", trained(divided)),
        choose_part(divided, "all", trained(divided)),
    ):
        assert len(chosen.notes) == 1 and "the score is flattered" in chosen.notes[0]
    assert choose_part(divided, "auto", trained(divided)).notes == ()


def test_a_model_trained_on_every_image_of_the_data(data: Callable[..., Dataset]) -> None:
    dataset = data(none=1)
    with pytest.raises(VitrailError, match="was trained on all of .*: give it other images"):
        choose_part(dataset, "auto", trained(dataset) | {"training": trained(dataset)["training"] | {"holdout": 0.01}})


@pytest.mark.parametrize("training", [None, 3, {}, {"sample": 3}, {"sample": [], "holdout": "x", "seed": None}])
def test_a_file_that_tells_nothing_was_trained_on_nothing_known(training: Any) -> None:
    assert TrainingRecord.read({"training": training}) == TrainingRecord(frozenset(), None, 0)
    assert TrainingRecord.read({}) == TrainingRecord(frozenset(), None, 0)
