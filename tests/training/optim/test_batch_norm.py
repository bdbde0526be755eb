"""Batch norm statistics are recomputed for every measurement, kept with the best weights, and never change training."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vitrail import train
from vitrail.data.loading.loader import Batch
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.training import loop, train_step
from vitrail.training.checkpointing import Checkpoints, read_state
from vitrail.training.distributed import Processes
from vitrail.training.optim import batch_norm
from vitrail.training.optim.batch_norm import recomputed_statistics
from vitrail.training.optim.ema import EMA
from vitrail.training.settings import Recipe, Settings
from vitrail.training.train_step import Trainer

FAST = {
    "model.model": "mu/4",
    "model.image_size": 16,
    "model.stem": "conv",
    "train.epochs": 2.0,
    "train.batch_size": 16,
    "train.save_minutes": 0.0,
    "data.workers": 0,
}


def images_of(step: int) -> torch.Tensor:
    return torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(step)) * (1 + step) + step


class FewBatches:
    """A loader whose batches differ much from one another."""

    sampler = SimpleNamespace(batch_size=16)
    preprocessing = SimpleNamespace(size=(256, 256))

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def batches(self, first, last):
        self.asked.append((first, last))
        for step in range(first, last):
            keys = torch.arange(16, dtype=torch.int32)
            yield Batch(step, images_of(step), torch.zeros(16, dtype=torch.int64), np.arange(16), None, keys)


def trainer_of(ema: bool = False, accumulate: int = 1, **config) -> Trainer:
    torch.manual_seed(0)
    model = ViT(
        preset("mu/4", image_size=16, classes=3, **{"stem": "conv", "stem_blocks": 1, "dropout": 0.5, **config})
    )
    return Trainer(
        model=model.train(),
        network=model,
        optimizers=(),
        ema=EMA(model, 10.0) if ema else None,
        task=None,
        loader=FewBatches(),
        recipe=Recipe(accumulate=accumulate, precision="float32"),
        processes=Processes(),
    )


def statistics(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if "running_" in name}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_they_are_the_mean_over_the_batches(accumulate):
    """By hand for the first layer; for the others from what goes into them."""
    trainer = trainer_of(accumulate=accumulate)
    norms = batch_norm.trained_batch_norms(trainer.model)
    assert len(norms) > 2
    seen: dict[torch.nn.Module, list[torch.Tensor]] = {norm: [] for norm in norms}
    for norm in norms:
        norm.register_forward_pre_hook(lambda module, inputs: seen[module].append(inputs[0].detach()))
    heads: list[object] = []
    trainer.model.head.register_forward_pre_hook(lambda *_: heads.append(_))
    with recomputed_statistics(trainer):
        for norm in norms:
            means = torch.stack([x.mean((0, 2, 3)) for x in seen[norm]])
            variances = torch.stack([x.var((0, 2, 3)) for x in seen[norm]])
            torch.testing.assert_close(norm.running_mean, means.mean(0), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(norm.running_var, variances.mean(0), rtol=1e-4, atol=1e-5)
        [(first, last)] = trainer.loader.asked
        assert first == 0 and all(len(batches) == accumulate * last for batches in seen.values())
        assert len(heads) == 1 < last  # what comes behind the last of them is left out
        parts = [part for step in range(last) for part in images_of(step).chunk(accumulate)]
        by_hand = torch.stack([trainer.model.stem.first_convolution(part).mean((0, 2, 3)) for part in parts]).mean(0)
        torch.testing.assert_close(norms[0].running_mean, by_hand, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fails", [False, True])
def test_training_goes_on_as_if_nothing_had_happened(fails):
    trainer = trainer_of()
    trainer.model(images_of(3))  # running statistics that are neither the first nor the recomputed ones
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    modes = [module.training for module in trainer.model.modules()]
    random = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="measuring") if fails else nullcontext(), recomputed_statistics(trainer):
        inside = statistics(trainer.model)
        if fails:
            raise RuntimeError("measuring")
    after = trainer.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(not torch.equal(inside[name], after[name]) for name in inside)
    assert modes == [module.training for module in trainer.model.modules()]
    assert torch.equal(random, torch.get_rng_state())
    assert {norm.momentum for norm in batch_norm.trained_batch_norms(trainer.model)} == {0.1}


def test_averaged_weights_have_statistics_of_their_own():
    trainer = trainer_of(ema=True)
    for name, tensor in trainer.ema.weights.items():
        if name.endswith("weight"):
            tensor.mul_(2)
    kept = {name: tensor.clone() for name, tensor in trainer.ema.weights.items()}
    with recomputed_statistics(trainer):
        own = statistics(trainer.model)
    with trainer.ema.applied(trainer.model), recomputed_statistics(trainer):
        averaged = statistics(trainer.model)
        layer = trainer.model.stem.first_convolution
        [(_, last), *_] = trainer.loader.asked
        by_hand = torch.stack([layer(images_of(step)).mean((0, 2, 3)) for step in range(last)]).mean(0)
        first = next(name for name in averaged if name.endswith("running_mean"))
        torch.testing.assert_close(averaged[first], by_hand, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(averaged[first], own[first])
    assert all(torch.equal(kept[name], trainer.ema.weights[name]) for name in kept)


@pytest.mark.parametrize("frozen", [False, True], ids=["no batch norm", "frozen"])
def test_models_without_statistics_that_move_are_left_alone(frozen):
    trainer = trainer_of(**({} if frozen else {"stem": "linear", "stem_blocks": 0}))
    trainer.model.freeze_stem_statistics(frozen)
    trainer.model.train()
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    with recomputed_statistics(trainer):
        assert all(torch.equal(tensor, trainer.model.state_dict()[name]) for name, tensor in before.items())
    assert not trainer.loader.asked


@pytest.mark.parametrize("average", [0.0, 0.2], ids=["own weights", "EMA"])
def test_the_best_weights_are_kept_with_the_statistics_they_were_measured_with(
    tmp_path, pictures, monkeypatch, average
):
    measured = []
    quick_metrics = train_step.quick_metrics

    def spy(images, network, processes, precision):
        measured.append(statistics(network))
        return quick_metrics(images, network, processes, precision)

    monkeypatch.setattr(train_step, "quick_metrics", spy)
    settings = Settings().with_values(FAST | {"train.average": average})
    finished = train(pictures, tmp_path / "run", settings=settings)
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoint")
    best = checkpoints.load_best()
    rows = [dict_of for dict_of in measured if same(dict_of, best.tensors, "model.")]
    assert len(rows) == 1  # each evaluation has its own
    assert same(rows[0], finished.checkpoint.model.state_dict(), "")
    last = read_state(checkpoints.path(checkpoints.steps()[-1])).tensors
    assert not same(measured[-1], last, "model.")


def same(found: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor], prefix: str) -> bool:
    assert found
    return all(torch.equal(tensor, tensors[prefix + name]) for name, tensor in found.items())


def test_measuring_does_not_change_what_is_learnt(tmp_path, pictures, monkeypatch):
    ends = []
    for name, context in (("with", recomputed_statistics), ("without", lambda trainer: nullcontext())):
        monkeypatch.setattr(loop, "recomputed_statistics", context)
        train(pictures, tmp_path / name, settings=Settings().with_values(FAST))
        checkpoints = Checkpoints(tmp_path / name / "checkpoint")
        ends.append(read_state(checkpoints.path(checkpoints.steps()[-1])).tensors)
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
