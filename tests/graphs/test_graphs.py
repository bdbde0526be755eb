"""Traced networks give torch's answers in ONNX Runtime and in OpenVINO, for every kind of head and network."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from vitrail.graphs.no_telemetry import import_silently
from vitrail.graphs.onnx_graph import onnx_model
from vitrail.graphs.openvino_graph import openvino_model
from vitrail.graphs.trace import IMAGES, OUTPUTS, trace
from vitrail.model.presets import build_network, preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

NETWORKS = {
    "classes": preset("mu/16", image_size=64, classes=5),
    "embedding": preset("mu/16", image_size=64, classes=0),
    "mean, 2-D positions": preset("mu/16", image_size=64, classes=5, pool="mean", positions="sincos2d"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_both_runtimes_give_torchs_outputs_for_any_batch(name: str) -> None:
    torch.manual_seed(0)
    network = build_network(NETWORKS[name]).eval()
    program = trace(Checkpoint(network, Preprocessing(size=(64, 64))), (64, 32))
    images = torch.randn(3, 3, 64, 32)
    with torch.no_grad():
        expected = network(images).numpy()
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_model(program).SerializeToString())
    np.testing.assert_allclose(session.run([OUTPUTS], {IMAGES: images.numpy()})[0], expected, atol=1e-5)
    openvino = import_silently("openvino")
    compiled = openvino.Core().compile_model(openvino_model(program), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    np.testing.assert_allclose(compiled({IMAGES: images.numpy()})[OUTPUTS], expected, atol=1e-5)


@pytest.mark.parametrize("module", ["openvino", "nncf"])
def test_the_package_that_sends_reports_is_never_imported(module: str) -> None:
    code = (
        "import sys; from vitrail.graphs.no_telemetry import import_silently;"
        f"import_silently({module!r}); assert sys.modules['openvino_telemetry'] is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
