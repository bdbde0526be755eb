"""Whole runs with a teacher: what they leave behind, resumed, shared, accumulated; and what cannot teach."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageClassification

import vitrail
from tests.training.running import tiny_settings, write_pictures
from tests.training.running import vitrail as command
from tests.training.test_resume import assert_same, kill_after, rows
from vitrail.cli import main
from vitrail.commands.train import train
from vitrail.errors import VitrailError
from vitrail.training.settings import Settings

CLASSES = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`data`, and a teacher of its classes, named in another order, at another size."""
    folder = tmp_path_factory.mktemp("taught")
    write_pictures(folder / "data")
    settings = tiny_settings(train__epochs=6.0, model__image_size=24, model__stem="conv", train__seed=3)
    train(folder / "data", folder / "teacher", settings=settings)
    return folder


@pytest.fixture(scope="module")
def teacher(folder: Path) -> str:
    """Of the classes in another order."""
    own = vitrail.load(folder / "teacher" / "model.safetensors")
    order = [2, 0, 1]
    with torch.no_grad():
        for tensor in own.model.head.out.parameters():
            tensor.copy_(tensor[order])
    own.labels = [CLASSES[place] for place in order]
    return str(own.save(folder / "reordered.safetensors"))


@pytest.fixture(scope="module")
def hard(folder: Path, teacher: str) -> Path:
    settings = tiny_settings(train__distillation="hard", train__epochs=12.0, train__lr=1e-3)
    train(folder / "data", folder / "hard", teacher=teacher, settings=settings)
    return folder / "hard"


def test_hard_answers_are_learnt_by_a_token_of_their_own(
    folder: Path, teacher: str, hard: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = vitrail.load(hard / "model.safetensors")
    assert model.config.distillation and model.config.pool == "cls" and model.model.distillation_head is not None
    assert vitrail.evaluate(hard / "model.safetensors", folder / "data")["metrics"]["accuracy"] > 0.9
    taught = model.provenance["training"]["distillation"]
    assert taught["teacher"] == teacher and re.fullmatch(r"[0-9a-f]{32}", taught["fingerprint"])
    assert (taught["distillation"], taught["weight"]) == ("hard", 0.5)
    page = (hard / "report.html").read_text()
    assert taught["fingerprint"] in page and "a distillation token and a head of its own" in page
    names = load_file(hard / "model.safetensors").keys()
    assert not [name for name in names if "teacher" in name]
    assert main(["info", str(hard / "model.safetensors")]) == 0
    said = "".join(capsys.readouterr().out.split())  # lines are wrapped
    assert f"taughtbyteacher{teacher},fingerprint{taught['fingerprint']},distillationhard" in said
    photo = str(folder / "data" / "dog" / "3.png")
    assert model.predict(photo)["label"] == "dog"
    vitrail.export(hard / "model.safetensors", tmp_path / "exported")
    vitrail.explain(hard / "model.safetensors", photo)


@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_a_student_with_the_token_is_a_distilled_deit(hard: Path, tmp_path: Path, library: str) -> None:
    vitrail.convert(hard / "model.safetensors", tmp_path / "theirs", to=library)
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = vitrail.load(hard / "model.safetensors").model(images)
        if library == "timm":
            found = timm.create_model(f"local-dir:{tmp_path / 'theirs'}", pretrained=True).eval()(images)
        else:
            found = AutoModelForImageClassification.from_pretrained(tmp_path / "theirs").eval()(images).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_soft_answers_keep_the_network_as_it_would_be(
    folder: Path, teacher: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = train(
        folder / "data", tmp_path / "soft", teacher=teacher, epochs=3, settings=tiny_settings(model__stem="conv")
    )
    alone = train(folder / "data", tmp_path / "alone", epochs=3, settings=tiny_settings(model__stem="conv"))
    assert finished.checkpoint.config == alone.checkpoint.config
    train_settings = finished.settings.train
    assert train_settings.distillation == "soft" and train_settings.distillation_temperature
    assert any(reason.startswith("teacher: ") for reason in finished.plan.reasons)
    # it is asked about what the student sees, at 16 px, and answers in the data's order
    said = capsys.readouterr().out
    assert re.search(r"the teacher itself, .*: accuracy (9\d|100)\.\d % on \d+ validation images", said)
    assert rows(tmp_path / "soft") != rows(tmp_path / "alone")


def test_a_teacher_alone_is_enough_to_learn_from(folder: Path, teacher: str, tmp_path: Path) -> None:
    """With all of the weight on it, in the data's order of classes, whatever its own is."""
    settings = tiny_settings(train__distillation_weight=1.0, train__epochs=12.0, train__lr=1e-3)
    finished = train(folder / "data", tmp_path / "run", teacher=teacher, settings=settings)
    assert finished.results["metrics"]["accuracy"] > 0.9


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_killed_and_resumed_is_bit_equal(folder: Path, teacher: str, tmp_path: Path, kind: str) -> None:
    noisy = {"train__dropout": 0.1, "train__drop_path": 0.1, "train__mixup": 0.2, "train__cutmix": 1.0}
    settings = tmp_path / "settings.toml"
    tiny_settings(train__distillation=kind, train__epochs=5.0, train__save_minutes=0.0, **noisy).write(settings)
    arguments = ["train", folder / "data", "--teacher", teacher, "--settings", settings]
    done = command(*arguments, "--out", tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    kill_after(4, *arguments, "--out", tmp_path / "killed", run=tmp_path / "killed")
    done = command("train", folder / "data", "--out", tmp_path / "killed", "--resume")
    assert done.returncode == 0, done.stderr
    assert_same(tmp_path / "whole", tmp_path / "killed")


def test_another_teacher_does_not_go_on(folder: Path, teacher: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.safetensors"
    mine.write_bytes(Path(teacher).read_bytes())
    train(folder / "data", tmp_path / "run", teacher=mine, settings=tiny_settings())
    mine.write_bytes((folder / "teacher" / "model.safetensors").read_bytes())
    with pytest.raises(
        VitrailError, match=r"the teacher .*mine.safetensors is not the one that the run in .* began with"
    ):
        train(folder / "data", tmp_path / "run", resume=True)


def test_two_processes_learn_what_one_does(folder: Path, teacher: str, tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    tiny_settings(train__distillation="hard", train__accumulate=2).write(settings)
    for processes in (1, 2):
        arguments = ["train", folder / "data", "--teacher", teacher, "--settings", settings]
        done = command(*arguments, "--out", tmp_path / str(processes), processes=processes)
        assert done.returncode == 0, done.stdout + done.stderr
    one, two = (load_file(tmp_path / str(processes) / "model.safetensors") for processes in (1, 2))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"train__precision": "bfloat16"},
        {"model__model": "swin-mu", "model__image_size": 32},
        {"train__minutes": 0.1, "train__epochs": None},
    ],
    ids=str,
)
def test_every_kind_of_run_can_be_taught(folder: Path, teacher: str, tmp_path: Path, changes: dict) -> None:
    settings = tiny_settings(train__distillation="hard", **changes)
    finished = train(folder / "data", tmp_path / "run", teacher=teacher, settings=settings)
    losses = [row["loss"] for row in rows(tmp_path / "run") if "loss" in row]
    assert losses and all(loss < 10 for loss in losses)
    swin = "model__model" in changes
    assert ("the one head, which learns the labels too" in " ".join(finished.plan.reasons)) is swin


def test_numbers_and_labels(tmp_path: Path) -> None:
    write_pictures(tmp_path / "data", each=8)
    names = sorted(path.relative_to(tmp_path / "data") for path in (tmp_path / "data").rglob("*.png"))
    for task, header, value in [
        ("regress", "image,size", lambda name: len(name.parent.name) + int(name.stem) / 10),
        ("multilabel", "image,labels", lambda name: f"{name.parent.name}|{'even' if int(name.stem) % 2 else 'odd'}"),
    ]:
        table = tmp_path / "data" / f"{task}.csv"
        table.write_text("\n".join([header, *(f"{name},{value(name)}" for name in names)]))
        plain = tiny_settings(data__task=task, train__epochs=1.0, train__batch_size=8)
        train(table, tmp_path / task, settings=plain)
        model = tmp_path / task / "model.safetensors"
        finished = train(table, tmp_path / f"{task}-taught", teacher=model, settings=plain)
        assert finished.checkpoint.provenance["training"]["distillation"]["distillation"] == "soft"
        if task == "regress":
            with pytest.raises(VitrailError, match="the task regress learns soft answers"):
                train(table, tmp_path / "no", teacher=model, settings=plain.with_values({"train.distillation": "hard"}))


def test_fine_tuning_with_a_teacher(folder: Path, teacher: str, hard: Path, tmp_path: Path) -> None:
    """A model with the token learns by it, another by its one head."""
    for start, by in [(hard, "a distillation token"), (folder / "teacher", "its answers")]:
        out = tmp_path / start.name
        settings = Settings().with_values({"train.epochs": 1.0, "data.workers": 0})
        finished = train(folder / "data", out, start=start / "model.safetensors", teacher=teacher, settings=settings)
        assert by in " ".join(finished.plan.reasons)
        again = train(folder / "data", out, resume=True)
        assert again.checkpoint.config.distillation is (start == hard)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train.teacher": "nothing.safetensors"}, "nothing.safetensors"),
        ({"train.teacher": "mu/16"}, "fresh weights"),
        ({"train.distillation": "hard"}, "train.distillation says what is learnt of a teacher"),
        ({"train.distillation_weight": 0.3}, "train.distillation_weight says what is learnt of a teacher"),
        ({"train.teacher": "T", "train.distillation": "hard", "train.distillation_temperature": 2.0}, "leave it out"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_said_before_anything_is_learnt(
    folder: Path, teacher: str, tmp_path: Path, changes: dict, words: str
) -> None:
    changes = {name: teacher if value == "T" else value for name, value in changes.items()}
    with pytest.raises(VitrailError, match=words):
        train(folder / "data", tmp_path / "run", settings=tiny_settings().with_values(changes))
    assert not (tmp_path / "run").exists()


def test_other_classes_and_answers_about_places(folder: Path, teacher: str, tmp_path: Path) -> None:
    other = write_pictures(tmp_path / "other", each=4, classes=("cat", "wolf"))
    with pytest.raises(VitrailError, match=r"has no class 'wolf'.*`vitrail pretrain --teacher`"):
        train(other, tmp_path / "run", teacher=teacher, settings=tiny_settings())
    vitrail.make_data("shapes", tmp_path / "shapes", images=10, size=32, task="detect")
    with pytest.raises(VitrailError, match="--teacher goes with answers about whole pictures.* the task is detect"):
        train(tmp_path / "shapes", tmp_path / "run", teacher=teacher, task="detect")


def test_metrics_stay_finite_in_json(hard: Path) -> None:
    assert all(json.loads(line) for line in (hard / "metrics.jsonl").read_text().splitlines())
