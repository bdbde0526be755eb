"""Pieces of the JSON schema of an answer, for the OpenAPI document of `vitrail serve`."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
WHOLE_NUMBER: Schema = {"type": "integer"}
PROBABILITY: Schema = {"type": "number", "minimum": 0, "maximum": 1}
UNLESS_UNKNOWN = "null where the answer is unknown"
MAYBE_PROBABILITY: Schema = PROBABILITY | {"type": ["number", "null"], "description": UNLESS_UNKNOWN}
MAYBE_NUMBER: Schema = {"type": ["number", "null"], "description": UNLESS_UNKNOWN}
PNG: Schema = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}


def object_of(**properties: Schema) -> Schema:
    """An object with all of these."""
    return {"type": "object", "required": list(properties), "properties": properties}


def list_of(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


GUESSES = list_of(object_of(label=TEXT, probability=PROBABILITY))
