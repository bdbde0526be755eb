"""How a manifest's shards are worked on: options of every command that takes a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, TypedDict

from vitrail.errors import VitrailError
from vitrail.option_types import count
from vitrail.options import Option

_sharding = partial(Option, section="With a manifest")


def part(text: str) -> tuple[int, int]:
    """'2/8' is the second of eight parts."""
    first, slash, of = text.partition("/")
    if not slash or not first.isdigit() or not of.isdigit() or not 1 <= int(first) <= int(of):
        raise ValueError(f"{text!r} is not a part such as 2/8, the second of eight")
    return int(first), int(of)


class ShardOptions(TypedDict, total=False):
    """Which shards, and where."""

    part: Annotated[
        tuple[int, int] | None,
        _sharding("only each n-th shard, the i-th first: one task of a Slurm array", metavar="I/N", parse=part),
    ]
    processes: Annotated[
        int | None,
        _sharding(
            "workers, each with a model of its own",
            metavar="N",
            parse=count,
            unset="one a core, up to 8; one on a GPU; with --ray as many as the cluster has cores or GPUs",
        ),
    ]
    ray: Annotated[
        str | None,
        _sharding(
            "let Ray schedule the shards: on a cluster by its address, such as auto; alone: on this machine",
            metavar="[ADDRESS]",
            alone="local",
        ),
    ]


class ModelShardOptions(ShardOptions, total=False):
    """Of commands that run a model."""

    threads: Annotated[
        int,
        _sharding(
            "of each worker's network; another number changes the last digits, so its outputs are others",
            metavar="N",
            parse=count,
            default=1,
        ),
    ]


def manifest_of(arguments: Sequence[str], out: str | None, options: ShardOptions) -> str | None:
    """The manifest whose shards are to be worked on, each with an output in `out`; None: the usual way."""
    from vitrail.data.manifest.manifest_file import is_manifest

    manifests = [argument for argument in arguments if argument != "-" and is_manifest(argument)]
    if manifests and out is not None:
        if len(arguments) > 1:
            raise VitrailError(f"with --out, {manifests[0]} is given alone: the outputs are those of its shards")
        return manifests[0]
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if given:
        missing = "--out DIR" if manifests else "a manifest (vitrail manifest DATA --out DIR makes one)"
        raise VitrailError(f"{' and '.join(given)} is for the shards of a manifest: give {missing} too")
    return None
