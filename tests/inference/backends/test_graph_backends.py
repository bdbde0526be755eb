"""OpenVINO and ONNX Runtime give torch's answers for every task and network; their graphs are kept, whole or not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import lively_vit
from vitrail.errors import VitrailError
from vitrail.inference.backends import graph_backend
from vitrail.inference.backends.backend import load_backend
from vitrail.inference.backends.graph_cache import GraphCache, fingerprint
from vitrail.inference.backends.openvino_backend import OpenVinoBackend, core
from vitrail.inference.engine import Engine
from vitrail.inference.predictor import Predictor
from vitrail.model.encoder import Encoder
from vitrail.model.presets import build_network, preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

GRAPHS = ("openvino", "onnxruntime")
LABELS = ["a", "b", "c"]


def swin() -> Encoder:
    torch.manual_seed(0)
    config = preset("swin-T", image_size=64, classes=3, width=24, depths=(1, 1, 2, 1), heads=(1, 2, 4, 8), window_size=4)
    return build_network(config).eval()


def dense(head: str) -> Callable[[], Encoder]:
    return lambda: lively_vit(preset("mu/8", image_size=32, classes=1 if head == "depth" else 3, head=head))


NETWORKS: dict[str, tuple[str, Callable[[], Encoder], dict[str, str]]] = {
    "classify": ("classify", lambda: lively_vit(preset("mu/8", image_size=32, classes=3)), {}),
    "multilabel": ("multilabel", lambda: lively_vit(preset("mu/8", image_size=32, classes=3, pool="mean")), {}),
    "regress": ("regress", lambda: lively_vit(preset("mu/8", image_size=32, classes=3, head="mlp")), {}),
    "segment": ("segment", dense("mask_linear"), {"resize": "pad"}),
    "segment in windows": ("segment", dense("mask_linear"), {"resize": "window"}),
    "detect": ("detect", dense("box_tokens"), {"resize": "squash"}),
    "Swin": ("classify", swin, {}),
}


def checkpoint_of(name: str) -> Checkpoint:
    task, network, settings = NETWORKS[name]
    model = network()
    return Checkpoint(model, Preprocessing(size=model.config.image_size, **settings), task, LABELS)


def pictures(count: int = 3) -> list[np.ndarray]:
    return [np.random.default_rng(seed).integers(0, 256, (45, 70, 3), np.uint8) for seed in range(count)]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("engine", GRAPHS)
def test_the_answers_are_torchs(engine: str, name: str) -> None:
    checkpoint = checkpoint_of(name)
    expected, fast = (Engine.open(checkpoint, engine=one, precision="fp32", batch_size=2) for one in ("torch", engine))
    assert (fast.backend.name, fast.backend.precision) == (engine, "float32")
    images = [expected.read(picture) for picture in pictures()]
    for one, other in zip(expected.outputs(images), fast.outputs(images), strict=True):
        torch.testing.assert_close(other, one, atol=2e-4, rtol=1e-3)
    answers = [row.answer for row in Predictor(fast).predict(pictures(), top=1)]
    torch_answers = [row.answer for row in Predictor(expected).predict(pictures(), top=1)]
    assert [answer.keys() for answer in answers if answer] == [answer.keys() for answer in torch_answers if answer]
    assert next(expected.checkpoint.model.parameters()).dtype == torch.float32  # the caller's network is as it was
