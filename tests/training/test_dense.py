"""Segmentation and detection through the whole of `train`: tiny models learn, resume bit for bit, and are honest."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.training.running import begin, kill, wait_for
from tests.training.running import vitrail as command
from vitrail.commands.make_data import make_data
from vitrail.data.loading.cache import Shape
from vitrail.errors import VitrailError
from vitrail.tasks.detect.detect import Detect
from vitrail.tasks.segment.mask_files import MaskFile
from vitrail.tasks.segment.segment import Segment
from vitrail.training.run_log import RunLog
from vitrail.training.settings import Data, Settings
from vitrail.training.stages.decode_images import scan_targets, targets_of
from vitrail.training.stages.finish_run import Finished
from vitrail.training.stages.read_data import make_task, prepare_data
from vitrail.weights.load import load

SMALL: dict[str, Any] = {
    "model.width": 64,
    "model.depth": 2,
    "model.heads": 2,
    "model.patch_size": 8,
    "train.batch_size": 16,
    "data.workers": 0,
}


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes") / "shapes"
    make_data("shapes", folder, images=200, size=48)
    return folder


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few scenes") / "shapes"
    make_data("shapes", folder, images=48, size=32)
    return folder


def trained(data: Path, out: Path, task: str, **more: Any) -> Finished:
    values = SMALL | {name.replace("__", "."): value for name, value in more.items()}
    return vitrail.train(data, out, task=task, settings=Settings().with_values(values))


def test_masks_are_learnt_far_above_chance(shapes: Path, tmp_path: Path) -> None:
    finished = trained(shapes, tmp_path / "run", "segment", train__epochs=6, train__batch_size=8)
    pixels = np.array(finished.results["pixel_confusion"]).sum(1)
    always_ground = pixels[0] / pixels.sum()
    assert finished.results["metrics"]["pixel_accuracy"] > always_ground
    assert finished.results["metrics"]["mIoU"] > 2 * always_ground / 6
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Worst pictures" in page and "segmentation" in page
    result = vitrail.evaluate(tmp_path / "run" / "model.safetensors", shapes, bootstrap=0)
    assert result["metrics"]["mIoU"] == pytest.approx(finished.results["metrics"]["mIoU"], abs=1e-6)


def test_boxes_are_learnt_far_above_chance(shapes: Path, tmp_path: Path) -> None:
    finished = trained(shapes, tmp_path / "run", "detect", train__epochs=2, train__batch_size=8)
    assert finished.results["metrics"]["AP50"] > 0.05  # a model that has not learnt has 0.00
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "detection" in page
    result = vitrail.evaluate(tmp_path / "run" / "model.safetensors", shapes, bootstrap=0)
    assert result["metrics"]["AP50"] == pytest.approx(finished.results["metrics"]["AP50"], abs=0.02)


@pytest.mark.parametrize("task", ["segment", "detect", "depth"])
def test_the_default_command_with_minutes(few: Path, tmp_path: Path, task: str) -> None:
    """Nothing set but the time: size, batch and steps are chosen by measuring the network of the task."""
    finished = vitrail.train(few, tmp_path / "run", task=task, minutes=0.03)
    assert finished.state.step >= 1 and finished.plan.deadline > 0
    assert finished.results["images"] == len(finished.items) > 0


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_a_killed_run_goes_on_bit_for_bit(few: Path, tmp_path: Path, task: str) -> None:
    settings = tmp_path / "settings.toml"
    Settings().with_values(SMALL | {"train.epochs": 2.0, "train.save_minutes": 0.0}).write(settings)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    arguments = ["train", str(few), "--task", task, "--settings", str(settings), "--out"]
    assert command(*arguments, whole).returncode == 0
    process = begin(*arguments, killed)
    wait_for(lambda: len(list((killed / "checkpoint").glob("*.safetensors"))) > 1, process)
    kill(process)
    assert command("train", few, "--out", killed, "--resume").returncode == 0
    one, other = (load(run / "model.safetensors").model.state_dict() for run in (whole, killed))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("head", ["linear", "queries"])
def test_the_other_mask_heads_train(few: Path, tmp_path: Path, head: str) -> None:
    finished = trained(few, tmp_path / "run", "segment", train__epochs=1.0, model__head=head)
    assert finished.checkpoint.config.head == f"mask_{head}"
    assert np.isfinite(finished.results["metrics"]["mIoU"])


def test_query_tokens_find_boxes(few: Path, tmp_path: Path) -> None:
    finished = trained(few, tmp_path / "run", "detect", train__epochs=1.0, model__head="tokens", model__candidates=9)
    assert finished.checkpoint.config.head == "box_tokens" and finished.checkpoint.config.queries == 9


def test_large_pictures_through_windows(tmp_path: Path) -> None:
    larger = tmp_path / "scenes"
    make_data("shapes", larger, images=40, size=48, task="segment")
    finished = trained(
        larger, tmp_path / "run", "segment", train__epochs=1.0, model__resize="window", model__image_size=32
    )
    assert finished.checkpoint.preprocessing.resize == "window"
    model = vitrail.load(tmp_path / "run" / "model.safetensors")
    wide = np.random.default_rng(0).integers(0, 256, (45, 131, 3), np.uint8)
    assert model.predict(wide)["mask"].shape == (45, 131)
    result = vitrail.evaluate(tmp_path / "run" / "model.safetensors", larger, bootstrap=0)
    assert result["metrics"]["mIoU"] == pytest.approx(finished.results["metrics"]["mIoU"], abs=1e-6)


def test_a_classifier_becomes_a_segmenter(few: Path, tmp_path: Path) -> None:
    first = trained(few, tmp_path / "classes", "classify", train__epochs=1.0)
    settings = Settings().with_values({"train.epochs": 1.0, "data.workers": 0})
    start = tmp_path / "classes" / "model.safetensors"
    tuned = vitrail.train(few, tmp_path / "masks", task="segment", start=start, settings=settings)
    assert tuned.checkpoint.config.width == first.checkpoint.config.width
    assert tuned.checkpoint.preprocessing.resize == "pad" and tuned.checkpoint.config.head == "mask_decoder"
    back = vitrail.train(
        few, tmp_path / "again", task="classify", start=tmp_path / "masks" / "model.safetensors", settings=settings
    )
    assert back.checkpoint.config.head == "linear"


@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "one broken"])
def test_a_training_mask_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool) -> None:
    """To know whether it is broken, to count its classes, and to learn from it. (A small sample is read before, when
    the layout is recognised.)"""
    make_data("shapes", tmp_path / "data", images=40, size=32, task="segment")
    masks = sorted((tmp_path / "data" / "masks" / "train").iterdir())
    if damaged:
        masks[3].write_bytes(masks[3].read_bytes()[:40])
    reads: Counter[str] = Counter()
    read = MaskFile.read

    def counting(self: MaskFile) -> Any:
        reads[self.path.name] += self.path.parent.name == "train"
        return read(self)

    monkeypatch.setattr(MaskFile, "read", counting)
    monkeypatch.setattr("vitrail.tasks.segment.mask_folders.sample_finding", lambda masks: [])
    trained(tmp_path / "data", tmp_path / "run", "segment", train__epochs=2.0)
    assert max(reads.values()) == 1 and len(+reads) >= len(masks) - 1


def test_a_broken_mask_is_named_and_left_out(tmp_path: Path) -> None:
    make_data("shapes", tmp_path / "data", images=40, size=32, task="segment")
    victim = sorted((tmp_path / "data" / "masks" / "train").iterdir())[3]
    victim.write_bytes(victim.read_bytes()[:40])
    finished = trained(tmp_path / "data", tmp_path / "run", "segment", train__epochs=1.0)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert victim.name in page
    assert finished.results["images"] > 0


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"train.mixup": 0.2}, "needs every patch"),
        ({"train.keep_tokens": 0.5}, "needs every patch"),
        ({"model.resize": "crop"}, "use pad"),
        ({"model.head": "tokens"}, "the task segment has decoder, linear, queries"),
    ],
)
def test_what_does_not_go_with_masks_is_said(
    shapes: Path, tmp_path: Path, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(VitrailError, match=sentence):
        vitrail.train(shapes, tmp_path / "run", task="segment", settings=Settings().with_values(SMALL | values))


def test_predictions_become_files(few: Path, tmp_path: Path) -> None:
    finished = trained(few, tmp_path / "run", "detect", train__epochs=1.0)
    wide = tmp_path / "wide pictures"
    wide.mkdir()
    Image.new("RGB", (90, 40), "white").save(wide / "a b.png")
    (wide / "broken.png").write_bytes(b"nothing")
    outlets = ["--out", tmp_path / "boxes", "--json", tmp_path / "x.json"]
    assert command("predict", finished.folder.model, wide, *outlets).returncode == 1  # for the broken one
    with Image.open(tmp_path / "boxes" / "a b.jpg") as picture:
        assert picture.size == (90, 40)
    coco = json.loads((tmp_path / "boxes" / "detections.json").read_text(encoding="utf-8"))
    assert [image["width"] for image in coco["images"]] == [90]
    rows = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert "objects" in rows[0] and "error" in rows[1]


def write_masks(folder: Path, masks: list[np.ndarray]) -> Path:
    """A random picture for each mask of 16 x 16; no file names the classes."""
    random = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for number, mask in enumerate(masks):
        picture = random.integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(picture).save(folder / "images" / f"{number:04}.png")
        Image.fromarray(mask.astype(np.uint8)).save(folder / "masks" / f"{number:04}.png")
    return folder


def test_a_class_that_appears_late_gets_the_weight_of_its_pixels(tmp_path: Path) -> None:
    masks = [np.indices((16, 16))[0] % 2 for _ in range(540)]
    for mask in masks[505:]:
        mask[:4] = 2
    data = write_masks(tmp_path / "data", masks)
    settings = Settings().with_values({"train.class_weights": "inverse"})
    prepared = prepare_data(str(data), Data(), 0, RunLog(None, None))
    task = make_task(prepared, settings)
    scanned = scan_targets(targets_of(prepared.train, task, settings, Shape(16, 16, 3)), task)
    assert isinstance(task, Segment)
    task.fit_statistics([scanned.statistics[index] for index in range(len(prepared.train))])
    late = sum(int(item.path.stem) >= 505 for item in prepared.train)
    total = 256 * len(prepared.train)
    assert late > 10 and task.pixels[2] == 64 * late
    assert task.weights[2] == pytest.approx(total / (3 * 64 * late), rel=1e-5)  # each class weighs the same in all
    assert task.weights[2] < 200


def test_indices_that_nobody_named_are_no_digits(tmp_path: Path) -> None:
    masks = [np.indices((16, 16))[0] % 3 + 1 for _ in range(20)]
    data = write_masks(tmp_path / "data", masks)
    prepared = prepare_data(str(data), Data(), 0, RunLog(None, None))
    assert prepared.dataset.labels == ("1", "2", "3") and not prepared.facts("cpu", None).named
    (data / "classes.txt").write_text("void\nsky\nroad\ncar\n")
    assert prepare_data(str(data), Data(), 0, RunLog(None, None)).facts("cpu", None).named


def test_the_threshold_is_chosen_on_the_validation_part_and_measured_on_the_test_part(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, int] = {}

    def calibrate(task: Detect, outputs: Any, targets: Any) -> None:
        seen["calibrated"] = len(targets)
        task.threshold = 0.321

    monkeypatch.setattr(Detect, "calibrate", calibrate)
    finished = trained(few, tmp_path / "run", "detect", train__epochs=1.0)
    parts = {part: len(list((few / "images" / part).iterdir())) for part in ("val", "test")}
    assert finished.part == "test" and finished.results["images"] == parts["test"] != parts["val"]
    assert seen == {"calibrated": parts["val"]} and finished.results["threshold"] == 0.321
    model = tmp_path / "run" / "model.safetensors"
    tested, validated = (vitrail.evaluate(model, few, part=part, bootstrap=0) for part in ("test", "val"))
    assert tested["threshold"] == 0.321 and not any("threshold" in note for note in tested["notes"])
    assert any("the threshold 0.32 of precision, recall and F1 was chosen" in note for note in validated["notes"])


def test_dense_tasks_draw_groups_too(few: Path, tmp_path: Path) -> None:
    """Every test picture is there twice."""
    data = tmp_path / "data"
    shutil.copytree(few, data)
    for kind in ("images", "masks"):
        for file in sorted((data / kind / "test").iterdir()):
            shutil.copy(file, file.with_name(f"again {file.name}"))
    finished = trained(data, tmp_path / "run", "segment", train__epochs=1.0)
    count = len(list((few / "images" / "test").iterdir()))
    assert (finished.results["images"], finished.results["groups"]) == (2 * count, count)
    result = vitrail.evaluate(tmp_path / "run" / "model.safetensors", data, bootstrap=50)
    assert result["groups"] == count
