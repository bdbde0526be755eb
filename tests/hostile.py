"""Hostile input in a process of its own with little memory: what fails there does not eat the machine."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.warm_process import run_python

_LIMITED = """
import resource
from vitrail.errors import VitrailError
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for limit, most in ((resource.RLIMIT_AS, used + {megabytes} * 2**20), (resource.RLIMIT_CPU, {seconds})):
    resource.setrlimit(limit, (most, most))
try:
{code}
except VitrailError as error:
    print("sentence:", str(error).encode("ascii", "backslashreplace").decode())
"""


def outcome(code: str, cwd: Path, megabytes: int = 400, seconds: int = 60) -> str:
    """What `code` prints, or `sentence: ...` where it ends in a VitrailError. It may take so much more memory than
    Python with everything imported, and so many seconds of a core; a hang ends in a TimeoutExpired."""
    script = _LIMITED.format(megabytes=megabytes, seconds=seconds, code=textwrap.indent(textwrap.dedent(code), "    "))
    result = run_python(script, cwd, timeout=2 * seconds)
    assert result.returncode == 0, f"exit code {result.returncode}: {result.stderr[-2000:]}"
    return result.stdout.strip()
