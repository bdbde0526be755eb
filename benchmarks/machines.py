"""Machines that are none: network namespaces of this one, each with an address, joined by a bridge. It takes root.

Processes of a machine see its network alone. They share the disk, as machines of a cluster do, and this one's cores.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

NETWORK = "10.77.0"
_NAMED = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']  # so that each has a host name of its own


class Machine:
    """A namespace. Its processes are all that run in it, whoever started them."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.address = name, f"{NETWORK}.{number}"
        self.cable = f"{name}-hub"  # the bridge's end

    def begin(self, command: Sequence[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.name, *_NAMED, self.name, *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def processes(self) -> list[int]:
        return [int(pid) for pid in _ip("netns", "pids", self.name).split()]

    def processes_of(self, text: str) -> list[int]:
        """Those whose command line has this text."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                if text in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                    found.append(pid)
        return found

    def kill(self, only: str = "") -> int:
        """Kill all of its processes, or those whose command line has this text; how many there were."""
        killed = 0
        for pid in self.processes_of(only):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        return killed


class Network:
    """So many machines, 10.77.0.1 and on."""

    def __init__(self, count: int) -> None:
        self.hub = f"vt{os.getpid()}hub"
        self.machines = [Machine(f"vt{os.getpid()}n{number}", number) for number in range(1, count + 1)]

    def pull_cable(self, machine: Machine, up: bool = False) -> None:
        """Nothing that is sent arrives any more, until it is `up` again."""
        _ip("-n", self.hub, "link", "set", machine.cable, "up" if up else "down")

    def make(self) -> None:
        _ip("netns", "add", self.hub)
        _ip("-n", self.hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self.hub, "addr", "add", f"{NETWORK}.254/24", "dev", "bridge")
        _ip("-n", self.hub, "link", "set", "bridge", "up")
        for machine in self.machines:
            _ip("netns", "add", machine.name)
            _ip(
                "-n",
                self.hub,
                "link",
                "add",
                machine.cable,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                machine.name,
            )
            _ip("-n", self.hub, "link", "set", machine.cable, "master", "bridge", "up")
            _ip("-n", machine.name, "link", "set", "lo", "up")
            _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", "eth0")
            _ip("-n", machine.name, "link", "set", "eth0", "up")
            _ip("-n", machine.name, "route", "add", "default", "via", f"{NETWORK}.254")  # so that it knows its address

    def remove(self) -> None:
        for machine in self.machines:
            with contextlib.suppress(subprocess.CalledProcessError):
                machine.kill()
                _ip("netns", "del", machine.name)
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self.hub)


@contextlib.contextmanager
def network(count: int) -> Iterator[Network]:
    """Machines that are gone afterwards."""
    made = Network(count)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
