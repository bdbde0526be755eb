"""What the backends share that run a traced network: a graph a size, made once, kept on disk, NumPy in and out."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.inference.backends.graph_cache import GraphCache, fingerprint
from vitrail.model.encoder import Capture
from vitrail.terminal import print_error
from vitrail.weights.checkpoint import Checkpoint

Floats: TypeAlias = NDArray[np.float32]
Run: TypeAlias = Callable[[Floats], Floats]  # normalised (B, C, h, w) -> outputs (B, ...), B of any number
MOST_SIZES = 4  # that are kept ready at a time: each holds a copy of the weights


class GraphBackend(ABC):
    """A network that was traced for an image size and runs on a CPU. Another size is traced when it first comes."""

    name: ClassVar[str]
    captures: ClassVar[frozenset[str]] = frozenset()
    graph_kind: ClassVar[str]  # what is kept of it on disk, which engines of several precisions share

    def __init__(self, checkpoint: Checkpoint, precision: str) -> None:
        self.checkpoint, self.device = checkpoint, torch.device("cpu")
        self._precision = precision
        self._lock = threading.Lock()  # a runtime's request runs one batch at a time
        self._runs: dict[tuple[int, int], Run] = {}
        self.cache = GraphCache(fingerprint(checkpoint))
        self._run_at(checkpoint.preprocessing.size)  # now, so that no answer waits for it

    @classmethod
    def load(cls, checkpoint: Checkpoint, *, device: str = "auto", precision: str = "auto") -> Self:
        """The checkpoint's model as a graph; the checkpoint itself stays as it is."""
        if device not in ("auto", "cpu"):
            raise VitrailError(f"the engine {cls.name} runs on the CPU, not on {device}: leave out the device")
        return cls(checkpoint, cls.choose_precision(precision))

    @property
    def precision(self) -> str:
        """What it computes in."""
        return self._precision

    @classmethod
    @abstractmethod
    def choose_precision(cls, name: str) -> str:
        """The precision that a name stands for; VitrailError for one that it has not."""

    @abstractmethod
    def make_graph(self, size: tuple[int, int]) -> list[bytes]:
        """The traced network as the parts of a file."""

    @abstractmethod
    def compile(self, parts: list[memoryview]) -> Run:
        """The parts of a graph's file, in memory that may be written, ready to run in `precision`."""

    def __call__(self, images: Tensor, capture: Capture | None = None) -> Tensor:
        run = self._run_at((images.shape[2], images.shape[3]))
        with self._lock:
            return torch.from_numpy(run(images.detach().contiguous().numpy()))

    def _run_at(self, size: tuple[int, int]) -> Run:
        with self._lock:
            if size not in self._runs:
                while len(self._runs) >= MOST_SIZES:
                    del self._runs[next(iter(self._runs))]
                self._runs[size] = self._prepare(size)
            return self._runs[size]

    def _prepare(self, size: tuple[int, int]) -> Run:
        """From the graph that an earlier process left, if it is whole and this runtime takes it; else made anew."""
        name = f"{self.graph_kind}-{size[0]}x{size[1]}"
        parts = self.cache.read(name)
        if parts is not None:
            try:
                return self.compile(parts)
            except VitrailError:
                raise
            except Exception as error:  # whatever a runtime says to a file that it does not take
                reason = str(error).strip().partition("\n")[0]
                print_error(f"the kept graph {name} is not taken by {self.name} ({reason}): it is made again")
        print_error(f"the engine {self.name} is being prepared for {size[0]} x {size[1]} px; it is kept for next time")
        made = self.make_graph(size)
        self.cache.write(name, made)
        return self.compile([memoryview(bytearray(part)) for part in made])
