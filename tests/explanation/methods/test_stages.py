"""Methods across the stages of Swin, against whole matrices and plain autograd: merging is a matrix like any other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vitrail.explanation.forward_pass import run_forward_pass, run_steps
from vitrail.explanation.methods.attention_maps import attention_maps, attention_of_all
from vitrail.explanation.methods.merging import merged_into, share_out
from vitrail.explanation.methods.relevance import linearised_gradients, relevance, relevance_of_stages
from vitrail.explanation.methods.rollout import rollout
from vitrail.explanation.methods.weighted_attention import weighted_attention
from vitrail.explanation.target_score import target_score
from vitrail.model.presets import build_network, preset

VERSIONS = ["swin-mu", "swinv2-mu"]
SIZES = [(32, 48), (28, 44)]  # the second does not divide into windows, and its grid is odd


def small(name, **changes):
    """Every parameter matters."""
    changes = {"image_size": 32, "classes": 3, "depths": (2, 2, 1), "heads": (1, 2, 4), **changes}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = build_network(preset(name, **changes)).eval()
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    return model


def whole_matrix(step):
    """(B, heads, N, N) from scores of all pairs, with the mask and bias of each pair written out; padding left out."""
    block, (height, width) = step.block, step.grid
    q, k, _ = step.qkv()
    windows, attention = block.windows(step.grid), block.attention
    (down, across), (shift_down, shift_across) = windows.size, windows.shift
    rows, columns = windows.padded
    places = {}  # of each token, as the windows cut it: window, and place in it
    for row in range(rows):
        for column in range(columns):
            # before the shift, a token that stands here came from there
            source = (row + shift_down) % rows, (column + shift_across) % columns
            window = row // down, column // across
            place = (row % down) * across + column % across
            places[source] = window, place, (row, column)

    def side(at, size, length, shift):
        return 0 if not shift or at < length - size else 1 if at < length - shift else 2

    def region(at):
        return side(at[0], down, rows, shift_down), side(at[1], across, columns, shift_across)

    bias = attention.positions(windows.size)  # (heads, M, M)
    keys = torch.cat([k, attention.padding_key(k)], dim=2)
    matrix = torch.zeros(*q.shape[:2], height * width, height * width)
    by_window = {}
    for source, (window, place, at) in places.items():
        by_window.setdefault(window, []).append((source, place, at))
    for (row, column), (window, place, at) in places.items():
        if row >= height or column >= width:
            continue
        seen = [(s, p) for s, p, other in by_window[window] if region(other) == region(at)]
        numbers = [s[0] * width + s[1] if s[0] < height and s[1] < width else height * width for s, _ in seen]
        own = q[:, :, row * width + column, None] @ keys[:, :, numbers].transpose(-2, -1) / q.shape[-1] ** 0.5
        shares = (own[:, :, 0] + bias[:, place, [p for _, p in seen]]).softmax(-1)
        for j, number in enumerate(numbers):
            if number < height * width:
                matrix[:, :, row * width + column, number] = shares[..., j]
    return matrix


def merging(fine, coarse):
    """(coarse, fine): each merged token as the even mean of its parts."""
    matrix = torch.zeros(coarse[0] * coarse[1], fine[0] * fine[1])
    for row in range(fine[0]):
        for column in range(fine[1]):
            matrix[row // 2 * coarse[1] + column // 2, row * fine[1] + column] = 1
    return matrix / matrix.sum(1, keepdim=True)


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@torch.no_grad()
def test_maps_are_rows_of_the_whole_matrix(name, size):
    model, images = small(name), torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    steps = run_steps(model, images)
    found = list(attention_maps(model, images, (5, 9)))
    assert [one.patches.shape[1:] for one in found] == [(step.block.attention.heads, *step.grid) for step in steps]
    for step, one, (index, groups) in zip(steps, found, attention_of_all(model, images), strict=True):
        expected = whole_matrix(step)
        scale = 2 ** model.config.stage_of_block[step.index]
        token = 5 // scale * step.grid[1] + 9 // scale  # the token that holds the patch
        assert torch.allclose(one.patches.flatten(2), expected[:, :, token], atol=1e-5)
        whole = torch.zeros(2, *expected.shape[2:])
        for queries, keys, weights in groups:
            whole[:, queries[:, None], keys] = weights
        assert index == step.index and torch.allclose(whole, expected.mean(1), atol=1e-5)
        meeting = step.meeting()
        if meeting is not None:
            assert torch.equal(meeting[:, None] == meeting, (expected[0, 0] > 0))


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@torch.no_grad()
def test_rollout_is_the_product_of_all_blocks_and_mergings(name, size):
    model, images = small(name), torch.randn(2, 3, *size)
    product, grid = None, None
    for step in run_steps(model, images):
        a = whole_matrix(step).mean(1)
        block = (a / a.sum(-1, keepdim=True) + torch.eye(a.shape[1])) / 2
        if grid is not None and grid != step.grid:
            block = block @ merging(grid, step.grid)
        product, grid = block if product is None else block @ product, step.grid
    found = rollout(model, images).patches
    assert torch.allclose(found.flatten(1), product.mean(1), atol=1e-6)
    assert torch.allclose(found.sum((1, 2)), torch.ones(2), atol=1e-5)


def test_each_part_of_a_merged_token_has_its_share():
    owners = merged_into((3, 3), (2, 2))
    assert owners.tolist() == [0, 0, 1, 0, 0, 1, 2, 2, 3]
    parts = torch.tensor([[3.0, 1, 0, 0, 0, 0, 2, 6, 5]])
    shared = share_out(torch.tensor([[8.0, 4, 2, 1]]), parts, owners)
    assert shared.tolist() == [[6, 2, 2, 0, 0, 2, 0.5, 1.5, 1]]  # evenly where no part counts


def without_biases(model):
    for name, parameter in model.named_parameters():
        if name.endswith("bias") and "stem" not in name:
            parameter.data.zero_()
    return model


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_relevance_is_the_same_sum_in_every_stage(name, size):
    """Without biases the parts of every stage add up to the answer: merging loses nothing and adds nothing."""
    model, images = without_biases(small(name)), torch.randn(2, 3, *size)
    score = target_score(model, images, "multilabel", target=1)
    found = linearised_gradients(model, images, score)
    assert [step.index for step, _ in found] == [0, 2, 4]
    for step, slope in found:
        assert torch.allclose((step.input * slope).sum((1, 2)), score.outputs[:, 1], rtol=1e-3, atol=1e-4)
    maps = relevance_of_stages(model, images, score)
    assert [one.shape[1:] for one in maps] == [step.grid for step, _ in found]
    assert torch.equal(maps[0], relevance(model, images, score))


@pytest.mark.parametrize("name", VERSIONS)
def test_relevance_is_autograd_of_a_network_with_constant_decisions(name):
    """The network written out with A, norms' scales and gates as numbers: a linear map, whose gradient is plain."""
    model, images = small(name), torch.randn(1, 3, 32, 64)  # whole windows: padding would be attended to, too
    score = target_score(model, images, "multilabel", target=2)
    tokens = model.embed(images).tokens.detach().requires_grad_()

    def norm(layer, x):
        scale = x.detach().var(-1, unbiased=False, keepdim=True).add(layer.eps).rsqrt()
        return (x - x.mean(-1, keepdim=True)) * scale * layer.weight + layer.bias

    def mlp(layer, x):
        hidden = layer.up(x)
        return layer.down(hidden * (F.gelu(hidden) / hidden).detach())

    def merge(layer, x, grid):
        x = x.unflatten(1, grid)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1).flatten(1, 2)
        return layer.reduction(norm(layer.norm, x)) if layer.pre else norm(layer.norm, layer.reduction(x))

    x, grid = tokens, (8, 16)
    for step in run_steps(model, images):
        block = step.block
        if step.grid != grid:
            x, grid = merge(model.merges[str(step.index)], x, grid), step.grid
        u = norm(block.norm1, x) if block.pre else x
        _, _, v = block.attention.split(block.attention.project(u))
        attended = block.attention.out((whole_matrix(step).detach() @ v).transpose(1, 2).flatten(2))
        x = x + (attended if block.pre else norm(block.norm1, attended))
        x = x + (mlp(block.mlp, norm(block.norm2, x)) if block.pre else norm(block.norm2, mlp(block.mlp, x)))
    output = model.head(norm(model.norm, x).mean(1))
    assert torch.allclose(output, score.outputs, atol=1e-4, rtol=1e-4)
    (expected,) = torch.autograd.grad(output[0, 2], tokens)
    [(_, found), *_] = linearised_gradients(model, images, score)
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", VERSIONS)
def test_weighted_attention_is_that_of_whole_matrices(name):
    model, images = small(name), torch.randn(2, 3, 32, 48)
    score = target_score(model, images)
    forward_pass = run_forward_pass(model, images)
    found = weighted_attention(model, images, score, forward_pass).patches.flatten(1)
    assert torch.allclose(found.sum(1), torch.ones(2), atol=1e-5) and (found >= 0).all()

    steps, total = forward_pass.steps, score.score(forward_pass.outputs).sum()
    normed = forward_pass.normed
    (slope,) = torch.autograd.grad(total, normed, retain_graph=True)
    v = (normed * slope).sum(-1).clamp(min=0)
    v = v / v.sum(1, keepdim=True)
    for step in reversed(steps):
        (gradient,) = torch.autograd.grad(total, step.heads_output, retain_graph=True)
        _, _, values = step.qkv()
        gradient = gradient.unflatten(2, (values.shape[1], -1)).transpose(1, 2)
        weighted = (whole_matrix(step) * (gradient @ values.transpose(-2, -1))).clamp(min=0).mean(1)
        v = v + (v[:, None] @ weighted)[:, 0]
        if step.index in (2, 4):
            before = steps[step.index - 1]
            (slope,) = torch.autograd.grad(total, step.input, retain_graph=True)
            merge, (height, width) = model.merges[str(step.index)], before.grid
            x = before.output.unflatten(1, before.grid)
            four = [x[:, i::2, j::2].flatten(1, 2) for j in (0, 1) for i in (0, 1)]  # column first
            joined = torch.cat(four, -1)
            if merge.pre:
                centred = (joined - joined.mean(-1, keepdim=True)) / (
                    joined.var(-1, unbiased=False, keepdim=True) + merge.norm.eps
                ).sqrt()
                # what each of the four adds; the mean that is taken off is a part of each, too
                scale = (joined.var(-1, unbiased=False, keepdim=True) + merge.norm.eps).rsqrt()
                g = (slope @ merge.reduction.weight) * merge.norm.weight * scale
                g = g - g.mean(-1, keepdim=True)
                assert torch.allclose(
                    (joined * g).sum(-1),
                    (centred * (slope @ merge.reduction.weight) * merge.norm.weight).sum(-1),
                    atol=1e-4,
                )
            else:
                reduced = merge.reduction(joined)
                g = slope * merge.norm.weight * (reduced.var(-1, unbiased=False, keepdim=True) + merge.norm.eps).rsqrt()
                g = (g - g.mean(-1, keepdim=True)) @ merge.reduction.weight
            parts = (joined * g).unflatten(-1, (4, -1)).sum(-1).clamp(min=0)  # (B, coarse, 4)
            parts = torch.where(parts.sum(-1, keepdim=True) > 0, parts, torch.ones_like(parts))
            shares = v[..., None] * parts / parts.sum(-1, keepdim=True)
            fine = torch.zeros(2, height, width)
            for number, (j, i) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
                fine[:, i::2, j::2] = shares[..., number].unflatten(1, step.grid)
            v = fine.flatten(1)
    assert torch.allclose(found, (v / v.sum(1, keepdim=True)).detach(), atol=1e-6, rtol=1e-3)
