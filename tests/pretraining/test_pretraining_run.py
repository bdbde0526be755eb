"""`vitrail pretrain` from a folder to an encoder: as real runs, killed, resumed, shared among processes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from tests.pretraining.running import TINY_PRETRAIN, loose_pictures
from tests.training.running import begin, kill, vitrail, wait_for, write_pictures
from tests.training.test_resume import assert_alike, assert_same, rows
from vitrail import pretrain, train
from vitrail.errors import VitrailError
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.pretraining import health, pretrainer, views
from vitrail.pretraining.choose_pretraining import dino_rates
from vitrail.pretraining.views import View, make_view
from vitrail.training.checkpointing import Checkpoints
from vitrail.training.optim import batch_norm
from vitrail.training.settings import Settings
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.load import load
from vitrail.weights.preprocessing import Preprocessing


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data`, the settings `tiny.toml`, and `whole`: a run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    write_pictures(folder / "data")
    (folder / "tiny.toml").write_text(TINY_PRETRAIN.format(workers=0, noise=0.1, method="dino"))
    done = vitrail("pretrain", folder / "data", "--out", folder / "whole", "--settings", folder / "tiny.toml")
    assert done.returncode == 0, done.stderr
    (folder / "said.txt").write_text(done.stdout)
    return folder


def tiny(method: str, **changes) -> Settings:
    """Settings of a run of a second."""
    values = {
        "model.model": "mu/4",
        "model.image_size": 16,
        "data.workers": 0,
        "train.epochs": 2.0,
        "train.batch_size": 16,
        "pretrain.method": method,
        "pretrain.local_crops": 2,
        "pretrain.outputs": 16,
        "pretrain.hidden": 32,
    }
    return Settings().with_values(values | {name.replace("__", "."): value for name, value in changes.items()})


def test_a_run_is_a_folder(whole):
    said, run = (whole / "said.txt").read_text(), whole / "whole"
    assert "60 images of 3 classes, which only measure" in said and "method: DINO" in said
    assert "knn " in said and "rank " in said and "vitrail train DATA --from" in said
    names = {"model.safetensors", "settings.toml", "metrics.jsonl", "report.html", "results.json", "plan.json"}
    names |= {"calibration.zip"}  # so that faster engines are checked on pictures of the pile
    assert names <= {path.name for path in run.iterdir()}
    model = load(run)
    assert model.task == "embed" and model.config.classes == 0
    results = json.loads((run / "results.json").read_text())
    assert set(results["metrics"]) == {"knn", "rank", "entropy", "prototypes"}
    assert len(list((run / "attention").glob("*.npy"))) == sum("validation" in row for row in rows(run))


def test_killed_and_resumed_is_bit_equal(tmp_path, whole):
    """Also to a run with another number of workers."""
    run, settings = tmp_path / "killed", tmp_path / "tiny.toml"
    settings.write_text(TINY_PRETRAIN.format(workers=2, noise=0.1, method="dino"))
    running = begin("pretrain", whole / "data", "--out", run, "--settings", settings)
    wait_for(lambda: max(Checkpoints(run / "checkpoint").steps(), default=0) >= 4, running)
    kill(running)
    done = vitrail("pretrain", whole / "data", "--out", run, "--resume")
    assert done.returncode == 0, done.stderr
    assert "resumed after step" in done.stdout
    assert_same(whole / "whole", run)


@pytest.mark.parametrize(
    ("method", "changes"), [("simdino", ""), ("simdino", "head_norm = true\n"), ("mae", ""), ("features", "")]
)
def test_every_method_goes_on_bit_equal_from_where_it_was_killed(tmp_path, whole, method, changes):
    """What it draws and what it remembers: the teacher, a head with batch norm, hidden patches."""
    settings = tmp_path / "tiny.toml"
    own = changes + teacher_line(method, tmp_path)
    settings.write_text(TINY_PRETRAIN.format(workers=0, noise=0.1, method=method) + own)
    done = vitrail("pretrain", whole / "data", "--out", tmp_path / "whole", "--settings", settings)
    assert done.returncode == 0, done.stderr
    running = begin("pretrain", whole / "data", "--out", tmp_path / "killed", "--settings", settings)
    wait_for(lambda: max(Checkpoints(tmp_path / "killed" / "checkpoint").steps(), default=0) >= 4, running)
    kill(running)
    done = vitrail("pretrain", whole / "data", "--out", tmp_path / "killed", "--resume")
    assert done.returncode == 0, done.stderr
    assert "resumed after step" in done.stdout
    assert_same(tmp_path / "whole", tmp_path / "killed")


def teacher_line(method: str, folder: Path) -> str:
    """What method features needs under [pretrain]."""
    if method != "features":
        return ""
    save_teacher(folder / "teacher.safetensors", 0)
    return f'teacher = "{folder / "teacher.safetensors"}"\n'


def test_the_weight_decay_rises_to_its_end(tmp_path, monkeypatch):
    """By a cosine from 0.1 to 0.4, for what decays at all."""
    seen: list[set[float]] = []

    def watched(trainer, step, length):
        seen.append({group["weight_decay"] for optimizer in trainer.optimizers for group in optimizer.param_groups})
        update(trainer, step, length)

    update = pretrainer.update_weights
    monkeypatch.setattr(pretrainer, "update_weights", watched)
    changes = {"train__weight_decay": 0.1, "pretrain__weight_decay_end": 0.4}
    pretrain(loose_pictures(tmp_path / "pile", 40), tmp_path / "run", settings=tiny("simdino", **changes))
    rising = [pytest.approx(0.25 - 0.15 * math.cos(math.pi * step / len(seen))) for step in range(len(seen))]
    assert len(seen) > 2 and [max(decays) for decays in seen] == rising
    assert all(len(decays) == 2 and min(decays) == 0 for decays in seen)


def test_a_run_that_was_cut_can_be_trained_from(tmp_path, whole):
    run = tmp_path / "cut"
    running = begin("pretrain", whole / "data", "--out", run, "--settings", whole / "tiny.toml")
    wait_for((run / "model.safetensors").exists, running)
    kill(running)
    done = vitrail("train", whole / "data", "--from", run, "--out", tmp_path / "tuned", "--epochs", 1)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("simdino", ""),
        ("simdino", 'head_norm = true\nrate_crops = "all"\ntarget = "mean"\n'),
        ("dino", ""),
        ("mae", ""),
        ("features", ""),
    ],
)
def test_two_processes_learn_what_one_does(tmp_path, whole, method, changes):
    settings = tmp_path / "tiny.toml"
    own = changes + teacher_line(method, tmp_path)
    settings.write_text(TINY_PRETRAIN.format(workers=0, noise=0.0, method=method) + own)
    for processes, name in ((1, "one"), (2, "two")):
        done = vitrail(
            "pretrain", whole / "data", "--out", tmp_path / name, "--settings", settings, processes=processes
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert_alike(tmp_path / "one", tmp_path / "two", loss=2e-3, weight=3e-3)


def test_minutes_and_a_pile_without_labels(tmp_path):
    pile = loose_pictures(tmp_path / "pile" / "deep" / "er", 40)
    pretrained = pretrain(
        pile.parents[1], tmp_path / "run", settings=tiny("simdino", train__epochs=None, train__minutes=0.1)
    )
    assert set(pretrained.metrics) == {"rank"} and not pretrained.labelled
    assert "40 images without labels" in pretrained.description
    assert pretrained.state.step == pretrained.plan.steps


def test_going_on_from_a_model_and_from_a_run(tmp_path, whole):
    first = pretrain(whole / "data", tmp_path / "first", settings=tiny("mae"), start=None)
    assert set(first.metrics) == {"knn", "rank"}
    changed = {"model__model": None, "model__image_size": None, "model__start": str(tmp_path / "first")}
    second = pretrain(whole / "data", tmp_path / "second", settings=tiny("simdino", **changed))
    assert second.checkpoint.config.width == first.checkpoint.config.width
    tuned = train(whole / "data", tmp_path / "tuned", start=tmp_path / "second", epochs=1)
    assert tuned.checkpoint.task == "classify" and tuned.checkpoint.labels == ["cat", "dog", "owl"]


def save_teacher(file: Path, seed: int, **preprocessing) -> None:
    torch.manual_seed(seed)
    seen = Preprocessing(**{"size": (16, 16), **preprocessing})
    Checkpoint(ViT(preset("mu/4", image_size=seen.size, classes=0)), seen, "embed").save(file)


def test_features_of_a_teacher_are_learnt(tmp_path, whole):
    """The teacher takes another size under another normalisation; the loss, 1 minus a cosine, falls."""
    save_teacher(tmp_path / "teacher.safetensors", 0, size=(64, 48), mean=(0.2, 0.3, 0.4), std=(0.1, 0.2, 0.3))
    settings = tiny("features", pretrain__teacher=str(tmp_path / "teacher.safetensors"), train__epochs=8.0)
    pretrain(whole / "data", tmp_path / "run", settings=settings)
    losses = [row["loss"] for row in rows(tmp_path / "run") if "loss" in row]
    assert losses[-1] < 0.7 * losses[0]


def test_a_broken_file_is_left_out(tmp_path):
    pile = loose_pictures(tmp_path / "pile", 20)
    (pile / "0.png").write_bytes((pile / "0.png").read_bytes()[:60])
    pretrained = pretrain(pile, tmp_path / "run", settings=tiny("simdino", train__epochs=1.0))
    assert any(finding.kind == "broken" for finding in pretrained.findings)


def test_a_batch_larger_than_the_pile_is_all_of_it(tmp_path):
    pile = loose_pictures(tmp_path / "pile", 20)
    pretrained = pretrain(pile, tmp_path / "run", settings=tiny("dino", train__batch_size=64, train__epochs=1.0))
    chosen, learnt_from = pretrained.settings.train, 20 - pretrained.images
    assert chosen.batch_size == learnt_from
    assert chosen.lr == dino_rates(tiny("dino", train__batch_size=learnt_from))["train.lr"]


def test_another_teacher_does_not_go_on(tmp_path, whole):
    save_teacher(tmp_path / "teacher.safetensors", 0)
    settings = tiny("features", pretrain__teacher=str(tmp_path / "teacher.safetensors"), train__epochs=1.0)
    pretrain(whole / "data", tmp_path / "run", settings=settings)
    pretrain(whole / "data", tmp_path / "run", resume=True)
    save_teacher(tmp_path / "teacher.safetensors", 1)
    with pytest.raises(VitrailError, match="the teacher .*teacher.safetensors is not the one that the run in"):
        pretrain(whole / "data", tmp_path / "run", resume=True)


def test_what_goes_wrong_is_said_once_and_on_the_way(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(health, "STALLED", 10.0)  # whatever the loss does, it stands still
    pile = loose_pictures(tmp_path / "pile", 40)
    pretrain(pile, tmp_path / "run", settings=tiny("simdino", train__epochs=20.0))
    lines = capsys.readouterr().out.splitlines()
    said = [place for place, line in enumerate(lines) if "warning: the loss has stood" in line]
    evaluations = [place for place, line in enumerate(lines) if line.startswith("epoch ")]
    assert len(said) == 1 and evaluations[0] < said[0] < evaluations[-1]


def test_batch_norms_are_kept_with_statistics_of_whole_images_that_are_not_blurred(tmp_path, monkeypatch):
    made: list[View] = []
    monkeypatch.setattr(views, "make_view", lambda *given, **options: made.append(given[2]) or make(*given, **options))
    recomputed: list[View] = []

    def watched(trainer, layers):
        made.clear()
        recompute(trainer, layers)
        recomputed.extend(made)

    make, recompute = make_view, batch_norm.recompute_statistics
    monkeypatch.setattr(batch_norm, "recompute_statistics", watched)
    pile = loose_pictures(tmp_path / "pile", 20)
    pretrain(pile, tmp_path / "run", settings=tiny("simdino", model__stem="conv", train__epochs=1.0))
    assert recomputed and {(view.size, view.blur, view.solarize) for view in recomputed} == {((16, 16), 0.0, 0.0)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"teacher": "dinov2-s", "method": "dino"}, "give one of them"),
        ({"teacher": "S/16"}, "nothing to teach"),
        ({"model": "swin-T", "image_size": 64}, "plain ViTs"),
        ({"settings": Settings().with_values({"pretrain.method": "features"})}, "--teacher"),
    ],
)
def test_what_does_not_go_together_is_one_sentence(tmp_path, whole, options, said):
    with pytest.raises(VitrailError, match=said):
        pretrain(whole / "data", tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_train_does_not_resume_a_pretraining_run(whole):
    with pytest.raises(VitrailError, match="go on with vitrail pretrain --resume"):
        train(whole / "data", whole / "whole", resume=True)
