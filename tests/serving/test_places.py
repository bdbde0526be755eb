"""Answers about places: masks at the picture's own size, boxes in its own pixels, and where both lie for the page."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.serving.server import ThreadServer, picture, unpacked
from vitrail.data.loading.transforms import letterbox_of
from vitrail.model.heads.box_heads import Attention, BoxDecoder
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.serving.forward_batch import ForwardRequest, ForwardResult
from vitrail.serving.limits import Limits
from vitrail.serving.map_encoding import Maps, attention_maps_of, decoder_query_maps
from vitrail.serving.overlays import MAX_MASK_PIXELS, overlay_positions, relative_box, subsample_mask
from vitrail.serving.served_model import ServedModel
from vitrail.tasks.letterbox import Letterbox
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing


def checkpoint(task: str, head: str, resize: str) -> Checkpoint:
    torch.manual_seed(0)
    config = preset("mu/4", classes=3, image_size=32, head=head, depth=2)
    model = ViT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.2)
    return Checkpoint(model, Preprocessing(size=config.image_size, resize=resize), task, ["sky", "<b>", "tree"])


def test_a_model_of_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = checkpoint("segment", "mask_linear", "pad").save(tmp_path / "model.safetensors")
    data = picture(1, size=(60, 30))
    expected = vitrail.load(path).predict(data)
    server = ThreadServer(path)
    (response,) = server.send("/v1/predict", data).json["results"]
    mask = np.asarray(Image.open(io.BytesIO(base64.b64decode(response["mask_png"]))))
    assert (mask == expected["mask"]).all() and mask.shape == (30, 60)
    assert [area["label"] for area in response["areas"]] == [area["label"] for area in expected["areas"]]
    header, parts = unpacked(server.send("/v1/look", data).body)
    assert (parts["mask"] == mask).all()
    assert header["mask_box"] == [0, 0.25, 1, 0.75]  # padded above and below
    assert header["answer"]["areas"] == response["areas"] and header["words"]
    assert server.send("/v1/embed", data).json["width"] == 32
    for method in server.get("/v1/model").json["methods"]:
        assert server.send(f"/v1/explain?method={method}", data).json["label"] is None
    assert server.send("/v1/explain?label=sky", data).status == 422
    assert server.send("/v1/walk", data).status == 200
    assert server.stop() == 0 and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("task", "head", "resize"),
    [("segment", "mask_linear", "squash"), ("segment", "mask_linear", "window"), ("detect", "box_tokens", "pad")],
)
def test_answers_are_those_of_predict(task: str, head: str, resize: str) -> None:
    model = checkpoint(task, head, resize)
    served = ServedModel(model, "m", Limits(), device="cpu")
    data = picture(2, size=(70, 50))
    read = served.read(data, "it")
    [response] = served.run([ForwardRequest(read.pixels, lambda result: served.answer(read, result, 5))])
    [prediction] = vitrail.Predictor(model, device="cpu").predict([data])
    assert prediction.answer is not None and response.keys() == prediction.answer.keys()
    if task == "segment":
        assert (response["mask"] == prediction.answer["mask"]).mean() > 0.999
    else:
        assert response == prediction.answer
        assert len(overlay_positions(response, read.letterbox)["boxes"]) == len(response["objects"])


def test_a_look_tells_what_the_queries_of_a_decoder_attend_to() -> None:
    model = checkpoint("detect", "box_decoder", "pad")
    served = ServedModel(model, "m", Limits(), device="cpu")
    read = served.read(picture(3, size=(40, 50)), "it")
    seen = []

    def slowly(attention: Attention, arguments: tuple[torch.Tensor, ...], _: torch.Tensor) -> None:
        query, key = attention.query(arguments[0])[0], attention.key(arguments[1])[0]
        width = query.shape[1] // attention.heads
        for head in range(attention.heads):
            part = slice(head * width, (head + 1) * width)
            seen.append(torch.softmax(query[:, part] @ key[:, part].T / width**0.5, dim=1))

    assert isinstance(model.model.head, BoxDecoder)
    hook = model.model.head.last_cross_attention.register_forward_hook(slowly)
    [maps] = served.run(
        [ForwardRequest(read.pixels, lambda result: decoder_query_maps(model.model, result.query_attention), block=1)]
    )
    hook.remove()
    values = maps.values()
    assert values.shape == (len(seen), 64, model.config.prefix + 64)  # no more queries than patches
    assert (values[..., : model.config.prefix] == 0).all()
    assert np.abs(values[..., model.config.prefix :] - torch.stack(seen).numpy()).max() <= maps.scale.max() / 255


def test_boxes_as_relative_box_what_is_seen() -> None:
    frame = Letterbox((50, 100), (8, 0, 24, 32), (32, 32))
    assert relative_box((0, 0, 100, 50), frame) == [0, 0.25, 1, 0.75]
    assert relative_box((50, 25, 100, 50), frame) == [0.5, 0.5, 1, 0.75]
    large = letterbox_of((64, 128), Preprocessing(size=(32, 32), resize="window"))
    assert large.inside == (-16, -48, 48, 80)
    assert relative_box((48, 16, 80, 48), large) == [0, 0, 1, 1]  # the window in the middle
    small = letterbox_of((10, 20), Preprocessing(size=(32, 32), resize="window"))
    assert small.inside == (11, 6, 21, 26)


def test_a_large_mask_is_subsample_mask_to_be_shown() -> None:
    assert subsample_mask(np.zeros((4000, 3000), np.uint8)).size <= MAX_MASK_PIXELS
    assert subsample_mask(np.zeros((40, 30), np.uint8)).shape == (40, 30)


def test_too_many_windows_are_refused() -> None:
    served = ServedModel(checkpoint("segment", "mask_linear", "window"), "m", Limits(), device="cpu")
    with pytest.raises(vitrail.UnreadableImage, match="more than 64 windows"):
        served.read(picture(size=(400, 400)), "it")


@pytest.mark.parametrize(("task", "head"), [("detect", "box_decoder"), ("segment", "mask_linear")])
def test_maps_of_a_model_that_runs_in_bfloat16(task: str, head: str) -> None:
    model = checkpoint(task, head, "pad")
    exact, mixed = (ServedModel(model, "m", Limits(), device="cpu", precision=p) for p in ("fp32", "bf16"))
    assert (exact.describe([])["precision"], mixed.describe([])["precision"]) == ("float32", "bfloat16")
    read = exact.read(picture(3, size=(40, 50)), "it")

    def look(result: ForwardResult) -> list[Maps]:
        assert result.step is not None
        maps = [attention_maps_of(model.model, result.step)]
        if result.query_attention is not None:
            maps.append(decoder_query_maps(model.model, result.query_attention))
        return maps

    expected, found = (served.run([ForwardRequest(read.pixels, look, block=1)])[0] for served in (exact, mixed))
    assert len(found) == (2 if head == "box_decoder" else 1)
    for one, other in zip(expected, found, strict=True):
        assert other.scale.dtype == np.float32 and one.values().shape == other.values().shape
    assert np.abs(expected[0].values() - found[0].values()).max() < 0.1
