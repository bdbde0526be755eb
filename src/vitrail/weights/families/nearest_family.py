"""What to say of tensors that no family has: the family whose names they come nearest to, and which of them differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vitrail.text import counted
from vitrail.weights.families import google, timm, torchvision, transformers_towers, transformers_vit
from vitrail.weights.naming import Names

NEAR = 0.3  # of the tensors have the family's names; below it, no family is worth naming
SHOWN = 3


def describe(tensors: Iterable[str]) -> str:
    """The rest of a sentence on these names: the nearest family, how many differ and what they are called."""
    names = sorted(tensors)
    shares = {family: [n for n in names if _template(n) in known] for family, known in _vocabularies().items()}
    family = max(shares, key=lambda name: len(shares[name]))
    shared = set(shares[family])
    if len(shared) < NEAR * len(names):
        return f"its tensors are called {', '.join(names[:SHOWN])}, ..."
    differing = [name for name in names if name not in shared]
    there = {_template(name) for name in names}
    missing = [name for name in _needed(family) if name not in there]
    parts = [f"it comes nearest to {family}, whose names {len(shared)} of its {counted(len(names), 'tensor')} have"]
    if differing:
        have = "1 has another" if len(differing) == 1 else f"{len(differing)} have others"
        parts.append(f"{have} ({_some(differing)})")
    if missing:
        parts.append(f"it lacks {_some(missing)}")
    return "; ".join(parts)


def _some(names: list[str]) -> str:
    shown = ", ".join(name.replace("{i}", "0") for name in names[:SHOWN])
    return f"{shown}, ..." if len(names) > SHOWN else shown


def _template(name: str) -> str:
    """The name with {i} for the number of its block."""
    return re.sub(r"(?<=[._])\d+(?=[./])", "{i}", name, count=1)


def _tables() -> Mapping[str, Names]:
    vit = {
        **transformers_vit.ATTENTION,
        **transformers_vit.VIT_NORMS,
        **transformers_vit.VIT_MLP,
    }
    return {
        google.NAME: google.NAMES,
        timm.NAME: Names({**timm.MODULES, "norm": "norm"}, timm.TENSORS),
        transformers_vit.NAME: transformers_vit.names_of(transformers_vit.LAYERS[0], vit, transformers_vit.ONE_HEAD),
        transformers_towers.NAME: Names(transformers_towers.MODULES, transformers_towers.TENSORS),
        torchvision.NAME: torchvision.NAMES,
    }


def _vocabularies() -> dict[str, set[str]]:
    """Every name that a family knows, as templates."""
    known: dict[str, set[str]] = {}
    for family, table in _tables().items():
        modules = [name for value in table.modules.values() for name in ((value,) if isinstance(value, str) else value)]
        ends = ("kernel", "scale", "bias") if family == google.NAME else ("weight", "bias")
        dot = "/" if family == google.NAME else "."
        known[family] = {f"{module}{dot}{end}" for module in modules for end in ends} | set(table.tensors.values())
    return known


def _needed(family: str) -> list[str]:
    """What every model of the family has: its patch embedding and the projections of its attention."""
    table, end = _tables()[family], "/kernel" if family == google.NAME else ".weight"
    needed: list[str] = []
    for ours in ("stem.projection", "blocks.{i}.attention.qkv"):
        theirs = table.modules.get(ours) or ()
        needed += [name + end for name in ((theirs,) if isinstance(theirs, str) else theirs)]
    return needed
