"""Packages of the extra `fast`, or a sentence that says how to get them."""

from __future__ import annotations

import importlib
from typing import Any

from vitrail.errors import VitrailError


def import_installed(name: str) -> Any:
    """The module; VitrailError where it is not installed, or cannot be imported."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a damaged installation raises whatever it likes
        raise VitrailError(f"this needs {name}: pip install 'vitrail[fast]' ({error})") from None
