"""Writes the table of docs/scale.md that says what training on several GPUs costs: `make docs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vitrail.model.presets import vit_preset
from vitrail.training.sharding.sharding_cost import Cluster, TrainingCost, training_cost

PAGE = Path(__file__).with_name("scale.md")
BEGIN, END = "<!-- Written by docs/write_training_costs.py: -->\n", "<!-- End of what it writes -->\n"
MODELS, GPUS, IMAGES = ("B/16", "L/16", "g/14"), (1, 2, 4, 8, 16, 32, 64), 64
SLOW = Cluster(between=12.5e9)  # one link of 100 Gbit/s a machine
HEADINGS = ("model", "GPUs", "memory", "memory, `--shard`", "sent", "sent, `--shard`", "efficiency")
HEADINGS += ("efficiency, `--shard`", "at 100 Gbit/s", "at 100 Gbit/s, `--shard`")


def page() -> str:
    """The whole of docs/scale.md, with the table as the formulas give it now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + "\n" + "\n".join(table()) + "\n\n" + END + rest.partition(END)[2]


def table() -> Iterator[str]:
    yield "| " + " | ".join(HEADINGS) + " |"
    yield "|---|---" + "|---:" * (len(HEADINGS) - 2) + "|"
    for name in MODELS:
        for gpus in GPUS:
            yield "| " + " | ".join([name, str(gpus), *cells(name, gpus)]) + " |"


def cells(name: str, gpus: int) -> list[str]:
    config = vit_preset(name)
    whole, cut, slow, slow_cut = (
        training_cost(config, gpus, IMAGES, shard=shard, cluster=cluster)
        for cluster in (Cluster(), SLOW)
        for shard in (False, True)
    )
    sizes = [gigabytes(whole.memory_bytes), gigabytes(cut.memory_bytes)]
    sizes += [gigabytes(whole.sent_bytes), gigabytes(cut.sent_bytes)]
    if gpus == 1:
        return [sizes[0], "", "", "", "", "", "", ""]
    fast = [efficiency(whole), efficiency(cut)]
    return sizes + fast + ([efficiency(slow), efficiency(slow_cut)] if gpus > SLOW.node else ["", ""])


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def efficiency(cost: TrainingCost) -> str:
    least, most = (f"{100 * share:.0f}" for share in cost.efficiency)
    return f"{most} %" if least == most else f"{least} to {most} %"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
