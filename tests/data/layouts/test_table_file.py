"""Images listed in a CSV or Parquet file."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.hostile import outcome
from vitrail.data.description import describe, trainable
from vitrail.data.layouts import table_file
from vitrail.data.layouts.recognise import read_dataset
from vitrail.dataset import Dataset
from vitrail.errors import VitrailError

Photos = Callable[..., Path]


@pytest.fixture
def table(photos: Photos) -> Callable[..., Path]:
    """Five images a.png .. e.png, and a CSV beside them with these lines."""

    def write(*lines: str, name: str = "table.csv", encoding: str = "utf-8") -> Path:
        folder = photos(*(f"{letter}.png" for letter in "abcde"))
        (folder / name).write_bytes("\n".join(lines).encode(encoding))
        return folder / name

    return write


def targets(dataset: Dataset) -> dict[str, object]:
    return {item.path.name: item.target for item in dataset.items}


def test_one_label(table: Callable[..., Path]) -> None:
    path = table("image,label", "a.png,10", "b.png,2", "c.png,10")
    dataset = read_dataset(path)
    assert (dataset.task, dataset.layout, dataset.labels) == ("classify", "table", ("2", "10"))
    assert targets(dataset) == {"a.png": 1, "b.png": 0, "c.png": 1}
    assert describe(dataset) == "3 images in 2 classes (table.csv), no validation part: 20 % will be held out"
    assert read_dataset(path.parent) == dataset  # the folder around it will do


def test_several_labels(table: Callable[..., Path]) -> None:
    dataset = read_dataset(table("image,labels", "a.png,cat| dog", "b.png,", "c.png,dog|dog|", "d.png,bird"))
    assert (dataset.task, dataset.labels) == ("multilabel", ("bird", "cat", "dog"))
    assert targets(dataset) == {"a.png": (1, 2), "b.png": (), "c.png": (2,), "d.png": (0,)}
    assert [finding.kind for finding in dataset.findings] == ["no-label"]
    assert describe(dataset).startswith("4 images with 3 labels, several on one image (table.csv)")


def test_numbers(table: Callable[..., Path]) -> None:
    dataset = read_dataset(table("image,age,height,note", "a.png,3,1.5,x", "b.png,4e1,-2,", "c.png,0,0,y"))
    assert (dataset.task, dataset.labels) == ("regress", ("age", "height"))
    assert targets(dataset) == {"a.png": (3.0, 1.5), "b.png": (40.0, -2.0), "c.png": (0.0, 0.0)}
    assert describe(dataset).startswith("3 images with age and height to predict (table.csv)")
    assert [(one.kind, one.count) for one in dataset.findings] == [("unused-columns", 1)]


def test_which_numbers_and_which_task_can_be_said(table: Callable[..., Path]) -> None:
    path = table("image,label,age,id", "a.png,3.5,1,100", "b.png,4.5,2,200")
    assert read_dataset(path, task="regress").labels == ("label",)
    assert read_dataset(path, targets=["age"]).labels == ("age",)
    assert read_dataset(path, task="multilabel").task == "multilabel"
    assert [finding.kind for finding in read_dataset(path).findings] == ["numeric-labels"]


def test_splits_and_groups(table: Callable[..., Path]) -> None:
    lines = ("image,label,split,group", "a.png,x,Train,g1", "b.png,y,training,", "c.png,x,VALID,g2", "d.png,y,test,g3")
    dataset = read_dataset(table(*lines))
    assert [item.split for item in dataset.items] == ["train", "train", "val", "test"]
    assert [item.group for item in dataset.items] == ["g1", None, "g2", "g3"]
    assert dataset.has_validation


def test_an_empty_split_column_is_none(table: Callable[..., Path]) -> None:
    assert [i.split for i in read_dataset(table("image,label,split", "a.png,x,", "b.png,y,")).items] == [None, None]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_what_spreadsheets_write(table: Callable[..., Path], delimiter: str) -> None:
    lines = ["\ufeff Image ,LABEL", 'a.png,"x, or so"', "", "b.png,y", ","]
    if delimiter != ",":
        lines = [line.replace('"x, or so"', "x").replace(",", delimiter) for line in lines]
    dataset = read_dataset(table(*lines))
    assert len(dataset.items) == 2 and dataset.labels[1] == "y"


def test_the_row_numbers_that_pandas_writes_are_no_target(table: Callable[..., Path]) -> None:
    assert read_dataset(table(",image,age", "0,a.png,5", "1,b.png,6")).labels == ("age",)


def test_paths_are_found_however_they_are_written(photos: Photos) -> None:
    nfd = unicodedata.normalize("NFD", "é.png")
    folder = photos("sub dir/x.png", f"sub dir/{nfd}", "y.png", "z.png")
    rows = ["sub dir\\x.png", "sub dir/é.png", " y.png", str(folder / "z.png")]
    (folder / "t.csv").write_text("\n".join(["image,label", *(f"{row},{n % 2}" for n, row in enumerate(rows))]))
    dataset = read_dataset(folder / "t.csv")
    assert len(dataset.items) == 4 and not dataset.findings
    assert all(item.path.is_file() for item in dataset.items)


def test_missing_images_are_named_counted_and_left_out(table: Callable[..., Path]) -> None:
    dataset = read_dataset(table("image,label", "a.png,x", "b.png,y", "gone.png,x", "far/gone.png,y"))
    assert len(dataset.items) == 2
    (finding,) = dataset.findings
    assert (finding.kind, finding.severity, finding.count) == ("missing", "error", 2)
    assert [example.files[0].name for example in finding.examples] == ["gone.png", "gone.png"]


def test_repeated_rows_are_used_once(table: Callable[..., Path]) -> None:
    dataset = read_dataset(table("image,label", "a.png,x", "b.png,y", "./a.png,x", "a.png,x"))
    assert len(dataset.items) == 2
    assert [(one.kind, one.count) for one in dataset.findings] == [("repeated-rows", 2)]


def test_a_table_wins_over_folders_and_other_tables_are_files(photos: Photos) -> None:
    folder = photos("images/1.png", "images/2.png", "other/3.png")
    (folder / "captions.csv").write_text("image,caption\nimages/1.png,a cat")
    assert read_dataset(folder).layout == "folders"
    (folder / "train.csv").write_text("image,label\nimages/1.png,x\nimages/2.png,y")
    assert read_dataset(folder).layout == "table"
    assert read_dataset(folder, layout="folders").labels == ("images", "other")


# ---- wrong input, one sentence each


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["file,label", "a.png,x"], "has no column 'image' .* its columns: file, label"),
        ([""], "has no column 'image' .* its columns: none"),
        (["image,label"], "has no rows below its column names"),
        (["image,label,labels", "a.png,x,y"], "has both 'label' and 'labels'"),
        (["image,label", "a.png,x", "b.png,", "c.png, "], r"2 rows have no label \(lines 3, 4\)"),
        (["image,age", "a.png,1", "b.png,nan", "c.png,"], r"2 rows have no number in 'age' \(lines 3, 4"),
        (["image,age", "a.png,1", "b.png,2", "c.png,old"], r"1 row has no number in 'age' \(line 4, .*'old'"),
        (["image,age", "a.png,1", "b.png,inf"], "no number in 'age'"),
        (["image,caption", "a.png,nice"], "no column 'label', 'labels' or of numbers to learn"),
        (["image,labels", "a.png,", "b.png,|"], "the column 'labels' is empty in every row"),
        (["image,label,split", "a.png,x,holdout", "b.png,y,train"], "the split is 'holdout' in line 2; it is train"),
        (["image,label,split", "a.png,x,", "b.png,y,train"], "the split is '' in line 2"),
        (["image,label", "a.png,x", "a.png,y"], r"a.png is listed twice .*\(lines 2, 3\) with different answers"),
        (["image,label,split", "a.png,x,train", "a.png,x,val"], "in train and in val: an image is in one part only"),
        (["image,label", "gone.png,x"], "none of its images exists, for example .*gone.png; paths are relative"),
        (["image,label", "a,x"], "none of its images exists.* need their ending"),
        (["image,label", ",x"], "no image is named in line 2"),
        (["image,label", "https://x.org/a.png,x"], "lists web addresses"),
        (["image,label,label", "a.png,x,y"], "has two columns called 'label'"),
        (['image,label', 'a.png,"x'], "cannot read"),
    ],
)  # fmt: skip
def test_each_mistake_has_its_sentence(table: Callable[..., Path], lines: list[str], words: str) -> None:
    path = table(*lines)
    with pytest.raises(VitrailError, match=words) as caught:
        read_dataset(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_table_in_another_encoding(table: Callable[..., Path]) -> None:
    with pytest.raises(VitrailError, match="is not UTF-8 text"):
        read_dataset(table("image,label", "a.png,caf\xe9", encoding="latin-1"))


def test_a_task_that_does_not_fit(table: Callable[..., Path]) -> None:
    with pytest.raises(VitrailError, match="to learn one class an image, call it 'label'"):
        read_dataset(table("image,labels", "a.png,x"), task="classify")
    with pytest.raises(VitrailError, match="has no column 'label' or 'labels'"):
        read_dataset(table("image,age", "a.png,1"), task="classify")
    with pytest.raises(VitrailError, match="no number in 'label'"):
        read_dataset(table("image,label", "a.png,x"), task="regress")
    with pytest.raises(VitrailError, match="has no column 'weight'; its columns: image, age"):
        read_dataset(table("image,age", "a.png,1"), targets=["weight"])
    with pytest.raises(VitrailError, match="is a table, which layout='folders' does not fit"):
        read_dataset(table("image,age", "a.png,1"), layout="folders")


def test_two_tables(table: Callable[..., Path]) -> None:
    path = table("image,label", "a.png,x")
    (path.parent / "more.csv").write_text("image,label\nb.png,y")
    with pytest.raises(VitrailError, match=r"holds 2 tables of images \(more.csv, table.csv\): name the one you mean"):
        read_dataset(path.parent)


def test_constant_numbers_and_one_label_cannot_be_learnt(table: Callable[..., Path]) -> None:
    with pytest.raises(VitrailError, match="'age' is 3 for every training image"):
        trainable(read_dataset(table("image,age", "a.png,3", "b.png,3")))
    with pytest.raises(VitrailError, match="there is one class only, 'x'"):
        trainable(read_dataset(table("image,label", "a.png,x", "b.png,x")))


def test_parquet_without_pyarrow_says_what_to_install(photos: Photos, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    folder = photos("a.png")
    (folder / "t.parquet").write_bytes(b"PAR1")
    for data in (folder / "t.parquet", folder):
        with pytest.raises(VitrailError, match="pip install pyarrow, or save it as CSV"):
            read_dataset(data)


def test_parquet(photos: Photos) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = photos("a.png", "b.png", "c.png")

    def write(**columns: list) -> Path:
        parquet.write_table(pyarrow.table(columns), folder / "t.parquet")
        return folder / "t.parquet"

    images = ["a.png", "b.png", "c.png"]
    dataset = read_dataset(write(image=images, label=[10, 2, 10], split=["train", "train", "val"]))
    assert (dataset.task, dataset.labels) == ("classify", ("2", "10"))
    assert targets(dataset) == {"a.png": 1, "b.png": 0, "c.png": 1}
    assert read_dataset(folder).items == dataset.items
    several = read_dataset(write(image=images, labels=[["x", "y"], [], None]))
    assert targets(several) == {"a.png": (0, 1), "b.png": (), "c.png": ()}
    assert read_dataset(write(image=images, age=[1, 2, 3])).labels == ("age",)
    with pytest.raises(VitrailError, match=r"1 row has no number in 'age' \(row 2"):
        read_dataset(write(image=images, age=[1.0, None, 3.0]))
    with pytest.raises(VitrailError, match="holds the images themselves"):
        read_dataset(write(image=[{"bytes": b"x"}] * 3, label=[1, 2, 3]))
    (folder / "t.parquet").write_bytes(b"not parquet")
    with pytest.raises(VitrailError, match="cannot read"):
        read_dataset(folder / "t.parquet")


# ---- tables that somebody made to do harm


def test_many_columns_take_no_time_that_grows_with_their_square(table: Callable[..., Path]) -> None:
    names = ",".join(f"n{number}" for number in range(150_000))
    path = table(f"image,label,{names}", "a.png,x" + ",1" * 150_000, "b.png,y" + ",2" * 150_000)
    code = f"""
    from vitrail.data.layouts.recognise import read_dataset
    print(*read_dataset({str(path)!r}).labels)
    """
    assert outcome(code, path.parent, seconds=20) == "x y"


def test_as_many_numbers_to_learn_take_no_such_time_either(table: Callable[..., Path]) -> None:
    names = ",".join(f"n{number}" for number in range(60_000))
    path = table(f"image,{names}", "a.png" + ",1" * 60_000, "b.png" + ",2" * 60_000)
    code = f"""
    from vitrail.data.layouts.recognise import read_dataset
    print(len(read_dataset({str(path)!r}).labels))
    """
    assert outcome(code, path.parent, seconds=12) == "60000"  # in half a second; their square took 25


def test_short_rows_below_many_columns_are_refused(table: Callable[..., Path]) -> None:
    """Each row would be filled up with empty cells: a megabyte became hundreds of gigabytes."""
    path = table("image,label," + ",".join(f"n{number}" for number in range(60_000)), *["a.png,x"] * 50_000)
    code = f"""
    from vitrail.data.layouts.recognise import read_dataset
    read_dataset({str(path)!r})
    """
    assert "names 60,002 columns, and most rows have far fewer cells" in outcome(code, path.parent)


def test_a_label_of_thousands_of_digits(table: Callable[..., Path]) -> None:
    dataset = read_dataset(table("image,label", f"a.png,{'7' * 5000}", "b.png,8"))
    assert dataset.labels == ("8", "7" * 5000)


def test_a_parquet_file_that_unpacks_beyond_measure(photos: Photos) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = photos("a.png") / "t.parquet"
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(4_000_000, np.int8)), ["a.png"])
    parquet.write_table(pyarrow.table({"image": column, "label": column}), path, compression="zstd")
    assert path.stat().st_size < 100_000
    with pytest.raises(VitrailError, match="unpacks to 8,000,000 cells"):
        read_dataset(path)


@pytest.mark.parametrize("way", ["dictionary", "prefixes", "lengths", "list", "bytes of one length"])
def test_a_parquet_file_that_repeats_a_long_text(photos: Photos, way: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, rows, long = photos("a.png") / "t.parquet", 2000, "x" * 100_000
    kind = pyarrow.string() if way != "bytes of one length" else pyarrow.binary(len(long))
    repeated = pyarrow.array([long], kind).take(pyarrow.array([0] * rows))
    if way == "list":
        columns = {"image": ["a.png"], "labels": pyarrow.ListArray.from_arrays([0, rows], repeated)}
    else:
        columns = {"image": ["a.png"] * rows, "label": repeated}
    encodings = {"prefixes": "DELTA_BYTE_ARRAY", "lengths": "DELTA_LENGTH_BYTE_ARRAY"}
    encoding = {"image": "PLAIN", "label": encodings[way]} if way in encodings else None
    parquet.write_table(
        pyarrow.table(columns), path, compression="zstd", column_encoding=encoding, use_dictionary=encoding is None
    )
    assert path.stat().st_size < 100_000
    with pytest.raises(VitrailError, match="t.parquet repeats long texts and unpacks to more than 6"):
        read_dataset(path)


def test_a_parquet_table_has_the_values_that_pyarrow_reads(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "image": pyarrow.array(["a", "b", None], pyarrow.large_string()),
        "label": pyarrow.array(["u", None, "u"]).dictionary_encode(),
        "labels": [["u", "v"], None, []],
        "bytes": [b"1", None, b"3"],
        "about": [{"text": "t", "number": 1}, None, {"text": None, "number": 2}],
        "map": pyarrow.array([[("k", "v")], None, []], pyarrow.map_(pyarrow.string(), pyarrow.string())),
        "number": pyarrow.array([5, 6, 5]).dictionary_encode(),
        "four": pyarrow.array([b"abcd", None, b"efgh"], pyarrow.binary(4)),
    }
    lengths = {"use_dictionary": False, "column_encoding": {"image": "DELTA_LENGTH_BYTE_ARRAY"}}
    for options in ({}, {"store_schema": False}, {"row_group_size": 2}, {"row_group_size": 2} | lengths):
        parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet", **options)
        expected = parquet.read_table(tmp_path / "t.parquet").to_pydict()
        assert table_file.read_table(tmp_path / "t.parquet").columns == expected


def test_a_parquet_table_of_many_rows_is_read_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(table_file, "_BATCH", 7)
    table = pyarrow.table({"image": list(map(str, range(50))), "labels": [["a", str(n % 3)] for n in range(50)]})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=20)
    assert table_file.read_table(tmp_path / "t.parquet").columns == table.to_pydict()
    assert 25 <= len(table_file.read_table(tmp_path / "t.parquet", 25).columns["image"]) < 50
