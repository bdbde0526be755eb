"""`vitrail check`: what in a set of images would spoil training, before time is spent on it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from vitrail.commands.shared_options import DATA, MAX_PIXELS, DataOptions
from vitrail.commands.shell import Argument
from vitrail.errors import VitrailError
from vitrail.option_types import whole_number
from vitrail.options import Option, options_in, takes_options
from vitrail.progress import Progress, ProgressBar
from vitrail.shards.shard_options import ShardOptions, manifest_of

if TYPE_CHECKING:
    from vitrail.data.checks.check_dataset import CheckReport
    from vitrail.dataset import Dataset

COLUMNS = ("image", "label", "better", "quality", "likely")  # of the table of label errors
_masks = partial(Option, section="Masks and boxes", default="")


class CheckOptions(DataOptions, total=False):
    fast: Annotated[bool, Option("look at headers and bytes only, decode no image", default=False)]
    seed: Annotated[
        int, Option("seed of the split into training and validation", metavar="N", parse=whole_number, default=0)
    ]
    classes: Annotated[str, _masks("class names, one a line, or 'index name'", metavar="FILE", unset="found in DATA")]
    colours: Annotated[str, _masks("masks: lines of 'R G B name'", metavar="FILE", unset="found in DATA")]
    ignore: Annotated[
        int,
        _masks(
            "masks: the value of pixels that do not count",
            metavar="N",
            parse=whole_number,
            default=-1,
            unset="255, and what is called void",
        ),
    ]
    pairs: Annotated[
        str,
        _masks(
            "masks: folders of images and of masks, such as 'train:trainannot, val:valannot'",
            metavar="LIST",
            unset="recognised",
        ),
    ]
    model: Annotated[
        str | Path | None,
        Option(
            "look for wrong labels, by what this model makes of the images; best one that was not trained on them",
            metavar="FILE|NAME|HUB-ID",
        ),
    ]
    embeddings: Annotated[
        str | Path | None,
        Option(
            "with --model: a file of `vitrail embed` by the same model: what it has is not computed again",
            metavar="FILE",
        ),
    ]
    max_pixels: Annotated[int | None, MAX_PIXELS]
    targets: Annotated[
        Sequence[str] | None, Option("columns of a table with numbers to predict", unset="all numbers", shell=False)
    ]
    fraction: Annotated[
        float | None, Option("held out where DATA has no validation part", unset="as in training", shell=False)
    ]
    workers: Annotated[int | None, Option("threads that read", unset="one a core, up to 8", shell=False)]
    progress: Annotated[Progress | None, Option("called with (done, of how many)", unset="a bar", shell=False)]
    quiet: Annotated[bool, Option("no progress bar on a terminal", default=False)]


@takes_options(CheckOptions)
def check(data: str | Path | Dataset, **options: Unpack[CheckOptions]) -> CheckReport:
    """Look at every file of DATA and report what is broken, doubled, odd or unbalanced."""
    from vitrail.data.checks.check_dataset import check_dataset
    from vitrail.data.layouts.recognise import read_dataset
    from vitrail.dataset import Dataset
    from vitrail.images.decode_limits import limit_decoding
    from vitrail.tasks.dense_options import DenseOptions

    with limit_decoding(options["max_pixels"]), ProgressBar("checking", enabled=not options["quiet"]) as bar:
        if isinstance(data, Dataset):
            dataset = data
        else:
            dense = DenseOptions(options["classes"], options["colours"], options["ignore"], options["pairs"])
            targets = options["targets"]
            dataset = read_dataset(data, layout=options["layout"], task=options["task"], targets=targets, dense=dense)
        embedder = None
        if options["model"] is not None:
            from vitrail.search.labels.label_errors import check_labelled
            from vitrail.search.pile.image_vectors import open_embedder

            check_labelled(dataset.task)  # before time is spent on the files
            embedder = open_embedder(options["model"], options["embeddings"])
        report = check_dataset(
            dataset,
            fast=options["fast"],
            fraction=options["fraction"],
            seed=options["seed"],
            workers=options["workers"],
            progress=options["progress"] or bar.update,
        )
    if embedder is None:
        return report
    from vitrail.search.labels.check_labels import with_label_errors

    with limit_decoding(options["max_pixels"]):
        return with_label_errors(report, embedder, options["embeddings"], options["quiet"])


class RunCheckOptions(CheckOptions, ShardOptions, total=False):
    pass


@takes_options(RunCheckOptions)
def run_check(
    data: Annotated[str, Argument(DATA, "DATA")],
    json: Annotated[bool, Option("print JSON")] = False,
    page: Annotated[str | None, Option("write the findings as an HTML page with pictures", metavar="FILE")] = None,
    out: Annotated[
        str | None,
        Option(
            "write to this file what would be printed; with a manifest: a folder, with the rows of each shard",
            metavar="FILE",
        ),
    ] = None,
    label_errors: Annotated[
        str | None, Option("with --model: write all labels as a table, the most suspicious first", metavar="FILE.csv")
    ] = None,
    **options: Unpack[RunCheckOptions],
) -> int:
    """Looks at every image, mask and box: broken files, copies, conflicting labels, rotated photos, odd sizes,
    imbalance. The exit code is 1 where something would spoil training.
    """
    from json import dumps

    from vitrail.files import write_text
    from vitrail.terminal import print_text
    from vitrail.text import harmless

    if label_errors is not None and options["model"] is None:
        raise VitrailError("--label-errors needs a model to look with: give --model")
    sharding = options_in(ShardOptions, options)
    if (manifest := manifest_of([data], out, sharding)) is not None and out is not None:
        return _check_shards(manifest, out, sharding, options, json)
    report = check(data, **options_in(CheckOptions, options))
    text = dumps(report.to_dict(), indent=2) if json else harmless(str(report))
    if out is None:
        print_text(text)
    else:
        write_text(out, text + "\n")
    if page is not None:
        from vitrail.report.pages.check_page import page as render

        write_text(page, render(report))
        if not json or out is not None:
            print_text(f"wrote {page}")
    if label_errors is not None:
        from vitrail.inference.output.writers import write_table

        write_table(label_errors, COLUMNS, report.label_errors or ())
        if not json or out is not None:
            print_text(f"wrote {label_errors}")
    return report.exit_code


def _check_shards(manifest: str, out: str, sharding: ShardOptions, options: CheckOptions, json: bool) -> int:
    """A row an image in the outputs of the shards, and what they say together."""
    import sys
    from json import dumps

    from vitrail.shards.check_summary import summarise
    from vitrail.shards.jobs.check_job import CheckJob
    from vitrail.shards.run_job import run_job
    from vitrail.terminal import print_text

    job = CheckJob(options["fast"], options["max_pixels"], options["workers"])
    result = run_job(job, manifest, out, sharding)
    print(result.in_words(), file=sys.stderr)
    summary = summarise(result)
    print_text(dumps(summary.to_dict(), indent=2) if json else str(summary))
    return summary.exit_code
