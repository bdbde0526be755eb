"""The arithmetic of cost.py against the real thing: torch's own counter, real parameters, real live tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.cost import cost
from vitrail.model.encoder import Encoder
from vitrail.model.presets import build_network, preset, preset_names
from vitrail.model.vit import ViT

SMALL = {"image_size": 32, "patch_size": 8, "width": 32, "depth": 2, "heads": 4, "classes": 10}
VARIANTS: list[dict] = [
    {},
    {"image_size": (32, 48), "patch_size": (8, 4)},
    {"channels": 1, "patch_bias": False},
    {"stem": "conv"},
    {"stem": "conv", "stem_blocks": 2, "image_size": 32, "patch_size": 4},
    {"stem": "conv", "patch_size": (4, 16), "channels": 5},
    {"stem": "conv", "stem_maps": "wide", "stem_blocks": 1, "image_size": 64},
    {"stem": "conv", "image_size": 45, "patch_size": 15, "patch_bias": False},
    {"stem": "conv", "patch_size": 1, "image_size": 6},
    {"stem": "features", "feature_channels": 24},
    {"cls_token": False, "pool": "mean"},
    {"cls_token": False, "pool": "attention", "positions": "none"},
    {"pool": "attention", "activation": "swiglu"},
    {"pool": "cls_mean", "final_norm": "pooled"},
    {"pool": "none"},
    {"registers": 4, "layer_scale": 1e-5, "qk_norm": True},
    {"distillation": True},
    {"distillation": True, "classes": 0},
    {"positions": "sincos1d"},
    {"positions": "sincos2d", "cls_position": "learned"},
    {"positions": "rotary", "qkv_bias": False},
    {"activation": "swiglu", "mlp_width": 40},
    {"activation": "quick_gelu", "stem_norm": True},
    {"norm": "post"},
    {"norm": "post", "final_norm": "tokens"},
    {"final_norm": "none", "classes": 0},
    {"head": "mlp", "head_width": 20, "head_bias": False},
    {"head": "mlp", "pool": "cls_mean"},
]


def build(config: ViTConfig) -> ViT:
    if config.stem != "features":
        return ViT(config).eval()
    assert config.feature_channels is not None
    return ViT(config, cnn=ChannelsByPooling(config.patch_size, config.feature_channels)).eval()


class ChannelsByPooling(nn.Module):
    """A "CNN" without parameters or multiply-adds, so that it does not enter the count."""

    def __init__(self, patch_size: tuple[int, int], channels: int) -> None:
        super().__init__()
        self.patch_size, self.channels = patch_size, channels

    def forward(self, images: Tensor) -> Tensor:
        pooled = nn.functional.avg_pool2d(images, self.patch_size).mean(dim=1, keepdim=True)
        return pooled.expand(-1, self.channels, -1, -1)


def whole_forward(model: ViT, images: Tensor) -> Tensor:
    """Every token through every block, then the answer: what papers count."""
    x, rope, grid, _ = model.embed(images)
    for block in model.blocks:
        x = block(x, rope, grid=grid)
    return model.answer(x)


def counted_multiply_adds(model: ViT, images: Tensor) -> int:
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        whole_forward(model, images)
    assert counter.get_total_flops() % 2 == 0
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_multiply_adds_and_parameters_are_exact(changes: dict, batch: int) -> None:
    config = ViTConfig(**{**SMALL, **changes})
    model = build(config)
    found = cost(config, batch=batch)
    assert found.multiply_adds == counted_multiply_adds(model, torch.zeros(batch, config.channels, *config.image_size))
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.weight_bytes == 4 * found.parameters


DENSE_HEADS: list[dict] = [
    {"head": "mask_decoder", "attention_window": 3, "depth": 3},
    {"head": "mask_linear"},
    {"head": "mask_decoder"},
    {"head": "mask_decoder", "stem": "conv"},
    {"head": "mask_queries"},
    {"head": "box_tokens", "queries": 5},
    {"head": "box_decoder", "queries": 5, "head_depth": 2},
]


@pytest.mark.parametrize("changes", DENSE_HEADS, ids=str)
def test_heads_for_places_are_counted_with_their_attention(changes: dict) -> None:
    config = ViTConfig(**{**SMALL, **changes})
    model, images = build(config), torch.randn(1, config.channels, *config.image_size)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(images)
    assert cost(config).multiply_adds == counter.get_total_flops() // 2
    assert cost(config).parameters == sum(p.numel() for p in model.parameters())


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_config_is_counted_exactly(data: st.DataObject) -> None:
    draw = data.draw
    pool = draw(st.sampled_from(["cls", "mean", "cls_mean", "attention", "none"]))
    patch_size = draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    grid = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    heads = draw(st.integers(1, 3))
    config = ViTConfig(
        image_size=(patch_size[0] * grid[0], patch_size[1] * grid[1]),
        patch_size=patch_size,
        channels=draw(st.integers(1, 4)),
        stem=draw(st.sampled_from(["linear", "conv"])),
        cls_token=True if pool in ("cls", "cls_mean") else draw(st.booleans()),
        registers=draw(st.integers(0, 3)),
        positions=(positions := draw(st.sampled_from(["learned", "sincos1d", "sincos2d", "rotary", "none"]))),
        rotary_too=positions not in ("rotary", "none") and draw(st.booleans()),
        width=heads * 4 * draw(st.integers(1, 4)),
        heads=heads,
        depth=draw(st.integers(1, 3)),
        mlp_width=draw(st.none() | st.integers(1, 40)),
        activation=draw(st.sampled_from(["gelu", "gelu_tanh", "quick_gelu", "swiglu"])),
        norm=draw(st.sampled_from(["pre", "post"])),
        final_norm=draw(st.sampled_from([None, "tokens", "pooled", "none"])),
        qkv_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        mlp_norm=draw(st.booleans()),
        attention_norm=draw(st.booleans()),
        relative_bias=(biased := draw(st.booleans())),
        layer_scale=draw(st.sampled_from([None, 0.1])),
        attention_window=(window := 0 if biased else draw(st.integers(0, 3))),
        global_blocks=draw(st.sampled_from([None, 0, 1])) if window else None,
        pool=pool,
        pool_heads=draw(st.sampled_from([None, 2, 4])) if pool == "attention" else None,
        pool_mlp_width=draw(st.none() | st.integers(1, 40)) if pool == "attention" else None,
        classes=draw(st.integers(0, 5)),
        head=draw(st.sampled_from(["linear", "mlp"])),
        head_bias=draw(st.booleans()),
    )
    model = build(config)
    batch = draw(st.integers(1, 2))
    found = cost(config, batch=batch)
    assert found.multiply_adds == counted_multiply_adds(model, torch.zeros(batch, config.channels, *config.image_size))
    assert found.parameters == sum(p.numel() for p in model.parameters())


SWINS: list[tuple[str, dict]] = [
    ("swin-mu", {}),
    ("swinv2-mu", {}),
    ("swin-mu", {"image_size": (52, 76), "classes": 0}),  # padded windows, an odd grid to merge
    ("swinv2-mu", {"image_size": (20, 76), "window_size": (8, 4), "head": "mlp", "qkv_bias": False}),
    ("swin-T", {"depths": (1, 1, 1, 1), "image_size": 96, "channels": 1}),  # windows larger than the last grids
    ("swin-mu", {"head": "mask_linear", "classes": 3}),
    ("swin-mu", {"head": "mask_decoder", "classes": 3}),
    ("swinv2-mu", {"head": "box_decoder", "classes": 3, "image_size": (60, 64)}),
]


@pytest.mark.parametrize(("name", "changes"), SWINS, ids=str)
def test_swin_is_counted_exactly(name: str, changes: dict) -> None:
    config = preset(name, **changes)
    model = build_network(config).eval()
    batch = 1 if config.is_dense else 2
    images = torch.zeros(batch, config.channels, *config.image_size)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(images)
    found = cost(config, batch=batch)
    assert found.multiply_adds == counter.get_total_flops() // 2
    assert found.parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "published", "giga"),
    [("swin-T", "swin_tiny_patch4_window7_224", 4.5), ("swinv2-T", "swinv2_tiny_window8_256", 5.9)],
)
def test_multiply_adds_of_published_swins(name: str, published: str, giga: float) -> None:
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        timm.create_model(published).eval()(torch.zeros(1, 3, *preset(name).image_size))
    assert cost(preset(name)).multiply_adds == counter.get_total_flops() // 2
    assert round(cost(preset(name)).multiply_adds / 1e9, 1) == giga


def test_attention_of_swin_grows_with_the_tokens_and_not_with_their_square() -> None:
    small, large = (cost(preset("swin-T"), image_size=side) for side in (224, 448))
    assert small.attention_entries == 3136 * 49
    assert large.attention_entries == 4 * small.attention_entries
    assert large.multiply_adds < 4.02 * small.multiply_adds


def test_another_image_size_changes_the_work_and_not_the_parameters() -> None:
    config = ViTConfig(**SMALL)
    model = build(config)
    at_home, elsewhere = cost(config), cost(config, image_size=(64, 40))
    assert elsewhere.multiply_adds == counted_multiply_adds(model, torch.zeros(1, 3, 64, 40))
    assert elsewhere.parameters == at_home.parameters
    assert (elsewhere.grid, elsewhere.tokens) == ((8, 5), 41)
    assert elsewhere.attention_entries == 41**2
    with pytest.raises(VitrailError, match="height 60, which patch_size 8"):
        cost(config, image_size=(60, 40))


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_the_parameters_of_its_model(name: str) -> None:
    config = preset(name)
    with torch.device("meta"):
        model = build_network(config)
    assert cost(config).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "published", "giga"),
    [
        ("Ti/16", "vit_tiny_patch16_224", 1.3),
        ("S/16", "vit_small_patch16_224", 4.6),
        ("B/16", "vit_base_patch16_224", 17.6),
        ("B/32", "vit_base_patch32_224", 4.4),
        ("L/16", "vit_large_patch16_224", 61.6),
    ],
)
def test_multiply_adds_of_the_published_models(name: str, published: str, giga: float) -> None:
    with torch.device("meta"), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        timm.create_model(published).eval()(torch.zeros(1, 3, 224, 224))
    assert cost(preset(name)).multiply_adds == counter.get_total_flops() // 2
    assert round(cost(preset(name)).multiply_adds / 1e9, 1) == giga


def test_the_numbers_of_the_spec() -> None:
    assert cost(preset("S/8")).tokens == 785
    assert cost(preset("S/8")).attention_entries == 616_225
    assert cost(preset("S/8"), image_size=448).tokens == 3136 + 1


class LiveBytes(TorchDispatchMode):
    """Follows every tensor an operation makes until it dies, and remembers the most that was alive."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self.add(tensor.untyped_storage())
        return out

    def add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.alive:
            return
        self.alive[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.remove, key)

    def remove(self, key: int) -> None:
        self.now -= self.alive.pop(key)


@pytest.mark.parametrize(
    "config",
    [
        preset("Ti/16", depth=3),
        preset("Ti/32", depth=2),
        preset("Ti/8", depth=2),
        preset("Ti/16", depth=2, stem="conv"),
        preset("Ti/16", depth=2, activation="swiglu", mlp_width=512),
        preset("Ti/16", depth=2, activation="quick_gelu", pool="attention"),
        preset("Ti/16", depth=2, positions="rotary", qk_norm=True, mlp_width=192),
        preset("Ti/16", depth=2, rotary_too=True, rotary_grid=16, activation="swiglu", mlp_norm=True, mlp_width=512),
        preset("Ti/16", depth=2, mlp_norm=True),
        preset("Ti/16", depth=2, attention_norm=True, mlp_width=192),
        preset("Ti/16", depth=2, attention_window=4, mlp_width=192),
        preset("Ti/16", depth=2, attention_window=7, global_blocks=0, registers=4, positions="rotary", mlp_width=192),
        preset("Ti/16", depth=2, relative_bias=True),
    ],
    ids=lambda config: f"{config.stem}-{config.patch_size[0]}-{config.activation}-{config.positions}",
)
def test_peak_activations_are_estimated_well(config: ViTConfig) -> None:
    model = build(config)
    assert cost(config, batch=2).activation_bytes == pytest.approx(live_peak(model, whole_forward), rel=0.15)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("swin-mu", {}),
        ("swinv2-mu", {}),
        ("swin-T", {"depths": (2, 2, 2, 2)}),
        ("swinv2-T", {"depths": (2, 2, 2, 2), "image_size": 128}),
        ("swin-T", {"depths": (1, 1, 1, 1), "image_size": (232, 228)}),
    ],
    ids=str,
)
def test_peak_activations_of_swin_are_estimated_well(name: str, changes: dict) -> None:
    config = preset(name, **changes)
    peak = live_peak(build_network(config).eval(), lambda model, images: model(images))
    assert cost(config, batch=2).activation_bytes == pytest.approx(peak, rel=0.15)


def live_peak(model: Encoder, forward: Callable[..., Tensor]) -> int:
    """The most bytes alive in a forward pass of two images, weights aside."""
    images = torch.zeros(2, model.config.channels, *model.config.image_size)
    live = LiveBytes()
    live.add(images.untyped_storage())
    for tensor in [*model.parameters(), *model.buffers()]:
        live.alive[tensor.untyped_storage()._cdata] = 0
    with torch.no_grad(), live:
        forward(model, images)
    return live.peak
