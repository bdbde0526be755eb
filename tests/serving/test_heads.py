"""Every route for every head, with and without [CLS], positions in every block (YOLOS) and registers."""

from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.serving.server import AppClient, form, picture, unpacked
from vitrail.errors import VitrailError
from vitrail.explanation.methods.attention_maps import attention_maps
from vitrail.inference.predictor import Predictor
from vitrail.model.config import CHOICES, ViTConfig
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.visuals.palette import hexadecimal, palette
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

LABELS = ["sky", "<b>", "background"]
TASKS = {"linear": "classify", "mlp": "classify", "box_tokens": "detect", "box_decoder": "detect"}  # others: segment
GRID = (4, 4)


def config_of(head: str, cls_token: bool, block_positions: bool, registers: int) -> ViTConfig:
    queries = {"queries": 5} if head.startswith("box_") else {}
    return preset(
        "mu/4",
        image_size=16,
        depth=2,
        classes=len(LABELS),
        head=head,
        cls_token=cls_token,
        pool="cls" if cls_token else "mean",
        block_positions=block_positions,
        registers=registers,
        **queries,
    )


def cases() -> Iterator[ViTConfig]:
    for choice in itertools.product(CHOICES["head"], (True, False), (False, True), (0, 2)):
        try:
            yield config_of(*choice)
        except VitrailError:
            continue  # the config itself says that these do not go together


def name_of(config: ViTConfig) -> str:
    parts = [config.head, "cls" if config.cls_token else "no cls", f"{config.registers} registers"]
    return ", ".join(parts + ["block positions"] * config.block_positions)


CASES = list(cases())


@pytest.fixture(scope="module", params=CASES, ids=name_of)
def client(request: pytest.FixtureRequest, lively: Callable[..., ViT]) -> Iterator[AppClient]:
    config: ViTConfig = request.param
    preprocessing = Preprocessing(size=config.image_size, resize="pad" if config.is_dense else "squash")
    checkpoint = Checkpoint(lively(config), preprocessing, TASKS.get(config.head, "segment"), LABELS)
    client = AppClient(checkpoint)
    yield client
    client.close()


def assert_close(answer: Any, expected: Any) -> None:
    """Equal, but for the last digits of numbers."""
    if isinstance(expected, dict):
        assert answer.keys() == expected.keys()
        for name, value in expected.items():
            assert_close(answer[name], value)
    elif isinstance(expected, list | tuple):
        assert len(answer) == len(expected)
        for one, other in zip(answer, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, float):
        assert answer == pytest.approx(expected, rel=1e-4, abs=1e-5)
    else:
        assert answer == expected


DATA = picture(1, size=(20, 12))


def test_every_head_is_among_the_cases() -> None:
    seen = {(config.head, config.cls_token) for config in CASES}
    assert {head for head, _ in seen} == set(CHOICES["head"])
    for head in CHOICES["head"]:
        assert {config.registers for config in CASES if config.head == head} == {0, 2}
        assert {config.block_positions for config in CASES if config.head == head} == {False, True}
        assert {cls for name, cls in seen if name == head} == {False, True}


def test_answers_and_embeddings(client: AppClient) -> None:
    checkpoint = client.runner.served.checkpoint
    [expected] = Predictor(checkpoint, device="cpu").predict([DATA])
    [answer] = client.send("/v1/predict", DATA).json["results"]
    assert expected.answer is not None
    mask = answer.pop("mask_png", None)
    if mask is not None:
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(mask))))
        assert (pixels == expected.answer.pop("mask")).mean() > 0.99
    else:
        assert_close(answer, expected.answer)
    embedding = client.send("/v1/embed", DATA).json
    assert embedding["width"] == checkpoint.config.width
    assert np.isfinite(embedding["embeddings"][0]).all()


def test_attention_is_that_of_the_model(client: AppClient) -> None:
    served, data = client.runner.served, DATA
    images = served.input_of(served.read(data, "it"))
    header, parts = unpacked(client.send("/v1/look?block=1", data).body)
    maps = parts["maps"] / 255 * parts["scale"][..., None]
    prefix = len(header["prefix"])
    assert maps.shape[1:] == (prefix + 16, prefix + 16) and header["grid"] == list(GRID)
    (expected,) = attention_maps(served.model, images, (1, 2), blocks=[1])
    row = torch.cat([expected.prefix[0], expected.patches[0].flatten(1)], dim=1).numpy()
    assert np.allclose(maps[:, prefix + 6], row, atol=row.max() / 200)
    body, kind = form(data)
    headers = {"Content-Type": kind, "Accept": "application/json"}
    response = client.ask("POST", "/v1/attention?block=1&query=1,2", body, headers).json
    assert response["query"] == "patch 1,2"
    assert np.allclose(np.array(response["maps"])[:, 0], row, atol=row.max() / 200)


def test_explanations_and_the_walk(client: AppClient) -> None:
    model = client.get("/v1/model").json
    assert "rollout" in model["methods"]
    for method in model["methods"]:
        response = client.send(f"/v1/explain?method={method}", DATA)
        assert response.status == 200, response.body
        assert np.array(response.json["map"]).shape == GRID and np.isfinite(response.json["map"]).all()
    walk = client.send("/v1/walk?block=0", DATA)
    assert walk.status == 200, walk.body
    assert walk.json["steps"][0]["title"] == "The image becomes patches"


def test_classes_of_masks_and_boxes_have_the_colours_of_the_report(client: AppClient) -> None:
    model = client.get("/v1/model").json
    expected = [hexadecimal(colour) for colour in palette(LABELS)]
    assert model["colours"] == (expected if client.runner.served.dense else None)
