"""Weight files as people have them: wrapped by trainers, no weights at all, of no family, or an adapter."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import vitrail
from vitrail.errors import VitrailError
from vitrail.weights.load import load


def shaken(model: nn.Module) -> nn.Module:
    """Random weights of which every one matters."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def small_timm(**changes: Any) -> nn.Module:
    return shaken(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, **{"num_classes": 3, **changes}))


def small_transformers() -> Any:
    shape = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
    config = transformers.ViTConfig(**shape, image_size=32, patch_size=8, num_labels=3)
    return shaken(transformers.ViTForImageClassification(config))


def largest_difference(found: nn.Module, expected: Callable[[Tensor], Tensor]) -> float:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        answer = expected(images)
        assert answer.std() > 0.01  # an answer of zeros would prove nothing
        return float((found(images) - answer).abs().max())


def refusal(path: Path) -> str:
    with pytest.raises(VitrailError) as caught:
        load(path)
    sentence = str(caught.value)
    assert path.name in sentence and "\n" not in sentence and len(sentence) < 450
    return sentence


# ---- what trainers put around weights


@pytest.mark.parametrize("ending", [".pth", ".ckpt"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: {"model_state_dict": s, "optimizer_state_dict": {"state": {}}, "epoch": 3},
        lambda s: {"model_state": s},
        lambda s: {"net": s, "acc": 0.9},
        lambda s: {"ema": s, "model": {n: 0 * t for n, t in s.items()}},
        lambda s: {"ema": {"decay": torch.tensor(0.99)}, "model": s},
        lambda s: {"checkpoint": 1, "state_dict": {"model": s}},
    ],
)
def test_an_entry_holds_the_weights(wrap: Callable[[dict[str, Tensor]], Any], ending: str, tmp_path: Path) -> None:
    theirs = small_timm()
    torch.save(wrap(theirs.state_dict()), tmp_path / f"model{ending}")
    assert largest_difference(load(tmp_path / f"model{ending}", family="timm").model, theirs) <= 1e-4


@pytest.mark.parametrize(
    "prefix",
    [
        *("model.", "net.", "backbone.", "vit.", "encoder.", "_orig_mod.", "module.", "network."),
        *("model._orig_mod.", "_orig_mod.module.model.", "module._orig_mod.net.", "model.backbone.vit."),
    ],
)
def test_prefixes_in_any_order(prefix: str, tmp_path: Path) -> None:
    theirs = small_timm()
    state = {f"{prefix}{name}": tensor for name, tensor in theirs.state_dict().items()}
    torch.save({"state_dict": {**state, "criterion.weight": torch.ones(3)}}, tmp_path / "last.ckpt")
    checkpoint = load(tmp_path / "last.ckpt", family="timm")
    assert largest_difference(checkpoint.model, theirs) <= 1e-4
    assert any("1 tensor beside them was left out" in note for note in checkpoint.notes)


@pytest.mark.parametrize("prefix", ["", "model.", "net._orig_mod.", "vit.", "encoder."])
def test_prefixes_before_transformers_own(prefix: str, tmp_path: Path) -> None:
    theirs = small_transformers()
    theirs.save_pretrained(tmp_path / "plain")
    published = load_file(tmp_path / "plain" / "model.safetensors")
    for state in (published, theirs.state_dict()):  # as files have it, and as transformers 5 has it in memory
        torch.save({"state_dict": {f"{prefix}{name}": t for name, t in state.items()}}, tmp_path / "last.ckpt")
        checkpoint = load(tmp_path / "last.ckpt", heads=3)
        assert checkpoint.config.classes == 3
        assert largest_difference(checkpoint.model, lambda images: theirs(images).logits) <= 1e-4


def test_a_lightning_encoder_without_a_head(tmp_path: Path) -> None:
    theirs = small_transformers().vit
    torch.save({"state_dict": {f"encoder.{n}": t for n, t in theirs.state_dict().items()}}, tmp_path / "last.ckpt")
    model = load(tmp_path / "last.ckpt", heads=3).model
    assert largest_difference(model, lambda images: theirs(images).last_hidden_state[:, 0]) <= 1e-4


# ---- no weights at all


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", ["model.safetensors", "model.pth", "model.bin", "model.npz"])
def test_what_was_downloaded_is_not_the_weights(name: str, tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.example/spec/v1\noid sha256:00\nsize 12345\n"
    assert "Git LFS pointer" in refusal(written(tmp_path / name, pointer))
    assert "git lfs pull" in refusal(tmp_path / name)
    for page in (b"<!DOCTYPE html><html>", b"\n\n  <html lang=en>"):
        assert "web page" in refusal(written(tmp_path / name, page))


def test_archives_and_graphs(tmp_path: Path) -> None:
    for name in ("model.zip", "model.pth", "model.npz"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("release/weights.pth", "x")
            archive.writestr("release/README.md", "x")
        assert "is a zip archive" in refusal(tmp_path / name)
        assert "weights.pth, which is in it" in refusal(tmp_path / name)
    assert "ONNX graph" in refusal(written(tmp_path / "model.onnx", b"\x08\x08"))
    assert "ONNX graph" in refusal(written(tmp_path / "model.bin", b"\x08\x08\x12\x07pytorch\x1a"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_torchscript_archive_says_what_to_save(tmp_path: Path) -> None:
    torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "model.pt"))
    assert "TorchScript program" in refusal(tmp_path / "model.pt")
    assert "state_dict()" in refusal(tmp_path / "model.pt")


# ---- of no family, or of one of two


def test_the_nearest_family_is_named_with_what_differs(tmp_path: Path) -> None:
    state = {name.replace("attn.qkv", "attn.wqkv"): t for name, t in small_timm().state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    sentence = refusal(tmp_path / "model.safetensors")
    assert f"nearest to timm, whose names {len(state) - 4} of its {len(state)} tensors have" in sentence
    assert "4 have others (blocks.0.attn.wqkv.bias, blocks.0.attn.wqkv.weight, blocks.1.attn.wqkv.bias" in sentence
    assert "lacks blocks.0.attn.qkv.weight" in sentence


@pytest.mark.parametrize("family", ["transformers", "torchvision", "transformers-towers"])
def test_every_family_may_be_the_nearest(family: str, tmp_path: Path) -> None:
    if family == "transformers":
        small_transformers().save_pretrained(tmp_path / "theirs")
        state = load_file(tmp_path / "theirs" / "model.safetensors")
        state = {name.removeprefix("vit."): tensor for name, tensor in state.items()}
    elif family == "torchvision":
        from torchvision.models import VisionTransformer

        state = VisionTransformer(32, 16, 1, 2, 32, 32, num_classes=2).state_dict()
    else:
        shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = transformers.CLIPVisionConfig(**shape, image_size=32, patch_size=16)
        state = transformers.CLIPVisionModel(config).state_dict()
        state = {name.removeprefix("vision_model."): t for name, t in state.items() if t.is_floating_point()}
    patches = next(name for name, tensor in state.items() if tensor.dim() == 4)
    save_file({n.replace(patches, "stem.kernel"): t for n, t in state.items()}, tmp_path / "model.safetensors")
    sentence = refusal(tmp_path / "model.safetensors")
    assert f"nearest to {family}, whose names {len(state) - 1} of its {len(state)} tensors have" in sentence
    assert "1 has another (stem.kernel)" in sentence and f"lacks {patches}" in sentence


def test_a_file_that_timm_names_is_timms(tmp_path: Path) -> None:
    """Meta's DINO has timm's names and no head either."""
    state = small_timm(num_classes=0).state_dict()
    for name, family in [
        ("vit_tiny_patch16_224.augreg_in21k.pth", "timm"),
        ("dino_pretrain.pth", "meta"),
        ("weights.pth", "meta"),
    ]:
        torch.save(state, tmp_path / name)
        assert load(tmp_path / name).provenance["family"] == family
    torch.save(small_timm(num_classes=0, qkv_bias=False).state_dict(), tmp_path / "weights.pth")
    assert load(tmp_path / "weights.pth").provenance["family"] == "timm"  # DINO's attention has a bias


# ---- LoRA


@pytest.fixture
def adapter(tmp_path: Path) -> Callable[..., tuple[Any, Path]]:
    """A base, and an adapter for it in PEFT's format; the model that both give, and the adapter's folder."""

    def write(alpha: Any = 8, rank: int = 4, head: int = 0, names: str = "published", **more: Any) -> tuple[Any, Path]:
        theirs = small_transformers()
        theirs.save_pretrained(tmp_path / "base")
        (tmp_path / "adapter").mkdir(exist_ok=True)
        scale = alpha / (rank**0.5 if more.get("use_rslora") else rank)
        state: dict[str, Tensor] = {}
        for i, layer in enumerate(theirs.vit.layers):
            for part, published in (("q_proj", "query"), ("v_proj", "value")):
                down, up = 0.3 * torch.randn(rank, 48), 0.3 * torch.randn(48, rank)
                getattr(layer.attention, part).weight.data += scale * up @ down
                module = f"encoder.layer.{i}.attention.attention.{published}"
                module = module if names == "published" else f"layers.{i}.attention.{part}"
                state[f"base_model.model.vit.{module}.lora_A.weight"] = down
                state[f"base_model.model.vit.{module}.lora_B.weight"] = up
        if head:
            theirs.classifier = nn.Linear(48, head)
            state["base_model.model.classifier.weight"] = theirs.classifier.weight.data
            state["base_model.model.classifier.bias"] = theirs.classifier.bias.data
        save_file(state, tmp_path / "adapter" / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none"}
        config |= {"base_model_name_or_path": str(tmp_path / "base"), **more}
        (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
        return theirs, tmp_path / "adapter"

    return write


@pytest.mark.parametrize("names", ["published", "in memory"])
@pytest.mark.parametrize("how", [{}, {"use_rslora": True}, {"alpha": 3, "rank": 2}, {"head": 5}], ids=str)
def test_an_adapter_is_merged_into_its_base(how: dict[str, Any], names: str, adapter: Callable[..., Any]) -> None:
    theirs, folder = adapter(names=names, **how)
    for path in (folder, folder / "adapter_model.safetensors"):
        checkpoint = vitrail.load(path)
        assert largest_difference(checkpoint.model, lambda images: theirs(images).logits) <= 1e-4
        assert any("LoRA adapter was merged into base" in note for note in checkpoint.notes)
    if "head" not in how:
        base = vitrail.load(folder.parent / "base").model
        assert largest_difference(base, lambda images: theirs(images).logits) > 0.01


def test_each_module_may_have_its_own_alpha(adapter: Callable[..., Any]) -> None:
    theirs, folder = adapter(alpha=8)
    config = json.loads((folder / "adapter_config.json").read_text())
    patterns = {"uery": 5, "^layer.0.attention.attention.query": 5, "attention.query": 8, "query": 3}
    patterns |= {"^vit.encoder.layer.0.attention.attention.value": 8, "layer.1.attention.attention.value": 8}
    config |= {"lora_alpha": 1, "alpha_pattern": patterns}  # the first that fits, as in PEFT
    (folder / "adapter_config.json").write_text(json.dumps(config))
    assert largest_difference(vitrail.load(folder).model, lambda images: theirs(images).logits) <= 1e-4


def test_an_adapter_whose_base_lies_beside_it(adapter: Callable[..., Any]) -> None:
    theirs, folder = adapter(base_model_name_or_path="../base")
    assert largest_difference(vitrail.load(folder).model, lambda images: theirs(images).logits) <= 1e-4


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"base_model_name_or_path": None}, "without its base"),
        ({"base_model_name_or_path": "no such folder"}, "its base no such folder is not here"),
        ({"peft_type": "LOHA"}, "an adapter of type LOHA"),
        ({"use_dora": True}, "with use_dora, which is not read"),
        ({"bias": "all"}, "with bias, which is not read"),
        ({"lora_alpha": "much"}, "not a number"),
        ({"lora_alpha": float("inf")}, "not a number"),
        ({"lora_alpha": 10**400}, "not a number"),
        ({"alpha_pattern": {"(a+)+$": 8}}, "with alpha_pattern, which is not read"),
        ({"alpha_pattern": {"[": 8}}, "with alpha_pattern, which is not read"),
        ({"alpha_pattern": {f"a{number}": 8 for number in range(1001)}}, "with alpha_pattern, which is not read"),
        ({"alpha_pattern": [8]}, "with alpha_pattern, which is not read"),
        ({"base_model_name_or_path": "x" * 300}, "is not here"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_adapters_that_cannot_be_merged(config: dict[str, Any], words: str, adapter: Callable[..., Any]) -> None:
    _, folder = adapter()
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    with pytest.raises(VitrailError, match=words) as caught:
        vitrail.load(folder)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("down", "up"),
    [((0, 48), (48, 0)), ((), (48, 4)), ((48,), (48, 4)), ((4, 48), ()), ((4, 48), (48, 5)), ((4, 47), (48, 4))],
    ids=str,
)
def test_matrices_of_another_shape(down: tuple[int, ...], up: tuple[int, ...], adapter: Callable[..., Any]) -> None:
    _, folder = adapter()
    file = folder / "adapter_model.safetensors"
    module = "base_model.model.vit.encoder.layer.0.attention.attention.query"
    changed = {f"{module}.lora_A.weight": torch.zeros(down), f"{module}.lora_B.weight": torch.zeros(up)}
    save_file(load_file(file) | changed, file)
    with pytest.raises(VitrailError, match="query are .*, its weight is"):
        vitrail.load(folder)


def test_two_pairs_for_one_weight(adapter: Callable[..., Any]) -> None:
    _, folder = adapter()
    file = folder / "adapter_model.safetensors"
    state = load_file(file)
    name = "vit.encoder.layer.0.attention.attention.query.lora_A.weight"
    state[name], state[name.replace("_A", "_B")] = torch.zeros(4, 48), torch.zeros(48, 4)
    save_file(state, file)
    with pytest.raises(VitrailError, match="changes .*query.weight twice"):
        vitrail.load(folder)


def test_an_adapter_of_many_tensors_takes_a_second_a_megabyte(adapter: Callable[..., Any]) -> None:
    _, folder = adapter()
    names = [f"base_model.model.vit.a{number}" for number in range(10_000)]
    base = folder.parent / "base" / "model.safetensors"
    more = {f"{name.removeprefix('base_model.model.')}.weight": torch.zeros(1, 1) for name in names}
    save_file(load_file(base) | more, base)
    state = {f"{name}.lora_{part}": torch.zeros(1, 1) for name in names for part in "BA"}
    save_file(state, folder / "adapter_model.safetensors")
    began = time.process_time()
    with pytest.raises(VitrailError):
        vitrail.load(folder)
    assert time.process_time() - began < 5


def test_an_adapter_alone(adapter: Callable[..., Any], tmp_path: Path) -> None:
    _, folder = adapter()
    (folder / "adapter_model.safetensors").rename(tmp_path / "lora.safetensors")
    assert "LoRA adapter without its base" in refusal(tmp_path / "lora.safetensors")
    (folder / "adapter_config.json").unlink()
    (tmp_path / "lora.safetensors").rename(folder / "adapter_model.safetensors")
    assert "copy adapter_config.json" in refusal(folder / "adapter_model.safetensors")


def test_an_adapter_for_another_base(adapter: Callable[..., Any], tmp_path: Path) -> None:
    _, folder = adapter()
    save_file(small_timm().state_dict(), tmp_path / "base" / "model.safetensors")
    with pytest.raises(VitrailError, match="which its base does not have"):
        vitrail.load(folder)
