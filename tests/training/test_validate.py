"""Held-out images go through the model exactly as `predict` sends them."""

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.inference.engine import Engine
from vitrail.inference.image_processor import ImageProcessor
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.training.distributed import Processes
from vitrail.training.validate import HeldOutImages, outputs_of
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing


def test_outputs_are_those_of_predict(tmp_path, pictures):
    torch.manual_seed(0)
    how = Preprocessing(size=(16, 16), resize="pad")
    model = ViT(preset("mu/4", image_size=16, classes=3, dropout=0.5))
    Checkpoint(model, how, "classify", ["a", "b", "c"]).save(tmp_path / "m.safetensors")
    paths = sorted(pictures.rglob("*.png"))
    held = HeldOutImages(paths, ImageProcessor(how), workers=2)
    model.train()
    outputs = outputs_of(model, held, range(len(held)), Processes())
    assert model.training  # as it was before
    torch.testing.assert_close(outputs, vitrail.load(tmp_path / "m.safetensors").outputs(paths), atol=1e-5, rtol=1e-5)
    some = [5, 2, 40]
    torch.testing.assert_close(outputs_of(model, held, some, Processes()), outputs[some], atol=1e-5, rtol=1e-5)


def test_without_room_nothing_is_kept(pictures, monkeypatch):
    paths = sorted(pictures.rglob("*.png"))[:4]
    processor = ImageProcessor(Preprocessing(size=(8, 8)))
    kept = HeldOutImages(paths, processor, 1)
    monkeypatch.setattr("vitrail.training.validate.IN_MEMORY", 10)
    fresh = HeldOutImages(paths, processor, 1)
    one, other = ([image.pixels for image in images.take([0, 3])] for images in (kept, fresh))
    assert torch.equal(processor.transform(one), processor.transform(other))
    assert len(kept._cache) == 2 and not fresh._cache
    np.testing.assert_array_equal(len(kept), 4)


def test_where_not_all_fit_those_of_the_evaluations_on_the_way_are_kept(pictures, monkeypatch):
    paths = sorted(pictures.rglob("*.png"))[:4]
    monkeypatch.setattr("vitrail.training.validate.IN_MEMORY", 3 * 8 * 8 * 2)  # two images
    images = HeldOutImages(paths, ImageProcessor(Preprocessing(size=(8, 8))), 1)
    images.keep([0, 1, 2])
    images.take([0, 1, 2])
    assert not images._cache
    images.keep([1, 3])
    assert not images.look()
    first = images.take([0, 1, 3])
    assert set(images._cache) == {1, 3}
    for path in (paths[1], paths[3]):
        path.unlink()
    np.testing.assert_array_equal(images.take([3, 1])[1].pixels, first[1].pixels)


@pytest.mark.parametrize("resize", ["pad", "squash", "window"])
def test_dense_images_are_read_as_predict_reads_them(tmp_path, resize):
    """Also a large JPEG, which other tasks decode at a fraction of its size."""
    pixels = np.random.default_rng(0).integers(0, 256, (400, 700, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.jpg")
    preprocessing = Preprocessing(size=(16, 16), resize=resize)
    model = ViT(preset("mu/4", image_size=16, classes=3, head="mask_linear"))
    engine = Engine.open(Checkpoint(model, preprocessing, "segment", ["a", "b", "c"]))
    expected = engine.read(tmp_path / "large.jpg")
    [image] = HeldOutImages([tmp_path / "large.jpg"], ImageProcessor(preprocessing, dense=True), 1).take([0])
    np.testing.assert_array_equal(image.pixels, expected.pixels)
    assert image.letterbox == expected.letterbox and image.letterbox.own == (400, 700)
    assert (image.whole is not None) == (resize == "window")
