"""Graphs on disk: whole, or not there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from vitrail.inference.backends import graph_cache
from vitrail.inference.backends.graph_cache import GraphCache, fingerprint
from vitrail.model.presets import build_network, preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

PARTS = [b"<xml>", b"", bytes(range(256)) * 40]


def read(cache: GraphCache, name: str = "g") -> list[bytes] | None:
    parts = cache.read(name)
    return None if parts is None else [bytes(part) for part in parts]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    cache = GraphCache("f", tmp_path)
    assert read(cache) is None
    cache.write("g", PARTS)
    assert read(cache) == PARTS and read(GraphCache("f", tmp_path)) == PARTS
    assert read(GraphCache("another", tmp_path)) is None


@pytest.mark.parametrize("damage", ["cut", "flipped", "longer", "empty", "text", "header", "endless"])
def test_a_damaged_file_is_said_and_goes(tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    cache = GraphCache("f", tmp_path)
    cache.write("g", PARTS)
    (path,) = cache.folder.iterdir()
    data = path.read_bytes()
    damaged = {
        "cut": data[:-1],
        "flipped": data[:-1] + bytes([data[-1] ^ 1]),
        "longer": data + b"x",
        "empty": b"",
        "text": b"hello",
        "endless": b'{"lengths": [Infinity], "sha256": ""}\n' + data,
        "header": b'{"lengths": [-1, "x"], "sha256": ""}\n' + data,
    }
    path.write_bytes(damaged[damage])
    assert read(cache) is None and not path.exists()
    assert "is damaged: it is made again" in capsys.readouterr().err
    cache.write("g", PARTS)
    assert read(cache) == PARTS


def test_another_version_has_graphs_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GraphCache("f", tmp_path).write("g", PARTS)
    monkeypatch.setattr(graph_cache, "versions", lambda: {"openvino": "2099.1"})
    assert read(GraphCache("f", tmp_path)) is None


def test_several_at_once(tmp_path: Path) -> None:
    """Whoever reads meanwhile sees one of the files, whole."""
    files = [[bytes([number]) * 100_000] for number in range(4)]
    writers = [threading.Thread(target=GraphCache("f", tmp_path).write, args=("g", parts)) for parts in files * 5]
    for writer in writers:
        writer.start()
    seen = [read(GraphCache("f", tmp_path)) for _ in range(50)]
    for writer in writers:
        writer.join()
    assert all(parts is None or parts in files for parts in seen) and read(GraphCache("f", tmp_path)) in files


def test_a_disk_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GraphCache("f", tmp_path).write("g", PARTS)
    GraphCache("damaged", tmp_path).write("g", PARTS)
    path = GraphCache("damaged", tmp_path).folder / f"g{graph_cache.ENDING}"
    path.write_bytes(path.read_bytes()[:-1])

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(30, "Read-only file system")

    for name in ("touch", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
    assert read(GraphCache("f", tmp_path)) == PARTS
    assert read(GraphCache("damaged", tmp_path)) is None


def test_graphs_that_go_while_old_ones_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: Path, pattern: str) -> list[Path]:
        return [tmp_path / "another process removed it"]

    cache = GraphCache("f", tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "glob", gone)
        cache.write("g", PARTS)
    assert read(cache) == PARTS


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = GraphCache("f", tmp_path / "file")
    cache.write("g", PARTS)
    assert "the graph is not kept for next time: cannot write" in capsys.readouterr().err
    assert cache.read("g") is None


def test_the_oldest_graphs_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_cache, "MOST_BYTES", 25_000)
    for number in range(4):
        GraphCache(str(number), tmp_path).write("g", PARTS)
        GraphCache("0", tmp_path).read("g")  # which is used all the time
    kept = [number for number in range(4) if read(GraphCache(str(number), tmp_path)) is not None]
    assert kept == [0, 3]


def test_the_fingerprint_is_of_config_and_weights() -> None:
    network = build_network(preset("mu/8", image_size=32, classes=3))
    checkpoint = Checkpoint(network, Preprocessing(size=(32, 32)))
    before = fingerprint(checkpoint)
    assert fingerprint(checkpoint) == before
    next(network.parameters()).data[0, 0] += 1
    assert fingerprint(checkpoint) != before
    changed = fingerprint(checkpoint)
    network.merge_tokens = 4
    assert fingerprint(checkpoint) != changed


def test_a_cnn_of_ones_own_is_part_of_the_fingerprint() -> None:
    """Its weights alone do not tell what it computes."""
    config = preset("mu/8", image_size=32, classes=3, stem="features", feature_channels=4)
    prints = set()
    for activation in (nn.ReLU(), nn.GELU()):
        torch.manual_seed(0)
        network = build_network(config, nn.Sequential(nn.Conv2d(3, 4, 8, stride=8), activation))
        prints.add(fingerprint(Checkpoint(network, Preprocessing(size=(32, 32)))))
    assert len(prints) == 2
