"""Whole runs of a tiny model: every layout and task, what they leave behind, and a sentence for what can go wrong."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.training.running import begin, kill, wait_for, write_pictures
from tests.training.running import vitrail as command
from tests.warm_process import run_python
from vitrail.commands.train import summary, train
from vitrail.data.loading.cache import read_squashed
from vitrail.errors import VitrailError
from vitrail.inference.image_processor import ImageProcessor
from vitrail.inference.output.metrics_text import to_text
from vitrail.report.run_record import record
from vitrail.training.settings import SECTIONS, Settings
from vitrail.training.stages import build_model
from vitrail.training.stages.decode_images import with_bits
from vitrail.training.stages.image_statistics import cached_shape
from vitrail.training.train_step import Trainer
from vitrail.training.training_run import train as run_training
from vitrail.weights.load import load
from vitrail.weights.preprocessing import Preprocessing

FAST = {
    "model.model": "mu/4",
    "model.image_size": 16,
    "model.stem": "conv",
    "train.epochs": 3.0,
    "train.batch_size": 16,
    "data.workers": 0,
    "train.seed": 1,
}


def fast(**changes):
    return Settings().with_values({**FAST, **{name.replace("__", "."): value for name, value in changes.items()}})


@pytest.mark.parametrize("failing", ["last", "second"])
def test_an_evaluation_that_fails_is_made_again_by_the_resumed_run(tmp_path, pictures, monkeypatch, failing):
    """The step before it is not saved as a whole one: the run would go on behind it, with other weights kept."""
    settings = fast(train__save_minutes=0.0)
    whole = train(pictures, tmp_path / "whole", settings=settings)
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    evaluations = sum("validation" in row for row in rows)
    measure, calls = Trainer.measure, []

    def vanished(*given):
        calls.append(given)
        if len(calls) == (evaluations if failing == "last" else 2):
            raise VitrailError("a.png does not exist")
        return measure(*given)

    with monkeypatch.context() as patched, pytest.raises(VitrailError, match=r"a.png does not exist.*--resume"):
        patched.setattr(Trainer, "measure", vanished)
        train(pictures, tmp_path / "run", settings=settings)
    resumed = train(pictures, tmp_path / "run", resume=True)
    again = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in again if "validation" in row] == [row["step"] for row in rows if "validation" in row]
    assert resumed.results["metrics"] == whole.results["metrics"]
    one, other = (load(run.folder.model).model.state_dict() for run in (whole, resumed))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_leaves_a_model_that_answers_and_a_page(tmp_path, pictures, capsys):
    finished = train(pictures, tmp_path / "run", settings=fast(train__epochs=6.0))
    run = tmp_path / "run"
    left = {path.name for path in run.iterdir()}
    assert left >= {"model.safetensors", "settings.toml", "plan.json", "metrics.jsonl", "report.html", "checkpoint"}
    assert finished.results["metrics"]["accuracy"] > 0.9
    assert (run / "report.html").read_text().count("<html") == 1
    model = vitrail.load(run / "model.safetensors")
    assert model.labels == ["cat", "dog", "owl"]
    assert model.predict(pictures / "dog" / "3.png")["label"] == "dog"
    measured = vitrail.evaluate(run / "model.safetensors", pictures)
    assert measured["part"] == "val"  # it knows the images it was trained on
    assert measured["metrics"] == pytest.approx(finished.results["metrics"], abs=1e-6)
    said = capsys.readouterr().out
    assert said.count("data: 60 images in 3 classes") == 1
    assert "model: mu/4 as asked" in said and "recipe: Muon" in said


def test_the_kept_settings_are_complete_and_train_the_same_again(tmp_path, pictures):
    first = train(pictures, tmp_path / "a", settings=fast())
    complete = Settings.read(tmp_path / "a" / "settings.toml")
    assert complete.train.lr > 0 and complete.augment.crop > 0 and complete.augment.policy != "auto"
    second = train(pictures, tmp_path / "b", settings=tmp_path / "a" / "settings.toml")
    for one, other in zip(first.checkpoint.model.parameters(), second.checkpoint.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_run_starts_from_the_pictures_and_shows_the_model_their_middle(tmp_path):
    write_pictures(tmp_path / "data", side=32)
    still = {"train.lr": 1e-12, "train.muon_lr": 1e-12, "train.epochs": 1.0, "train.batch_size": 16, "data.workers": 0}
    checkpoint = train(tmp_path / "data", tmp_path / "run", settings=Settings().with_values(still)).checkpoint
    kernels = checkpoint.model.stem.layers[0].weight.detach()
    assert torch.allclose(kernels[:27], -kernels[27:54], atol=1e-5)  # those of training/optim/whitening.py
    assert checkpoint.preprocessing.crop_fraction == 32 / 34
    cropped = Settings().with_values({**still, "model.crop_fraction": 0.8})
    checkpoint = train(tmp_path / "data", tmp_path / "asked", settings=cropped).checkpoint
    assert checkpoint.preprocessing.crop_fraction == 0.8
    tuned = cropped.with_values(
        {"model.crop_fraction": 0.0, "model.start": str(tmp_path / "asked" / "model.safetensors")}
    )
    checkpoint = train(tmp_path / "data", tmp_path / "tuned", settings=tuned).checkpoint
    assert checkpoint.preprocessing.crop_fraction == 0.8


def test_pictures_taken_from_one_side_stay_on_it(tmp_path):
    """Told by the pictures alone: the classes' names are no letters."""
    write_pictures(tmp_path / "data", side=32)
    for file in (tmp_path / "data").rglob("*.png"):
        pixels = np.asarray(Image.open(file)).copy()
        pixels[:, :8] = 0
        Image.fromarray(pixels).save(file)
    settings = fast(model__model="auto", model__image_size=0, train__epochs=1.0)
    scratch = train(tmp_path / "data", tmp_path / "run", settings=settings)
    kept = Settings.read(tmp_path / "run" / "settings.toml")
    assert (kept.augment.flip, kept.augment.crop) == ("none", 0.9)
    assert kept.model.crop_fraction == scratch.checkpoint.preprocessing.crop_fraction == 1
    start = str(tmp_path / "run" / "model.safetensors")
    tuned = train(
        tmp_path / "data",
        tmp_path / "tuned",
        settings=Settings().with_values({"model.start": start, "train.epochs": 1.0, "data.workers": 0}),
    )
    assert tuned.settings.augment.flip == "none"


def test_parts_given_by_folders_are_used_as_they_are(tmp_path):
    for part, each in (("train", 20), ("val", 6), ("test", 5)):
        write_pictures(tmp_path / "data" / part, each)
    finished = train(tmp_path / "data", tmp_path / "run", settings=fast())
    assert finished.part == "test" and finished.results["images"] == 15
    assert finished.checkpoint.provenance["training"]["holdout"] is None


def table(tmp_path, columns, row):
    """60 pictures and a CSV beside them; `row` gives the cells for the class and the place of a picture."""
    write_pictures(tmp_path / "images")
    with (tmp_path / "images" / "list.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", *columns])
        for number, name in enumerate(("cat", "dog", "owl")):
            for place in range(20):
                writer.writerow([f"{name}/{place}.png", *row(number, place)])
    return tmp_path / "images" / "list.csv"


def test_several_labels(tmp_path):
    names = ("red", "green", "red|green|blue")
    data = table(tmp_path, ["labels"], lambda number, place: [names[number]])
    finished = train(data, tmp_path / "run", settings=fast())
    assert finished.task.name == "multilabel" and finished.checkpoint.labels == ["blue", "green", "red"]
    assert "mAP" in finished.results["metrics"]
    answer = vitrail.load(tmp_path / "run" / "model.safetensors").predict(tmp_path / "images" / "cat" / "0.png")
    assert "labels" in answer


def test_numbers(tmp_path):
    data = table(tmp_path, ["age", "weight"], lambda number, place: [10 * number + 5, 100 - number])
    finished = train(data, tmp_path / "run", settings=fast(train__epochs=12.0))
    assert finished.task.name == "regress" and finished.results["metrics"]["R2"] > 0.5
    answer = vitrail.load(tmp_path / "run" / "model.safetensors").predict(tmp_path / "images" / "owl" / "0.png")
    assert abs(answer["values"]["age"] - 25) < 10 and abs(answer["values"]["weight"] - 98) < 2
    with pytest.raises(
        VitrailError, match=r"train\.balanced draws every class equally often; the task here is regress"
    ):
        train(data, tmp_path / "balanced", settings=fast(train__balanced=True))
    only = train(data, tmp_path / "one", settings=fast(data__targets="weight"))
    assert only.checkpoint.labels == ["weight"]


def write_dots(folder, count=150):
    """Pictures of 96 x 64 with a dot, and a table that says how far from the left it is."""
    random = np.random.default_rng(0)
    folder.mkdir()
    rows = ["image,x"]
    for number in range(count):
        x, y = random.integers(4, 92), random.integers(4, 60)
        pixels = np.full((64, 96, 3), 40, np.uint8)
        pixels[y - 4 : y + 4, x - 4 : x + 4] = 250
        Image.fromarray(pixels).save(folder / f"{number}.png")
        rows.append(f"{number}.png,{x}")
    (folder / "table.csv").write_text("\n".join(rows))
    return folder / "table.csv"


def test_where_a_dot_lies_in_a_wide_picture_is_learnt_by_default(tmp_path):
    data = write_dots(tmp_path / "dots")
    settings = fast(model__image_size=32, train__epochs=40.0)
    finished = train(data, tmp_path / "run", settings=settings)
    assert finished.checkpoint.preprocessing.resize == "pad"
    assert finished.results["metrics"]["R2"] > 0.9
    kept = Settings.read(tmp_path / "run" / "settings.toml")
    assert kept.model.resize == "pad"
    cropping = vitrail.load(tmp_path / "run" / "model.safetensors")
    cropping.preprocessing = cropping.preprocessing.replace(resize="crop", crop_fraction=0.9)
    cropping.save(tmp_path / "cropping.safetensors")
    again = Settings().with_values({"train.epochs": 0.1, "train.lr": 1e-9, "data.workers": 0, "train.seed": 1})
    tuned = train(data, tmp_path / "tuned", start=tmp_path / "cropping.safetensors", settings=again)
    assert (tuned.checkpoint.preprocessing.resize, tuned.checkpoint.preprocessing.crop_fraction) == ("pad", 1.0)
    assert tuned.results["metrics"]["R2"] == pytest.approx(finished.results["metrics"]["R2"], abs=0.02)


def test_a_split_column_and_groups(tmp_path):
    parts = ("train", "val", "test")
    data = table(tmp_path, ["label", "split"], lambda number, place: [f"c{number}", parts[min(place // 8, 2)]])
    finished = train(data, tmp_path / "run", settings=fast())
    assert finished.part == "test" and finished.results["images"] == 12


def test_intervals_are_over_groups_in_the_run_and_in_evaluate(tmp_path):
    parts = ("train", "val", "test")
    data = table(
        tmp_path,
        ["label", "split", "group"],
        lambda number, place: [("cat", "dog", "owl")[number], parts[min(place // 8, 2)], f"{number} {place // 2}"],
    )
    finished = train(data, tmp_path / "run", settings=fast())
    assert (finished.results["images"], finished.results["groups"]) == (12, 6)
    measured = vitrail.evaluate(tmp_path / "run" / "model.safetensors", data)
    assert measured["groups"] == 6
    assert " over 6 groups" in summary(finished)[0] and " over 6 groups)" in to_text(measured)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "are not independent of each other: what counts for the interval are 6 groups." in page
    alone = vitrail.evaluate(tmp_path / "run" / "model.safetensors", tmp_path / "images", layout="folders", bootstrap=5)
    assert alone["groups"] is None


def test_copies_that_look_the_same_are_one_group(tmp_path, pictures):
    for part, places in (("train", range(10)), ("val", range(10, 14))):
        for name in ("cat", "dog"):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for place in places:
                whole = np.asarray(Image.open(pictures / name / f"{place}.png").resize((40, 40)))
                for copy, light in enumerate((1.0, 0.9)):
                    file = tmp_path / "data" / part / name / f"{place} {copy}.png"
                    Image.fromarray((whole * light).astype(np.uint8)).save(file)
    finished = train(tmp_path / "data", tmp_path / "run", settings=fast())
    assert (finished.results["images"], finished.results["groups"]) == (16, 8)
    assert vitrail.evaluate(tmp_path / "run" / "model.safetensors", tmp_path / "data")["groups"] == 8


def write_12_bits(folder, hot):
    """16-bit PNGs that use 12 bits; `hot`: one training image has a single value just above."""
    random = np.random.default_rng(0)
    for part, each in (("train", 8), ("val", 4)):
        for number, name in enumerate(("dark", "light")):
            (folder / part / name).mkdir(parents=True)
            for place in range(each):
                pixels = random.integers(0, 1500, (16, 16)) + 2500 * number
                pixels[0, 0] = 4096 if hot and (part, number, place) == ("train", 1, 0) else 4095
                Image.fromarray(pixels.astype(np.uint16)).save(folder / part / name / f"{place}.png")
    return folder


@pytest.mark.parametrize(("hot", "bits"), [(False, 12), (True, 14)])
def test_one_bit_depth_for_the_data_set_from_the_file_to_the_answer(tmp_path, hot, bits, capsys):
    data = write_12_bits(tmp_path / "data", hot)
    finished = train(data, tmp_path / "run", settings=fast(train__epochs=1.0))
    assert ("fill different ranges: 12 bits, 14 bits" in capsys.readouterr().out) is hot
    model = load(tmp_path / "run" / "model.safetensors")
    assert model.preprocessing.bits == bits == finished.checkpoint.preprocessing.bits
    trained_on = [np.asarray(Image.open(file)) for file in (data / "train").rglob("*.png")]
    assert model.preprocessing.mean[0] == pytest.approx(np.mean(trained_on) / (2**bits - 1), abs=2e-3)
    names = sorted((data / "train").rglob("*.png")) + sorted((data / "val").rglob("*.png"))
    processor = ImageProcessor(model.preprocessing.replace(crop_fraction=1.0, size=(16, 16)))
    shape = cached_shape((16, 16), model.preprocessing)
    for name in names:
        expected = np.rint(np.asarray(Image.open(name)).astype(float) * 255 / (2**bits - 1))
        assert np.array_equal(processor.read(name).pixels[..., 0], expected)
        assert np.array_equal(read_squashed(name, shape)[0][..., 0], expected)  # as training reads it
    values = np.full((16, 16), 4000, np.uint16)
    values[3, 3] = 60000
    Image.fromarray(values).save(tmp_path / "bright.png")
    prepared = processor.read(tmp_path / "bright.png")
    assert prepared.clipped == 1 and prepared.pixels[3, 3, 0] == 255
    assert prepared.pixels[0, 0, 0] == round(4000 * 255 / (2**bits - 1))
    note = f"1 image has values above {bits} bits, the depth of the training images: these were clipped"
    said = command("predict", tmp_path / "run" / "model.safetensors", tmp_path / "bright.png")
    assert said.returncode == 0 and note in said.stdout + (said.stderr or "")
    Image.fromarray(values).save(data / "val" / "light" / "bright.png")
    assert note in vitrail.evaluate(tmp_path / "run" / "model.safetensors", data)["notes"]


def test_a_tuned_model_keeps_its_bit_depth_where_that_holds_the_data(tmp_path):
    assert with_bits(Preprocessing(bits=12), 10).bits == 12
    assert with_bits(Preprocessing(bits=12), 16).bits == 16
    assert with_bits(Preprocessing(), 10).bits == 10
    assert with_bits(Preprocessing(), None).bits is None


def test_grey_pictures_make_a_model_of_one_channel(tmp_path, pictures):
    for path in pictures.rglob("*.png"):
        Image.open(path).convert("L").save(path)
    finished = train(pictures, tmp_path / "run", settings=fast())
    assert finished.checkpoint.config.channels == 1 == len(finished.checkpoint.preprocessing.mean)


@pytest.mark.parametrize("rule", ["crop", "pad", "squash"])
def test_the_resize_rule_goes_into_the_model(tmp_path, rule):
    random = np.random.default_rng(0)
    for name in ("a1", "b1"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for place in range(12):
            Image.fromarray(random.integers(0, 255, (20, 40, 3), np.uint8)).save(
                tmp_path / "data" / name / f"{place}.png"
            )
    finished = train(tmp_path / "data", tmp_path / "run", settings=fast(model__resize=rule))
    assert vitrail.load(tmp_path / "run" / "model.safetensors").preprocessing.resize == rule
    assert finished.settings.model.resize == rule


@pytest.mark.parametrize(
    "changes",
    [
        {"train__accumulate": 3, "train__mixup": 0.2, "train__cutmix": 1.0},
        {"train__balanced": True, "train__class_weights": "none"},
        {"train__class_weights": "sqrt", "train__optimizer": "adamw", "train__lr": 1e-3},
        {"train__checkpointing": True, "train__drop_path": 0.2, "augment__policy": "rand", "augment__erase": 0.5},
        {"train__precision": "float32", "train__average": 0.3, "train__clip": 0.0, "augment__flip": "both"},
        {"data__cache": "off", "data__workers": 2}, {"data__cache": "disk"},
        {"model__pool": "mean", "model__stem": "linear", "train__keep_tokens": 0.25},
    ],
    ids=lambda changes: "-".join(changes),
)  # fmt: skip
def test_every_part_of_the_recipe_runs(tmp_path, pictures, changes, monkeypatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    finished = train(pictures, tmp_path / "run", settings=fast(**changes, train__epochs=2.0))
    assert np.isfinite(finished.results["metrics"]["log_loss"])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["validation"] and any("loss" in row for row in rows)


def test_accumulated_parts_give_the_step_of_the_whole_batch(tmp_path, pictures):
    """Without batch norm, whose statistics are those of a part."""
    plain = {"model__stem": "linear", "train__mixup": 0.3}
    runs = [train(pictures, tmp_path / str(n), settings=fast(train__accumulate=n, **plain)) for n in (1, 2)]
    for one, other in zip(*(run.checkpoint.model.parameters() for run in runs), strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-2)


@pytest.mark.parametrize("what", ["all", "head", "lora"])
def test_fine_tuning(tmp_path, pictures, what, capsys):
    train(pictures, tmp_path / "first", settings=fast(train__epochs=6.0))
    other = write_pictures(tmp_path / "other", classes=("ant", "bee"))
    settings = Settings().with_values({"train.epochs": 4.0, "model.train_only": what, "data.workers": 0})
    finished = train(other, tmp_path / "tuned", start=tmp_path / "first" / "model.safetensors", settings=settings)
    assert finished.checkpoint.labels == ["ant", "bee"]
    before = vitrail.load(tmp_path / "first" / "model.safetensors").model
    after = vitrail.load(tmp_path / "tuned" / "model.safetensors").model
    still = torch.equal(before.blocks[0].mlp.up.weight, after.blocks[0].mlp.up.weight)
    assert still is (what == "head")
    assert torch.equal(before.blocks[0].norm1.weight, after.blocks[0].norm1.weight) is (what != "all")
    assert "warning: the learning rate" not in capsys.readouterr().out
    train(other, tmp_path / "hot", start=tmp_path / "first" / "model.safetensors", lr=0.5, settings=settings)
    assert "warning: the learning rate 0.5 is more than 10 times off the usual" in capsys.readouterr().out


def test_minutes_become_steps_once(tmp_path, pictures, monkeypatch):
    monkeypatch.setattr(
        "vitrail.training.stages.make_plan.REPORT", 0.0
    )  # else most of so short a time is kept for the end
    settings = fast(train__epochs=0.0, train__minutes=0.1)
    finished = train(pictures, tmp_path / "run", settings=settings)
    kept = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert (
        finished.plan.steps == kept["lengths"][-1]["steps"] == finished.state.step > 0
    )  # a busy machine makes few in 6 s


def test_tensorboard_files(tmp_path, pictures):
    pytest.importorskip("tensorboard")
    train(pictures, tmp_path / "run", settings=fast(train__tensorboard=True))
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))


def test_patience_ends_a_run_that_no_longer_learns(tmp_path, pictures):
    settings = fast(train__epochs=40.0, train__patience=1, train__lr=1e-9, train__muon_lr=0.0)
    finished = train(pictures, tmp_path / "run", settings=settings)
    assert finished.state.step < finished.plan.steps


def test_an_imbalanced_set_warns_and_learns(tmp_path, capsys):
    write_pictures(tmp_path / "data", each=40, classes=("many",))
    write_pictures(tmp_path / "data", each=4, classes=("rare",))
    train(tmp_path / "data", tmp_path / "run", settings=fast(train__balanced=True))
    assert "warning:" in capsys.readouterr().out


def test_broken_files_are_named_and_left_out(tmp_path, pictures, capsys):
    broken = sorted(pictures.rglob("*.png"))[:2]
    for path in broken:
        path.write_bytes(path.read_bytes()[:60])
    finished = train(pictures, tmp_path / "run", settings=fast())
    said = capsys.readouterr().out
    assert all(path.name in said for path in broken)
    assert finished.checkpoint.provenance["training"]["images"] + finished.results["images"] == 58


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_a_file_that_only_decoding_shows_to_be_broken_is_left_out_too(tmp_path, capsys, part):
    """The fast look sees a BMP's header only."""
    for name, each in (("train", 16), ("val", 6), ("test", 6)):
        write_pictures(tmp_path / "data" / name, each)
    whole = tmp_path / "data" / part / "dog" / "0.png"
    broken = whole.with_suffix(".bmp")
    Image.open(whole).save(broken)
    whole.unlink()
    broken.write_bytes(broken.read_bytes()[:300])
    finished = train(tmp_path / "data", tmp_path / "run", settings=fast())
    assert "0.bmp is truncated" in capsys.readouterr().out
    assert broken not in [item.path for item in finished.items] and finished.results["images"] == (
        17 if part == "test" else 18
    )
    assert finished.checkpoint.provenance["training"]["images"] == (47 if part == "train" else 48)
    assert "turned out to be broken" in (tmp_path / "run" / "report.html").read_text()
    assert train(tmp_path / "data", tmp_path / "run", resume=True).results == finished.results


def test_an_epoch_is_a_pass_over_the_images_even_when_a_batch_does_not_divide_them(tmp_path):
    write_pictures(tmp_path / "data" / "train", 10)
    write_pictures(tmp_path / "data" / "val", 4)
    finished = train(tmp_path / "data", tmp_path / "run", settings=fast(train__epochs=8.0))
    assert finished.plan.steps == 15  # 8 x 30 / 16


@pytest.mark.parametrize("each", [2, 3, 7])
def test_very_few_images_are_enough_to_run(tmp_path, each):
    write_pictures(tmp_path / "data" / "train", each)
    write_pictures(tmp_path / "data" / "val", 1)
    settings = Settings().with_values({"train.epochs": 2.0, "train.mixup": 0.2, "train.cutmix": 1.0})
    finished = train(tmp_path / "data", tmp_path / "run", settings=settings)
    assert finished.results["images"] == 3


def test_a_regression_model_tuned_on_its_own_data_starts_where_it_ended(tmp_path):
    data = table(tmp_path, ["age"], lambda number, place: [500 + 100 * number])
    first = train(data, tmp_path / "first", settings=fast(train__epochs=15.0))
    again = Settings().with_values({"train.epochs": 0.1, "train.lr": 1e-9, "data.workers": 0, "train.seed": 1})
    second = train(data, tmp_path / "second", start=tmp_path / "first" / "model.safetensors", settings=again)
    assert second.results["metrics"]["R2"] == pytest.approx(first.results["metrics"]["R2"], abs=0.02)


def test_patience_that_ran_out_stays_out_after_resume(tmp_path, pictures):
    settings = fast(train__epochs=40.0, train__patience=1, train__lr=1e-9, train__muon_lr=0.0)
    first = train(pictures, tmp_path / "run", settings=settings)
    second = train(pictures, tmp_path / "run", resume=True)
    assert second.state.step == first.state.step
    for one, other in zip(first.checkpoint.model.parameters(), second.checkpoint.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_run_of_minutes_is_the_same_run_when_resumed(tmp_path, pictures):
    first = train(pictures, tmp_path / "run", settings=fast(train__epochs=0.0, train__minutes=0.1, train__average=0.2))
    states = sorted((tmp_path / "run" / "checkpoint").glob("step-*"))
    states[-1].unlink()  # back to the one before
    second = train(pictures, tmp_path / "run", resume=True)
    assert second.plan == first.plan
    for one, other in zip(first.checkpoint.model.parameters(), second.checkpoint.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_call_from_python_records_itself_not_the_host_program(tmp_path, pictures, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/srv/host.py", "--password", "secret"])
    vitrail.train(pictures, tmp_path / "run", epochs=1, settings=fast(train__epochs=None))
    recorded = json.loads((tmp_path / "run" / "plan.json").read_text())["command"]
    assert recorded.startswith(f"vitrail.train({str(pictures)!r}, {str(tmp_path / 'run')!r}, epochs=1, settings=")
    assert "'model.model': 'mu/4'" in recorded and "secret" not in recorded
    assert "secret" not in (tmp_path / "run" / "report.html").read_text()


def test_the_command_line_is_recorded_as_it_was_typed(tmp_path, pictures, tiny):
    done = command("train", pictures, "--out", tmp_path / "run", "--settings", tiny())
    assert done.returncode == 0, done.stderr
    recorded = json.loads((tmp_path / "run" / "plan.json").read_text())["command"]
    assert recorded == f"vitrail train {pictures} --out {tmp_path / 'run'} --settings {tiny()}"


@pytest.mark.parametrize("start", [False, True], ids=["scratch", "from"])
def test_the_network_is_built_once_and_a_file_loaded_once(tmp_path, pictures, monkeypatch, start):
    """Counted in a run with minutes, which also times a copy; a loaded network gets its drop path in one more."""
    values = {"train.minutes": 0.1, "train.epochs": None, "augment.policy": "none"}
    settings = fast().with_values(values)
    if start:
        train(pictures, tmp_path / "first", settings=fast(train__epochs=1.0))
        values |= {"model.start": str(tmp_path / "first" / "model.safetensors"), "data.workers": 0}
        settings = Settings().with_values(values)
    built, loaded = [], []
    init, load = vitrail.ViT.__init__, build_model.load

    def counting_init(self, *arguments, **options):
        built.append(self)
        init(self, *arguments, **options)

    def counting_load(*arguments, **options):
        loaded.append(arguments)
        return load(*arguments, **options)

    monkeypatch.setattr(vitrail.ViT, "__init__", counting_init)
    monkeypatch.setattr(build_model, "load", counting_load)
    run_training(pictures, tmp_path / "run", settings)
    assert len(built) <= 2 + start and len(loaded) == int(start)


def test_a_run_of_an_earlier_version_is_resumed(tmp_path, pictures):
    """Its settings.toml spells what is not set "auto", "", 0 or -1."""
    first = train(pictures, tmp_path / "run", settings=fast(train__average=0.2))
    lines = []
    for section, kind in SECTIONS.items():
        lines.append(f"[{section}]")
        for item in dataclasses.fields(kind):
            value = first.settings.value(f"{section}.{item.name}")
            lines.append(f"{item.name} = {json.dumps(item.metadata['unset'] if value is None else value)}")
    (tmp_path / "run" / "settings.toml").write_text("\n".join(lines))
    assert 'layout = "auto"' in lines and "ignore = -1" in lines and "minutes = 0.0" in lines
    sorted((tmp_path / "run" / "checkpoint").glob("step-*"))[-1].unlink()
    second = train(pictures, tmp_path / "run", resume=True)
    assert second.settings == first.settings
    for one, other in zip(first.checkpoint.model.parameters(), second.checkpoint.model.parameters(), strict=True):
        assert torch.equal(one, other)


# ---- what can go wrong


def test_one_class_an_empty_folder_and_no_folder(tmp_path):
    write_pictures(tmp_path / "one", classes=("cat",))
    with pytest.raises(VitrailError, match="one class only"):
        train(tmp_path / "one", tmp_path / "r1", settings=fast())
    (tmp_path / "empty").mkdir()
    with pytest.raises(VitrailError, match="empty"):
        train(tmp_path / "empty", tmp_path / "r2", settings=fast())
    with pytest.raises(VitrailError, match="there is no folder or table"):
        train(tmp_path / "nowhere", tmp_path / "r3", settings=fast())


@pytest.mark.parametrize(
    ("data", "changes"), [("nowhere", {}), ("data", {"train__balanced": True, "data__task": "regress"})]
)
def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path, pictures, data, changes):
    with pytest.raises(VitrailError):
        train(tmp_path / data, tmp_path / "runs" / "first", settings=fast(**changes))
    assert not (tmp_path / "runs").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(VitrailError):
        train(tmp_path / data, tmp_path / "mine", settings=fast(**changes))
    assert list((tmp_path / "mine").iterdir()) == []  # a folder of the user's stays, as it was


def test_a_run_with_the_network_refused_leaves_no_folder(tmp_path, pictures):
    with pytest.raises(VitrailError, match="heads"):
        train(pictures, tmp_path / "run", settings=fast(model__heads=5))
    assert not (tmp_path / "run").exists()


def test_an_unwritable_output(pictures):
    with pytest.raises(VitrailError, match="cannot write /proc/run"):
        train(pictures, "/proc/run", settings=fast())


def test_an_output_that_is_a_file(tmp_path, pictures):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(VitrailError, match="cannot write"):
        train(pictures, tmp_path / "run", settings=fast())
    assert (tmp_path / "run").read_text() == "mine"


def test_a_finished_run_is_not_overwritten_and_a_missing_one_not_resumed(tmp_path, pictures):
    train(pictures, tmp_path / "run", settings=fast())
    with pytest.raises(VitrailError, match="already holds a run"):
        train(pictures, tmp_path / "run", settings=fast())
    with pytest.raises(VitrailError, match="holds no run to resume"):
        train(pictures, tmp_path / "none", resume=True)
    with pytest.raises(VitrailError, match=r"keeps its settings, so leave out train\.lr"):
        train(pictures, tmp_path / "run", resume=True, lr=0.1)


def test_changed_data_is_not_resumed(tmp_path, pictures):
    train(pictures, tmp_path / "run", settings=fast())
    next((pictures / "cat").iterdir()).unlink()
    with pytest.raises(VitrailError, match="changed since the run"):
        train(pictures, tmp_path / "run", resume=True)


def test_two_runs_into_one_folder(tmp_path, pictures, tiny):
    settings = tiny(extra="")
    settings.write_text(settings.read_text().replace("epochs = 5", "epochs = 500"))
    running = begin("train", pictures, "--out", tmp_path / "run", "--settings", settings)
    wait_for(lambda: any((tmp_path / "run" / "checkpoint").glob("step-*")), running)
    second = command("train", pictures, "--out", tmp_path / "run", "--resume")
    kill(running)
    assert second.returncode == 2 and "another run is writing into" in second.stderr


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model__train_only": "lora"}, "needs a model to start from"),
        ({"model__heads": 5}, "heads"),
        ({"model__start": "mu/4"}, "model.model is that of the model in --from"),
        ({"model__image_size": 18}, "does not divide"),
        ({"model__model": "S/17x"}, "S/17x"),
        ({"train__tensorboard": True}, "vitrail\\[tensorboard\\]"),
    ],
)
def test_wrong_settings_are_named(tmp_path, pictures, changes, says, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(VitrailError, match=says):
        train(pictures, tmp_path / "run", settings=fast(**changes))


def test_a_loss_that_is_not_finite_stops_with_a_sentence_and_the_last_good_state(tmp_path, pictures):
    settings = fast(
        train__lr=1e30, train__optimizer="adamw", train__clip=0.0, train__save_minutes=0.0, train__warmup=0.0
    )
    with pytest.raises(VitrailError, match=r"in step 2: start again with a lower train\.lr, now 1e\+30"):
        train(pictures, tmp_path / "run", settings=settings)


def test_a_vanished_file_stops_with_a_sentence_and_nothing_is_lost(tmp_path, pictures, monkeypatch):
    from vitrail.data.loading.cache import NoCache

    settings = fast(data__cache="off", train__save_minutes=60.0, train__epochs=8.0)
    whole = train(pictures, tmp_path / "whole", settings=settings)
    taken, take = [], NoCache.take
    gone = tmp_path / "gone.png"

    def vanish(self, places):
        taken.append(places)
        if len(taken) == 40:  # the first batch after the second evaluation
            shutil.move(self.sources[places[0]], gone)
            taken[-1] = self.sources[places[0]]
        return take(self, places)

    monkeypatch.setattr(NoCache, "take", vanish)
    with pytest.raises(
        VitrailError, match=r"does not exist: it was readable .*; the state after step \d+ is saved; then go on"
    ):
        train(pictures, tmp_path / "run", settings=settings)
    monkeypatch.setattr(NoCache, "take", take)
    shutil.move(gone, taken[39])
    again = train(pictures, tmp_path / "run", resume=True)
    for one, other in zip(whole.checkpoint.model.parameters(), again.checkpoint.model.parameters(), strict=True):
        assert torch.equal(one, other)


FULL = """
import resource, sys
from vitrail.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))  # a file cannot grow any further
sys.exit(main({arguments}))
"""


def test_a_full_disk_is_one_sentence(tmp_path, pictures, tiny):
    arguments = ["train", str(pictures), "--out", str(tmp_path / "run"), "--settings", str(tiny())]
    done = run_python(FULL.format(arguments=arguments), tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "cannot write" in done.stderr and "Traceback" not in done.stderr
    assert not list((tmp_path / "run" / "checkpoint").glob(".*part"))


def test_memory_that_runs_out_is_one_sentence(tmp_path, pictures, monkeypatch):
    from vitrail.training import train_step

    compute_gradients = train_step.compute_gradients

    def too_much(trainer, batch, length):
        if batch.step == 3:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")
        return compute_gradients(trainer, batch, length)

    monkeypatch.setattr(train_step, "compute_gradients", too_much)
    with pytest.raises(
        VitrailError, match=r"memory ran out with 16 images a step; the state after step 3 is saved: .*accumulate = 2"
    ):
        train(pictures, tmp_path / "run", settings=fast(train__save_minutes=60.0))


def test_a_class_called_script_is_text_on_the_page(tmp_path):
    write_pictures(tmp_path / "data", classes=("<script>alert(1)<", "dog & cat"))
    train(tmp_path / "data", tmp_path / "run", settings=fast())
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<script" not in page and "&lt;script&gt;alert(1)&lt;" in page


# ---- which weights are kept


@pytest.mark.parametrize("enough", [1, 10**6])
def test_few_held_out_images_do_not_choose_the_weights(tmp_path, pictures, monkeypatch, capsys, enough):
    """A run that gets worse: by enough images the best weights are kept, by few the last."""
    monkeypatch.setattr("vitrail.training.stages.decode_images.ENOUGH_IMAGES", enough)
    scores = iter([0.2, 0.9, 0.5, 0.4, *[0.3] * 20])
    monkeypatch.setattr(
        "vitrail.training.train_step.quick_metrics",
        lambda *arguments: {"loss": 1.0, "accuracy": next(scores), "balanced_accuracy": 0.5},
    )
    finished = train(pictures, tmp_path / "run", settings=fast())
    assert (finished.state.best_step == finished.state.step) is (enough > 1)
    assert finished.state.best == 0.9  # what patience goes by
    said = "too few to choose the best weights by, so the last ones are kept" in capsys.readouterr().out
    assert said is (enough > 1)


def test_a_small_sample_of_many_images_does_not_choose_the_weights(tmp_path, pictures, monkeypatch, capsys):
    """Where an evaluation takes long, those on the way measure a few images, however many are held out."""
    monkeypatch.setattr("vitrail.training.stages.decode_images.ENOUGH_IMAGES", 12)
    monkeypatch.setattr("vitrail.training.stages.decode_images.QUICK_IMAGES", 10)
    finished = train(pictures, tmp_path / "run", settings=fast())
    assert finished.state.best_step == finished.state.step and not finished.results["chose_weights"]
    assert "evaluations on the way measure 10 of 16 validation images: too few" in capsys.readouterr().out
    assert "nested" not in finished.results  # all 16 are enough to calibrate by


def test_the_last_measure_takes_a_sample_where_the_time_is_over(tmp_path, pictures, monkeypatch, capsys):
    monkeypatch.setattr("vitrail.training.stages.finish_run.images_in_time", lambda *arguments: 5)
    finished = train(pictures, tmp_path / "run", settings=fast())
    assert finished.results["images"] == len(finished.items) == 5
    assert "measured on 5 of 16 validation images, so that the run ends in time" in capsys.readouterr().out
    assert "5 of 16 validation images" in record(finished).facts[-1][1]
