"""Foreign models whose weights prove something, saved as their users save them, and held against ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitrail.weights.checkpoint import Checkpoint


def randomised(model: nn.Module) -> nn.Module:
    """Every parameter drawn anew, none left at zero or one, so that activations stay near 1 at any width and depth."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("weight") and parameter.dim() >= 2 and "position" not in name:
            parameter.data = 0.7 * noise / parameter[0].numel() ** 0.5
        elif ("norm" in name and name.endswith("weight")) or "lambda" in name:
            parameter.data = 1 + 0.2 * noise
        else:
            parameter.data = 0.3 * noise
    return model.eval()


@pytest.fixture(autouse=True)
def one_thread_a_worker() -> Iterator[None]:
    """Workers of pytest-xdist that each take every core slow each other down: 200 s of CPU time became 60 s."""
    before = torch.get_num_threads()
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Randomises a transformers model and saves it; gives the folder."""

    def save(model: Any, **options: Any) -> Path:
        from transformers.utils import logging

        logging.disable_progress_bar()
        randomised(model).save_pretrained(tmp_path / "theirs", **options)
        return tmp_path / "theirs"

    return save


@pytest.fixture
def agrees() -> Callable[..., None]:
    """Asserts that our model gives the answer of theirs at one image size, and the same hidden states on the way."""

    def check(
        checkpoint: Checkpoint,
        theirs: nn.Module,
        size: tuple[int, int],
        answer: Callable[[Any], Tensor],
        batch: int = 2,
        **options: Any,
    ) -> None:
        config = checkpoint.config
        images = torch.randn(batch, config.channels, *size, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            output = theirs(images, output_hidden_states=True, **options)
            expected, found = answer(output), checkpoint.model(images)
            blocks = checkpoint.model.features(images, blocks=range(config.depth)).blocks
        assert found.shape == expected.shape
        assert expected.std() > 0.05  # an answer of zeros would prove nothing
        assert (found - expected).abs().max() <= 1e-4
        for ours, state in zip(blocks, output.hidden_states[1:], strict=True):
            assert 0.3 < state.std() < 5
            assert (ours - state).abs().max() <= 1e-3

    return check
