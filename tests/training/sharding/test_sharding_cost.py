"""The costs of docs/scale.md: by hand, and beside what torch keeps, shards and sends here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from docs.write_training_costs import PAGE, page
from vitrail.model.cost import parameters
from vitrail.model.presets import vit_preset
from vitrail.model.vit import ViT
from vitrail.training.distributed import Processes, distribute
from vitrail.training.sharding.sharding_cost import (
    Cluster,
    activation_bytes,
    block_activation_bytes,
    block_parameters,
    sent_bytes,
    training_cost,
)


def test_the_page_has_the_table_that_the_formulas_give():
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/scale.md is out of date: run `make docs`"


def test_one_gpu_and_eight_by_hand():
    config = vit_preset("B/16")  # D = 768, 12 blocks of 7,087,872 parameters, 197 tokens, 17.56 G multiply-adds
    total, block = 86_567_656, 7_087_872
    assert (parameters(config), block_parameters(config)) == (total, block)
    one = training_cost(config, 1, 64)
    assert (one.state_bytes, one.sent_bytes, one.efficiency) == (16 * total, 0, (1.0, 1.0))
    assert one.computing == pytest.approx(64 * 3 * 2 * 17.564e9 / (0.4 * 312e12), rel=1e-3)
    whole = training_cost(config, 8, 64)
    assert whole.sent_bytes == 2 * 4 * total * 7 // 8 and whole.state_bytes == one.state_bytes
    assert whole.memory_bytes == one.memory_bytes + 4 * total
    cut = training_cost(config, 8, 64, shard=True)
    assert cut.state_bytes == 2 * total
    assert cut.sent_bytes == 4 * (36 * block + 2 * (total - 12 * block)) * 7 // 8
    assert cut.working_bytes == 2 * total + 8 * (2 * block + total - 12 * block)
    assert whole.sending == pytest.approx(whole.sent_bytes / 300e9)
    assert cut.efficiency == pytest.approx((one.computing / (one.computing + cut.sent_bytes / 300e9), 1.0))


def test_what_saves_memory_and_what_it_costs():
    config = vit_preset("L/16")
    plain, parts = training_cost(config, 16, 64, shard=True), training_cost(config, 16, 64, shard=True, accumulate=4)
    assert parts.activation_bytes * 4 == plain.activation_bytes and parts.sent_bytes == 4 * plain.sent_bytes
    again = training_cost(config, 16, 64, shard=True, checkpointing=True)
    assert again.memory_bytes < plain.memory_bytes / 4 and again.computing == pytest.approx(plain.computing * 4 / 3)
    assert activation_bytes(config, checkpointing=True) == 24 * 197 * 1024 * 4 + block_activation_bytes(config)
    slow = training_cost(config, 16, 64, shard=True, cluster=Cluster(between=1e9))
    assert slow.sending == pytest.approx(200 * plain.sending) and slow.efficiency[1] < 1 == plain.efficiency[1]


@pytest.mark.parametrize("changes", [{}, {"layer_scale": 0.1}, {"activation": "swiglu"}], ids=str)
def test_a_block_keeps_what_is_counted(changes):
    """In float32, all of whose numbers take four bytes; the memory that torch's autograd holds on to."""

    def kept(depth: int) -> int:
        storages: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        model = ViT(tiny.replace(depth=depth)).train()
        own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = model(torch.randn(4, 3, 64, 64))
        assert output.requires_grad  # what is kept lives until here
        return sum(size for place, size in storages.items() if place not in own)

    tiny = vit_preset("mu/4", image_size=64, pool="mean", **changes)
    assert 4 * block_activation_bytes(tiny, half=4) == pytest.approx(kept(3) - kept(2), rel=0.02)


@pytest.fixture
def eight() -> Iterator[Processes]:
    """The first of eight processes, of which there is only one: what is sent goes nowhere."""
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield Processes(0, 8)
    dist.destroy_process_group()


class Gathered(TorchDispatchMode):
    """The bytes of all tensors that are gathered or scattered."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if "allgather" in str(function):
            self.bytes += arguments[0].nbytes
        elif "reduce_scatter" in str(function):
            self.bytes += arguments[1].nbytes
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("shard", [False, True], ids=["replicated", "sharded"])
def test_torch_holds_and_sends_what_is_counted(eight, shard):
    """Rings send 7/8 of a tensor that is gathered or scattered, and twice that of one that is summed."""
    config = vit_preset("mu/4", image_size=16, depth=3, width=64, heads=2)
    model, summed = ViT(config).train(), []
    network = distribute(model, eight, shard)
    held = sum(getattr(p, "_local_tensor", p).nbytes for p in model.parameters())
    assert held == pytest.approx(training_cost(config, 8, 1, shard=shard).state_bytes / 4, rel=0.02)

    def sum_bucket(_, bucket):
        summed.append(bucket.buffer().nbytes)
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    if shard:
        with Gathered() as gathered:
            network(torch.randn(2, 3, 16, 16)).sum().backward()
        sent = gathered.bytes * 7 / 8
    else:
        network.register_comm_hook(None, sum_bucket)
        network(torch.randn(2, 3, 16, 16)).sum().backward()
        sent = 2 * sum(summed) * 7 / 8
    assert sent == pytest.approx(sent_bytes(config, 8, shard), rel=0.02)
