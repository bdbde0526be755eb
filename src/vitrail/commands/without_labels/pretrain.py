"""`vitrail pretrain`: learn from images without labels, and leave an encoder and a report behind."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from vitrail.commands.run_options import RUN_SETTINGS, RunOptions, exit_code_of, is_main, settings_of
from vitrail.commands.shell import Argument
from vitrail.options import Option, takes_options
from vitrail.terminal import print_text

if TYPE_CHECKING:
    from vitrail.pretraining.pretraining_run import Pretrained

METHODS = ("auto", "dino", "simdino", "mae")


class PretrainOptions(RunOptions, total=False):
    method: Annotated[
        str | None, Option("how it is learnt; mae is for fine-tuning only", choices=METHODS, unset="auto")
    ]
    start: Annotated[
        str | Path | None,
        Option("go on from this model; 'vitrail models' lists names", metavar="FILE|NAME|HUB-ID", flag="--from"),
    ]
    teacher: Annotated[
        str | Path | None,
        Option("learn the features of this larger model instead", metavar="FILE|NAME|HUB-ID"),
    ]


SETTING_NAMES = RUN_SETTINGS | {"method": "pretrain.method", "teacher": "pretrain.teacher"}


@takes_options(PretrainOptions)
def pretrain(data: str | Path, out: str | Path, **options: Unpack[PretrainOptions]) -> Pretrained:
    """Learn from the images of DATA without labels, into the folder OUT; what is not given is chosen, or stands in
    `settings`. `vitrail.train(..., start=OUT)` takes the encoder."""
    from vitrail.training.run_context import call_text

    return _pretrain_and_report(data, out, options, call_text(data, out, options, "pretrain"))


def _pretrain_and_report(data: str | Path, out: str | Path, options: PretrainOptions, command: str) -> Pretrained:
    """`command`: how the run was started, for its report."""
    import json

    from vitrail.files import write_text
    from vitrail.images.decode_limits import limit_decoding
    from vitrail.pretraining.pretraining_run import pretrain as run
    from vitrail.report.pages.pretraining_page import pretraining_page

    settings = settings_of(options, SETTING_NAMES)
    with limit_decoding(options["max_pixels"]):
        pretrained = run(data, out, settings, resume=options["resume"], command=command)
        if is_main():
            write_text(pretrained.folder.results, json.dumps(pretrained.results, indent=2) + "\n")
            write_text(pretrained.folder.report, pretraining_page(pretrained))
    return pretrained


@takes_options(PretrainOptions)
def run_pretrain(
    data: Annotated[str, Argument("a folder of images in any nesting, or any labelled data", "DATA")],
    out: Annotated[str, Option("the folder that the run is written to", metavar="RUN")],
    **options: Unpack[PretrainOptions],
) -> int:
    """Learns from images without labels: an encoder whose embeddings tell them apart. `vitrail train --from RUN` then
    needs few labels. Labels that DATA has only measure how well it goes.
    """
    from vitrail.training.loop import Stopped

    try:
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        pretrained = _pretrain_and_report(data, out, options, command)
    except Stopped as stopped:
        return exit_code_of(stopped)
    if is_main():
        print_text("\n".join(summary(pretrained)))
    return 0


def summary(pretrained: Pretrained) -> list[str]:
    """How good the embedding is, where model and report are, and what to do with them."""
    from vitrail.pretraining.health import HealthScores
    from vitrail.training.run_log import clock

    scores = HealthScores(pretrained.labelled)
    measured = ", ".join(f"{name} {scores.show(name, value)}" for name, value in pretrained.metrics.items())
    return [
        f"{measured} on {pretrained.images:,} held-out images, after {clock(pretrained.state.seconds)} without labels",
        *(f"  warning: {sentence}" for sentence in pretrained.concerns),
        f"model:  {pretrained.folder.model}",
        f"report: {pretrained.folder.report}",
        f"next:   vitrail train DATA --from {shlex.quote(str(pretrained.folder.path))} --out NEW-RUN",
    ]
