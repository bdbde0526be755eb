"""One server for most tests: a tiny model whose labels would do harm wherever they are taken for more than text."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.serving.server import Server, picture
from vitrail.inference.engine import Engine
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.familiarity.reference_vectors import fit_familiarity
from vitrail.weights.preprocessing import Preprocessing

LABELS = ["<img src=x onerror=alert(1)>", 'say "cheese"', "plain"]
LIMITS = ("--max-bytes", "3000000", "--max-pixels", "4000000", "--max-images", "8", "--patience", "1")


def faint_red(seed: int) -> bytes:
    """A picture like those that the model has learnt from, as far as familiarity goes."""
    blots = np.random.default_rng(seed).integers(-30, 31, (4, 4, 3)) + np.array([190, 60, 60])
    buffer = io.BytesIO()
    Image.fromarray(blots.astype(np.uint8)).resize((64, 64), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


def checkpoint() -> Checkpoint:
    """Loud weights, so that different pictures get clearly different answers. It knows what is familiar."""
    torch.manual_seed(0)
    config = preset("mu/4", classes=3, image_size=32, registers=2, depth=2)
    model = ViT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.2)
    return with_familiarity(Checkpoint(model, Preprocessing(size=config.image_size), "classify", LABELS))


def with_familiarity(checkpoint: Checkpoint) -> Checkpoint:
    """The same, which is told what is familiar: faint red pictures."""
    engine, pooled = Engine.open(checkpoint, precision="fp32"), list[torch.Tensor]()
    engine.outputs([engine.read(faint_red(seed)) for seed in range(60)], pooled=pooled)
    checkpoint.familiarity = fit_familiarity(torch.stack(pooled[:30]), torch.stack(pooled[30:]))
    return checkpoint


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    samples = folder / "samples"
    samples.mkdir()
    (samples / "2.jpg").write_bytes(picture(2, form="JPEG"))
    (samples / '10 "quoted" <b>.png').write_bytes(picture(10))
    (samples / "notes.txt").write_text("not a picture")
    return checkpoint().save(folder / "model.safetensors")


@pytest.fixture(scope="session")
def server(model_file: Path) -> Iterator[Server]:
    server = Server(model_file, *LIMITS)
    yield server
    assert server.process.poll() is None, "the server has not survived the tests"
    assert server.stop() == 0
    said = "".join(server.said)  # libtiff writes of damaged files by itself; of ours there is nothing
    assert "Traceback" not in said and "vitrail" not in said, said
