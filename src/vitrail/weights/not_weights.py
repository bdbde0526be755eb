"""Files that are often taken for weights: recognised by their first bytes, and said with what to do instead."""

from __future__ import annotations

import zipfile
from pathlib import Path

HEAD = 1024  # bytes that are looked at
WEIGHTS = (".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt", ".tar")  # that an archive may hold


def what_it_is(path: Path) -> str | None:
    """The rest of a sentence that begins with the file's name, or None where it may be weights."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the weights it points to: run git lfs pull in its repository"
    if text.startswith((b"<!doctype html", b"<html", b"<?xml", b"<head")):
        return "is a web page saved under this name, not weights: download the file itself, signed in if it asks for it"
    if path.suffix == ".onnx" or (head[:1] == b"\x08" and b"\x12\x07pytorch" in head[:32]):
        return "is an ONNX graph, which does not keep the layers' names: give the .safetensors or .pth it was made from"
    if head.startswith(b"PK\x03\x04"):
        return _zip(path)
    return None


def _zip(path: Path) -> str | None:
    """PyTorch's files and NumPy's .npz are zip archives too."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return None  # cut short: the reader says so
    inner = {name.partition("/")[2] for name in names}
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return (
            "is a TorchScript program, not weights, so it was not loaded: "
            "save the state_dict() of the model it was made from"
        )
    weights = next((name for name in names if name.endswith(WEIGHTS)), "")
    if "data.pkl" in inner or (path.suffix == ".npz" and not weights):
        return None
    inside = f"{Path(weights).name}, which is in it" if weights else "the weight file, if it holds one"
    return f"is a zip archive, not a weight file: unpack it and give {inside}"
