"""Each way to die has its sentence; what is not known stays what it was."""

import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.training.failure import Diverged, in_a_sentence
from vitrail.training.settings import Recipe


@pytest.mark.parametrize(
    ("error", "kept", "processes", "says"),
    [
        (MemoryError(), 7, 1, "with 64 images a step; the state after step 7 is saved: set accumulate = 4"),
        (torch.OutOfMemoryError("CUDA"), 0, 1, "memory ran out with 64 images a step: start again"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 0, 1, "train.accumulate = 4"),
        (Diverged("the loss became nan"), 2, 1, "the loss became nan; the state after step 2 is saved"),
        (VitrailError("a.png does not exist"), 12, 1, "step 12 is saved; then go on with: vitrail train x --resume"),
        (VitrailError("cannot write RUN: No space left on device"), 0, 1, "cannot write RUN: No space left on device"),
        (RuntimeError("[gloo] Connection closed by peer"), 5, 2, "another process of this run ended; the state after"),
    ],
)  # fmt: skip
def test_known_failures(error, kept, processes, says):
    sentence = in_a_sentence(error, Recipe(batch_size=64, accumulate=2), kept, "vitrail train x --resume", processes)
    assert isinstance(sentence, VitrailError) and says in str(sentence)


def test_a_mistake_of_ours_keeps_its_traceback():
    error = RuntimeError("shapes do not fit")
    assert in_a_sentence(error, Recipe(), 3, "", 1) is error
    connection = RuntimeError("Connection refused")
    assert in_a_sentence(connection, Recipe(), 3, "", 1) is connection
