"""The real command in a process of its own, without waiting seconds for imports each time.

One process imports everything and computes nothing; each command runs in a fork of it. A fork has the memory of a
process that has just started: nothing of an earlier command, its own working folder, streams, signals and exit code.
Tests of what starting costs, of several processes and of shells start real ones.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import math
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # where `vitrail` and torchrun are
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PATH": PATH}
LATE = (  # what is imported only once something runs
    "faster_coco_eval",
    "jinja2.debug",
    "scipy.optimize",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.nn.attention",
)


class Running:
    """As much of subprocess.Popen as tests ask for. Standard error is with standard output, unless kept apart."""

    def __init__(self, request: dict[str, Any], apart: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")
        files = [Path(self._folder.name) / name for name in ("out", "err")]
        self._files = files if apart else files[:1]
        self.pid: int = _ask({"do": "start", "files": [str(file) for file in self._files], **request})["pid"]
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = _ask({"do": "poll", "pid": self.pid})["code"]
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired("vitrail", timeout, self._text(0))
            time.sleep(0.005)
        return code

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        self.wait(timeout)
        return self._text(0), self._text(1) if len(self._files) > 1 else ""

    def _text(self, stream: int) -> str:
        return self._files[stream].read_text(encoding="utf-8") if self._files[stream].exists() else ""


def begin_vitrail(arguments: Sequence[object], cwd: Path | None = None, apart: bool = False) -> Running:
    return Running({"arguments": [str(one) for one in arguments], "cwd": str(cwd or Path.cwd())}, apart)


def run_vitrail(
    arguments: Sequence[object], cwd: Path | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    return _completed(["vitrail", *map(str, arguments)], begin_vitrail(arguments, cwd, apart=True), timeout)


def run_together(
    arguments: Sequence[object], processes: int, cwd: Path | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """As torchrun starts them. What the first prints, and the first failure; then the others are ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    request = {"arguments": [str(one) for one in arguments], "cwd": str(cwd or Path.cwd())}
    running = [
        Running({**request, "environment": {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}}, apart=True)
        for rank in range(processes)
    ]
    deadline = time.monotonic() + timeout
    failure = 0  # of the process that failed by itself, not of those that are ended because of it
    while any(one.poll() is None for one in running):
        failure = failure or next((one.returncode for one in running if one.returncode), 0)
        if failure or time.monotonic() > deadline:
            for one in running:
                if one.poll() is None:
                    os.killpg(one.pid, signal.SIGKILL)
        time.sleep(0.01)
    failure = failure or next((one.returncode for one in running if one.returncode), 0)
    said = [one.communicate(timeout) for one in running]
    errors = "".join(err for _, err in said)
    return subprocess.CompletedProcess(["torchrun"], failure, said[0][0], errors)


def begin_torchrun(arguments: Sequence[object], processes: int, cwd: Path | None = None, restarts: int = 0) -> Running:
    """`torchrun --no-python vitrail ...`: torchrun's own code in a fork, and each process that it starts is one too.

    They are children of the process that is returned, in the order in which torchrun starts them.
    """
    options = ["--standalone", f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    words = [*options, "--no-python", "vitrail", *map(str, arguments)]
    return Running({"torchrun": words, "cwd": str(cwd or Path.cwd())}, apart=False)


def run_python(code: str, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """As `python -c code` does."""
    return _completed(["python", "-c", code], Running({"code": code, "cwd": str(cwd)}, apart=True), timeout)


def _completed(command: list[str], running: Running, timeout: float) -> subprocess.CompletedProcess[str]:
    out, err = running.communicate(timeout)
    return subprocess.CompletedProcess(command, running.wait(timeout), out, err)


# ---- the process that waits


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    process = _parent()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


@functools.cache
def _parent() -> subprocess.Popen[str]:
    command = [sys.executable, __file__]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, env=ENVIRONMENT, text=True, start_new_session=True, **streams)
    atexit.register(process.kill)
    return process


def _import_everything() -> None:
    from PIL import Image

    import vitrail
    from vitrail.report.pages.rendering import environment

    Image.init()
    names = [module.name for module in pkgutil.walk_packages(vitrail.__path__, "vitrail.")]
    for name in (*LATE, *names):
        if not name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # an extra that is not installed
                importlib.import_module(name)
    for template in environment().list_templates(extensions=["html"]):
        environment().get_template(template)


def _serve() -> dict[str, Any]:
    """Answer requests. Returns in a fork only, with what it is to run."""
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if request["do"] == "poll":
            answer = _ended(request["pid"])
        else:
            pid = os.fork()
            if not pid:
                return request
            while os.getpgid(pid) != pid:  # until it can be killed with all that it starts
                time.sleep(0.0005)
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)
    sys.exit()


def _ended(child: int) -> dict[str, Any]:
    pid, status = os.waitpid(child, os.WNOHANG)
    return {"code": os.waitstatus_to_exitcode(status) if pid else None}


def _become(request: dict[str, Any]) -> None:
    """A process that has just been started: a session, streams and a folder of its own."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a suite that a shell runs in the background
    os.chdir(request["cwd"])
    os.environ.update(request.get("environment", {}))
    streams = [os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for file in request["files"]]
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, stream in enumerate((nothing, streams[0], streams[-1])):
        os.dup2(stream, number)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)


def _run(request: dict[str, Any]) -> None:
    if "torchrun" in request:
        _torchrun(request["torchrun"])
    elif "code" in request:
        sys.argv, sys.path = ["-c"], ["", *sys.path]
        exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})
    else:
        from vitrail.cli import main

        sys.argv = ["vitrail", *request["arguments"]]
        sys.exit(main())


def _torchrun(words: list[str]) -> None:
    """torchrun has threads, of which no fork is safe. So it runs in a child, and asks this process for others."""
    ours, theirs = socket.socketpair()
    agent = os.fork()
    if not agent:
        ours.close()
        _end(lambda: _torchrun_with(_Forks(theirs), words))
    theirs.close()
    with ours, ours.makefile("rw", encoding="utf-8") as asked:
        for line in asked:
            request: dict[str, Any] = json.loads(line)
            if "pid" in request:
                answer = _ended(request["pid"])
            else:
                pid = os.fork()
                if not pid:
                    os.setsid()
                    os.environ.clear()
                    os.environ.update(request["environment"])
                    _end(lambda request=request: _run(request))  # type: ignore[misc]
                while os.getpgid(pid) != pid:
                    time.sleep(0.0005)
                answer = {"pid": pid}
            asked.write(json.dumps(answer) + "\n")
            asked.flush()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(agent, 0)[1]))


def _torchrun_with(forks: _Forks, words: list[str]) -> None:
    from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler
    from torch.distributed.run import main

    SubprocessHandler._popen = lambda handler, args, env: forks.start(args, env)  # type: ignore[method-assign]
    main(words)


class _Forks:
    """subprocess.Popen as torchrun uses it, but the processes are forks of the one at the other end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._asked = connection.makefile("rw", encoding="utf-8")
        self._asking = threading.Lock()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._asking:
            self._asked.write(json.dumps(request) + "\n")
            self._asked.flush()
            answer: dict[str, Any] = json.loads(self._asked.readline())
            return answer

    def start(self, words: Sequence[str], environment: dict[str, str]) -> Any:
        assert words[0] == "vitrail"
        return _Fork(self, self.ask({"arguments": words[1:], "environment": environment})["pid"])


class _Fork:
    def __init__(self, forks: _Forks, pid: int) -> None:
        self._forks, self.pid = forks, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._forks.ask({"pid": self.pid})["code"]
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("vitrail", timeout or 0)
            time.sleep(0.005)
        return code


def _end(run: Callable[[], None]) -> NoReturn:
    """Run to the end as Python does, but leave the memory to the system: taking it apart costs seconds in a fork."""
    code: object = 0
    try:
        run()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    del sys.path[0]  # the folder of the tests
    gc.disable()
    _import_everything()
    gc.freeze()  # else each fork looks through it, and copies all memory that it looks at
    gc.enable()
    request = _serve()
    _become(request)
    _end(lambda: _run(request))
