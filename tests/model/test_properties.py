"""What holds for every config, tried on many small ones."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vitrail.errors import VitrailError
from vitrail.model.config import CHOICES, ViTConfig
from vitrail.model.vit import ViT

few = settings(max_examples=40, deadline=None)


@st.composite
def configs(draw):
    """Small configs that are meant to be good, over every field."""
    pick = {name: draw(st.sampled_from(choices)) for name, choices in CHOICES.items()}
    pick["head"] = draw(st.sampled_from(["linear", "mlp"]))  # the others answer about places: test_*_heads.py
    if pick["stem"] != "conv":
        pick["stem_maps"] = "fine"
    distillation = draw(st.booleans()) and pick["pool"] == "cls"
    cls_token = pick["pool"] in ("cls", "cls_mean") or draw(st.booleans())
    allowed = [None, "none"]
    if cls_token and pick["positions"] not in ("rotary", "none"):
        allowed += ["learned"] + (["fixed"] if pick["positions"] != "learned" else [])
    pick["cls_position"] = draw(st.sampled_from(allowed))
    patch, grid = (draw(st.tuples(st.integers(1, high), st.integers(1, high))) for high in (4, 3))
    heads = draw(st.integers(1, 3))
    return ViTConfig(
        image_size=(patch[0] * grid[0], patch[1] * grid[1]),
        patch_size=patch,
        channels=draw(st.integers(1, 3)),
        stem_blocks=draw(st.integers(0, 1)) if pick["stem"] == "conv" else 0,
        feature_channels=draw(st.integers(1, 4)) if pick["stem"] == "features" else None,
        patch_bias=draw(st.booleans()),
        cls_token=cls_token,
        distillation=distillation,
        registers=draw(st.integers(0, 2)),
        rotary_base=draw(st.sampled_from([10.0, 100.0])),
        stem_norm=draw(st.booleans()),
        width=heads * draw(st.sampled_from([4, 8])),
        depth=draw(st.integers(1, 3)),
        heads=heads,
        mlp_width=draw(st.none() | st.integers(2, 20)),
        qkv_bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        layer_scale=draw(st.sampled_from([None, 0.5])),
        attention_window=(window := draw(st.integers(0, 2))),
        global_blocks=draw(st.sampled_from([None, 0, 1])) if window else None,
        classes=draw(st.integers(0, 4)),
        head_width=draw(st.none() | st.integers(1, 5)) if pick["head"] == "mlp" else None,
        head_bias=draw(st.booleans()),
        **pick,
    )


def cnn_for(config):
    if config.stem != "features":
        return None
    return nn.Conv2d(config.channels, config.feature_channels, config.patch_size, stride=config.patch_size)


@few
@given(config=configs(), batch=st.integers(1, 2), scale=st.tuples(st.integers(1, 2), st.integers(1, 3)))
def test_outputs_have_the_promised_shapes(lively, config, batch, scale):
    model = lively(config, cnn=cnn_for(config))
    grid = config.grid[0] * scale[0], config.grid[1] * scale[1]
    size = config.image_size[0] * scale[0], config.image_size[1] * scale[1]
    images = torch.randn(batch, config.channels, *size)
    patches, width = grid[0] * grid[1], config.width

    features = model.features(images, blocks=range(config.depth))
    assert features.grid == grid
    assert features.patches.shape == (batch, patches, width)
    assert features.registers.shape == (batch, config.registers, width)
    assert (features.cls is not None, features.distillation is not None) == (config.cls_token, config.distillation)
    assert all(token is None or token.shape == (batch, width) for token in (features.cls, features.distillation))
    assert [block.shape for block in features.blocks] == [(batch, config.prefix + patches, width)] * config.depth

    answer = model(images)
    places = (patches,) if config.pool == "none" else ()
    assert answer.shape == (batch, *places, config.classes or config.pooled_width)
    assert answer.isfinite().all()


def unread(config):
    """Endings of the parameters that the answer does not depend on, by the mathematics of softmax.

    A vector added to all keys adds one number to a query's scores, which softmax takes away: so for the shift of the
    keys' norm, unless patches' keys are turned afterwards (a single patch stands in the middle and is not). The bias of
    K is another such vector, but it is packed with those of Q and V. And where there is one token only, or windows of
    one patch and no prefix, it is attended to whatever the query and the keys are.
    """
    names = []
    if config.positions != "rotary" or config.patches == 1:
        names.append("k_norm.bias")
    if config.tokens == 1 or (config.attention_window == 1 and not config.prefix):
        names += ["q_norm.weight", "q_norm.bias", "k_norm.weight", "k_norm.bias"]
    if config.tokens == 1:
        names += ["pool.attention.query", "pool.attention.q.weight", "pool.attention.q.bias"]
    return tuple(names)


@few
@given(config=configs())
def test_gradients_reach_every_parameter_that_the_answer_depends_on(lively, config):
    model = lively(config, cnn=cnn_for(config)).double()
    images = torch.randn(2, config.channels, *config.image_size, dtype=torch.float64)
    answer = model(images)
    (answer * torch.randn_like(answer)).sum().backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert missing == []
    sizes = {name: p.grad.abs().max().item() for name, p in model.named_parameters()}
    assert [name for name, size in sizes.items() if size < 1e-10 and not name.endswith(unread(config))] == []


@few
@given(config=configs())
def test_a_config_survives_json(config):
    assert ViTConfig.from_json(config.to_json()) == config
    assert config.replace() == config


@few
@given(config=configs())
def test_a_model_loads_its_own_weights_into_a_new_one(lively, config):
    first, second = lively(config, seed=1, cnn=cnn_for(config)), lively(config, seed=2, cnn=cnn_for(config))
    second.load_state_dict(first.state_dict())
    images = torch.randn(1, config.channels, *config.image_size)
    assert torch.equal(first(images), second(images))


NAMES = list(ViTConfig().to_dict())
anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 20),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([word for words in CHOICES.values() for word in words]),
    st.lists(st.integers(-1, 20), max_size=3),
    st.dictionaries(st.text(max_size=2), st.none(), max_size=1),
)
sometimes_bad = st.fixed_dictionaries(
    {"image_size": st.sampled_from([16, [8, 16]]), "patch_size": st.sampled_from([4, 8]), "width": st.just(8)}
    | {"heads": st.integers(0, 3), "depth": st.integers(0, 2)},
    optional={name: st.sampled_from(choices) for name, choices in CHOICES.items()}
    | {
        "cls_token": st.booleans(),
        "distillation": st.booleans(),
        "registers": st.integers(-1, 2),
        "classes": st.integers(-1, 3),
        "head_width": st.none() | st.integers(-1, 3),
        "feature_channels": st.none() | st.integers(-1, 3),
        "layer_scale": st.none() | st.floats(),
        "drop_path": st.floats(-0.5, 1.5),
    },
)


@settings(max_examples=200, deadline=None)
@given(values=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), anything, max_size=4))
def test_any_values_make_a_config_or_a_vitrail_error(values):
    try:
        config = ViTConfig.from_dict(values)
    except VitrailError as error:
        assert any(name in str(error) or repr(name) in str(error) for name in [*NAMES, *values])
    else:
        assert ViTConfig.from_json(config.to_json()) == config


@few
@given(values=sometimes_bad)
def test_a_config_that_is_accepted_can_be_built_and_run(values):
    try:
        config = ViTConfig.from_dict(values)
    except VitrailError:
        return
    model = ViT(config, cnn=cnn_for(config)).eval()
    answer = model(torch.zeros(1, config.channels, *config.image_size))
    axis = 1 if config.is_dense and config.head.startswith("mask") else -1  # masks are maps (B, K, h, w)
    beside = {"box_decoder": 4, "box_tokens": 1 + 4}.get(config.head, 0) if config.is_dense else 0  # no object, a box
    assert answer.shape[axis] == (config.classes or config.pooled_width) + beside
