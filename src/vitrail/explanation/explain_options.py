"""What can be asked of an explanation: the options of `vitrail.explain`, `Explainer` and `vitrail explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from vitrail.inference.running_options import DeviceOptions
from vitrail.option_types import count, size, whole_number, whole_numbers
from vitrail.options import Option


class ExplainOptions(DeviceOptions, total=False):
    compare: Annotated[bool, Option("measure which explanation to trust (slower)", default=False)]
    target: Annotated[str | int | None, Option("explain this class instead of the answer", metavar="NAME")]
    query: Annotated[
        str | tuple[int, int] | None,
        Option(
            "the token whose attention is shown: cls, 'register 0', or a patch as ROW,COLUMN from 0",
            metavar="TOKEN",
            unset="cls",
        ),
    ]
    blocks: Annotated[
        Sequence[int] | None,
        Option("blocks whose maps are shown, such as 0,5,-1", metavar="LIST", parse=whole_numbers, unset="all"),
    ]
    heads: Annotated[
        Sequence[int] | None,
        Option("heads whose maps are shown, such as 0,2", metavar="LIST", parse=whole_numbers, unset="all"),
    ]
    walk_block: Annotated[
        int,
        Option(
            "the block that the walk goes through slowly",
            metavar="N",
            parse=whole_number,
            default=-1,
            unset="-1, the last",
        ),
    ]
    image_size: Annotated[
        int | tuple[int, int] | None, Option("instead of the model's own", metavar="H[xW]", parse=size)
    ]
    top: Annotated[int, Option("answers an image", metavar="N", parse=count, default=5)]
    walk: Annotated[bool, Option("the steps of the forward pass too", default=False, shell=False)]
    every_query: Annotated[
        bool, Option("the attention of every token in every block, averaged over heads", default=False, shell=False)
    ]
