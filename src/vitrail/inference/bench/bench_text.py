"""A measurement as a table, under a line that says on what machine it was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.inference.auto.machine import machine
from vitrail.inference.bench.measure import BenchResult
from vitrail.terminal import table
from vitrail.text import counted

# What changes how fast a network runs, by the names that Linux has for it.
INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX-VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "avx512_fp16": "AVX-512 FP16",
    "amx_bf16": "AMX BF16",
    "amx_int8": "AMX INT8",
    "asimd": "NEON",
    "sve": "SVE",
    "bf16": "BF16",
    "i8mm": "I8MM",
}
HEADER = ("engine", "precision", "batch", "images/s", "spread", "p50 ms", "p95 ms", "peak MB", "agreement", "of peak")


def machine_line() -> str:
    """The CPU, its instruction sets that matter, cores and threads."""
    here = machine()
    known = [title for name, title in INSTRUCTIONS.items() if name in here["instructions"].split()]
    return f"{here['cpu']} ({', '.join(known) or 'instruction sets unknown'}), {counted(here['cores'], 'core')}"


def as_text(result: BenchResult) -> str:
    """For people."""
    lines = [machine_line()]
    if result.merged:
        lines.append(f"{result.merged} tokens are merged for each block")
    lines += ["", table([HEADER, *map(_cells, result.rows)], left=2), ""]
    lines.append(
        f"agreement with torch in fp32 on {result.pictures}; the peak is {result.peak / 1e9:,.0f} billion operations a "
        f"second, of {result.peak_type} matrix products"
    )
    return "\n".join([*lines, *result.notes])


def _cells(row: Mapping[str, Any]) -> list[str]:
    peak = "" if row["peak_mb"] is None else f"{row['peak_mb']:,.0f}"
    return [
        row["engine"],
        row["precision"],
        str(row["batch"]),
        f"{row['images_per_second']:,.1f}",
        f"±{100 * row['spread']:.0f} %",
        f"{row['p50_ms']:.1f}",
        f"{row['p95_ms']:.1f}",
        peak,
        f"{100 * row['agreement']:.1f} %",
        f"{100 * row['peak_share']:.0f} %",
    ]
