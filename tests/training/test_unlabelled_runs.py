"""Whole runs with pictures without labels: painted, or answered about by a teacher; resumed, shared, left behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.training.running import tiny_settings, write_pictures
from tests.training.running import vitrail as command
from tests.training.test_resume import assert_same, kill_after
from vitrail.commands.train import train
from vitrail.data.loading.loader import Batch
from vitrail.errors import VitrailError
from vitrail.model.heads.mae_decoder import MAEDecoder
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.tasks.registry import task_for
from vitrail.training.auxiliary.masked_patches import JointModel, JointTrainer
from vitrail.training.distributed import Processes
from vitrail.training.settings import Recipe, Settings
from vitrail.training.stages.read_unlabelled import copies_of
from vitrail.training.step_timing import ENDLESS
from vitrail.training.train_step import compute_gradients


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`data` with a few labels, and `pile`: more of the same, without."""
    folder = tmp_path_factory.mktemp("piled")
    write_pictures(folder / "data", each=10)
    write_pictures(folder / "more", each=30, side=18)
    (folder / "pile" / "deep").mkdir(parents=True)
    for number, path in enumerate(sorted((folder / "more").rglob("*.png"))):
        shutil.copy(path, folder / "pile" / ("deep" if number % 2 else ".") / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def teacher(folder: Path) -> Path:
    train(folder / "data", folder / "teacher", settings=tiny_settings(model__stem="conv", train__epochs=8.0))
    return folder / "teacher" / "model.safetensors"


def joint_gradient(accumulate: int, weight: float) -> torch.Tensor:
    torch.manual_seed(0)
    encoder = ViT(preset("mu/4", image_size=16, classes=3, dropout=0.1, drop_path=0.2)).train()
    model = JointModel(encoder, MAEDecoder(encoder.config, width=32))
    made = torch.Generator().manual_seed(1)
    images, others = torch.randn(2, 8, 3, 16, 16, generator=made)
    keys, other_keys = torch.arange(14, dtype=torch.int32).split([8, 6])
    batch = Batch(0, images, torch.arange(8) % 3, np.arange(8), None, keys, others[:6], other_keys)
    trainer = JointTrainer(
        model=model,
        network=model,
        optimizers=(),
        ema=None,
        task=task_for("classify", ["a", "b", "c"]),
        loader=None,
        recipe=Recipe(accumulate=accumulate, keep_tokens=1.0, precision="float32", unlabelled_weight=weight),
        processes=Processes(),
        unlabelled=6,
    )
    loss = compute_gradients(trainer, batch, ENDLESS)
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None for gradient in gradients)
    return torch.cat([*(gradient.flatten() for gradient in gradients), loss[None]])


def test_parts_of_a_step_give_the_gradient_of_the_whole() -> None:
    torch.testing.assert_close(joint_gradient(3, 1.0), joint_gradient(1, 1.0), atol=1e-5, rtol=1e-4)
    assert joint_gradient(1, 0.0)[-1] < joint_gradient(1, 1.0)[-1]


@pytest.mark.parametrize("stem", ["linear", "conv"])
def test_painting_joins_a_run_and_stays_out_of_the_file(folder: Path, tmp_path: Path, stem: str) -> None:
    settings = tiny_settings(model__stem=stem, train__epochs=4.0, train__average=0.2)
    finished = train(folder / "data", tmp_path / "run", unlabelled=folder / "pile", settings=settings)
    alone = train(folder / "data", tmp_path / "alone", settings=settings)
    own, plain = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "alone"))
    assert own.keys() == plain.keys() and finished.checkpoint.config == alone.checkpoint.config
    assert not all(torch.equal(own[name], plain[name]) for name in own)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "90 pictures of" in page and "hidden patches that were painted" in page
    state = load_file(max((tmp_path / "run" / "checkpoint").glob("step-*.safetensors")))
    assert any(".decoder.out." in name for name in state)


def test_the_teacher_answers_about_the_pile(folder: Path, teacher: Path, tmp_path: Path) -> None:
    finished = train(
        folder / "data", tmp_path / "run", unlabelled=folder / "pile", teacher=teacher, settings=tiny_settings()
    )
    train(folder / "data", tmp_path / "alone", teacher=teacher, settings=tiny_settings())
    own, plain = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "alone"))
    assert own.keys() == plain.keys() and not all(torch.equal(own[name], plain[name]) for name in own)
    assert "90 pictures of" in finished.checkpoint.provenance["training"]["unlabelled"]
    assert "the teacher&#39;s answers" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("taught", [False, True], ids=["painted", "taught"])
def test_killed_and_resumed_is_bit_equal(folder: Path, teacher: Path, tmp_path: Path, taught: bool) -> None:
    settings = tmp_path / "settings.toml"
    noise = {"train__dropout": 0.1, "train__drop_path": 0.1, "train__mixup": 0.2, "train__average": 0.2}
    tiny_settings(train__epochs=8.0, train__save_minutes=0.0, model__stem="conv", **noise).write(settings)
    arguments = ["train", folder / "data", "--unlabelled", folder / "pile", "--settings", settings]
    arguments += ["--teacher", teacher] if taught else []
    done = command(*arguments, "--out", tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    kill_after(4, *arguments, "--out", tmp_path / "killed", run=tmp_path / "killed")
    done = command("train", folder / "data", "--out", tmp_path / "killed", "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize("taught", [False, True], ids=["painted", "taught"])
def test_two_processes_learn_what_one_does(folder: Path, teacher: Path, tmp_path: Path, taught: bool) -> None:
    settings = tmp_path / "settings.toml"
    tiny_settings(train__accumulate=2).write(settings)
    for processes in (1, 2):
        arguments = ["train", folder / "data", "--unlabelled", folder / "pile", "--settings", settings]
        arguments += ["--teacher", teacher] if taught else []
        done = command(*arguments, "--out", tmp_path / str(processes), processes=processes)
        assert done.returncode == 0, done.stdout + done.stderr
    one, two = (load_file(tmp_path / str(processes) / "model.safetensors") for processes in (1, 2))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=1e-4, rtol=1e-3)


def test_copies_of_held_out_images_and_broken_files_are_left_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    write_pictures(data / "train", each=8)
    write_pictures(data / "val", each=2, side=20)
    pile = shutil.copytree(folder / "pile", tmp_path / "pile")
    for number, path in enumerate(sorted((data / "val").rglob("*.png"))):
        shutil.copy(path, pile / f"copy-{number}.png")
    (pile / "broken.png").write_bytes(b"no picture")
    (pile / "notes.txt").write_text("no picture either")
    train(data, tmp_path / "run", unlabelled=pile, settings=tiny_settings(train__epochs=1.0))
    said = capsys.readouterr().out
    assert "without labels: 90 pictures of" in said and "6 copies of held-out images left out" in said
    assert "broken.png" in said and "1 file in all" in said
    assert copies_of([data / "val" / "cat" / "0.png"], [pile / "copy-0.png", pile / "0.png"]) == {pile / "copy-0.png"}


@pytest.mark.parametrize("change", ["gone", "another of the same length"])
def test_a_pile_that_changed_does_not_go_on(folder: Path, tmp_path: Path, change: str) -> None:
    pile = shutil.copytree(folder / "pile", tmp_path / "pile")
    Image.new("RGB", (18, 18), "red").save(pile / "changes.bmp")
    train(folder / "data", tmp_path / "run", unlabelled=pile, settings=tiny_settings(train__epochs=1.0))
    if change == "gone":
        (pile / "changes.bmp").unlink()
    else:
        Image.new("RGB", (18, 18), "blue").save(pile / "changes.bmp")
    with pytest.raises(VitrailError, match="the pictures of .*pile changed since the run"):
        train(folder / "data", tmp_path / "run", resume=True)


def test_answers_about_places_can_be_learnt_beside(folder: Path, tmp_path: Path) -> None:
    import vitrail

    vitrail.make_data("shapes", tmp_path / "shapes", images=12, size=32, task="segment")
    values = {"width": 32, "depth": 1, "heads": 1, "patch_size": 8, "image_size": 32}
    settings = Settings().with_values({f"model.{name}": value for name, value in values.items()})
    settings = settings.with_values({"train.epochs": 1.0, "train.batch_size": 4, "data.workers": 0})
    run = train(tmp_path / "shapes", tmp_path / "run", unlabelled=folder / "pile", task="segment", settings=settings)
    assert 0 <= run.results["metrics"]["mIoU"] <= 1
    assert not any("decoder" in name for name in load_file(tmp_path / "run" / "model.safetensors"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data.unlabelled": "nowhere"}, "--unlabelled nowhere is no folder"),
        ({"data.unlabelled": "EMPTY"}, "empty holds no images"),
        ({"train.accumulate": 91}, "90 pictures to learn from are too few"),
        ({"model.model": "swin-mu", "model.image_size": 32}, "windows of attention need all of theirs"),
    ],
)
def test_what_does_not_go_together(folder: Path, tmp_path: Path, changes: dict, words: str) -> None:
    (tmp_path / "empty").mkdir()
    changes = {"data.unlabelled": str(folder / "pile")} | changes
    if changes["data.unlabelled"] == "EMPTY":
        changes["data.unlabelled"] = str(tmp_path / "empty")
    with pytest.raises(VitrailError, match=words):
        train(folder / "data", tmp_path / "run", settings=tiny_settings().with_values(changes))
    assert not (tmp_path / "run").exists()
