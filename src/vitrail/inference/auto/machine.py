"""What a measurement of speed depends on besides the model: the processor, how much of it we have, and versions."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path
from typing import Any

from vitrail.inference.backends.graph_cache import versions
from vitrail.threads import usable_cores

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT")  # of the environment
CPUINFO = Path("/proc/cpuinfo")


@functools.cache
def processor() -> tuple[str, tuple[str, ...]]:
    """The CPU's name and its instruction sets; the latter empty where the system does not say."""
    names = {"model name": "", "flags": "", "Features": ""}
    try:
        for line in CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in names and not names[name.strip()]:
                names[name.strip()] = value.strip()
    except OSError:
        pass
    name = names["model name"] or platform.processor() or platform.machine()
    return name, tuple(sorted((names["flags"] or names["Features"]).split()))


def machine() -> dict[str, Any]:
    """Everything of this machine and process that makes an engine fast or slow."""
    import torch

    return {**machine_without_torch(), "threads": torch.get_num_threads()}


def machine_without_torch() -> dict[str, Any]:
    """The same but for the number of threads, which torch chooses by what is in it and by `THREADS`."""
    name, instructions = processor()
    return {
        "cpu": name,
        "instructions": " ".join(instructions),
        "cores": usable_cores(),
        "isa": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),  # holds torch and OpenVINO below what the CPU has
        "versions": versions(),
    }
