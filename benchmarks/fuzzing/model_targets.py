"""What is fuzzed: model files."""

from __future__ import annotations

import functools
import json
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np

from benchmarks.fuzzing.target import Read, Target

if TYPE_CHECKING:
    from vitrail.weights.checkpoint import Checkpoint

ADAPTER = "adapter_model.safetensors"


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

    from vitrail.weights.checkpoint import checksum
    from vitrail.weights.model_description import CHECKSUM, KEY

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


def adapter(data: bytes, folder: Path) -> None:
    """A LoRA adapter of ones: JSON of its adapter_config.json and of the shapes of its tensors by name."""
    import torch
    from safetensors.torch import save_file

    from vitrail.errors import VitrailError
    from vitrail.weights.families.transformers_vit import write_folder

    if not (folder / "base").exists():
        write_folder(tiny(), folder / "base")
        (folder / "adapter").mkdir()
    try:
        content = json.loads(data)
        config, shapes = json.dumps(content["config"]), dict(content["tensors"])
        if any(len(shape) > 3 or any(side not in range(40) for side in shape) for shape in shapes.values()):
            raise VitrailError("no shapes, or too large to be made")
        save_file({name: torch.ones(shape) for name, shape in shapes.items()}, folder / "adapter" / ADAPTER)
    except (ValueError, TypeError, KeyError, RuntimeError, RecursionError) as error:
        raise VitrailError("no input of this target") from error
    (folder / "adapter" / "adapter_config.json").write_text(config)
    with mock.patch("vitrail.weights.hub.fetch", side_effect=VitrailError("nothing is fetched")):
        load(folder / "adapter")


def adapter_seed() -> bytes:
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "base_model_name_or_path": "../base"}
    config |= {"alpha_pattern": {"query": 8}, "use_rslora": False}
    module = "base_model.model.vit.encoder.layer.0.attention.attention"
    pairs = {f"{module}.{name}.lora_{part}.weight": [2, 16] for name in ("query", "value") for part in "AB"}
    shapes = {name: shape if "lora_A" in name else shape[::-1] for name, shape in pairs.items()}
    shapes |= {"base_model.model.classifier.weight": [2, 16], "base_model.model.classifier.bias": [2]}
    return json.dumps({"config": config, "tensors": shapes}).encode()


@functools.cache
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
            "adapter": [adapter_seed()],
        }


def seeds_of(name: str) -> Callable[[], list[bytes]]:
    return lambda: model_seeds()[name]


MODEL_TARGETS = {
    "safetensors": Target(read_as("model.safetensors"), seeds_of("safetensors")),
    "description": Target(description, seeds_of("description"), json=True),
    "npz": Target(read_as("model.npz"), seeds_of("npz")),
    "arrays": Target(arrays, seeds_of("arrays")),
    "pth": Target(read_as("model.pth"), seeds_of("pth")),
    "pickle": Target(pickle, seeds_of("pickle")),
    "config.json": Target(config_json, seeds_of("config.json"), json=True),
    "adapter": Target(adapter, seeds_of("adapter"), json=True),
}
