"""A server that answers with an engine that knows outputs only: maps and embeddings come from torch beside it."""

from __future__ import annotations

import numpy as np
import pytest

import vitrail
from tests.inference.backends.stub_backend import StubBackend
from tests.serving.server import AppClient, picture, unpacked
from vitrail.inference.engine import Engine
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.serving.forward_batch import ForwardRequest
from vitrail.serving.limits import Limits
from vitrail.serving.served_model import ServedModel
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

DATA = picture(4)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    config = preset("mu/8", image_size=32, classes=3)
    return Checkpoint(ViT(config).eval(), Preprocessing(size=(32, 32)), "classify", ["a", "b", "c"])


@pytest.fixture
def engine(checkpoint: Checkpoint) -> Engine:
    return Engine(checkpoint, StubBackend(3))


def test_each_request_goes_to_the_engine_that_can(engine: Engine, checkpoint: Checkpoint) -> None:
    served = ServedModel(engine, "m", Limits())
    picture = served.read(DATA, "it")
    answer = ForwardRequest(picture.pixels, lambda result: result)
    [plain] = served.run([answer])
    assert plain.pooled is None and "torch_engine" not in vars(served)  # made when somebody asks
    look = ForwardRequest(picture.pixels, lambda result: result, block=0)
    embed = ForwardRequest(picture.pixels, lambda result: result, pooled=True)
    first, looked, embedded, last = served.run([answer, look, embed, answer])
    assert np.allclose(first.outputs, plain.outputs) and np.allclose(last.outputs, plain.outputs)
    expected = vitrail.Predictor(checkpoint, device="cpu", precision="fp32").engine
    outputs = expected.outputs([expected.read(DATA)])[0]
    assert not np.allclose(outputs, plain.outputs, atol=1e-3)
    for result in (looked, embedded):
        assert np.allclose(result.outputs, outputs, atol=1e-4) and result.pooled is not None
    assert looked.step is not None and looked.step.index == 0 and embedded.step is None


def test_every_route_answers(engine: Engine) -> None:
    client = AppClient(engine)
    try:
        model = client.get("/v1/model").json
        assert (model["engine"], model["precision"]) == ("stub", "int8")
        assert client.send("/v1/predict", DATA).json["results"][0]["label"] in ("a", "b", "c")
        assert "torch_engine" not in vars(client.runner.served)  # the warm-up did not need it either
        assert len(client.send("/v1/embed", DATA).json["embeddings"][0]) == engine.checkpoint.config.width
        header, parts = unpacked(client.send("/v1/look", DATA).body)
        assert header["answer"]["label"] in ("a", "b", "c") and parts
        assert client.send("/v1/explain?method=relevance", DATA).status == 200
        assert client.send("/v1/walk", DATA).status == 200
    finally:
        client.close()


def test_unknown_is_refused_where_the_engine_cannot_tell(engine: Engine) -> None:
    client = AppClient(engine)
    try:
        response = client.send("/v1/predict?unknown=1", DATA)
        assert response.status == 422 and "does not tell" in response.json["error"]
        assert "familiar" not in client.send("/v1/predict", DATA).json["results"][0]
        assert client.get("/v1/model").json["tells_familiarity"] is False
    finally:
        client.close()
