"""OpenVINO, NNCF and ONNX Runtime, imported so that they report nothing to anybody. Nothing else may import them.

OpenVINO and NNCF send events to an analytics service unless a file in the user's home says no. Both go on without the
package that sends them, so an entry in `sys.modules` that cannot be imported keeps it away.

ONNX Runtime (1.31) reports by native code, on Linux and macOS too, and gives the machine an identifier. It begins while
it is imported, unless a variable says no. NNCF imports it as well, so the variable is set before either.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from vitrail.errors import VitrailError
from vitrail.graphs.installed import import_installed

SENDER = "openvino_telemetry"

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # here, for whoever imports this module may import ONNX Runtime by another


def import_silently(name: str) -> Any:
    """The module `openvino` or `nncf`; VitrailError where it is not installed, or was already let loose."""
    loaded = sys.modules.get(SENDER)
    if isinstance(loaded, ModuleType):
        raise VitrailError(
            f"{SENDER} is already imported and would report to its makers: use Vitrail before openvino or nncf"
        )
    sys.modules[SENDER] = None  # type: ignore[assignment]  # `import` then raises ImportError, which both expect
    return import_installed(name)


def import_onnxruntime() -> Any:
    """ONNX Runtime; VitrailError where it is not installed. Where the caller's own code imported it first, it has
    begun to report, and all that can be done is to stop most of its events."""
    runtime = import_installed("onnxruntime")
    runtime.disable_telemetry_events()
    return runtime
