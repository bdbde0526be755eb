"""`vitrail manifest`, `predict` and `check` on its shards, `merge`: as a user runs them, on files, tars and Parquet."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.cli import main


@pytest.fixture
def data(photos: Path, picture: Callable[..., Image.Image]) -> Path:
    """12 files, one of them cut; 4 members of a tar; 3 cells of a Parquet file, one of them empty; half a tar."""
    (photos / "cat" / "4.png").write_bytes((photos / "cat" / "4.png").read_bytes()[:200])

    def encoded(seed: int) -> bytes:
        file = io.BytesIO()
        picture(seed).save(file, "PNG")
        return file.getvalue()

    with tarfile.open(photos / "more.tar", "w") as tar:
        for number in range(4):
            for name, content in ((f"{number}.png", encoded(100 + number)), (f"{number}.cls", b"dog")):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    cells = pyarrow.table({"image": [encoded(200), b"", encoded(202)], "label": ["cat", "dog", "cat"]})
    pyarrow.parquet.write_table(cells, photos / "rest.parquet")
    (photos / "zz.tar").write_bytes(b"no tar")
    return photos


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_shards_give_the_bytes_of_one_process_that_reads_on(
    save: Callable[..., Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, manifest = str(save()), str(tmp_path / "m")
    assert main(["manifest", str(data), "--out", manifest, "--shard-size", "7"]) == 1
    said = capsys.readouterr().out
    assert "20 images in 3 shards, 2 labels (8 cat, 11 dog); 1 file could not be listed to the end" in said

    options = ["--top", "2", "--batch-size", "4"]
    torch.set_num_threads(1)  # as workers have it
    assert main(["predict", model, manifest, "--json", "-", *options]) == 1
    streamed = capsys.readouterr().out.encode()
    rows = [json.loads(line) for line in streamed.splitlines()]
    assert len(rows) == 20 and rows[12]["image"] == "more.tar::0.png" and rows[16]["image"] == "rest.parquet::0"
    errors = {row["image"]: row["error"] for row in rows if "error" in row}
    assert list(errors) == ["cat/4.png", "rest.parquet::1", "zz.tar"]
    assert "truncated" in errors["cat/4.png"] and "is empty" in errors["rest.parquet::1"]

    def merged(out: str) -> bytes:
        assert main(["merge", str(tmp_path / out), "--out", str(tmp_path / f"{out}.jsonl")]) == 0
        return (tmp_path / f"{out}.jsonl").read_bytes()

    assert main(["predict", model, manifest, "--out", str(tmp_path / "one"), "--processes", "1", *options]) == 1
    assert "3 shards, 20 images" in capsys.readouterr().err and merged("one") == streamed
    for part in ("2/2", "1/2", "1/2"):
        main(
            ["predict", model, manifest, "--out", str(tmp_path / "parts"), "--processes", "1", "--part", part, *options]
        )
    assert "done before" in capsys.readouterr().err and merged("parts") == streamed
    assert main(["predict", model, manifest, "--out", str(tmp_path / "two"), "--processes", "2", *options]) == 1
    assert merged("two") == streamed
    other = ["--processes", "1", "--top", "1", "--batch-size", "4"]
    assert main(["predict", model, manifest, "--out", str(tmp_path / "one"), *other]) == 1
    assert main(["merge", str(tmp_path / "one"), "--out", str(tmp_path / "x")]) == 2  # two jobs now
    assert "holds 2 jobs" in capsys.readouterr().err


def test_check_of_a_manifest(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / "dog" / "13.png").write_bytes((data / "dog" / "1.png").read_bytes())
    Image.new("RGB", (40, 40), "red").save(data / "cat" / "14.png")
    manifest, out = str(tmp_path / "m"), str(tmp_path / "checked")
    main(["manifest", str(data), "--out", manifest, "--shard-size", "8"])
    capsys.readouterr()
    assert main(["check", manifest, "--out", out, "--part", "1/2"]) == 1
    assert main(["check", manifest, "--out", out]) == 1
    said = capsys.readouterr()
    assert "3 files cannot be read (1 truncated, 1 empty, 1 damaged)" in said.out
    assert "1 image is the same file as an earlier one" in said.out and "dog/1.png = dog/13.png" in said.out
    assert "1 image is of one colour" in said.out and "3 shards, 22 images" in said.err
    assert main(["check", manifest, "--out", out, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["types"] == {"PNG": 19} and [one["kind"] for one in found["findings"]] == ["broken", "blank", "copies"]
    assert main(["merge", out, "--out", str(tmp_path / "all.jsonl")]) == 0
    assert lines(tmp_path / "all.jsonl")[0]["width"] == 48


def test_embed_writes_vectors_a_shard(
    save: Callable[..., Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, manifest = str(save()), str(tmp_path / "m")
    main(["manifest", str(data), "--out", manifest, "--shard-size", "7"])
    options = ["--batch-size", "4", "--processes", "1"]
    assert main(["embed", model, manifest, "--out", str(tmp_path / "one"), *options]) == 1
    for part in ("1/2", "2/2"):
        main(["embed", model, manifest, "--out", str(tmp_path / "two"), "--part", part, *options])
    for name in ("one", "two"):
        assert main(["merge", str(tmp_path / name), "--out", str(tmp_path / f"{name}.parquet")]) == 0
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()
    rows = pyarrow.parquet.read_table(tmp_path / "one.parquet").to_pylist()
    assert [row["id"] for row in rows] == list(range(20)) and rows[13]["path"] == "more.tar::1.png"
    assert [row["path"] for row in rows if row["vector"] is None] == ["cat/4.png", "rest.parquet::1", "zz.tar"]
    assert main(["embed", model, str(data / "dog"), "--out", str(tmp_path / "dog.parquet"), "--batch-size", "4"]) == 0
    vectors, paths, _ = vitrail.read_vectors(tmp_path / "dog.parquet")
    by_name = {Path(path).name: vector for path, vector in zip(paths, vectors, strict=True)}
    dogs = [row for row in rows if row["path"].startswith("dog/")]
    assert len(dogs) == 6
    np.testing.assert_allclose(
        [row["vector"] for row in dogs], [by_name[Path(row["path"]).name] for row in dogs], atol=1e-5
    )
    shard = next((tmp_path / "one").glob("000001-*"))
    broken = bytearray(shard.read_bytes())
    at = broken.index(np.float32(rows[8]["vector"][3]).tobytes())
    broken[at] ^= 1
    shard.write_bytes(broken)
    assert main(["merge", str(tmp_path / "one"), "--out", str(tmp_path / "x")]) == 2
    assert "is damaged: remove it" in capsys.readouterr().err
    shard.write_bytes(broken[:-9])
    assert main(["merge", str(tmp_path / "one"), "--out", str(tmp_path / "x")]) == 2
    assert "1 of 3 shards are not done" in capsys.readouterr().err


def test_an_index_of_a_manifest(
    save: Callable[..., Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In two parts, then as a whole: what an index of the files by themselves has, and what lies in tars and cells."""
    model, manifest, idx = str(save()), str(tmp_path / "m"), str(tmp_path / "idx")
    main(["manifest", str(data), "--out", manifest, "--shard-size", "7"])
    options = ["--batch-size", "4", "--processes", "1"]
    command = ["index", model, manifest, "--out", idx, *options]
    for part, code in (("1/2", 1), ("2/2", 0)):
        capsys.readouterr()
        assert main([*command, "--part", part]) == code
        said = capsys.readouterr()
        assert "the same command without --part writes the index" in said.err and not said.out
    assert not Path(idx).exists()
    shards = {path: path.stat().st_mtime_ns for path in Path(f"{idx}.shards").glob("*.parquet")}
    assert main(command) == 1
    said = capsys.readouterr()
    assert said.out == f"{idx}: 17 pictures\n"
    assert f"17 added, 3 could not be read; {idx}.shards can be removed now" in said.err
    assert len(shards) == 3 and all(path.stat().st_mtime_ns == made for path, made in shards.items())
    assert main(command) == 1 and "0 added, 17 already there" in capsys.readouterr().err

    vitrail.index(model, data, out=tmp_path / "files", batch_size=4)
    files, whole = (vitrail.ImageIndex(tmp_path / name) for name in ("files", "idx"))
    ids = {path: id_ for id_, path, _ in whole.entries()}
    assert len(files) == 11 and f"{data / 'more.tar'}::0.png" in ids and f"{data / 'rest.parquet'}::2" in ids
    for id_, path, _ in files.entries():
        np.testing.assert_allclose(whole.vector(ids[path]), files.vector(id_), atol=1e-5)
    assert main(["search", idx, str(data / "dog" / "1.png"), "--top", "1"]) == 0
    assert capsys.readouterr().out == f"1.000  {data / 'dog' / '1.png'}\n"
    page = tmp_path / "similar.html"
    assert main(["search", idx, str(data / "dog" / "1.png"), "--page", str(page)]) == 0
    text = page.read_text("utf-8")
    assert text.count("in a larger file, or on a store") == 6 and "not there any more" not in text

    with tarfile.open(data / "more.tar") as tar:
        copy = tar.extractfile("2.png")
        assert copy is not None
        (tmp_path / "later").mkdir()
        (tmp_path / "later" / "copy.png").write_bytes(copy.read())
    Image.open(data / "dog" / "1.png").rotate(90).save(tmp_path / "later" / "new.png")
    main(["manifest", str(tmp_path / "later"), "--out", str(tmp_path / "m2")])
    assert main(["index", idx, str(tmp_path / "m2"), "--add", *options]) == 0
    assert "1 added, 1 copy left out" in capsys.readouterr().err
    assert len(vitrail.ImageIndex(idx)) == 18


def test_an_index_refuses_shards_of_another_model_and_damaged_ones(
    save: Callable[..., Path], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, manifest, idx = str(save()), str(tmp_path / "m"), str(tmp_path / "idx")
    main(["manifest", str(photos), "--out", manifest, "--shard-size", "7"])
    assert main(["index", model, manifest, "--out", idx, "--processes", "1"]) == 0
    before = len(vitrail.ImageIndex(idx))
    other = str(save(name="other.safetensors", depth=3))
    capsys.readouterr()
    for command in (["index", other, manifest, "--out", idx], ["index", idx, manifest, "--add", "--model", other]):
        assert main([*command, "--processes", "1"]) == 2
        assert "makes other vectors than the index has" in capsys.readouterr().err
    shard = next((tmp_path / "idx.shards").glob("000000-*.parquet"))
    broken = bytearray(shard.read_bytes())
    broken[200] ^= 1
    shard.write_bytes(broken)
    assert main(["index", idx, manifest, "--add", "--processes", "1"]) == 2
    assert f"{shard} is damaged: remove it" in capsys.readouterr().err
    assert len(vitrail.ImageIndex(idx)) == before
    with pytest.raises(vitrail.VitrailError, match="part is for the shell"):
        vitrail.index(model, manifest, out=tmp_path / "x", part=(1, 2))
    made = vitrail.index(model, manifest, out=tmp_path / "from Python", processes=1)
    assert len(made) == before


def test_what_does_not_go_together_is_a_sentence(
    save: Callable[..., Path],
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    model, manifest = str(save()), str(tmp_path / "m")
    assert main(["manifest", str(photos), "--out", manifest]) == 0
    for arguments, words in (
        (["predict", model, str(photos), "--part", "1/2"], "--part is for the shards of a manifest: give a manifest"),
        (["predict", model, manifest, "--processes", "2"], "give --out DIR too"),
        (["predict", model, manifest, "--out", "x", "--json", "y"], "vitrail merge x --out FILE"),
        (["predict", model, manifest, str(photos), "--out", "x"], "is given alone"),
        (["predict", model, manifest, "--out", manifest], "is the manifest itself"),
        (["explain", model, manifest, "--out", "x.html"], "which this command does not take"),
        (["index", model, manifest, str(photos), "--out", "x"], "is given alone"),
        (["index", model, str(photos), "--out", "x", "--processes", "2"], "give a manifest"),
        (["index", model, manifest, "--out", str(photos)], "is there and is no index"),
        (["manifest", str(photos), "--out", manifest], "holds a manifest already"),
        (["manifest", str(tmp_path / "nothing"), "--out", "x"], "does not exist"),
        (["merge", str(tmp_path / "nothing"), "--out", "x"], "there is no folder"),
    ):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["predict", model, manifest, "--out", "x", "--part", "3/2"])
    assert "is not a part such as 2/8" in capsys.readouterr().err
