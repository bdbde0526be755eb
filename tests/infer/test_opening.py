"""What cannot answer is refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vitrail.errors import VitrailError
from vitrail.infer.opening import open_model, task_of


@pytest.mark.parametrize("name", ["S/16", "mu/4", "DINOv2-B/14"])
def test_a_preset_is_untrained(name: str) -> None:
    with pytest.raises(VitrailError, match=f"{name} is a preset with untrained weights"):
        open_model(name)


def test_a_file_or_folder_with_the_name_of_a_preset_is_a_file(
    save: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(name="S/16/model.safetensors")
    assert open_model("S/16").labels == ["cat", "dog", "owl"]


def test_a_model_without_a_head_has_no_answers(save: Callable[..., Path]) -> None:
    with pytest.raises(VitrailError, match="gives embeddings, not answers"):
        task_of(open_model(save(None, task="embed", classes=0)))


def test_outputs_without_names_are_numbered(save: Callable[..., Path]) -> None:
    assert task_of(open_model(save(None))).labels == ["class 0", "class 1", "class 2"]
    assert task_of(open_model(save(None, task="regress", classes=1))).labels == ["number 0"]


def test_a_task_that_has_no_answers_here_is_named(save: Callable[..., Path]) -> None:
    with pytest.raises(VitrailError, match="segment does not go with the head 'linear'"):
        task_of(open_model(save(task="segment")))
