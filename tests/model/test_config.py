"""ViTConfig: JSON both ways, and a refusal that names the field and the numbers for all that cannot be built."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import pytest

from vitrail.errors import VitrailError
from vitrail.model.config import CHOICES, ViTConfig
from vitrail.model.presets import config_from_json, preset, preset_names

ALL_CHANGED = {
    "image_size": (32, 48),
    "patch_size": (8, 16),
    "channels": 4,
    "stem": "features",
    "stem_blocks": 0,  # goes with another stem
    "stem_maps": "fine",  # so does this
    "feature_channels": 12,
    "cnn": None,  # goes with square patches
    "patch_bias": False,
    "cls_token": True,
    "cls_init": "zeros",
    "distillation": True,
    "registers": 2,
    "positions": "sincos2d",
    "cls_position": "learned",
    "resample": "bicubic",
    "rotary_too": True,
    "rotary_base": 50.0,
    "rotary_grid": (16, 8),
    "rotary_start": 1.0,
    "rotary_bfloat16": True,
    "relative_bias": False,  # goes without windows
    "stem_norm": True,
    "width": 64,
    "depth": 3,
    "heads": 4,
    "mlp_width": 100,
    "mlp_norm": True,
    "activation": "swiglu",
    "norm": "post",
    "norm_eps": 1e-5,
    "qkv_bias": False,
    "qk_norm": True,
    "attention_norm": True,
    "layer_scale": 0.1,
    "attention_window": 2,
    "global_blocks": 0,
    "pool": "cls",
    "pool_heads": None,  # goes with another pool
    "pool_mlp_width": None,  # likewise
    "final_norm": "pooled",
    "classes": 7,
    "head": "mlp",
    "head_width": 20,
    "head_bias": False,
    "queries": 5,
    "head_depth": 0,  # goes with another head
    "block_positions": False,  # goes with other positions
    "dropout": 0.1,
    "attention_dropout": 0.2,
    "head_dropout": 0.3,
    "drop_path": 0.4,
}


CONFIGS = [
    ViTConfig(),
    ViTConfig(**ALL_CHANGED),
    ViTConfig(stem="conv", stem_blocks=3, stem_maps="wide"),
    ViTConfig(stem="features", cnn="timm:resnet18", feature_channels=256),
]


# ---- JSON both ways


@pytest.mark.parametrize("config", CONFIGS, ids=["defaults", "all changed", "stem blocks", "cnn"])
def test_a_config_survives_json(config):
    assert ViTConfig.from_json(config.to_json()) == config
    assert ViTConfig.from_dict(config.to_dict()) == config
    assert json.loads(config.to_json()) == config.to_dict()


def test_a_field_that_a_later_version_adds_is_not_unusual():
    """So that version still knows the vectors and graphs that were made by this one."""

    @dataclasses.dataclass(frozen=True)
    class Later(ViTConfig):
        added: bool = False

    config = ViTConfig(width=96, heads=3)
    assert config.unusual() == Later(width=96, heads=3).unusual()
    assert config.unusual() == {"width": 96, "heads": 3, "mlp_width": 384} | {
        name: value for name, value in ViTConfig().unusual().items() if name != "mlp_width"
    }


def test_the_example_of_all_changes_names_every_field():
    assert set(ALL_CHANGED) == {field.name for field in dataclasses.fields(ViTConfig)}


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_survives_json(name):
    assert config_from_json(preset(name).to_json()) == preset(name)


def test_json_reads_back_complete():
    values = ViTConfig(head="mlp").to_dict()
    assert values["image_size"] == [224, 224]
    assert (values["mlp_width"], values["head_width"]) == (1536, 384)
    assert (values["cls_position"], values["final_norm"]) == ("learned", "tokens")


def test_fields_left_out_of_json_take_their_defaults():
    assert ViTConfig.from_json('{"width": 64, "heads": 2}') == ViTConfig(width=64, heads=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("width = 3", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"width": ' + "1" * 5000 + "}", "width is a whole number, not inf"),
        (b'{"stem": "\xff"}', "not JSON"),
        ("[]", "JSON object of named fields, not list"),
        ("3", "JSON object of named fields, not int"),
        ("null", "JSON object of named fields, not NoneType"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_config_is_refused(text, message):
    with pytest.raises(VitrailError, match=message):
        ViTConfig.from_json(text)


@pytest.mark.parametrize("make", [ViTConfig.from_dict, lambda values: ViTConfig().replace(**values)])
@pytest.mark.parametrize(
    ("key", "suggestion"),
    [("widht", "width"), ("head_dim", "head_"), ("patchsize", "patch_size"), ("dropuot", "dropout")],
)
def test_an_unknown_field_is_refused_with_a_suggestion(make, key, suggestion):
    with pytest.raises(VitrailError, match=f"'{key}': did you mean '{suggestion}"):
        make({key: 1})


@pytest.mark.parametrize("key", ["zzz", 3, None])
def test_an_unknown_field_like_no_other_is_refused_without_one(key):
    with pytest.raises(VitrailError, match=f"no field {key!r}$"):
        ViTConfig.from_dict({key: 1})


# ---- one number for a square, whole numbers for real ones


def test_one_number_stands_for_a_square_and_a_list_for_a_pair():
    config = ViTConfig(image_size=96, patch_size=[8, 16])
    assert (config.image_size, config.patch_size, config.grid) == ((96, 96), (8, 16), (12, 6))


@pytest.mark.parametrize("field", ["dropout", "attention_dropout", "head_dropout", "drop_path", "layer_scale"])
def test_a_whole_number_is_good_enough_for_a_real_one(field):
    value = getattr(ViTConfig(**{field: 0}), field)
    assert (value, type(value)) == (0.0, float)


# ---- sizes that follow


def test_prefix_tokens_are_counted():
    config = ViTConfig(distillation=True, registers=4)
    assert (config.prefix, config.prefix_positions, config.tokens) == (6, 2, 6 + 196)
    assert ViTConfig(registers=4).prefix == 5
    assert ViTConfig(cls_token=False, pool="mean", registers=4).prefix == 4
    assert ViTConfig(cls_position="none").prefix_positions == 0
    assert ViTConfig(positions="sincos2d").prefix_positions == 0


@pytest.mark.parametrize(
    ("positions", "usual"),
    [("learned", "learned"), ("sincos1d", "fixed"), ("sincos2d", "fixed"), ("rotary", "none"), ("none", "none")],
)
def test_the_usual_position_of_cls(positions, usual):
    assert ViTConfig(positions=positions).cls_position == usual
    assert ViTConfig(positions=positions, cls_token=False, pool="mean").cls_position == "none"


def test_pooling_cls_and_mean_doubles_the_width():
    assert ViTConfig(pool="cls_mean").pooled_width == 768
    assert ViTConfig(pool="mean").pooled_width == 384


# ---- refusals: the field and the numbers


@pytest.mark.parametrize("field", list(CHOICES))
def test_a_choice_that_is_none_is_refused_with_those_there_are(field):
    with pytest.raises(VitrailError, match=f"^{field} is 'nonsense'; choose one of {', '.join(CHOICES[field])}$"):
        ViTConfig(**{field: "nonsense"})


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(ViTConfig)])
@pytest.mark.parametrize("value", [b"16", {}, [], object, 1j])
def test_a_value_of_the_wrong_type_is_refused_by_name(field, value):
    with pytest.raises(VitrailError, match=f"^{field} is .* not "):
        ViTConfig(**{field: value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # types
        ({"width": 3.5}, "width is a whole number, not 3.5"),
        ({"width": "64"}, "width is a whole number, not '64'"),
        ({"width": True}, "width is a whole number, not True"),
        ({"width": None}, "width is a whole number, not None"),
        ({"dropout": "0.1"}, "dropout is a number, not '0.1'"),
        ({"dropout": False}, "dropout is a number, not False"),
        ({"dropout": 10**400}, "dropout is a number, not 1000"),
        ({"layer_scale": -(10**400)}, "layer_scale is a number, not -1000"),
        ({"qk_norm": 1}, "qk_norm is true or false, not 1"),
        ({"stem": None}, "stem is a word, not None"),
        ({"image_size": 0}, "image_size is a whole number above 0 .* not 0"),
        ({"image_size": -224}, "image_size .* not -224"),
        ({"image_size": True}, "image_size .* not True"),
        ({"image_size": 224.0}, r"image_size .* not 224\.0"),
        ({"image_size": "224"}, "image_size .* not '224'"),
        ({"image_size": (224,)}, r"image_size .* not \(224,\)"),
        ({"image_size": (224, 224, 3)}, r"image_size .* not \(224, 224, 3\)"),
        ({"patch_size": (16, 0)}, r"patch_size .* not \(16, 0\)"),
        # numbers
        ({"channels": 0}, "channels is 0; .* at least 1"),
        ({"width": 0}, "width is 0; .* at least 1"),
        ({"depth": -1}, "depth is -1; .* at least 1"),
        ({"heads": 0}, "heads is 0; .* at least 1"),
        ({"mlp_width": 0}, "mlp_width is 0; .* at least 1"),
        ({"registers": -2}, "registers is -2; .* at least 0"),
        ({"classes": -1}, "classes is -1; .* at least 0"),
        ({"stem": "features", "feature_channels": 0}, "feature_channels is 0; .* at least 1"),
        ({"head": "mlp", "head_width": 0}, "head_width is 0; .* at least 1"),
        ({"dropout": 1.0}, r"dropout is 1\.0; .* at least 0 and below 1"),
        ({"attention_dropout": -0.1}, r"attention_dropout is -0\.1; .* at least 0 and below 1"),
        ({"head_dropout": float("nan")}, "head_dropout is nan; .* at least 0 and below 1"),
        ({"drop_path": 2}, r"drop_path is 2\.0; .* at least 0 and below 1"),
        ({"norm_eps": 0.0}, r"norm_eps is 0\.0; .* above 0"),
        ({"norm_eps": float("inf")}, "norm_eps is inf; .* above 0"),
        ({"rotary_base": 1.0}, r"rotary_base is 1\.0; .* above 1"),
        ({"layer_scale": float("nan")}, "layer_scale is nan; .* finite"),
        ({"layer_scale": -1e39}, r"layer_scale is -1e\+39; .* finite"),
        # together
        ({"image_size": 225}, "image_size has height 225, which patch_size 16 does not divide: choose 224 or 240$"),
        ({"image_size": (224, 250)}, "image_size has width 250, which patch_size 16 .* choose 240 or 256$"),
        ({"image_size": 10}, "image_size has height 10, which patch_size 16 does not divide: choose 16$"),
        ({"width": 100, "heads": 3}, "width 100 is not divisible by heads 3"),
        ({"width": 9, "heads": 1, "positions": "sincos1d"}, "'sincos1d' need a width divisible by 2, not 9"),
        ({"width": 6, "heads": 1, "positions": "sincos2d"}, "'sincos2d' need a width divisible by 4, not 6"),
        ({"width": 12, "heads": 2, "positions": "rotary"}, "rotary positions need .* divisible by 4, not 12 / 2 = 6"),
        ({"width": 12, "heads": 2, "rotary_too": True}, "rotary positions need .* divisible by 4, not 12 / 2 = 6"),
        ({"positions": "none", "rotary_too": True}, "rotary_too true goes with added positions, not with 'none'"),
        ({"rotary_grid": (16, 16)}, "rotary_grid .* go with rotary positions, not 'learned'"),
        ({"rotary_bfloat16": True}, "rotary_bfloat16 go with rotary positions, not 'learned'"),
        ({"positions": "rotary", "rotary_start": 1.0}, "rotary_start 1 needs rotary_grid"),
        ({"rotary_too": True, "rotary_grid": (0, 16)}, "rotary_grid is a whole number above 0"),
        ({"relative_bias": True, "attention_window": 4}, "attention_window 4 goes without relative_bias"),
        ({"pool_heads": 8}, "pool_heads 8 goes with pool 'attention'"),
        ({"pool_mlp_width": 8}, "pool_mlp_width 8 goes with pool 'attention'"),
        ({"pool": "attention", "pool_heads": 5}, "a width that it divides, not with 'attention' and 384"),
        ({"stem": "features"}, "'features' needs feature_channels"),
        ({"feature_channels": 64}, "feature_channels 64 goes with stem 'features', not 'linear'"),
        ({"head_width": 64}, "head_width 64 goes with head 'mlp', not 'linear'"),
        # [CLS]
        ({"cls_token": False}, "pool 'cls' needs cls_token true, not false"),
        ({"cls_token": False, "pool": "cls_mean"}, "pool 'cls_mean' needs cls_token true, not false"),
        ({"cls_token": False, "pool": "mean", "distillation": True}, "distillation true needs cls_token true"),
        (
            {"cls_token": False, "pool": "mean", "cls_position": "learned"},
            "cls_position 'learned' needs cls_token true",
        ),
        ({"distillation": True, "pool": "mean"}, "distillation true goes with pool 'cls', not 'mean'"),
        ({"cls_position": "fixed"}, "cls_position 'fixed' goes with positions sincos1d or sincos2d, not 'learned'"),
        ({"cls_position": "learned", "positions": "none"}, "cls_position 'learned' goes with .* not 'none'"),
        ({"cls_position": "learned", "positions": "rotary"}, "cls_position 'learned' goes with .* not 'rotary'"),
    ],
    ids=str,
)
def test_a_bad_config_is_refused_with_the_field_and_the_numbers(changes, message):
    with pytest.raises(VitrailError, match=message):
        ViTConfig(**changes)


# ---- immutable, and a changed copy


def test_a_config_cannot_be_changed_and_can_be_a_key():
    config = ViTConfig(image_size=[224, 224])
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.width = 3
    assert {config: 1}[ViTConfig()] == 1


def test_a_config_can_be_copied_and_pickled():
    config = ViTConfig(**ALL_CHANGED)
    assert copy.deepcopy(config) == config
    assert pickle.loads(pickle.dumps(config)) == config


def test_replace_changes_a_copy():
    config = ViTConfig()
    changed = config.replace(classes=10, image_size=96)
    assert (changed.classes, changed.image_size) == (10, (96, 96))
    assert (config.classes, config.image_size) == (1000, (224, 224))
    assert config.replace() == config
    assert ViTConfig(**ALL_CHANGED).replace() == ViTConfig(**ALL_CHANGED)


def test_replace_lets_what_followed_follow_again():
    assert ViTConfig().replace(width=192).mlp_width == 768
    assert ViTConfig(head="mlp").replace(width=192).head_width == 192
    assert ViTConfig().replace(positions="rotary").cls_position == "none"
    assert ViTConfig(positions="none").replace(positions="sincos1d").cls_position == "fixed"
    assert ViTConfig().replace(norm="post").final_norm == "none"
    assert ViTConfig().replace(cls_token=False, pool="mean").cls_position == "none"


def test_replace_keeps_what_was_chosen():
    assert ViTConfig(mlp_width=100).replace(width=192).mlp_width == 100
    assert ViTConfig(head="mlp", head_width=100).replace(width=192).head_width == 100
    assert ViTConfig(cls_position="none").replace(positions="sincos2d").cls_position == "none"
    assert ViTConfig(final_norm="pooled").replace(norm="post").final_norm == "pooled"


def test_replace_between_heads_and_with_explicit_values():
    assert ViTConfig(head="mlp", head_width=100).replace(head="linear").head_width is None
    assert ViTConfig().replace(head="mlp").head_width == 384
    assert ViTConfig().replace(width=192, mlp_width=5).mlp_width == 5


def test_replace_refuses_what_the_constructor_refuses():
    with pytest.raises(VitrailError, match="width 384 is not divisible by heads 5"):
        ViTConfig().replace(heads=5)
