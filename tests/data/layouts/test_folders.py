"""Folders of images: classes, parts, and everything that lies about in real ones."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.hostile import outcome
from vitrail.data.description import describe, trainable
from vitrail.data.layouts.recognise import read_dataset
from vitrail.dataset import Dataset
from vitrail.errors import VitrailError

Photos = Callable[..., Path]


def classes_of(dataset: Dataset) -> dict[str, list[str]]:
    """Class -> its files, relative to the root."""
    found: dict[str, list[str]] = {label: [] for label in dataset.labels}
    for item in dataset.items:
        assert isinstance(item.target, int)
        found[dataset.labels[item.target]].append(item.path.relative_to(dataset.root).as_posix())
    return found


def kinds(dataset: Dataset) -> dict[str, int]:
    return {finding.kind: finding.count for finding in dataset.findings}


def test_class_folders(photos: Photos) -> None:
    dataset = read_dataset(photos("dog/b.jpg", "cat/2.png", "cat/deep/er/1.webp", "dog/A.JPG"))
    assert dataset.layout == "folders" and dataset.task == "classify"
    assert classes_of(dataset) == {"cat": ["cat/2.png", "cat/deep/er/1.webp"], "dog": ["dog/A.JPG", "dog/b.jpg"]}
    assert all(item.split is None and item.group is None for item in dataset.items)
    assert describe(dataset) == ("4 images in 2 classes (folders), no validation part: 20 % will be held out")
    assert trainable(dataset) is dataset


def test_classes_are_in_natural_order(photos: Photos) -> None:
    assert read_dataset(photos("10/a.png", "2/a.png", "1/a.png")).labels == ("1", "2", "10")


@pytest.mark.parametrize(
    "parts", ["train val test", "Train VALID Test", "training validation testing", "train dev test"]
)
def test_parts_under_any_usual_name(photos: Photos, parts: str) -> None:
    train, val, test = parts.split()
    names = [f"{train}/cat/1.png", f"{train}/dog/2.png", f"{val}/cat/3.png", f"{val}/dog/4.png", f"{test}/dog/5.png"]
    dataset = read_dataset(photos(*names))
    assert dataset.layout == "split-folders" and dataset.labels == ("cat", "dog")
    assert [item.split for item in dataset.items] == ["train", "train", "val", "val", "test"]
    assert describe(dataset) == "5 images in 2 classes (folders by part): train 2, val 2, test 1"


def test_parts_without_validation_say_so(photos: Photos) -> None:
    dataset = read_dataset(photos("train/cat/1.png", "train/dog/2.png", "test/cat/3.png"))
    assert describe(dataset, 0.1).endswith(": train 2, test 1, no validation part: 10 % of train will be held out")


def test_a_train_beside_other_vehicles_is_a_class(photos: Photos) -> None:
    dataset = read_dataset(photos("train/ice/1.png", "bus/2.png", "car/3.png"))
    assert dataset.layout == "folders" and dataset.labels == ("bus", "car", "train")


def test_classes_called_like_parts_need_the_layout_said(photos: Photos) -> None:
    folder = photos("train/1.png", "test/2.png")
    with pytest.raises(VitrailError, match=r"no class folders with images.*layout='folders'"):
        read_dataset(folder)
    assert read_dataset(folder, layout="folders").labels == ("test", "train")


def test_a_class_in_two_unicode_forms_is_one(photos: Photos) -> None:
    nfd, nfc = unicodedata.normalize("NFD", "café"), unicodedata.normalize("NFC", "café")
    dataset = read_dataset(photos(f"train/{nfd}/1.png", "train/tea/2.png", f"val/{nfc}/3.png", "val/tea/4.png"))
    assert dataset.labels == ("café", "tea")
    assert dataset.class_counts("val") == [1, 1] and not kinds(dataset)


def test_litter_is_ignored_and_other_files_are_counted(photos: Photos, make: SimpleNamespace) -> None:
    folder = photos("cat/1.png", "dog/2.png", ".git/x/3.png", "__MACOSX/cat/._1.png", "cat/.hidden.png", "@eaDir/4.png")
    for name in ("Thumbs.db", "cat/Thumbs.db", "cat/.DS_Store", "desktop.ini", "dog/DESKTOP.INI"):
        make.put(folder / name, b"x")
    make.put(folder / "cat/notes.txt", b"x")
    make.put(folder / "README", b"x")
    make.put(folder / "dog/film.mp4", b"x")
    dataset = read_dataset(folder)
    assert classes_of(dataset) == {"cat": ["cat/1.png"], "dog": ["dog/2.png"]}
    assert kinds(dataset) == {"other-files": 3}
    assert {example.files[0].name for example in dataset.findings[0].examples} == {"notes.txt", "README", "film.mp4"}


def test_loose_images_and_empty_classes_are_reported(photos: Photos) -> None:
    folder = photos("cat/1.png", "dog/2.png", "loose.png")
    (folder / "bird").mkdir()
    dataset = read_dataset(folder)
    assert dataset.labels == ("cat", "dog")
    assert kinds(dataset) == {"empty-class": 1, "loose-images": 1}


def test_folders_beside_the_parts_are_reported(photos: Photos) -> None:
    dataset = read_dataset(
        photos("train/cat/1.png", "train/dog/2.png", "val/cat/3.png", "val/dog/4.png", "extra/5.png", "val/6.png")
    )
    assert len(dataset.items) == 4
    assert kinds(dataset) == {"loose-images": 1, "other-folders": 1}


def test_odd_names_work(photos: Photos) -> None:
    names = ["a class/im age (1).png", "a class/'quote\".png", "ünï/日本.png", "ünï/#%&.png"]
    assert sorted(name for some in classes_of(read_dataset(photos(*names))).values() for name in some) == sorted(names)


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_names_that_are_no_text_work(photos: Photos) -> None:
    folder = photos("cat/1.png", "dog/2.png")
    (folder / "cat" / "1.png").rename(folder / "cat" / os.fsdecode(b"\xff\xfe.png"))
    assert len(read_dataset(folder).items) == 2


def test_links_to_files_and_folders_are_followed_and_loops_end(photos: Photos, tmp_path: Path) -> None:
    folder = photos("cat/1.png", "dog/2.png")
    elsewhere = tmp_path / "elsewhere"
    (folder / "cat").rename(elsewhere)
    (folder / "cat").symlink_to(elsewhere)
    (folder / "dog" / "again.png").symlink_to(folder / "dog" / "2.png")
    (folder / "dog" / "loop").symlink_to(folder / "dog")
    (folder / "dog" / "all").symlink_to(folder)
    (elsewhere / "up").symlink_to(folder)
    dataset = read_dataset(folder)
    assert classes_of(dataset) == {"cat": ["cat/1.png"], "dog": ["dog/2.png", "dog/again.png"]}


def test_a_dead_link_is_an_error_that_is_named(photos: Photos) -> None:
    folder = photos("cat/1.png", "dog/2.png")
    (folder / "dog" / "gone.png").symlink_to(folder / "nowhere.png")
    (finding,) = read_dataset(folder).findings
    assert (finding.kind, finding.severity, finding.count) == ("missing", "error", 1)
    assert finding.examples[0].files == (folder / "dog" / "gone.png",)


def test_the_order_does_not_depend_on_the_disk(photos: Photos, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = photos(*(f"{label}/{number}.png" for label in "ab" for number in (3, 1, 2)))
    first = read_dataset(folder)
    real = os.scandir

    class Backwards:
        def __init__(self, path: object) -> None:
            with real(path) as entries:
                self.entries = sorted(entries, key=lambda entry: entry.name, reverse=True)

        def __enter__(self) -> list:
            return self.entries

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(os, "scandir", Backwards)
    assert read_dataset(folder).items == first.items


def test_folders_named_by_numbers_can_be_regression(photos: Photos) -> None:
    folder = photos("1.5/a.png", "20/b.png")
    dataset = read_dataset(folder, task="regress")
    assert [item.target for item in dataset.items] == [(1.5,), (20.0,)]
    assert describe(dataset).startswith("2 images with number to predict (folders)")
    (folder / "many").mkdir()
    (folder / "many" / "c.png").write_bytes((folder / "20" / "b.png").read_bytes())
    with pytest.raises(VitrailError, match="is not named by a number"):
        read_dataset(folder, task="regress")
    with pytest.raises(VitrailError, match="one label an image"):
        read_dataset(folder, task="multilabel")


# ---- wrong input, one sentence each


def sentence(caught: pytest.ExceptionInfo[VitrailError]) -> str:
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    return text


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(VitrailError) as caught:
        read_dataset(tmp_path)
    assert "holds no images: one folder for each class is looked for" in sentence(caught)


def test_a_folder_of_empty_folders_and_other_files(tmp_path: Path, make: SimpleNamespace) -> None:
    make.put(tmp_path / "cat" / "notes.txt", b"")
    with pytest.raises(VitrailError) as caught:
        read_dataset(tmp_path)
    assert "holds no images in its 1 folder, only 1 other file such as notes.txt" in sentence(caught)


def test_images_without_class_folders(photos: Photos) -> None:
    with pytest.raises(VitrailError) as caught:
        read_dataset(photos("1.png", "2.png"))
    assert "holds 2 images but no class folders" in sentence(caught)


def test_one_class_only(photos: Photos) -> None:
    dataset = read_dataset(photos("cat/1.png", "cat/2.png"))
    with pytest.raises(VitrailError) as caught:
        trainable(dataset)
    assert "there is one class only, 'cat'" in sentence(caught)
    assert "add images of a second one" in sentence(caught)


def test_one_folder_too_high(photos: Photos) -> None:
    folder = photos("set/cat/1.png", "set/dog/2.png")
    with pytest.raises(VitrailError, match=f"you may mean {folder / 'set'}"):
        trainable(read_dataset(folder))


def test_no_train_part_and_a_class_that_is_not_in_it(photos: Photos) -> None:
    with pytest.raises(VitrailError, match="there is no train part, only val and test"):
        trainable(read_dataset(photos("val/cat/1.png", "test/dog/2.png")))


def test_a_class_without_training_images(photos: Photos) -> None:
    dataset = read_dataset(photos("train/cat/1.png", "train/dog/2.png", "val/cat/3.png", "val/bird/4.png"))
    with pytest.raises(VitrailError, match="1 class has no training image: bird"):
        trainable(dataset)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none", "there is no folder or table"),
        ("a.zip", "is an archive"),
        ("a.jpg", "is one image"),
        ("a.txt", "neither"),
    ],
)
def test_data_that_is_no_data(name: str, words: str, tmp_path: Path) -> None:
    if "." in name:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(VitrailError, match=words):
        read_dataset(tmp_path / name)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"layout": "flat"}, "layout is 'flat'; choose one of folders, split-folders, table"),
        ({"task": "rank"}, "task is 'rank'; choose one of classify, multilabel, regress"),
        ({"targets": ["age"]}, "targets are columns of a table"),
        ({"layout": "table"}, "holds no table"),
    ],
)
def test_unknown_choices_name_the_known_ones(photos: Photos, choice: dict[str, Any], words: str) -> None:
    with pytest.raises(VitrailError, match=words):
        read_dataset(photos("cat/1.png", "dog/2.png"), **choice)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may open everything")
def test_a_locked_folder(photos: Photos) -> None:
    folder = photos("cat/1.png", "dog/2.png")
    (folder / "cat").chmod(0)
    try:
        with pytest.raises(VitrailError, match="cannot open the folder"):
            read_dataset(folder)
    finally:
        (folder / "cat").chmod(0o755)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes there")
@pytest.mark.parametrize("name", ["x.json", "x.csv", "x.xml", "x.parquet", "x.txt", "cat/x.png", "data.yaml"])
def test_a_pipe_is_never_opened(name: str, photos: Photos) -> None:
    """To read it would wait for a writer for ever."""
    folder = photos("cat/1.png", "dog/2.png")
    os.mkfifo(folder / name)
    code = f"""
    from vitrail.data.layouts.recognise import read_dataset
    dataset = read_dataset({str(folder)!r})
    print(len(dataset.items), *(finding.title for finding in dataset.findings))
    """
    assert outcome(code, folder, seconds=20).startswith("2 1 file is no image")


def test_a_link_to_itself_is_a_dead_one(photos: Photos) -> None:
    folder = photos("cat/1.png", "dog/2.png")
    for name in ("cat/loop.png", "loop.csv", "loop"):
        (folder / name).symlink_to(folder / name)
    dataset = read_dataset(folder)
    assert len(dataset.items) == 2 and {finding.kind: finding.count for finding in dataset.findings} == {"missing": 3}


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_a_class_folder_whose_name_is_no_text(photos: Photos) -> None:
    folder = photos("cat/1.png", "dog/2.png")
    (folder / "dog").rename(folder / os.fsdecode(b"d\xff"))
    with pytest.raises(VitrailError, match="the class name 'd.' is no text: rename it"):
        read_dataset(folder)
