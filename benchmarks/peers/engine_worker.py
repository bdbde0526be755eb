"""Other people's ways to run the same weights, each in its own process: `python -m benchmarks.peers.engine_worker`.

What a user gets who follows the documentation: timm and transformers as they come or through `torch.compile`, timm's
model exported to ONNX Runtime and converted to OpenVINO, int8 by ONNX Runtime's dynamic quantisation and by NNCF with
nothing but `model_type=TRANSFORMER`. Graphs have a fixed batch, which suits them best.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.process import let_torchvision_import
from vitrail.graphs.no_telemetry import import_onnxruntime, import_silently
from vitrail.inference.bench.bench_worker import Forward, Worker, answer_requests


def main() -> None:
    answer_requests(load)


def load(kind: str, precision: str, pictures: str, threads: int, **folders: str) -> Worker:
    """kind: a key of PEERS; folders: timm and transformers, with the same weights."""
    torch.set_num_threads(threads)
    return Worker(PEERS[kind](precision, np.load(pictures, mmap_mode="r"), threads, **folders), pictures)


def timm_model(folder: str) -> nn.Module:
    let_torchvision_import()
    import timm

    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


def transformers_model(folder: str) -> nn.Module:
    let_torchvision_import()
    import transformers

    return transformers.AutoModelForImageClassification.from_pretrained(folder).eval()


def torch_forward(make: Callable[[dict[str, str]], nn.Module], is_compiled: bool) -> Callable[..., Forward]:
    def prepare(precision: str, pictures: Any, threads: int, **folders: str) -> Forward:
        network = make(folders)
        run = torch.compile(network) if is_compiled else network

        @torch.inference_mode()
        def forward(images: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                outputs = run(images)
            return getattr(outputs, "logits", outputs).float()

        return forward

    return prepare


class PerBatch:
    """A graph for each batch size; only the last one is kept, for each holds a copy of the weights."""

    def __init__(self, build: Callable[[int], Callable[[np.ndarray], np.ndarray]]) -> None:
        self.build, self.batch = build, 0

    def __call__(self, images: Tensor) -> Tensor:
        if len(images) != self.batch:
            self.run, self.batch = self.build(len(images)), len(images)
        return torch.from_numpy(self.run(images.numpy()))


def onnxruntime_forward(precision: str, pictures: Any, threads: int, **folders: str) -> Forward:
    import tempfile
    from pathlib import Path

    onnxruntime = import_onnxruntime()
    from onnxruntime.quantization import QuantType, quantize_dynamic

    network = timm_model(folders["timm"])

    def build(batch: int) -> Callable[[np.ndarray], np.ndarray]:
        images = torch.zeros(batch, 3, *pictures.shape[2:])
        with torch.no_grad():
            program = torch.onnx.export(network, (images,), dynamo=True, verbose=False)
        proto = program.model_proto
        del proto.graph.value_info[:]  # shapes that quantize_dynamic trips over
        file = proto.SerializeToString()
        if precision == "int8":
            with tempfile.TemporaryDirectory() as folder:
                plain, small = Path(folder, "plain.onnx"), Path(folder, "int8.onnx")
                plain.write_bytes(file)
                quantize_dynamic(plain, small, weight_type=QuantType.QInt8)
                file = small.read_bytes()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return lambda images: session.run(None, {name: images})[0]

    return PerBatch(build)


def openvino_forward(precision: str, pictures: Any, threads: int, **folders: str) -> Forward:
    openvino = import_silently("openvino")
    network = timm_model(folders["timm"])
    model = openvino.convert_model(network, example_input=torch.zeros(1, 3, *pictures.shape[2:]))
    if precision == "int8":
        nncf = import_silently("nncf")
        nncf.set_log_level(logging.ERROR)
        images = [np.array(picture[None]) for picture in pictures]
        model.reshape([1, 3, *pictures.shape[2:]])
        model = nncf.quantize(
            model, nncf.Dataset(images), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(images)
        )
    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
    if precision == "fp32":
        settings["INFERENCE_PRECISION_HINT"] = "f32"  # else bf16 where the CPU has it, which is what a user gets
    core = openvino.Core()

    def build(batch: int) -> Callable[[np.ndarray], np.ndarray]:
        model.reshape([batch, 3, *pictures.shape[2:]])
        compiled = core.compile_model(model, "CPU", settings)
        return lambda images: compiled(images)[0]

    return PerBatch(build)


def unsearched_int8_forward(precision: str, pictures: Any, threads: int, **folders: str) -> Forward:
    """Ours, for weights that were never trained: their answers are nothing that a search could judge, so int8 is what
    the search begins with, without SmoothQuant. folders: model; merge_tokens is a number as text."""
    from dataclasses import replace

    from vitrail.graphs.graph_formats import graph_parts, traced_graph
    from vitrail.graphs.quantize import quantize, store_int8
    from vitrail.inference.backends.openvino_backend import OpenVinoBackend
    from vitrail.inference.engine import open_model

    class UnsearchedInt8(OpenVinoBackend):
        def _prepare(self, size: tuple[int, int]) -> Any:
            images = [np.array(picture[None]) for picture in pictures]
            traced = traced_graph(self.graph_format, self.checkpoint, size)
            model = store_int8(quantize(traced, images, None))
            return self.compile([memoryview(bytearray(part)) for part in graph_parts(self.graph_format, model)])

    checkpoint = open_model(folders["model"])
    network = checkpoint.model.with_merged_tokens(int(folders.get("merge_tokens", "0")))
    return UnsearchedInt8(replace(checkpoint, model=network), "int8")


PEERS: dict[str, Callable[..., Forward]] = {
    "timm": torch_forward(lambda folders: timm_model(folders["timm"]), False),
    "timm compiled": torch_forward(lambda folders: timm_model(folders["timm"]), True),
    "transformers": torch_forward(lambda folders: transformers_model(folders["transformers"]), False),
    "transformers compiled": torch_forward(lambda folders: transformers_model(folders["transformers"]), True),
    "onnxruntime": onnxruntime_forward,
    "openvino": openvino_forward,
    "vitrail int8": unsearched_int8_forward,
}

if __name__ == "__main__":
    main()
