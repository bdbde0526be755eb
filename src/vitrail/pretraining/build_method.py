"""The method that the settings name, around a network that is to learn."""

from __future__ import annotations

from vitrail.model.vit import ViT
from vitrail.pretraining.methods.dino_head import DINOHead, ProjectionHead
from vitrail.pretraining.methods.dino_loss import DINOLoss
from vitrail.pretraining.methods.feature_loss import FeatureDistillation
from vitrail.pretraining.methods.mae import MaskedAutoencoder
from vitrail.pretraining.methods.method import Method
from vitrail.pretraining.methods.self_distillation import SelfDistillation
from vitrail.pretraining.methods.simdino_loss import SimDINOLoss
from vitrail.training.settings import Settings
from vitrail.training.teacher import Teacher
from vitrail.weights.preprocessing import Preprocessing

BOTTLENECK_SHARE = 8  # of the head's width, as the paper has it: 2048 and 256


def build_method(
    settings: Settings, student: ViT, preprocessing: Preprocessing, world: int, teacher: Teacher | None
) -> Method:
    """preprocessing: how the student is shown images. world: processes that share a batch. teacher: for "features"."""
    pretrain, width = settings.pretrain, student.config.pooled_width
    assert pretrain.hidden is not None and pretrain.outputs is not None
    momentum = (pretrain.momentum, 1.0 if pretrain.momentum_end is None else pretrain.momentum_end)
    if pretrain.method == "dino":
        head = DINOHead(width, pretrain.outputs, pretrain.hidden, pretrain.hidden // BOTTLENECK_SHARE)
        loss = DINOLoss(pretrain.outputs, pretrain.student_temperature, pretrain.centre_momentum)
        return SelfDistillation(student, head, loss, momentum, pretrain.teacher_temperature)
    if pretrain.method == "simdino":
        projection = ProjectionHead(width, pretrain.hidden, pretrain.outputs, norm=pretrain.head_norm)
        coding_rate = SimDINOLoss(pretrain.coding_rate, pretrain.distortion, pretrain.rate_crops, world)
        return SelfDistillation(student, projection, coding_rate, momentum, target=pretrain.target)
    if pretrain.method == "mae":
        return MaskedAutoencoder(student, pretrain.mask)
    assert teacher is not None
    return FeatureDistillation(student, preprocessing, teacher)
