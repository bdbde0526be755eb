"""The responses of the API as pydantic models. They document it; answers are sent as they are, without validation."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

Pair = Annotated[list[int], Field(min_length=2, max_length=2)]  # (height, width)


class ErrorResponse(BaseModel):
    error: str = Field(description="One sentence that says what to do.")


class StatusResponse(BaseModel):
    status: str


class Sample(BaseModel):
    name: str
    url: str


class RequestLimits(BaseModel):
    bytes: int
    pixels: int
    images: int


class ModelResponse(BaseModel):
    name: str
    task: str
    labels: list[str] | None
    colours: list[str] | None = Field(description="#rrggbb for each label of a mask or box; null for other tasks.")
    image_size: Pair
    patch_size: Pair
    grid: Pair
    channels: int
    width: int
    depth: int
    heads: int
    prefix: list[str] = Field(description="Names of the tokens before the patches.")
    pool: str
    resize: str
    engine: str = Field(description="What runs the network for answers; maps and explanations always come from torch.")
    precision: str = Field(description="What answers are computed in; explanations are always float32.")
    parameters: int
    methods: list[str] = Field(description="Explanations that /v1/explain offers for this model.")
    tells_familiarity: bool = Field(description="Whether answers say how like the training pictures an image is.")
    notes: list[str]
    samples: list[Sample]
    index: int | None = Field(description="Pictures of the index for /v1/search at the start; null: there is none.")
    limits: RequestLimits
    version: str


class PredictResponse(BaseModel):
    results: list[dict[str, Any]] = Field(
        description="For each image the answer of the model's task, or {error: why it has none}."
    )
    milliseconds: float


class EmbedResponse(BaseModel):
    embeddings: list[list[float] | ErrorResponse]
    width: int


class FoundPicture(BaseModel):
    id: int = Field(description="For /v1/index/ID/similar and /v1/index/ID/picture.")
    name: str
    score: float = Field(description="The cosine of the two vectors: 1 for the same picture.")


class SearchResponse(BaseModel):
    results: list[FoundPicture]
    milliseconds: float


class AttentionResponse(BaseModel):
    block: int
    query: str | None
    heads: list[int]
    grid: Pair
    windows: list[int] | None = Field(description="Patches with the same number attend to one another; null: all do.")
    prefix: list[str]
    maps: list[Any] = Field(description="[head][query][token]; a row's sum is 1, less what padding gets.")


class ExplainResponse(BaseModel):
    method: str
    label: str | None
    grid: Pair
    map: list[list[float]]
    milliseconds: float


class WalkStep(BaseModel):
    title: str
    formula: str
    shape: str
    text: str
    figures: list[dict[str, Any]]


class WalkResponse(BaseModel):
    block: int
    steps: list[WalkStep]


# ---- parts of the OpenAPI document that FastAPI cannot derive from a function

ERRORS = {
    400: "The body is damaged.",
    401: "A token is needed.",
    403: "The host or the origin is not allowed.",
    404: "There is no such picture.",
    405: "Another method is needed.",
    408: "The body came too slowly.",
    413: "Too many bytes or images.",
    415: "Neither multipart/form-data nor application/json.",
    422: "Not an image, or a parameter out of its range.",
    503: "Too much to do, or stopping; Retry-After tells when to come back.",
}
POST_ERRORS = tuple(status for status in ERRORS if status != 404)
GET_ERRORS = (401, 403, 405, 503)
BINARY = "application/octet-stream"
BINARY_CONTENT: dict[str, Any] = {
    BINARY: {
        "schema": {
            "type": "string",
            "format": "binary",
            "description": "uint32 length, JSON header, then the parts that header['parts'] lists.",
        }
    }
}


def documented_responses(
    statuses: tuple[int, ...] = POST_ERRORS, content: dict[str, Any] | None = None
) -> dict[int | str, dict[str, Any]]:
    """For `responses=` of a route. content: of the answer, besides the JSON of its `response_model`."""
    answer = {"description": "The answer.", **({"content": content} if content else {})}
    errors: dict[int | str, Any] = {
        status: {"description": ERRORS[status], "model": ErrorResponse} for status in statuses
    }
    return {200: answer, **errors}


def image_body(max_images: int) -> dict[str, Any]:
    """`requestBody` of a route that reads images: the routes parse it themselves, to keep it within the limits."""
    file = {"type": "string", "format": "binary"}
    files = {"type": "array", "items": file, "minItems": 1, "maxItems": max_images}
    texts = {**files, "items": {"type": "string", "contentEncoding": "base64"}}
    form = _closed_object("image", file if max_images == 1 else files)
    content = {"multipart/form-data": form, "application/json": _closed_object("images", texts)}
    return {"required": True, "content": {kind: {"schema": schema} for kind, schema in content.items()}}


def _closed_object(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": [name], "properties": {name: schema}, "additionalProperties": False}
