"""The command line as a user meets it: fast to answer, one sentence for a mistake, quiet when its reader has gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vitrail
from vitrail.cli import main, run_function
from vitrail.commands.shell import click_command
from vitrail.errors import VitrailError

HEAVY = ("torch", "numpy", "PIL", "safetensors", "transformers", "timm", "rich", "asyncio", "fastapi")


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh Python has imported after the code."""
    code += "\nimport sys; print('\\n'.join({name.split('.')[0] for name in sys.modules}), file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stderr.split())


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["--version"],
        ["check", "--help"],
        ["models", "--help"],
        ["models"],
        ["info", "--help"],
        ["convert", "--help"],
        ["predict", "--help"],
        ["evaluate", "--help"],
        ["explain", "--help"],
        ["train", "--help"],
        ["make-data", "--help"],
        ["serve", "--help"],
    ],
)
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    code = f"import vitrail.cli\ntry: vitrail.cli.main({argv})\nexcept SystemExit as end: assert end.code == 0"
    assert modules_after(code).isdisjoint(HEAVY)


def test_import_vitrail_imports_nothing_heavy() -> None:
    assert modules_after("import vitrail; dir(vitrail); vitrail.VitrailError").isdisjoint(HEAVY)


def test_info_of_a_preset_needs_no_torch() -> None:
    assert modules_after("import vitrail.cli; vitrail.cli.main(['info', 'S/16'])").isdisjoint(HEAVY)


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in ("check", "info", "convert", "predict", "evaluate", "explain"))


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"vitrail {vitrail.__version__}\n"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["nothing"],
        ["info"],
        ["info", "S/16", "--nonsense"],
        ["info", "S/16", "--image-size", "0"],
        ["info", "S/16", "--image-size", "224x"],
        ["info", "S/16", "--image-size", "224x-1"],
        ["info", "S/16", "--image-size", "²"],
        ["convert", "a", "b", "--to", "nobody"],
        ["convert", "a", "b", "--classes", "many"],
        ["predict", "model.safetensors"],
        ["predict", "model.safetensors", "a.jpg", "--top", "0"],
        ["evaluate", "model.safetensors", "photos", "--part", "most"],
        ["evaluate", "model.safetensors", "photos", "--bootstrap", "-1"],
        ["explain", "model.safetensors"],
        ["explain", "model.safetensors", "a.jpg", "--blocks", "first"],
    ],
    ids=" ".join,
)
def test_wrong_arguments_exit_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def values(command: str, *argv: str) -> dict[str, Any]:
    """What the command would be given."""
    return click_command(run_function(command)).make_context(command, list(argv)).params


@pytest.mark.parametrize(("text", "size"), [("224", (224, 224)), ("224x320", (224, 320))])
def test_image_size_is_height_then_width(text: str, size: tuple[int, int]) -> None:
    assert values("info", "S/16", "--image-size", text)["image_size"] == size


def test_convert_may_drop_the_head() -> None:
    assert values("convert", "a", "b", "--classes", "0")["classes"] == 0


def test_a_user_error_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise VitrailError("no such\nthing: choose another")

    monkeypatch.setattr("vitrail.inference.output.summary.describe", fail)
    assert main(["info", "S/16"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "vitrail: no such thing: choose another\n")


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitrail.inference.output.summary.describe", interrupted)
    assert main(["info", "S/16"]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == ""


def test_a_reader_who_has_gone_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    run = subprocess.run(
        [sys.executable, "-m", "vitrail", "info", "S/16"], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (run.returncode, run.stderr) == (141, "")


@pytest.mark.parametrize(
    "command", [[sys.executable, "-m", "vitrail"], [str(Path(sys.executable).with_name("vitrail"))]]
)
def test_both_ways_to_start_it(command: list[str]) -> None:
    run = subprocess.run([*command, "info", "S/15"], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("vitrail: image_size has height 224, which patch_size 15 does not divide")
    assert run.stderr.count("\n") == 1


def test_convert_hands_on_what_was_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[object] = []

    class Written:
        notes = ("the head is new",)

    def convert(*positional: object, **named: object) -> Written:
        calls.extend([positional, named])
        return Written()

    monkeypatch.setattr("vitrail.commands.convert.convert", convert)
    assert main(["convert", "in.pth", "out.safetensors", "--classes", "3", "--image-size", "96x64"]) == 0
    assert calls == [("in.pth", "out.safetensors"), {"to": "vitrail", "classes": 3, "image_size": (96, 64)}]
    assert capsys.readouterr().out == "wrote out.safetensors\n  the head is new\n"


def test_every_public_name_is_there() -> None:
    for name in vitrail.__all__:
        assert getattr(vitrail, name) is not None
    assert set(vitrail.__all__) <= set(dir(vitrail))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = vitrail.nothing


def test_check_says_by_its_exit_code_whether_training_would_be_spoilt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(24):
        picture = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((32, 32), 50 + number).convert("RGB").save(picture)
    page = tmp_path / "page.html"
    assert main(["check", str(tmp_path / "photos"), "--page", str(page)]) == 0
    assert "24 images in 2 classes" in capsys.readouterr().out
    assert "<html" in page.read_text()
    (tmp_path / "photos" / "cat" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    assert main(["check", str(tmp_path / "photos"), "--json"]) == 1
    assert any(finding["severity"] == "error" for finding in json.loads(capsys.readouterr().out)["findings"])
    assert main(["check", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_the_command_is_declared() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"vitrail": "vitrail.cli:main"}
