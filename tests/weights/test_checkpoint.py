"""Our file: it carries everything, comes back bit-equal, and a damaged one is refused in one sentence."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import vitrail
from tests.hostile import outcome
from vitrail.errors import VitrailError
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.weights import checkpoint as module
from vitrail.weights.checkpoint import Checkpoint, checksum
from vitrail.weights.model_description import CHECKSUM, KEY
from vitrail.weights.preprocessing import Preprocessing


def make(**changes) -> Checkpoint:
    config = preset("mu/4", image_size=16, classes=3, **changes)
    labels = ["cat", "<b>dog</b>", '貓 & "quotes"']
    pre = Preprocessing(size=(16, 16), resize="pad", mean=(0.1,) * config.channels, std=(0.2,) * config.channels)
    return Checkpoint(ViT(config).eval(), pre, labels=labels, provenance={"source": "made in a test", "notes": ["one"]})


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    return make().save(tmp_path_factory.mktemp("saved") / "model.safetensors")


def resealed(path: Path, tensors: dict, description: dict) -> Path:
    """A file whose checksum is right although its content is not ours: only the other checks can refuse it."""
    text = json.dumps(description)
    save_file(tensors, path, {KEY: text, CHECKSUM: checksum(text, tensors)})
    return path


def described(path: Path) -> dict:
    with path.open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return json.loads(header["__metadata__"][KEY])


def one_sentence(error: pytest.ExceptionInfo) -> str:
    text = str(error.value)
    assert "\n" not in text and 20 < len(text) < 500
    return text


def test_everything_comes_back_bit_equal(tmp_path):
    before = make(registers=2, stem="conv", layer_scale=0.1)
    after = vitrail.load(before.save(tmp_path / "m.safetensors"))
    assert after.config == before.config
    assert (after.task, after.labels, after.preprocessing) == (before.task, before.labels, before.preprocessing)
    assert after.provenance == before.provenance
    for name, tensor in before.model.state_dict().items():
        assert torch.equal(after.model.state_dict()[name], tensor), name
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(after.model(images), before.model(images))
    assert all(parameter.requires_grad for parameter in after.model.parameters())


@settings(max_examples=25, deadline=None)
@given(
    stem=st.sampled_from(["linear", "conv"]),
    positions=st.sampled_from(["learned", "sincos1d", "sincos2d", "rotary", "none"]),
    pool=st.sampled_from(["cls", "mean", "cls_mean", "attention", "none"]),
    registers=st.integers(0, 3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    activation=st.sampled_from(["gelu", "gelu_tanh", "quick_gelu", "swiglu"]),
    head=st.sampled_from(["linear", "mlp"]),
    channels=st.sampled_from([1, 3, 5]),
)
def test_any_config_round_trips_bit_equal(tmp_path_factory, dtype, **changes):
    before = make(**changes)
    before.model.to(dtype)
    path = before.save(tmp_path_factory.mktemp("any") / "m.safetensors")
    after = vitrail.load(path)
    assert after.config == before.config
    assert after.model.state_dict().keys() == before.model.state_dict().keys()
    for name, tensor in before.model.state_dict().items():
        loaded = after.model.state_dict()[name]
        assert loaded.dtype == tensor.dtype and torch.equal(loaded, tensor), name


def test_a_folder_that_holds_the_file_loads_too(saved):
    assert vitrail.load(saved.parent).labels == make().labels


def test_a_cnn_of_the_users_own_is_saved_and_asked_for(tmp_path):
    def cnn():
        return torch.nn.Conv2d(3, 5, 4, 4)

    config = preset("mu/4", image_size=16, classes=2, stem="features", feature_channels=5)
    before = Checkpoint(ViT(config, cnn()).eval(), Preprocessing(size=(16, 16)))
    path = before.save(tmp_path / "m.safetensors")
    with pytest.raises(VitrailError, match="cnn="):
        vitrail.load(path)
    images = torch.randn(1, 3, 16, 16)
    assert torch.equal(vitrail.load(path, cnn=cnn()).model(images), before.model(images))


def test_truncation_at_every_section_is_one_clear_error(saved, tmp_path):
    content = saved.read_bytes()
    header = 8 + struct.unpack("<Q", content[:8])[0]
    cut = tmp_path / "cut.safetensors"
    for length in [0, 1, 7, 8, 9, 8 + header // 2, header - 1, header, header + 1, len(content) // 2, len(content) - 1]:
        cut.write_bytes(content[:length])
        with pytest.raises(VitrailError) as error:
            vitrail.load(cut)
        assert "cut.safetensors" in one_sentence(error)


@settings(max_examples=150, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), in_header=st.booleans())
def test_a_flipped_bit_anywhere_is_one_clear_error(saved, where, bit, in_header):
    content = bytearray(saved.read_bytes())
    header = 8 + struct.unpack("<Q", content[:8])[0]
    content[int(where * (header if in_header else len(content)))] ^= 1 << bit
    bad = saved.parent.parent / f"flipped-{os.getpid()}.safetensors"
    bad.write_bytes(bytes(content))
    with pytest.raises(VitrailError) as error:
        vitrail.load(bad)
    assert bad.name in one_sentence(error)


@pytest.mark.parametrize("length", [100_000_001, 2**40, 2**63, 2**64 - 1])
def test_a_huge_header_is_refused_at_once(saved, tmp_path, length):
    bad = tmp_path / "huge.safetensors"
    bad.write_bytes(struct.pack("<Q", length) + saved.read_bytes()[8:])
    with pytest.raises(VitrailError, match=r"huge\.safetensors"):
        vitrail.load(bad)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, "update Vitrail"),
        ({"format": "1"}, "format"),
        ({"task": "dance"}, "dance"),
        ({"task": None}, "task"),
        ({"labels": ["a", "b"]}, "2 labels for 3 classes"),
        ({"labels": [1, 2, 3]}, "labels"),
        ({"labels": "abc"}, "labels"),
        ({"provenance": []}, "provenance"),
        ({"preprocessing": None}, "preprocessing"),
        ({"preprocessing": {"size": [17, 16], "mean": [0, 0, 0], "std": [1, 1, 1]}}, "17"),
        ({"preprocessing": {"size": [16, 16], "mean": [0], "std": [1]}}, "1 channels"),
        ({"preprocessing": {"size": [16, 16], "mean": [0, 0, 0], "std": [1, 0, 1]}}, "std"),
        ({"preprocessing": {"sizes": [16, 16]}}, "sizes"),
        ({"config": None}, "config"),
    ],
)
def test_a_wrong_description_is_refused_even_with_a_right_checksum(saved, tmp_path, change, says):
    bad = resealed(tmp_path / "bad.safetensors", load_file(saved), described(saved) | change)
    with pytest.raises(VitrailError) as error:
        vitrail.load(bad)
    text = one_sentence(error)
    assert says in text and "bad.safetensors" in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"width": 64}, "shape"),
        ({"depth": 2}, "lacks blocks.1."),
        ({"depth": 10**9}, "depth 1000000000"),
        ({"image_size": [10**6, 10**6]}, "patches"),
        ({"positions": "sincos2d"}, "positions.table"),
        ({"registers": 1}, "registers"),
        ({"colour": "blue"}, "colour"),
        ({"width": "wide"}, "width"),
        ({"heads": 5}, "heads 5"),
        ({"classes": 4}, "shape"),
    ],
)
def test_shapes_that_do_not_fit_the_config_are_named(saved, tmp_path, change, says):
    description = described(saved)
    description["config"] |= change
    bad = resealed(tmp_path / "bad.safetensors", load_file(saved), description)
    with pytest.raises(VitrailError) as error:
        vitrail.load(bad)
    assert says in one_sentence(error)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool, torch.complex64])
def test_wrong_types_are_refused(saved, tmp_path, dtype):
    for names in (["norm.weight"], None):
        tensors = load_file(saved)
        for name in names or list(tensors):
            tensors[name] = tensors[name].to(dtype)
        with pytest.raises(VitrailError, match="float"):
            vitrail.load(resealed(tmp_path / "bad.safetensors", tensors, described(saved)))


def test_a_tensor_too_many_and_one_too_few_are_named(saved, tmp_path):
    tensors = load_file(saved)
    tensors["extra.weight"] = torch.zeros(2)
    with pytest.raises(VitrailError, match=r"extra\.weight"):
        vitrail.load(resealed(tmp_path / "more.safetensors", tensors, described(saved)))
    del tensors["extra.weight"], tensors["norm.bias"]
    with pytest.raises(VitrailError, match=r"norm\.bias"):
        vitrail.load(resealed(tmp_path / "less.safetensors", tensors, described(saved)))


def test_a_file_that_is_not_ours_says_what_it_holds(tmp_path):
    save_file({"some.weight": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    with pytest.raises(VitrailError, match=r"other\.safetensors.*some\.weight"):
        vitrail.load(tmp_path / "other.safetensors")


def test_a_failed_write_leaves_the_last_good_file(tmp_path, monkeypatch):
    path = make().save(tmp_path / "m.safetensors")
    good = path.read_bytes()

    def breaks(tensors, temporary, metadata):
        Path(temporary).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", breaks)
    with pytest.raises(VitrailError, match=r"cannot write .*m\.safetensors: No space left"):
        make().save(path)
    assert path.read_bytes() == good
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(VitrailError, match="cannot write"):
        make().save(tmp_path / "file" / "m.safetensors")


def test_parts_that_do_not_fit_are_not_saved(tmp_path):
    bad = make()
    bad.labels = ["only one"]
    with pytest.raises(VitrailError, match="1 labels for 3 classes"):
        bad.save(tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("positions", ["learned", "sincos1d", "sincos2d", "rotary"])
@pytest.mark.parametrize(
    "change",
    [
        {"width": 10**9, "heads": 1},
        {"width": 10**6, "heads": 1, "mlp_width": 1},
        {"mlp_width": 10**12},
        {"classes": 10**9},
        {"registers": 10**9},
        {"channels": 10**9},
        {"stem": "conv", "stem_blocks": 10**9},
        {"head": "mask_queries", "classes": 10**9},
        {"head": "box_decoder", "head_depth": 10**9},
        {"head": "box_decoder", "queries": 10**9},
        {"head": "mask_decoder", "head_width": 10**9},
    ],
)
def test_a_model_larger_than_its_file_is_refused_before_it_is_built(saved, tmp_path, change, positions):
    description = described(saved)
    config = description["config"] | {"positions": positions, "cls_position": None, "final_norm": None} | change
    mlp = {} if "mlp_width" in change or "width" not in change else {"mlp_width": None}
    description["config"] = config | mlp
    bad = resealed(tmp_path / "bad.safetensors", load_file(saved), description)
    answer = outcome(f"import vitrail\nvitrail.load({str(bad)!r})", tmp_path, megabytes=100)
    assert "but it holds only" in answer


@pytest.mark.parametrize("notes", [5, "a note", {"a": 1}, [1], None])
def test_notes_that_are_no_list_of_sentences(saved, tmp_path, notes):
    description = described(saved) | {"provenance": {"notes": notes}}
    with pytest.raises(VitrailError, match="the notes of its provenance are not a list of sentences"):
        vitrail.load(resealed(tmp_path / "bad.safetensors", load_file(saved), description))


@pytest.mark.parametrize(
    "change", [{"crop_fraction": 0.003, "size": [224, 224]}, {"size": [2**20, 2**20]}, {"size": [16, 10**18]}]
)
def test_preprocessing_that_would_fill_the_memory(saved, tmp_path, change):
    description = described(saved)
    description["preprocessing"] |= change
    with pytest.raises(VitrailError, match="makes every image larger than 67,108,864 pixels"):
        vitrail.load(resealed(tmp_path / "bad.safetensors", load_file(saved), description))
