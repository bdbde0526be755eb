"""An engine from the cache: labels and preprocessing from the model's file, the network as the graph that is kept.

It reads, runs and answers as `Engine` does, with NumPy alone, so a start does not wait for torch. It is there only
where an earlier start of the same model left its record, and where a task answers without torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.errors import VitrailError
from vitrail.graphs.graph_file import Floats, GraphRun
from vitrail.inference.backends.backend import AUTO
from vitrail.inference.backends.graph_cache import GraphCache
from vitrail.inference.backends.int8_record import int8_graphs, int8_words
from vitrail.inference.cached_start.start_record import (
    StartRecord,
    count_at_hand,
    file_identity,
    named_folder,
    read_start,
    start_key,
)
from vitrail.inference.calibration.calibration_file import LEAST, calibration_beside
from vitrail.inference.image_processor import ImageProcessor, ModelInput
from vitrail.inference.output.familiar_answers import check_unknown, with_familiarity
from vitrail.inference.read_source import Source
from vitrail.inference.running_options import AnsweringOptions
from vitrail.tasks.registry import EMBED, labels_or_numbers, task_answers
from vitrail.tasks.task_answers import TaskAnswers
from vitrail.terminal import print_error
from vitrail.weights.familiarity.kept_vectors import ENTRY, KeptVectors, read_kept
from vitrail.weights.model_description import KEY, file_metadata, read_description
from vitrail.weights.preprocessing import Preprocessing


class RunningGraph(NamedTuple):
    """What people are told of a backend."""

    name: str
    precision: str


class CachedEngine:
    """A graph at work: what `Predictor.predict` needs of an `Engine`."""

    def __init__(self, record: StartRecord, run: GraphRun, processor: ImageProcessor, file: DescribedFile) -> None:
        self.backend = RunningGraph(record.engine, record.precision)
        self.batch_size = record.batch_size
        self.processor, self.task, self.familiarity = processor, file.task, file.familiarity
        self._run = run

    def read(self, source: Source, name: str = "the image") -> ModelInput:
        """As `Engine.read`."""
        return self.processor.read(source, name)

    def outputs(
        self, batch: Sequence[ModelInput], decode: bool = True, pooled: list[Floats] | None = None
    ) -> list[Floats]:
        """The outputs (K,) of each image; nothing is left to decode. pooled: as `Engine.run` has it."""
        outputs, *vectors = self._run(self.processor.transform_array([image.pixels for image in batch]))
        if pooled is not None and vectors:
            pooled += list(vectors[0])
        return list(outputs)

    def answer(
        self, decoded: Sequence[Floats], top: int = 5, pooled: Sequence[Floats] = (), unknown: bool = False
    ) -> list[dict[str, Any]]:
        """As `Engine.answer`."""
        if not decoded:
            return []
        answers = self.task.answer(np.stack(decoded), top)
        if self.familiarity is None or not pooled:
            return answers
        return with_familiarity(self.task, answers, self.familiarity.scores(np.stack(pooled)).tolist(), unknown)

    def check_unknown(self) -> None:
        """As `Engine.check_unknown`."""
        check_unknown(self.familiarity)


class DescribedFile(NamedTuple):
    """What a model file says without its tensors."""

    task: TaskAnswers
    preprocessing: Preprocessing
    familiarity: KeptVectors | None


def describe(path: Path) -> DescribedFile | None:
    """None where its task needs torch, or where something is wrong with it: the long way has a sentence for that."""
    metadata = file_metadata(path)
    try:
        description = read_description(metadata[KEY])
        if description["task"] == EMBED:
            return None
        labels = labels_or_numbers(description["task"], description["labels"], description["config"]["classes"])
        task = task_answers(description["task"], labels)
        preprocessing = Preprocessing.from_dict(description["preprocessing"])
        familiarity = read_kept(metadata[ENTRY]) if ENTRY in metadata else None
    except (VitrailError, KeyError, TypeError):
        return None
    return None if task is None else DescribedFile(task, preprocessing, familiarity)


def open_cached(model: str | Path, options: AnsweringOptions) -> CachedEngine | None:
    """The engine that an earlier start with these options left; None: there is none that would do the same.

    options: `calibration` may list the pictures at hand, of which there may be more than a choice stands on.
    """
    path = Path(model)
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    record = read_start(start_key(path, options))
    if record is None or record.file != file_identity(path) or _compares_again(record, path, options):
        return None
    if options["engine"] == AUTO and record.int8 != int8_graphs(record.network):
        return None  # one more engine to choose among
    file = describe(path)
    run = None if file is None else _load(record, named_folder(options))
    if file is None or run is None:
        return None
    for remark in record.remarks:
        print_error(remark)
    return CachedEngine(record, run, ImageProcessor(file.preprocessing, fast_decode=options["fast_decode"]), file)


def _compares_again(record: StartRecord, path: Path, options: AnsweringOptions) -> bool:
    """Whether the long way would compare the engine with torch on more pictures than before."""
    if record.compared >= LEAST:
        return False
    if named_folder(options) is not None or calibration_beside(path) is not None:
        return True
    return count_at_hand(options) > record.at_hand


def _load(record: StartRecord, folder: str | None) -> GraphRun | None:
    """The graph, ready to run; None where it is gone or damaged, or where its runtime does not take it, or where int8
    was searched again meanwhile on another folder of pictures than the one that is named."""
    parts = GraphCache(record.network).read(record.graph)
    if parts is None:
        return None
    is_int8 = record.precision == "int8"
    graph = parts[:-1] if is_int8 else parts
    int8 = json.loads(bytes(parts[-1])) if is_int8 else {}
    if is_int8 and folder is not None and folder != int8.get("folder"):
        return None
    try:
        if record.engine == "openvino":
            from vitrail.inference.backends.openvino_run import compile_openvino

            run = compile_openvino(graph, record.hint, record.threads)
        else:
            from vitrail.inference.backends.onnxruntime_run import compile_onnx

            run = compile_onnx(graph, record.threads)
        if is_int8:
            print_error(int8_words(int8))
    except Exception:  # whatever a runtime says to a file that it does not take: the long way makes it again
        return None
    return run
