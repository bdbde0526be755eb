"""OpenVINO in bfloat16 gives torch's answers for every task and network, as nearly as 8 significant bits can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.inference.backends.test_graph_backends import NETWORKS, checkpoint_of

# In a process of its own: `tests/conftest.py` holds this one to AVX2, where there is no bfloat16.
RUNS_BF16 = """
import sys
from pathlib import Path
import numpy as np
import torch
from vitrail.inference.backends.openvino_run import core
from vitrail.inference.engine import Engine
if "BF16" not in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
    sys.exit(NO_BF16)
pictures = [np.random.default_rng(seed).integers(0, 256, (45, 70, 3), np.uint8) for seed in range(3)]
outputs = {}
for path in Path(sys.argv[1]).glob("*.safetensors"):
    engines = {
        "expected": Engine.open(path, precision="fp32", batch_size=2),
        "bf16": Engine.open(path, engine="openvino", precision="bf16", batch_size=2),
    }
    images = [engines["expected"].read(picture) for picture in pictures]
    for name, engine in engines.items():
        outputs[path.stem, name] = engine.outputs(images, decode=False)
torch.save(outputs, sys.argv[1] + "/outputs.pt")
"""
NO_BF16 = 77


def test_every_task_in_bfloat16(tmp_path: Path) -> None:
    for name in NETWORKS:
        checkpoint_of(name).save(tmp_path / f"{name}.safetensors")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    del environment["ONEDNN_MAX_CPU_ISA"]
    script = RUNS_BF16.replace("NO_BF16", str(NO_BF16))
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, text=True)
    if run.returncode == NO_BF16:
        pytest.skip("this processor has no bf16")
    assert run.returncode == 0, run.stderr
    outputs = torch.load(tmp_path / "outputs.pt")
    assert {name for name, _ in outputs} == set(NETWORKS)
    for name in NETWORKS:
        for one, other in zip(outputs[name, "expected"], outputs[name, "bf16"], strict=True):
            error = float((one - other).abs().max() / one.abs().max())
            assert 1e-4 < error < 0.03, name  # 0 would be float32
