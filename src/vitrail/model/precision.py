"""Which precision a device is fast in: bfloat16 helps only where the hardware computes in it."""

from __future__ import annotations

import functools

import torch


@functools.cache
def computes_bf16(device: str) -> bool:
    """Whether matrix products in bfloat16 run on the hardware's own instructions.

    A CPU with only AVX2 emulates them. Measured on an AMD EPYC (Zen 3, 2 cores, torch 2.13): a linear layer 192 -> 768
    on 16,640 tokens took 354 ms forward in bfloat16 against 29 ms in float32, and 40 times as long backward.
    """
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device == "cpu":
        return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return device == "mps"


def autocast(device: str | torch.device) -> torch.autocast:
    """Mixed precision where it is faster: bfloat16 autocast, or a context that changes nothing."""
    kind = torch.device(device).type
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=computes_bf16(kind))
