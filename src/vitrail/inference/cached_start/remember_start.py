"""After a start with torch: leave what the next one needs to do without."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vitrail.inference.backends.graph_backend import GraphBackend
from vitrail.inference.backends.int8_record import graph_name, int8_graphs
from vitrail.inference.cached_start.start_record import (
    StartRecord,
    count_at_hand,
    file_identity,
    start_key,
    write_start,
)
from vitrail.inference.engine import Engine
from vitrail.tasks.registry import EMBED, task_answers


def remember_start(engine: Engine, options: Mapping[str, Any], before: list[Any] | None) -> None:
    """Write the record, where the model runs as a graph and its answers need no torch.

    before: `file_identity` of the model before it was loaded: if it is another one now, nobody knows which was loaded.
    """
    backend, path = engine.backend, engine.path
    if not isinstance(backend, GraphBackend) or path is None or before is None or file_identity(path) != before:
        return
    task, is_int8 = engine.checkpoint.task, backend.precision == "int8"
    if task == EMBED or task_answers(task, engine.task.labels) is None:
        return
    if engine.choice is None and not is_int8:  # it was never compared, and will be as soon as there are pictures
        return
    size = engine.checkpoint.preprocessing.size
    record = StartRecord(
        file=before,
        network=backend.cache.fingerprint,
        graph=graph_name(backend.graph_format, size, is_int8, backend.gives_pooled),
        engine=backend.name,
        precision=backend.precision,
        hint=backend.float_hint,
        threads=torch.get_num_threads(),
        batch_size=engine.batch_size,
        compared=backend.int8["images"] if engine.choice is None else engine.choice.compared,
        at_hand=count_at_hand(options),
        int8=int8_graphs(backend.cache.fingerprint),
        remarks=engine.remarks,
    )
    write_start(start_key(Path(path), options), record)
