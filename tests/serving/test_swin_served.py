"""Swin behind every route that answers: predictions, embeddings, and the attention of any block on its own grid."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tests.serving.server import AppClient, form, picture, unpacked
from tests.serving.test_heads import DATA, LABELS, TASKS, assert_close
from vitrail.inference.predictor import Predictor
from vitrail.model.presets import build_network, preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

CASES = [("swin-mu", "linear"), ("swinv2-mu", "linear"), ("swin-mu", "mask_decoder"), ("swinv2-mu", "box_decoder")]


@pytest.fixture(scope="module", params=CASES, ids=", ".join)
def client(request: pytest.FixtureRequest) -> Iterator[AppClient]:
    name, head = request.param
    torch.manual_seed(0)
    model = build_network(preset(name, head=head, classes=len(LABELS), image_size=(36, 32))).eval()
    preprocessing = Preprocessing(size=(36, 32), resize="pad" if model.config.is_dense else "squash")
    client = AppClient(Checkpoint(model, preprocessing, TASKS.get(head, "segment"), LABELS))
    yield client
    client.close()


def test_answers_and_embeddings(client: AppClient) -> None:
    checkpoint = client.runner.served.checkpoint
    [expected] = Predictor(checkpoint, device="cpu").predict([DATA])
    [answer] = client.send("/v1/predict", DATA).json["results"]
    assert expected.answer is not None
    if answer.pop("mask_png", None) is None:
        assert_close(answer, expected.answer)
    embedding = client.send("/v1/embed", DATA).json
    assert embedding["width"] == len(embedding["embeddings"][0]) == checkpoint.config.pooled_width == 32


@pytest.mark.parametrize(("block", "grid", "heads"), [(1, (9, 8), 2), (3, (5, 4), 4)])
def test_attention_has_the_grid_and_the_heads_of_its_block(
    client: AppClient, block: int, grid: tuple[int, int], heads: int
) -> None:
    header, parts = unpacked(client.send(f"/v1/look?block={block}", DATA).body)
    tokens = grid[0] * grid[1]
    assert header["patches"] == [9, 8] and len(header["windows"] or range(tokens)) == tokens
    assert header["grid"] == list(grid) and parts["maps"].shape == (heads, tokens, tokens)
    body, kind = form(DATA)
    headers = {"Content-Type": kind, "Accept": "application/json"}
    shown = client.ask("POST", f"/v1/attention?block={block}&query=1,2", body, headers).json
    assert (shown["query"], shown["grid"], shown["heads"]) == ("patch 1,2", list(grid), list(range(heads)))
    merged = 1 if grid == (9, 8) else 2  # patches a side of a token
    row = (parts["maps"] / 255 * parts["scale"][..., None])[:, 1 // merged * grid[1] + 2 // merged]
    assert np.allclose(np.array(shown["maps"])[:, 0], row, atol=0.01)
    assert 0 < (row > 0).sum(1).max() <= 16  # no more than its window


def test_explanations_that_fit_are_offered_and_work(client: AppClient) -> None:
    for method in client.get("/v1/model").json["methods"]:
        response = client.send(f"/v1/explain?method={method}", picture(1, size=(20, 12)))
        assert response.status == 200, response.body
        assert np.array(response.json["map"]).shape == (9, 8) and np.isfinite(response.json["map"]).all()


def test_the_walk_has_swins_own_steps(client: AppClient) -> None:
    response = client.send("/v1/walk?block=3", picture(1, size=(20, 12)))
    assert response.status == 200, response.body
    titles = " ".join(step["title"] for step in response.json["steps"])
    assert all(words in titles for words in ("patch merging", "cut into windows", "shift", "mask", "what windows save"))
