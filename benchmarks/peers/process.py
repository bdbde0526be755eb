"""What a peer's process needs before it imports timm or transformers, and how it reports."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import time
from pathlib import Path

import torch


def let_torchvision_import() -> None:
    """timm and transformers import torchvision, whose registry build is linked against CUDA and so finds no operators
    beside a CPU build of torch; its import then fails on the two that it describes without asking for them.
    Nothing here runs those operators, so their names are enough. The tests use it too."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    try:
        torch.ops.load_library(Path(spec.origin).with_name("_C.so"))
    except OSError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def keep_large_blocks() -> None:
    """glibc gives large blocks back at once and pays for fresh pages in the next step; told so, it keeps them."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        trim_threshold, mmap_threshold, largest = -1, -3, 2**31 - 1
        libc.mallopt(mmap_threshold, largest)
        libc.mallopt(trim_threshold, largest)


def since_start() -> float:
    """Seconds since the parent started this process: imports count."""
    return time.time() - float(os.environ.get("STARTED", time.time()))


def report(**values: object) -> None:
    print(json.dumps(values), flush=True)
