"""What the benchmark of training compares: pipelines in the same precision, each row with its own."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.training.settings import Settings

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def throughput(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("training.throughput")


def arguments(throughput: ModuleType, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    throughput.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize("computed", [False, True])
def test_every_contender_runs_in_every_precision_of_this_cpu(
    throughput: ModuleType, monkeypatch: pytest.MonkeyPatch, computed: bool
) -> None:
    monkeypatch.setattr(throughput, "computes_bf16", lambda device: computed)
    expected = ["float32", "bfloat16"] if computed else ["float32"]
    names = [*throughput.OURS, *throughput.PEERS]
    rows = [*throughput.contenders("cifar10", arguments(throughput))]
    assert rows == [(name, precision) for precision in expected for name in names]
    assert [*throughput.contenders("cifar10", arguments(throughput, "--precision", "bfloat16", "--only", "timm"))] == [
        ("timm", "bfloat16")
    ]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_ours_and_the_peers_are_told_the_same_precision(
    throughput: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, precision: str
) -> None:
    options_of: dict[str, list[str]] = {}

    def run_peer(module: str, options: list[object], work: Path) -> dict[str, float]:
        options_of[module] = [str(option) for option in options]
        return {}

    def step_ends(command: Any, data: Path, folder: Path, options: list[object], last: int) -> dict[int, float]:
        options_of[folder.name] = [Settings.read(Path(str(options[1]))).train.precision]
        return {1: 1.0, 6: 2.0, last: 3.0}

    monkeypatch.setattr(throughput, "run_peer", run_peer)
    monkeypatch.setattr(throughput, "vitrail_step_ends", step_ends)
    monkeypatch.setattr(throughput, "dataset", lambda work, kind: tmp_path)
    monkeypatch.setattr(throughput, "count_images", lambda folder: 1000)
    monkeypatch.setattr(throughput, "new_folder", lambda work, name: work / name)
    given = arguments(throughput, "--precision", precision)
    given.work, given.vitrail = tmp_path, ["vitrail"]
    for measure in throughput.contenders("flowers", given).values():
        measure()
    assert len(options_of) == len(throughput.OURS) + len(throughput.PEERS)
    for name, words in options_of.items():
        assert precision == (words[0] if name.startswith("throughput-") else words[words.index("--precision") + 1])


def test_a_row_names_its_precision_and_is_compared_within_it(throughput: ModuleType) -> None:
    speeds = {"vitrail": 30.0, "default": 60.0, "default-all": 20.0, "transformers": 10.0, "timm": 15.0}
    rounds = {
        throughput.Row(name, precision): [{"images_per_second": factor * speed, "first_step": 1.0}] * 2
        for precision, factor in (("float32", 1), ("bfloat16", 3))
        for name, speed in speeds.items()
    }
    lines = throughput.page("cifar10", rounds, arguments(throughput))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")][1:]
    assert len(rows) == 12 and {row[1] for row in rows} == {"float32", "bfloat16"}
    ours = {(row[0].split(",")[-1], row[1]): row[4] for row in rows if row[0].startswith("vitrail")}
    for precision in ("float32", "bfloat16"):  # three times as fast as float32 peers would be no merit
        assert ours["vitrail", precision] == "**2.00**"
        assert ours[" its first 70 % of steps (fewer tokens)", precision] == "**4.00**"
    assert not any("float32" in line for line in lines if not line.startswith("|"))
    assert all(re.fullmatch(r"[\d,.]+", row[2]) for row in rows)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_peers_compute_in_the_precision(
    throughput: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    precision: str,
) -> None:  # fmt: skip
    """A tiny run of the plain loop, in this process."""
    pytest.importorskip("timm")
    for label in "ab":
        for n in range(4):
            path = tmp_path / "train" / label / f"{n}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.random.default_rng(n).integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(path)
    sizes = {"image": 16, "patch": 8, "width": 16, "depth": 1, "heads": 2, "batch": 2, "warm": 1, "steps": 1}
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    words += ["--data", str(tmp_path), "--workers", "0", "--precision", precision]
    monkeypatch.setattr(sys, "argv", ["timm_loop", *words])
    monkeypatch.setattr("peers.process.let_torchvision_import", lambda: None)  # the tests have done it
    seen: set[torch.dtype] = set()

    def note(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, torch.nn.Linear):
            seen.add(output.dtype)

    hook = torch.nn.modules.module.register_module_forward_hook(note)
    state = torch.get_rng_state()
    try:
        importlib.import_module("peers.timm_loop").main()
    finally:
        hook.remove()
        torch.set_rng_state(state)
    assert seen == {getattr(torch, precision)}
    assert json.loads(capsys.readouterr().out)["images_per_second"] > 0


def test_the_methods_of_the_distillation_benchmark_are_options_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrail.commands.train import TrainOptions

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    distil = importlib.import_module("distil")
    words = {word for methods in distil.METHODS.values() for options in methods.values() for word in options}
    assert {"--teacher", "--unlabelled", "TEACHER", "PILE"} < words
    for word in words - {"TEACHER", "PILE"}:
        if word.startswith("--"):
            assert word.removeprefix("--") in TrainOptions.__annotations__
        else:
            name, value = tomllib.loads(distil.toml_line(word))["train"].popitem()
            assert Settings().with_values({f"train.{name}": value}).value(f"train.{name}") == value


def test_the_whole_way_is_held_against_the_engine_and_against_what_is_possible() -> None:
    """An engine of 90 images a second and decoding of 810 share the cores: 81 a second are possible."""
    pipeline = importlib.import_module("benchmarks.pipeline")
    options = argparse.Namespace(images=500, model="S/16", engines="openvino:bf16", rounds=1, workers=[2, 0])
    text = pipeline.page({("openvino:bf16", 2): [{"bare": 90.0, "decode": 810.0, "whole": 72.9}]}, options)
    assert "| openvino:bf16 | 2 | 90.0 | 810.0 | 72.9 | 81.0 | 0.810 | 0.900 |" in text


def test_a_cold_start_is_shown_as_a_ratio_to_importing_torch() -> None:
    coldstart = importlib.import_module("benchmarks.coldstart")
    seconds = {coldstart.BASE: [2.0, 4.0, 2.0], "second": [1.0, 1.0, 1.5]}
    text = coldstart.page(seconds, argparse.Namespace(model="S/16", rounds=3))
    assert "| second | 1.00 | 0.50 | 1.50 to 1.00 |" in text


def test_rows_of_another_call_are_added_to_a_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    tables = importlib.import_module("training.kept_table")

    def table(title: str) -> Any:
        page, kept = tmp_path / "page.md", tmp_path / "rows.json"
        return tables.KeptTable(page, kept, title, ("", "score"), ("torch",), "# Page\n")

    table("One").add("ours", "1 %")
    table("Other").add("ours", "7 %")
    table("One").add("theirs", "2 %")
    table("One").add("ours", "3 %")
    rows = [line for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("| ")]
    assert rows == ["|  | score |", "| ours | 3 % |", "| theirs | 2 % |", "|  | score |", "| ours | 7 % |"]


def test_what_was_measured_from_scratch_is_not_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A second file of settings takes only its own fine-tuning."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    benchmark = importlib.import_module("pretrain")
    measured: list[str] = []
    monkeypatch.setattr(benchmark, "accuracy", lambda name, *_: measured.append(name) or 0.5)
    (tmp_path / "cifar10").mkdir()
    given = argparse.Namespace(
        work=tmp_path, results=tmp_path / "page.md", model=tmp_path / "run", minutes=3.0, tuning=1.0, shares=[100.0]
    )
    for settings in ([], [tmp_path / "muon.toml"]):
        benchmark.run_labels(argparse.Namespace(**vars(given), settings=settings))
    assert measured == ["100-tuned", "100-scratch", "100-tuned"]
    page = given.results.read_text()
    assert "| 100 % |" in page and "| 100 %, muon |" in page


@pytest.mark.parametrize("method", ["simclr", "dino"])
def test_the_peers_without_labels_are_shown_what_ours_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    """A run of a second in this process: the kept file differs from ours in its normalisation only, and the last layer
    of DINO's head, which stands still in the first epoch, moves in later ones."""
    pytest.importorskip("lightly")
    from vitrail.model.presets import preset
    from vitrail.model.vit import ViT
    from vitrail.weights.checkpoint import Checkpoint
    from vitrail.weights.load import load
    from vitrail.weights.preprocessing import Preprocessing

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr("peers.process.let_torchvision_import", lambda: None)  # the tests have done it
    peer = importlib.import_module("peers.lightly_ssl")
    ours = Preprocessing(size=(16, 16), crop_fraction=0.8)
    Checkpoint(ViT(preset("mu/4", image_size=16, classes=0)), ours, "embed").save(tmp_path / "ours.safetensors")
    (tmp_path / "train" / "a").mkdir(parents=True)
    for n in range(8):
        pixels = np.random.default_rng(n).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "train" / "a" / f"{n}.png")
    moved: dict[int, bool] = {}
    after_backward = peer.DINO.after_backward

    def watched(self: Any, epoch: int) -> None:
        after_backward(self, epoch)
        moved[epoch] = self.head.last_layer.weight_v.grad is not None

    monkeypatch.setattr(peer.DINO, "after_backward", watched)
    words = {
        "method": method,
        "data": tmp_path,
        "model": tmp_path / "ours.safetensors",
        "out": tmp_path / "peer.safetensors",
    }
    words |= {"minutes": 0.01, "batch": 4, "workers": 0}
    monkeypatch.setattr(sys, "argv", ["lightly_ssl", *(part for k, v in words.items() for part in (f"--{k}", str(v)))])
    monkeypatch.setattr(peer, "keep_large_blocks", lambda: None)
    state = torch.get_rng_state()
    try:
        peer.main()
    finally:
        torch.set_rng_state(state)
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["epochs"] == said["steps"] * 4 / 8
    assert said["precision"] == ("bfloat16" if peer.computes_bf16("cpu") else "float32")
    assert load(tmp_path / "peer.safetensors").preprocessing == ours.replace(mean=tuple(peer.MEAN), std=tuple(peer.STD))
    if method == "dino":
        assert moved.pop(0) is False and moved and all(moved.values())
