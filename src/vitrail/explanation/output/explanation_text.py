"""An explanation in words: what the command prints, and a table of which method to trust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from vitrail.explanation.methods.faithfulness import Curves, average, best_of
from vitrail.explanation.methods.foreground import SHARE, mass_masks
from vitrail.explanation.output.result import METHODS, Explanation
from vitrail.terminal import table
from vitrail.text import shown

LITTLE = 0.05  # of a score: below, the answer depends too little on the patches for the order to matter


def lines_of(explanation: Explanation) -> list[str]:
    """The answer, where it comes from, and what is to be known about it."""
    lines = [f"{shown(explanation.name)}: {explanation.words or 'an embedding, not an answer'}"]
    lines.append(f"  {where(explanation)}")
    if explanation.attention is not None and explanation.prefix is not None and explanation.prefix_names:
        share = float(explanation.prefix[-1].sum(1).mean())
        names = ", ".join(explanation.prefix_names[:2]) + (" and more" if len(explanation.prefix_names) > 2 else "")
        lines.append(
            f"  {explanation.query} in block {explanation.blocks[-1]} gives {100 * share:.1f} % of its attention to "
            f"{names}, the rest to patches"
        )
    return lines + [f"  note: {note}" for note in explanation.notes]


def where(explanation: Explanation) -> str:
    """'the evidence for owl: 60 % of it is in 41 of 196 patches; the strongest is in row 3, column 4'."""
    relevance = torch.from_numpy(explanation.maps["relevance"])
    patches = relevance.numel()
    subject = "the embedding" if explanation.target is None else shown(explanation.target)
    share = f"{100 * SHARE:.0f} %"
    if float(relevance.max()) <= 0:
        return f"no patch speaks for {subject}"
    held = int(mass_masks(relevance.clamp(min=0), SHARE).sum())
    row, column = divmod(int(relevance.argmax()), explanation.grid[1])
    return (
        f"the evidence for {subject}: {share} of it is in {held:,} of {patches:,} patches; the strongest is "
        f"in row {row}, column {column}"
    )


def averaged(explanations: Sequence[Explanation]) -> dict[str, Curves]:
    """The curves of several images, method by method; of methods that all of them have."""
    names = [name for name in explanations[0].curves if all(name in explanation.curves for explanation in explanations)]
    return {name: average([explanation.curves[name] for explanation in explanations]) for name in names}


def trust_table(curves: Mapping[str, Curves]) -> list[str]:
    """Best first; the last line says what to make of it."""
    order = sorted(curves, key=lambda name: -curves[name].score)
    rows = [["", "deletion", "insertion", " score (insertion - deletion)"]]
    for name in order:
        areas = curves[name]
        numbers = (areas.deletion_area, areas.insertion_area, areas.score)
        rows.append([METHODS[name], *(f"{number:.3f}" for number in numbers)])
    return [table(rows), f"  {verdict(curves)}"]


def verdict(curves: Mapping[str, Curves]) -> str:
    best = best_of(curves)
    if best is None:
        return "None beats a random order here: trust none of them."
    if curves[best].score - curves["random"].score < LITTLE:
        return f"{METHODS[best].capitalize()} is ahead by little: the answer hardly moves, whatever is hidden."
    why = "hidden first, its patches take the answer away fastest; shown first, they bring it back"
    return f"Trust {METHODS[best]}: {why}."
