"""Swin in slow motion: merging, windows, shift, mask, attention inside windows with a bias for where tokens stand."""

# ruff: noqa: RUF001  formulas and sizes are written as people write them

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from vitrail.explanation.token_names import token_index
from vitrail.explanation.walk.walk_block import head_maps, mlp_step, norm_step, projection_step, residual_step
from vitrail.explanation.walk.walk_steps import Step, first, matrix, shape_of
from vitrail.model.encoder import BlockStep
from vitrail.model.positions import Grid
from vitrail.model.swin.shifted_windows import Windows
from vitrail.model.swin.swin import Swin
from vitrail.model.swin.swin_block import SwinBlock


def swin_steps(model: Swin, steps: Sequence[BlockStep], block: int, patch: tuple[int, int]) -> list[Step]:
    """The mergings up to a block, and the steps through it. They follow the token that holds the patch."""
    shown = []
    for before, after in pairwise(steps[: block + 1]):
        if before.grid != after.grid:
            shown.append(_merged(model, before, after, patch, steps[0].grid))
    return shown + _block_steps(model, steps[block], patch, steps[0].grid)


def _merged(model: Swin, before: BlockStep, after: BlockStep, patch: tuple[int, int], patches: Grid) -> Step:
    stage = model.config.stage_of_block[after.index]
    token = token_index(patch, model.config, after.grid, patches)
    first_norm = model.config.version == "v1"
    return Step(
        f"Stage {stage} begins: patch merging",
        "z = LN([a; b; c; d]) W" if first_norm else "z = LN([a; b; c; d] W)",
        f"{shape_of(before.output)} → ({after.input.shape[1]}, {4 * before.output.shape[2]}) → {shape_of(after.input)}",
        f"2 × 2 tokens lie side by side, the left column first, and one linear map halves their numbers: a grid of "
        f"{before.grid[0]} × {before.grid[1]} becomes {after.grid[0]} × {after.grid[1]}, each token twice as wide. "
        f"The norm is taken {'before' if first_norm else 'after'} the map. An odd row or column gets zeros beside it.",
        [matrix("before: a row for each token", before.output[0]), matrix("after", after.input[0])],
        ("the followed patch is now in a token that begins", first(after.input[0, token])),
    )


def _block_steps(model: Swin, step: BlockStep, patch: tuple[int, int], patches: Grid) -> list[Step]:
    block, x, grid = step.block, step.input, step.grid
    assert isinstance(block, SwinBlock)
    where = f"Block {step.index} (of 0 to {model.depth - 1}, stage {model.config.stage_of_block[step.index]})"
    token, windows = token_index(patch, model.config, grid, patches), block.windows(grid)
    u = block.attention_input(x)
    shown = []
    if block.pre:
        shown.append(norm_step(f"{where}: each token is normalised", "u = LN(x) = (x − mean) / std · γ + β", x, u))
    q, k, v = step.qkv()
    shown += [
        projection_step(where, f"token {token // grid[1]},{token % grid[1]}", token, u, q, k, v),
        _partitioned(where, windows, q),
        _shifted(where, windows, step),
        _masked(where, windows, x.device),
        *_attention_in_window(where, step, windows, token),
        _cost(where, windows, model.config.stage_width(model.config.stage_of_block[step.index])),
    ]
    attended = block.attention(u, windows)
    text = "Every token is put back in its place, and one linear map lets the heads speak to each other."
    shape = f"({_window_count(windows)}, {windows.tokens}, {x.shape[2]}) → {shape_of(attended)}"
    shown.append(Step(f"{where}: back on the grid, mixed by W_O", "MSA = O W_O + b_O", shape, text,
                      [matrix("MSA", attended[0])]))  # fmt: skip
    if not block.pre:
        after = block.norm1(attended)
        shown.append(norm_step(f"{where}: what attention gives is normalised", "LN(MSA(x))", attended, after))
        attended = after
    x = residual_step(shown, where, "attention", block.branch1, x, attended)
    mlp, added = mlp_step(block, where, block.norm2(x) if block.pre else x)
    shown.append(mlp)
    if not block.pre:
        after = block.norm2(added)
        shown.append(norm_step(f"{where}: what the MLP gives is normalised", "LN(MLP(x))", added, after))
        added = after
    residual_step(shown, where, "the MLP", block.branch2, x, added)
    return shown


def _partitioned(where: str, windows: Windows, q: Tensor) -> Step:
    (down, across), (rows, columns) = windows.size, windows.padded
    count = _window_count(windows)
    padded = ""
    if windows.padded != windows.grid:
        padded = (
            f" Windows do not divide the grid, so it is padded with zeros to {rows} × {columns}; the padding is "
            "attended to, as in the original."
        )
    return Step(
        f"{where}: the grid is cut into windows",
        f"{rows} · {columns} / ({down} · {across}) = {count} windows of M = {windows.tokens} tokens",
        f"{shape_of(q)} → ({count}, {q.shape[1]}, {windows.tokens}, {q.shape[3]})",
        f"A token attends only to the {down} × {across} tokens of its window."
        f"{' One window holds all: attention is full here.' if count == 1 else ''}{padded}",
        [matrix("the window of each token, before any shift", _numbers(windows._replace(shift=(0, 0))), "share")],
    )


def _shifted(where: str, windows: Windows, step: BlockStep) -> Step:
    down, across = windows.shift
    if not any(windows.shift):
        block = step.block
        assert isinstance(block, SwinBlock)
        why = "one window covers the grid" if block.shifted else "every other block shifts, this one does not"
        return Step(f"{where}: no shift", "x′ = x", shape_of(step.input), f"Windows stay where they are: {why}.")
    return Step(
        f"{where}: the grid is shifted",
        f"x′[i, j] = x[(i + {down}) mod h, (j + {across}) mod w]",
        shape_of(step.input),
        f"By half a window, {down} down and {across} across, around the edges. So tokens meet others than in the block "
        "before, and what one window found out reaches its neighbours.",
        [matrix("the window of each token, after the shift", _numbers(windows), "share")],
    )


def _masked(where: str, windows: Windows, device: torch.device) -> Step:
    mask = windows.mask(device)
    if mask is None:
        return Step(f"{where}: no mask", "S′ = S", f"({windows.tokens}, {windows.tokens})", "Nothing was shifted.")
    last, cut = mask[-1], float((mask < 0).float().mean())
    return Step(
        f"{where}: the mask",
        "S′ = S − 100 where two tokens lie on opposite sides of the picture",
        f"({len(mask)}, {windows.tokens}, {windows.tokens})",
        f"Shifting around the edges brings tokens of opposite sides into one window; e⁻¹⁰⁰ keeps them apart. "
        f"{100 * cut:.1f} % of all pairs are masked, only in windows of the last row and column.",
        [matrix("the last window: tokens that may not meet are blue", last)],
    )


def _attention_in_window(where: str, step: BlockStep, windows: Windows, token: int) -> list[Step]:
    """Scores, bias and shares of the followed token, head 0, and the maps of all heads on the whole grid."""
    block = step.block
    assert isinstance(block, SwinBlock)
    attention, grid = block.attention, step.grid
    q, k, _ = step.qkv()
    tokens = windows.token_numbers(q.device)  # (windows, M)
    window, place = (int(index) for index in (tokens == token).nonzero()[0])
    keys = torch.cat([k, attention.padding_key(k)], dim=2)[:, :, tokens[window]]  # (1, heads, M, d)
    scores = (q[0, 0, token].float() @ keys[0, 0].float().T) * q.shape[-1] ** -0.5  # (M,)
    positions = attention.positions(windows.size)  # (heads, M, M)
    bias = attention.score_bias(windows)
    shares = (scores + bias[window % len(bias), 0, place]).softmax(0)
    [(_, rows)] = step.attention(torch.tensor([token], device=q.device))  # (1, heads, 1, N)
    name, heads = f"token {token // grid[1]},{token % grid[1]}", q.shape[1]
    cosine = attention.logit_scale is not None
    learned = (
        "an MLP of their distance gives it, on a logarithmic scale, so that windows can grow"
        if cosine
        else "a learned table has a number for each distance"
    )
    return [
        Step(
            f"{where}: scores, and a bias for where tokens stand",
            "S = τ cos(Q, K) + B" if cosine else f"S = Q Kᵀ / √d + B,  √d = √{q.shape[3]} = {q.shape[3] ** 0.5:.2f}",
            f"({_window_count(windows)}, {heads}, {windows.tokens}, {windows.tokens})",
            f"Nothing else tells where a patch is: B depends on how far apart two tokens of a window are; {learned}.",
            [
                matrix(f"head 0: scores of {name} in its window", scores.unflatten(0, windows.size)),
                matrix(f"head 0: the bias of {name}", positions[0, place].unflatten(0, windows.size)),
            ],
            (f"scores of {name} begin", first(scores)),
        ),
        Step(
            f"{where}: softmax inside the window",
            "A = softmax(S),  each row sums to 1",
            f"({_window_count(windows)}, {heads}, {windows.tokens}, {windows.tokens})",
            "Scores become shares. The model itself runs fused and never writes them down; they are recomputed here.",
            [matrix(f"head 0: shares of {name} in its window", shares.unflatten(0, windows.size), "share")],
            (f"shares of {name} begin", first(shares)),
        ),
        Step(
            f"{where}: what {name} looks at",
            f"Aₕ[{name}], on the whole grid",
            f"({heads}, {grid[0]}, {grid[1]})",
            "One map a head, each to its own brightest: nothing outside of the window.",
            [head_maps(rows[0, :, 0], 0, grid)],
        ),
    ]


def _cost(where: str, windows: Windows, width: int) -> Step:
    tokens, padded = windows.grid[0] * windows.grid[1], windows.padded[0] * windows.padded[1]
    full, windowed = 2 * tokens**2 * width, 2 * padded * windows.tokens * width
    return Step(
        f"{where}: what windows save",
        f"full 2 N² D = {full / 1e6:,.1f} million;  windows 2 N M D = {windowed / 1e6:,.1f} million multiply-adds",
        f"N = {tokens:,}, M = {windows.tokens}, D = {width}",
        f"Of this picture in this block: {full / windowed:,.1f} times less than full attention, in pairs "
        f"{padded * windows.tokens:,} instead of {tokens**2:,}. Twice the picture's sides: 4 times the work, not 16.",
    )


def _numbers(windows: Windows) -> Tensor:
    """(h, w): the number of each token's window, spread so that neighbours differ in colour."""
    tokens = windows.token_numbers(torch.device("cpu"))  # (windows, M)
    numbers = torch.zeros(windows.grid[0] * windows.grid[1] + 1)
    across = windows.padded[1] // windows.size[1]
    for number, window in enumerate(tokens):
        row, column = divmod(number, across)
        numbers[window] = 1.0 + (row % 2) * 2 + (row + column) % 2
    return numbers[:-1].unflatten(0, windows.grid)


def _window_count(windows: Windows) -> int:
    return (windows.padded[0] // windows.size[0]) * (windows.padded[1] // windows.size[1])
