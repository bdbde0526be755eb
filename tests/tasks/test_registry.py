"""Every task of the list has all that the rooms above ask for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jsonschema_rs
import numpy as np
import pytest
import torch

from vitrail.data.layouts.layout_names import layout_names
from vitrail.errors import VitrailError
from vitrail.tasks.dense_task import DenseTask
from vitrail.tasks.registry import (
    own_layouts,
    synthetic_task_names,
    task_class,
    task_data,
    task_for,
    task_names,
    tasks_of_layout,
)
from vitrail.tasks.report_part import page_folders
from vitrail.tasks.task import Task


def example(name: str) -> Task:
    labels = ["depth"] if name == "depth" else ["a", "b", "c"]
    return task_for(name, labels)


def answer_of(task: Task) -> dict:
    if not isinstance(task, DenseTask):
        return task.answer(torch.randn(1, task.outputs))[0]
    outputs = {
        "segment": torch.zeros(8, 8, dtype=torch.uint8),
        "detect": torch.tensor([[0, 0.9, 1, 1, 5, 5, 3.0]]),
        "depth": torch.rand(8, 8) + 1,
    }
    return task.answer([outputs[task.name]])[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", task_names())
def test_both_halves_know_their_name_and_say_it_in_words(name: str) -> None:
    assert task_class(name).name == task_data(name).name == name
    assert task_class(name).title and task_class(name).main_metric
    assert set(task_data(name).layouts) <= set(layout_names())
    assert all(task_data(name) in tasks_of_layout(layout) for layout in task_data(name).layouts)


@pytest.mark.parametrize("name", task_names())
def test_an_answer_has_the_form_of_its_schema(name: str) -> None:
    task = example(name)
    answer = answer_of(task)
    arrays = task.png_arrays(answer)
    assert all(array.dtype in (np.uint8, np.uint16) and array.ndim == 2 for array in arrays.values())
    sent = {key: value for key, value in answer.items() if not isinstance(value, np.ndarray)}
    sent |= {f"{key}_png": "iVBORw0KGgo=" for key in arrays}
    jsonschema_rs.validate(dict(task.answer_schema), sent)
    assert not jsonschema_rs.is_valid(dict(task.answer_schema), {})


@pytest.mark.parametrize("name", task_names())
def test_the_page_has_a_script_for_every_task(name: str) -> None:
    scripts = {path.name: path for folder in page_folders() for path in Path(folder).glob("*.js")}
    text = scripts[f"{name}.js"].read_text("utf-8")
    assert "answerLines" in text


def test_own_layouts_and_generated_data_are_those_of_the_tasks() -> None:
    assert set(own_layouts()) == {task_data(name).own_layout for name in task_names()} - {""}
    assert set(synthetic_task_names()) <= set(task_names())


def test_an_unknown_task_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(VitrailError, match="the task is 'paint'; choose one of classify, "):
        task_class("paint")


def test_reading_data_does_not_wait_for_torch() -> None:
    code = (
        "import sys, vitrail.data.checks.check_dataset\n"
        "from vitrail.tasks.registry import task_data, task_names\n"
        "for name in task_names(): task_data(name)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
