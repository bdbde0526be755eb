"""What `vitrail serve` makes of a model: many clients against the engine alone, and how soon a first map is there.

    python benchmarks/serve.py            S/16, 32 clients, three rounds: some minutes on 2 cores
    python benchmarks/serve.py --engine openvino --precision bf16
    python benchmarks/serve.py --quick    a few requests, to see that it runs

The engine alone is `vitrail.Predictor` on the same files in a process of its own: it decodes in threads and runs full
batches, without a network in between. It and the server take turns, each in a fresh process, so that both have the same
machine; what counts is the ratio of a round. The clients run on the same cores as the server, and cost it something.

Every image has an answer that is known beforehand and that no other image has, so an answer that went to the wrong
client would be counted. The section of the engine is written to benchmarks/results/serve.md. int8 is calibrated on the
images themselves: what counts here is how fast it is.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lively_model import CLASSES, save_model
from PIL import Image

import vitrail
from training.results import table_row, write_section
from vitrail.data.loading.transforms import normalise
from vitrail.inference.read_source import read_source

RESULTS = Path(__file__).parent / "results" / "serve.md"
HEADING = "# What the server makes of the model\n\nEach section says when, where and by which command.\n"
IMAGES = 128  # different ones
CLOSE = 3e-4  # of a probability: between two runs of one image in different batches; images differ by much more
CLOSE_IN_GRAPHS = 0.03  # a graph rounds otherwise where another batch size is compiled otherwise
LOOKS = 30


# ---- images with known answers


def make_images(folder: Path, count: int) -> list[bytes]:
    """Blots of colour, 400 x 300 pixels, as JPEG."""
    generator = np.random.default_rng(0)
    images = []
    for number in range(count):
        small = generator.integers(0, 256, (6, 8, 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(small).resize((400, 300), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
        images.append(buffer.getvalue())
        (folder / f"{number}.jpg").write_bytes(images[-1])
    return images


# ---- the engine alone, in a process of its own


def engine(model: Path, folder: Path, number: int, engine_options: dict[str, Any]) -> None:
    """Prints the rate of the predictor, the time of one forward pass by torch, and the answers."""
    checkpoint = vitrail.load(model)
    images = [(folder / f"{place}.jpg").read_bytes() for place in range(len(list(folder.glob("*.jpg"))))]
    predictor = vitrail.Predictor(model, **engine_options)
    answers = [one.answer for one in predictor.predict(images, CLASSES)]
    started = time.perf_counter()
    for _ in predictor.predict(images[place % len(images)] for place in range(number)):
        pass
    rate = number / (time.perf_counter() - started)
    pixels = read_source(images[0], checkpoint.preprocessing, "it")
    passes = []
    with torch.inference_mode():
        for _ in range(min(LOOKS, number)):
            begun = time.perf_counter()
            checkpoint.model(normalise(torch.from_numpy(pixels[None]), checkpoint.preprocessing))
            passes.append(time.perf_counter() - begun)
    print(json.dumps({"rate": rate, "forward": statistics.median(passes), "answers": answers}))


def run_engine(model: Path, folder: Path, number: int, options: Sequence[str] = ()) -> dict[str, Any]:
    command = [sys.executable, __file__, "--alone", str(model), str(folder), str(number), *options]
    result: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return result


def engine_words(arguments: argparse.Namespace, folder: Path) -> list[str]:
    """The options of the engine, for `vitrail serve` and for the engine alone."""
    return ["--engine", arguments.engine, "--precision", arguments.precision, "--calibration", str(folder)]


# ---- the server and its clients


@dataclass
class Tally:
    """What the clients of one round saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # of those that were answered
    wrong: int = 0
    lost: int = 0
    whole: float = 0.0


class Server:
    def __init__(
        self,
        model: Path,
        environment: dict[str, str] | None = None,
        stderr: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        command = [sys.executable, "-m", "vitrail", "serve", str(model), "--port", "0", *options]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rstrip().rstrip("/").rpartition(":")[2])

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0

    def memory(self) -> str:
        """The most that it ever held."""
        try:
            lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        except OSError:
            return "?"
        peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
        return f"{peak / 1000:,.0f} MB"


def body_of(image: bytes) -> bytes:
    head = b'--edge\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    return head + image + b"\r\n--edge--\r\n"


def request_of(image: bytes) -> bytes:
    body = body_of(image)
    head = f"POST /v1/predict?top={CLASSES} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    head += f"Content-Type: multipart/form-data; boundary=edge\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Connection:
    """One client's, kept open. Bytes and no more: what http.client does besides takes the cores from the server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.socket: socket.socket | None = None

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer; OSError where there is none."""
        if self.socket is None:
            self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=120)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(request)
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._more()
        head = data[:end].lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        while len(data) < end + 4 + length:
            data += self._more()
        if b"connection: close" in head:
            self.close()
        return int(head.split(b" ", 2)[1]), data[end + 4 :]

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
        self.socket = None

    def _more(self) -> bytes:
        assert self.socket is not None
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionResetError("the server hung up")
        return data


def load(
    port: int,
    images: list[bytes],
    answers: list[dict[str, Any]] | None,
    clients: int,
    each: int,
    close: float = CLOSE,
) -> Tally:
    """Every client asks `each` times, one request after the other on one connection. None: answers are not compared."""
    requests, tally, lock = [request_of(image) for image in images], Tally(), threading.Lock()
    given: list[tuple[int, bytes]] = []  # places and bodies, compared when all is over

    def client(number: int) -> None:
        connection = Connection(port)
        for turn in range(each):
            place = (number * each + turn) % len(images)
            started = time.perf_counter()
            try:
                status, body = connection.ask(requests[place])
            except OSError:
                with lock:
                    tally.lost += 1
                connection.close()
                continue
            with lock:
                tally.statuses[status] += 1
                if status == 200:
                    tally.seconds.append(time.perf_counter() - started)
                    given.append((place, body))
        connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tally.whole = time.perf_counter() - started
    if answers is not None:
        tally.wrong = sum(not same(json.loads(body)["results"][0], answers[place], close) for place, body in given)
    return tally


def same(answer: dict[str, Any], expected: dict[str, Any], close: float) -> bool:
    ours, theirs = ({one["label"]: one["probability"] for one in each["top"]} for each in (answer, expected))
    return ours.keys() == theirs.keys() and all(abs(ours[label] - theirs[label]) < close for label in ours)


def looks(port: int, images: list[bytes], number: int) -> list[float]:
    """Seconds from sending a picture to holding the answer and every map of the last block, on an idle server."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    seconds = []
    for place in range(number):
        started = time.perf_counter()
        kind = {"Content-Type": "multipart/form-data; boundary=edge"}
        connection.request("POST", "/v1/look", body_of(images[place % len(images)]), kind)
        response = connection.getresponse()
        assert response.status == 200 and response.read()
        seconds.append(time.perf_counter() - started)
    return seconds


# ---- all of it


def percentile(values: list[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few requests; nothing is written")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--each", type=int, default=40, help="requests a client")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", default="torch", help="as of vitrail serve")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--calibration", help=argparse.SUPPRESS)
    parser.add_argument("--alone", nargs=3, metavar=("MODEL", "FOLDER", "NUMBER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        names = ("engine", "precision", "calibration")
        options = {name: getattr(arguments, name) for name in names if getattr(arguments, name)}
        engine(Path(arguments.alone[0]), Path(arguments.alone[1]), int(arguments.alone[2]), options)
        return
    if arguments.quick:
        arguments.clients, arguments.each, arguments.rounds = 4, 3, 1
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["VITRAIL_CACHE"] = str(Path(temporary, "cache"))
        lines = measured(Path(temporary), arguments)
    if arguments.quick:
        print("\n".join(lines))
    else:
        write_section(RESULTS, f"{arguments.engine}, {arguments.precision}", lines, ("torch", "openvino"), HEADING)


def measured(folder: Path, arguments: argparse.Namespace) -> list[str]:
    model, number, photos = folder / "model.safetensors", arguments.clients * arguments.each, folder / "photos"
    save_model(model)
    photos.mkdir()
    images = make_images(photos, 8 if arguments.quick else IMAGES)
    options = engine_words(arguments, photos)
    close = CLOSE if arguments.engine == "torch" else CLOSE_IN_GRAPHS
    alone, rounds, seconds, memory = [], [], [], "?"
    for _ in range(arguments.rounds):
        alone.append(run_engine(model, photos, number, options))
        kept = apart(alone[0]["answers"], close)
        answers, asked = [alone[0]["answers"][place] for place in kept], [images[place] for place in kept]
        server = Server(model, options=options)
        seconds += looks(server.port, images, 5 if arguments.quick else LOOKS)
        rounds.append(load(server.port, asked, answers, arguments.clients, arguments.each, close))
        memory = server.memory()
        server.stop()
        print(f"alone {alone[-1]['rate']:.1f}, served {rounds[-1].statuses[200] / rounds[-1].whole:.1f}", flush=True)
    server = Server(model, options=options)
    crowd = load(server.port, asked, answers, 8 * arguments.clients, max(1, arguments.each // 8), close)
    server.stop()
    return table(arguments, alone, rounds, crowd, seconds, memory)


def apart(answers: list[dict[str, Any]], close: float) -> list[int]:
    """The places of answers that none before them is close to: only those tell whose they are."""
    places: list[int] = []
    for place, answer in enumerate(answers):
        if not any(same(answer, answers[other], close) for other in places):
            places.append(place)
    assert len(places) >= len(answers) / 2, f"only {len(places)} of {len(answers)} images have answers of their own"
    return places


def table(
    arguments: argparse.Namespace,
    alone: list[dict[str, Any]],
    rounds: list[Tally],
    crowd: Tally,
    seconds: list[float],
    memory: str,
) -> list[str]:
    ratios = [tally.statuses[200] / tally.whole / one["rate"] for tally, one in zip(rounds, alone, strict=True)]
    middle = sorted(range(len(ratios)), key=lambda place: ratios[place])[len(ratios) // 2]
    forward, everyone = min(one["forward"] for one in alone), [*rounds, crowd]
    first, late = statistics.median(seconds), percentile(seconds, 0.95)
    return [
        f"S/16 at 224 px, JPEGs of 400 x 300 pixels, {torch.get_num_threads()} threads. Clients, server and model "
        "share the same cores.",
        "",
        "| | requests | images a second | median | 99 % below | refused (503) | lost or failed | wrong |",
        "|---|---|---|---|---|---|---|---|",
        f"| the engine alone, no network | {arguments.clients * arguments.each:,} | {alone[middle]['rate']:.1f} "
        "| | | | | |",
        row(f"{arguments.clients} clients", rounds[middle]),
        row(f"{8 * arguments.clients} clients, more than there are places", crowd),
        "",
        f"Served: **{statistics.median(ratios):.2f}** of the engine alone, the median of {len(rounds)} rounds in which "
        f"they took turns ({', '.join(f'{ratio:.2f}' for ratio in ratios)}).",
        f"In all rounds {sum(tally.wrong for tally in everyone)} answers belonged to another image, and "
        f"{sum(tally.lost for tally in everyone)} requests had none. The server's peak memory was {memory}.",
        "",
        f"First map: {1000 * first:.0f} ms in the median, {1000 * late:.0f} ms for 95 % of {len(seconds)} pictures, "
        "from sending one to holding its answer and",
        f"all maps of the last block. A forward pass of one picture by torch in float32 takes {1000 * forward:.0f} ms; "
        f"twice that and 100 ms are {1000 * (2 * forward + 0.1):.0f} ms.",
    ]


def row(name: str, tally: Tally) -> str:
    answered, refused, all_answers = tally.statuses[200], tally.statuses[503], sum(tally.statuses.values())
    failed = tally.lost + all_answers - answered - refused
    times = (f"{1000 * percentile(tally.seconds, share):,.0f} ms" for share in (0.5, 0.99))
    counts = (f"{count:,}" for count in (refused, failed, tally.wrong))
    return table_row(name, f"{all_answers + tally.lost:,}", f"{answered / tally.whole:.1f}", *times, *counts)


if __name__ == "__main__":
    main()
