"""What a measurement of speed depends on besides the model: the processor, how much of it we have, and versions."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path
from typing import Any

import torch

from vitrail.inference.backends.graph_cache import versions

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
    name, instructions = processor()
    return {
        "cpu": name,
        "instructions": " ".join(instructions),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "isa": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),  # holds torch and OpenVINO below what the CPU has
        "versions": versions(),
    }
