"""Traced networks give torch's answers in ONNX Runtime and in OpenVINO, for every kind of head and network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.graphs.graph_file import IMAGES, OUTPUTS
from vitrail.graphs.no_telemetry import import_silently
from vitrail.graphs.onnx_graph import onnx_model
from vitrail.graphs.openvino_graph import EXACT, openvino_model
from vitrail.graphs.trace import trace
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.presets import build_network, preset
from vitrail.model.swin.swin_config import SwinConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing


def vit(**changes: object) -> EncoderConfig:
    return preset("mu/16", **{"image_size": 64, "classes": 5, **changes})


# widths of 16 n: OpenVINO 2026.4 breaks on a norm over 24 where ONEDNN_MAX_CPU_ISA (tests/conftest.py) holds it back
def swin(**changes: object) -> EncoderConfig:
    small = {"image_size": 64, "width": 32, "depths": (2, 1), "heads": (2, 4), "window_size": 4, "classes": 5}
    return SwinConfig(**{**small, **changes})  # type: ignore[arg-type]


# few, for each takes seconds, but together every part of every network
NETWORKS = {
    "DeiT, distilled": vit(distillation=True, registers=1),
    "embedding, 2-D positions": vit(classes=0, pool="mean", positions="sincos2d"),
    "DINOv3": vit(positions="rotary", registers=2, layer_scale=0.1, activation="swiglu"),
    "EVA-02, windows": vit(
        rotary_too=True, rotary_grid=16, pool="attention", qk_norm=True, stem_norm=True, attention_window=2
    ),
    "BEiT, conv stem": vit(positions="none", relative_bias=True, pool="mean", stem="conv", stem_blocks=1, norm="post"),
    "YOLOS": vit(head="box_tokens", queries=6, block_positions=True),
    "mask queries": vit(head="mask_queries", queries=5, depth=1),
    "mask decoder, conv stem": vit(head="mask_decoder", stem="conv", depth=1),
    "Swin v1, linear masks": swin(head="mask_linear"),
    "Swin v1": swin(padding="after_shift", window_size=3),
    "Swin v2, box decoder": swin(version="v2", depths=(1, 2), head="box_decoder", queries=6),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_both_runtimes_give_torchs_outputs_for_any_batch(name: str) -> None:
    torch.manual_seed(0)
    network = build_network(NETWORKS[name]).eval()
    with torch.no_grad():
        for parameter in network.parameters():  # else zero biases hide mistakes
            parameter += 0.1 * torch.randn(parameter.shape)
    program = trace(Checkpoint(network, Preprocessing(size=(64, 64))), (64, 32))
    images = torch.randn(3, 3, 64, 32)
    with torch.no_grad():
        expected = network(images).numpy()
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_model(program).SerializeToString())
    np.testing.assert_allclose(session.run([OUTPUTS], {IMAGES: images.numpy()})[0], expected, rtol=1e-3, atol=1e-4)
    compiled = import_silently("openvino").Core().compile_model(openvino_model(program), "CPU", EXACT)
    np.testing.assert_allclose(compiled({IMAGES: images.numpy()})[OUTPUTS], expected, rtol=1e-3, atol=1e-4)


def test_a_traced_model_leaves_the_caller_as_it_was() -> None:
    checkpoint = Checkpoint(build_network(vit(depth=1)), Preprocessing(size=(64, 64)))
    assert trace(checkpoint).module()(torch.zeros(3, 3, 64, 64)).shape == (3, 5)
    assert all(parameter.requires_grad for parameter in checkpoint.model.parameters())
