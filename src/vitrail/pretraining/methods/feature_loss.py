"""The features of a larger model, learnt without labels: [CLS] and patches of the same crop, by their cosine.

It cannot collapse, for the teacher stands still.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.vit import ViT
from vitrail.pretraining.methods.method import Method, Moment
from vitrail.training.teacher import Teacher
from vitrail.weights.preprocessing import Preprocessing


class FeatureDistillation(Method):
    """A student whose tokens, through one linear map each, are to point where the teacher's do."""

    def __init__(self, student: ViT, preprocessing: Preprocessing, teacher: Teacher) -> None:
        """preprocessing: how the student is shown images, which tells the teacher what it is shown."""
        super().__init__()
        self.student, self.preprocessing, self.teacher = student, preprocessing, teacher
        whole, patches, _ = teacher.feature_shapes()
        self.to_whole = nn.Linear(student.config.pooled_width, whole)
        self.to_patches = nn.Linear(student.config.width, patches)

    @property
    def encoder(self) -> ViT:
        """The student itself."""
        return self.student

    def forward(self, views: Sequence[Tensor], keep: Tensor | None, moment: Moment) -> Tensor:
        """The first view (B, C, h, w) -> 1 minus the cosine, the mean of that of the whole and that of the patches."""
        images, grid = self.student.in_patches(views[0], pad=False)
        theirs = self.teacher.to(images.device).features(images, self.preprocessing)
        tokens = self.student.norm_tokens(self.student.encode(self.student.embed(images)))
        pooled = self.student.pool_tokens(tokens)
        patches = theirs.patches.transpose(1, 2).unflatten(2, theirs.grid)  # (B, F, h, w)
        if theirs.grid != grid:
            patches = F.interpolate(patches, grid, mode="bilinear", antialias=True)
        whole = theirs.pooled if theirs.cls is None else theirs.cls
        of_whole = cosine_loss(self.to_whole(pooled), whole)
        of_patches = cosine_loss(self.to_patches(tokens[:, self.student.prefix :]), patches.flatten(2).transpose(1, 2))
        return (of_whole + of_patches) / 2


def cosine_loss(own: Tensor, other: Tensor) -> Tensor:
    """Both (..., D): 1 minus their cosine, its mean."""
    return 1 - F.cosine_similarity(own.float(), other.float(), dim=-1).mean()
