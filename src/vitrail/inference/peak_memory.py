"""The most memory that this process has held."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"


def peak_bytes() -> int | None:
    """Since its start or `reset_peak`. Linux's own record is preferred: getrusage may carry the parent's over."""
    if STATUS.is_file():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak() -> None:
    """Forget the peak so far, where the system can: what loading took is not what running takes."""
    with contextlib.suppress(OSError):
        CLEAR.write_text(RESET_PEAK)
