"""Coverage-guided fuzzing of what reads what others made: images, requests, annotations, tables, model files.

    pip install atheris                             not among the test dependencies: it has no wheel for some systems
    python benchmarks/fuzz.py                       every target, a minute each
    python benchmarks/fuzz.py coco pickle --seconds 3600
    python benchmarks/fuzz.py coco --corpus corpus  goes on where a run ended: inputs that reach new branches stay
    python benchmarks/fuzz.py coco --replay FILE    one input, without atheris, with its traceback

An input passes if the reader gives a result or raises a VitrailError of one line, takes less than a second and a second
for each megabyte, and less memory than 64 MB and 200 bytes for each of its own. The first input that does not is kept
in the folder of --finds, and ends its target. What was found so far lies in tests/finds, and tests/test_finds.py runs
it. The table is printed; benchmarks/results/fuzz.md keeps it.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib
import os
import pkgutil
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, for benchmarks.fuzzing and tests

from benchmarks.fuzzing.annotation_targets import ANNOTATION_TARGETS
from benchmarks.fuzzing.http_targets import HTTP_TARGETS
from benchmarks.fuzzing.image_targets import IMAGE_TARGETS
from benchmarks.fuzzing.json_mutation import mutate_json
from benchmarks.fuzzing.model_targets import MODEL_TARGETS
from benchmarks.fuzzing.target import Broken, Read

FREE_BYTES, BYTES_A_BYTE = 64 * 2**20, 200
FREE_SECONDS, SECONDS_A_BYTE = 1.0, 1e-6
LONGEST = 4096  # bytes of an input; what grows faster than its input shows at this length already

TARGETS = {**IMAGE_TARGETS, **HTTP_TARGETS, **ANNOTATION_TARGETS, **MODEL_TARGETS}
INSTRUMENTED = ["vitrail", "PIL", "yaml", "starlette", "python_multipart", "h11"]


# ---- what must hold of every input


def read_or_refuse(read: Read, data: bytes, folder: Path) -> None:
    """Run a reader. Whatever it raises but a VitrailError of one line is raised."""
    from vitrail.errors import VitrailError

    try:
        read(data, folder)
    except VitrailError as error:
        if "\n" in str(error) or not str(error).strip():
            raise Broken(f"the sentence is {str(error)[:200]!r}") from error


def check(read: Read, data: bytes, folder: Path) -> None:
    """Run a reader within its bounds of time and memory."""
    began, held = time.process_time(), peak_bytes()
    read_or_refuse(read, data, folder)
    seconds, taken = time.process_time() - began, peak_bytes() - held
    if seconds > FREE_SECONDS + SECONDS_A_BYTE * len(data):
        raise Broken(f"{len(data)} bytes took {seconds:.1f} s")
    if taken > FREE_BYTES + BYTES_A_BYTE * len(data):
        raise Broken(f"{len(data)} bytes took {taken / 2**20:.0f} MB")
    if taken > FREE_BYTES / 8:
        forget_peak()


def peak_bytes() -> int:
    """The most memory that this process ever held, since `forget_peak`."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return int(re.search(r"VmHWM:\s*(\d+)", status.read_text())[1]) * 1024  # type: ignore[index]


def forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


# ---- running


def fuzz(name: str, seconds: int, finds: Path, kept: Path | None) -> None:
    """Run libFuzzer in this process, which it ends."""
    import atheris
    import torch._weights_only_unpickler as unpickling  # before: watching one module of torch would watch them all

    unpickling.Unpickler.load = atheris.instrument_func(unpickling.Unpickler.load)
    with atheris.instrument_imports(include=INSTRUMENTED):
        import_everything(with_server=name in HTTP_TARGETS)
    limit = 8 * 2**30  # address space: what would eat the machine is an error here
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    work = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        corpus, folder, target = (work if kept is None else kept) / name, work / "folder", TARGETS[name]
        corpus.mkdir(parents=True, exist_ok=True), folder.mkdir()
        for number, seed in enumerate(target.seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
            read_or_refuse(target.read, seed, folder)  # the first is slow: what is made once is made now
        longest = max(LONGEST, *(2 * len(seed) for seed in target.seeds()))
        options = [f"-max_total_time={seconds}", f"-max_len={longest}", "-len_control=0", "-timeout=600"]
        options += ["-rss_limit_mb=0", "-print_final_stats=1", f"-artifact_prefix={finds}/{name}-"]
        atexit.register(shutil.rmtree, work, ignore_errors=True)
        more = {"custom_mutator": mutate_json} if target.json else {}
        atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: check(target.read, data, folder), **more)
        atheris.Fuzz()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def import_everything(with_server: bool) -> None:
    """Modules that are imported later would not be watched."""
    import vitrail

    for module in pkgutil.walk_packages(vitrail.__path__, "vitrail."):
        serves = module.name.startswith("vitrail.serving") and not module.name.startswith("vitrail.serving.decoding")
        if module.name != "vitrail.__main__" and (with_server or not serves):
            importlib.import_module(module.name)


def run(name: str, seconds: int, finds: Path, kept: Path | None) -> str:
    """A target in a process of its own; its row of the table."""
    command = [sys.executable, __file__, name, "--seconds", str(seconds), "--finds", str(finds), "--inside"]
    command += [] if kept is None else ["--corpus", str(kept)]
    before = cpu_seconds_of_children()
    process = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    used = cpu_seconds_of_children() - before
    executions = re.search(r"number_of_executed_units:\s*(\d+)", process.stderr)
    covered = re.findall(r"cov: (\d+)", process.stderr)
    found = re.search(r"Test unit written to (\S+)", process.stderr)
    if process.returncode and found is None:
        sys.exit(process.stderr[-3000:])
    count = f"{int(executions[1]):,}" if executions else "?"
    branches = covered[-1] if covered else "?"
    return f"| {name} | {seconds} s | {used:.0f} s | {count} | {branches} | {found[1] if found else 'nothing'} |"


def cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="; ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--finds", type=Path, default=Path("finds"), help="folder for inputs that break something")
    parser.add_argument("--corpus", type=Path, help="folder to keep inputs in, by target (default: none are kept)")
    parser.add_argument("--replay", type=Path, help="run this input of the one target, without atheris")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    targets = options.targets or list(TARGETS)
    if options.replay:
        with tempfile.TemporaryDirectory() as folder:
            target = TARGETS[targets[0]]
            read_or_refuse(target.read, target.seeds()[0], Path(folder))  # what is made once is made now
            check(target.read, options.replay.read_bytes(), Path(folder))
        return
    options.finds.mkdir(parents=True, exist_ok=True)
    if options.inside:
        fuzz(targets[0], options.seconds, options.finds, options.corpus)
        return
    print("| target | time | CPU | executions | branches | found |\n|---|---|---|---|---|---|", flush=True)
    for target in targets:
        print(run(target, options.seconds, options.finds, options.corpus), flush=True)


if __name__ == "__main__":
    main()
