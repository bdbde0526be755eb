"""A second backend for tests, as OpenVINO or ONNX Runtime will be one: NumPy in, NumPy out, nothing to capture."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.weights.checkpoint import Checkpoint

ADDRESS = "tests.inference.backends.stub_backend:StubBackend"


class StubBackend:
    """Outputs that follow from each image's mean, so that a test can compute them."""

    name = "stub"
    captures: frozenset[str] = frozenset()
    precision = "int8"
    device = torch.device("cpu")

    def __init__(self, outputs: int) -> None:
        self.outputs, self.calls = outputs, 0

    @classmethod
    def load(cls, checkpoint: Checkpoint, *, device: str, precision: str, pictures: Any = None) -> StubBackend:
        return cls(checkpoint.config.classes)

    def __call__(self, images: Tensor, capture: Any = None) -> Tensor:
        assert capture is None and images.dtype == torch.float32
        self.calls += 1
        means = images.numpy().mean(axis=(1, 2, 3))  # (B,)
        return torch.from_numpy(np.stack([means * (1 + k) for k in range(self.outputs)], axis=1).astype(np.float32))
