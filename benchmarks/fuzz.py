"""Coverage-guided fuzzing of what reads files that others made: annotations, tables, outlines, model files.

    pip install atheris                             not among the test dependencies: it has no wheel for some systems
    python benchmarks/fuzz.py                       every target, a minute each
    python benchmarks/fuzz.py coco pickle --seconds 3600
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
import functools
import importlib
import json
import os
import pkgutil
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from vitrail.weights.checkpoint import Checkpoint

FREE_BYTES, BYTES_A_BYTE = 64 * 2**20, 200
FREE_SECONDS, SECONDS_A_BYTE = 1.0, 1e-6
LONGEST = 4096  # bytes of an input; what grows faster than its input shows at this length already

Read = Callable[[bytes, Path], None]  # an input, and a folder to put it into


# ---- what is fuzzed: annotations and tables


def pictures(folder: Path, names: Iterable[str]) -> None:
    from PIL import Image

    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / name).exists():
            Image.new("RGB", (24, 16), "red").save(folder / name)


def read_all(path: Path, layout: str | None = None, tasks: Iterable[str | None] = (None,)) -> None:
    """Every target of a set, for every task that might take it."""
    from vitrail.data.layouts.recognise import read_dataset
    from vitrail.errors import VitrailError
    from vitrail.tasks.segment.mask_files import Mask

    errors = []
    for task in tasks:
        try:
            dataset = read_dataset(path, layout=layout, task=task)
            for item in dataset.items:
                if isinstance(item.target, Mask):
                    item.target.read()
            json.dumps([finding.to_dict(dataset.root) for finding in dataset.findings])
        except VitrailError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def coco(data: bytes, folder: Path) -> None:
    pictures(folder, ("0.png", "1.png"))
    (folder / "a.json").write_bytes(data)
    read_all(folder / "a.json", tasks=(None, "segment"))


def voc(data: bytes, folder: Path) -> None:
    pictures(folder, ("0.png", "1.png"))
    for number, part in enumerate(data.split(b"\0", 1)):
        (folder / f"{number}.xml").write_bytes(part)
    read_all(folder, "voc")


def yolo(data: bytes, folder: Path) -> None:
    pictures(folder, ("images/0.png", "images/1.png"))
    (folder / "labels").mkdir(exist_ok=True)
    parts = [*data.split(b"\0", 2), b"", b""]
    for name, part in zip(("data.yaml", "labels/0.txt", "labels/1.txt"), parts, strict=False):
        (folder / name).write_bytes(part)
    read_all(folder, "yolo", (None, "segment"))


def table(data: bytes, folder: Path) -> None:
    pictures(folder, ("0.png", "1.png"))
    (folder / "table.csv").write_bytes(data)
    read_all(folder / "table.csv", tasks=(None, "multilabel", "regress"))


def names(data: bytes, folder: Path) -> None:
    """The names and colours of classes."""
    from vitrail.tasks.shared.labels.class_names import read_colours, read_names

    (folder / "names.txt").write_bytes(data[1:])
    (read_names if data[:1] < b"\x80" else read_colours)(folder / "names.txt")


def outlines(data: bytes, folder: Path) -> None:
    """Compressed run lengths, run lengths as numbers, and polygons, of pictures up to 255 x 255."""
    from vitrail.errors import VitrailError
    from vitrail.images.polygons import inside
    from vitrail.images.rle import decode_rle

    kind, height, width = (*data[:3], 0, 0, 0)[:3]
    body = data[3:]
    try:
        if kind % 3 == 0:
            mask = decode_rle(body.decode("latin-1"), (height, width))
        elif kind % 3 == 1:
            runs = [int.from_bytes(body[n : n + 9], signed=True) for n in range(0, len(body), 9)]
            mask = decode_rle(runs, (height, width))
        else:
            numbers = np.frombuffer(body[: len(body) // 16 * 16], dtype=np.float64)
            mask = inside(numbers.reshape(-1, 2), (height, width))
    except (ValueError, OverflowError) as error:  # what DrawnMask turns into a sentence
        raise VitrailError(str(error)) from None
    assert mask.shape == (height, width)


# ---- what is fuzzed: model files


@functools.cache
def tiny() -> Checkpoint:
    """A model of 16 px and some thousand parameters."""
    import torch

    from vitrail.model.presets import preset
    from vitrail.model.vit import ViT
    from vitrail.weights.checkpoint import Checkpoint
    from vitrail.weights.preprocessing import Preprocessing

    torch.manual_seed(0)
    config = preset("mu/8", image_size=16, classes=2, width=16, heads=2, depth=1)
    return Checkpoint(ViT(config).eval(), Preprocessing(size=(16, 16)), labels=["cat", "dog"])


def load(path: Path) -> None:
    """A model file as `vitrail info` reads it."""
    from vitrail.inference.output.summary import describe, to_json, to_text

    described = describe(str(path))
    to_text(described)
    to_json(described)


def read_as(name: str) -> Read:
    def read(data: bytes, folder: Path) -> None:
        (folder / name).write_bytes(data)
        load(folder / name)

    return read


def description(data: bytes, folder: Path) -> None:
    """Our own file, with a right checksum over a description of any kind."""
    from safetensors.torch import save_file

    from vitrail.weights.checkpoint import CHECKSUM, KEY, checksum

    text, tensors = data.decode("utf-8", "replace"), dict(tiny().model.state_dict())
    save_file(tensors, folder / "model.safetensors", {KEY: text, CHECKSUM: checksum(text, tensors)})
    load(folder / "model.safetensors")


def arrays(data: bytes, folder: Path) -> None:
    """An .npz whose archive is whole and whose arrays are of any kind."""
    with zipfile.ZipFile(folder / "model.npz", "w") as archive:
        for number, part in enumerate(data.split(b"\xff\0\xff\0")):
            archive.writestr(f"w{number}.npy", part)
    load(folder / "model.npz")


def pickle(data: bytes, folder: Path) -> None:
    """A .pth whose archive is whole and whose pickle is of any kind."""
    with zipfile.ZipFile(folder / "model.pth", "w") as archive:
        archive.writestr("model/data.pkl", data)
        archive.writestr("model/version", "3\n")
        archive.writestr("model/data/0", bytes(64))
    load(folder / "model.pth")


def config_json(data: bytes, folder: Path) -> None:
    """A ViT of transformers beside a config.json of any kind."""
    from vitrail.weights.families.transformers_vit import write_folder

    if not (folder / "model.safetensors").exists():
        write_folder(tiny(), folder)
        (folder / "preprocessor_config.json").unlink()
    for name, part in zip(("config.json", "preprocessor_config.json"), data.split(b"\0", 1), strict=False):
        (folder / name).write_bytes(part)
    load(folder)


# ---- where fuzzing begins


def annotation_seeds() -> dict[str, list[bytes]]:
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    images = [{"id": n, "file_name": f"{n}.png", "width": 24, "height": 16} for n in range(2)]
    box = {"id": 1, "image_id": 0, "category_id": 1, "bbox": [2, 3, 8, 9], "iscrowd": 0}
    outlined = [
        {**box, "segmentation": [[1, 1, 9.5, 1, 9, 9]]},
        {**box, "image_id": 1, "segmentation": {"size": [16, 24], "counts": [100, 20, 264]}},
        {**box, "segmentation": {"size": [16, 24], "counts": "T3d08;"}, "iscrowd": 1},
    ]
    sets = [{"images": images, "categories": categories, "annotations": some} for some in ([box], outlined)]
    xml = (
        b"<annotation><filename>0.png</filename><size><width>24</width><height>16</height></size><object><name>cat"
        b"</name><difficult>0</difficult><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax></bndbox>"
        b"</object></annotation>"
    )
    return {
        "coco": [json.dumps(one).encode() for one in sets],
        "voc": [xml, b'<?xml version="1.0" encoding="utf-8"?>' + xml + b"\0" + xml],
        "yolo": [
            b"names: [cat, dog]\0" + b"0 0.5 0.5 0.2 0.3\n1 .1 .1 .1 .1 0.9\0" + b"1 0.1 0.1 0.9 0.1 0.9 0.9\n",
            b"names:\n  0: cat\n  1: dog\n\0" + b"0 0.5 0.5 0.2 0.3\0",
        ],
        "table": [
            b"image,label,split\n0.png,cat,train\n1.png,dog,val\n",
            b"image;labels\n0.png;cat|dog\n1.png;\n",
            b"image\tage\tgroup\n0.png\t1.5\ta\n1.png\t-2\tb\n",
        ],
        "names": [b"\0cat\ndog\n", b"\x000 cat\n3: dog\n", b"\xff0 0 0 void\n128 0 0 car\n", b"\xffcar:128,0,0::\n"],
        "outlines": [
            b"\0\x05\x05" + b"04d0",
            b"\1\x05\x05" + b"".join(n.to_bytes(9) for n in (5, 10, 10)),
            b"\2\x20\x20" + np.array([[1, 1], [20, 2.5], [9, 30]]).tobytes(),
        ],
    }


def model_seeds() -> dict[str, list[bytes]]:
    import torch

    from vitrail.weights.families.transformers_vit import write_folder

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = tiny().save(folder / "model.safetensors").read_bytes()
        text = json.loads(ours[8 : 8 + int.from_bytes(ours[:8], "little")])["__metadata__"]["vitrail"].encode()
        write_folder(tiny(), folder / "theirs")
        config, processor = ((folder / "theirs" / f"{name}config.json").read_bytes() for name in ("", "preprocessor_"))
        some = {"a": torch.zeros(3), "b": torch.ones(2, 2)}
        np.savez(folder / "a.npz", **some)
        np.savez_compressed(folder / "b.npz", **some)
        np.save(folder / "a.npy", np.arange(6.0).reshape(2, 3))
        torch.save({"model": some}, folder / "new.pth")
        torch.save(some, folder / "old.pth", _use_new_zipfile_serialization=False)
        torch.save({"model": {"a": torch.zeros(16)}}, folder / "one.pth")
        with zipfile.ZipFile(folder / "one.pth") as archive:
            pickled = archive.read("one/data.pkl")
        array = (folder / "a.npy").read_bytes()
        return {
            "safetensors": [ours],
            "description": [text],
            "npz": [(folder / f"{name}.npz").read_bytes() for name in "ab"],
            "arrays": [array, array + b"\xff\0\xff\0" + array],
            "pth": [(folder / f"{name}.pth").read_bytes() for name in ("new", "old")],
            "pickle": [pickled],
            "config.json": [config, config + b"\0" + processor],
        }


TARGETS: dict[str, Read] = {
    "coco": coco,
    "voc": voc,
    "yolo": yolo,
    "table": table,
    "names": names,
    "outlines": outlines,
    "safetensors": read_as("model.safetensors"),
    "description": description,
    "npz": read_as("model.npz"),
    "arrays": arrays,
    "pth": read_as("model.pth"),
    "pickle": pickle,
    "config.json": config_json,
}


def seeds_of(target: str) -> list[bytes]:
    seeds = annotation_seeds()
    return seeds[target] if target in seeds else model_seeds()[target]


# ---- JSON is changed as JSON: of random bytes, next to none are

JSON_TARGETS = ("coco", "description", "config.json")
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**62, 2**63, 10**30, 0.5, -0.0, 1e-300, 1e308, float("nan"), float("inf")),
    *("", "a", "0", "\ud800", "\x1b[2J", "../..", "a\0b", "x" * 300, "9" * 300, [], {}, [[]], [{}], {"a": 1}),
)


def mutate_json(data: bytes, longest: int, seed: int) -> bytes:
    """One to four values replaced by odd ones or by each other, left out, or doubled."""
    chance = random.Random(seed)
    first, mark, rest = data.partition(b"\0")
    try:
        content = json.loads(first)
    except (ValueError, RecursionError):
        return mutate_bytes(data, longest)
    for _ in range(chance.randint(1, 4)):
        places = [*places_in(content)]
        if not places or chance.random() < 0.1:
            return mutate_bytes(data, longest)
        holder, key = chance.choice(places)
        other, other_key = chance.choice(places)
        value = chance.choice((*VALUES, other[other_key], chance.randint(-1000, 1000)))
        if chance.random() < 0.1:
            del holder[key]
        elif isinstance(holder, list) and chance.random() < 0.2:
            holder += [value] * chance.choice((1, 2, 30))
        else:
            holder[key] = value
        with contextlib.suppress(ValueError, RecursionError):  # a value that now holds itself
            first = json.dumps(content).encode()
        content = json.loads(first)
    return (first + mark + rest)[:longest]


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every list and object inside with every key."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places_in(value[key])


def mutate_bytes(data: bytes, longest: int) -> bytes:
    import atheris

    return bytes(atheris.Mutate(data, longest))


# ---- what must hold of every input


class Broken(AssertionError):
    """An input that took too long or too much, or was refused in more than a sentence."""


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


def fuzz(target: str, seconds: int, finds: Path) -> None:
    """Run libFuzzer in this process, which it ends."""
    import atheris

    with atheris.instrument_imports(include=["vitrail", "torch._weights_only_unpickler", "yaml"]):
        import vitrail

        for module in pkgutil.walk_packages(vitrail.__path__, "vitrail."):
            if not module.name.startswith(("vitrail.serving", "vitrail.__main__")):
                importlib.import_module(module.name)
    limit = 8 * 2**30  # address space: what would eat the machine is an error here
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    work = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        corpus, folder = work / "corpus", work / "folder"
        corpus.mkdir(), folder.mkdir()
        for number, seed in enumerate(seeds_of(target)):
            (corpus / f"seed-{number}").write_bytes(seed)
            check(TARGETS[target], seed, folder)
        longest = max(LONGEST, *(2 * len(seed) for seed in seeds_of(target)))
        options = [f"-max_total_time={seconds}", f"-max_len={longest}", "-len_control=0", "-timeout=600"]
        options += ["-rss_limit_mb=0", "-print_final_stats=1", f"-artifact_prefix={finds}/{target}-"]
        atexit.register(shutil.rmtree, work, ignore_errors=True)
        more = {"custom_mutator": mutate_json} if target in JSON_TARGETS else {}
        atheris.Setup([sys.argv[0], *options, str(corpus)], lambda data: check(TARGETS[target], data, folder), **more)
        atheris.Fuzz()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run(target: str, seconds: int, finds: Path) -> str:
    """A target in a process of its own; its row of the table."""
    command = [sys.executable, __file__, target, "--seconds", str(seconds), "--finds", str(finds), "--inside"]
    process = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    executions = re.search(r"number_of_executed_units:\s*(\d+)", process.stderr)
    covered = re.findall(r"cov: (\d+)", process.stderr)
    found = re.search(r"Test unit written to (\S+)", process.stderr)
    if process.returncode and found is None:
        sys.exit(process.stderr[-3000:])
    count = f"{int(executions[1]):,}" if executions else "?"
    return (
        f"| {target} | {seconds} s | {count} | {covered[-1] if covered else '?'} | {found[1] if found else 'nothing'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="; ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--finds", type=Path, default=Path("finds"), help="folder for inputs that break something")
    parser.add_argument("--replay", type=Path, help="run this input of the one target, without atheris")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    targets = options.targets or list(TARGETS)
    if options.replay:
        with tempfile.TemporaryDirectory() as folder:
            check(TARGETS[targets[0]], options.replay.read_bytes(), Path(folder))
        return
    options.finds.mkdir(parents=True, exist_ok=True)
    if options.inside:
        fuzz(targets[0], options.seconds, options.finds)
        return
    print("| target | time | executions | branches | found |\n|---|---|---|---|---|", flush=True)
    for target in targets:
        print(run(target, options.seconds, options.finds), flush=True)


if __name__ == "__main__":
    main()
