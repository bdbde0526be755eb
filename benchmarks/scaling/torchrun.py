"""Training by torchrun on two machines, of which the second is killed again and again: the weights must be those of a
run that nobody disturbed."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks.machines import Machine, Network, network
from benchmarks.scaling.report import Report, keep, wait_until, working_folder
from tests.training.running import TINY, write_pictures
from vitrail.training.checkpointing import Checkpoints

BIN = Path(sys.executable).parent
PORT = 29400
LIMIT = 240.0  # seconds without a later saved step, or without the end: then a run is stuck
SEPARATE_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@dataclass(frozen=True)
class Training:
    """One run: the same command on each machine, under one --rdzv-id."""

    run: Path
    command: list[str]
    environment: dict[str, str]
    nodes: str = "2"

    def begin(self, machine: Machine) -> subprocess.Popen[bytes]:
        """An agent with one worker. The host name of a namespace is that of this machine, so addresses are given."""
        first = machine.address.endswith(".1")
        torchrun = f"""--nnodes {self.nodes} --nproc-per-node 1 --max-restarts 20 --rdzv-backend c10d
            --rdzv-endpoint {machine.address.rpartition(".")[0]}.1:{PORT} --rdzv-id {self.run.name}
            --rdzv-conf is_host={int(first)} --local-addr {machine.address} --no-python"""
        return machine.begin(
            [str(BIN / "torchrun"), *torchrun.split(), str(BIN / "vitrail"), *self.command, "--out", str(self.run)],
            self.run.with_suffix(".log"),
            OMP_NUM_THREADS="1",
            GLOO_SOCKET_IFNAME="eth0",
            **self.environment,
        )

    def saved(self) -> int:
        """The last step of which the state is on disk."""
        return max(Checkpoints(self.run / "checkpoint").steps(), default=0)


@dataclass
class Trial:
    """What came of a run: after which steps machine 2 was killed, and how long it then took to a later step."""

    name: str
    killed_after: list[int]
    waits: list[float]
    stuck: str = ""
    same: bool = False

    def row(self) -> str:
        kills = ", ".join(map(str, self.killed_after)) or "-"
        longest = f"{max(self.waits):.0f} s" if self.waits else "-"
        return f"| {self.name} | {kills} | {longest} | {self.stuck or ('the same' if self.same else '**others**')} |"


def undisturbed(net: Network, training: Training) -> float:
    """Seconds that it took."""
    begun = time.monotonic()
    agents = [training.begin(machine) for machine in net.machines]
    codes = [agent.wait(LIMIT * 2) for agent in agents]
    assert codes == [0, 0], f"exit codes {codes}: {training.run.with_suffix('.log').read_text()[-2000:]}"
    return time.monotonic() - begun


def wait_for_step(training: Training, step: int, agent: subprocess.Popen[bytes]) -> bool:
    """Until it is saved or the agent has ended; False where neither comes to pass."""
    return wait_until(lambda: training.saved() >= step or agent.poll() is not None, LIMIT)


def disturbed(net: Network, training: Training, kills: int, chance: random.Random, name: str) -> Trial:
    """Kill all processes of machine 2 so many times, and begin its agent again each time. Every third time it is killed
    again while it still starts."""
    first, second = net.machines
    trial = Trial(name, [], [])
    agents = [training.begin(first), training.begin(second)]
    for number in range(kills):
        if number % 3 == 2:
            time.sleep(chance.uniform(1, 8))
        else:
            begun = time.monotonic()
            if not wait_for_step(training, training.saved() + chance.randint(2, 20), agents[0]):
                trial.stuck = f"stuck after kill {number}"
                break
            if number:
                trial.waits.append(time.monotonic() - begun)
            time.sleep(chance.uniform(0, 0.3))
        if agents[0].poll() is not None:
            trial.stuck = f"ended with code {agents[0].poll()} before kill {number + 1}"
            break
        trial.killed_after.append(training.saved())
        second.kill()
        agents[1].wait()
        agents[1] = training.begin(second)
    if not trial.stuck and not wait_until(lambda: all(agent.poll() is not None for agent in agents), LIMIT):
        trial.stuck = f"stuck after kill {kills}"
    elif not trial.stuck and any(agent.returncode for agent in agents):
        trial.stuck = f"ended with codes {[agent.returncode for agent in agents]}"
    for machine in net.machines:
        machine.kill()
    return trial


def same_weights(one: Path, other: Path) -> bool:
    """Bit for bit."""
    left, right = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def torchrun(options: argparse.Namespace) -> Iterator[Report]:
    chance, trials = random.Random(options.seed), list[Trial]()
    with working_folder() as folder, network(2) as net:
        data, settings = write_pictures(folder / "data"), folder / "settings.toml"
        settings.write_text(TINY.format(workers=0, noise=0.1).replace("epochs = 5", f"epochs = {options.epochs}"))
        command = ["train", str(data), "--settings", str(settings)]
        for name, flags in (("plain", []), ("sharded", ["--shard"])):
            whole = Training(folder / name / "whole", [*command, *flags], SEPARATE_STORE)
            whole.run.parent.mkdir()
            seconds = undisturbed(net, whole)
            print(f"{name}, undisturbed: {whole.saved()} steps in {seconds:.0f} s", flush=True)
            killed = replace(whole, run=whole.run.with_name("killed"))
            trials.append(compared(net, whole, killed, options.kills, chance))
            if not trials[-1].same:
                keep(folder)
            yield report(trials, options)
        whole = Training(folder / "plain" / "whole", command, {})
        shared = replace(whole, run=whole.run.with_name("shared"))
        trials.append(compared(net, whole, shared, 1, chance))
        yield report(trials, options)


def compared(net: Network, whole: Training, killed: Training, kills: int, chance: random.Random) -> Trial:
    name = whole.run.parent.name + ("" if whole.environment else ", without the variable")
    trial = disturbed(net, killed, kills, chance, name)
    trial.same = not trial.stuck and same_weights(whole.run, killed.run)
    print(trial.row(), flush=True)
    return trial


def report(trials: list[Trial], options: argparse.Namespace) -> Report:
    lines = [
        f"Two machines (network namespaces that share the disk and the cores), an agent of torchrun with one worker on "
        f"each. All processes of the second are killed {options.kills} times, while it trains or while it starts, and "
        "its agent is begun again. The weights are compared bit for bit with those of a run of two machines that "
        "nobody disturbed. The agents have `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` where nothing else is said; without "
        "it, the machine is killed once, to see whether torch still needs it. The wait is that from a new agent to a "
        "later saved step.",
        "",
        "| run | killed after steps | longest wait | weights at the end |",
        "|---|---|---|---|",
        *(trial.row() for trial in trials),
    ]
    return Report(lines, all(trial.same for trial in trials[:2]))
