"""Which images are learnt from, and which labels measure."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.training.running import write_pictures
from vitrail.errors import VitrailError
from vitrail.pretraining.pile import describe, enough, has_labels, pile_dataset
from vitrail.training.settings import Data


def loose(folder: Path, count: int = 6) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
    return folder


def test_class_folders_are_labels(tmp_path):
    data = write_pictures(tmp_path / "data", 3)
    dataset = pile_dataset(data, Data())
    assert dataset.labels == ("cat", "dog", "owl") and len(dataset.items) == 9
    assert describe(dataset, 0.1) == "9 images of 3 classes, which only measure, 10 % held out to measure by"


@pytest.mark.parametrize("where", [".", "a", "a/b/c"])
def test_pictures_in_any_nesting_are_a_pile(tmp_path, where):
    loose(tmp_path / where)
    assert not has_labels(tmp_path)
    dataset = pile_dataset(tmp_path, Data())
    assert len(dataset.items) == 6 and len(dataset.labels) == 1
    assert describe(dataset, None) == "6 images without labels"


def test_folders_beside_loose_pictures_are_no_classes(tmp_path):
    loose(tmp_path)
    loose(tmp_path / "2023")
    loose(tmp_path / "2024" / "june")
    assert len(pile_dataset(tmp_path, Data()).items) == 18


def test_a_test_part_is_left_alone(tmp_path):
    for part in ("train", "val", "test"):
        write_pictures(tmp_path / part, 2)
    dataset = pile_dataset(tmp_path, Data())
    assert {item.split for item in dataset.items} == {"train", "val"} and len(dataset.items) == 12
    for part in ("train", "test"):
        loose(tmp_path / "flat" / part)
    assert [item.split for item in pile_dataset(tmp_path / "flat", Data()).items] == ["train"] * 6


def test_labels_of_another_kind_are_not_used(tmp_path):
    loose(tmp_path)
    rows = "".join(f"{number}.png,{number}.5\n" for number in range(6))
    (tmp_path / "table.csv").write_text("image,weight\n" + rows)
    dataset = pile_dataset(tmp_path, Data())
    assert len(dataset.items) == 6 and len(dataset.labels) == 1 and dataset.items[0].target == 0


def test_nothing_to_learn_from_is_one_sentence(tmp_path):
    with pytest.raises(VitrailError, match="holds no images"):
        pile_dataset(tmp_path, Data())
    with pytest.raises(VitrailError, match="no folder or table"):
        pile_dataset(tmp_path / "gone", Data())
    dataset = pile_dataset(loose(tmp_path / "few", 2), Data())
    with pytest.raises(VitrailError, match="2 images to learn from and 0 to measure by are too few"):
        enough(dataset)
    shutil.rmtree(tmp_path / "few")
