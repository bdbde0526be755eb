"""What the backends share that run a traced network: a graph a size, made once, kept on disk, NumPy in and out."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.graphs.graph_file import GraphRun
from vitrail.inference.backends.backend import POOLED, Pictures
from vitrail.inference.backends.graph_cache import GraphCache, fingerprint
from vitrail.inference.backends.int8_record import graph_name, int8_words
from vitrail.inference.calibration.calibration_file import LEAST
from vitrail.model.encoder import Capture
from vitrail.terminal import print_error
from vitrail.weights.checkpoint import Checkpoint

MOST_SIZES = 4  # that are kept ready at a time: each holds a copy of the weights


class GraphBackend(ABC):
    """A network that was traced for an image size and runs on a CPU. Another size is traced when it first comes."""

    name: ClassVar[str]
    graph_format: ClassVar[str]  # what is kept of it on disk: engines of several precisions share a file

    def __init__(self, checkpoint: Checkpoint, precision: str, pictures: Pictures | None = None) -> None:
        self.checkpoint, self.device = checkpoint, torch.device("cpu")
        self._precision, self.pictures = precision, pictures
        self.int8: dict[str, Any] = {}  # what int8 stands on, where it runs
        self.gives_pooled = checkpoint.familiarity is not None  # what familiarity is told by
        self.captures = frozenset({POOLED}) if self.gives_pooled else frozenset()
        self._lock = threading.Lock()  # a runtime's request runs one batch at a time
        self._runs: dict[tuple[int, int], GraphRun] = {}
        self.cache = GraphCache(fingerprint(checkpoint))
        self._warn_of_crashes()
        self._run_at(checkpoint.preprocessing.size)  # now, so that no answer waits for it

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, *, device: str = "auto", precision: str = "auto", pictures: Pictures | None = None
    ) -> Self:
        """The checkpoint's model as a graph; the checkpoint itself stays as it is."""
        if device not in ("auto", "cpu"):
            raise VitrailError(f"the engine {cls.name} runs on the CPU, not on {device}: leave out the device")
        return cls(checkpoint, cls.choose_precision(precision), pictures)

    def _warn_of_crashes(self) -> None:
        """Whoever names an engine has it, also one that `auto` would not try again."""
        from vitrail.inference.auto.crash_record import crashes_of  # it needs to know which backends there are

        how = crashes_of(self.cache.fingerprint).get(f"{self.name} in {self.precision}")
        if how is not None:
            print_error(f"{self.name} in {self.precision} with this model: {how}; if it does again, use another engine")

    @property
    def precision(self) -> str:
        """What it computes in."""
        return self._precision

    @classmethod
    @abstractmethod
    def choose_precision(cls, name: str) -> str:
        """The precision that a name stands for; VitrailError for one that it has not."""

    @property
    def float_hint(self) -> str:
        """What layers compute in that are not in int8, in OpenVINO's words."""
        return "f32"

    @abstractmethod
    def compile(self, parts: list[memoryview]) -> GraphRun:
        """The parts of a file, in memory that may be written, ready to run in `precision`."""

    def __call__(self, images: Tensor, capture: Capture | None = None) -> Tensor:
        run = self._run_at((images.shape[2], images.shape[3]))
        with self._lock:
            outputs, *pooled = run(images.detach().contiguous().numpy())
        if capture is not None:
            capture.pooled = torch.from_numpy(pooled[0])
        return torch.from_numpy(outputs)

    def _run_at(self, size: tuple[int, int]) -> GraphRun:
        with self._lock:
            if size not in self._runs:
                while len(self._runs) >= MOST_SIZES:
                    del self._runs[next(iter(self._runs))]
                self._runs[size] = self._prepare(size)
            return self._runs[size]

    def _prepare(self, size: tuple[int, int]) -> GraphRun:
        """From the graph that an earlier process left, if it is whole and this runtime takes it; else made anew."""
        is_int8 = self.precision == "int8" and size == self.checkpoint.preprocessing.size
        if self.precision == "int8" and not is_int8:
            print_error(f"int8 was calibrated for another size: {size[0]} x {size[1]} px run in {self.float_hint}")
        name = graph_name(self.graph_format, size, is_int8, self.gives_pooled)
        parts = self.cache.read(name)
        if parts is not None and not (is_int8 and self._is_outdated(json.loads(bytes(parts[-1])))):
            try:
                return self._compile(parts, is_int8)
            except Exception as error:  # whatever a runtime says to a file that it does not take
                reason = str(error).strip().partition("\n")[0]
                print_error(f"the kept graph {name} is not taken by {self.name} ({reason}): it is made again")
        print_error(f"the engine {self.name} is being prepared for {size[0]} x {size[1]} px; it is kept for next time")
        try:
            made = self.make_graph(size, is_int8)
            self.cache.write(name, made)
            return self._compile([memoryview(bytearray(part)) for part in made], is_int8)
        except (VitrailError, MemoryError):
            raise
        except Exception as error:  # ONNX Runtime's and protobuf's are of no common kind
            reason = str(error).strip().partition("\n")[0]
            raise VitrailError(f"{self.name} cannot run this model ({reason}): use the engine torch") from None

    def _is_outdated(self, record: dict[str, Any]) -> bool:
        """Whether int8 was searched for another task, for pixels that are prepared otherwise, for a processor that
        multiplies otherwise, on other pictures than those that somebody names, or on few and there are more."""
        if record.get("made_for") != self._made_for():
            return True
        if self.pictures is None:
            return False
        if self.pictures.folder is not None and self.pictures.folder != record.get("folder"):
            return True
        if record["images"] >= LEAST:
            return False
        pictures = self.pictures()
        return pictures is not None and len(pictures.images) > record["images"]

    def _made_for(self) -> dict[str, Any]:
        """What int8 depends on beside the network, whose graphs these are."""
        from vitrail.graphs.vnni import saturates_int8

        preprocessing = self.checkpoint.preprocessing.to_dict()
        made_for = {"task": self.checkpoint.task, "preprocessing": preprocessing, "seven_bits": saturates_int8()}
        return json.loads(json.dumps(made_for))  # as a record has it

    def make_graph(self, size: tuple[int, int], is_int8: bool = False) -> list[bytes]:
        """The traced network as the parts of a file; in int8 the last one says what it loses."""
        if not is_int8:
            from vitrail.graphs.graph_formats import graph_parts, traced_graph

            model = traced_graph(self.graph_format, self.checkpoint, size, self.gives_pooled)
            return graph_parts(self.graph_format, model)
        from vitrail.inference.calibration.int8_search import Int8Job, search_int8_apart

        pictures = None if self.pictures is None else self.pictures()
        if self.pictures is None or pictures is None:
            raise VitrailError(
                "int8 needs pictures to be calibrated on, and none lie beside the model: give a folder of pictures "
                "like those that it will see (--calibration)"
            )
        pictures.check_enough()  # before minutes are announced
        print_error(f"int8 is being searched on {pictures.source}, which takes minutes")
        parts, record = search_int8_apart(
            Int8Job(self.checkpoint, size, self.graph_format, pictures, self.float_hint, self.gives_pooled)
        )
        return [*parts, json.dumps(record | {"folder": self.pictures.folder, "made_for": self._made_for()}).encode()]

    def _compile(self, parts: list[memoryview], is_int8: bool) -> GraphRun:
        if not is_int8:
            return self.compile(parts)
        *graph, record = parts
        run = self.compile(graph)
        self.int8 = json.loads(bytes(record))
        print_error(int8_words(self.int8))
        return run
