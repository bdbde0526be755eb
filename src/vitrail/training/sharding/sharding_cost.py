"""What training on several GPUs costs, from the config alone: memory of a GPU, bytes that it sends, time lost to that.

Counted as `distribute` has it: float32 weights, gradients and AdamW's two averages, bfloat16 by autocast, fused
attention. Replicated (DDP) every GPU has all of them; sharded (FSDP2) a part, and gathers the weights of a block to run
it, forward and backward. Stem, head, the optimizer's temporaries and what the allocator keeps back are left out of the
memory. Latency, GPUs that wait for the slowest, and the reading of images are left
out of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.model.config import ViTConfig
from vitrail.model.cost import multiply_adds, parameters

FLOAT32, HALF = 4, 2  # bytes
STATE = 4 * FLOAT32  # of a parameter: itself, its gradient, AdamW's two averages


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What is assumed of the machines."""

    flops: float = 0.4 * 312e12  # a second of a GPU: 40 % of an A100's peak in bfloat16
    node: int = 8  # GPUs of a machine
    inside: float = 300e9  # bytes a second that a GPU sends to others of its machine: NVLink 3
    between: float = 200e9  # bytes a second that a machine sends to others: eight links of 200 Gbit/s


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """Of one step, for one of the GPUs."""

    state_bytes: int  # weights, gradients, averages
    working_bytes: int  # gathered weights, their copies in bfloat16, buckets of gradients
    activation_bytes: int  # kept from forward to backward
    sent_bytes: int
    computing: float  # seconds
    sending: float  # seconds

    @property
    def memory_bytes(self) -> int:
        """At the end of a forward pass."""
        return self.state_bytes + self.working_bytes + self.activation_bytes

    @property
    def efficiency(self) -> tuple[float, float]:
        """Images a second of a GPU beside those of a GPU alone: where nothing is sent while it computes, and where all
        is that can be."""
        return self.computing / (self.computing + self.sending), self.computing / max(self.computing, self.sending)


def training_cost(
    config: ViTConfig,
    gpus: int,
    images: int,
    *,
    shard: bool = False,
    accumulate: int = 1,
    checkpointing: bool = False,
    cluster: Cluster | None = None,
) -> TrainingCost:
    """images: of one GPU in a step, run in `accumulate` parts."""
    cluster, shard = cluster or Cluster(), shard and gpus > 1
    total, block = parameters(config), block_parameters(config)
    bandwidth = cluster.inside if gpus <= cluster.node else min(cluster.inside, cluster.between)
    sent = sent_bytes(config, gpus, shard, accumulate)
    passes = 4 if checkpointing else 3  # forward, a backward of twice its work, and the forward pass again
    return TrainingCost(
        state_bytes=STATE * total // (gpus if shard else 1),
        working_bytes=_gathered_bytes(config, gpus, shard) + HALF * (block if checkpointing else total),
        activation_bytes=-(-images // accumulate) * activation_bytes(config, checkpointing),
        sent_bytes=sent,
        computing=images * passes * 2 * multiply_adds(config) / cluster.flops,
        sending=sent / bandwidth,
    )


def sent_bytes(config: ViTConfig, gpus: int, shard: bool, accumulate: int = 1) -> int:
    """What a GPU sends in a step, by rings: (n - 1) / n of a tensor where it is gathered or scattered, twice that where
    it is summed for all. Sharded, the blocks' weights are gathered for either pass and their gradients scattered, those
    of the rest gathered once, in each part of a step."""
    total, blocks = parameters(config), config.depth * block_parameters(config)
    values = accumulate * (3 * blocks + 2 * (total - blocks)) if shard else 2 * total
    return FLOAT32 * values * (gpus - 1) // gpus


def activation_bytes(config: ViTConfig, checkpointing: bool = False) -> int:
    """Of one image: what all blocks keep for the backward pass, or the inputs of all and what one keeps."""
    block = block_activation_bytes(config)
    if not checkpointing:
        return config.depth * block
    return config.depth * config.tokens * config.width * FLOAT32 + block


def block_activation_bytes(config: ViTConfig, half: int = HALF) -> int:
    """Of one image in one block. half: bytes of what autocast has in bfloat16."""
    assert config.mlp_width is not None
    tokens, width = config.tokens, config.width
    norms = 2 * tokens * (width + 2)  # the inputs, and a mean and a deviation of each token
    attention = tokens * 6 * width  # the first norm's output, Q, K, V, the heads' sums, the second norm's output
    hidden = tokens * config.mlp_width * (4 if config.activation == "swiglu" else 2)  # before and after the activation
    scaled = 0 if config.layer_scale is None else 2 * tokens * width
    return FLOAT32 * (norms + config.heads * tokens) + half * (attention + hidden + scaled)


def block_parameters(config: ViTConfig) -> int:
    """Of one block."""
    return parameters(config.replace(depth=2)) - parameters(config.replace(depth=1))


def _gathered_bytes(config: ViTConfig, gpus: int, shard: bool) -> int:
    """Sharded: whole weights and gradients of a block and of the next one, and of all that is no block. Replicated: the
    buckets in which gradients are summed."""
    total, block = parameters(config), block_parameters(config)
    if shard:
        return 2 * FLOAT32 * (2 * block + total - config.depth * block)
    return FLOAT32 * total if gpus > 1 else 0
