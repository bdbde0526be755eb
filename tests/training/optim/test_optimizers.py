"""Every trained parameter has exactly one rule, and the rate that its place asks for."""

import pytest
import torch

from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.training.optim.lora import add_low_rank, is_low_rank, merge_low_rank
from vitrail.training.optim.muon import Muon
from vitrail.training.optim.optimizers import Rates, choose_trained, layer_scale, optimizers


def model(**changes):
    torch.manual_seed(0)
    return ViT(preset("mu/4", image_size=16, depth=3, classes=5, **changes))


def groups(network, rates):
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    return {
        names[id(parameter)]: (type(optimizer), group)
        for optimizer in optimizers(network, rates)
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


@pytest.mark.parametrize("muon", [None, 0.02])
@pytest.mark.parametrize("stem", ["linear", "conv"])
def test_every_parameter_learns_once(muon, stem):
    network = model(stem=stem, registers=2)
    by_name = groups(network, Rates(adamw=1e-3, muon=muon))
    assert by_name.keys() == dict(network.named_parameters()).keys()
    of_muon = {name for name, (kind, _) in by_name.items() if kind is Muon}
    matrices = {name for name, p in network.named_parameters() if name.startswith("blocks.") and p.dim() == 2}
    kernels = {"stem.layers.3.weight"} if stem == "conv" else set()  # layers.0 reads the pixels
    assert of_muon == (matrices | kernels if muon else set())
    if muon:
        assert {g["stacks"] for name, (_, g) in by_name.items() if "qkv.weight" in name} == {3}


def test_norms_biases_and_tokens_do_not_decay():
    by_name = groups(model(), Rates(adamw=1e-3, weight_decay=0.1))
    still = {name for name, (_, group) in by_name.items() if group["weight_decay"] == 0}
    assert {"cls_token", "positions.table", "norm.weight", "head.out.bias", "blocks.0.norm1.weight"} <= still
    assert by_name["head.out.weight"][1]["weight_decay"] == by_name["blocks.1.mlp.up.weight"][1]["weight_decay"] == 0.1


def test_layers_below_learn_slower():
    by_name = groups(model(), Rates(adamw=1e-3, layer_decay=0.5))
    rate = {name: group["peak"] for name, (_, group) in by_name.items()}
    assert rate["head.out.weight"] == rate["norm.weight"] == 1e-3
    assert rate["blocks.2.mlp.up.weight"] == pytest.approx(5e-4)
    assert rate["blocks.0.mlp.up.weight"] == pytest.approx(1.25e-4)
    assert rate["stem.projection.weight"] == rate["cls_token"] == rate["positions.table"] == pytest.approx(6.25e-5)
    assert layer_scale("head.out.bias", 12, 0.75) == 1


def test_head_only_leaves_the_rest_still():
    network = model()
    choose_trained(network, "head")
    assert {name for name, p in network.named_parameters() if p.requires_grad} == {"head.out.weight", "head.out.bias"}
    assert groups(network, Rates(adamw=1e-3)).keys() == {"head.out.weight", "head.out.bias"}


def test_lora_changes_nothing_at_first_trains_little_and_merges_into_a_plain_model():
    network, images = model().eval(), torch.randn(2, 3, 16, 16)
    plain = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    before = network(images)
    add_low_rank(network, 4)
    choose_trained(network, "lora")
    torch.testing.assert_close(network(images), before)
    free = [name for name, p in network.named_parameters() if p.requires_grad]
    assert all(is_low_rank(name) or name.startswith("head.") for name in free)
    assert sum(is_low_rank(name) for name in free) == 2 * 4 * 3  # up and down, four layers a block, three blocks
    for optimizer in optimizers(network, Rates(adamw=0.1)):
        network.train()(images).square().sum().backward()
        optimizer.step()
    network.train()(images).square().sum().backward()  # `up` starts at 0, so `down` moves from the second step on
    optimizers(network, Rates(adamw=0.1))[0].step()
    changed = network.eval()(images)
    merge_low_rank(network)
    assert network.state_dict().keys() == plain.keys()
    torch.testing.assert_close(network(images), changed)
    difference = network.blocks[0].mlp.up.weight - plain["blocks.0.mlp.up.weight"]
    assert 0 < torch.linalg.matrix_rank(difference) <= 4
    assert torch.equal(network.blocks[0].norm1.weight, plain["blocks.0.norm1.weight"])
