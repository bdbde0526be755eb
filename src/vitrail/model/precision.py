"""Which precision a device is fast in: bfloat16 helps only where the hardware computes in it."""

from __future__ import annotations

import functools
import platform
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.option_types import precision as named_precision


@functools.cache
def computes_bf16(device: str) -> bool:
    """Whether matrix products in bfloat16 run on the hardware's own instructions.

    An x86 CPU without AVX512-BF16 emulates them, also where mkldnn calls them supported: 51 GFLOP/s against 179 in
    float32 on an Ice Lake (2 cores, torch 2.13). With AVX2 alone it is worse: on an AMD EPYC (Zen 3, 2 cores) a linear
    layer 192 -> 768 on 16,640 tokens took 354 ms forward against 29 ms in float32, and 40 times as long backward.
    """
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device == "cpu":
        if not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
            return False
        return platform.machine() not in ("x86_64", "AMD64") or torch.cpu._is_avx512_bf16_supported()
    return device == "mps"


def is_mixed(device: str | torch.device, precision: str) -> bool:
    """Whether a precision means bfloat16 on this device. "auto" is bfloat16 where it is faster."""
    name = named_precision(precision)
    if name == "int8":
        raise VitrailError("torch does not compute in int8: choose the engine openvino for it, or fp32, bf16 or auto")
    return computes_bf16(torch.device(device).type) if name == "auto" else name == "bfloat16"


def autocast(device: str | torch.device, precision: str = "auto") -> torch.autocast:
    """Mixed precision: bfloat16 autocast, or a context that changes nothing. "auto" is bfloat16 where it is faster."""
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=is_mixed(device, precision))


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """A part of a forward pass in mixed precision that is computed as it is written."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def in_float32(module: nn.Module, x: Tensor) -> Tensor:
    """module(x) outside of autocast, in its weights' own type: for the layers that give an answer.

    bfloat16 has 8 significant bits: a year would come out as 2000 or 2008, a box to a 256th of the picture. Heads that
    read one vector run so as a whole. Of dense heads only the last layers do: measured on an AMD EPYC with AVX512-BF16
    (1 core, 96 px, trained for 2 minutes on shapes), the error of a mask decoder's outputs fell from 2.8e-3 to 2.0e-3
    and that of a box decoder's scores from 3.0e-3 to 0.9e-3 for no time; the whole head in float32 would leave 1.2e-3
    and 0.6e-3 for 13 to 33 % more time of the whole model, and no metric would differ in the third digit.
    """
    with without_autocast(x.device):
        return module(x.to(next(module.parameters()).dtype))
