"""Answers that say how like the training pictures an image is, the same on every backend, and "unknown" on demand."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.cli import main
from vitrail.errors import VitrailError
from vitrail.inference.engine import Engine
from vitrail.inference.predictor import Predictor
from vitrail.model.encoder import Capture
from vitrail.weights.familiarity.kept_vectors import UNFAMILIAR
from vitrail.weights.familiarity.reference_vectors import fit_familiarity


def red(seed: int) -> Image.Image:
    """What the model has learnt from: faint blots on red."""
    blots = np.random.default_rng(seed).integers(-30, 31, (4, 4, 3)) + np.array([190, 60, 60])
    return Image.fromarray(blots.astype(np.uint8)).resize((48, 40), Image.Resampling.BICUBIC)


def flat(level: int) -> Image.Image:
    """One colour all over, and not red."""
    return Image.new("RGB", (48, 40), (level // 4, 255 - level, level))


@pytest.fixture
def told(save: Callable[..., Path]) -> Callable[..., Path]:
    """A model that has learnt from red pictures, as far as familiarity goes."""

    def make(**changes: object) -> Path:
        path = save(**changes)
        model = vitrail.load(path)
        engine, pooled = Engine.open(model), list[torch.Tensor]()
        engine.outputs([engine.read(red(seed)) for seed in range(90)], pooled=pooled)
        model.familiarity = fit_familiarity(torch.stack(pooled[:60]), torch.stack(pooled[60:]))
        return model.save(path)

    return make


def test_strangers_are_told_from_pictures_like_those_of_training(told: Callable[..., Path]) -> None:
    model = vitrail.load(told())
    like = model.predict([red(seed) for seed in range(100, 140)])
    strange = model.predict([flat(level) for level in (0, 60, 120, 255)])
    assert sum(answer["familiar"] for answer in like) >= 34
    assert not any(answer["familiar"] for answer in strange)
    for answer in [*like, *strange]:
        assert answer["familiar"] == (answer["familiarity"] >= UNFAMILIAR) and 0 < answer["familiarity"] <= 1


def test_the_answer_itself_stays_what_it_was(told: Callable[..., Path]) -> None:
    path = told()
    model = vitrail.load(path)
    plain = vitrail.load(path)
    plain.familiarity = None
    for seed in range(5):
        answer = model.predict(red(seed))
        assert {name: answer[name] for name in ("label", "probability", "top")} == plain.predict(red(seed))


@pytest.mark.parametrize("engine", ["compiled", "openvino", "onnxruntime"])
def test_every_backend_gives_it_in_the_same_pass(engine: str, told: Callable[..., Path]) -> None:
    if engine != "compiled" and importlib.util.find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed")
    path, images = told(), [*(red(seed) for seed in range(5)), flat(0)]
    expected = vitrail.load(path).predict(images)
    opened = Engine.open(path, engine=engine, calibration=[])
    assert opened.familiarity is not None
    for answer, other in zip(expected, [one.answer for one in Predictor(opened).predict(images)], strict=True):
        assert other is not None
        assert other["familiarity"] == pytest.approx(answer["familiarity"], abs=0.035)  # one held-out picture of 30
        assert other["familiar"] == answer["familiar"] and other["label"] == answer["label"]


def test_a_model_that_was_told_nothing_says_nothing(save: Callable[..., Path]) -> None:
    model = vitrail.load(save())
    assert model.predict(red(0)).keys() == {"label", "probability", "top"}
    with pytest.raises(VitrailError, match="does not tell what its training pictures were like"):
        model.predict(red(0), unknown=True)


def test_unknown_takes_the_place_of_the_answer(told: Callable[..., Path]) -> None:
    model = vitrail.load(told())
    strange, like = model.predict([flat(0), red(3)], unknown=True)
    assert (strange["label"], strange["probability"], strange["unknown"]) == ("unknown", None, True)
    assert strange["top"][0]["label"] in ("cat", "dog", "owl")
    alone = model.predict(red(3))
    assert (like["label"], like["familiar"]) == (alone["label"], alone["familiar"]) and "unknown" not in like


@pytest.mark.parametrize(
    ("task", "key", "value"), [("multilabel", "labels", ["unknown"]), ("regress", "values", {"a": None, "b": None})]
)
def test_unknown_of_other_tasks(told: Callable[..., Path], task: str, key: str, value: object) -> None:
    path = told(task=task, labels=["a", "b"])
    engine = Engine.open(path)
    [prediction] = Predictor(engine).predict([flat(0)], unknown=True)
    assert prediction.answer is not None and prediction.answer[key] == value
    assert engine.task.words(prediction.answer).startswith("unknown")
    assert set(engine.task.row(prediction.answer).values()) <= {"unknown", ""}


def test_masks_have_no_unknown_but_say_how_familiar(told: Callable[..., Path]) -> None:
    path = told(task="segment", head="mask_linear", pool="none")
    model = vitrail.load(path)
    answer = model.predict(flat(0))
    assert answer["familiar"] is False
    with pytest.raises(VitrailError, match="an answer about a whole image, and the model's task is segment"):
        model.predict(flat(0), unknown=True)


def test_text_json_and_csv(told: Callable[..., Path], tmp_path: Path, capsys) -> None:
    path = str(told())
    for name, image in {"like.png": red(1), "strange.png": flat(0)}.items():
        image.save(tmp_path / name)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n")
    images = [str(tmp_path / name) for name in ("like.png", "strange.png", "broken.png")]
    assert main(["predict", path, *images, "--unknown"]) == 1
    like, strange, broken = capsys.readouterr().out.splitlines()
    assert "; familiarity 0." in like or like.endswith("; familiarity 1")
    assert "strange.png: unknown (at best " in strange and "; unfamiliar (0.0" in strange
    assert "error" in broken and "familiar" not in broken
    main(["predict", path, *images, "--json", "-"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row.get("familiar") for row in rows] == [True, False, None]
    main(["predict", path, *images, "--csv", "-", "--unknown", "--top", "2"])
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["familiar"] for row in table] == ["true", "false", ""]
    assert (table[1]["label"], table[1]["probability"], table[1]["label_2"]) == ("unknown", "", "")
    assert float(table[0]["familiarity"]) == rows[0]["familiarity"] and table[2]["error"]


def test_evaluate_counts_the_strangers(told: Callable[..., Path], tmp_path: Path, capsys) -> None:
    path, data = told(), tmp_path / "data"
    for label in ("cat", "dog"):
        (data / label).mkdir(parents=True)
        for seed in range(8):
            red(seed).save(data / label / f"{seed}.png")  # it has learnt from these
    flat(0).save(data / "dog" / "flat.png")
    result = vitrail.evaluate(path, data, bootstrap=0)
    told_of = result["familiarity"]
    assert told_of["least"][0]["image"].endswith("flat.png")
    assert told_of["unfamiliar"] == 1 and told_of["share"] == 1 / 17
    main(["evaluate", str(path), str(data), "--bootstrap", "0"])
    assert "1 image is unlike those of training, 5.9 % (of the held-out ones 5 %)" in capsys.readouterr().out
    silent = vitrail.load(path)
    silent.familiarity = None
    assert vitrail.evaluate(silent, data, bootstrap=0)["familiarity"] is None


def test_a_picture_in_windows_is_the_mean_of_them(save: Callable[..., Path]) -> None:
    checkpoint = vitrail.load(save(task="segment", head="mask_linear", pool="none"))
    checkpoint.preprocessing = checkpoint.preprocessing.replace(resize="window", crop_fraction=1.0)
    engine, pooled, windows = Engine.open(checkpoint), list[torch.Tensor](), list[torch.Tensor]()
    image = engine.read(red(0).resize((64, 32)))
    assert image.whole is not None
    masks = engine.outputs([image], pooled=pooled)
    forward = engine.forward

    def keeping(images: torch.Tensor, capture: Capture | None = None) -> torch.Tensor:
        capture = Capture()
        outputs = forward(images, capture)
        assert capture.pooled is not None
        windows.extend(capture.pooled)
        return outputs

    engine.forward = keeping  # type: ignore[method-assign]
    assert torch.equal(engine.outputs([image])[0], masks[0]) and len(windows) > 1
    torch.testing.assert_close(pooled[0], torch.stack(windows).mean(0))
