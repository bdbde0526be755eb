"""One process or several: the same command under `torchrun` shares every batch among its processes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is documented, and not in `__all__`
from torch.nn.parallel import DistributedDataParallel

from vitrail.errors import VitrailError
from vitrail.model.encoder import Encoder

T = TypeVar("T")
CPU = torch.device("cpu")
WAIT = timedelta(minutes=30)  # the slowest thing that others wait for: decoding a large set
CONNECTING = 5.0  # seconds
STORE_PORT = "vitrail/store"


@dataclass(frozen=True)
class Processes:
    rank: int = 0
    world: int = 1
    device: torch.device = CPU

    @property
    def is_main(self) -> bool:
        """The one that prints and writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def gather(self, values: Tensor) -> Tensor:
        """(M, ...) of each process, one after the other; they may differ in M."""
        if self.world == 1:
            return values
        return torch.cat(self.collect(values.cpu()))

    def collect(self, own: T) -> list[T]:
        """What each process has, on all of them."""
        if self.world == 1:
            return [own]
        parts: list[object] = [None] * self.world
        dist.all_gather_object(parts, own)
        return cast("list[T]", parts)

    def from_main(self, make: Callable[[], T]) -> T:
        """What `make` returns on the main process, broadcast to all. An error there is raised on every process."""
        if self.world == 1:
            return make()
        result: list[object] = [None]
        if self.is_main:
            try:
                result[0] = make()
            except VitrailError as error:
                result[0] = error
        dist.broadcast_object_list(result, src=0)
        if isinstance(result[0], VitrailError):
            raise result[0]
        return cast("T", result[0])

    def agree(self, wish: bool) -> bool:
        """The main process's wish, on all: what takes every process must be begun by all of them."""
        return self.from_main(lambda: wish)


def start_processes() -> Processes:
    """This process among those that torchrun started, or alone."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if cuda else torch.device("mps" if torch.mps.is_available() else "cpu")
    if "RANK" not in os.environ:
        return Processes(device=device)
    device = device if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    rank = int(os.environ["RANK"])
    if not dist.is_initialized():
        backend = "nccl" if cuda else "gloo"
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            dist.init_process_group(backend, timeout=WAIT, store=own_store(rank), rank=rank, world_size=world)
        else:
            dist.init_process_group(backend, timeout=WAIT)
    return Processes(rank, world, device)


def own_store(rank: int) -> TCPStore:
    """Where these processes, and no earlier ones, tell each other their addresses.

    torchrun's store outlives the processes that it starts again. By its leftovers one of them may look for a dead one
    (pytorch issue 135712), so it only says where the main process has a new store. A port of before does not answer.
    """
    host, last_try = os.environ["MASTER_ADDR"], time.monotonic() + WAIT.total_seconds()
    shared = TCPStore(host, int(os.environ["MASTER_PORT"]), is_master=False, timeout=WAIT)
    if rank == 0:
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=WAIT)
        shared.set(STORE_PORT, str(store.port))
        return store
    while not is_answered(host, port := int(shared.get(STORE_PORT))) and time.monotonic() < last_try:
        time.sleep(0.1)
    return TCPStore(host, port, is_master=False, timeout=WAIT)


def is_answered(host: str, port: int) -> bool:
    """Whether something listens there."""
    with suppress(OSError), socket.create_connection((host, port), CONNECTING):
        return True
    return False


def torchrun_start() -> str | None:
    """What the processes of one start of torchrun have in common, also those that it starts in the place of dead ones,
    here or on another machine. None: torchrun did not start this process."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    # torchrun calls a start without --rdzv-id and --standalone "none"; it has one machine, and its own process id
    return f"{socket.gethostname()} {os.getppid()}" if name == "none" else name


_ended_groups: list[dist.ProcessGroup] = []


def end_processes(processes: Processes) -> None:
    """Leave the group of processes.

    The group itself is kept until Python ends. Else DDP's reducer would be the last to hold it, and free it while it
    holds the GIL: that waits for gloo's thread, which at times waits for the GIL, and a finished run never ended.
    """
    if dist.is_initialized() and "RANK" in os.environ:
        group = dist.group.WORLD
        if group is not None:
            _ended_groups.append(group)
        dist.destroy_process_group()


def distribute(model: nn.Module, processes: Processes, shard: bool) -> nn.Module:
    """The model as it is called in training: alone, replicated (DDP), or cut up among the processes (FSDP2)."""
    if processes.world == 1:
        return model
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            model.set_submodule(name, SharedBatchNorm(module, processes.world))
    if shard:
        from torch.distributed.fsdp import fully_shard

        assert isinstance(model, Encoder)
        for block in model.block_modules():
            fully_shard(block)
        fully_shard(model)
        return model
    ids = [processes.device.index] if processes.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=ids)


class SummedOverProcesses(torch.autograd.Function):
    """The sum over all processes; the gradient of each part is the sum of what came back to every process."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


class SharedBatchNorm(nn.Module):
    """Batch norm whose statistics are those of the whole batch, whichever process an image is on. torch's own
    SyncBatchNorm runs on GPUs only. Its parameters and buffers are those of the layer it stands for."""

    def __init__(self, layer: nn.BatchNorm1d | nn.BatchNorm2d, world: int) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.eps, self.momentum, self.world = layer.eps, layer.momentum or 0.1, world
        self.running_mean: Tensor
        self.running_var: Tensor
        self.num_batches_tracked: Tensor
        for name, buffer in layer.named_buffers():
            self.register_buffer(name, buffer)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        kind, x = x.dtype, x.float()  # statistics in half precision would be too coarse
        count = x.numel() / x.shape[1] * self.world
        others, channels = [0, *range(2, x.ndim)], (1, -1, *[1] * (x.ndim - 2))
        mean = SummedOverProcesses.apply(x.sum(dim=others)) / count
        centred = x - mean.view(channels)
        variance = SummedOverProcesses.apply(centred.square().sum(dim=others)) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
            self.num_batches_tracked += 1
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * scale.view(channels) + self.bias.view(channels)).to(kind)
