"""What a model file keeps of the pictures of its run, as arrays, and the scores of new ones. None of it needs torch.

`reference_vectors.py` says what familiarity is; this is its arithmetic, and the text that the file holds.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import VitrailError
from vitrail.text import parsed_json

UNFAMILIAR = 0.05  # below it a picture is a stranger: 95 % of held-out pictures are not
LEAST_HELD_OUT = 20  # pictures: with fewer, nothing could be below UNFAMILIAR
SHRINKAGE = 0.01  # of the mean variance, added to each: in some directions few pictures do not vary at all
ENTRY = "vitrail_familiarity"  # of the safetensors metadata
FORMAT = 1
MOST_CHARACTERS = 4_000_000  # ours are below 1 million; whatever is far above was not written by us
VECTORS, DISTANCES = np.dtype("<f2"), np.dtype("<f4")
_DAMAGED = "what it keeps of its training pictures is damaged: copy the file again from its source"


@dataclass(frozen=True, eq=False)
class KeptVectors:
    """Of a model's run."""

    vectors: NDArray[np.float16]  # (M, D), each of length 1
    held_out: NDArray[np.float32]  # (H,), ascending: the distance of each held-out picture to these

    @property
    def width(self) -> int:
        """D."""
        return self.vectors.shape[1]

    @cached_property
    def _gaussian(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The mean (D,) of the vectors, and a root of their inverse covariance, (D, D): what turns distances into
        Mahalanobis's."""
        rows = self.vectors.astype(np.float64)
        mean = rows.mean(axis=0)
        covariance = (rows - mean).T @ (rows - mean) / len(rows)
        covariance += (SHRINKAGE * covariance.diagonal().mean() + 1e-12) * np.eye(len(mean))
        root = np.linalg.cholesky(np.linalg.inv(covariance))
        return mean.astype(np.float32), root.astype(np.float32)

    def distances(self, pooled: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the head reads of each picture, (B, D) -> its distance (B,): about sqrt(D) for training pictures."""
        mean, root = self._gaussian
        lengths = np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
        distances: NDArray[np.float32] = np.linalg.norm((pooled / lengths - mean) @ root, axis=1)
        return distances

    def scores(self, pooled: NDArray[np.float32]) -> NDArray[np.float64]:
        """What the head reads of each picture, (B, D) -> its familiarity (B,): above 0, and 1 at most."""
        nearer = np.searchsorted(self.held_out, self.distances(pooled))  # so many held-out pictures are
        scores: NDArray[np.float64] = (1 + len(self.held_out) - nearer) / (1 + len(self.held_out))
        return scores


def kept_text(kept: KeptVectors) -> str:
    """As JSON, the numbers in base64. A text in the metadata and no tensors: a file of weights stays one, which earlier
    versions of Vitrail, and other programs, read as before."""
    vectors, held_out = kept.vectors.astype(VECTORS).tobytes(), kept.held_out.astype(DISTANCES).tobytes()
    return json.dumps(
        {
            "format": FORMAT,
            "width": kept.width,
            "vectors": base64.b64encode(vectors).decode(),
            "held_out": base64.b64encode(held_out).decode(),
            "sha256": _digest(kept.width, vectors, held_out),
        }
    )


def read_kept(text: str) -> KeptVectors | None:
    """What `kept_text` wrote, checked; None where a later version wrote it in another way."""
    if len(text) > MOST_CHARACTERS:
        raise VitrailError(f"what it keeps of its training pictures has {len(text):,} characters, far too many")
    try:
        entry = parsed_json(text)
        if entry["format"] != FORMAT:
            return None
        width, digest = entry["width"], entry["sha256"]
        vectors, held_out = (base64.b64decode(entry[name], validate=True) for name in ("vectors", "held_out"))
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        raise VitrailError(_DAMAGED) from None
    if type(width) is not int or width < 1 or digest != _digest(width, vectors, held_out):
        raise VitrailError(_DAMAGED)
    return _checked(vectors, held_out, width)


def _checked(vectors: bytes, held_out: bytes, width: int) -> KeptVectors:
    if not vectors or len(vectors) % (VECTORS.itemsize * width) or len(held_out) % DISTANCES.itemsize:
        raise VitrailError(_DAMAGED)
    rows = _native(np.frombuffer(vectors, VECTORS).reshape(-1, width))
    distances = _native(np.frombuffer(held_out, DISTANCES))
    ascending = bool((np.diff(distances) >= 0).all())
    finite = np.isfinite(rows).all() and np.isfinite(distances).all()
    if len(distances) < LEAST_HELD_OUT or not ascending or not finite:
        raise VitrailError(_DAMAGED)
    return KeptVectors(rows, distances)


def _native(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(array.dtype.newbyteorder("="), copy=True)


def _digest(width: int, vectors: bytes, held_out: bytes) -> str:
    return hashlib.sha256(f"{FORMAT} {width} ".encode() + vectors + held_out).hexdigest()
