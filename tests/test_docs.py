"""Every documented command is run: the sh, console and python blocks of README.md and docs/, in a folder of samples.

`make` is left out: `make test` would run itself, and `make demo` sets up an environment of its own; its script is run.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.data import astronaut

from docs.write_commands import PAGE, page
from tests.warm_process import ENVIRONMENT, run_python, run_vitrail
from vitrail.cli import COMMANDS
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN, LEFT_OUT = ("vitrail", "python"), ("make", "pip", "git", "cd")  # these set up, or need a network
SHELL = set("|&;<>()$`*?[#~=%")  # what a shell does more than taking words apart
SECONDS = 600  # for one command, on a machine with much else to do
DEMO = ROOT / "examples" / "demo.py"
STARTED_WARM = """  # subprocess.run(["BIN/vitrail", ...]) as a fork, not seconds of imports
import os, subprocess, sys
from vitrail.cli import main
def run(words):
    assert words[0] == os.path.join(os.path.dirname(sys.executable), "vitrail") and os.access(words[0], os.X_OK)
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        sys.argv = words
        code = main()
        sys.stdout.flush()
        os._exit(code)
    return subprocess.CompletedProcess(words, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
subprocess.run = run
"""


@dataclass
class Block:
    document: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.name}:{self.line}"


def blocks(document: Path) -> Iterator[Block]:
    text = document.read_text(encoding="utf-8")
    for match in re.finditer(r"^(<!-- not run: .+ -->\n)?```(sh|console|python)\n(.*?)^```$", text, re.M | re.S):
        if match[1] is None:
            yield Block(document, text[: match.start()].count("\n") + 1, match[2], match[3])


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Each command of a sh or console block, with the output that a console block shows for it."""
    joined = block.text.replace("\\\n", " ")
    if block.language == "sh":
        lines = (line for line in joined.splitlines() if line.strip() and not line.startswith("#"))
        yield from ((line, "") for line in lines)
    for part in re.split(r"^\$ ", joined, flags=re.M)[1:] if block.language == "console" else []:
        command, _, output = part.partition("\n")
        yield command, output


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of ours in the warm process, all else as a shell does."""
    if command.startswith("vitrail ") and not set(command) & SHELL:
        return run_vitrail(shlex.split(command)[1:], folder, SECONDS)
    return subprocess.run(
        command, shell=True, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS
    )


def check_shell(block: Block, folder: Path) -> None:
    for command, expected in commands(block):
        program = command.split()[0]
        assert program in RUN + LEFT_OUT, f"{block}: say in tests/test_docs.py whether {program} is run"
        if program in LEFT_OUT:
            continue
        done = run(command, folder)
        assert done.returncode == 0, f"{block}: {command}\n{done.stdout}{done.stderr}"
        if expected.strip():
            pattern = r"[\s\S]*".join(re.escape(part) for part in expected.strip().split("..."))
            assert re.fullmatch(pattern, done.stdout.strip()), f"{block}: {command}\nprints\n{done.stdout}"


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    Image.fromarray(astronaut()).save(tmp_path / "photo.jpg")
    noise = np.random.default_rng(0)
    for place in range(40):
        folder = tmp_path / "photos" / ("cat", "dog")[place % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / f"{place}.png")
    config = preset("mu/16", classes=3)
    model = Checkpoint(ViT(config), Preprocessing(size=config.image_size), "classify", ["cat", "dog", "owl"])
    model.save(tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documented_commands_run(document: Path, samples: Path) -> None:
    for block in blocks(document):
        if block.language == "python":
            done = run_python(block.text, samples, SECONDS)
            assert done.returncode == 0, f"{block}:\n{done.stderr}"
        else:
            check_shell(block, samples)


def test_the_demo_runs_and_ends_with_the_report(tmp_path: Path) -> None:
    """In the warm process, as are the commands that it starts."""
    code = f"import runpy, sys; sys.argv[1:] = ['--epochs', '1']; runpy.run_path({str(DEMO)!r}, run_name='__main__')"
    done = run_python(STARTED_WARM + code, tmp_path, SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"Done. The report of this run: {tmp_path / 'demo' / 'run' / 'report.html'}"
    accuracy = float(re.findall(r"^accuracy +([\d.]+) %", done.stdout, re.M)[0])
    assert accuracy > 40  # in 1 epoch; `make demo` has time for about 10, and 97 % or more
    assert (tmp_path / "demo" / "run" / "report.html").stat().st_size > 20_000


def test_the_readme_names_every_command_and_no_other() -> None:
    known = set(COMMANDS)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"vitrail ([a-z-]+)\b", "\n".join(re.findall(r"`vitrail [^`]+`", readme))))
    assert named == known


def test_the_page_of_commands_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/commands.md is out of date: run `make docs`"


def test_links_between_documents_lead_somewhere() -> None:
    for document in [*DOCUMENTS, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
            assert "://" in target or (document.parent / target).exists(), f"{document.name}: {target}"


def test_blocks_are_found_and_taken_apart(tmp_path: Path) -> None:
    shown = [
        "```sh\n# why\nvitrail info S/16 \\\n  --json\nmake demo\n```",
        "<!-- not run: slow -->\n```sh\nvitrail x\n```",
    ]
    shown += [
        "```console\n$ vitrail --version\nvitrail ...\n$ python -V\n```",
        "```python\nprint(1)\n```",
        "```json\n{}\n```",
    ]
    text = "a\n" + "\n".join(shown) + "\n"
    (tmp_path / "page.md").write_text(text)
    shell, console, python = blocks(tmp_path / "page.md")
    assert (str(shell), python.text) == ("page.md:2", "print(1)\n")
    assert list(commands(shell)) == [("vitrail info S/16    --json", ""), ("make demo", "")]
    assert list(commands(console)) == [("vitrail --version", "vitrail ...\n"), ("python -V", "")]
