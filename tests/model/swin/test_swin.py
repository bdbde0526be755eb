"""Swin behind the encoder's contract: steps with their own grids, attention rows, merging, any size, training."""

from __future__ import annotations

import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.model.encoder import Capture
from vitrail.model.presets import build_network, config_from_dict, config_from_json, preset
from vitrail.model.swin.swin import Swin
from vitrail.model.swin.swin_block import PatchMerging
from vitrail.model.swin.swin_config import SwinConfig
from vitrail.model.vit import ViT

VERSIONS = ["swin-mu", "swinv2-mu"]
SIZES = [(64, 64), (96, 32), (52, 76)]  # the last does not divide into windows


def lively(name: str, **changes) -> Swin:
    """Every parameter matters: fresh ones have zero biases and norms that do nothing."""
    torch.manual_seed(0)
    model = build_network(preset(name, **{"classes": 5, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    return model


def images(size, batch=2):
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_each_step_has_its_own_grid_and_width(name, size):
    model = lively(name)
    steps = list(model.steps(model.embed(images(size))))
    grid = size[0] // 4, size[1] // 4
    merged = -(-grid[0] // 2), -(-grid[1] // 2)
    assert [step.grid for step in steps] == [grid, grid, merged, merged]
    for step in steps:
        width = 16 if step.index < 2 else 32
        assert step.input.shape == step.output.shape == (2, step.grid[0] * step.grid[1], width)


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("padding", ["before_shift", "after_shift"])
def test_attention_rows_are_what_the_block_attends_by(name, size, padding):
    """Rows times V through W_O is what attention gives, but for what the padding of a window adds; its share is what a
    row lacks to 1."""
    model = lively(name, padding=padding)
    with torch.no_grad():
        for step in model.steps(model.embed(images(size))):
            attention, windows = step.block.attention, step.block.windows(step.grid)
            rows = torch.cat([rows for _, rows in step.attention()], dim=2)  # (B, heads, N, N)
            _, _, v = step.qkv()
            sums = rows @ v
            bias = attention.qkv_bias().chunk(3)[2].unflatten(0, (attention.heads, -1))[:, None]  # padding's V
            sums = sums + (1 - rows.sum(-1, keepdim=True)) * bias
            expected = attention(step.block.attention_input(step.input), windows)
            torch.testing.assert_close(attention.out(sums.transpose(1, 2).flatten(2)), expected, atol=2e-5, rtol=1e-4)
            if windows.padded == windows.grid:
                torch.testing.assert_close(rows.sum(-1), torch.ones(rows.shape[:3]))
            else:
                assert (rows.sum(-1) < 0.999).any()


@pytest.mark.parametrize("name", VERSIONS)
def test_a_row_is_zero_outside_of_its_window(name):
    model = lively(name)
    step = next(iter(model.steps(model.embed(images((64, 64))))))
    [(_, rows)] = step.attention(torch.tensor([0, 5]))
    first, second = rows.detach()[0, 0].unflatten(1, (16, 16))
    inside = torch.zeros(16, 16, dtype=torch.bool)
    inside[:4, :4] = True
    assert torch.equal(first > 0, inside)
    assert torch.equal(second > 0, inside.roll(4, 1))


def test_heads_output_is_kept_token_by_token():
    model = lively("swin-mu")
    capture = Capture(blocks=[1], heads_output=True)
    model(images((52, 76)), capture=capture)
    step = capture.steps[1]
    assert step.heads_output is not None and step.heads_output.shape == step.input.shape
    assert capture.normed is not None and capture.pooled is not None and capture.pooled.shape == (2, 32)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_merging_takes_the_left_column_first(version):
    merging = PatchMerging(SwinConfig(version=version, width=1, depths=(1, 1), heads=(1, 1)), 0)
    merging.norm = torch.nn.Identity()
    with torch.no_grad():
        merging.reduction.weight.copy_(torch.tensor([[1000.0, 100, 10, 1], [0, 0, 0, 0]]))
    x = torch.arange(1.0, 10)[None, :, None]  # 3 x 3: 1 2 3 / 4 5 6 / 7 8 9
    merged, grid = merging(x, (3, 3))
    assert grid == (2, 2)
    assert merged[0, :, 0].tolist() == [1425, 3600, 7080, 9000]  # above left, below left, above right, below right


@pytest.mark.parametrize("name", VERSIONS)
def test_images_do_not_mix_and_fused_attention_gives_the_answer_of_training(name):
    model, batch = lively(name), images((52, 76), 3)
    with torch.no_grad():
        fused = model(batch)
        torch.testing.assert_close(fused[1:2], model(batch[1:2]), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model(batch), fused, atol=1e-5, rtol=1e-4)  # with gradients it is not fused


@pytest.mark.parametrize("name", VERSIONS)
def test_every_parameter_learns_with_and_without_checkpointing(name):
    model, batch = lively(name, drop_path=0.0).train(), images((52, 76))
    gradients = []
    for checkpointing in (False, True):
        model.checkpointing = checkpointing
        model.zero_grad()
        model(batch).square().sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        assert torch.equal(plain, recomputed)


def test_a_model_runs_at_another_size_as_if_it_were_native_there():
    """Windows that the native grid clamps are as large as the window size elsewhere, by the resampled table."""
    model = lively("swin-mu", image_size=16, window_size=4)
    config = model.config.replace(image_size=64)
    state, words = model.state_for(config)
    elsewhere = Swin(config).eval()
    elsewhere.load_state_dict(state)
    assert "tables" in words
    torch.testing.assert_close(elsewhere(images((64, 64))), model(images((64, 64))), atol=1e-5, rtol=1e-4)


def test_a_scale_of_cosines_is_at_most_100():
    model = lively("swinv2-mu")
    with torch.no_grad():
        for block in model.blocks:
            block.attention.logit_scale.fill_(4.7)
        clamped = model(images((64, 64)))
        for block in model.blocks:
            block.attention.logit_scale.fill_(9.0)
        assert torch.equal(model(images((64, 64))), clamped)


def test_fresh_blocks_of_version_2_change_nothing():
    model = build_network("swinv2-mu").eval()
    for step in model.steps(model.embed(images((64, 64)))):
        assert torch.equal(step.input, step.output)


def test_training_on_some_patches_is_refused():
    with pytest.raises(VitrailError, match="a window needs all"):
        lively("swin-mu")(images((64, 64)), keep=torch.arange(4))


def test_an_image_of_no_whole_patches_is_refused_or_padded():
    model = lively("swin-mu")
    with pytest.raises(VitrailError, match="height 50 is not divisible by the patch size 4"):
        model(images((50, 64)))
    assert model(images((50, 61)), pad=True).shape == (2, 5)


# ---- config


@pytest.mark.parametrize("name", VERSIONS)
def test_a_config_is_json_both_ways_and_names_its_network(name):
    config = preset(name, image_size=(64, 96), head="mask_decoder", classes=3)
    assert config_from_json(config.to_json()) == config
    assert config.to_dict()["network"] == "swin"
    assert isinstance(build_network(config), Swin) and isinstance(build_network("mu/16"), ViT)
    assert config_from_dict(preset("mu/16").to_dict()) == preset("mu/16")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": (3, 6)}, "heads has 2 numbers for 4 stages"),
        ({"heads": (3, 6, 12, 5)}, "width 768 of stage 3 is not divisible by its heads 5"),
        ({"depths": ()}, "depths is a list of whole numbers of at least 1, one a stage"),
        ({"depths": 4}, "depths is a list"),
        ({"depths": (2, 2, 0, 2)}, "depths is a list"),
        ({"image_size": 222}, "height 222, which patch_size 4 does not divide: choose 220 or 224"),
        ({"window_size": 0}, "window_size is a whole number above 0"),
        ({"version": "v3"}, "version is 'v3'; choose one of v1, v2"),
        ({"head": "mask_queries"}, "head is 'mask_queries'; choose one of"),
        ({"mlp_ratio": -1.0}, "mlp_ratio is -1.0"),
        ({"pretrained_windows": (1, 0, 0, 0)}, "a window of 1"),
        ({"window": 7}, "has no field 'window': did you mean 'window_size'?"),
        ({"network": "vit"}, "network is 'vit'; choose one of swin"),
    ],
    ids=str,
)
def test_a_config_that_is_not_one_is_refused(changes, message):
    with pytest.raises(VitrailError) as refusal:
        SwinConfig.from_dict(changes)
    assert message in str(refusal.value)


def test_an_unknown_network_is_refused():
    with pytest.raises(VitrailError, match="network 'resnet'; choose one of vit, swin"):
        config_from_dict({"network": "resnet"})
    with pytest.raises(VitrailError, match="the preset swin-T is a Swin, not a ViT"):
        ViT("swin-T")
    with pytest.raises(VitrailError, match="the preset S/16 is a ViT, not a Swin"):
        Swin("S/16")


def test_a_model_is_exported_at_a_size():
    model = lively("swin-mu")
    exported = torch.export.export(model, (images((52, 76)),))
    torch.testing.assert_close(exported.module()(images((52, 76))), model(images((52, 76))), atol=1e-5, rtol=1e-4)
