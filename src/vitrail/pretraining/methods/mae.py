"""MAE: most patches of an image are hidden, and a small decoder paints them from the rest (arXiv:2111.06377).

It makes a good start for fine-tuning, not for search: its features are not told apart by their distance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitrail.data.loading.rng import step_seed
from vitrail.model.heads.mae_decoder import MAEDecoder, hide_patches, mae_loss
from vitrail.model.vit import ViT
from vitrail.pretraining.methods.method import Method, Moment


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
        images, patch = views[0], self.student.config.patch_size
        shown, hidden = draw_mask(self.student.config.patches, self.mask, step_seed(moment.seed, moment.step))
        shown, hidden = shown.to(images.device), hidden.to(images.device)
        tokens = self.encode(hide_patches(images, hidden, patch), shown)
        return mae_loss(self.decoder(tokens[:, self.student.prefix :], shown), images, hidden, patch)

    def encode(self, images: Tensor, shown: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, prefix + K, D): the tokens of the K patches that are shown, after the final norm."""
        embedding, kept = self.student.keep_patches(self.student.embed(images), shown)
        return self.student.norm_tokens(self.student.encode(embedding, kept=kept))


def draw_mask(patches: int, mask: float, seed: int) -> tuple[Tensor, Tensor]:
    """The numbers of the patches that are shown, and of those that are hidden: the same for a whole batch."""
    count = min(patches - 1, max(1, round((1 - mask) * patches)))
    order = torch.from_numpy(np.random.default_rng(seed).permutation(patches))
    return order[:count].sort().values, order[count:].sort().values
