"""One encoder block in slow motion: norm, Q, K, V, scores, softmax, heads, W_O, residual, MLP."""

# ruff: noqa: RUF001  formulas and sizes are written as people write them

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitrail.explanation.token_names import token_name
from vitrail.explanation.walk.walk_steps import Figure, Step, first, matrix, mosaic, shape_of
from vitrail.model.efficient.window_attention import compared_pairs
from vitrail.model.encoder import BlockStep
from vitrail.model.positions import Grid
from vitrail.model.vit import ViT

ALL_PAIRS = 512  # tokens up to which the whole map of scores is shown; beyond, only the query's row


def block_steps(model: ViT, block_step: BlockStep, query: int) -> tuple[list[Step], Tensor]:
    """The steps through a block, and its output (1, M, D). `query`: the token whose row of the map is shown."""
    block, x = block_step.block, block_step.input
    where = f"Block {block_step.index} (of 0 to {model.depth - 1})"
    steps: list[Step] = []
    u = block.attention_input(x)
    if block.pre:
        steps.append(norm_step(f"{where}: each token is normalised", "u = LN(x) = (x − mean) / std · γ + β", x, u))
    more, attended = attention_steps(model, block_step, where, u, query)
    steps += more
    x = residual_step(steps, where, "attention", block.branch1, x, attended)
    if not block.pre:
        after = block.norm1(x)
        steps.append(norm_step(f"{where}: each token is normalised", "x = LN(x + MSA(x))", x, after))
        x = after
    mlp, added = mlp_step(block, where, block.norm2(x) if block.pre else x)
    steps.append(mlp)
    x = residual_step(steps, where, "the MLP", block.branch2, x, added)
    if not block.pre:
        after = block.norm2(x)
        steps.append(norm_step(f"{where}: normalised again", "x = LN(x + MLP(x))", x, after))
        x = after
    return steps, x


def attention_steps(model: ViT, block_step: BlockStep, where: str, u: Tensor, query: int) -> tuple[list[Step], Tensor]:
    """u: (1, M, D), what attention takes."""
    attention, grid = block_step.block.attention, block_step.grid
    q, k, v = block_step.qkv()  # (1, heads, M, d)
    name = token_name(query, model.config, grid)
    heads = _heads_of(block_step)  # (1, heads, M, d)
    concatenated = heads.transpose(1, 2).flatten(2)  # (1, M, D)
    attended = attention.mix_heads(concatenated)
    [(_, asked)] = block_step.attention(torch.tensor([query], device=q.device))
    rows = asked[0, :, 0]  # (heads, M)
    text = "Each head takes the values it looks at, in its shares; the heads are put side by side."
    side_by_side = matrix("O: a row for each token, the heads from left to right", concatenated[0])
    steps = [
        projection_step(where, name, query, u, q, k, v),
        *_map_steps(where, name, query, block_step),
        _attended_patches(where, name, rows, model.prefix, grid),
        Step(
            f"{where}: heads, side by side",
            "Oₕ = Aₕ Vₕ,  O = [O₁ … O_h]",
            f"{shape_of(heads)} → {shape_of(concatenated)}",
            text,
            [side_by_side],
        ),
        Step(
            f"{where}: mixed by W_O",
            "MSA = O W_O + b_O",
            f"{shape_of(concatenated)} → {shape_of(attended)}",
            "One linear map lets the heads speak to each other.",
            [matrix("MSA", attended[0])],
            (f"of {name}", first(attended[0, query])),
        ),
    ]
    return steps, attended


def projection_step(where: str, name: str, query: int, u: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Step:
    _, heads, _, size = q.shape
    return Step(
        f"{where}: queries, keys and values",
        "Q = u W_Q + b_Q,  K = u W_K + b_K,  V = u W_V + b_V",
        f"{shape_of(u)} → 3 × {shape_of(q)}",
        f"Each token asks (Q), offers (K) and carries (V). The {heads * size} numbers of each are cut into "
        f"{heads} {'heads' if heads > 1 else 'head'} of {size}. Shown: head 0.",
        [matrix("Q", q[0, 0]), matrix("K", k[0, 0]), matrix("V", v[0, 0])],
        (f"q of {name} begins", first(q[0, 0, query])),
    )


def _map_steps(where: str, name: str, query: int, block_step: BlockStep) -> list[Step]:
    """Scores and softmax of head 0, of all queries where that can be shown, else of the query."""
    block, (q, k, _) = block_step.block, block_step.qkv()
    _, heads, tokens, size = q.shape
    whole = tokens <= ALL_PAIRS
    few = torch.arange(tokens, device=q.device) if whole else torch.tensor([query], device=q.device)
    scores = q[:, :1, few].float() @ k[:, :1].float().transpose(-2, -1) * size**-0.5  # (1, 1, rows, M)
    bias = block.attention_bias(block_step.grid)  # (heads, M, M)
    scores = scores if bias is None else scores + bias[:1, few].float()
    shares = block.attention_rows(q, k, few, block_step.grid)[:, :1]
    what = f"a row for each of the {tokens} queries, a column for each key" if whole else f"the row of {name}"
    shape, row = f"({heads}, {tokens}, {tokens})", query if whole else 0
    return [
        Step(
            f"{where}: scores",
            f"S = Q Kᵀ / √d{'' if bias is None else ' + B'},  √d = √{size} = {size**0.5:.2f}",
            shape,
            "How well each query fits each key, for each head."
            + ("" if bias is None else " B is learned: a number for each step, rows and columns, from patch to patch."),
            [matrix(f"head 0: {what}", scores[0, 0])],
            (f"scores of {name} begin", first(scores[0, 0, row])),
        ),
        Step(
            f"{where}: softmax",
            "A = softmax(S),  each row sums to 1",
            shape,
            "Scores become shares. The model itself runs fused and never writes this map down; it is recomputed here "
            f"from the same numbers.{_windows_in_words(block_step)}",
            [matrix(f"head 0: {what}", shares[0, 0], "share")],
            (f"shares of {name} begin", first(shares[0, 0, row])),
        ),
    ]


def _attended_patches(where: str, name: str, rows: Tensor, prefix: int, grid: Grid) -> Step:
    heads = len(rows)
    return Step(
        f"{where}: what {name} looks at",
        f"Aₕ[{name}], the patches as a grid",
        f"({heads}, {grid[0]}, {grid[1]})" + (f" and ({heads}, {prefix})" if prefix else ""),
        "One map a head, each to its own brightest." + _to_prefix(rows, prefix),
        [head_maps(rows, prefix, grid)],
    )


def mlp_step(block: Any, where: str, u: Tensor) -> tuple[Step, Tensor]:
    hidden = block.mlp.hidden(u)  # (1, M, mlp_width)
    added = block.mlp.down(hidden)
    words = {"gelu": "GELU", "gelu_tanh": "GELU", "quick_gelu": "GELU", "swiglu": "SwiGLU"}
    active = float((hidden > 0).float().mean())
    name = words[block.mlp.activation]
    step = Step(
        f"{where}: the MLP",
        f"MLP(u) = {name}(u W₁ + b₁) W₂ + b₂" + (",  u = LN(x)" if block.pre else ""),
        f"{shape_of(u)} → {shape_of(hidden)} → {shape_of(added)}",
        f"Each token by itself: wider, bent by {name}, back. {100 * active:.0f} % of the hidden numbers are above 0.",
        [matrix("the hidden numbers", hidden[0]), matrix("what comes out", added[0])],
    )
    return step, added


def residual_step(steps: list[Step], where: str, what: str, branch: Any, x: Tensor, added: Tensor) -> Tensor:
    scaled = branch(added)
    total = x + scaled
    formula = "x ← x + γ ⊙ " if branch.scale is not None else "x ← x + "
    share = float(scaled.float().norm() / x.float().norm().clamp(min=1e-12))
    steps.append(
        Step(
            f"{where}: residual around {what}",
            formula + ("MSA" if what == "attention" else "MLP"),
            shape_of(total),
            f"What {what} gives is added to what was there; it is {100 * share:.0f} % as long as that.",
            [matrix("x", total[0])],
        )
    )
    return total


def norm_step(title: str, formula: str, before: Tensor, after: Tensor) -> Step:
    old, new = before[0].float().std(), after[0].float().std()
    return Step(
        title,
        formula,
        shape_of(after),
        f"Over its own D numbers, whatever the other tokens are: the spread goes from {old:.3g} to {new:.3g}.",
        [matrix("before", before[0]), matrix("after", after[0])],
    )


def _heads_of(block_step: BlockStep) -> Tensor:
    """A V some rows of A at a time, so that the map is never held as a whole: (1, heads, M, d)."""
    _, _, v = block_step.qkv()
    return torch.cat([rows @ v.float() for _, rows in block_step.attention()], dim=2).to(v.dtype)


def _windows_in_words(block_step: BlockStep) -> str:
    windows = block_step.block.windows(block_step.grid)
    if windows is None or windows.cover_all:
        return ""
    tokens = block_step.input.shape[1]
    in_front = " and the tokens in front, which look at all" if windows.prefix else ""
    return (
        f" In this block a patch looks only at its window of {windows.side} × {windows.side} patches{in_front}: "
        f"{compared_pairs(windows):,} pairs of tokens are compared, not {tokens**2:,}."
    )


def head_maps(rows: Tensor, prefix: int, grid: Grid) -> Figure:
    maps = rows[:, prefix:].reshape(-1, *grid)
    maps = maps / maps.amax((1, 2), keepdim=True).clamp(min=1e-12)
    board = mosaic(maps[None])
    return Figure(f"heads 0 to {len(maps) - 1}, from left to right", board.cpu().numpy(), "share")


def _to_prefix(rows: Tensor, prefix: int) -> str:
    if not prefix:
        return ""
    share = float(rows[:, :prefix].sum(1).mean())
    return f" On average {100 * share:.1f} % goes to the tokens in front and not to any patch."
