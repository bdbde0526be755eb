"""Swin through the whole of `train`: every task, fine-tuning, several processes, resumed bit for bit, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import vitrail
from tests.training.optim.test_optimizers import groups
from tests.training.running import begin, kill, wait_for, write_pictures
from tests.training.running import vitrail as command
from tests.training.test_agreement import write_spots
from vitrail.commands.make_data import make_data
from vitrail.errors import VitrailError
from vitrail.model.presets import build_network, preset
from vitrail.tasks.registry import task_names
from vitrail.training.checkpointing import Checkpoints
from vitrail.training.optim.lora import add_low_rank, merge_low_rank
from vitrail.training.optim.muon import Muon
from vitrail.training.optim.optimizers import Rates, layer_scale
from vitrail.training.settings import Settings
from vitrail.training.stages.finish_run import Finished
from vitrail.weights.load import load

SMALL: dict[str, Any] = {
    "model.image_size": 32,
    "train.batch_size": 16,
    "train.epochs": 1.0,
    "data.workers": 0,
    "train.precision": "float32",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Data for each task."""
    folder = tmp_path_factory.mktemp("swin")
    make_data("shapes", folder / "scenes", images=48, size=32)
    labels = write_spots(
        folder / "sides", "labels", lambda x, y: ";".join(["left"] * int(x < 20) + ["top"] * int(y < 20))
    )
    numbers = write_spots(folder / "years", "year", lambda x, y: f"{2000 + x}")
    return {**dict.fromkeys(task_names(), folder / "scenes"), "multilabel": labels, "regress": numbers}


@pytest.fixture(scope="module")
def trained_file(data: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("start") / "run"
    trained(data["classify"], out, "classify", model__model="swin-mu")
    return out / "model.safetensors"


def trained(data: Path, out: Path, task: str, **more: Any) -> Finished:
    values = SMALL | {name.replace("__", "."): value for name, value in more.items()}
    return vitrail.train(data, out, task=task, settings=Settings().with_values(values))


@pytest.mark.parametrize("name", ["swin-mu", "swinv2-mu"])
@pytest.mark.parametrize("task", task_names())
def test_every_task_trains_and_its_file_answers(data: dict[str, Path], tmp_path: Path, task: str, name: str) -> None:
    finished = trained(data[task], tmp_path / "run", task, model__model=name)
    model = tmp_path / "run" / "model.safetensors"
    assert finished.settings.train.keep_tokens == 1.0
    result = vitrail.evaluate(model, data[task], bootstrap=0)
    assert result["metrics"] == pytest.approx(finished.results["metrics"], abs=5e-5, rel=5e-5, nan_ok=True)
    picture = next(path for path in sorted(data[task].rglob("*.[jp][pn]g")) if "masks" not in str(path))
    assert vitrail.load(model).predict(picture)
    assert finished.checkpoint.config.in_words() in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("what", ["all", "head", "lora"])
def test_fine_tuning_changes_what_it_should(
    data: dict[str, Path], tmp_path: Path, trained_file: Path, what: str
) -> None:
    trained(data["classify"], tmp_path / "run", "classify", model__start=str(trained_file), model__train_only=what)
    before, after = load_file(trained_file), load_file(tmp_path / "run" / "model.safetensors")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    in_blocks = {name for name in changed if name.startswith("blocks.")}
    outside = {name for name in changed if not name.startswith(("head.", "blocks."))}
    assert bool(in_blocks) == (what != "head") and bool(outside) == (what == "all")


def test_a_classifier_becomes_a_segmenter_of_another_size(
    data: dict[str, Path], tmp_path: Path, trained_file: Path
) -> None:
    """Its stages are kept, its head is new, and pictures are not square."""
    more = {"model__start": str(trained_file), "model__image_size": 32, "model__image_width": 48}
    finished = trained(data["segment"], tmp_path / "run", "segment", **more)
    assert finished.checkpoint.config.head == "mask_decoder"
    assert finished.checkpoint.config.image_size == (32, 48)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model__model": "swin-mu", "train__keep_tokens": 0.5}, "train.keep_tokens = 0.5 leaves patches out"),
        ({"model__model": "swin-mu", "model__width": 64}, "model.width is for plain ViTs, not for swin-mu"),
        ({"model__model": "swin-mu", "model__pool": "cls"}, "model.pool is for plain ViTs, not for swin-mu"),
        ({"model__model": "swin-mu", "model__stem": "conv"}, "model.stem is for plain ViTs, not for swin-mu"),
    ],
    ids=str,
)
def test_settings_of_a_vit_are_refused_in_a_sentence(
    data: dict[str, Path], tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(VitrailError, match=message):
        trained(data["classify"], tmp_path / "run", "classify", **settings)


def test_queries_among_the_tokens_are_refused_in_a_sentence(data: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="head is 'mask_queries'; choose one of"):
        trained(data["segment"], tmp_path / "run", "segment", model__model="swin-mu", model__head="queries")


TINY = """
[data]
workers = 0
[model]
model = "{name}"
image_size = 32
[train]
epochs = 4
batch_size = 16
drop_path = 0.1
dropout = 0.1
average = 0.1
mixup = 0.2
save_minutes = 0
checkpointing = true
"""


@pytest.mark.parametrize("name", ["swin-mu", "swinv2-mu"])
def test_killed_and_resumed_is_bit_equal(tmp_path: Path, name: str) -> None:
    data = write_pictures(tmp_path / "data", side=32)
    (tmp_path / "tiny.toml").write_text(TINY.format(name=name))
    options = ("--settings", tmp_path / "tiny.toml")
    done = command("train", data, "--out", tmp_path / "whole", *options)
    assert done.returncode == 0, done.stderr
    running = begin("train", data, "--out", tmp_path / "killed", *options)
    states = Checkpoints(tmp_path / "killed" / "checkpoint")
    wait_for(lambda: max(states.steps(), default=0) >= 3, running)
    kill(running)
    done = command("train", data, "--out", tmp_path / "killed", "--resume")
    assert done.returncode == 0, done.stderr
    assert "resumed after step" in done.stdout
    whole, killed = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert all(torch.equal(whole[tensor], killed[tensor]) for tensor in whole)


@pytest.mark.parametrize("shard", [(), ("--shard",)], ids=["ddp", "fsdp"])
def test_two_processes_train_what_one_does(tmp_path: Path, shard: tuple[str, ...]) -> None:
    data = write_pictures(tmp_path / "data", side=32)
    plain = TINY.format(name="swin-mu").replace("0.1", "0.0").replace("mixup = 0.2", "mixup = 0.0\ncutmix = 0.0")
    (tmp_path / "tiny.toml").write_text(plain + 'optimizer = "adamw"\n')
    for processes, more in ((1, ()), (2, shard)):
        arguments = ("train", data, "--out", tmp_path / str(processes), "--settings", tmp_path / "tiny.toml", *more)
        done = command(*arguments, processes=processes)
        assert done.returncode == 0, done.stdout + done.stderr
    one, two = (load_file(tmp_path / run / "model.safetensors") for run in ("1", "2"))
    for tensor in one:
        torch.testing.assert_close(one[tensor], two[tensor], atol=2e-3, rtol=0, msg=tensor)


# ---- parameters by name


@pytest.mark.parametrize("name", ["swin-mu", "swinv2-mu"])
def test_every_parameter_learns_once_and_positions_are_left_alone(name: str) -> None:
    network = build_network(preset(name, classes=5))
    by_name = groups(network, Rates(adamw=1e-3, muon=0.02))
    assert by_name.keys() == dict(network.named_parameters()).keys()
    of_muon = {name for name, (kind, _) in by_name.items() if kind is Muon}
    assert {"blocks.0.attention.qkv.weight", "blocks.3.mlp.up.weight", "merges.2.reduction.weight"} <= of_muon
    alone = [name for name in by_name if ".positions." in name or name.endswith("logit_scale")]
    assert alone and not of_muon & set(alone)
    assert all(by_name[name][1]["weight_decay"] == 0 for name in alone)


def test_merging_learns_as_fast_as_the_block_it_is_for() -> None:
    assert layer_scale("merges.2.reduction.weight", 4, 0.5) == layer_scale("blocks.2.mlp.up.weight", 4, 0.5) == 0.25
    assert layer_scale("stem_norm.weight", 4, 0.5) == 0.5**5


@pytest.mark.parametrize("name", ["swin-mu", "swinv2-mu"])
def test_lora_starts_as_nothing_and_merges_away(name: str) -> None:
    torch.manual_seed(0)
    network, images = build_network(preset(name, classes=5)).eval(), torch.randn(1, 3, 64, 64)
    before, keys = network(images), network.state_dict().keys()
    add_low_rank(network, 2)
    torch.testing.assert_close(network(images), before)
    merge_low_rank(network)
    assert network.state_dict().keys() == keys


def test_a_file_is_adapted_to_channels_and_size(trained_file: Path) -> None:
    grey, colour = load(trained_file, channels=1), load(trained_file)
    pixels = torch.rand(1, 1, 32, 32)
    own, other = colour.preprocessing, grey.preprocessing
    mean, std = (torch.tensor(values)[:, None, None] for values in (own.mean, own.std))
    with torch.no_grad():
        expected = colour.model((pixels.expand(-1, 3, -1, -1) - mean) / std)
        answer = grey.model((pixels - other.mean[0]) / other.std[0])
        torch.testing.assert_close(answer, expected, atol=1e-5, rtol=1e-4)
        large = load(trained_file, image_size=(64, 96))
        images = torch.randn(1, 3, 64, 96)
        torch.testing.assert_close(large.model(images), colour.model(images), atol=1e-5, rtol=1e-4)
    assert large.config.image_size == large.preprocessing.size == (64, 96)
