"""The features of a larger model, learnt without labels: [CLS] and patches of the same crop, by their cosine.

It cannot collapse, for the teacher stands still. The teacher sees the crop as it was trained to: at its own size, under
its own normalisation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.model.encoder import Encoder
from vitrail.model.vit import ViT
from vitrail.pretraining.methods.method import Method, Moment
from vitrail.weights.load import load
from vitrail.weights.preprocessing import Preprocessing


class FeatureTeacher(nn.Module):
    """A frozen encoder that is shown the student's crops in its own way."""

    def __init__(self, encoder: Encoder, own: Preprocessing, student: Preprocessing) -> None:
        super().__init__()
        self.encoder = encoder.eval().requires_grad_(False)
        if own.channels != student.channels:
            raise VitrailError(
                f"the teacher takes images of {own.channels} channels, and the student of {student.channels}"
            )
        self.size = own.size
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (student.mean, student.std))
        own_mean, own_std = (torch.tensor(values).view(1, -1, 1, 1) for values in (own.mean, own.std))
        self.register_buffer("scale", std / own_std, persistent=False)
        self.register_buffer("shift", (mean - own_mean) / own_std, persistent=False)

    def train(self, mode: bool = True) -> FeatureTeacher:
        """It never trains."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The student's input (B, C, h, w) -> the teacher's vector of the whole crop (B, D), and its patches (B, N, D)
        on the student's grid."""
        own = images * self.scale + self.shift  # type: ignore[operator]
        if own.shape[2:] != self.size:
            own = F.interpolate(own, self.size, mode="bicubic", antialias=True)
        features = self.encoder.features(own)
        patches = features.patches.transpose(1, 2).unflatten(2, features.grid)  # (B, D, h, w)
        if features.grid != grid:
            patches = F.interpolate(patches.float(), grid, mode="bilinear")
        whole = features.cls if features.cls is not None else features.patches.mean(1)
        return whole, patches.flatten(2).transpose(1, 2)


class FeatureDistillation(Method):
    """A student whose tokens, through one linear map each, are to point where the teacher's do."""

    def __init__(self, student: ViT, preprocessing: Preprocessing, teacher: str) -> None:
        super().__init__()
        loaded = load(teacher)
        self.student = student
        self.frozen = FeatureTeacher(loaded.model, loaded.preprocessing, preprocessing)
        width = loaded.config.width
        self.to_whole = nn.Linear(student.config.pooled_width, width)
        self.to_patches = nn.Linear(student.config.width, width)

    @property
    def encoder(self) -> ViT:
        """The student itself."""
        return self.student

    def forward(self, views: Sequence[Tensor], keep: Tensor | None, moment: Moment) -> Tensor:
        """The first view (B, C, h, w) -> 1 minus the cosine, the mean of that of the whole and that of the patches."""
        images, grid = self.student.in_patches(views[0], pad=False)
        whole, patches = self.frozen(images, grid)
        tokens = self.student.norm_tokens(self.student.encode(self.student.embed(images)))
        pooled = self.student.pool_tokens(tokens)
        of_whole = cosine_loss(self.to_whole(pooled), whole)
        of_patches = cosine_loss(self.to_patches(self.student.split(tokens, grid).patches), patches)
        return (of_whole + of_patches) / 2


def cosine_loss(own: Tensor, other: Tensor) -> Tensor:
    """Both (..., D): 1 minus their cosine, its mean."""
    return 1 - F.cosine_similarity(own.float(), other.float(), dim=-1).mean()
