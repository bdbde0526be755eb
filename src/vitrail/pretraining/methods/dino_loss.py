"""DINO: the student's outputs for every crop are to match the teacher's for the other global crops (arXiv:2104.14294).

The teacher's outputs are centred, so that no prototype wins everywhere, and sharpened by a low temperature, so that not
all of them win equally. Each alone would let it collapse: without sharpening the loss rests at ln K.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitrail.training.distributed import Processes

WARM_TEMPERATURE = 0.04  # of the teacher at the start: a sharper one is unstable there, a softer one collapses


class DINOLoss(nn.Module):
    """Cross-entropy between the teacher's and the student's softmax over K prototypes."""

    centre: Tensor

    def __init__(self, prototypes: int, student_temperature: float = 0.1, centre_momentum: float = 0.9) -> None:
        super().__init__()
        self.student_temperature, self.centre_momentum = student_temperature, centre_momentum
        self.register_buffer("centre", torch.zeros(prototypes))
        self._observed: list[tuple[Tensor, int]] = []  # sum and number of the teacher's outputs, for parts of a step

    @property
    def resting_loss(self) -> float:
        """Where it rests when the teacher says the same of everything: ln K."""
        return math.log(len(self.centre))

    def targets(self, teacher: Tensor, temperature: float) -> Tensor:
        """The teacher's outputs (..., K), centred and sharpened: probabilities (..., K)."""
        return ((teacher - self.centre) / temperature).softmax(-1)

    def forward(self, student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """student (V, B, K): all crops, the global ones first; teacher (G, B, K): the global crops. Scalar: the mean
        over all pairs of different crops, and over the batch."""
        targets = self.targets(teacher, temperature)
        log_p = (student / self.student_temperature).log_softmax(-1)
        views, batch = len(student), student.shape[1]
        same = min(len(teacher), views)
        # the sum over all pairs is the product of the sums: V + G softmaxes instead of V G products
        every = (targets.sum(0) * log_p.sum(0)).sum() - (targets[:same] * log_p[:same]).sum()
        return -every / (batch * (len(teacher) * views - same))

    @torch.no_grad()
    def observe(self, teacher: Tensor) -> None:
        """Outputs (G, B, K) that the centre is to follow after this step."""
        self._observed.append((teacher.sum((0, 1)), teacher.shape[0] * teacher.shape[1]))

    @torch.no_grad()
    def update_centre(self, processes: Processes) -> None:
        """c <- m c + (1 - m) mean of what was observed, over all processes and parts of the step."""
        total = torch.stack([values for values, _ in self._observed]).sum(0)
        count = torch.tensor([float(sum(number for _, number in self._observed))], device=total.device)
        self.centre.lerp_(processes.sum(total) / processes.sum(count), 1 - self.centre_momentum)
        self._observed.clear()
