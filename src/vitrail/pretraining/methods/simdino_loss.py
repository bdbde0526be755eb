"""SimDINO: DINO without prototypes, centring and temperatures (arXiv:2502.10385).

Crops of one image are pulled together, and the coding rate of the batch, how many bits its features take up to some
distortion, keeps those of different images apart. There is nothing to collapse at ln K, and no wide head to pay for.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.model.precision import without_autocast
from vitrail.training.distributed import SummedOverProcesses

DISTORTION = 0.5  # epsilon of the coding rate


class SimDINOLoss(nn.Module):
    """Minus the cosine between student and teacher, minus the weighted coding rate of the student."""

    def __init__(self, weight: float = 1.0, distortion: float = DISTORTION, world: int = 1) -> None:
        super().__init__()
        self.weight, self.distortion, self.world = weight, distortion, world

    def forward(self, student: Tensor, teacher: Tensor) -> Tensor:
        """student (V, B, P): all crops, the global ones first; teacher (G, B, P): the global crops; of length 1 each.
        Scalar: the alignment is a mean over all pairs of different crops, the coding rate over the global crops."""
        views, batch, width = student.shape
        same = min(len(teacher), views)
        every = (teacher.sum(0) * student.sum(0)).sum() - (teacher[:same] * student[:same]).sum()
        alignment = every / (batch * (len(teacher) * views - same))
        images = batch * self.world
        balance = (width + images) / (width * images)  # so that the weight suits any width and batch
        rates = torch.stack([coding_rate(one, self.distortion, self.world) for one in student[:same]])
        return -alignment - self.weight * balance * rates.mean()


def coding_rate(features: Tensor, distortion: float = DISTORTION, world: int = 1) -> Tensor:
    """(B, P) -> 1/2 ln det(I + P / (B eps) Z^T Z), B over all processes."""
    batch, width = features.shape
    with without_autocast(features.device):  # which would round the product to bfloat16
        gram = features.float().T @ features.float()
    if world > 1:
        gram = SummedOverProcesses.apply(gram)
    scaled = torch.eye(width, device=gram.device) + width / (batch * world * distortion) * gram
    return torch.linalg.cholesky(scaled).diagonal().log().sum()
