"""DINO's head against torch's own weight normalisation."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import normalize
from torch.nn.utils.parametrizations import weight_norm

from vitrail.pretraining.methods.dino_head import DINOHead, ProjectionHead


def test_the_last_layer_is_weight_normalised():
    torch.manual_seed(0)
    head = DINOHead(6, prototypes=10, hidden=8, bottleneck=4)
    last = weight_norm(nn.Linear(4, 10, bias=False))
    with torch.no_grad():
        last.parametrizations.weight.original0.fill_(1.0)
        last.parametrizations.weight.original1.copy_(head.prototypes)
    x = torch.randn(3, 6)
    torch.testing.assert_close(head(x), last(normalize(head.projection.mlp(x), dim=-1)))


def test_longer_prototypes_change_nothing():
    torch.manual_seed(0)
    head, x = DINOHead(6, prototypes=10, hidden=8, bottleneck=4), torch.randn(3, 6)
    before = head(x)
    with torch.no_grad():
        head.prototypes *= 7
    torch.testing.assert_close(head(x), before)


def test_the_projection_has_length_one():
    lengths = ProjectionHead(6, hidden=8, outputs=5)(torch.randn(3, 6)).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(3))


def test_batch_norm_takes_away_what_all_have_in_common():
    torch.manual_seed(0)
    plain, normed = ProjectionHead(6, 8, 5), ProjectionHead(6, 8, 5, norm=True)
    x = torch.randn(64, 6)
    torch.testing.assert_close(normed(x + 3), normed(x), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(plain(x + 3), plain(x), rtol=1e-3, atol=1e-3)
    assert [type(layer).__name__ for layer in normed.mlp] == ["Linear", "BatchNorm1d", "GELU"] * 2 + ["Linear"]
