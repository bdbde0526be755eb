"""A Ray of two machines that are network namespaces, and the work that it is given."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.machines import Machine, Network
from benchmarks.scaling.report import wait_until
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.shards.merge_shards import merge_shards
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

PORT = 6379
STARTING = 60.0  # seconds that Ray may take
VITRAIL = [sys.executable, "-m", "vitrail"]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # of this cluster alone
    "RAY_worker_niceness": "0",  # as the process pool's, which it is compared with
}
KNOCK = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"
COUNT_NODES = """
import ray, sys
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
print("alive:", sum(node["Alive"] for node in ray.nodes()))
"""


class Cluster:
    """The head, and a node that comes and goes. One at a time: Ray keeps the address of its cluster in /tmp/ray."""

    def __init__(self, net: Network, folder: Path) -> None:
        self.net, self.log = net, folder / "ray.log"
        self.head, self.node = net.machines
        self.address = f"{self.head.address}:{PORT}"

    def start_head(self) -> None:
        """Until somebody can join."""
        self._ray(self.head, ["--head", f"--port={PORT}", "--include-dashboard=false"])
        knock = ["ip", "netns", "exec", self.head.name, sys.executable, "-c", KNOCK, self.head.address, str(PORT)]
        if not wait_until(lambda: subprocess.run(knock, capture_output=True).returncode == 0, STARTING):
            raise RuntimeError(f"Ray's head does not start; see {self.log}")

    def start_node(self, before: Sequence[str] = (), **environment: str) -> None:
        """It joins in some seconds. before: what begins Ray there instead."""
        self._ray(self.node, [f"--address={self.address}"], before, **environment)

    def repair(self) -> None:
        """Both machines are there afterwards: what Ray gave up is started again."""
        for _ in range(3):
            if wait_until(lambda: self.nodes_alive() == 2, STARTING / 2):
                return
            self.stop()
            self.start_head()
            self.start_node()
        raise RuntimeError(f"Ray does not come up with two machines; see {self.log}")

    def nodes_alive(self) -> int:
        """As Ray sees it; 0 where it does not answer."""
        command = ["ip", "netns", "exec", self.head.name, sys.executable, "-c", COUNT_NODES, self.address]
        try:
            said = subprocess.run(
                command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=STARTING / 2
            ).stdout
        except subprocess.TimeoutExpired:
            return 0
        return int(said.rpartition("alive:")[2] or 0)

    def stop(self) -> None:
        self.head.kill()
        self.node.kill()

    def begin(self, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        """On the first machine."""
        return self.head.begin(command, self.log.with_name("driver.log"), **{**ENVIRONMENT, **environment})

    def seconds_of(self, command: list[str], limit: float = 1200) -> float:
        """Of a run on the first machine that nothing disturbs."""
        begun = time.monotonic()
        code = self.begin(command).wait(limit)
        assert code in (0, 1), f"exit code {code}: {self.log.with_name('driver.log').read_text()[-500:]}"
        return time.monotonic() - begun

    def _ray(self, machine: Machine, how: list[str], before: Sequence[str] = (), **environment: str) -> None:
        program = str(Path(sys.executable).parent / "ray")
        limits = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats"]
        command = [program, "start", *how, f"--node-ip-address={machine.address}", *limits, "--block"]
        machine.begin([*before, *command], self.log, **{**ENVIRONMENT, **environment})


def make_work(folder: Path, images: int, shard_size: int) -> tuple[Path, Path]:
    """A tiny model, and a manifest of pictures of which each hundredth is broken."""
    config = preset("mu/16", classes=3)
    torch.manual_seed(0)
    model = Checkpoint(ViT(config), Preprocessing(size=config.image_size), "classify", ["cat", "dog", "owl"])
    noise = np.random.default_rng(0)
    for number in range(images):
        path = folder / "photos" / f"{number // 1000}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (32, 32, 3), np.uint8)).save(path)
        if number % 100 == 99:
            path.write_bytes(path.read_bytes()[:100])
    manifest = folder / "manifest"
    subprocess.run(
        [*VITRAIL, "manifest", str(folder / "photos"), "--out", str(manifest), "--shard-size", str(shard_size)],
        check=True,
    )
    return model.save(folder / "model.safetensors"), manifest


def merged(folder: Path) -> bytes:
    """The output as one file, which is compared."""
    merge_shards(folder, folder.with_suffix(".merged"))
    return folder.with_suffix(".merged").read_bytes()


def on_ray(command: list[str], cluster: Cluster) -> list[str]:
    return [*command, "--ray", cluster.address, "--processes", "2"]
