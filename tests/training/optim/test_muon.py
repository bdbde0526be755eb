"""Muon takes the steps of torch.optim.Muon, and its updates are orthogonal."""

import pytest
import torch

from vitrail.training.optim.muon import Muon, orthogonalise


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 64, 16), (2, 16, 64)])
def test_updates_are_nearly_orthogonal(shape):
    torch.manual_seed(0)
    singular = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    assert singular.min() > 0.5 and singular.max() < 1.3


@pytest.mark.parametrize("shape", [(32, 32), (64, 16), (16, 64)])
def test_the_steps_are_those_of_torchs_muon(shape):
    torch.manual_seed(0)
    ours = torch.nn.Parameter(torch.randn(shape))
    theirs = torch.nn.Parameter(ours.detach().clone())
    optimizers = Muon([ours], lr=0.1, weight_decay=0.1), torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1)
    for _ in range(4):
        gradient = torch.randn(shape)
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
    assert (ours - theirs).abs().max() < 0.02  # theirs rounds to bfloat16
    assert (ours - theirs).abs().mean() < 0.002


@pytest.mark.parametrize("shape", [(2, 24, 24), (3, 24, 200), (3, 200, 24)])
def test_small_matrices_do_the_work_of_the_whole_iteration(shape):
    """Also where singular values span nine decades, some are zero, and where there is nothing at all."""
    torch.manual_seed(0)
    matrices = torch.randn(shape) * torch.logspace(0, -9, shape[2])
    matrices[0, 3:7], matrices[-1] = 0, 0
    x = matrices.double()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    assert (orthogonalise(matrices) - x).abs().max() < 1e-3


def test_a_stack_of_three_is_three_maps():
    torch.manual_seed(0)
    gradient = torch.randn(48, 16)
    stacked = torch.nn.Parameter(torch.zeros(48, 16))
    single = [torch.nn.Parameter(torch.zeros(16, 16)) for _ in range(3)]
    stacked.grad = gradient
    for parameter, part in zip(single, gradient.chunk(3), strict=True):
        parameter.grad = part
    Muon([{"params": [stacked], "stacks": 3}], lr=0.1).step()
    Muon(single, lr=0.1).step()
    assert torch.allclose(stacked, torch.cat(single), atol=1e-5)


def test_only_matrices_are_taken():
    with pytest.raises(ValueError, match="shape"):
        Muon([torch.nn.Parameter(torch.zeros(3))])
