"""A worker's process, from outside."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from vitrail.errors import VitrailError

# -P: a folder called torch where the user stands is not torch
COMMAND = (sys.executable, "-P", "-m", "vitrail.inference.bench.bench_worker")
PATIENCE = 5.0  # seconds until a process that was told to end is ended


class WorkerProcess:
    """Started at once with its settings; `ask` waits for a reply. Ctrl-C reaches the parent alone, which ends its
    workers itself."""

    def __init__(self, *, command: Sequence[str] = COMMAND, **settings: Any) -> None:
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  until `close`
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            start_new_session=True,
        )
        try:
            self._exchange(settings)
        except BaseException:
            self.close()
            raise

    def ask(self, do: str, **settings: Any) -> dict[str, Any]:
        """What a method of `Worker` gives; VitrailError with the last words of a process that died."""
        return self._exchange({"do": do, **settings})

    def _exchange(self, value: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise VitrailError(self._last_words())
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise VitrailError(reply["error"].partition("\n")[0])
        return reply

    def _last_words(self) -> str:
        code = self._process.wait()
        self._stderr.seek(0)
        said = self._stderr.read().strip().splitlines()
        return said[-1] if said else f"its process ended with code {code}"

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # it was gone before it read all
                    stream.close()
