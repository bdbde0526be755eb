"""`vitrail embed`, `index` and `search` as a user runs them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import vitrail
from tests.image_files import photo
from tests.warm_process import begin_vitrail
from vitrail.cli import main
from vitrail.search.index.image_index import ImageIndex

pytest.importorskip("pyarrow")


@pytest.fixture
def idx(model_file: Path, pile: Path, tmp_path: Path) -> Path:
    vitrail.index(model_file, pile, out=tmp_path / "idx")
    return tmp_path / "idx"


def test_embed(model_file: Path, pile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "emb.parquet"
    assert main(["embed", str(model_file), str(pile), "--out", str(out), "--what", "both", "--normalise"]) == 0
    assert f"20 images in {out}" in capsys.readouterr().err
    vectors, paths, facts = vitrail.read_vectors(out)
    assert vectors.shape == (20, 64) and len(paths) == 20 and facts.what == "both" and facts.normalise
    (pile / "broken.jpg").write_bytes(b"no image")
    assert main(["embed", str(model_file), str(pile), "--out", str(out)]) == 1
    assert "; 1 could not be read" in capsys.readouterr().err
    assert main(["embed", str(model_file), str(tmp_path / "idx"), "--out", str(out)]) == 1
    (tmp_path / "nothing").mkdir()
    assert main(["embed", str(model_file), str(tmp_path / "nothing"), "--out", str(out)]) == 1
    assert "no images were found" in capsys.readouterr().err


def test_index_add_remove_and_search(
    model_file: Path, pile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    idx, query = str(tmp_path / "idx"), str(pile / "even" / "4.png")
    assert main(["index", str(model_file), str(pile / "even"), "--out", idx]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{idx}: 10 pictures\n" and shown.err.endswith("10 added\n")
    assert main(["index", "--add", idx, str(pile)]) == 0
    assert "10 added, 10 already there" in capsys.readouterr().err
    assert main(["search", idx, query, "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[0] == f"1.000  {query}"
    assert main(["index", idx, str(pile / "odd"), "--remove"]) == 0
    shown = capsys.readouterr()
    assert "10 pictures removed" in shown.err and shown.out == f"{idx}: 10 pictures\n"
    assert main(["search", idx, query, "--json", "-", "--box", "0,0,20,20"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["query"] == query and record["box"] == [0, 0, 20, 20] and len(record["results"]) == 10
    assert set(record["results"][0]) == {"id", "path", "score"}
    assert main(["index", idx, "--rebuild"]) == 0


def test_the_page_holds_its_pictures(idx: Path, pile: Path, tmp_path: Path) -> None:
    hostile = pile / "even" / "<script>alert(1)<%2Fscript>.png"
    photo(77).save(hostile)
    vitrail.index(idx, hostile, add=True)
    gone = pile / "odd" / "3.png"
    gone.unlink()
    page = tmp_path / "page.html"
    assert main(["search", str(idx), str(hostile), "--page", str(page), "--top", "50", "--box", "4,5,20,20"]) == 0
    text = page.read_text("utf-8")
    assert text.count("data:image/jpeg;base64") == 21 and "not there any more" in text
    assert "<script" not in text and "http" not in text.replace("http-equiv", "")
    assert "left: 8.33%; top: 12.50%; width: 41.67%; height: 50.00%" in text


def test_python_has_the_same(idx: Path, pile: Path) -> None:
    index = vitrail.ImageIndex(idx)
    query = pile / "odd" / "7.png"
    [same, *others] = index.search(query, top=5)
    assert same.path == str(query) and same.score > 0.999 and len(others) == 4
    assert [one.id for one in index.search(same.id, 5)] == [one.id for one in index.search(query.read_bytes(), 5)]
    assert index.search(same.id, 1, box=(0, 0, 40, 40))[0].score < 1


def sentence(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    try:
        code = main([str(one) for one in arguments])
    except SystemExit as end:
        code = end.code
    assert code == 2
    return capsys.readouterr().err


def test_wrong_arguments(
    idx: Path, model_file: Path, pile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = sentence(capsys, "index", model_file, pile)
    assert f"say what to do: vitrail index {model_file} IMAGES --out DIR" in said
    assert f"vitrail index {idx} IMAGES --add" in sentence(capsys, "index", idx, pile)
    assert "--out and --add do not go together" in sentence(capsys, "index", idx, pile, "--out", tmp_path, "--add")
    assert "is an index: give the model first" in sentence(capsys, "index", idx, pile, "--out", tmp_path / "new")
    assert "give images" in sentence(capsys, "index", idx, "--add")
    assert "is no index: make one by" in sentence(capsys, "index", pile, pile, "--add")
    assert "is there and is no index" in sentence(capsys, "index", model_file, pile, "--out", pile)
    for gone in ("nowhere.png", "s3://nowhere/photos"):
        assert "none of these is in the index" in sentence(capsys, "index", idx, gone, "--remove")
    assert "--rebuild takes no images" in sentence(capsys, "index", idx, pile, "--rebuild")
    assert "is no file" in sentence(capsys, "search", idx, "nowhere.png")
    assert "is not a box" in sentence(capsys, "search", idx, pile / "odd" / "1.png", "--box", "1,2,3")
    assert "is not in the picture" in sentence(capsys, "search", idx, pile / "odd" / "1.png", "--box", "900,2,3,3")
    assert "is no index" in sentence(capsys, "search", pile, pile / "odd" / "1.png")


def test_the_model_of_an_index(
    idx: Path, pile: Path, save: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query, model = pile / "odd" / "1.png", tmp_path / "model.safetensors"
    other = save(name="other.safetensors", depth=2)
    said = sentence(capsys, "search", idx, query, "--model", other)
    assert "other.safetensors is not the model of the index" in said and "model.safetensors" in said
    assert "is an index of another model" in sentence(capsys, "index", other, pile, "--out", idx)
    model.rename(idx / model.name)  # beside the vectors it is found
    assert main(["search", str(idx), str(query)]) == 0
    (idx / model.name).rename(tmp_path / "elsewhere.safetensors")
    assert "give it by --model" in sentence(capsys, "search", idx, query)
    shutil.copy(other, model)  # another model in its place
    assert "has changed: give it by --model" in sentence(capsys, "search", idx, query)
    assert main(["search", str(idx), str(query), "--model", str(tmp_path / "elsewhere.safetensors")]) == 0
    assert main(["index", str(idx), str(pile), "--add", "--model", str(tmp_path / "elsewhere.safetensors")]) == 0


def test_without_pyarrow(
    model_file: Path, pile: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    for command in (["embed", model_file, pile, "--out", "x"], ["index", model_file, pile, "--out", "x"]):
        assert "pip install 'vitrail[search]'" in sentence(capsys, *command)


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("command", ["embed", "index"])
def test_ctrl_c_says_how_to_go_on(command: str, model_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(400):
        photo(number, (200, 160)).save(folder / f"{number}.jpg")
    out = tmp_path / ("e.parquet" if command == "embed" else "idx")
    running = begin_vitrail([command, model_file, folder, "--out", out])
    beside = tmp_path / ".e.parquet.parts" if command == "embed" else out / "index.json"
    deadline = time.monotonic() + 60
    while not beside.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(running.pid, signal.SIGINT)
    said, _ = running.communicate(60)
    assert running.returncode == 130 and "the same command goes on" in said
    again = begin_vitrail([command, model_file, folder, "--out", out])
    said, _ = again.communicate(120)
    assert again.returncode == 0, said
    assert (len(vitrail.read_vectors(out)[0]) if command == "embed" else len(ImageIndex(out))) == 400
