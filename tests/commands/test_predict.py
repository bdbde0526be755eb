"""`vitrail predict` as a user runs it."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import vitrail
from vitrail.cli import main
from vitrail.commands.predict import run_predict

VITRAIL = [sys.executable, "-m", "vitrail"]


def test_a_line_an_image_and_a_summary(
    save: Callable[..., Path], photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(save()), str(photos), "--top", "2"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    numbers = [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]
    assert [Path(line.split(": ")[0]).stem for line in lines] == [str(number) for number in numbers]
    assert all(line.count(" %") == 2 for line in lines)
    assert shown.err.startswith("12 images in ") and " a second" in shown.err


def test_unreadable_files_are_rows_and_the_exit_code_is_1(
    save: Callable[..., Path], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = photos / "cat" / "0.png"
    cut = photos / "cat" / "1 cut.png"
    cut.write_bytes(whole.read_bytes()[:200])
    (tmp_path / "über uns.txt").write_text("no image")
    arguments = [str(cut), str(whole), str(tmp_path / "über uns.txt"), "nowhere.jpg"]
    files = ["--json", str(tmp_path / "o.json"), "--csv", str(tmp_path / "o.csv")]
    assert main(["predict", str(save()), *arguments, *files]) == 1
    rows = json.loads((tmp_path / "o.json").read_text("utf-8"))
    assert [row["image"] for row in rows] == arguments
    assert [set(row) for row in rows].count({"image", "error"}) == 3
    assert "truncated" in rows[0]["error"] and "does not exist" in rows[3]["error"]
    with (tmp_path / "o.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["error"] for row in table] == [row.get("error", "") for row in rows]
    assert table[1]["label"] == rows[1]["label"]
    shown = capsys.readouterr()
    assert shown.out == "" and "; 3 could not be read" in shown.err


def test_no_image_at_all(save: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert run_predict(save(), [tmp_path / "empty"]) == 1
    assert capsys.readouterr().err == "vitrail: no images were found\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["S/16", "a.jpg"], "S/16 is a preset with untrained weights"),
        (["nothing.safetensors", "a.jpg"], "there is no file"),
        (["{model}", "-", "-"], "standard input"),
        (["{model}", "a.jpg", "--json", "-", "--csv", "-"], "would both write to standard output"),
        (["{model}", "a.jpg", "--json", "{folder}"], "is a folder"),
        (["{embed}", "a.jpg"], "gives embeddings, not answers"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(
    save: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    embed = save(None, task="embed", classes=0, name="embed.safetensors")
    filled = [one.format(model=save(), embed=embed, folder=tmp_path) for one in arguments]
    assert main(["predict", *filled]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and sentence in shown.err and shown.err.count("\n") == 1


def test_paths_on_standard_input_are_answered_as_they_come(save: Callable[..., Path], photos: Path) -> None:
    """As with `inotifywait | vitrail predict model -`: the answer does not wait for a full batch, or for the end."""
    command = [*VITRAIL, "predict", str(save()), "-", "--json", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdin is not None and run.stdout is not None and run.stderr is not None
        for name in ("0.png", "größe 1.png"):
            path = photos / "cat" / name
            if not path.exists():
                path.write_bytes((photos / "dog" / "1.png").read_bytes())
            run.stdin.write(os.fsencode(path) + b"\n")
            run.stdin.flush()
            assert json.loads(run.stdout.readline())["image"] == str(path)
        run.stdin.close()
        assert run.stdout.read() == b""
        assert run.stderr.read().startswith(b"2 images in")
        assert run.wait() == 0


def test_an_interruption_leaves_no_half_file(save: Callable[..., Path], photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "rows.json"
    command = [*VITRAIL, "predict", str(save()), "-", "--json", str(out)]

    def obey() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a suite in the background of a shell would leave ignored

    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=obey) as run:
        assert run.stdin is not None and run.stderr is not None
        run.stdin.write(os.fsencode(photos) + b"\n")
        run.stdin.flush()
        for _ in range(600):
            if out.parent.exists() and list(out.parent.iterdir()):
                break
            time.sleep(0.1)
        time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130
        assert run.stderr.read() == b""
    assert list(out.parent.iterdir()) == []


def test_a_reader_who_has_gone(save: Callable[..., Path], photos: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [*VITRAIL, "predict", str(save()), str(photos)]
    run = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (run.returncode, run.stderr) == (141, "")


def test_the_command_says_what_the_function_says(
    save: Callable[..., Path], photos: Path, tmp_path: Path, picture: Callable[..., Image.Image]
) -> None:
    picture(7, (900, 1200)).save(tmp_path / "large.jpg", quality=95)
    model, paths = save(), [tmp_path / "large.jpg", *sorted((photos / "dog").iterdir())]
    assert run_predict(model, paths, json=tmp_path / "rows.json", batch_size=3) == 0
    for row, answer in zip(
        json.loads((tmp_path / "rows.json").read_text()), vitrail.load(model).predict(paths), strict=True
    ):
        assert row.pop("image")
        assert row["label"] == answer["label"]
        assert row["probability"] == pytest.approx(answer["probability"], abs=1e-5)


def test_the_precision_is_said_and_stands_in_the_json(
    save: Callable[..., Path],
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = {}
    for computed, option in ((False, "auto"), (True, "fp32"), (True, "auto"), (False, "bf16")):
        monkeypatch.setattr("vitrail.model.precision.computes_bf16", lambda device, computed=computed: computed)
        file = tmp_path / "rows.json"
        assert main(["predict", str(save()), str(photos), "--json", str(file), "--precision", option]) == 0
        mixed = option == "bf16" or (computed and option == "auto")
        assert f", in {'bfloat16' if mixed else 'float32'}\n" in capsys.readouterr().err
        rows[computed, option] = json.loads(file.read_text("utf-8"))
        assert {row["precision"] for row in rows[computed, option]} == {"bfloat16" if mixed else "float32"}
    assert rows[True, "fp32"] == rows[False, "auto"] and rows[True, "auto"] == rows[False, "bf16"]
    assert rows[True, "fp32"] != rows[True, "auto"]


def test_a_precision_that_is_none(save: Callable[..., Path], photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["predict", str(save()), str(photos), "--precision", "int4"])
    assert stopped.value.code == 2
    assert "the precision is 'int4'; choose one of auto, fp32, bf16, int8" in capsys.readouterr().err
    assert main(["predict", str(save()), str(photos), "--precision", "int8"]) == 2
    assert "torch does not compute in int8: choose the engine openvino" in capsys.readouterr().err
    with pytest.raises(vitrail.VitrailError, match="the precision is 'half'"):
        vitrail.load(save()).predict(str(photos / "cat" / "0.png"), precision="half")
