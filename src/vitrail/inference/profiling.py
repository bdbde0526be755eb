"""Time and peak memory of a forward pass on this machine, in a process of its own so that the peak is its alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

from vitrail.errors import VitrailError
from vitrail.inference.peak_memory import peak_bytes
from vitrail.model.config import ViTConfig
from vitrail.model.encoder_config import EncoderConfig

RUNS, SECONDS = 7, 5.0  # as many timed runs, or as many as fit; at least one


def measure(config: EncoderConfig) -> dict[str, Any]:
    """Of one image at the config's size, float32, fresh weights: `seconds` (median), `peak_bytes` of the whole process,
    `baseline_bytes` of Python and torch before the model; or `error`, such as a kernel that ran out of memory."""
    if isinstance(config, ViTConfig) and config.stem == "features" and config.cnn is None:
        raise VitrailError("a model whose stem is your own CNN cannot be measured from its config alone")
    # -P: a folder called torch where the user stands is not torch
    command = [sys.executable, "-P", "-m", "vitrail.inference.profiling"]
    run = subprocess.run(command, input=config.to_json(), capture_output=True, text=True)
    if run.returncode == 0:
        measured: dict[str, Any] = json.loads(run.stdout)
        return measured
    last_words = run.stderr.strip().splitlines()[-1:] or [f"ended with code {run.returncode}"]
    return {"error": last_words[0]}


def main() -> None:
    """The process that measures: a config comes in, numbers go out."""
    import torch

    from vitrail.model.presets import build_network, config_from_json

    baseline = peak_bytes()
    config = config_from_json(sys.stdin.read())
    model = build_network(config).eval()
    images = torch.zeros(1, config.channels, *config.image_size)
    with torch.inference_mode():
        model(images)  # the first run allocates and picks kernels
        times: list[float] = []
        while len(times) < RUNS and sum(times) < SECONDS:
            start = time.perf_counter()
            model(images)
            times.append(time.perf_counter() - start)
    measured = {"seconds": median(times), "peak_bytes": peak_bytes(), "baseline_bytes": baseline}
    measured |= {"runs": len(times), "threads": torch.get_num_threads()}
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
