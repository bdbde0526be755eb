"""The loss with a teacher is DeiT's, as timm computes it; labels are matched by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from timm.task import LogitDistillationTask, TokenDistillationTask
from torch import Tensor, nn
from torch.distributions import Bernoulli, kl_divergence

from vitrail.data.loading.loader import Batch
from vitrail.errors import VitrailError
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.tasks.registry import task_for
from vitrail.tasks.task import Mix
from vitrail.training.auxiliary.distillation import Distillation, match_labels
from vitrail.training.distributed import Processes
from vitrail.training.settings import Recipe
from vitrail.training.step_timing import ENDLESS
from vitrail.training.teacher import Teacher
from vitrail.training.train_step import Trainer, compute_gradients
from vitrail.weights.preprocessing import Preprocessing

LABELS = ["ant", "bee", "cat"]
SIDE = 16
STUDENT = Preprocessing(size=(SIDE, SIDE), mean=(0.3, 0.5, 0.7), std=(0.2, 0.3, 0.4))
OWN = Preprocessing(size=(SIDE, SIDE), mean=(0.1, 0.2, 0.6), std=(0.5, 0.25, 0.3))


class InTimm(nn.Module):
    """A network as timm's tasks take it: with its normalisation, and two answers where it has two heads."""

    def __init__(self, network: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.network = network
        self.pretrained_cfg = {"mean": preprocessing.mean, "std": preprocessing.std}
        self.num_classes, self.in_chans = len(LABELS), 3

    def set_distilled_training(self, enable: bool = True) -> None:
        self.network.heads_apart = enable

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        outputs = self.network(images)
        return outputs.unbind(1) if outputs.dim() == 3 else outputs


@pytest.fixture
def teacher(lively: Callable) -> Teacher:
    network = lively(preset("mu/4", image_size=SIDE, classes=3), seed=1).requires_grad_(False)
    return Teacher("t", network, OWN, "classify", LABELS, "")


def student(distilled: bool) -> ViT:
    torch.manual_seed(0)
    model = ViT(preset("mu/4", image_size=SIDE, classes=3, distillation=distilled)).train()
    model.heads_apart = True
    return model


def distillation(teacher: Teacher, kind: str, **changes: object) -> Distillation:
    own = Distillation(teacher=teacher, places=torch.arange(3), student=STUDENT, kind=kind, temperature=1.0, weight=0.5)
    return replace(own, **changes)


def batch(count: int = 8) -> Batch:
    made = torch.Generator().manual_seed(2)
    images = torch.randn(count, 3, SIDE, SIDE, generator=made)
    keys = torch.arange(count, dtype=torch.int32)
    return Batch(0, images, torch.randint(0, 3, (count,), generator=made), np.arange(count), None, keys)


def gradient(model: nn.Module, loss: Tensor) -> Tensor:
    parts = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return torch.cat([*parts, loss[None]])


def ours(model: ViT, taught: Distillation, whole: Batch, accumulate: int = 1, smoothing: float = 0.0) -> Tensor:
    """(parameters + 1,): the gradient of all parameters, and the loss of the step."""
    trainer = Trainer(
        model=model,
        network=model,
        optimizers=(),
        ema=None,
        task=task_for("classify", LABELS),
        loader=None,
        recipe=Recipe(accumulate=accumulate, keep_tokens=1.0, precision="float32", smoothing=smoothing),
        processes=Processes(),
        distillation=taught,
    )
    return gradient(model, compute_gradients(trainer, whole, ENDLESS))


def theirs(task: type, model: ViT, teacher: Teacher, whole: Batch, weight: float, **options: object) -> Tensor:
    both = InTimm(model, STUDENT), InTimm(teacher.network, OWN)
    computed = task(*both, task_loss_weight=1 - weight, verbose=False, **options)(whole.images, whole.targets)
    computed["loss"].backward()
    return gradient(model, computed["loss"].detach())


@pytest.mark.parametrize(
    ("kind", "temperature", "weight"), [("hard", 1.0, 0.5), ("soft", 3.0, 0.1), ("soft", 1.0, 0.9)]
)
def test_two_heads_learn_as_in_timm(teacher: Teacher, kind: str, temperature: float, weight: float) -> None:
    """The same weights, images and teacher: the same loss and gradient, the teacher's normalisation included."""
    taught = distillation(teacher, kind, temperature=temperature, weight=weight)
    expected = theirs(
        TokenDistillationTask, student(True), teacher, batch(), weight, distill_type=kind, temperature=temperature
    )
    torch.testing.assert_close(ours(student(True), taught, batch()), expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_one_head_learns_as_in_timm(teacher: Teacher, temperature: float) -> None:
    taught = distillation(teacher, "soft", temperature=temperature, weight=0.7)
    expected = theirs(LogitDistillationTask, student(False), teacher, batch(), 0.7, temperature=temperature)
    torch.testing.assert_close(ours(student(False), taught, batch()), expected, atol=1e-6, rtol=1e-4)


def test_the_formula_of_deit(teacher: Teacher) -> None:
    """1/2 CE([CLS], y) + 1/2 CE([DIST], argmax of the teacher), by hand; only labels are mixed and smoothed."""
    whole, model = batch(4), student(True)
    mixed = replace(whole, mix=Mix(torch.arange(4) ^ 1, torch.full((4,), 0.75)))
    found = ours(model, distillation(teacher, "hard"), mixed, smoothing=0.1)[-1]
    with torch.no_grad():
        outputs = student(True)(whole.images)
        answers = teacher.outputs(whole.images, STUDENT)
    expected = 0.0
    for row in range(4):
        y = torch.full((3,), 0.1 / 3)
        y[whole.targets[row]] += 0.9 * 0.75
        y[whole.targets[row ^ 1]] += 0.9 * 0.25
        expected -= (y * outputs[row, 0].log_softmax(0)).sum() / 8
        expected -= outputs[row, 1].log_softmax(0)[answers[row].argmax()] / 8
    assert found.item() == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("distilled", [True, False])
def test_parts_of_a_step_give_the_gradient_of_the_whole(teacher: Teacher, distilled: bool) -> None:
    taught = distillation(teacher, "soft", temperature=2.0)
    one, parts = (ours(student(distilled), taught, batch(), accumulate) for accumulate in (1, 4))
    torch.testing.assert_close(parts, one, atol=1e-6, rtol=1e-4)


def test_the_answer_is_the_mean_of_both_heads_once_trained(teacher: Teacher) -> None:
    model, images = student(True), batch().images
    both = model(images)
    assert both.shape == (8, 2, 3)
    torch.testing.assert_close(model.eval()(images), both.mean(1))


def test_labels_are_probabilities_by_themselves() -> None:
    task = task_for("multilabel", LABELS)
    outputs, answers = torch.randn(5, 3), torch.randn(5, 3)
    for temperature in (1.0, 3.0):
        pair = (Bernoulli(logits=logits / temperature) for logits in (answers, outputs))
        expected = kl_divergence(*pair).mean() * temperature**2
        torch.testing.assert_close(task.distillation_loss(outputs, answers, "soft", temperature), expected)
    given = nn.functional.binary_cross_entropy(outputs.sigmoid(), (answers > 0).float())
    torch.testing.assert_close(task.distillation_loss(outputs, answers, "hard"), given)
    assert task.distillation_loss(outputs, outputs, "soft").item() == pytest.approx(0, abs=1e-6)


def test_numbers_are_learnt_in_their_own_units() -> None:
    task = task_for("regress", ["age", "size"])
    task.fit([(10.0, 1.0), (30.0, 5.0)])  # means 20 and 3, deviations 10 and 2
    outputs, answers = torch.tensor([[0.5, -1.0]]), torch.tensor([[40.0, 3.0]])
    assert task.distillation_loss(outputs, answers, "soft").item() == pytest.approx(0.5 * (1.5**2 + 1.0) / 2)


def test_labels_are_matched_by_name(teacher: Teacher) -> None:
    assert match_labels(teacher, task_for("classify", ["cat", "ant", "bee"])).tolist() == [2, 0, 1]
    assert match_labels(teacher, task_for("classify", ["cat", "ant"])).tolist() == [2, 0]  # it knows more
    taught = distillation(teacher, "soft", places=torch.tensor([2, 0, 1]))
    images = batch().images
    assert torch.equal(taught.answers(images), teacher.outputs(images, STUDENT)[:, [2, 0, 1]])
    for task, changes, words in [
        ("classify", {}, r"the teacher t has no class 'dog' \(it has ant, bee, cat\): .* pretrain --teacher"),
        ("classify", {"labels": None}, "does not name its outputs"),
        ("classify", {"labels": ["dog", "dog", "ant"]}, "the teacher t has 2 classes called 'dog'"),
        ("classify", {"task": "embed"}, "gives features and no answers: .*pretrain --teacher"),
        ("multilabel", {}, "learnt the task classify, and the data's is multilabel"),
    ]:  # fmt: skip
        with pytest.raises(VitrailError, match=words):
            match_labels(replace(teacher, **changes), task_for(task, ["ant", "dog"]))
