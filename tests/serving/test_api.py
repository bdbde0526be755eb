"""What each address answers, against the same model in this process."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.serving.conftest import LABELS, faint_red
from tests.serving.server import Server, form, picture, unpacked
from vitrail.data.loading.transforms import normalise
from vitrail.explanation.methods.attention_maps import attention_maps
from vitrail.inference.read_source import read_source


@pytest.fixture(scope="module")
def model(model_file: Path) -> vitrail.Model:
    return vitrail.load(model_file)


def input_of(model: vitrail.Model, data: bytes) -> torch.Tensor:
    pixels = read_source(data, model.preprocessing, "it")
    return normalise(torch.from_numpy(pixels[None]), model.preprocessing)


def same(response: dict, expected: dict) -> None:
    assert [guess["label"] for guess in response["top"]] == [guess["label"] for guess in expected["top"]]
    for one, other in zip(response["top"], expected["top"], strict=True):
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)


# ---- the model


def test_the_model_is_described(server: Server) -> None:
    response = server.get("/v1/model").json
    assert response["name"] == "model.safetensors"  # and not where it lies
    assert (response["task"], response["labels"]) == ("classify", LABELS)
    assert (response["image_size"], response["patch_size"], response["grid"]) == ([32, 32], [4, 4], [8, 8])
    assert response["prefix"] == ["[CLS]", "register 0", "register 1"]
    assert response["methods"] == ["relevance", "weighted_attention", "rollout", "attention", "occlusion"]
    assert response["limits"] == {"bytes": 3_000_000, "pixels": 4_000_000, "images": 8}


def test_samples_are_the_pictures_beside_the_model(server: Server) -> None:
    samples = server.get("/v1/model").json["samples"]
    assert [sample["name"] for sample in samples] == ["2", '10 "quoted" <b>']
    first, second = (server.get(sample["url"]) for sample in samples)
    assert (first.headers["content-type"], second.headers["content-type"]) == ("image/jpeg", "image/png")
    assert second.body == picture(10)


# ---- answers


def test_an_answer_is_that_of_predict(server: Server, model: vitrail.Model) -> None:
    for seed in range(3):
        data = picture(seed)
        response = server.send("/v1/predict?top=2", data)
        assert response.status == 200
        (result,) = response.json["results"]
        same(result, model.predict(data, top=2))


def test_strangers_are_unknown_on_demand(server: Server, model: vitrail.Model) -> None:
    data = [faint_red(7), picture(1)]
    plain = server.send("/v1/predict", *data).json["results"]
    assert [result["familiar"] for result in plain] == [True, False]
    assert plain[1]["familiarity"] < 0.05 and plain[1]["label"] in model.labels
    unknown = server.send("/v1/predict?unknown=1", *data).json["results"]
    same(unknown[0], plain[0])  # a batch of another size rounds in another way
    assert (unknown[1]["label"], unknown[1]["probability"], unknown[1]["unknown"]) == ("unknown", None, True)
    header, _ = unpacked(server.send("/v1/look", data[1]).body)
    assert header["answer"]["familiar"] is False and "unfamiliar" in header["words"]
    assert server.get("/v1/model").json["tells_familiarity"] is True


def test_several_images_are_answered_in_their_order_by_form_and_by_json(server: Server, model: vitrail.Model) -> None:
    images = [picture(seed, form=kind) for seed, kind in enumerate(("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"))]
    texts = [base64.b64encode(image).decode() for image in images]
    texts[1] = f"data:image/jpeg;base64,{texts[1]}"
    by_form, by_json = server.send("/v1/predict", *images), server.send_json("/v1/predict", {"images": texts})
    for response in (by_form, by_json):
        for result, expected in zip(response.json["results"], model.predict(images), strict=True):
            same(result, expected)


def test_a_broken_image_among_several_is_an_error_in_its_place(server: Server) -> None:
    response = server.send("/v1/predict", picture(0), b"no image", picture(1))
    first, second, third = response.json["results"]
    assert response.status == 200
    assert "label" in first and "label" in third
    assert second == {"error": "image number 2 is not an image"}


def test_a_single_broken_image_is_refused_in_a_sentence(server: Server) -> None:
    response = server.send("/v1/predict", picture(0)[:200])
    assert response.status == 422
    assert response.error.startswith("image number 1 is truncated")


def test_an_embedding_is_what_the_head_reads(server: Server, model: vitrail.Model) -> None:
    images = [picture(1), b"", picture(2)]
    response = server.send("/v1/embed", *images).json
    assert response["width"] == model.config.width
    assert response["embeddings"][1] == {"error": "image number 2 is empty (0 bytes)"}
    for place in (0, 2):
        with torch.no_grad():
            expected = model.model.features(input_of(model, images[place])).cls
        assert np.allclose(response["embeddings"][place], expected[0], atol=1e-4)


# ---- looking inside


@pytest.mark.parametrize("block", [0, 1, -1])
def test_a_look_has_the_answer_the_picture_and_every_map(server: Server, model: vitrail.Model, block: int) -> None:
    data = picture(3, size=(60, 45), form="JPEG")
    response = server.send(f"/v1/look?block={block}", data)
    assert (response.status, response.headers["content-type"]) == (200, "application/octet-stream")
    header, parts = unpacked(response.body)
    same(header["answer"], model.predict(data))
    assert header["block"] == block % model.config.depth
    assert (header["grid"], header["size"]) == ([8, 8], [45, 60])
    assert set(header["milliseconds"]) == {"decode", "forward", "maps"}
    seen = np.asarray(Image.open(io.BytesIO(parts["picture"])), float)
    assert np.abs(seen - read_source(data, model.preprocessing, "it")).mean() < 4
    assert (parts["maps"].dtype, parts["maps"].shape) == (np.uint8, (model.config.heads, 67, 67))
    assert (parts["maps"].max(axis=2) == 255).all()
    maps = parts["maps"] / 255 * parts["scale"][..., None]
    assert np.allclose(maps.sum(axis=2), 1, atol=0.1)
    for query in (0, 2, 40):
        (expected,) = attention_maps(model.model, input_of(model, data), query, blocks=[block])
        row = torch.cat([expected.prefix[0], expected.patches[0].flatten(1)], dim=1).numpy()
        assert np.allclose(maps[:, query], row, atol=row.max() / 255)


def test_attention_of_one_query_in_some_heads(server: Server, model: vitrail.Model) -> None:
    data = picture(4)
    body, kind = form(data)
    headers = {"Content-Type": kind, "Accept": "application/json"}
    response = server.ask("POST", "/v1/attention?block=1&query=2,3&heads=1", body, headers).json
    assert (response["query"], response["heads"], response["block"]) == ("patch 2,3", [1], 1)
    (expected,) = attention_maps(model.model, input_of(model, data), (2, 3), blocks=[1], heads=[1])
    assert np.allclose(np.array(response["maps"])[0, 0, 3:], expected.patches[0, 0].flatten(), atol=2e-3)
    header, parts = unpacked(server.send("/v1/attention?block=1&query=2,3&heads=1", data).body)
    assert parts["maps"].shape == (1, 1, 67) and header["query"] == "patch 2,3"
    _, parts = unpacked(server.send("/v1/attention?block=1", data).body)
    assert parts["maps"].shape == (model.config.heads, 67, 67)


def test_explanations_are_those_of_explain(server: Server, model: vitrail.Model) -> None:
    data = picture(5)
    expected = vitrail.explain(model, data, compare=True)
    for method in server.get("/v1/model").json["methods"]:
        response = server.send(f"/v1/explain?method={method}", data).json
        assert (response["method"], response["grid"]) == (method, [8, 8])
        assert np.allclose(
            response["map"], expected.maps[method], rtol=1e-2, atol=1e-3 * np.abs(expected.maps[method]).max()
        )
        assert response["label"] == (
            expected.target if method in ("relevance", "weighted_attention", "occlusion") else None
        )


def test_any_label_can_be_explained(server: Server) -> None:
    response = server.send("/v1/explain?label=say%20%22cheese%22", picture(5))
    assert response.json["label"] == 'say "cheese"'
    assert server.send("/v1/explain?label=nobody", picture(5)).status == 422


def test_the_walk_has_its_steps_and_pictures(server: Server) -> None:
    response = server.send("/v1/walk?block=0", picture(6)).json
    assert response["block"] == 0
    assert response["steps"][0]["title"] == "The image becomes patches"
    figures = [figure for step in response["steps"] for figure in step["figures"]]
    assert any(figure.get("picture", "").startswith("data:image/png;base64,") for figure in figures)


# ---- text stays text


def test_labels_are_text_everywhere(server: Server) -> None:
    for path in ("/v1/model", "/openapi.json"):
        response = server.get(path)
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-content-type-options"] == "nosniff"
    docs = server.get("/docs")
    assert docs.headers["content-type"] == "text/html; charset=utf-8"
    assert b"<img" not in docs.body and b"&lt;img" in docs.body
    assert b"<b>" not in server.get("/metrics").body


@pytest.mark.parametrize("name", ['a"b.jpg', "<script>.jpg", "../../etc/passwd", "a\\..\\b", "caf\u00e9.jpg", "%00"])
def test_a_file_name_is_never_used(server: Server, name: str) -> None:
    mark = "edge"
    head = f'--{mark}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n\r\n'.replace(
        'a"b', 'a\\"b'
    )
    body = head.encode() + b"no image" + f"\r\n--{mark}--\r\n".encode()
    response = server.ask("POST", "/v1/predict", body, {"Content-Type": f"multipart/form-data; boundary={mark}"})
    assert (response.status, response.error) == (422, "image number 1 is not an image")


# ---- the server itself


def test_health_and_metrics(server: Server) -> None:
    assert server.get("/healthz").json == {"status": "alive"}
    assert server.get("/readyz").json == {"status": "ready"}
    before = server.metric("vitrail_images_total")
    server.send("/v1/predict", picture(0), picture(1))
    assert server.metric("vitrail_images_total") == before + 2
    assert server.metric("vitrail_images_in_hand") == 0
    text = server.get("/metrics").body.decode()
    assert 'vitrail_requests_total{path="/v1/predict",status="200"}' in text
    assert 'vitrail_request_seconds_bucket{le="+Inf",path="/v1/predict"}' in text
    assert "_created" not in text and text.count("# TYPE vitrail_") == 9


def test_unknown_addresses_and_methods_are_refused(server: Server) -> None:
    assert server.get("/v1/nothing").status == 404
    assert server.get("/v1/samples/99").status == 404
    response = server.get("/v1/predict")
    assert (response.status, response.headers["allow"], response.error) == (405, "POST", "this address takes POST")
    head = server.ask("HEAD", "/healthz")
    assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize(
    "query", ["top=0", "top=x", "top=1001", "top=%2B5", "top=1e3", "tpo=3", "top=1&top=2", "top=", "top=%D9%A1"]
)
def test_parameters_out_of_range_are_refused(server: Server, query: str) -> None:
    response = server.send(f"/v1/predict?{query}", picture())
    assert response.status == 422
    assert "top" in response.error or "parameter" in response.error
