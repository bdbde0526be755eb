"""The command `vitrail evaluate`: measure, and print for people or for programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from vitrail.data.dense_options import DenseOptions
from vitrail.data.names import counted
from vitrail.infer.evaluate import evaluate
from vitrail.infer.measures import to_text


def run_evaluate(
    model: str | Path, data: str | Path, *, as_json: bool = False, ignore: int | None = None, **how: Any
) -> None:
    """`how`: as `evaluate` takes it. With as_json, what was left out is said on standard error as well."""
    dense = None if ignore is None else DenseOptions(ignore=ignore)
    result = evaluate(model, data, dense=dense, **how)
    if not as_json:
        print(to_text(result))
        return
    print(json.dumps(result, indent=2))
    for note in result["notes"]:
        print(f"vitrail: {note}", file=sys.stderr)
    if result["unreadable"]:
        print(
            f"vitrail: {counted(len(result['unreadable']), 'image')} could not be read and did not count",
            file=sys.stderr,
        )
