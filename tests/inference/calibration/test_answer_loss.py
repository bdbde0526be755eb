"""What is called a loss: nothing for the model itself, and what each task's metric makes of other answers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import lively_vit
from vitrail.inference.calibration.answer_loss import AnswerJudge
from vitrail.inference.calibration.calibration_images import CalibrationImages
from vitrail.inference.image_processor import ImageProcessor, ModelInput
from vitrail.model.presets import preset
from vitrail.tasks.letterbox import Letterbox
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

SIZE = (32, 32)
PIXELS = [np.random.default_rng(n).integers(0, 255, (*SIZE, 3), dtype=np.uint8) for n in range(8)]
TASKS = {
    "classify": {"classes": 4},
    "multilabel": {"classes": 4},
    "regress": {"classes": 2},
    "segment": {"classes": 3, "head": "mask_linear"},
    "depth": {"classes": 1, "head": "mask_linear"},
    "detect": {"classes": 2, "head": "box_decoder", "queries": 10},
    "embed": {"classes": 0},
}


def checkpoint_of(task: str) -> Checkpoint:
    config = preset("mu/16", image_size=32, **TASKS[task])
    network = lively_vit(config)
    resize = "squash" if config.is_dense else "crop"
    training = {"training": {"task": {"threshold": 0.0, "nms_iou": None}}} if task == "detect" else {}
    return Checkpoint(network, Preprocessing(size=SIZE, resize=resize), task, None, training)


def images_for(checkpoint: Checkpoint) -> CalibrationImages:
    letterbox = Letterbox.whole(SIZE) if checkpoint.config.is_dense else None
    return CalibrationImages([ModelInput(pixels, letterbox) for pixels in PIXELS], "a test")


def forward_of(checkpoint: Checkpoint, noise: float = 0.0) -> Any:
    """The network, with noise of so many standard deviations on its outputs."""

    def forward(images: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            outputs = checkpoint.model(torch.from_numpy(images))
        generator = torch.Generator().manual_seed(int(abs(images).sum()))
        return (outputs + noise * outputs.std() * torch.randn(outputs.shape, generator=generator)).numpy()

    return forward


@pytest.mark.parametrize("task", TASKS)
def test_the_model_itself_loses_nothing_and_noise_does(task: str) -> None:
    checkpoint = checkpoint_of(task)
    judge = AnswerJudge(checkpoint, images_for(checkpoint))
    same, noisy = judge(forward_of(checkpoint)), judge(forward_of(checkpoint, noise=1.5))
    assert same.points == pytest.approx(0, abs=1e-4) and same.distance == pytest.approx(0, abs=1e-5)
    assert same.agreement is not None and same.agreement.share == 1
    assert noisy.points > 0.5 and noisy.distance > 0.05
    assert noisy.agreement is not None and noisy.agreement.share < 0.995
    assert noisy.distance == pytest.approx(judge.distance(forward_of(checkpoint, noise=1.5), range(len(PIXELS))))


def test_without_truth_a_class_loses_what_float32s_probabilities_expect() -> None:
    checkpoint = checkpoint_of("classify")
    judge = AnswerJudge(checkpoint, images_for(checkpoint))
    probabilities = torch.softmax(torch.cat(judge.expected), 1)
    turned = iter(torch.flip(torch.cat(judge.expected), [1]))  # the last class' logit for the first, and so on
    loss = judge(lambda images: next(turned)[None].numpy())
    answers = torch.flip(probabilities, [1]).argmax(1)
    expected = np.mean([p.max() - p[answer] for p, answer in zip(probabilities, answers, strict=True)])
    assert loss.points == pytest.approx(100 * expected, rel=1e-5)
    assert loss.metric == "accuracy, expected by float32's probabilities"
    assert loss.agreement is not None and loss.agreement.same == int((answers == probabilities.argmax(1)).sum())


def test_with_truth_a_loss_is_one_of_accuracy() -> None:
    checkpoint = checkpoint_of("classify")
    unlabelled = images_for(checkpoint)
    answers = torch.cat(AnswerJudge(checkpoint, unlabelled).expected).argmax(1).tolist()
    truths = [*answers[:6], *((answer + 1) % 4 for answer in answers[6:])]  # float32 is right in six of eight
    judge = AnswerJudge(checkpoint, CalibrationImages(unlabelled.images, "a test", truths))
    assert judge.score == 0.75 and judge.metric == "accuracy"
    few = AnswerJudge(checkpoint, CalibrationImages(unlabelled.images, "a test", truths), enough=9)
    assert few.metric == "accuracy, expected by float32's probabilities"
    right = iter(torch.eye(4)[truths])
    assert judge(lambda images: next(right)[None].numpy()).points == pytest.approx(-25)


def windows_of(task: str) -> tuple[Checkpoint, list[ModelInput]]:
    """A model that looks through windows of 32 px, and pictures of 40 x 64 as it reads them."""
    checkpoint = dataclasses.replace(checkpoint_of(task), preprocessing=Preprocessing(size=SIZE, resize="window"))
    processor = ImageProcessor(checkpoint.preprocessing, dense=True)
    blots = [np.random.default_rng(n).integers(0, 255, (5, 8, 3), dtype=np.uint8) for n in range(4)]
    return checkpoint, [processor.read(Image.fromarray(blot.repeat(8, 0).repeat(8, 1))) for blot in blots]


@pytest.mark.parametrize("task", ["segment", "depth"])
def test_what_lies_beyond_the_one_window_that_is_run_does_not_count(task: str) -> None:
    checkpoint, images = windows_of(task)
    shown = AnswerJudge(checkpoint, CalibrationImages(images, "a test")).answers
    assert [answer.shape for answer in shown] == [SIZE] * len(images)
    truths = [torch.full((40, 64), 2.0 if task == "depth" else 2, dtype=answer.dtype) for answer in shown]
    for truth, answer in zip(truths, shown, strict=True):
        truth[4:36, 16:48] = answer
    judge = AnswerJudge(checkpoint, CalibrationImages(images, "a test", truths))
    same = judge(forward_of(checkpoint))
    assert judge.has_truth and judge.score == pytest.approx(1.0, abs=1e-5)
    assert same.agreement is not None and same.agreement.compared == len(images) * 32 * 32


def test_outputs_that_are_no_numbers_lose_everything() -> None:
    checkpoint = checkpoint_of("classify")
    judge = AnswerJudge(checkpoint, images_for(checkpoint))
    lost = judge(lambda images: np.full((1, 4), np.nan, np.float32))
    assert lost.points == 100 and lost.agreement is None


def test_maps_of_many_classes_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.inference.calibration.answer_loss.KEPT_BYTES", 3 * 4 * 4)
    checkpoint = checkpoint_of("classify")
    assert len(AnswerJudge(checkpoint, images_for(checkpoint)).expected) == 3
