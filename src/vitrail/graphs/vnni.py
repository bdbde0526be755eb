"""Whether this processor has VNNI: without it, an x86 processor cannot add up products of bytes in full."""

from __future__ import annotations

import os
import platform

import torch

WITHOUT_VNNI = ("SSE41", "AVX", "AVX2", "AVX512_CORE")  # as oneDNN calls what a CPU can


def saturates_int8() -> bool:
    """Whether products of bytes are added up in 16 bits: on an x86 CPU without VNNI, which two of 255 x 127 overflow.

    Also where `ONEDNN_MAX_CPU_ISA` holds OpenVINO below what the CPU has.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    return os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in WITHOUT_VNNI or not torch.cpu._is_vnni_supported()
