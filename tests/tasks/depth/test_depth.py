"""Depth: loss, decoding, metrics and files, against numbers worked out by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.tasks.depth.depth import Depth, sample_at_pixels
from vitrail.tasks.letterbox import Letterbox
from vitrail.tasks.registry import task_for


def fitted() -> Depth:
    task = task_for("depth", ["depth (m)"])
    assert isinstance(task, Depth)
    task.fit([torch.tensor([[1.0, math.e], [0.0, math.e**2]])])
    return task


def test_fit_takes_the_known_pixels() -> None:
    task = fitted()
    assert task.mean == pytest.approx((1 + math.e + math.e**2) / 3)
    assert task.most == pytest.approx(math.e**2)
    assert (task.log_mean, task.log_std) == (pytest.approx(1.0), pytest.approx(math.sqrt(2 / 3)))
    again = task_for("depth", ["depth (m)"])
    again.load_state_dict(json.loads(json.dumps(task.state_dict())))
    assert again.state_dict() == task.state_dict()


def test_without_a_known_pixel_it_is_refused() -> None:
    with pytest.raises(VitrailError, match="no training depth map has a known pixel"):
        task_for("depth", ["depth"]).fit([torch.zeros(2, 2)])


def test_the_loss_is_l1_of_standardised_log_depths_over_known_pixels() -> None:
    task = fitted()
    target = torch.tensor([[[1.0, 0.0], [math.e**2, math.e]]])  # log: 0, unknown, 2, 1
    outputs = torch.zeros(1, 1, 2, 2)  # the mean, 1
    assert task.loss(outputs, target).item() == pytest.approx((1 + 1 + 0) / 3 / math.sqrt(2 / 3), rel=1e-5)
    perfect = torch.tensor([[[[-1.0, 9.0], [1.0, 0.0]]]]) / math.sqrt(2 / 3)
    assert task.loss(perfect, target).item() == pytest.approx(0, abs=1e-6)


def test_nothing_known_gives_no_gradient() -> None:
    outputs = torch.randn(1, 1, 2, 2, requires_grad=True)
    loss = fitted().loss(outputs, torch.zeros(1, 4, 4))
    loss.backward()
    assert loss.item() == 0 and outputs.grad is not None and not outputs.grad.any()


def test_decoding_gives_depths_at_the_pictures_own_pixels() -> None:
    task = fitted()
    letterbox = Letterbox((3, 6), (1, 0, 3, 4), (4, 4))  # 3 x 6 pixels in rows 1 to 2 of a 4 x 4 input
    (depth,) = task.decode(torch.full((1, 1, 4, 4), 2.0), [letterbox])
    assert depth.shape == (3, 6)
    torch.testing.assert_close(depth, torch.full((3, 6), math.exp(1 + 2 * math.sqrt(2 / 3))))


def test_sampling_is_bilinear_between_cells() -> None:
    maps = torch.arange(4.0).reshape(1, 1, 4)  # one row of four cells over an input of 1 x 8
    sampled = sample_at_pixels(maps, Letterbox((1, 8), (0, 0, 1, 8), (1, 8)))
    torch.testing.assert_close(sampled[0, 0], torch.tensor([0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3]))


def test_metrics_by_hand() -> None:
    task = fitted()
    truth = torch.tensor([[1.0, 2.0], [4.0, 0.0]])
    answer = torch.tensor([[1.0, 3.0], [4.4, 7.0]])  # errors 0, 1, 0.4; factors 1, 1.5, 1.1
    result = task.evaluate(task.compare(answer, truth)[None].double(), torch.zeros(1, 0), bootstrap=10)
    metrics = result["metrics"]
    assert metrics["MAE"] == pytest.approx(1.4 / 3, rel=1e-5)
    assert metrics["RMSE"] == pytest.approx(math.sqrt(1.16 / 3), rel=1e-5)
    assert metrics["AbsRel"] == pytest.approx((0.5 + 0.1) / 3, rel=1e-5)
    assert metrics["within_1.25"] == pytest.approx(2 / 3) and metrics["within_1.25^2"] == 1
    logs = np.log([1, 1.5, 1.1])
    assert metrics["SILog"] == pytest.approx(logs.std(), rel=1e-4)
    mean = np.abs(np.array([1, 2, 4]) - task.mean).mean()
    assert metrics["MAE_of_the_mean"] == pytest.approx(mean, rel=1e-5)
    assert result["main_metric"] == "within_1.25" and result["worst"][0]["index"] == 0


def test_answers_words_rows_and_files() -> None:
    task = fitted()
    depth = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    (answer,) = task.answer([depth])
    assert task.words(answer) == "depth 2.5 m, half of it 1.75 to 3.25 m (nearest 1 m)"
    assert list(task.row(answer)) == task.columns() and task.row(answer)["median"] == 2.5
    pictures = task.pictures(answer, np.zeros((2, 2, 3), np.uint8))
    stored = np.asarray(pictures[".png"])
    assert stored.dtype == np.uint16
    np.testing.assert_allclose(stored * task.png_scale, depth.numpy(), atol=task.png_scale)
    assert pictures[".colour.jpg"].size == (2, 2)
    content = json.loads(task.files([task.record(answer, "a.jpg", (2, 2, 3))])["depth.json"])
    assert content["unit"] == "m" and content["scale"] == task.png_scale and content["images"][0]["file"] == "a.jpg"


def test_an_answer_of_another_size_is_refused() -> None:
    with pytest.raises(VitrailError, match="2 x 2 pixels, the depth map 3 x 3"):
        fitted().compare(torch.ones(2, 2), torch.ones(3, 3))
