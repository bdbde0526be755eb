"""The command line: collects the commands, and turns errors into one sentence and an exit code."""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence

import click

from vitrail import __version__
from vitrail.commands.shell import click_command
from vitrail.errors import VitrailError
from vitrail.terminal import print_error

USER_ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 141  # as shells number them
COMMANDS = {  # a file in commands/ each, with what the list of commands says of it
    "check": "find what in your images would spoil training",
    "make-data": "make pictures with exact labels, to try a task without data",
    "train": "train a model on your images, measure it, write a report",
    "pretrain": "learn from images without labels, for search or to need few labels",
    "models": "list published models to start from, by short names",
    "info": "show what a model is and what it costs",
    "convert": "convert model files from one family to another",
    "export": "write a model as ONNX, OpenVINO or a torch program, and check it",
    "predict": "run a model on images",
    "evaluate": "measure a model on labelled images",
    "bench": "measure how fast a model runs here, by every engine",
    "explain": "show why a model answers as it does, and every step of its forward pass",
    "embed": "write what a model makes of each image as vectors in a Parquet file",
    "index": "make a searchable index of images, add to it, remove from it",
    "search": "find the pictures of an index that are most like a picture or a part of it",
    "knn": "measure a model's frozen features by k-NN and a linear probe",
    "explore": "map a pile of images: copies, clusters, outliers, on a page",
    "suggest": "choose which images to label next",
    "serve": "serve a model on this machine: a web page and an HTTP API",
    "manifest": "list any number of images, in shards that many processes and machines work on",
    "merge": "join what was written for the shards of a manifest",
}
FOLDERS = {  # those in a folder of commands/
    "without_labels": ("pretrain", "embed", "index", "search", "knn", "explore", "suggest"),
    "many_images": ("manifest", "merge"),
}
COMPLETION = "_VITRAIL_COMPLETE"  # the variable by which a shell asks what may come next


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the result is the exit code."""
    logging.getLogger("vitrail").addHandler(logging.NullHandler())  # the commands print a model's notes themselves
    if argv is None:
        collect_less_garbage()
    arguments = list(sys.argv[1:] if argv is None else argv)
    group = command_group()
    if COMPLETION in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(group, {}, "vitrail", COMPLETION, os.environ[COMPLETION])
    try:
        with group.make_context("vitrail", arguments) as context:
            code: int = group.invoke(context)
        sys.stdout.flush()  # here, so that a reader who has gone is noticed here
    except click.exceptions.Exit as end:  # --help and --version
        raise SystemExit(end.exit_code) from None
    except click.UsageError as error:
        if error.ctx is not None:
            print(error.ctx.get_usage(), file=sys.stderr)
        print_error(error.format_message())
        raise SystemExit(USER_ERROR) from None
    except VitrailError as error:
        print_error(" ".join(str(error).split()))
        return USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing left for Python to flush at exit
        return BROKEN_PIPE
    return code


def collect_less_garbage() -> None:
    """Importing torch makes a million objects and no garbage: looking through them, again and again while they are
    made and once more at the end, took a quarter of a second of every command."""
    gc.set_threshold(10_000, 20, 20)
    atexit.register(gc.freeze)


def run_function(name: str) -> Callable[..., int | None]:
    """`run_make_data` of `commands/make_data.py` for 'make-data'."""
    folder = next((f"{folder}." for folder, names in FOLDERS.items() if name in names), "")
    name = name.replace("-", "_")
    run: Callable[..., int | None] = getattr(importlib.import_module(f"vitrail.commands.{folder}{name}"), f"run_{name}")
    return run


def command_group() -> click.Group:
    """`vitrail` with all its commands."""
    group = _Group(
        "vitrail",
        help="Vision Transformers for your own images, and every published ViT in one readable network.",
        epilog="'vitrail COMMAND --help' tells more about a command.",
        subcommand_metavar="COMMAND ...",
        no_args_is_help=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
    return click.version_option(__version__, message="vitrail %(version)s")(group)


class _Group(click.Group):
    """A command's file is imported when it is asked for: --help is fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return click_command(run_function(cmd_name)) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))
