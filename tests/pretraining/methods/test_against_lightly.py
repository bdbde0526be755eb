"""Our losses and our head against lightly's, where it is installed (`pip install --no-deps lightly`).

It is no dependency of the tests, for it brings PyTorch Lightning along. The other tests here are computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from vitrail.pretraining.methods.dino_head import DINOHead
from vitrail.pretraining.methods.dino_loss import DINOLoss
from vitrail.pretraining.methods.simdino_loss import coding_rate
from vitrail.training.distributed import Processes

pytest.importorskip("lightly")


def test_dino_loss_and_centre():
    from lightly.loss import DINOLoss as Theirs

    torch.manual_seed(0)
    ours, theirs = DINOLoss(12, centre_momentum=0.8), Theirs(12, center_momentum=0.8)
    for _ in range(3):
        teacher, student = torch.randn(2, 5, 12), torch.randn(4, 5, 12)
        expected = theirs(list(teacher), list(student), teacher_temp=0.05)
        torch.testing.assert_close(ours(student, teacher, 0.05), expected)
        ours.observe(teacher)
        ours.update_centre(Processes())
        torch.testing.assert_close(ours.centre, theirs.center[0, 0])


def test_dino_head():
    from lightly.models.modules import DINOProjectionHead

    torch.manual_seed(0)
    ours, theirs = DINOHead(6, 10, hidden=8, bottleneck=4), DINOProjectionHead(6, 8, 4, 10)
    layers = [layer for layer in theirs.layers if isinstance(layer, torch.nn.Linear)]
    with torch.no_grad():
        for own, other in zip(ours.projection.mlp[::2], layers, strict=True):
            own.weight.copy_(other.weight)
            own.bias.copy_(other.bias)
        ours.prototypes.copy_(theirs.last_layer.weight_v)
    x = torch.randn(7, 6)
    torch.testing.assert_close(ours(x), theirs(x))


def test_coding_rate():
    from lightly.loss.emp_ssl_loss import tcr_loss

    features = normalize(torch.randn(9, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    torch.testing.assert_close(coding_rate(features, 0.2), tcr_loss(features[None], 0.2))
