"""The OpenAPI document. Written out, since it is a promise: tests send what it allows and check what comes back."""

from __future__ import annotations

from typing import Any

from vitrail import __version__

Schema = dict[str, Any]

ERROR: Schema = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
ANSWER: Schema = {"type": "object", "description": "The answer of the model's task, or {error: why it has none}."}
NUMBERS: Schema = {"type": "array", "items": {"type": "number"}}
ONE_IMAGE: Schema = {
    "type": "object",
    "required": ["image"],
    "properties": {"image": {"type": "string", "format": "binary"}},
    "additionalProperties": False,
}
PLACES = ("segment", "detect")  # tasks that answer about places: what is explained there is the embedding
REFUSALS = {
    "400": "The body is damaged.",
    "401": "A token is needed.",
    "403": "The host or the origin is not allowed.",
    "405": "Another method is needed.",
    "408": "The body came too slowly.",
    "413": "Too many bytes or images.",
    "415": "Neither multipart/form-data nor application/json.",
    "422": "Not an image, or a parameter out of its range.",
    "503": "Too much to do, or stopping; Retry-After tells when to come back.",
}


def document(model: dict[str, Any]) -> dict[str, Any]:
    """model: what /v1/model tells."""
    depth, most = model["depth"], model["limits"]["images"]
    block = _parameter("block", "Counted from 0; -1 is the last.", _range(-depth, depth - 1, -1))
    top = _parameter("top", "Guesses, where the task makes some.", _range(1, 1000, 5))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"{model['name']}, served by Vitrail",
            "version": __version__,
            "description": f"A Vision Transformer for the task {model['task']}. Requests of many clients share its "
            "forward passes. Every refusal is {error: one sentence}.",
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
        "paths": {
            "/v1/model": {"get": _get("What the model is.", _json(_model_schema()))},
            "/v1/predict": {"post": _predict(top, most)},
            "/v1/embed": {"post": _embed(most)},
            "/v1/look": {"post": _look(block, top)},
            "/v1/attention": {"post": _attention(block, model)},
            "/v1/explain": {"post": _explain(model)},
            "/v1/walk": {"post": _walk(block)},
            "/healthz": {"get": _get("Whether the server is alive.", _json(_status()))},
            "/readyz": {"get": _get("Whether it takes requests: 503 while it stops.", _json(_status()))},
            "/metrics": {"get": _get("Counters for Prometheus.", {"text/plain": {"schema": {"type": "string"}}})},
        },
    }


# ---- addresses


def _predict(top: Schema, most: int) -> Schema:
    result = _object(results={"type": "array", "items": ANSWER}, milliseconds={"type": "number"})
    return {
        **_post("The model's answer for each image, in their order.", _several(most), _json(result), [top]),
        "x-example": "curl -F image=@photo.jpg http://127.0.0.1:8000/v1/predict",
    }


def _embed(most: int) -> Schema:
    vectors = {"type": "array", "items": {"anyOf": [NUMBERS, ERROR]}}
    result = _object(embeddings=vectors, width={"type": "integer"})
    return _post("What the head reads of each image: one vector.", _several(most), _json(result), [])


def _look(block: Schema, top: Schema) -> Schema:
    told = "Answer, what the model sees, and one block's attention of every token to every other, in one pass."
    return _post(told, _one(), _binary(), [block, top])


def _attention(block: Schema, model: dict[str, Any]) -> Schema:
    rows, columns = model["grid"]
    query = _parameter(
        "query",
        f"Whose attention: {', '.join(model['prefix']) or 'a patch'}, a patch as ROW,COLUMN up to {rows - 1},"
        f"{columns - 1}, or a token's place. Without it: of every token.",
        {"type": "string", "pattern": "^0,0$|^-1$|^1$"},
    )
    heads = _parameter(
        "heads",
        "Such as 0,2; without it all.",
        {"type": "string", "pattern": f"^[0-{min(9, model['heads'] - 1)}](,[0-{min(9, model['heads'] - 1)}])?$"},
    )
    maps = _object(
        block={"type": "integer"},
        query={"type": ["string", "null"]},
        heads={"type": "array", "items": {"type": "integer"}},
        grid=_pair(),
        prefix={"type": "array", "items": {"type": "string"}},
        maps={"type": "array", "description": "[head][query][token]; a row's sum is 1."},
    )
    told = "Attention maps of a block; as bytes, or as JSON if the request accepts application/json."
    return _post(told, _one(), {**_binary(), **_json(maps)}, [block, query, heads])


def _explain(model: dict[str, Any]) -> Schema:
    method = _parameter("method", "Which explanation.", {"type": "string", "enum": model["methods"]})
    labels: Schema = {"type": "string"}
    if model["labels"] and len(model["labels"]) <= 100:
        labels["enum"] = model["labels"]
    label = _parameter("label", "What is explained instead of the model's answer.", labels)
    result = _object(
        method={"type": "string"},
        label={"type": ["string", "null"]},
        grid=_pair(),
        map={"type": "array", "items": NUMBERS},
        milliseconds={"type": "number"},
    )
    asked = [method, label] if model["labels"] and model["task"] not in PLACES else [method]
    return _post("Where the answer comes from: one number a patch.", _one(), _json(result), asked)


def _walk(block: Schema) -> Schema:
    texts = {name: {"type": "string"} for name in ("title", "formula", "shape", "text")}
    step = _object(**texts, figures={"type": "array", "items": {"type": "object"}})
    result = _object(block={"type": "integer"}, steps={"type": "array", "items": step})
    return _post("Every step from pixels to the answer, with pictures.", _one(), _json(result), [block])


def _model_schema() -> Schema:
    text, whole = {"type": "string"}, {"type": "integer"}
    names = ("width", "depth", "heads", "channels", "parameters")
    return _object(
        name=text,
        task=text,
        labels={"type": ["array", "null"], "items": text},
        **{name: _pair() for name in ("image_size", "patch_size", "grid")},
        **dict.fromkeys(names, whole),
        prefix={"type": "array", "items": text},
        pool=text,
        resize=text,
        methods={"type": "array", "items": text},
        samples={"type": "array", "items": _object(name=text, url=text)},
        limits=_object(bytes=whole, pixels=whole, images=whole),
        version=text,
    )


# ---- parts


def _get(summary: str, content: Schema) -> Schema:
    return {"summary": summary, "responses": _responses(content, ("401", "403", "405", "503"))}


def _post(summary: str, taken: Schema, given: Schema, parameters: list[Schema]) -> Schema:
    found: Schema = {"summary": summary, "requestBody": {"required": True, "content": taken}}
    if parameters:
        found["parameters"] = parameters
    return {**found, "responses": _responses(given, tuple(REFUSALS))}


def _responses(content: Schema, refusals: tuple[str, ...]) -> Schema:
    found: Schema = {"200": {"description": "The answer.", "content": content}}
    return found | {code: {"description": REFUSALS[code], "content": _json(ERROR)} for code in refusals}


def _one() -> Schema:
    return {"multipart/form-data": {"schema": ONE_IMAGE}, "application/json": {"schema": _base64(1)}}


def _several(most: int) -> Schema:
    images = {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1, "maxItems": most}
    form = {"type": "object", "required": ["image"], "properties": {"image": images}, "additionalProperties": False}
    return {"multipart/form-data": {"schema": form}, "application/json": {"schema": _base64(most)}}


def _base64(most: int) -> Schema:
    image = {"type": "string", "contentEncoding": "base64"}
    images = {"type": "array", "items": image, "minItems": 1, "maxItems": most}
    return {"type": "object", "required": ["images"], "properties": {"images": images}, "additionalProperties": False}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _binary() -> Schema:
    told = "uint32 length, JSON header, then the parts that header['parts'] lists."
    return {"application/octet-stream": {"schema": {"type": "string", "format": "binary", "description": told}}}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties}


def _parameter(name: str, description: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def _range(low: int, high: int, default: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high, "default": default}


def _pair() -> Schema:
    return {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


def _status() -> Schema:
    return _object(status={"type": "string"})
