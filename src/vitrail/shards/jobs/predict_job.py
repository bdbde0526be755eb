"""`predict` on shards: a row an image, as `predict --json -` prints it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vitrail.images.stored_image import StoredImage
from vitrail.inference.running_options import AnsweringOptions
from vitrail.shards.shard_job import RowsWorker, ShardJob
from vitrail.threads import usable_cores

if TYPE_CHECKING:
    from vitrail.inference.engine import Engine

MOST_PROCESSES = 8  # where nobody says how many


@dataclass(frozen=True)
class PredictJob(ShardJob):
    """A model, by its path or hub id, and how it is run."""

    command: ClassVar[str] = "predict"

    model: str
    options: AnsweringOptions
    top: int = 5
    unknown: bool = False  # the answer to what is unlike the training pictures is "unknown"
    threads: int = 1
    max_pixels: int | None = None

    def open(self) -> PredictWorker:
        return PredictWorker(self)


class PredictWorker(RowsWorker):
    """The model at work."""

    def __init__(self, job: PredictJob) -> None:
        from vitrail.inference.predictor import Predictor

        use_threads(job.threads)
        self._predictor = Predictor(job.model, **job.options)
        engine = self._predictor.engine
        self.usual_processes = usual_processes(engine)
        engine.task  # noqa: B018  a model without answers is refused before anything is read
        if job.unknown:
            engine.check_unknown()
        self.job = dataclasses.replace(job, options=chosen_options(job.options, engine))
        self.identity = {
            "top": job.top,
            "unknown": job.unknown,
            "max_pixels": job.max_pixels,
            "fast_decode": bool(job.options.get("fast_decode")),
            **engine_identity(engine),
        }

    def rows(self, images: Sequence[StoredImage]) -> Iterator[Mapping[str, Any]]:
        from vitrail.images.decode_limits import limit_decoding
        from vitrail.inference.output.writers import row_of

        job = self.job
        assert isinstance(job, PredictJob)
        answers = self._predictor.predict(images, job.top, unknown=job.unknown)
        with limit_decoding(job.max_pixels), contextlib.closing(answers):
            yield from map(row_of, answers)


def use_threads(threads: int) -> None:
    """Of the network, in this process, before it is opened: sums of more threads differ in their last bits, so outputs
    are equal only where this is. Every backend takes torch's number."""
    import torch

    torch.set_num_threads(threads)


def usual_processes(engine: Engine) -> int:
    """One a core, as each has one thread. Not too many, for each has a model."""
    return 1 if engine.backend.device.type != "cpu" else min(MOST_PROCESSES, usable_cores())


def chosen_options(options: AnsweringOptions, engine: Engine) -> AnsweringOptions:
    """The options with what was chosen when the model was opened: other workers do not choose for themselves."""
    return {
        **options,
        "engine": engine.backend.name,
        "precision": engine.backend.precision,
        "merge_tokens": engine.network.model.merge_tokens,
        "batch_size": engine.batch_size,
    }


def engine_identity(engine: Engine) -> dict[str, Any]:
    """All that a model's answers depend on: weights, preprocessing, words, backend, precision, batch, versions."""
    import torch

    from vitrail.inference.backends.graph_cache import fingerprint, versions
    from vitrail.weights.familiarity.kept_vectors import kept_text

    checkpoint, backend = engine.checkpoint, engine.backend
    training = checkpoint.provenance.get("training")
    known = versions()
    familiarity = None if engine.familiarity is None else hashlib.sha256(kept_text(engine.familiarity).encode())
    return {
        "network": fingerprint(engine.network),
        "preprocessing": checkpoint.preprocessing.to_dict(),
        "task": checkpoint.task,
        "labels": checkpoint.labels,
        "task_state": training.get("task") if isinstance(training, dict) else None,
        "familiarity": None if familiarity is None else familiarity.hexdigest(),
        "engine": backend.name,
        "precision": backend.precision,
        "device": backend.device.type,
        "batch_size": engine.batch_size,
        "threads": torch.get_num_threads(),
        "versions": {name: known[name] for name in ("vitrail", "torch", backend.name) if name in known},
    }
