"""The right answers, in order, alone or in a batch, however many there are."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.errors import VitrailError
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference import engine, image_processor
from vitrail.inference import predictor as module
from vitrail.inference.predictor import Predictor
from vitrail.inference.prefetch import PAUSE


def test_the_same_as_transformers_on_its_weights(tmp_path: Path, picture: Callable[..., Image.Image]) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    names = {0: "cat", 1: "dog", 2: "owl"}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, id2label=names)
    torch.manual_seed(0)
    theirs = transformers.ViTForImageClassification(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    theirs.save_pretrained(tmp_path / "theirs")
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32}, do_resize=True)
    processor.save_pretrained(tmp_path / "theirs")
    pictures = [picture(seed) for seed in range(5)]
    prepared = torch.stack([torch.from_numpy(_plainly(one)) for one in pictures])
    with torch.no_grad():
        expected = theirs(prepared).logits.softmax(1)
    answers = vitrail.load(tmp_path / "theirs").predict(pictures)
    assert len({answer["label"] for answer in answers}) > 1
    for answer, row in zip(answers, expected, strict=True):
        assert answer["label"] == names[int(row.argmax())]
        for guess in answer["top"]:
            place = next(key for key, name in names.items() if name == guess["label"])
            assert guess["probability"] == pytest.approx(row[place].item(), abs=1e-4)


def _plainly(picture: Image.Image) -> np.ndarray:
    """What ViT's own processor does, written out: squashed to 32 px by bilinear filtering, to -1..1."""
    resized = np.asarray(picture.resize((32, 32), Image.Resampling.BILINEAR), dtype=np.float32)
    return ((resized / 255 - 0.5) / 0.5).transpose(2, 0, 1)


def test_the_same_as_plain_torch_on_a_saved_file(
    save: Callable[..., Path], picture: Callable[..., Image.Image]
) -> None:
    model = vitrail.load(save())
    pixels = np.asarray(picture(4).resize((48, 40), Image.Resampling.BICUBIC), dtype=np.float32)[4:36, 8:40]  # 32 / 0.8
    with torch.no_grad():
        expected = model.model(torch.from_numpy((pixels / 255 - 0.5) / 0.5).permute(2, 0, 1)[None])
    assert torch.allclose(model.outputs(picture(4)), expected, atol=1e-5)


def test_alone_and_in_a_batch(save: Callable[..., Path], picture: Callable[..., Image.Image]) -> None:
    model = vitrail.load(save())
    pictures = [picture(seed) for seed in range(9)]
    together = model.outputs(pictures, batch_size=4)
    assert together.std(0).min() > 0.1  # the pictures differ for the model
    for place, one in enumerate(pictures):
        assert torch.allclose(model.outputs(one)[0], together[place], atol=1e-5)


def test_order_is_kept_with_two_workers(
    save: Callable[..., Path], picture: Callable[..., Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, threads = image_processor.read_source, set()

    def slowly(source: Any, *rest: Any) -> Any:
        threads.add(threading.get_ident())
        time.sleep(0.01 * (len(threads) % 2))
        return read(source, *rest)

    monkeypatch.setattr(image_processor, "read_source", slowly)
    pictures = [picture(seed) for seed in range(20)]
    checkpoint = vitrail.load(save())
    expected = checkpoint.outputs(pictures, workers=1, batch_size=20)
    found = list(Predictor(checkpoint, batch_size=3, workers=2).outputs(pictures))
    assert [source for source, _ in found] == pictures
    assert torch.allclose(torch.stack([row for _, row in found]), expected, atol=1e-5)
    assert len(threads) >= 2


def test_as_many_threads_decode_as_the_network_has(save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = save()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    assert Predictor(model).workers == 5
    assert Predictor(model, workers=3).workers == 3


def test_an_unreadable_one_stands_in_its_place(save: Callable[..., Path], picture: Callable[..., Image.Image]) -> None:
    sources = [picture(0), b"nothing", "nowhere.png", picture(1), b""]
    predictions = list(Predictor(vitrail.load(save()), batch_size=2).predict(sources, top=1))
    assert [p.source for p in predictions] == sources
    assert [p.answer is None for p in predictions] == [False, True, True, False, True]
    assert all(isinstance(p.error, UnreadableImage) for p in predictions if p.answer is None)
    assert str(predictions[1].error).startswith("image number 2 ")


def test_the_first_answers_come_before_the_last_sources_are_asked_for(
    save: Callable[..., Path], picture: Callable[..., Image.Image]
) -> None:
    asked = 0

    def endless() -> Iterator[Image.Image]:
        nonlocal asked
        while True:
            asked += 1
            yield picture(0)

    stream = Predictor(vitrail.load(save()), batch_size=4).predict(endless())
    assert next(stream).answer is not None
    assert asked <= module.BATCHES * 4 + 4
    stream.close()


def test_a_pause_lets_out_a_short_batch(save: Callable[..., Path], picture: Callable[..., Image.Image]) -> None:
    waited = False

    def source() -> Iterator[Any]:
        nonlocal waited
        yield picture(0)
        yield PAUSE
        waited = True
        yield picture(1)

    stream = Predictor(vitrail.load(save()), batch_size=8).predict(source())
    next(stream)
    assert not waited
    assert len(list(stream)) == 1


def test_a_model_left_in_training_mode_still_answers_as_a_finished_one(
    save: Callable[..., Path], picture: Callable[..., Image.Image]
) -> None:
    model = vitrail.load(save(), dropout=0.5)
    expected = model.outputs(picture(0))
    model.model.train()
    assert torch.equal(model.outputs(picture(0)), expected)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_weights_of_other_types(
    save: Callable[..., Path], picture: Callable[..., Image.Image], kind: torch.dtype
) -> None:
    model = vitrail.load(save())
    expected = model.outputs(picture(0))
    model.model.to(kind)
    found = model.outputs(picture(0))
    assert found.dtype == torch.float32
    assert torch.allclose(found, expected, atol=0.2 if kind == torch.bfloat16 else 1e-4)


def test_channels_are_the_models(save: Callable[..., Path]) -> None:
    model = vitrail.load(save(channels=5))
    assert model.outputs(np.zeros((32, 32, 5), np.uint8)).shape == (1, 3)
    with pytest.raises(UnreadableImage, match="has 3 channels, not the 5"):
        model.predict(np.zeros((32, 32, 3), np.uint8))


def test_devices_and_batches_that_make_no_sense(save: Callable[..., Path]) -> None:
    model = vitrail.load(save())
    with pytest.raises(VitrailError, match="'toaster'; choose one of auto, cuda, mps, cpu"):
        Predictor(model, device="toaster")
    if not torch.cuda.is_available():
        with pytest.raises(VitrailError, match="no device 'cuda' on this machine"):
            Predictor(model, device="cuda")
    with pytest.raises(VitrailError, match="batch_size is 0"):
        Predictor(model, batch_size=0)


def test_a_batch_holds_fewer_images_of_more_tokens(save: Callable[..., Path]) -> None:
    small, large = vitrail.load(save()), vitrail.load(save(), image_size=800)
    assert engine.default_batch_size(small) == engine.LARGEST
    assert engine.default_batch_size(large) == 1


MEASURE = """
import json, resource, sys
from vitrail.commands.predict import run_predict
model, image = sys.argv[1:]
peaks = []
for images in (200, 2400):
    assert run_predict(model, [image] * images, json=image + ".json", batch_size=16) == 0
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(json.dumps(peaks))
"""


def test_memory_is_flat(save: Callable[..., Path], tmp_path: Path, picture: Callable[..., Image.Image]) -> None:
    pytest.importorskip("resource")
    model, image = save(image_size=128, patch_size=32), tmp_path / "small.png"
    picture(0, (8, 8)).save(image)
    run = subprocess.run([sys.executable, "-c", MEASURE, model, image], capture_output=True, text=True, check=True)
    few, many = json.loads(run.stdout.splitlines()[-1])
    assert many - few < 30, "2,200 more images of 128 px took more memory; their pixels would be 103 MB"
