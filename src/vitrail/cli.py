"""The command line: one thin function per command. Heavy imports are inside the functions: `--help` is instant."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence

from vitrail import __version__
from vitrail.errors import VitrailError

USER_ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 141  # as argparse and shells number them

# written out, so that `--help` need not wait for what knows them
_LAYOUTS = ("folders", "split-folders", "table", "masks", "coco", "voc", "yolo")
_TASKS = ("classify", "multilabel", "regress", "segment", "detect")


def main(argv: Sequence[str] | None = None) -> int:
    logging.getLogger("vitrail").addHandler(logging.NullHandler())  # the commands print a model's notes themselves
    arguments = parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int | None] = arguments.run
    try:
        code = run(arguments) or 0
        sys.stdout.flush()  # here, so that a reader who has gone is noticed here
    except VitrailError as error:
        print(f"vitrail: {' '.join(str(error).split())}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing left for Python to flush at exit
        return BROKEN_PIPE
    return code


# ---- commands


def check(arguments: argparse.Namespace) -> int:
    from vitrail.data.dense_options import DenseOptions
    from vitrail.report.checking import run_check

    return run_check(
        arguments.data,
        as_json=arguments.json,
        page=arguments.page,
        fast=arguments.fast,
        layout=arguments.layout,
        task=arguments.task,
        dense=DenseOptions(arguments.classes, arguments.colours, arguments.ignore, arguments.pairs),
        seed=arguments.seed,
    )


def make_data(arguments: argparse.Namespace) -> None:
    from vitrail.data.make_data import make_data

    asked = {name: getattr(arguments, name) for name in ("images", "size", "seed", "task")}
    print(make_data(arguments.kind, arguments.out, **asked))


def train(arguments: argparse.Namespace) -> int:
    from vitrail.report.training import run_train

    names = ("data", "out", "model", "start", "epochs", "minutes", "image_size", "batch_size", "lr", "seed")
    more = ("layout", "task", "settings", "resume", "shard")
    asked = {name: getattr(arguments, name) for name in (*names, *more)}
    return run_train(**asked)


def info(arguments: argparse.Namespace) -> None:
    from vitrail.info import describe, to_json, to_text

    description = describe(arguments.source, image_size=arguments.image_size, measure=arguments.measure)
    print(to_json(description) if arguments.json else to_text(description))


def convert(arguments: argparse.Namespace) -> None:
    from vitrail.weights.convert import convert

    names = ("classes", "channels", "image_size", "heads", "family")
    asked = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    checkpoint = convert(arguments.src, arguments.dst, to=arguments.to, **asked)
    print(f"wrote {arguments.dst}")
    for note in checkpoint.notes:
        print(f"  {note}")


def predict(arguments: argparse.Namespace) -> int:
    from vitrail.infer.predicting import run_predict

    return run_predict(
        arguments.model,
        arguments.images,
        top=arguments.top,
        json=arguments.json,
        csv=arguments.csv,
        out=arguments.out,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        device=arguments.device,
    )


def evaluate(arguments: argparse.Namespace) -> None:
    from vitrail.infer.evaluating import run_evaluate

    run_evaluate(
        arguments.model,
        arguments.data,
        as_json=arguments.json,
        part=arguments.part,
        layout=arguments.layout,
        task=arguments.task,
        ignore=arguments.ignore,
        bootstrap=arguments.bootstrap,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        device=arguments.device,
    )


def explain(arguments: argparse.Namespace) -> int:
    from vitrail.report.explaining import run_explain

    names = ("out", "png", "json", "query", "blocks", "heads", "target", "compare", "walk_block", "image_size")
    asked = {name: getattr(arguments, name) for name in (*names, "top", "device")}
    return run_explain(arguments.model, arguments.images, **asked)


def serve(arguments: argparse.Namespace) -> None:
    from vitrail.serving.running import serve

    names = ("host", "port", "samples", "token", "allow_host", "allow_origin", "batch_size", "workers", "device")
    more = ("max_bytes", "max_pixels", "max_images", "queue", "patience", "seconds")
    serve(arguments.model, **{name: getattr(arguments, name) for name in (*names, *more)})


# ---- arguments


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(
        prog="vitrail",
        description="Vision Transformers for your own images, and every published ViT in one readable network.",
        epilog="'vitrail COMMAND --help' tells more about a command.",
    )
    whole.add_argument("--version", action="version", version=f"vitrail {__version__}")
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_check(commands)
    _add_make_data(commands)
    _add_train(commands)
    _add_info(commands)
    _add_convert(commands)
    _add_predict(commands)
    _add_evaluate(commands)
    _add_explain(commands)
    _add_serve(commands)
    return whole


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "check",
        help="what in a folder of images would spoil training",
        description="Looks at every image, mask and box: broken files, copies, conflicting labels, rotated photos, odd "
        "sizes, imbalance. The exit code is 1 where something would spoil training.",
    )
    command.set_defaults(run=check)
    command.add_argument("data", metavar="DATA", help="a folder, a CSV or Parquet table, or a COCO file")
    command.add_argument("--json", action="store_true", help="for programs")
    command.add_argument("--page", metavar="FILE", help="write the findings as an HTML page, with pictures")
    command.add_argument("--fast", action="store_true", help="only what shows without decoding the images")
    _add_data(command)
    found = "(default: found in DATA)"
    command.add_argument("--classes", metavar="FILE", default="", help=f"names, one a line, or 'index name' {found}")
    command.add_argument("--colours", metavar="FILE", default="", help=f"masks: lines of 'R G B name' {found}")
    ignored = "masks: the index that is not learnt (default: 255, and what is called void)"
    command.add_argument("--ignore", metavar="N", type=int, default=-1, help=ignored)
    pairs = "masks: folders, such as 'train:trainannot, val:valannot' (default: recognised)"
    command.add_argument("--pairs", metavar="LIST", default="", help=pairs)
    command.add_argument("--seed", metavar="N", type=int, default=0, help="of the split that is looked at")


def _add_make_data(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "make-data",
        help="pictures with exact truth, to try a task without data",
        description="Textured scenes with shapes, in train, val and test: the main shape's class, how many there are, "
        "how large the main one is, masks and boxes. Prints the commands to try.",
    )
    command.set_defaults(run=make_data)
    command.add_argument("kind", choices=("shapes",), help="what to make")
    command.add_argument("out", metavar="OUT", help="a new folder")
    command.add_argument("--images", metavar="N", type=_count, default=5000, help="default: %(default)s")
    command.add_argument("--size", metavar="N", type=_count, default=64, help="pixels a side (default: %(default)s)")
    command.add_argument("--seed", metavar="N", type=int, default=0, help="the same seed gives the same pictures")
    tasks = ("all", "classify", "regress", "segment", "detect")
    command.add_argument("--task", choices=tasks, default="all", help="the truth to write (default: %(default)s)")


def _add_data(command: argparse.ArgumentParser) -> None:
    command.add_argument("--layout", choices=_LAYOUTS, help="default: recognised")
    command.add_argument("--task", choices=_TASKS, help="default: recognised")


def _add_train(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "train",
        help="a model from a folder of images, measured, with a report",
        description="Trains a Vision Transformer on your images. What you do not give is chosen from the data, the "
        "time and the machine; every setting stands, explained, in RUN/settings.toml.",
    )
    command.set_defaults(run=train)
    command.add_argument("data", metavar="DATA", help="a folder, a CSV or Parquet table, or a COCO file")
    command.add_argument("--out", metavar="RUN", required=True, help="the folder that the run is written to")
    command.add_argument("--model", metavar="NAME", help="a preset such as S/16; default: auto")
    command.add_argument("--from", metavar="FILE|HUB-ID", dest="start", help="fine-tune this model")
    length = command.add_mutually_exclusive_group()
    length.add_argument("--epochs", metavar="N", type=_positive, help="passes over the training images")
    length.add_argument("--minutes", metavar="M", type=_positive, help="time for everything, the measuring included")
    command.add_argument("--image-size", metavar="N", type=_count, help="pixels a side; default: chosen")
    command.add_argument("--batch-size", metavar="N", type=_count, help="images a step; default: chosen")
    command.add_argument("--lr", metavar="RATE", type=_positive, help="peak learning rate; default: chosen")
    command.add_argument("--seed", metavar="N", type=int, help="of the split, the weights, the order; default: 0")
    _add_data(command)
    command.add_argument("--settings", metavar="FILE.toml", help="any settings; flags win over it")
    command.add_argument("--resume", action="store_true", help="go on with the run in RUN where it stopped")
    command.add_argument("--shard", action="store_true", help="under torchrun: cut the model up among the processes")


def _add_info(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "info",
        help="what a model is and what it costs",
        description="Config, parameters, tokens, multiply-adds, memory, and what another patch size would cost.",
    )
    command.set_defaults(run=info)
    command.add_argument("source", metavar="PRESET|FILE", help="such as S/16, DINOv2-B/14-reg, or a model file")
    command.add_argument("--json", action="store_true", help="for programs")
    command.add_argument("--image-size", metavar="H[xW]", type=_size, help="instead of the model's own")
    command.add_argument("--measure", action="store_true", help="run each row of the table here: time and peak memory")


def _add_convert(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "convert",
        help="model files from one family to another",
        description="Reads our file or any known family's, writes ours or theirs.",
    )
    command.set_defaults(run=convert)
    command.add_argument("src", metavar="SRC", help="a file, a folder, or a hub id")
    command.add_argument("dst", metavar="DST", help="the file or folder to write")
    targets = ("vitrail", "transformers", "timm")
    command.add_argument("--to", choices=targets, default="vitrail", help="default: %(default)s")
    command.add_argument("--classes", metavar="N", type=_classes, help="a new head for so many; 0: no head")
    command.add_argument("--channels", metavar="N", type=_count, help="adapt the stem to so many input channels")
    command.add_argument("--image-size", metavar="H[xW]", type=_size, help="resample the positions to this size")
    command.add_argument("--heads", metavar="N", type=_count, help="attention heads, where the weights do not tell")
    command.add_argument("--family", metavar="NAME", help="whose names the weights have, where that is not clear")


def _add_predict(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "predict",
        help="what a model says about images",
        description="One row an image, in their order. What cannot be read is a row with its error, and the exit code "
        "is then 1.",
    )
    command.set_defaults(run=predict)
    command.add_argument("model", metavar="MODEL", help="a model file or folder, or a hub id")
    images = "files, folders (all images in them), or - for paths on standard input, one a line"
    command.add_argument("images", metavar="IMAGES", nargs="+", help=images)
    command.add_argument("--top", metavar="N", type=_count, default=5, help="guesses an image (default: %(default)s)")
    command.add_argument("--json", metavar="FILE", help="write a JSON list instead; -: JSON lines on standard output")
    command.add_argument("--csv", metavar="FILE", help="write a table instead; -: on standard output")
    command.add_argument("--out", metavar="DIR", help="masks, overlays or boxes as pictures, and a JSON file about all")
    _add_running(command)


def _add_evaluate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "evaluate",
        help="how good a model is on labelled images",
        description="Every metric with its 95 %% interval, each label, the most confused pairs, and how far the "
        "probabilities can be trusted. Labels are matched by name.",
    )
    command.set_defaults(run=evaluate)
    command.add_argument("model", metavar="MODEL", help="a model file or folder, or a hub id")
    command.add_argument("data", metavar="DATA", help="a folder, a CSV or Parquet table, or a COCO file")
    parts = "auto (default): test, else val, else what training held out of this data, else all"
    command.add_argument("--part", choices=("auto", "train", "val", "test", "all"), default="auto", help=parts)
    command.add_argument("--layout", choices=_LAYOUTS, help="default: recognised")
    command.add_argument("--task", choices=_TASKS, help="default: the model's")
    ignored = "masks: the value of pixels that do not count (default: as in training)"
    command.add_argument("--ignore", metavar="N", type=int, help=ignored)
    command.add_argument("--json", action="store_true", help="for programs")
    resamples = "resamples for the intervals; 0: none (default: %(default)s)"
    command.add_argument("--bootstrap", metavar="N", type=_classes, default=1000, help=resamples)
    _add_running(command)


def _add_explain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "explain",
        help="why a model answers as it does, and every step of its forward pass",
        description="Where the answer comes from, what each token attends to in each block and head, and a walk from "
        "pixels to the answer. The model runs as always: fused attention, the same answer.",
    )
    command.set_defaults(run=explain)
    command.add_argument("model", metavar="MODEL", help="a model file or folder, a hub id, or a preset such as S/16")
    command.add_argument("images", metavar="IMAGES", nargs="+", help="files, or folders (all images in them)")
    command.add_argument("--out", metavar="FILE", help="write an HTML page: maps by block and head, the walk")
    command.add_argument("--png", metavar="DIR", help="write every map as a picture, for slides")
    command.add_argument("--json", metavar="FILE", help="write the numbers; -: on standard output instead of text")
    command.add_argument("--compare", action="store_true", help="measure which explanation to trust (slower)")
    command.add_argument("--target", metavar="NAME", help="explain this class instead of the answer")
    token = "whose attention: cls, 'register 0', or a patch as ROW,COLUMN from 0 (default: cls)"
    command.add_argument("--query", metavar="TOKEN", help=token)
    command.add_argument("--blocks", metavar="LIST", type=_numbers, help="such as 0,5,-1 (default: all)")
    command.add_argument("--heads", metavar="LIST", type=_numbers, help="such as 0,2 (default: all)")
    walked = "the block that the walk goes through slowly (default: -1, the last)"
    command.add_argument("--walk-block", metavar="N", type=int, default=-1, help=walked)
    command.add_argument("--image-size", metavar="H[xW]", type=_size, help="instead of the model's own")
    command.add_argument("--top", metavar="N", type=_count, default=5, help="guesses an image (default: %(default)s)")
    command.add_argument("--device", metavar="NAME", default="auto", help="cuda, mps or cpu (default: what is there)")


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "serve",
        help="a page and an HTTP API for a model, on this machine",
        description="Starts a server and prints its address: a page to drop pictures on, and an API (/docs) whose "
        "requests share the model's batches. SIGTERM or Ctrl-C finishes what is in hand.",
    )
    command.set_defaults(run=serve)
    command.add_argument("model", metavar="MODEL", help="a model file or folder, a hub id, or a preset such as S/16")
    command.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="default: %(default)s, this machine")
    command.add_argument("--port", metavar="N", type=_port, default=8000, help="0: any free one (default: %(default)s)")
    command.add_argument("--samples", metavar="DIR", help="pictures for the page (default: samples beside the model)")
    command.add_argument("--token", metavar="TOKEN", help="that requests must carry; auto: one is made up and printed")
    names = "a name besides localhost that the server answers to; may be given several times"
    command.add_argument("--allow-host", metavar="NAME", action="append", default=[], help=names)
    origins = "a page of another origin that may ask, such as https://example.org; several times, or '*'"
    command.add_argument("--allow-origin", metavar="URL", action="append", default=[], help=origins)
    command.add_argument("--max-bytes", metavar="N", type=_count, help="of a request (default: 32 million)")
    command.add_argument("--max-pixels", metavar="N", type=_count, help="of a picture (default: 50 million)")
    command.add_argument("--max-images", metavar="N", type=_count, help="of a request (default: 32)")
    command.add_argument("--queue", metavar="N", type=_count, help="images in hand at once (default: 128)")
    waits = "for a client that sends nothing (default: 10)"
    command.add_argument("--patience", metavar="SECONDS", type=_positive, help=waits)
    command.add_argument("--seconds", metavar="SECONDS", type=_positive, help="for an answer (default: 60)")
    _add_running(command)


def _add_running(command: argparse.ArgumentParser) -> None:
    command.add_argument("--batch-size", metavar="N", type=_count, help="default: by the model's number of tokens")
    command.add_argument("--workers", metavar="N", type=_count, default=2, help="threads that decode (default: 2)")
    command.add_argument("--device", metavar="NAME", default="auto", help="cuda, mps or cpu (default: what is there)")


def _size(text: str) -> tuple[int, int]:
    """'224' is (224, 224); '224x320' is height 224, width 320."""
    height, cross, width = text.partition("x")
    return _count(height), _count(width) if cross else _count(height)


def _numbers(text: str) -> list[int]:
    """'0,5,-1'."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 0,5,-1") from None


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: a whole number from 0 to 65535")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _classes(text: str) -> int:
    return 0 if text == "0" else _count(text)
