"""What the commands that make a run have in common: their options, their settings, how they end."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitrail.commands.shared_options import MAX_PIXELS, LayoutOptions
from vitrail.errors import VitrailError
from vitrail.option_types import count, positive, whole_number
from vitrail.options import Option

if TYPE_CHECKING:
    from vitrail.training.loop import Stopped
    from vitrail.training.settings import Settings
else:
    Settings = object  # at run time a name for the annotation below is enough, and --help is faster


class RunOptions(LayoutOptions, total=False):
    model: Annotated[str | None, Option("a preset such as S/16 or swin-T", metavar="NAME", unset="chosen")]
    epochs: Annotated[float | None, Option("passes over the training images", metavar="N", parse=positive)]
    minutes: Annotated[
        float | None,
        Option("time for everything, the measuring included, instead of --epochs", metavar="M", parse=positive),
    ]
    image_size: Annotated[int | None, Option("pixels a side", metavar="N", parse=count, unset="chosen")]
    batch_size: Annotated[int | None, Option("images a step", metavar="N", parse=count, unset="chosen")]
    lr: Annotated[float | None, Option("peak learning rate", metavar="RATE", parse=positive, unset="chosen")]
    seed: Annotated[
        int | None,
        Option("random seed of the split, the weights and the order", metavar="N", parse=whole_number, unset="0"),
    ]
    settings: Annotated[
        Settings | str | Path | None, Option("a file with any settings; options win over it", metavar="FILE.toml")
    ]
    resume: Annotated[bool, Option("resume the run in RUN where it stopped", default=False)]
    max_pixels: Annotated[int | None, MAX_PIXELS]


# Where an option stands among the settings of a run. All others say how the run is made.
RUN_SETTINGS = {
    "model": "model.model",
    "start": "model.start",
    "epochs": "train.epochs",
    "minutes": "train.minutes",
    "image_size": "model.image_size",
    "batch_size": "train.batch_size",
    "lr": "train.lr",
    "seed": "train.seed",
    "layout": "data.layout",
}


def settings_of(options: Mapping[str, Any], names: Mapping[str, str]) -> Settings:
    """The settings of a run: those of the file or object, and the options on top of them. names: where each option
    stands among the settings."""
    from vitrail.training.settings import Settings

    settings = options["settings"]
    values = {names[name]: value for name, value in options.items() if name in names and value is not None}
    values = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    if options["resume"] and (values or settings is not None):
        named = ", ".join([*values, *(["--settings"] if settings is not None else [])])
        raise VitrailError(f"a resumed run keeps its settings, so leave out {named}, or start a new run")
    if settings is None:
        settings = Settings()
    elif not isinstance(settings, Settings):
        settings = Settings.read(settings)
    return settings.with_values(values)


def is_main() -> bool:
    """Of several processes under torchrun one writes and prints."""
    return int(os.environ.get("RANK", "0")) == 0


def exit_code_of(stopped: Stopped) -> int:
    """What a shell is told of a run that a signal stopped."""
    return 128 + (stopped.signal_number or signal.SIGTERM)
