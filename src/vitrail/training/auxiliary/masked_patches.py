"""Pictures without labels beside a supervised task: most of their patches are hidden, and painted from the rest (MAE).

On small sets this joint loss was ahead of pre-training first and fine-tuning then (SSAT, arXiv:2310.20704). The decoder
learns with the encoder, and is left behind when the run ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.loading.rng import step_seed
from vitrail.model.encoder import Capture, Encoder
from vitrail.model.heads.mae_decoder import MAEDecoder, hide_patches, mae_loss
from vitrail.model.noise import current_keys, drawing_by
from vitrail.training.stages.decode_images import TrainingImages, quick_metrics
from vitrail.training.train_step import Trainer

HIDDEN = 0.75  # of the patches, as in the paper


class JointModel(nn.Module):
    """An encoder that answers about images with labels, and a decoder that paints the hidden patches of others."""

    def __init__(self, encoder: Encoder, decoder: MAEDecoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(
        self, images: Tensor, unlabelled: Tensor, shown: Tensor, hidden: Tensor, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """The encoder's outputs for images (B, C, H, W), and the loss of the hidden patches of unlabelled (U, C, H, W).

        shown (K,), hidden (M,): numbers of patches; options: of the encoder's forward pass."""
        keys = current_keys()
        own, others = (None, None) if keys is None else keys.split([len(images), len(unlabelled)])
        with drawing_by(others):
            painting = painting_loss(self.encoder, self.decoder, unlabelled, shown, hidden)
        with drawing_by(own):
            return self.encoder(images, **options), painting


def painting_loss(encoder: Encoder, decoder: MAEDecoder, images: Tensor, shown: Tensor, hidden: Tensor) -> Tensor:
    """How badly the decoder paints the patches hidden (M,) of images (B, C, H, W), from what the encoder makes of the
    patches shown (K,) alone."""
    patch, capture = encoder.config.patch_size, Capture(all_tokens=True)
    encoder.forward_embedding(encoder.embed(hide_patches(images, hidden, patch)), shown, capture)
    assert capture.normed is not None
    painted = decoder(capture.normed[:, encoder.prefix :], shown)  # (B, N, P^2 C)
    return mae_loss(painted, images, hidden, patch)


def draw_hidden(patches: int, share: float, seed: int, device: torch.device) -> Mapping[str, Tensor]:
    """Which patches are shown and which are hidden, a share of all: the same for a whole batch on every process."""
    count = min(patches - 1, max(1, round((1 - share) * patches)))
    order = np.random.default_rng(seed).permutation(patches)
    parts = {"shown": order[:count], "hidden": order[count:]}
    return {name: torch.from_numpy(np.sort(part)).to(device) for name, part in parts.items()}


@dataclass(frozen=True, kw_only=True)
class JointTrainer(Trainer):
    """What a step works on that also paints hidden patches. Its model is a `JointModel`."""

    unlabelled: int  # pictures without labels in a step, over all processes

    @property
    def encoder(self) -> Encoder:
        """The network that is measured and kept: without the decoder."""
        assert isinstance(self.model, JointModel)
        return self.model.encoder

    def forward(
        self, images: Tensor, unlabelled: Tensor | None, step: int, **options: Any
    ) -> tuple[Tensor, Tensor | float]:
        """The encoder's outputs, and the share of this part's pictures in the loss of the hidden patches."""
        assert unlabelled is not None
        seed = step_seed(self.recipe.seed + 1, step)
        drawn = draw_hidden(self.encoder.config.patches, HIDDEN, seed, images.device)
        outputs, painting = self.network(images, unlabelled, **drawn, **options)
        return outputs, self.recipe.unlabelled_weight * painting * (len(unlabelled) / self.unlabelled)

    def measure(self, images: TrainingImages, precision: str | None = None) -> dict[str, float]:
        """As every supervised run, by the encoder alone."""
        return quick_metrics(images, self.encoder, self.processes, precision)
