"""`vitrail bench`: how fast a model runs on this machine, by every engine, and how well they agree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from vitrail.commands.shared_options import MODEL_OR_PRESET
from vitrail.commands.shell import Argument
from vitrail.errors import VitrailError
from vitrail.option_types import count, counts, merged_tokens, names
from vitrail.options import Option, takes_options
from vitrail.terminal import print_error, print_text
from vitrail.text import counted

if TYPE_CHECKING:
    from vitrail.inference.bench.measure import BenchResult

INTERRUPTED = 130


class BenchOptions(TypedDict, total=False):
    engines: Annotated[
        Sequence[str] | None,
        Option(
            "which, with commas: torch, compiled, openvino, onnxruntime; openvino:bf16 is one precision of it",
            metavar="NAMES",
            parse=names,
            unset="all that are installed, in all their precisions",
        ),
    ]
    batch: Annotated[
        Sequence[int], Option("batch sizes, with commas", metavar="N,...", parse=counts, default=(1, 16), unset="1,16")
    ]
    rounds: Annotated[
        int, Option("turns of each engine and batch size, half a second each", metavar="N", parse=count, default=7)
    ]
    calibration: Annotated[
        str | Path | None,
        Option(
            "a folder of pictures that answers are compared on, and int8 is calibrated on",
            metavar="DIR",
            unset="those that training kept beside the model, else noise",
        ),
    ]
    merge_tokens: Annotated[
        int | float | str,
        Option(
            "merge so many tokens for each block, or as many as a drop allows",
            metavar="N|DROP%",
            parse=merged_tokens,
            default=0,
        ),
    ]


@takes_options(BenchOptions)
def bench(model: str | Path, **options: Unpack[BenchOptions]) -> list[dict[str, Any]]:
    """How fast a model runs here: a row for each engine, precision and batch size.

    A row has engine, precision, batch, images_per_second (the median of the rounds), p50_ms and p95_ms (of one batch),
    peak_mb (of the engine's own process while it runs), agreement (the share of answers that are torch's in fp32),
    peak_share (of what matrix products reach on this machine), spread and rounds. What cannot run is a log message.
    After Ctrl-C the rows are of the rounds so far.
    """
    result = measured(model, **options)
    for note in result.notes:
        print_error(note)
    return result.rows


@takes_options(BenchOptions)
def run_bench(
    model: Annotated[str, Argument(MODEL_OR_PRESET, "MODEL")],
    json: Annotated[bool, Option("print JSON: a list of rows")] = False,
    plot: Annotated[str | None, Option("draw images a second as an SVG picture", metavar="FILE")] = None,
    **options: Unpack[BenchOptions],
) -> int:
    """Measures engines, precisions and batch sizes side by side, each engine in its own process: images a second,
    latency, memory, agreement with torch in fp32, and the share of what the machine's matrix products reach. Ctrl-C
    ends it early and shows what was measured.
    """
    from vitrail.files import write_text
    from vitrail.inference.bench.bench_text import as_text, machine_line
    from vitrail.report.pages.bench_chart import bench_chart
    from vitrail.text import json_text

    if plot is not None and Path(plot).suffix.lower() != ".svg":
        raise VitrailError(f"--plot {plot}: the picture is an SVG, so give a name that ends in .svg")
    result = measured(model, **options)
    if json:
        print_text(json_text(result.rows, indent=2))
        for note in result.notes:
            print_error(note)
    else:
        print_text(as_text(result))
    if plot is not None:
        write_text(plot, bench_chart(result.rows, str(model), machine_line()))
        print_error(f"{plot} is written")
    if result.interrupted:
        print_error(f"stopped early, after {counted(min(row['rounds'] for row in result.rows), 'round')}")
        return INTERRUPTED
    return 0


def measured(model: str | Path, **options: Any) -> BenchResult:
    """The measurement itself, with what a table says besides its rows."""
    from vitrail.inference.bench.measure import Bench, BenchPlan
    from vitrail.inference.engine import Engine

    engine = Engine.open(model, untrained=True, device="cpu", precision="fp32")
    engines, batches = options["engines"], options["batch"]
    plan = BenchPlan(
        engines=[engines] if isinstance(engines, str) else engines,
        batches=[batches] if isinstance(batches, int) else batches,
        rounds=options["rounds"],
        calibration=options["calibration"],
        merge_tokens=options["merge_tokens"],
    )
    return Bench(engine, str(model), plan).run()
