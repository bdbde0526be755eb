"""What every stage of a run needs to know about it: its folder, its processes, where it reports to."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.training.checkpointing import Checkpoints
from vitrail.training.distributed import Processes, end_processes, start_processes, torchrun_start
from vitrail.training.failure import in_a_sentence
from vitrail.training.run_folder import RunFolder
from vitrail.training.run_log import RunLog, standard
from vitrail.training.settings import Recipe, Settings


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What the caller of `train` asked for."""

    data: str
    out: Path
    settings: Settings
    resume: bool = False
    shard: bool = False
    command: str = ""  # the command line or the call, for the report
    verb: str = "train"  # the command of vitrail that makes and resumes such runs


def call_text(data: object, out: object, options: Mapping[str, object], verb: str = "train") -> str:
    """A call of `vitrail.train` as one would type it; None and False are not given."""
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    texts = [repr(str(data)), repr(str(out))]
    for name, value in given.items():
        if isinstance(value, Settings):
            texts.append(f"{name}=Settings().with_values({value.changed()!r})")
        else:
            texts.append(f"{name}={str(value)!r}" if isinstance(value, Path) else f"{name}={value!r}")
    return f"vitrail.{verb}({', '.join(texts)})"


@dataclass(frozen=True, kw_only=True)
class Run:
    request: RunRequest
    settings: Settings  # as requested, or those that a resumed run has kept
    folder: RunFolder
    processes: Processes
    progress: RunLog
    began: float  # time.monotonic()

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder.checkpoints)

    @property
    def resume_command(self) -> str:
        request, world = self.request, self.processes.world
        words = ["vitrail", request.verb, request.data, "--out", str(request.out), "--resume"]
        if world > 1:
            words = ["torchrun", "--nproc-per-node", str(world), "--no-python", *words]
        return shlex.join([*words, "--shard"] if request.shard else words)

    def explain(self, error: Exception, recipe: Recipe) -> Exception:
        """The error to raise instead: one sentence where it is one that users can do something about."""
        saved = max(self.checkpoints.steps(), default=0)
        return in_a_sentence(error, recipe, saved, self.resume_command, self.processes.world)


def check_verb(settings: Settings, request: RunRequest) -> None:
    """A run of one command is not resumed by another."""
    own = "pretrain" if settings.pretrain.method is not None else "train"
    if request.resume and own != request.verb:
        raise VitrailError(f"{request.out} holds a run of vitrail {own}: go on with vitrail {own} --resume")
    if not request.resume and own == "pretrain" and request.verb == "train":
        raise VitrailError("pretrain.method is a setting of vitrail pretrain: leave it out")


@contextmanager
def open_run(request: RunRequest) -> Iterator[Run]:
    """Start the processes, take the run's folder, and open its log. A run whose processes torchrun starts again goes
    on by itself, as with --resume."""
    began = time.monotonic()
    processes, folder = start_processes(), RunFolder(request.out)
    try:
        with ExitStack() as stack:
            start = torchrun_start()
            started_again = processes.from_main(lambda: folder.is_of(start))
            request = replace(request, resume=request.resume or started_again)
            processes.from_main(lambda: stack.enter_context(folder.held(request.resume, start)))
            settings = Settings.read(folder.settings) if request.resume else request.settings
            check_verb(settings, request)
            board = folder.tensorboard if settings.train.tensorboard else None
            progress = standard(folder.metrics, board, processes.is_main)
            stack.callback(progress.close)
            yield Run(
                request=request, settings=settings, folder=folder, processes=processes, progress=progress, began=began
            )
    finally:
        end_processes(processes)
