"""A full disk, on one machine of two or the one that they share: a sentence, and the same command goes on."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.machines import network
from benchmarks.scaling.cluster import VITRAIL, Cluster, make_work, merged, on_ray
from benchmarks.scaling.report import Report, keep, wait_until, working_folder
from benchmarks.scaling.torchrun import same_weights
from tests.training.running import TINY, write_pictures
from vitrail.training.checkpointing import Checkpoints

LIMIT = 600.0
SOON = 60.0  # seconds within which a command says that the shared disk is full
SMALL = "16k"  # less than one output
MOUNT = 'mount -t tmpfs -o "size=$0" none "$1" && shift && exec "$@"'


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """A file system of so many bytes."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def one_machine(folder: Path, command: list[str], expected: bytes) -> tuple[str, bool]:
    """The temporary files of one machine find no room. For fsspec `local://` is a store: a shard is written in TMPDIR
    first."""
    out, own = folder / "one", folder / "tmp"
    out.mkdir()
    own.mkdir()
    with network(2) as net:
        cluster = Cluster(net, folder)
        cluster.start_head()
        cluster.start_node(["sh", "-c", MOUNT, SMALL, str(own)], TMPDIR=str(own), RAY_TMPDIR="/tmp")
        cluster.repair()
        begun = time.monotonic()
        code = cluster.begin([*on_ray(command, cluster), "--out", f"local://{out}"]).wait(LIMIT)
        seconds = time.monotonic() - begun
    log = (folder / "driver.log").read_text()
    good = code in (0, 1) and "No space left" in log and merged(out) == expected
    return f"| the temporary folder of one machine | exit code {code} in {seconds:.0f} s, {rests(log)} |", good


def rests(log: str) -> str:
    return f"it failed {log.count('No space left')} times and rested {log.count('rests for')} times"


def shared_disk(folder: Path, command: list[str], expected: bytes) -> tuple[str, bool]:
    """Outputs find no room; then there is more, and the same command ends."""
    out = folder / "shared"
    with small_disk(out, len(expected) // 2):
        begun = time.monotonic()
        first = subprocess.run(
            [*command, "--processes", "2", "--out", str(out)], capture_output=True, text=True, timeout=LIMIT
        )
        seconds = time.monotonic() - begun
        claims = len(list(out.glob("*.claim")))
        subprocess.run(["mount", "-o", "remount,size=1g", str(out)], check=True)
        again = subprocess.run([*command, "--processes", "2", "--out", str(out)], capture_output=True, timeout=LIMIT)
        same = again.returncode in (0, 1) and merged(out) == expected
    said = "No space left" in first.stderr
    words = f"exit code {first.returncode} in {seconds:.0f} s, {'says so' if said else '**does not say so**'}"
    text = f"| the folder of the outputs | {words}, {claims} claims left; with room, the same command ends |"
    return text, said and same and not claims and seconds < SOON and first.returncode not in (0, 1)


def run_of_training(folder: Path) -> tuple[str, bool]:
    """The disk of RUN becomes full while it trains; with room, `--resume` goes on to the weights of a run with room."""
    data, settings, run = write_pictures(folder / "data"), folder / "settings.toml", folder / "disk" / "run"
    settings.write_text(TINY.format(workers=0, noise=0.1))
    command = [*VITRAIL, "train", str(data), "--settings", str(settings), "--out"]
    subprocess.run([*command, str(folder / "whole")], check=True, capture_output=True)
    with small_disk(run.parent, 50_000_000):
        training = subprocess.Popen([*command, str(run)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        begun = wait_until(lambda: bool(Checkpoints(run / "checkpoint").steps()), LIMIT)
        with contextlib.suppress(OSError), (run.parent / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(1000)):
                pass
        said = training.communicate(timeout=LIMIT)[0].strip().splitlines()[-1]
        (run.parent / "filler").unlink()
        resumed = subprocess.run([*VITRAIL, "train", str(data), "--out", str(run), "--resume"], capture_output=True)
        same = begun and resumed.returncode == 0 and same_weights(folder / "whole", run)
    print(said, flush=True)
    weights = f"with room, `--resume` ends with {'the same' if same else '**other**'} weights"
    words = f"exit code {training.returncode}; {weights}"
    return f"| the folder of a training run | {words} |", same and training.returncode == 2 and "No space left" in said


def full_disk(options: argparse.Namespace) -> Iterator[Report]:
    about = (
        f"`predict` on {options.images:,} pictures in shards of {options.shard_size:,}; at the end the bytes are those "
        "of one process where nothing else is said."
    )
    rows, good = ["| what is full | what happens |", "|---|---|"], True
    with working_folder() as folder:
        model, manifest = make_work(folder, options.images, options.shard_size)
        command = [*VITRAIL, "predict", str(model), str(manifest), "--batch-size", "16"]
        subprocess.run([*command, "--processes", "1", "--out", str(folder / "single")], check=False)
        expected = merged(folder / "single")
        measures = [partial(what, folder, command, expected) for what in (shared_disk, one_machine)]
        for measure in (partial(run_of_training, folder), *measures):
            row, as_it_must = measure()
            rows.append(row if as_it_must else f"{row} **not as it must**")
            good = good and as_it_must
            if not good:
                keep(folder)
            yield Report([about, "", *rows], good)
