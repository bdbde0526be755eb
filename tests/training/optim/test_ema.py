"""The running average against the same average written out."""

import torch
from torch import nn

from vitrail.training.optim.ema import EMA


def test_it_is_the_exponential_average_and_leaves_the_model_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average = EMA(model, horizon=4)
    expected = model[0].weight.detach().clone()
    for step in range(10):
        with torch.no_grad():
            model[0].weight += torch.randn(2, 3)
        model[1].num_batches_tracked += 1
        average.update(model, step)
        share = max(1 / 4, 1 / (step + 1))
        expected = (1 - share) * expected + share * model[0].weight.detach()
    own = model[0].weight.detach().clone()
    with average.applied(model):
        torch.testing.assert_close(model[0].weight, expected)
        assert model[1].num_batches_tracked == 10
    assert torch.equal(model[0].weight, own)
