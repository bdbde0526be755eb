"""Few photos from scratch: the run ends with what fine-tuning would start from."""

from __future__ import annotations

import pytest

from vitrail.tasks.registry import task_for
from vitrail.training.choices.starting_point import better_start, better_start_words
from vitrail.training.settings import Settings
from vitrail.weights.published import published_models


@pytest.mark.parametrize(
    ("task", "device", "images", "values", "name"),
    [
        ("classify", "cpu", 49_999, {}, "vit-ti"),
        ("classify", "cuda", 500, {}, "dinov2-s"),
        ("segment", "cpu", 500, {}, "dinov2-s"),
        ("classify", "cpu", 50_000, {}, None),
        ("classify", "cpu", 500, {"model.image_size": 64}, None),
        ("classify", "cpu", 500, {"model.start": "deit-ti"}, None),
        ("classify", "cpu", 500, {"model.cnn": "timm:resnet18.a1_in1k"}, None),
    ],
)
def test_few_photos_have_a_better_start(task: str, device: str, images: int, values: dict, name: str | None) -> None:
    settings = Settings().with_values({"model.image_size": 128, **values})
    found = better_start(settings, task_for(task, ["a", "b"]), images, device)
    assert (found and found.name) == name


def test_the_line_names_model_licence_and_command() -> None:
    words = better_start_words(published_models()["vit-ti"], 1020)
    assert words.startswith("1,020 photos are few to start from scratch: --from vit-ti")
    assert "Apache-2.0" in words and "'vitrail models'" in words and "\n" not in words
