"""SimDINO: DINO without prototypes, centring and temperatures (arXiv:2502.10385).

Crops of one image are pulled together, and the coding rate of the batch, how many bits its features take up to some
distortion, keeps those of different images apart. There is nothing to collapse at ln K, and no wide head to pay for.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.model.precision import without_autocast
from vitrail.pretraining.methods.method import GLOBAL_VIEWS
from vitrail.training.distributed import SummedOverProcesses

DISTORTION = 0.5  # epsilon of the coding rate


class SimDINOLoss(nn.Module):
    """Minus the cosine between student and teacher, minus the weighted coding rate of the student."""

    def __init__(
        self, weight: float = 1.0, distortion: float = DISTORTION, crops: str = "global", world: int = 1
    ) -> None:
        """crops: whose coding rate is taken, of the "global" ones or of "all"."""
        super().__init__()
        self.weight, self.distortion, self.crops, self.world = weight, distortion, crops, world

    def forward(self, student: Tensor, teacher: Tensor | None = None) -> Tensor:
        """student (V, B, P): all crops, the global ones first; teacher (G, B, P): the global crops; of length 1 each.
        None: the crops agree with their mean. Scalar: minus the alignment, minus the mean of the coding rates."""
        _, batch, width = student.shape
        images = batch * self.world
        balance = (width + images) / (width * images)  # so that the weight suits any width and batch
        counted = student if self.crops == "all" else student[:GLOBAL_VIEWS]
        rates = torch.stack([coding_rate(one, self.distortion, self.world) for one in counted])
        return -alignment(student, teacher) - self.weight * balance * rates.mean()


def alignment(student: Tensor, teacher: Tensor | None) -> Tensor:
    """The mean cosine over all pairs of a student's and a teacher's crop that are not the same. Without a teacher: of
    each crop with the mean of all crops of its image (EMP-SSL, arXiv:2304.03977), which is the length of that mean."""
    if teacher is None:
        return student.mean(0).norm(dim=-1).mean()
    views, batch, _ = student.shape
    same = min(len(teacher), views)
    every = (teacher.sum(0) * student.sum(0)).sum() - (teacher[:same] * student[:same]).sum()
    return every / (batch * (len(teacher) * views - same))


def coding_rate(features: Tensor, distortion: float = DISTORTION, world: int = 1) -> Tensor:
    """(B, P) -> 1/2 ln det(I + P / (B eps) Z^T Z), B over all processes."""
    batch, width = features.shape
    with without_autocast(features.device):  # which would round the product to bfloat16
        gram = features.float().T @ features.float()
    if world > 1:
        gram = SummedOverProcesses.apply(gram)
    scaled = torch.eye(width, device=gram.device) + width / (batch * world * distortion) * gram
    return torch.linalg.cholesky(scaled).diagonal().log().sum()
