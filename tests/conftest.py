"""What every test needs before it imports anything."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Single precision on every machine, in processes that tests start too: mixed precision is tested where it is asked for.
# Before torch is imported, which reads it once.
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"

import hypothesis
import pytest
import torch

from vitrail.model.config import ViTConfig
from vitrail.model.vit import ViT

pytest_plugins = ["tests.image_files"]  # image files of every kind, whole and broken, for the tests of several rooms


def let_torchvision_import() -> None:
    """timm and transformers import torchvision, whose registry build is linked against CUDA and so finds no operators
    beside a CPU build of torch; its import then fails on the two that it describes without asking for them.
    Nothing here runs those operators, so their names are enough."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    try:
        torch.ops.load_library(Path(spec.origin).with_name("_C.so"))
    except OSError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


let_torchvision_import()

hypothesis.settings.register_profile("vitrail", deadline=None)  # no test depends on how busy the machine is
hypothesis.settings.load_profile("vitrail")


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
