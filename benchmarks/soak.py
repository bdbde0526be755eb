"""Hostile clients among honest ones, for an hour: is an answer lost, mixed up or late, and does memory grow?

    python benchmarks/soak.py                            S/16, an hour
    python benchmarks/soak.py --minutes 3 --model mu/16  to see that it works
    python benchmarks/soak.py --minutes 3 --out FILE     write the page elsewhere

Honest clients ask one request after the other, so that the server always has as much to do as it can. After a time to
warm up they are alone (the quiet server), then hostile clients come, 5 % of all requests of each kind in
hostile_clients.py (fewer of two that cost seconds or 30 MB each), then they are alone again. Every honest image has an
answer that is known beforehand, from `vitrail.Predictor` in another process, and that no other image has. At the end
SIGTERM comes while hostile clients are still there.

What must hold: no honest request is lost or answered with another's answer; 99 % of honest answers come within twice
the time of the quiet server; the server's memory in the last ten minutes is within 2 % of the first ten; it ends within
30 s, with 0. The clients run on the server's cores, and cost it something. The page is benchmarks/results/soak.md.
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import itertools
import json
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.hostile_clients import KINDS, Address
from benchmarks.serve import CLASSES, Server, body_of, make_images, percentile, run_engine, save_model
from training.results import table_row
from vitrail.threads import usable_cores

RESULTS = Path(__file__).parent / "results" / "soak.md"
CLOSE = 0.05  # of a probability, between two runs of one image in different batches and bfloat16
GROWTH, END = 0.02, 30.0  # what must hold: of memory, and seconds after SIGTERM


# ---- honest clients


@dataclass
class Honest:
    """What honest clients saw in one phase."""

    seconds: list[float] = field(default_factory=list)  # of those that were answered
    lost: Counter[str] = field(default_factory=Counter)  # by status or error
    wrong: int = 0
    whole: float = 0.0
    started: int = 0


class Answers:
    """The expected answer of each image; an answer belongs to the image whose expected one is nearest."""

    def __init__(self, expected: Sequence[dict[str, Any]]) -> None:
        self.labels = sorted(one["label"] for one in expected[0]["top"])
        self.table = np.array([self._vector(one) for one in expected])  # (images, classes)

    def _vector(self, answer: dict[str, Any]) -> list[float]:
        by_label = {one["label"]: one["probability"] for one in answer["top"]}
        return [by_label[label] for label in self.labels]

    def belongs_to(self, answer: dict[str, Any], place: int) -> bool:
        far: NDArray[np.float64] = np.abs(self.table - self._vector(answer)).max(axis=1)
        return int(far.argmin()) == place and bool(far[place] < CLOSE)

    def apart(self) -> float:
        """The smallest difference between the answers of two images."""
        rows = itertools.combinations(self.table, 2)
        return float(min(np.abs(one - other).max() for one, other in rows))


def honest_client(port: int, number: int, bodies: list[bytes], answers: Answers, seen: Honest, end: float) -> None:
    """One request after the other on one connection, until the end."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    for turn in itertools.count():
        if time.monotonic() > end:
            break
        place = (number * 7 + turn) % len(bodies)
        began = time.perf_counter()
        seen.started += 1
        try:
            kind = {"Content-Type": "multipart/form-data; boundary=edge"}
            connection.request("POST", f"/v1/predict?top={CLASSES}", bodies[place], kind)
            response = connection.getresponse()
            content = response.read()
        except OSError as error:
            seen.lost[type(error).__name__] += 1
            connection.close()
            continue
        if response.status != 200:
            seen.lost[str(response.status)] += 1
            continue
        seen.seconds.append(time.perf_counter() - began)
        seen.wrong += not answers.belongs_to(json.loads(content)["results"][0], place)
    connection.close()


def honest_phase(port: int, clients: int, bodies: list[bytes], answers: Answers, seen: Honest, seconds: float) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        for number in range(clients):
            pool.submit(honest_client, port, number, bodies, answers, seen, began + seconds)
    seen.whole += time.monotonic() - began


# ---- hostile clients


class Hostile:
    """Starts clients of every kind so that each is its share of all requests."""

    def __init__(self, port: int, images: list[bytes], seen: Honest) -> None:
        self.address, self.images, self.seen = Address(port), images, seen
        self.started: Counter[str] = Counter()
        self.active: Counter[str] = Counter()
        self.ended: Counter[tuple[str, str]] = Counter()
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._pool = ThreadPoolExecutor(sum(kind.at_once for kind in KINDS.values()))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No new ones; those that are there stay until they are done."""
        self._stop.set()
        self._thread.join()

    def wait(self) -> None:
        self._pool.shutdown()

    def unexpected(self) -> dict[str, int]:
        return {f"{kind}: {end}": n for (kind, end), n in self.ended.items() if end not in KINDS[kind].allowed}

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            every = self.seen.started + self.started.total()
            for name, kind in KINDS.items():
                if self.started[name] < kind.share * every and self.active[name] < kind.at_once:
                    self.started[name] += 1
                    with self._lock:
                        self.active[name] += 1
                    self._pool.submit(self._act, name)

    def _act(self, name: str) -> None:
        try:
            end = KINDS[name].act(self.address, self.images)
        except OSError as error:
            end = "closed" if isinstance(error, ConnectionError) else type(error).__name__
        except Exception as error:
            end = repr(error)
        with self._lock:
            self.active[name] -= 1
            self.ended[name, end] += 1


# ---- memory


class Memory:
    """Samples of what the server holds, and what it holds together with its decoding processes, every second."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.own: list[float] = []  # MB
        self.tree: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            with_children = [resident(process) for process in (self.process, *children(self.process))]
            self.own.append(with_children[0])
            self.tree.append(sum(with_children))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def growth(self) -> tuple[float, float, float]:
        """Mean of the first ten minutes (or a sixth of the samples), of the last, and the relative difference."""
        part = max(1, min(600, len(self.own) // 6))
        first, last = statistics.mean(self.own[:part]), statistics.mean(self.own[-part:])
        return first, last, last / first - 1


def resident(process: int) -> float:
    """MB; 0 where the process is gone."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * 4096 / 1e6


def children(process: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:  # a thread that ended
            continue
    return found


# ---- all of it


@dataclass
class Soak:
    quiet: Honest
    soaked: Honest
    hostile: Hostile
    memory: Memory
    apart: float
    stop_seconds: float = 0.0
    exit_code: int = -1
    said: str = ""

    @property
    def verdicts(self) -> list[tuple[str, bool]]:
        quiet, soaked = percentile(self.quiet.seconds, 0.99), percentile(self.soaked.seconds, 0.99)
        first, last, growth = self.memory.growth()
        lost, wrong, unexpected = self.soaked.lost, self.soaked.wrong, self.hostile.unexpected()
        return [
            (f"{lost.total()} honest requests lost or refused {dict(lost) or ''}".rstrip(), not lost),
            (f"{wrong} answers of another image", not wrong),
            (
                f"99 % within {soaked:.2f} s, {soaked / quiet:.2f} times the quiet {quiet:.2f} s",
                soaked <= 2 * quiet,
            ),
            (f"memory {first:,.0f} MB at first, {last:,.0f} MB at last ({growth:+.1%})", abs(growth) <= GROWTH),
            (f"SIGTERM: over after {self.stop_seconds:.1f} s with {self.exit_code}", self._ended),
            (f"unexpected answers to hostile clients: {unexpected or 'none'}", not unexpected),
        ]

    @property
    def _ended(self) -> bool:
        return self.exit_code == 0 and self.stop_seconds <= END


def soak(folder: Path, options: argparse.Namespace) -> Soak:
    model = folder / "model.safetensors"
    save_model(model, options.model)
    images = make_images(folder, options.images)
    answers = Answers(run_engine(model, folder, 1)["answers"])
    bodies, server = [body_of(image) for image in images], Server(model, stderr=subprocess.PIPE)
    quiet, soaked = Honest(), Honest()
    quiet_seconds = min(300.0, 10 * options.minutes)  # of up to an hour: before, and again after
    warm_up(server.port, options.clients, bodies, answers, images, quiet_seconds)
    honest_phase(server.port, options.clients, bodies, answers, quiet, quiet_seconds)
    memory, hostile = Memory(server.process.pid), Hostile(server.port, images, soaked)
    honest_phase(server.port, options.clients, bodies, answers, soaked, 60 * options.minutes)
    memory.stop()
    hostile.stop()
    hostile.wait()
    honest_phase(server.port, options.clients, bodies, answers, quiet, quiet_seconds)
    result = Soak(quiet, soaked, hostile, memory, answers.apart())
    return stopped(server, result, images)


def warm_up(
    port: int, clients: int, bodies: list[bytes], answers: Answers, images: list[bytes], seconds: float
) -> None:
    """All clients for a while: what a server sets up once is no growth."""
    seen = Honest()
    hostile = Hostile(port, images, seen)
    honest_phase(port, clients, bodies, answers, seen, seconds)
    hostile.stop()
    hostile.wait()


def stopped(server: Server, result: Soak, images: list[bytes]) -> Soak:
    """SIGTERM while hostile clients of every kind are there."""
    last = Hostile(server.port, images, Honest(started=400))
    while last.started.total() < len(KINDS) * 8:
        time.sleep(0.05)
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    try:
        result.said = server.process.communicate(timeout=4 * END)[1]
        result.exit_code = server.process.returncode
    except subprocess.TimeoutExpired:
        server.process.kill()
    result.stop_seconds = time.monotonic() - began
    last.stop()
    last.wait()
    return result


def page(result: Soak, options: argparse.Namespace) -> list[str]:
    every = result.soaked.started + result.hostile.started.total()
    lines = [
        "# Hostile clients among honest ones",
        "",
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, {platform.machine()}, {options.cores} cores, torch "
        f"{torch.__version__}. `python benchmarks/soak.py --minutes {options.minutes:g} --model {options.model} "
        f"--clients {options.clients}`: {options.model} at 224 px, JPEGs of 400 x 300 pixels,",
        f"{options.clients} honest clients. Clients, server and model share the same cores. The answers of two images "
        f"differ by {result.apart:.3f} of a probability at least.",
        "",
        "| what must hold | |",
        "|---|---|",
        *(f"| {words} | {'holds' if holds else '**does not hold**'} |" for words, holds in result.verdicts),
        "",
        "| honest clients | requests | a second | median | 99 % below |",
        "|---|---|---|---|---|",
        honest_row("the quiet server, before and after", result.quiet),
        honest_row("among hostile clients", result.soaked),
        "",
        "| hostile clients | requests | of all | what came of them |",
        "|---|---|---|---|",
    ]
    for name in KINDS:
        ends = ", ".join(
            f"{end} {count:,}" for (kind, end), count in sorted(result.hostile.ended.items()) if kind == name
        )
        count = result.hostile.started[name]
        lines.append(f"| {name} | {count:,} | {count / every:.1%} | {ends} |")
    tree = result.memory.tree
    lines += [
        "",
        f"With its decoding processes the server held {statistics.mean(tree):,.0f} MB, {max(tree):,.0f} at most.",
    ]
    lines += [f"At its end it said: {' '.join(result.said.split()) or 'nothing'}."]
    return lines


def honest_row(name: str, seen: Honest) -> str:
    times = (f"{1000 * percentile(seen.seconds, share):,.0f} ms" for share in (0.5, 0.99))
    return table_row(name, f"{seen.started:,}", f"{len(seen.seconds) / seen.whole:.1f}", *times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="with hostile clients")
    parser.add_argument("--model", default="S/16", help="a preset")
    parser.add_argument("--clients", type=int, default=16, help="honest ones")
    parser.add_argument("--images", type=int, default=64, help="different ones")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.cores = usable_cores()
    with tempfile.TemporaryDirectory() as folder:
        result = soak(Path(folder), options)
    lines = page(result, options)
    print("\n".join(lines))
    options.out.write_text("\n".join(lines) + "\n")
    sys.exit(not all(holds for _, holds in result.verdicts))


if __name__ == "__main__":
    main()
