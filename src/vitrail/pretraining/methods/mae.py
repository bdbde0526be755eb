"""MAE: most patches of an image are hidden, and a small decoder paints them from the rest (arXiv:2111.06377).

It makes a good start for fine-tuning, not for search: its features are not told apart by their distance.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vitrail.data.loading.rng import step_seed
from vitrail.model.heads.mae_decoder import MAEDecoder
from vitrail.model.vit import ViT
from vitrail.pretraining.methods.method import Method, Moment
from vitrail.training.auxiliary.masked_patches import draw_hidden, painting_loss


class MaskedAutoencoder(Method):
    """An encoder that sees some patches, and a decoder that is to know the others."""

    def __init__(self, student: ViT, mask: float = 0.75) -> None:
        super().__init__()
        self.student, self.mask = student, mask
        self.decoder = MAEDecoder(student.config)

    @property
    def encoder(self) -> ViT:
        """The student itself."""
        return self.student

    def forward(self, views: Sequence[Tensor], keep: Tensor | None, moment: Moment) -> Tensor:
        """The first view (B, C, h, w) -> the mean squared error of the hidden patches, each normalised by itself."""
        images, seed = views[0], step_seed(moment.seed, moment.step)
        drawn = draw_hidden(self.student.config.patches, self.mask, seed, images.device)
        return painting_loss(self.student, self.decoder, images, **drawn)
