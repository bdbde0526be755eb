"""What our file says besides its tensors: config, task, labels, preprocessing, provenance. Read without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from vitrail.errors import VitrailError
from vitrail.text import parsed_json

FORMAT = 1
KEY = "vitrail"  # the entry of the safetensors metadata that holds everything but the tensors, as JSON
CHECKSUM = "sha256"  # of that entry and all tensors, so that no flipped byte goes unnoticed


def file_metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file, {} where it has none or is none; no tensor is read."""
    try:
        with safe_open(path, framework="np") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError, ValueError):
        return {}


def read_description(text: str) -> dict[str, Any]:
    """The fields of a description that are there in any case; VitrailError where one is missing."""
    try:
        description = parsed_json(text)
    except (ValueError, RecursionError):
        raise VitrailError("its description is damaged: copy it again from its source") from None
    if not isinstance(description, dict) or not isinstance(description.get("format"), int):
        raise VitrailError("its description has no format number: copy it again from its source")
    if description["format"] > FORMAT:
        raise VitrailError(
            f"it has format {description['format']}, this version of Vitrail reads up to {FORMAT}: update Vitrail"
        )
    missing = {"config", "task", "labels", "preprocessing", "provenance"} - set(description)
    if missing:
        raise VitrailError(f"its description lacks {', '.join(sorted(missing))}")
    return description
