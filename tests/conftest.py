"""What every test needs before it imports anything."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

# Single precision on every machine, in processes that tests start too: mixed precision is tested where it is asked for.
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"  # before torch, which reads it once

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # tests import ONNX Runtime themselves, and it reports while it is imported

if "VITRAIL_CACHE" not in os.environ:  # graphs of networks are kept there: not in the cache of whoever runs the tests
    os.environ["VITRAIL_CACHE"] = tempfile.mkdtemp(prefix="vitrail-tests-")
    atexit.register(shutil.rmtree, os.environ["VITRAIL_CACHE"], ignore_errors=True)

import hypothesis
import pytest
import torch

from benchmarks.peers.process import let_torchvision_import
from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT

# For the tests of several rooms: image files of every kind, whole and broken; a browser.
pytest_plugins = ["tests.image_files", "tests.chromium"]

let_torchvision_import()

gc.disable()  # until all tests are found: what imports make stays, and looking through it again and again takes seconds

hypothesis.settings.register_profile("vitrail", deadline=None)  # no test depends on how busy the machine is
hypothesis.settings.load_profile("vitrail")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """From here on garbage is collected, without looking through what torch and 8000 tests are made of. Not at every
    700 objects: tracing a network makes millions."""
    found = yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()
    return found


def lively_vit(config: ViTConfig | str, seed: int = 0, **built_with: Any) -> ViT:
    """A ViT in eval mode in which every parameter matters: fresh ones have zero biases and norms that do nothing, which
    hides mistakes."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = ViT(config, **built_with).eval()
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    return model


@pytest.fixture(scope="session")
def lively() -> Callable[..., ViT]:
    return lively_vit
