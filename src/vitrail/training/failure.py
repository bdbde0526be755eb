"""One sentence for what a run can die of, and whether there is something to go on with."""

from __future__ import annotations

import torch

from vitrail.errors import VitrailError
from vitrail.training.settings import Recipe

OF_OTHERS = ("Connection", "gloo", "NCCL")  # what torch says when another process of the run is gone


class Diverged(VitrailError):
    """The weights became useless: there is nothing to go on with."""


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        words in str(error) for words in ("can't allocate memory", "out of memory")
    )


def in_a_sentence(error: Exception, recipe: Recipe, saved: int, resume: str, processes: int) -> Exception:
    """The error to raise. `saved`: the step of the last checkpoint, 0 for none; `resume`: the command that goes on."""
    text = str(error)
    where = f"; the state after step {saved:,} is saved" if saved else ""
    if is_out_of_memory(error):
        parts = f"accumulate = {2 * recipe.accumulate}, which runs a step in parts"
        batch = f" with {recipe.batch_size} images a step" if recipe.batch_size is not None else ""
        what = f"memory ran out{batch}{where}"
        if saved:
            return VitrailError(f"{what}: set {parts}, in the run's settings.toml, then go on with: {resume}")
        return VitrailError(f"{what}: start again with a smaller --batch-size or with train.{parts}")
    if isinstance(error, Diverged):
        return VitrailError(f"{text}{where}")
    if isinstance(error, VitrailError):
        return VitrailError(f"{text}{where}; then go on with: {resume}" if saved else text)
    if processes > 1 and any(word in text for word in OF_OTHERS):
        again = "unless torchrun does (--max-restarts), start all of them again with --resume"
        return VitrailError(f"another process of this run ended{where}; {again}")
    return error
