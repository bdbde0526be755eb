"""A teacher sees the student's crop as its own pipeline would show it, and gives what the network itself gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitrail.data.loading.transforms import normalise, prepare
from vitrail.errors import VitrailError
from vitrail.model.encoder import Capture
from vitrail.model.presets import build_network, preset
from vitrail.training.teacher import Teacher, in_channels, load_teacher
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

LABELS = ["ant", "bee", "cat"]
CNN = "test_resnet"  # timm's own tiny one
STUDENT = Preprocessing(size=(32, 32), mean=(0.3, 0.5, 0.7), std=(0.2, 0.3, 0.4))
OWN = Preprocessing(size=(32, 32), mean=(0.1, 0.2, 0.6), std=(0.5, 0.25, 0.3))


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    """uint8 (B, H, W, C): smooth pictures, as photos are."""
    noise = np.random.default_rng(0).integers(0, 256, (4, 6, 6, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(one).resize((32, 32), Image.Resampling.BICUBIC)) for one in noise])


@pytest.fixture
def vit(tmp_path: Path, lively: Callable) -> Callable[..., Teacher]:
    """Saves a ViT and loads it as a teacher."""

    def make(preprocessing: Preprocessing = OWN, **changes: object) -> Teacher:
        config = preset("mu/4", image_size=preprocessing.size, channels=preprocessing.channels, classes=3)
        model = lively(config.replace(**changes))
        path = Checkpoint(model, preprocessing, labels=LABELS).save(tmp_path / "teacher.safetensors")
        return load_teacher(path)

    return make


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    """A folder as timm writes it to the hub, with the names of its classes, and the network of it."""
    folder = tmp_path_factory.mktemp("cnn") / "anything"
    torch.manual_seed(0)
    overlay = {"mean": OWN.mean, "std": OWN.std, "input_size": (3, 32, 32)}
    model = timm.create_model(CNN, num_classes=3, pretrained_cfg_overlay=overlay).train()
    with torch.no_grad():
        model(torch.randn(4, 3, 64, 64))
    timm.models.save_for_hf(model.eval(), folder, {"label_names": LABELS}, safe_serialization=True)
    return folder, model


def shown(pixels: np.ndarray, preprocessing: Preprocessing) -> Tensor:
    """What a model of this preprocessing is given of the pictures, by its own pipeline."""
    prepared = np.stack([prepare(one, preprocessing) for one in pixels])
    return normalise(torch.from_numpy(prepared), preprocessing)


def test_it_answers_as_its_own_pipeline_on_the_same_pixels(vit: Callable[..., Teacher], pixels: np.ndarray) -> None:
    teacher = vit()
    with torch.no_grad():
        expected = teacher.network(shown(pixels, OWN))
        wrong = teacher.network(shown(pixels, STUDENT))
    answers = teacher.outputs(shown(pixels, STUDENT), STUDENT)
    torch.testing.assert_close(answers, expected, atol=1e-4, rtol=1e-4)
    assert (wrong - expected).abs().max() > 0.05  # what the student's normalisation would have given
    assert torch.equal(teacher.outputs(shown(pixels, OWN), OWN), expected)  # nothing is undone where nothing differs


@pytest.mark.parametrize("size", [(48, 40), (16, 20)], ids=["larger", "smaller"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_another_size_is_resampled_as_pillow_does(
    vit: Callable[..., Teacher], pixels: np.ndarray, size: tuple[int, int], interpolation: str
) -> None:
    own = OWN.replace(size=size, interpolation=interpolation, resize="squash")
    teacher = vit(own)
    view, expected = teacher.view(shown(pixels, STUDENT), STUDENT), shown(pixels, own)
    levels = (view - expected).abs() * torch.tensor(own.std).view(3, 1, 1) * 255  # of 255
    assert view.shape == expected.shape and levels.max() < 2  # Pillow rounds and clips to bytes, twice
    with torch.no_grad():
        torch.testing.assert_close(
            teacher.outputs(shown(pixels, STUDENT), STUDENT), teacher.network(expected), atol=0.05, rtol=0.05
        )


def test_grey_and_colour(vit: Callable[..., Teacher], pixels: np.ndarray) -> None:
    grey = np.stack([np.asarray(Image.fromarray(one).convert("L")) for one in pixels])[..., None]
    grey_student = Preprocessing(size=(32, 32), mean=(0.4,), std=(0.3,))
    colour_teacher = vit()
    repeated = shown(np.repeat(grey, 3, axis=3), OWN)
    torch.testing.assert_close(colour_teacher.view(shown(grey, grey_student), grey_student), repeated)
    grey_teacher = vit(grey_student.replace(mean=(0.1,)))
    view = grey_teacher.view(shown(pixels, STUDENT), STUDENT)
    assert ((view - shown(grey, grey_teacher.preprocessing)).abs() * 0.3 * 255).max() < 1
    with pytest.raises(VitrailError, match="the student's images have 5 channels, and the teacher t takes 3"):
        in_channels(torch.zeros(1, 5, 4, 4), 3, "t")


@pytest.mark.parametrize(
    "changes",
    [{}, {"registers": 2}, {"distillation": True}, {"cls_token": False, "pool": "mean"}, {"pool": "attention"}],
    ids=str,
)
def test_features_are_the_tokens_of_the_network(vit: Callable[..., Teacher], pixels: np.ndarray, changes: dict) -> None:
    teacher = vit(**changes)
    found, own = teacher.features(shown(pixels, STUDENT), STUDENT), shown(pixels, OWN)
    capture = Capture()
    with torch.no_grad():
        expected = teacher.network.features(own)
        teacher.network(own, capture=capture)
    near = {"atol": 1e-4, "rtol": 1e-4}
    assert (found.cls is None) == (expected.cls is None) and found.grid == (8, 8)
    if found.cls is not None:
        torch.testing.assert_close(found.cls, expected.cls, **near)
    torch.testing.assert_close(found.patches, expected.patches, **near)
    torch.testing.assert_close(found.pooled, capture.pooled, **near)
    width = teacher.network.config.width
    assert teacher.feature_shapes() == (width, width, (8, 8))


def test_a_swin_teaches_too(tmp_path: Path, pixels: np.ndarray) -> None:
    torch.manual_seed(0)
    model = build_network(preset("swin-mu", image_size=32, classes=3)).eval()
    teacher = load_teacher(Checkpoint(model, OWN, labels=LABELS).save(tmp_path / "swin.safetensors"))
    found = teacher.features(shown(pixels, STUDENT), STUDENT)
    expected = teacher.network.features(shown(pixels, OWN))
    assert found.cls is None and found.grid == expected.grid
    torch.testing.assert_close(found.patches, expected.patches, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.pooled, expected.patches.mean(1), atol=1e-4, rtol=1e-4)


def test_a_cnn_of_timm(cnn: tuple[Path, torch.nn.Module], pixels: np.ndarray) -> None:
    folder, theirs = cnn
    teacher = load_teacher(folder)
    assert (teacher.labels, teacher.task) == (LABELS, "classify")
    assert teacher.preprocessing.size == (32, 32) and teacher.preprocessing.mean == OWN.mean
    own = shown(pixels, OWN)
    with torch.no_grad():
        expected, features = theirs(own), theirs.forward_features(own)
    torch.testing.assert_close(teacher.outputs(shown(pixels, STUDENT), STUDENT), expected, atol=1e-4, rtol=1e-4)
    found = teacher.features(shown(pixels, STUDENT), STUDENT)
    assert found.cls is None and found.grid == tuple(features.shape[2:])
    torch.testing.assert_close(found.patches, features.flatten(2).transpose(1, 2), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.pooled, features.mean((2, 3)), atol=1e-4, rtol=1e-4)


def test_its_answers_are_fit_for_a_loss_and_it_learns_nothing(vit: Callable[..., Teacher], pixels: np.ndarray) -> None:
    teacher, student = vit(), torch.randn(4, 3, requires_grad=True)
    before = {name: tensor.clone() for name, tensor in teacher.network.state_dict().items()}
    answers = teacher.outputs(shown(pixels, STUDENT), STUDENT)
    assert not answers.is_inference() and not answers.requires_grad and not teacher.network.training
    (student.log_softmax(1) * answers.softmax(1)).sum().backward()
    assert student.grad is not None
    assert all(parameter.grad is None for parameter in teacher.network.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.network.state_dict().items())


def test_the_fingerprint_is_that_of_weights_and_preprocessing(vit: Callable[..., Teacher], tmp_path: Path) -> None:
    first, again = vit(), vit()
    assert first.fingerprint == again.fingerprint
    assert vit(OWN.replace(mean=(0.1, 0.2, 0.5))).fingerprint != first.fingerprint
    again.network.head.out.bias += 1e-3
    path = Checkpoint(again.network, OWN, labels=LABELS).save(tmp_path / "other.safetensors")
    assert load_teacher(path).fingerprint != first.fingerprint


def test_what_cannot_teach_is_named(cnn: tuple[Path, torch.nn.Module], tmp_path: Path, pixels: np.ndarray) -> None:
    with pytest.raises(VitrailError, match="mu/16 is a preset with fresh weights"):
        load_teacher("mu/16")
    with pytest.raises(VitrailError, match="nothing.safetensors"):
        load_teacher("nothing.safetensors")
    with pytest.raises(VitrailError, match="timm has no architecture 'resnet1888'"):
        load_teacher("timm:resnet1888")
    tensors = {name: tensor for name, tensor in load_file(cnn[0] / "model.safetensors").items() if "fc" not in name}
    save_file(tensors, tmp_path / f"{CNN}.safetensors")
    with pytest.raises(VitrailError, match="has no classifier"):
        load_teacher(tmp_path / f"{CNN}.safetensors")
