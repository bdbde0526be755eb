"""What a file of a traced network is to whoever runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

IMAGES, OUTPUTS = "images", "outputs"  # the names of a graph's input and of its first output
POOLED = "pooled"  # of the second, where it was asked for
METADATA = "vitrail"  # the entry of a file's metadata that holds what the model is, as JSON
Run: TypeAlias = Callable[[np.ndarray], dict[str, np.ndarray]]  # images (B, ...) -> outputs (B, ...) by name
Floats: TypeAlias = NDArray[np.float32]
Forward: TypeAlias = Callable[[Floats], Floats]  # normalised (B, C, h, w) -> outputs (B, ...)
# Normalised (B, C, h, w), B of any number -> outputs (B, ...), and what the head reads, (B, D), if traced for it.
GraphRun: TypeAlias = Callable[[Floats], list[Floats]]
