"""`vitrail info`: what a model is and what it costs."""

from __future__ import annotations

from typing import Annotated

from vitrail.commands.shell import Argument
from vitrail.option_types import size
from vitrail.options import Option
from vitrail.terminal import print_text


def run_info(
    source: Annotated[str, Argument("such as S/16, swin-T, a model file, or dinov2-s", "PRESET|FILE|NAME")],
    json: Annotated[bool, Option("print JSON")] = False,
    image_size: Annotated[
        tuple[int, int] | None, Option("instead of the model's own", metavar="H[xW]", parse=size)
    ] = None,
    measure: Annotated[bool, Option("run each row of the table here: time and peak memory")] = False,
) -> None:
    """Prints config, parameters, tokens, multiply-adds, memory, and what another patch size would cost."""
    from vitrail.inference.output.summary import describe, to_json, to_text

    description = describe(source, image_size=image_size, measure=measure)
    print_text(to_json(description) if json else to_text(description))
