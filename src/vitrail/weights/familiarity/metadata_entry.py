"""Familiarity as a text in the metadata of a model file.

Not as tensors: a file of weights stays one. Earlier versions of Vitrail, and other programs, read it as before.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.weights.familiarity.reference_vectors import LEAST_HELD_OUT, Familiarity

ENTRY = "vitrail_familiarity"  # of the safetensors metadata
FORMAT = 1
MOST_CHARACTERS = 4_000_000  # ours are below 1 million; whatever is far above was not written by us
VECTORS, DISTANCES = np.dtype("<f2"), np.dtype("<f4")
_DAMAGED = "what it keeps of its training pictures is damaged: copy the file again from its source"


def to_text(familiarity: Familiarity) -> str:
    """As JSON, the numbers in base64."""
    vectors = familiarity.vectors.numpy().astype(VECTORS).tobytes()
    held_out = familiarity.held_out.numpy().astype(DISTANCES).tobytes()
    return json.dumps(
        {
            "format": FORMAT,
            "width": familiarity.width,
            "vectors": base64.b64encode(vectors).decode(),
            "held_out": base64.b64encode(held_out).decode(),
            "sha256": _digest(familiarity.width, vectors, held_out),
        }
    )


def from_text(text: str) -> Familiarity | None:
    """What `to_text` wrote, checked; None where a later version wrote it in another way."""
    if len(text) > MOST_CHARACTERS:
        raise VitrailError(f"what it keeps of its training pictures has {len(text):,} characters, far too many")
    try:
        entry = json.loads(text)
        if entry["format"] != FORMAT:
            return None
        width, digest = entry["width"], entry["sha256"]
        vectors, held_out = (base64.b64decode(entry[name], validate=True) for name in ("vectors", "held_out"))
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        raise VitrailError(_DAMAGED) from None
    if type(width) is not int or width < 1 or digest != _digest(width, vectors, held_out):
        raise VitrailError(_DAMAGED)
    return _checked(vectors, held_out, width)


def _checked(vectors: bytes, held_out: bytes, width: int) -> Familiarity:
    if not vectors or len(vectors) % (VECTORS.itemsize * width) or len(held_out) % DISTANCES.itemsize:
        raise VitrailError(_DAMAGED)
    rows = _tensor(np.frombuffer(vectors, VECTORS).reshape(-1, width))
    distances = _tensor(np.frombuffer(held_out, DISTANCES))
    ascending = bool((distances.diff() >= 0).all())
    if len(distances) < LEAST_HELD_OUT or not ascending or not rows.isfinite().all() or not distances.isfinite().all():
        raise VitrailError(_DAMAGED)
    return Familiarity(rows, distances)


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=True))


def _digest(width: int, vectors: bytes, held_out: bytes) -> str:
    return hashlib.sha256(f"{FORMAT} {width} ".encode() + vectors + held_out).hexdigest()
