"""Student and teacher: who learns, who follows, who sees what."""

from __future__ import annotations

import pytest
import torch

from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.pretraining.methods.dino_head import DINOHead, ProjectionHead
from vitrail.pretraining.methods.dino_loss import DINOLoss
from vitrail.pretraining.methods.method import Moment
from vitrail.pretraining.methods.self_distillation import SelfDistillation, entropy
from vitrail.pretraining.methods.simdino_loss import SimDINOLoss
from vitrail.training.distributed import Processes


def made(kind: str, **changes) -> SelfDistillation:
    torch.manual_seed(0)
    student = ViT(preset("mu/4", image_size=16, classes=0, stem="conv", **changes)).train()
    width = student.config.width
    if kind == "dino":
        return SelfDistillation(student, DINOHead(width, 12, 16, 8), DINOLoss(12), momentum=(0.9, 1.0))
    return SelfDistillation(student, ProjectionHead(width, 16, 8), SimDINOLoss(), momentum=(0.9, 1.0))


def views(local: int = 2) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    return [torch.randn(4, 3, side, side, generator=random) for side in (16, 16, *[8] * local)]


@pytest.mark.parametrize("kind", ["dino", "simdino"])
def test_gradients_reach_the_student_and_not_the_teacher(kind):
    method = made(kind)
    method(views(), None, Moment(5, 10, 0)).backward()
    assert all(parameter.grad is not None for parameter in method.student.parameters())
    assert all(parameter.grad is not None for parameter in method.head.parameters())
    assert all(parameter.grad is None for parameter in method.teacher.parameters())
    names = [name for name, _ in method.other_parameters()]
    assert names and all(name.startswith("pretraining.head.") for name in names)


def test_crops_that_agree_with_their_mean_have_no_use_for_the_teacher():
    """Nothing runs through it, and it follows all the same."""
    method = made("simdino")
    method.target = "mean"
    method.teacher.register_forward_pre_hook(lambda *_: pytest.fail("the teacher was called"))
    method(views(), None, Moment(5, 10, 0)).backward()
    assert all(parameter.grad is not None for parameter in method.student.parameters())


def test_the_teacher_follows_with_its_momentum():
    """After two updates from weights 0 with a student of 1: 1 - m_0 m_1, where m goes from 0.9 to 1 in 2 steps."""
    method = made("simdino")
    with torch.no_grad():
        for student, teacher in zip(method.student.parameters(), method.teacher.parameters(), strict=True):
            student.fill_(1.0)
            teacher.fill_(0.0)
    for step in range(2):
        method.after_update(Moment(step, 2, 0), Processes())
    for teacher in method.teacher.parameters():
        torch.testing.assert_close(teacher, torch.full_like(teacher, 1 - 0.9 * 0.95))


def test_the_teacher_has_no_noise():
    method = made("simdino", drop_path=0.5, dropout=0.5)
    assert method.teacher.config.drop_path == method.teacher.config.dropout == 0
    assert method.student.config.drop_path == 0.5
    assert method.teacher.training  # its batch norms have the statistics of the batch


def test_prototypes_stand_still_at_first():
    method = made("dino")
    method(views(), None, Moment(0, 1000, 0)).backward()
    method.before_update(Moment(0, 1000, 0))
    assert method.head.prototypes.grad is None
    method(views(), None, Moment(500, 1000, 0)).backward()
    method.before_update(Moment(500, 1000, 0))
    assert method.head.prototypes.grad is not None


def test_dropped_tokens_are_those_of_the_student():
    method = made("simdino").eval()
    keep = torch.tensor([0, 5, 9])
    few = method(views(0), keep, Moment(0, 10, 0))
    assert not torch.equal(few, method(views(0), None, Moment(0, 10, 0)))


def test_health_of_a_teacher_that_says_the_same_of_everything():
    method = made("dino")
    with torch.no_grad():
        method.teacher_head.prototypes.copy_(torch.ones_like(method.teacher_head.prototypes))
    health = method.health(torch.randn(5, method.student.config.width))
    assert health == pytest.approx({"entropy": 1.0, "prototypes": 12.0}, rel=1e-4)
    assert made("simdino").health(torch.randn(5, 32)) == {}


def test_entropy_of_certainty_is_nothing():
    assert entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).tolist() == pytest.approx([0.0, 0.6931], abs=1e-4)
