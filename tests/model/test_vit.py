"""The whole network: its shortcut, its options, and what torch can do with it (compile, export, autocast, pickle)."""

from __future__ import annotations

import copy
import pickle
import shutil

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from vitrail.errors import VitrailError
from vitrail.model import attention as attention_file
from vitrail.model.config import CHOICES
from vitrail.model.presets import preset
from vitrail.model.vit import ViT

KINDS = CHOICES["positions"]
CPU, META = torch.device("cpu"), torch.device("meta")


def tiny(**changes):
    return preset("mu/4", **{"image_size": 16, "classes": 5, "depth": 2, **changes})


def pictures(batch=2, height=16, width=16):
    return torch.randn(batch, 3, height, width)


def whole_forward(model, images):
    """Every token through every block, then the answer."""
    x, rope, *_ = model.embed(images)
    for block in model.blocks:
        x = block(x, rope)
    if model.distillation_head is None:
        return model.answer(x)
    normed = x if model.norm is None else model.norm(x)
    return (model.head(normed[:, 0]) + model.distillation_head(normed[:, 1])) / 2


# ---- the shortcut in the last block

SHORTCUTS = [
    {},
    {"depth": 1},
    {"norm": "post"},
    {"registers": 2},
    {"positions": "rotary", "registers": 1},
    {"qk_norm": True, "qkv_bias": False, "layer_scale": 0.3},
    {"distillation": True, "registers": 1},
    {"distillation": True, "positions": "rotary"},
    {"distillation": True, "final_norm": "pooled"},
    {"distillation": True, "norm": "post"},
    {"distillation": True, "classes": 0},
    {"final_norm": "pooled"},
    {"classes": 0},
]


@pytest.mark.parametrize("changes", SHORTCUTS, ids=str)
def test_carrying_only_cls_through_the_last_block_gives_the_full_answer(lively, changes):
    model, images = lively(tiny(**changes)), pictures()
    torch.testing.assert_close(model(images), whole_forward(model, images))


@pytest.mark.parametrize("changes", SHORTCUTS, ids=str)
def test_the_shortcut_gives_the_full_gradients(lively, changes):
    model, images = lively(tiny(**changes)).double(), pictures().double()
    model(images).square().sum().backward()
    short = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    whole_forward(model, images).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(short[name], parameter.grad, msg=name)


def test_the_last_block_carries_on_what_is_read_and_no_more():
    for changes, carried in [({}, 1), ({"distillation": True}, 2), ({"pool": "mean"}, 17), ({"pool": "cls_mean"}, 17)]:
        model, seen = ViT(tiny(**changes)), []
        model.blocks[-1].register_forward_hook(lambda module, inputs, output, seen=seen: seen.append(output.shape[1]))
        model(pictures())
        assert seen == [carried]


# ---- features


def test_features_names_the_tokens_in_their_order(lively):
    model = lively(tiny(distillation=True, registers=3))
    features = model.features(pictures(), blocks=[1])
    x = model.norm(features.blocks[0])
    assert x.shape == (2, 1 + 1 + 3 + 16, 32)
    assert torch.equal(features.cls, x[:, 0])
    assert torch.equal(features.distillation, x[:, 1])
    assert torch.equal(features.registers, x[:, 2:5])
    assert torch.equal(features.patches, x[:, 5:])
    assert features.grid == (4, 4)


def test_blocks_are_given_as_asked_before_the_final_norm(lively):
    model, images = lively(tiny(depth=3)), pictures()
    x, rope, *_ = model.embed(images)
    outputs = []
    for block in model.blocks:
        x = block(x, rope)
        outputs.append(x)
    features = model.features(images, blocks=[2, 0, -2, -1, 0])
    assert len(features.blocks) == 5
    for found, expected in zip(features.blocks, (2, 0, 1, 2, 0), strict=True):
        assert torch.equal(found, outputs[expected])
    assert model.features(images).blocks == ()
    torch.testing.assert_close(features.cls, model.norm(outputs[-1])[:, 0])


@pytest.mark.parametrize("block", [3, -4, 100])
def test_a_block_that_there_is_not_is_refused_with_both_numbers(block):
    with pytest.raises(VitrailError, match=f"no block {block}: the model has 3, 0 to 2"):
        ViT(tiny(depth=3)).features(pictures(), blocks=[0, block])


def test_a_norm_over_the_pooled_vector_leaves_the_tokens_of_features_alone(lively):
    model = lively(tiny(final_norm="pooled"))
    features = model.features(pictures(), blocks=[-1])
    assert torch.equal(features.patches, features.blocks[0][:, 1:])


# ---- options


def test_distillation_is_the_mean_of_two_heads_on_two_tokens(lively):
    model, images = lively(tiny(distillation=True, registers=1)), pictures()
    features = model.features(images)
    answers = model.head.out(features.cls), model.distillation_head.out(features.distillation)
    assert (answers[0] - answers[1]).abs().max() > 0.1
    torch.testing.assert_close(model(images), (answers[0] + answers[1]) / 2)


def test_the_stem_norm_is_applied_to_tokens_with_their_positions(lively):
    model, images = lively(tiny(stem_norm=True)), pictures()
    bare = torch.cat([model.cls_token.expand(2, 1, -1), model.stem(images)], dim=1) + model.positions.table
    torch.testing.assert_close(model.embed(images)[0], model.stem_norm(bare))
    assert ViT(tiny()).stem_norm is None


def test_a_head_without_bias_and_patches_without_bias():
    model = ViT(tiny(head_bias=False, patch_bias=False))
    assert model.head.out.bias is None
    assert model.stem.projection.bias is None


def test_registers_change_the_answer_through_attention_alone(lively):
    model, images = lively(tiny(registers=2)), pictures()
    before = model(images)
    with torch.no_grad():
        model.registers += torch.randn(2, 32)
    assert (model(images) - before).abs().max() > 1e-3


def test_fresh_weights_are_small_and_cut_at_two_deviations():
    torch.manual_seed(0)
    model = ViT(tiny(layer_scale=0.1))
    maps = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for linear in maps:
        assert linear.weight.abs().max() <= 0.04
        assert linear.bias.count_nonzero() == 0
    assert model.blocks[0].mlp.up.weight.std().item() == pytest.approx(0.0176, rel=0.05)  # 0.02 before the cut
    assert 0 < model.positions.table.abs().max() <= 0.04


def test_the_same_seed_builds_the_same_model():
    models = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        models.append(ViT(tiny()).state_dict())
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    assert not torch.equal(models[0]["cls_token"], models[2]["cls_token"])


# ---- training only


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "head_dropout", "drop_path"])
def test_dropout_of_every_kind_happens_in_training_only(lively, kind):
    model, images = lively(tiny(**{kind: 0.5})), pictures(8)
    plain = lively(tiny())
    assert torch.equal(model(images), plain(images))
    torch.manual_seed(0)
    first, second = model.train()(images), model(images)
    assert not torch.equal(first, second)
    assert torch.equal(plain.train()(images), plain(images))


def test_dropout_falls_on_the_embedded_tokens_too():
    torch.manual_seed(0)
    x, *_ = ViT(tiny(dropout=0.5)).train().embed(pictures(8))
    assert (x == 0).float().mean().item() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("changes", [{}, {"dropout": 0.2, "drop_path": 0.2}, {"positions": "rotary"}], ids=str)
def test_checkpointing_gives_the_same_gradients(lively, changes):
    gradients, recomputed = [], []
    for checkpointing in (False, True):
        model = lively(tiny(depth=3, **changes)).train()
        model.checkpointing = checkpointing
        calls = []
        model.blocks[0].register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        torch.manual_seed(1)
        images = pictures()
        model(images).square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
        recomputed.append(len(calls))
    assert recomputed == [1, 2]  # the second time in the backward pass
    for name in gradients[0]:
        torch.testing.assert_close(gradients[0][name], gradients[1][name], msg=name)


def test_checkpointing_recomputes_nothing_without_gradients(lively):
    model, images = lively(tiny()).train(), pictures()
    model.checkpointing = True
    with torch.no_grad():
        answer = model(images)
    assert not answer.requires_grad
    model.checkpointing = False
    torch.testing.assert_close(answer, model(images))


# ---- precisions and devices


def answers_in(dtype, single):
    """The answers of a network's copy in `dtype`, and its own, at its native size and at another."""
    model = copy.deepcopy(single).to(dtype)
    for size in [(16, 16), (8, 24)]:
        images = pictures(2, *size)
        answer = model(images.to(dtype))
        assert answer.dtype == dtype
        yield answer.float(), single(images)


@pytest.mark.parametrize("kind", KINDS)
def test_a_double_model_works_at_home_and_elsewhere(lively, kind):
    for answer, expected in answers_in(torch.float64, lively(tiny(positions=kind, registers=1))):
        torch.testing.assert_close(answer, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bfloat16_model_works_at_home_and_elsewhere(lively, kind):
    for answer, expected in answers_in(torch.bfloat16, lively(tiny(positions=kind, registers=1))):
        assert (answer - expected).norm() / expected.norm() < 0.1


@pytest.mark.parametrize("computes_bf16", [False, True])
@pytest.mark.parametrize("changes", [{}, {"positions": "rotary"}, {"pool": "attention"}, {"norm": "post"}], ids=str)
def test_autocast_is_close_to_single_precision(lively, monkeypatch, changes, computes_bf16):
    monkeypatch.setattr(attention_file, "CPU_COMPUTES_BF16", computes_bf16)
    model, images = lively(tiny(**changes)), pictures()
    single = model(images)
    for training in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = model.train(training)(images).float()
        assert 0 < (mixed - single).norm() / single.norm() < 0.05  # other digits, the same answer


def test_a_model_can_be_copied_and_pickled(lively):
    model, images = lively(tiny(positions="sincos2d", stem="conv")), pictures()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(images), model(images))
        assert twin.config == model.config
        assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in model.parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_built_on_the_meta_device_has_real_fixed_positions(lively, kind):
    model, images = lively(tiny(positions=kind, registers=1)), pictures()
    with META:
        shell = ViT(model.config).eval()
    assert all(p.device == META for p in shell.parameters())
    assert all(buffer.device == CPU for buffer in shell.buffers())
    shell.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(shell(images), model(images))


# ---- compile

COMPILED = [
    {"positions": "rotary", "pool": "attention", "activation": "swiglu", "qk_norm": True, "depth": 1},
    {"distillation": True, "registers": 1, "layer_scale": 0.1, "stem": "conv", "depth": 1},
]


@pytest.mark.parametrize("changes", COMPILED, ids=["rotary", "distillation"])
def test_a_compiled_model_is_one_graph_with_the_same_answer_and_gradients(lively, changes):
    torch.compiler.reset()
    model, images = lively(tiny(**changes)).train(), pictures()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    answers, gradients = [], []
    for run in (model, compiled):
        model.zero_grad()
        model.load_state_dict(lively(tiny(**changes)).state_dict())  # batch norm's statistics moved
        answers.append(run(images))
        answers[-1].square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*answers)
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def test_a_compiled_model_is_one_graph_in_mixed_precision(lively):
    torch.compiler.reset()
    model, images = lively(tiny(depth=1)).train(), pictures()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(compiled(images), model(images), atol=0.05, rtol=0.05)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_compiles_the_model(lively):
    torch.compiler.reset()
    model, images = lively(tiny(depth=1)), pictures()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="inductor")(images)
        torch.testing.assert_close(compiled, model(images), atol=1e-4, rtol=1e-4)


# ---- export


@pytest.mark.parametrize(
    "changes",
    [{"distillation": True}, {"pool": "attention", "stem": "conv"}, {"attention_window": 3, "global_blocks": 0}],
    ids=str,
)
def test_an_exported_model_gives_the_same_answer(lively, changes):
    model, images = lively(tiny(depth=1, **changes)), pictures()
    program = export(model, (images,)).module()
    torch.testing.assert_close(program(images), model(images))


def test_an_exported_model_can_have_a_free_batch(lively):
    model = lively(tiny(depth=1))
    program = export(model, (pictures(),), dynamic_shapes={"images": {0: Dim("batch")}}).module()
    for batch in (1, 5):
        images = pictures(batch)
        torch.testing.assert_close(program(images), model(images))


FREE = {"images": {0: Dim("batch"), 2: 4 * Dim("rows", max=64), 3: 4 * Dim("columns", max=64)}}


@pytest.mark.parametrize(
    "changes",
    [{"resample": "bicubic_antialias"}, {"resample": "linear"}]
    + [{"positions": kind} for kind in ("sincos1d", "sincos2d", "rotary")],
    ids=str,
)
def test_an_exported_model_can_have_a_free_size(lively, changes):
    model = lively(tiny(depth=1, **changes))
    program = export(model, (pictures(2, 24, 32),), dynamic_shapes=FREE).module()
    for batch, height, width in [(2, 24, 32), (1, 16, 16), (3, 16, 24), (1, 20, 36)]:  # 16 x 16 is the model's own
        images = pictures(batch, height, width)
        torch.testing.assert_close(program(images), model(images))


def test_a_free_size_is_refused_where_it_would_go_wrong():
    model = ViT(tiny(resample="bicubic_offset")).eval()
    with pytest.raises(VitrailError, match="'bicubic_offset' needs a fixed image size in an export"):
        export(model, (pictures(2, 24, 32),), dynamic_shapes=FREE)
    model = ViT(tiny(attention_window=3, global_blocks=0)).eval()
    with pytest.raises(VitrailError, match="attention_window needs a fixed image size in an export"):
        export(model, (pictures(2, 24, 32),), dynamic_shapes=FREE)


def test_a_fixed_size_export_holds_its_positions_ready(lively):
    program = export(lively(tiny(depth=1, positions="sincos2d")), (pictures(),))
    assert not any(node.target is torch.ops.aten.sin.default for node in program.graph.nodes)


@pytest.mark.parametrize(
    "changes", [{}, {"pool": "mean", "cls_token": False}, {"positions": "rotary"}, {"registers": 3}]
)
def test_kept_patches_are_those_of_a_model_that_sees_no_others(changes: dict) -> None:
    """All of them, in any order, give the whole answer; some give what the blocks make of those tokens alone."""
    torch.manual_seed(0)
    model = ViT(preset("mu/4", image_size=16, classes=5, depth=2, **changes)).eval()
    images = torch.randn(2, 3, 16, 16)
    every = torch.randperm(16)
    torch.testing.assert_close(model(images, keep=every), model(images), atol=1e-5, rtol=1e-5)
    some = torch.tensor([1, 7, 12])
    x, rope, *_ = model.embed(images)
    prefix = model.config.prefix
    x = torch.cat([x[:, :prefix], x[:, prefix:][:, some]], dim=1)
    for block in model.blocks:
        x = block(x, None if rope is None else rope[:, some])
    torch.testing.assert_close(model(images, keep=some), model.answer(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_the_maps_of_a_conv_stem_are_channels_last_whatever_the_channels(channels: int) -> None:
    """Grey pictures, which are in both orders at once, went through in the slow one."""
    model = ViT(preset("mu/4", image_size=16, channels=channels, stem="conv", stem_blocks=1)).eval()
    images = torch.randn(2, channels, 16, 16)
    for map in model.stem.maps(images):
        assert map.is_contiguous(memory_format=torch.channels_last)
    slow = model.stem.tokens(model.stem.layers(images))
    torch.testing.assert_close(model.stem(images), slow, rtol=1e-5, atol=1e-5)
    part = torch.randn(2, 2 * channels, 16, 20)[:, :channels, :, 2:18]  # a view that is in no order
    torch.testing.assert_close(model.stem(part), model.stem(part.clone()), rtol=1e-5, atol=1e-5)


def test_a_conv_stem_with_residual_blocks_keeps_the_grid_and_learns_more() -> None:
    plain, deeper = (ViT(preset("mu/4", image_size=16, stem="conv", stem_blocks=n)) for n in (0, 2))
    images = torch.randn(2, 3, 16, 16)
    assert plain.stem(images).shape == deeper.stem(images).shape == (2, 16, 32)
    count = [sum(p.numel() for p in model.stem.parameters()) for model in (plain, deeper)]
    assert count[1] - count[0] == 2 * sum(9 * c * c + 2 * c for c in (16, 32))  # a 3 x 3 kernel and its norm
    with pytest.raises(VitrailError, match="stem_blocks 2 goes with stem 'conv'"):
        preset("mu/4", image_size=16, stem_blocks=2)
