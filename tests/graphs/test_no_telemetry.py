"""No engine reports to its makers. Their senders are native code or threads of their own, so they are watched from
outside: what appears in an empty home, and what the kernel refused in a network without a way out."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import lively_vit
from vitrail.model.presets import preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

# Each engine makes its graph, runs, and both formats are quantised; "auto" starts processes of its own. Not
# "compiled": it is torch and a compiler, and takes half a minute.
EVERYTHING = """
import sys
import numpy as np
from vitrail.graphs import quantize, quantize_onnx
from vitrail.graphs.graph_formats import traced_graph
from vitrail.inference.engine import Engine
pictures = [np.full((32, 32, 3), shade, np.uint8) for shade in (40, 200)]
for name in ("torch", "openvino", "onnxruntime", "auto"):
    engine = Engine.open(sys.argv[1], engine=name, calibration=pictures)
    images = [engine.read(picture) for picture in pictures]
    engine.outputs(images)
for name, graphs in (("openvino", quantize), ("onnx", quantize_onnx)):
    model = traced_graph(name, engine.checkpoint, (32, 32), False)
    inputs = [np.full((1, 3, 32, 32), shade, np.float32) for shade in (-1, 1)]
    graphs.compiled(graphs.store_int8(graphs.quantize(model, inputs, None)))(inputs[0])
assert {"openvino", "onnxruntime", "nncf"} <= set(sys.modules)
"""
LOOKS_UP_A_NAME = """
import ctypes
ctypes.CDLL(None).getaddrinfo(b"example.com", b"443", None, ctypes.byref(ctypes.c_void_p()))
"""


@dataclass(frozen=True)
class Seen:
    """What a process and its children left and tried."""

    folders: set[str]  # in a home that was empty
    packets: int  # that found no way out of the network; 0 where that cannot be counted


@functools.cache
def own_network() -> Sequence[str]:
    """The command that runs another one in a network without a way out, as root or as anybody; empty: there is none.
    Processes that a sender leaves behind end with it, else the test would wait for them."""
    apart = ["--net", "--pid", "--fork", "--kill-child"]
    for command in (["unshare", *apart], ["unshare", "--map-root-user", *apart]):
        try:
            if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
                return command
        except OSError:  # no such command
            break
    return []


def watch(code: str, folder: Path, *arguments: str) -> Seen:
    """Run Python code as somebody who never said no: no variable of a build machine or of ours is set."""
    home = folder / "home"
    home.mkdir()
    environment = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT") if name in os.environ}
    environment |= {name: str(home) for name in ("HOME", "USERPROFILE", "LOCALAPPDATA")}
    environment |= {"XDG_CACHE_HOME": str(home / "cache"), "VITRAIL_CACHE": str(folder / "graphs")}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *arguments]
    if own_network():  # its counters begin at 0, and count what is sent while Python ends too
        command = [*own_network(), "sh", "-c", '"$@" && cat /proc/net/snmp', "sh", *command]
    run = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return Seen({path.relative_to(home).as_posix() for path in home.rglob("*")}, packets_refused(run.stdout))


def packets_refused(counters: str) -> int:
    rows = [line.split() for line in counters.splitlines() if line.startswith("Ip: ")]
    return int(dict(zip(*rows, strict=True))["OutNoRoutes"]) if rows else 0


def test_no_engine_and_no_int8_reports_to_anybody(tmp_path: Path) -> None:
    network = lively_vit(preset("mu/16", image_size=32, classes=3, depth=1))
    model = Checkpoint(network, Preprocessing(size=(32, 32)), labels=["a", "b", "c"]).save(tmp_path / "a.safetensors")
    assert watch(EVERYTHING, tmp_path, str(model)) == Seen(set(), 0)


def test_reports_would_be_seen(tmp_path: Path) -> None:
    """Of packages that are not told to be silent, and of native code. Only where they do not get through."""
    if not own_network():
        pytest.skip("needs a network of its own: unshare --net")
    seen = {}
    for name, code in {"name": LOOKS_UP_A_NAME, "ort": "import onnxruntime", "ov": "import openvino"}.items():
        (tmp_path / name).mkdir()
        seen[name] = watch(code, tmp_path / name)
    assert seen["name"].packets > 0 and seen["name"].folders == set()
    assert "cache/Microsoft/DeveloperTools" in seen["ort"].folders
    assert "intel" in seen["ov"].folders and seen["ov"].packets > 0


@pytest.mark.parametrize("module", ["openvino", "nncf"])
def test_the_package_that_sends_reports_is_never_imported(module: str) -> None:
    code = (
        "import sys; from vitrail.graphs.no_telemetry import import_silently;"
        f"import_silently({module!r}); assert sys.modules['openvino_telemetry'] is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
