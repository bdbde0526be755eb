"""`vitrail.load(file).predict(...)`: one image or several, and what happens to those that cannot be read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vitrail
from vitrail.weights.load import load


def test_one_gives_an_answer_and_several_give_a_list(save: Callable[..., Path], photos: Path) -> None:
    model = vitrail.load(save())
    paths = sorted((photos / "cat").iterdir())
    one = model.predict(paths[0])
    assert set(one) == {"label", "probability", "top"} and len(one["top"]) == 3
    several = model.predict(paths, top=2)
    assert [answer["label"] for answer in several] == [model.predict(str(path))["label"] for path in paths]
    assert len(several[0]["top"]) == 2
    assert model.predict([]) == []


def test_generators_and_tuples_are_several_too(save: Callable[..., Path], picture: Callable[..., Image.Image]) -> None:
    model = vitrail.load(save())
    assert len(model.predict(picture(n) for n in range(3))) == 3
    assert len(model.predict((picture(0),))) == 1


def test_an_unreadable_one_is_raised_or_returned(
    save: Callable[..., Path], picture: Callable[..., Image.Image]
) -> None:
    model = vitrail.load(save())
    for source in ("nowhere.png", [picture(0), "nowhere.png"]):
        with pytest.raises(vitrail.UnreadableImage, match="nowhere.png does not exist"):
            model.predict(source)
    answers = model.predict([picture(0), "nowhere.png"], errors="return")
    assert answers[0]["label"] and answers[1] == {"error": "nowhere.png does not exist"}
    assert model.predict("nowhere.png", errors="return") == {"error": "nowhere.png does not exist"}
    with pytest.raises(vitrail.UnreadableImage):
        model.outputs(["nowhere.png"])
    with pytest.raises(vitrail.VitrailError, match="errors is 'ignore'; choose one of raise, return"):
        model.predict(picture(0), errors="ignore")


def test_the_other_tasks(save: Callable[..., Path], picture: Callable[..., Image.Image]) -> None:
    several = vitrail.load(save(task="multilabel")).predict(picture(0))
    assert set(several) == {"labels", "top"}
    numbers = vitrail.load(save(("age", "weight"), task="regress")).predict(picture(0))
    assert list(numbers["values"]) == ["age", "weight"]


def test_a_model_without_a_head_gives_features_and_no_answers(
    save: Callable[..., Path], picture: Callable[..., Image.Image]
) -> None:
    model = vitrail.load(save(None, task="embed", classes=0))
    assert model.outputs([picture(0), picture(1)]).shape == (2, model.config.width)
    assert model.outputs([]).shape == (0, model.config.width)
    with pytest.raises(vitrail.VitrailError, match="embeddings, not answers"):
        model.predict(picture(0))


@pytest.mark.parametrize("source", [7, [7]])
def test_what_is_no_source_is_named(save: Callable[..., Path], source: Any) -> None:
    with pytest.raises(vitrail.VitrailError, match="is a int: give a path"):
        vitrail.load(save()).predict(source)


def test_it_is_a_checkpoint_and_loads_as_one(save: Callable[..., Path], tmp_path: Path) -> None:
    model = vitrail.load(save(), labels=["a", "b"])
    assert isinstance(model, vitrail.Checkpoint) and isinstance(model, vitrail.Model)
    assert model.labels == ["a", "b"] and "the head is new" in model.notes[-1]
    assert vitrail.load(model.save(tmp_path / "again.safetensors")).labels == ["a", "b"]
    assert inspect.signature(vitrail.load) == inspect.signature(load)
