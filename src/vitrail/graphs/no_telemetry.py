"""OpenVINO and NNCF, imported so that they report nothing to anybody.

Both send events to an analytics service unless a file in the user's home says no. Both go on without the package that
sends them, so an entry in `sys.modules` that cannot be imported keeps it away. Nothing else may import them.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from vitrail.errors import VitrailError
from vitrail.graphs.installed import import_installed

SENDER = "openvino_telemetry"


def import_silently(name: str) -> Any:
    """The module `openvino` or `nncf`; VitrailError where it is not installed, or was already let loose."""
    loaded = sys.modules.get(SENDER)
    if isinstance(loaded, ModuleType):
        raise VitrailError(
            f"{SENDER} is already imported and would report to its makers: use Vitrail before openvino or nncf"
        )
    sys.modules[SENDER] = None  # type: ignore[assignment]  # `import` then raises ImportError, which both expect
    return import_installed(name)
