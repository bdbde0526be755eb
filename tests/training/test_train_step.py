"""A step's gradient is that of its whole batch, into however many parts and processes it is cut, with dropout too."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.training.running import vitrail
from vitrail.commands.make_data import make_data
from vitrail.data.loading.loader import Batch
from vitrail.data.loading.rng import image_keys
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.tasks.registry import task_for
from vitrail.training.distributed import Processes
from vitrail.training.settings import Recipe, Settings
from vitrail.training.step_timing import ENDLESS
from vitrail.training.train_step import Trainer, compute_gradients

IMAGES, SIDE = 8, 16
KEYS = torch.from_numpy(image_keys(0, 0, np.arange(IMAGES)))
LABELS = ["a", "b", "c"]
HEADS = {
    "classify": ("linear",),
    "multilabel": ("linear",),
    "regress": ("linear",),
    "segment": ("mask_linear", "mask_decoder"),
    "detect": ("box_tokens", "box_decoder"),
    "depth": ("mask_linear",),
}
CASES = [(task, head) for task, heads in HEADS.items() for head in heads]


@dataclass(frozen=True)
class OneOfTwo(Processes):
    """A process of several, whose sum over all of them is known beforehand."""

    total: Tensor | None = None

    def sum(self, values: Tensor) -> Tensor:
        assert self.total is not None and values.shape == self.total.shape
        return self.total


def hard_targets(task: str) -> Tensor:
    """Nearly all that counts lies in the first image: objects, known pixels, rare classes."""
    made = torch.Generator().manual_seed(1)
    if task == "classify":
        return torch.tensor([0, 0, 1, 2, 2, 2, 2, 2])
    if task == "multilabel":
        return (torch.rand(IMAGES, 3, generator=made) < 0.3).float()
    if task == "regress":
        return torch.randn(IMAGES, 3, generator=made)
    if task == "detect":
        targets = torch.full((IMAGES, 6, 5), -1.0)
        targets[0] = torch.rand(6, 5, generator=made) * 0.4 + 0.3
        targets[5, 0] = torch.tensor([0, 0.5, 0.5, 0.3, 0.4])
        targets[0, :, 0] = torch.tensor([0, 1, 2, 0, 1, 2])
        return targets
    known = torch.rand(IMAGES, SIDE, SIDE, generator=made) < 0.02
    known[0] = True
    if task == "depth":
        return torch.where(known, 1 + torch.rand(IMAGES, SIDE, SIDE, generator=made), 0.0)
    return torch.where(known, torch.randint(0, 3, (IMAGES, SIDE, SIDE), generator=made), 255)


def fitted(task: str):
    chosen = task_for(task, LABELS[:1] if task == "depth" else LABELS)
    if task in ("classify", "multilabel"):
        chosen = task_for(task, LABELS, class_weights="sqrt")
        chosen.fit([0, 0, 0, 1, 2, 2] if task == "classify" else [[0], [0, 1], [2], []])
    elif task == "segment":
        chosen = task_for(task, LABELS, class_weights="sqrt")
        chosen.fit([torch.tensor([[0, 0, 0, 1, 2, 2]], dtype=torch.uint8)])
    if task == "detect":  # there are as many hints as a part has room for; here they follow from the objects alone
        drawn = type(chosen).denoising_queries

        def hints(targets: Tensor, keys: Tensor) -> Tensor | None:
            queries = drawn(chosen, targets, keys)
            if queries is None:
                return None
            shift = 0.1 * torch.arange(queries.shape[1] * 2).view(-1, 2, 1, 1) / queries.shape[1]
            boxes = targets[:, None, None, :, 1:] * (1 + shift)
            return torch.cat([targets[:, None, None, :, :1].expand_as(boxes[..., :1]), boxes], -1).flatten(2, 3)

        chosen.denoising_queries = hints
    return chosen


def network(task: str, head: str) -> ViT:
    torch.manual_seed(0)
    outputs = 1 if task == "depth" else 3
    noise = {"dropout": 0.1, "drop_path": 0.2}
    model = ViT(preset("mu/4", image_size=SIDE, classes=outputs, head=head, **noise)).train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()  # its statistics are those of a part, whatever the loss
    return model


def whole_batch(task: str) -> Batch:
    images = torch.randn(IMAGES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(2))
    return Batch(0, images, hard_targets(task), np.arange(IMAGES), None, KEYS)


def gradient(task, head: str, batch: Batch, accumulate: int = 1, processes: Processes | None = None) -> Tensor:
    """(parameters + 1,): the gradient of all parameters in a row, and the loss."""
    model = network(task.name, head)
    trainer = Trainer(
        model=model,
        network=model,
        optimizers=(),
        ema=None,
        task=task,
        loader=None,
        recipe=Recipe(accumulate=accumulate, keep_tokens=1.0, precision="float32"),
        processes=processes or Processes(),
    )
    loss = compute_gradients(trainer, batch, ENDLESS)
    parts = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return torch.cat([*parts, loss[None]])


def assert_equal_gradients(one: Tensor, other: Tensor) -> None:
    scale = one.abs().max()
    assert scale > 1e-3
    torch.testing.assert_close(other / scale, one / scale, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("accumulate", [2, 4])
@pytest.mark.parametrize(("name", "head"), CASES)
def test_parts_of_a_step_give_the_gradient_of_the_whole(name, head, accumulate):
    task, batch = fitted(name), whole_batch(name)
    assert_equal_gradients(gradient(task, head, batch), gradient(task, head, batch, accumulate))


@pytest.mark.parametrize(("name", "head"), CASES)
def test_processes_give_the_gradient_of_one(name, head):
    """DDP and FSDP take the mean over the processes, which may have a different number of images."""
    task, batch = fitted(name), whole_batch(name)
    total = task.loss_counts(batch.targets)
    shares = []
    for rank, share in enumerate((slice(0, 3), slice(3, IMAGES))):
        own = Batch(0, batch.images[share], batch.targets[share], batch.indices[share], None, batch.keys[share])
        shares.append(gradient(task, head, own, 2, OneOfTwo(rank, 2, total=total)))
    assert_equal_gradients(gradient(task, head, batch), torch.stack(shares).mean(0))


@pytest.mark.parametrize("name", ["segment", "detect", "depth"])
def test_a_step_of_which_nothing_is_known_learns_nothing_wrong(name):
    batch = whole_batch(name)
    unknown = {"segment": 255, "detect": -1, "depth": 0}[name]
    empty = Batch(0, batch.images, torch.full_like(batch.targets, unknown), batch.indices, None, batch.keys)
    found = gradient(fitted(name), HEADS[name][0], empty, 2)
    assert torch.isfinite(found).all()


@pytest.mark.parametrize(("task", "head"), [("segment", "decoder"), ("detect", "tokens")])
def test_two_processes_learn_what_one_does(tmp_path, task, head):
    """The two have a different number of objects, and of pixels of a class."""
    make_data("shapes", tmp_path / "data", images=48, size=32, task=task)
    values = {"width": 32, "depth": 1, "heads": 1, "patch_size": 8, "image_size": 32, "head": head}
    settings = {f"model.{name}": value for name, value in values.items()}
    settings |= {"train.batch_size": 8, "train.epochs": 1.0, "train.lr": 1e-4, "train.optimizer": "adamw"}
    Settings().with_values(settings | {"data.workers": 0}).write(tmp_path / "settings.toml")
    for processes in (1, 2):
        arguments = ["train", tmp_path / "data", "--out", tmp_path / str(processes), "--task", task]
        done = vitrail(*arguments, "--settings", tmp_path / "settings.toml", processes=processes)
        assert done.returncode == 0, done.stdout + done.stderr
    one, two = (losses(tmp_path / str(processes)) for processes in (1, 2))
    assert len(one) > 4 and two == pytest.approx(one, rel=1e-3)
    one, two = (load_file(tmp_path / str(processes) / "model.safetensors") for processes in (1, 2))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=1e-4, rtol=1e-3)


def losses(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]
