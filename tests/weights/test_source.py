"""Files as they come: wrapped, prefixed, in shards, damaged, or out to run code. Always weights or one sentence."""

from __future__ import annotations

import argparse
import builtins
import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.hostile import outcome
from vitrail.errors import VitrailError
from vitrail.weights.load import load
from vitrail.weights.source import read, strip_prefixes

WEIGHTS = {"cls_token": torch.ones(1, 1, 4), "head.bias": torch.arange(3.0)}


def refusal(path: Path) -> str:
    """The sentence with which a file is refused: one, and it names the file."""
    with pytest.raises(VitrailError) as caught:
        read(path, str(path))
    sentence = str(caught.value)
    assert str(path) in sentence and "\n" not in sentence and len(sentence) < 400
    return sentence


# ---- pickles that want to run code


class Runs:
    """An object whose pickle calls a function when it is read."""

    def __init__(self, function: Callable, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable, tuple[Any, ...]]:
        return self.call


def touch(marker: Path) -> dict[str, Runs]:
    return {
        "posix.system": Runs(os.system, f"touch '{marker}'"),
        "eval": Runs(eval, f"open({str(marker)!r}, 'w')"),
        "exec": Runs(exec, f"open({str(marker)!r}, 'w')"),
        "io.open": Runs(builtins.open, str(marker), "w"),
        "posix.mkdir": Runs(os.mkdir, str(marker)),
    }


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("wanted", ["posix.system", "eval", "exec", "io.open", "posix.mkdir"])
@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: {"model": {**WEIGHTS, "x": x}}, lambda x: {**WEIGHTS, "args": x}]
)
def test_a_pickle_that_wants_to_run_code_is_refused_and_nothing_ran(
    wrap: Callable, wanted: str, zipped: bool, tmp_path: Path
) -> None:
    marker, path = tmp_path / "it ran", tmp_path / "model.pth"
    torch.save(wrap(touch(marker)[wanted]), path, _use_new_zipfile_serialization=zipped)
    sentence = refusal(path)
    assert f"wants to run code ({wanted})" in sentence and ".safetensors" in sentence
    assert not marker.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("ending", [".pth", ".pt", ".bin", ".pth.tar", ".npz", ".safetensors"])
def test_a_bare_pickle_is_refused_under_every_name_and_nothing_ran(ending: str, protocol: int, tmp_path: Path) -> None:
    marker, path = tmp_path / "it ran", tmp_path / f"model{ending}"
    path.write_bytes(pickle.dumps({"model": touch(marker)["posix.system"]}, protocol))
    refusal(path)
    assert not marker.exists()


def test_the_marker_would_have_been_made(tmp_path: Path) -> None:
    """The two tests above prove nothing unless these pickles work."""
    for wanted, runs in touch(tmp_path / "it ran").items():
        torch.save({"x": runs}, tmp_path / "model.pth")
        torch.load(tmp_path / "model.pth", weights_only=False)
        marker = tmp_path / "it ran"
        assert marker.exists(), wanted
        marker.rmdir() if marker.is_dir() else marker.unlink()


def test_a_module_saved_whole_is_refused(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "model.pth")
    assert "wants to run code (torch.nn.modules.linear.Linear)" in refusal(tmp_path / "model.pth")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_program_is_refused(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "model.pt"))
    assert "is a TorchScript program, not weights" in refusal(tmp_path / "model.pt")


def test_object_arrays_are_refused_and_nothing_ran(tmp_path: Path) -> None:
    marker = tmp_path / "it ran"
    runs = np.array([touch(marker)["posix.system"]], dtype=object)
    np.savez(tmp_path / "model.npz", cls=np.ones(3), evil=runs)
    assert "no .npz of plain arrays" in refusal(tmp_path / "model.npz")
    assert not marker.exists()


# ---- training checkpoints


@pytest.mark.parametrize(
    ("content", "unwrapped"),
    [
        (WEIGHTS, ()),
        ({"model": WEIGHTS}, ("model",)),
        ({"model": WEIGHTS, "epoch": torch.tensor(3)}, ("model",)),
        ({"state_dict": WEIGHTS, "args": argparse.Namespace(lr=0.1, betas=[0.9, 0.99], name=None)}, ("state_dict",)),
        ({"model": {"x": torch.ones(1)}, "model_ema": WEIGHTS}, ("model_ema",)),
        ({"student": {"x": torch.ones(1)}, "teacher": WEIGHTS}, ("teacher",)),
        ({"student": WEIGHTS, "teacher": {}}, ("student",)),
        ({"model": {"module": WEIGHTS}}, ("model", "module")),
        ({f"module.{name}": t for name, t in WEIGHTS.items()}, ("module.",)),
        ({"teacher": {f"module.backbone.{n}": t for n, t in WEIGHTS.items()}}, ("teacher", "module.", "backbone.")),
        ({**WEIGHTS, 7: "a number as a name", "lr": 0.1}, ()),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_weights_are_found(content: Any, unwrapped: tuple[str, ...], zipped: bool, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "model.pth", _use_new_zipfile_serialization=zipped)
    source = read(tmp_path / "model.pth", "as given")
    assert source.tensors.keys() == WEIGHTS.keys()
    assert all(torch.equal(source.tensors[name], tensor) for name, tensor in WEIGHTS.items())
    assert (source.name, source.file, source.unwrapped) == ("as given", "model.pth", unwrapped)


def test_the_students_head_is_not_taken_for_the_teachers() -> None:
    tensors = {
        "teacher.backbone.a": torch.ones(1),
        "teacher.head.b": torch.ones(2),
        "student.backbone.a": torch.ones(3),
    }
    assert strip_prefixes(tensors) == ({"a": torch.ones(1)}, ("teacher.", "backbone."))


def test_parameters_lose_their_gradients(tmp_path: Path) -> None:
    torch.save({"w": torch.nn.Parameter(torch.ones(2))}, tmp_path / "model.pth")
    assert not read(tmp_path / "model.pth", "").tensors["w"].requires_grad


def test_a_checkpoint_that_holds_itself_ends(tmp_path: Path) -> None:
    content: dict[str, Any] = {}
    content["model"] = content
    torch.save(content, tmp_path / "model.pth")
    assert "holds no weights" in refusal(tmp_path / "model.pth")


@pytest.mark.parametrize("content", [[1, 2], {}, {"model": {}}, {"model": 3}, "text", None, {"lr": 0.1}])
def test_a_checkpoint_without_weights(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "model.pth")
    assert "holds no weights" in refusal(tmp_path / "model.pth")


@pytest.mark.parametrize("tensor", [torch.eye(3).to_sparse(), torch.ones(2, device="meta")])
def test_tensors_that_are_not_plain(tensor: Tensor, tmp_path: Path) -> None:
    torch.save({"w": tensor}, tmp_path / "model.pth")
    refusal(tmp_path / "model.pth")


# ---- damaged files


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A good file of each kind."""
    folder = tmp_path_factory.mktemp("whole")
    torch.save({"model": WEIGHTS, "args": argparse.Namespace(a=1)}, folder / "zip.pth")
    torch.save({"model": WEIGHTS}, folder / "old.pth", _use_new_zipfile_serialization=False)
    np.savez(folder / "plain.npz", **{name: t.numpy() for name, t in WEIGHTS.items()})
    np.savez_compressed(folder / "small.npz", **{name: t.numpy() for name, t in WEIGHTS.items()})
    save_file(WEIGHTS, folder / "file.safetensors")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


KINDS = ["zip.pth", "old.pth", "plain.npz", "small.npz", "file.safetensors"]


@pytest.mark.parametrize("kind", KINDS)
def test_cut_short(kind: str, whole: dict[str, bytes], tmp_path: Path) -> None:
    content, path = whole[kind], tmp_path / kind
    assert len(content) > 150
    for fraction in (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        path.write_bytes(content[: int(len(content) * fraction)])
        refusal(path)
    path.write_bytes(content[:-1])
    refusal(path)


@pytest.mark.parametrize("kind", KINDS)
def test_changed_bytes_give_weights_or_one_sentence(kind: str, whole: dict[str, bytes], tmp_path: Path) -> None:
    chance, path = random.Random(0), tmp_path / kind
    for _ in range(150):
        content = bytearray(whole[kind])
        for _ in range(chance.choice((1, 1, 4, 30))):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
        try:
            assert all(isinstance(tensor, Tensor) for tensor in read(path, str(path)).tensors.values())
        except VitrailError as error:
            assert str(path) in str(error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not weights at all", b"\x80\x02.", b"\x00" * 100])
def test_no_weight_file_inside(kind: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / kind).write_bytes(content)
    refusal(tmp_path / kind)


def test_an_array_alone_is_no_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.ones(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    refusal(tmp_path / "array.npz")


def test_text_in_an_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "model.npz", name=np.array(["a", "b"]))
    refusal(tmp_path / "model.npz")


def test_a_zip_of_other_things(tmp_path: Path) -> None:
    for name in ("photos.npz", "photos.pth"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("photo.txt", "a cat")
        refusal(tmp_path / name)


# ---- folders and names


def test_an_empty_folder(tmp_path: Path) -> None:
    assert f"the folder {tmp_path} holds no weight file" in refusal(tmp_path)


def test_a_folder_with_one_file(tmp_path: Path) -> None:
    torch.save(WEIGHTS, tmp_path / "model_best.pth.tar")
    (tmp_path / "notes.txt").write_text("none")
    assert read(tmp_path, "").file == "model_best.pth.tar"


def test_a_folder_with_two_files(tmp_path: Path) -> None:
    torch.save(WEIGHTS, tmp_path / "a.pth")
    torch.save(WEIGHTS, tmp_path / "b.pth")
    assert "holds 2 weight files (a.pth, b.pth, ...): name the file itself" in refusal(tmp_path)
    save_file(WEIGHTS, tmp_path / "model.safetensors")  # the name that a folder's weights have
    assert read(tmp_path, "").file == "model.safetensors"


def test_not_a_weight_file(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"")
    assert "is no weight file: those end in .safetensors" in refusal(tmp_path / "photo.jpg")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(WEIGHTS, tmp_path / "model.pth")

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(torch, "load", denied)
    assert "Permission denied" in refusal(tmp_path / "model.pth")


def test_names_that_are_no_text(tmp_path: Path) -> None:
    torch.save({"a\nb\x1b[2J": torch.ones(2)}, tmp_path / "model.pth")
    assert "a tensor whose name is no text" in refusal(tmp_path / "model.pth")


def test_names_of_no_family(tmp_path: Path) -> None:
    save_file({"conv1.weight": torch.ones(1), "bn1.bias": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(VitrailError, match="of no known family of plain ViT weights: its tensors are called .*conv1"):
        load(tmp_path / "model.safetensors")


def test_what_lies_beside_is_read(tmp_path: Path) -> None:
    save_file(WEIGHTS, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text('{"a": 1}')
    (tmp_path / "preprocessor_config.json").write_text('{"b": 2}')
    source = read(tmp_path, "")
    assert (source.config, source.preprocessor, source.metadata) == ({"a": 1}, {"b": 2}, {"format": "pt"})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(VitrailError, match="config.json is not JSON"):
        read(tmp_path, "")


# ---- shards


@pytest.fixture
def shards(tmp_path: Path) -> Callable[[Any], Path]:
    """Two shards of two kinds, and an index that says what it is given."""
    save_file({"cls_token": WEIGHTS["cls_token"]}, tmp_path / "model-1.safetensors")
    torch.save({"head.bias": WEIGHTS["head.bias"]}, tmp_path / "model-2.bin")

    def write(weight_map: Any) -> Path:
        path = tmp_path / "model.safetensors.index.json"
        path.write_text(json.dumps({"weight_map": weight_map}))
        return path

    return write


def test_shards_are_put_together(shards: Callable) -> None:
    path = shards({"cls_token": "model-1.safetensors", "head.bias": "model-2.bin"})
    for source in (read(path, ""), read(path.parent, "")):
        assert source.tensors.keys() == WEIGHTS.keys()


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        (None, "has no weight_map"),
        ([], "has no weight_map"),
        ({"a": 1}, "has no weight_map"),
        ({"a": ["model-1.safetensors"]}, "has no weight_map"),
        ({}, "holds no weights"),
        ({"a": "../model-1.safetensors"}, "outside its folder"),
        ({"a": "/etc/passwd"}, "outside its folder"),
        ({"a": "model.safetensors.index.json"}, "of another kind"),
        ({"a": "model-3.safetensors"}, "names model-3.safetensors, which is not beside it: copy all of its shards"),
    ],
)
def test_shards_that_do_not_fit(weight_map: Any, words: str, shards: Callable) -> None:
    assert words in refusal(shards(weight_map))


def test_an_index_that_is_not_json(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text("{")
    assert "is not JSON" in refusal(path)


# ---- files that would take far more memory than they have bytes


def read_within(path: Path, megabytes: int = 200) -> str:
    code = f"""
    from pathlib import Path
    from vitrail.weights.source import read
    print(*read(Path({str(path)!r}), "").tensors)
    """
    return outcome(code, path.parent, megabytes)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_tensor_of_stride_0_is_refused(zipped: bool, tmp_path: Path) -> None:
    """5 kB that were 10 GB once they were copied."""
    content = {f"blocks.{n}.weight": torch.zeros(1).expand(10**9) for n in range(3)}
    torch.save(content, tmp_path / "model.pth", _use_new_zipfile_serialization=zipped)
    assert (tmp_path / "model.pth").stat().st_size < 5000
    assert "blocks.0.weight, which repeats values" in read_within(tmp_path / "model.pth")


def test_many_tensors_of_the_same_values_are_refused(tmp_path: Path) -> None:
    values = torch.zeros(1000, 1000)
    torch.save({f"w{n}": values for n in range(1000)}, tmp_path / "model.pth")
    assert "which repeats values" in read_within(tmp_path / "model.pth")


def test_tied_weights_are_read(tmp_path: Path) -> None:
    values = torch.randn(1000, 1000)
    torch.save({"a": values, "b": values, "c": values.t()}, tmp_path / "model.pth")
    tensors = read(tmp_path / "model.pth", "").tensors
    assert torch.equal(tensors["b"], values) and torch.equal(tensors["c"], values.t())


def test_what_was_read_does_not_hang_on_the_file(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1000)}, tmp_path / "model.pth")
    tensors = read(tmp_path / "model.pth", "").tensors
    (tmp_path / "model.pth").write_bytes(bytes(10_000))
    assert torch.equal(tensors["a"], torch.ones(1000))


def test_a_compressed_pickle_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(10**6)}, tmp_path / "stored.pth")
    packed = zipfile.ZipFile(tmp_path / "model.pth", "w", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(tmp_path / "stored.pth") as stored, packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    assert (tmp_path / "model.pth").stat().st_size < 10**4
    assert "was compressed, which torch.save does not do" in read_within(tmp_path / "model.pth")


def test_an_npz_that_unpacks_beyond_measure_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "model.npz", w=np.zeros(25_000_000, np.float32))
    assert (tmp_path / "model.npz").stat().st_size < 10**6
    assert "unpacks to 100,000,128 bytes" in read_within(tmp_path / "model.npz")


@pytest.mark.parametrize("shape", ["(10000000000,)", "(-1,)", "(4, -4)", "(0, 10000000000)"])
@pytest.mark.parametrize("name", ["w.npy", "w"])
def test_an_array_that_claims_more_than_it_has(shape: str, name: str, tmp_path: Path) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    with zipfile.ZipFile(tmp_path / "model.npz", "w") as archive:
        archive.writestr(name, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(64))
    answer = read_within(tmp_path / "model.npz")
    assert answer == "w" if shape.startswith("(0") else "is damaged" in answer


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_an_npz_packed_in_another_way(method: int, tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", w=np.ones(3))
    with zipfile.ZipFile(tmp_path / "plain.npz") as plain, zipfile.ZipFile(tmp_path / "m.npz", "w", method) as packed:
        packed.writestr("w.npy", plain.read("w.npy"))
    assert "packed in a way that NumPy does not write" in refusal(tmp_path / "m.npz")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes there")
@pytest.mark.parametrize("ending", [".safetensors", ".npz", ".pth"])
def test_a_pipe_is_never_opened(ending: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"model{ending}")
    assert "is no file" in read_within(tmp_path / f"model{ending}")
