"""The names of classes in YAML: every way in which YOLO files write them, and nothing that a hostile file may do."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vitrail.errors import VitrailError
from vitrail.tasks.shared.labels.class_names import read_names


def yaml(folder: Path, text: str) -> Path:
    path = folder / "data.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "names: [cat, 'big dog']",
        'names: ["cat", "big dog"]  # two',
        "names: {0: cat, 1: big dog}",
        "names:\n  - cat\n  - big dog\nnc: 2",
        "nc: 2\nnames:\n- cat\n- 'big dog'\n",
        "path: ../data\ntrain: images/train\nnames:\n  # first\n  0: cat\n\n  1: big dog\nroboflow:\n  version: 3\n",
        "names: [\n  cat,\n  big dog,\n]\n",
        "\ufeffnames: [cat, big dog]",
        "%YAML 1.1\n---\nnames: [cat, big dog]\n...\n",
        "names: !!seq [!!str cat, big dog]",
    ],
)
def test_every_way_of_writing_names(tmp_path: Path, text: str) -> None:
    assert read_names(yaml(tmp_path, text)) == {0: "cat", 1: "big dog"}


def test_names_are_text_whatever_yaml_would_make_of_them(tmp_path: Path) -> None:
    names = ["no", "yes", "on", "null", "~", "1", "1.50", "0x10", "2020-01-01", "café", "a: b", "x, y", "it's"]
    quoted = {"a: b", "x, y", "it's", "~"}
    lines = "\n".join(f'  - "{name}"' if name in quoted else f"  - {name}" for name in names)
    assert list(read_names(yaml(tmp_path, f"names:\n{lines}\n")).values()) == names


def test_a_file_without_names(tmp_path: Path) -> None:
    assert read_names(yaml(tmp_path, "train: images\nnc: 2\n")) == {}
    assert read_names(yaml(tmp_path, "")) == {}


@pytest.mark.parametrize("text", ["names:", "names: []", "names: {}", "names: ['']"])
def test_no_names_in_the_list(tmp_path: Path, text: str) -> None:
    with pytest.raises(VitrailError, match=r"data.yaml names no class: a name on each line"):
        read_names(yaml(tmp_path, text))


@pytest.mark.parametrize("text", ["names: [cat, cat]", "names: {0: cat, 1: cat}", "names: {0: cat, 0: dog}"])
def test_a_class_twice(tmp_path: Path, text: str) -> None:
    with pytest.raises(VitrailError, match=r"data.yaml names a class twice"):
        read_names(yaml(tmp_path, text))


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text, words",
    [
        (BOMB + "names: *i\n", "line 2 has an alias"),
        ("names: &n [cat, *n]\n", "line 1 has an alias"),
        ("names: !!python/object/apply:os.system ['echo no']\n", "line 1 has a tag"),
        ("names: [!custom cat]\n", "line 1 has a tag"),
        ("names: " + "[" * 100_000, "nested too deeply"),
        ("names:\n" + "".join(" " * n + "- \n" for n in range(2, 1000)), "nested too deeply"),
        ("names: " + "{a: " * 100_000, "nested too deeply"),
        ("names: [cat, dog", "line 1"),
        ("names: [cat\ttail, @dog]", "line 1"),
        ("names: cat", "a list of names, or of 'index: name'"),
        ("names: [[cat], dog]", "a list of names, or of 'index: name'"),
        ("names: {cat: 0, dog: 1}", "a list of names, or of 'index: name'"),
        ("names: {0: [cat]}", "a list of names, or of 'index: name'"),
        ("- names\n- cat\n", "a list of names, or of 'index: name'"),
        ("names: [cat]\n---\nnames: [dog]\n", "line 2"),
        ("names: {999999999999: cat}", "numbers go up to 65,535"),
        ("x: " + "y" * 3_000_000, "larger than 1 MB"),
        ("names: [cat]\n\x00", "data.yaml"),
    ],
)
def test_hostile_and_damaged_files_are_refused_in_a_sentence(tmp_path: Path, text: str, words: str) -> None:
    start = time.process_time()
    with pytest.raises(VitrailError) as error:
        read_names(yaml(tmp_path, text))
    assert "data.yaml" in str(error.value) and words in str(error.value) and "\n" not in str(error.value)
    assert time.process_time() - start < 2


def test_a_number_beyond_all_classes_in_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_text("0 cat\n999999999999 dog\n")
    with pytest.raises(VitrailError, match="classes.txt.*numbers go up to 65,535"):
        read_names(path)
