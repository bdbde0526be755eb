"""transformers' ViT, DeiT, ViT-MAE and DINOv2: the same answers, and everything that travels with them."""

from __future__ import annotations

import json
import re

import pytest
import torch

import vitrail
from vitrail.errors import VitrailError
from vitrail.weights.preprocessing import HALF, IMAGENET

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}


def logits(output):
    return output.logits


def cls(output):
    return output.last_hidden_state[:, 0]


# the class, its config, what the config is given beside the sizes, what it answers
CASES = {
    "ViT": ("ViTForImageClassification", "ViTConfig", {"num_labels": 5}, logits),
    "ViT, no head": ("ViTModel", "ViTConfig", {}, cls),
    "DeiT, two heads": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", {"num_labels": 5}, logits),
    "DeiT, one head": ("DeiTForImageClassification", "DeiTConfig", {"num_labels": 5}, logits),
    "DeiT, no head": ("DeiTModel", "DeiTConfig", {}, cls),
    "MAE": ("ViTMAEModel", "ViTMAEConfig", {"mask_ratio": 0.0}, cls),
    "DINOv2": ("Dinov2Model", "Dinov2Config", {}, cls),
    "DINOv2, head": ("Dinov2ForImageClassification", "Dinov2Config", {"num_labels": 5}, logits),
    "DINOv2, SwiGLU": ("Dinov2Model", "Dinov2Config", {"use_swiglu_ffn": True}, cls),
    "registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", {}, cls),
    "registers, head": (
        "Dinov2WithRegistersForImageClassification",
        "Dinov2WithRegistersConfig",
        {"num_labels": 5, "num_register_tokens": 3},
        logits,
    ),
    "registers, SwiGLU": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", {"use_swiglu_ffn": True}, cls),
}


def build(case, **settings):
    name, config, more, _ = CASES[case]
    if "Dinov2" not in config and "intermediate_size" not in settings:
        settings["intermediate_size"] = 4 * settings["hidden_size"]
    return getattr(transformers, name)(getattr(transformers, config)(**{**more, **settings}))


def options(case, size, patch, batch=2):
    """What transformers wants to be told to take another image size, and MAE to mask nothing and shuffle nothing."""
    if case.startswith(("DINOv2", "registers")):
        return {}
    if case != "MAE":
        return {"interpolate_pos_encoding": True}
    noise = torch.arange(size[0] // patch * (size[1] // patch)).float().expand(batch, -1)
    return {"interpolate_pos_encoding": True, "noise": noise}


# ---- the same answers


@pytest.mark.parametrize("case", CASES)
def test_answers_are_theirs_at_a_small_width(case, saved, agrees):
    theirs = build(case, **SMALL)
    ours = vitrail.load(saved(theirs))
    for size in ((32, 32), (48, 48), (40, 64), (24, 24)):
        agrees(ours, theirs, size, CASES[case][3], **options(case, size, 8))


@pytest.mark.parametrize("width", [384, 768])
@pytest.mark.parametrize("case", ["ViT", "DeiT, two heads", "MAE", "DINOv2, head", "DINOv2, SwiGLU", "registers"])
def test_answers_are_theirs_at_a_real_width(case, width, saved, agrees):
    dinov2 = case.startswith(("DINOv2", "registers"))
    native, patch = (518, 14) if dinov2 and width == 384 else (224, 14 if dinov2 else 16)
    sizes = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": width // 64}
    theirs = build(case, **sizes, image_size=native, patch_size=patch)
    ours = vitrail.load(saved(theirs))
    for size in ((native, native), (patch * 10, patch * 10), (patch * 12, patch * 17)):
        agrees(ours, theirs, size, CASES[case][3], batch=1, **options(case, size, patch, batch=1))


@pytest.mark.parametrize("width", [384, 768])
def test_answers_are_theirs_in_the_whole_of_s16_and_b16(width, saved, agrees):
    sizes = {"hidden_size": width, "num_hidden_layers": 12, "num_attention_heads": width // 64}
    theirs = build("ViT", **sizes, image_size=224, patch_size=16, num_labels=1000)
    ours = vitrail.load(saved(theirs))
    assert sum(p.numel() for p in ours.model.parameters()) == {384: 22_050_664, 768: 86_567_656}[width]
    for size in ((224, 224), (256, 160)):
        agrees(ours, theirs, size, logits, batch=1, interpolate_pos_encoding=True)


@pytest.mark.parametrize(
    "settings",
    [
        {"qkv_bias": False},
        {"hidden_act": "gelu_new"},
        {"hidden_act": "gelu_pytorch_tanh"},
        {"hidden_act": "quick_gelu"},
        {"layer_norm_eps": 0.5},
        {"num_channels": 1},
        {"intermediate_size": 40},
        {"num_attention_heads": 12},
    ],
    ids=str,
)
def test_answers_are_theirs_with_every_setting_of_config_json(settings, saved, agrees):
    theirs = build("ViT", **{**SMALL, **settings})
    agrees(vitrail.load(saved(theirs)), theirs, (32, 32), logits)


@pytest.mark.parametrize(("image", "patch"), [([32, 48], 8), (32, [8, 16]), ([24, 64], [8, 16])])
def test_answers_are_theirs_where_image_or_patch_is_not_square(image, patch, saved, agrees):
    theirs = build("ViT", **{**SMALL, "image_size": image, "patch_size": patch})
    ours = vitrail.load(saved(theirs))
    agrees(ours, theirs, ours.config.image_size, logits)


def test_the_encoder_of_a_whole_mae_is_read_and_its_decoder_left_out(saved, agrees):
    decoder = {"decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
    config = transformers.ViTMAEConfig(**SMALL, **decoder, decoder_intermediate_size=64, mask_ratio=0.0)
    theirs = transformers.ViTMAEForPreTraining(config)
    ours = vitrail.load(saved(theirs))
    agrees(ours, theirs.vit, (32, 32), cls, **options("MAE", (32, 32), 8))
    assert any("decoder" in note for note in ours.notes)
    assert ours.task == "embed"


def test_the_pooler_is_left_out_and_that_is_noted(saved):
    assert any("pooler" in note for note in vitrail.load(saved(build("ViT, no head", **SMALL))).notes)


def test_a_distillation_token_without_a_head_is_kept_and_that_is_noted(saved):
    ours = vitrail.load(saved(build("DeiT, one head", **SMALL)))
    assert (ours.config.distillation, ours.config.registers) == (False, 1)
    assert any("distillation" in note for note in ours.notes)


# ---- the ways to save them


@pytest.mark.parametrize("case", CASES)
def test_a_state_dict_with_the_names_of_memory_is_read_as_what_is_saved(case, saved, tmp_path):
    theirs = build(case, **SMALL)
    published = vitrail.load(saved(theirs))
    torch.save(theirs.state_dict(), tmp_path / "memory.pt")
    memory = vitrail.load(tmp_path / "memory.pt", heads=4)
    assert memory.config.replace(norm_eps=published.config.norm_eps) == published.config
    state = memory.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in published.model.state_dict().items())


def test_shards_are_read_as_one(saved, agrees):
    theirs = build("ViT", **SMALL)
    folder = saved(theirs, max_shard_size="100kB")
    assert (folder / "model.safetensors.index.json").exists()
    agrees(vitrail.load(folder), theirs, (32, 32), logits)


def test_a_bin_is_read_with_the_config_beside_it(saved, agrees):
    theirs = build("DINOv2, head", **SMALL)
    folder = saved(theirs)
    published = vitrail.load(folder).model.state_dict()
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    ours = vitrail.load(folder)
    assert all(torch.equal(tensor, published[name]) for name, tensor in ours.model.state_dict().items())
    agrees(ours, theirs, (32, 32), logits)


def test_half_precision_becomes_float32(saved):
    theirs = build("ViT", **SMALL).half()
    folder = saved(theirs)
    assert {tensor.dtype for tensor in vitrail.load(folder).model.state_dict().values()} == {torch.float32}


# ---- what a file without config.json tells


def bare(saved, tmp_path, case, **settings):
    (saved(build(case, **settings)) / "model.safetensors").rename(tmp_path / "bare.safetensors")
    return tmp_path / "bare.safetensors"


@pytest.mark.parametrize(
    ("case", "eps", "rule"),
    [
        ("ViT", 1e-12, "bicubic"),
        ("DeiT, two heads", 1e-12, "bicubic"),
        ("MAE", 1e-12, "bicubic"),
        ("DINOv2", 1e-6, "bicubic"),
        ("registers", 1e-6, "bicubic_antialias"),
    ],
)
def test_eps_and_resampling_are_the_familys_with_and_without_a_config(case, eps, rule, saved, tmp_path):
    settings = {**SMALL, "hidden_size": 192, "num_attention_heads": 3}
    with_config = vitrail.load(saved(build(case, **settings))).config
    without = vitrail.load(bare(saved, tmp_path, case, **settings)).config
    assert (with_config.norm_eps, with_config.resample) == (without.norm_eps, without.resample) == (eps, rule)


def test_how_the_heads_are_known_is_said(saved, tmp_path):
    settings = {**SMALL, "hidden_size": 192, "num_attention_heads": 3}
    assert vitrail.load(saved(build("ViT", **settings))).provenance["heads"] == "num_attention_heads of config.json"
    file = bare(saved, tmp_path, "ViT", **settings)
    assert vitrail.load(file).provenance["heads"] == "the published model of width 192; the file does not say"
    assert vitrail.load(file, heads=6).provenance["heads"] == "given by the caller"
    assert vitrail.load(file, heads=6).config.heads == 6


def test_heads_that_nobody_knows_are_asked_for(saved, tmp_path):
    with pytest.raises(VitrailError, match="heads=<number>"):
        vitrail.load(bare(saved, tmp_path, "ViT", **SMALL))


def test_heads_that_config_json_leaves_open_are_transformers_default(saved):
    folder = saved(build("ViT", **{**SMALL, "num_attention_heads": 12}))
    edit(folder, num_attention_heads=None)
    ours = vitrail.load(folder)
    assert ours.config.heads == 12
    assert "default" in ours.provenance["heads"]


def test_positions_of_no_square_are_asked_about(saved, tmp_path):
    file = bare(saved, tmp_path, "ViT", **{**SMALL, "image_size": [32, 48]})
    with pytest.raises(VitrailError, match=r"24 positions.*image_size="):
        vitrail.load(file, heads=4)
    assert vitrail.load(file, heads=4, image_size=(32, 48)).config.image_size == (32, 48)


# ---- labels and task


def edit(folder, file="config.json", **changes):
    path = folder / file
    values = {**json.loads(path.read_text()), **changes} if path.exists() else changes
    path.write_text(json.dumps(values))


def test_labels_come_in_the_order_of_the_outputs(saved):
    folder = saved(build("ViT", **SMALL, num_labels=11))
    edit(folder, id2label={str(i): f"class {i}" for i in (10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)})
    assert vitrail.load(folder).labels == [f"class {i}" for i in range(11)]


@pytest.mark.parametrize("names", [True, 5, "abc", ["a"], {"0": "a"}])
def test_labels_that_are_none_at_all(saved, names):
    folder = saved(build("ViT", **SMALL))
    edit(folder, id2label=names)
    with pytest.raises(VitrailError, match="config.json has id2label"):
        vitrail.load(folder)


def test_labels_that_nobody_gave_are_none(saved):
    folder = saved(build("ViT", **SMALL))
    edit(folder, id2label=None)
    assert vitrail.load(folder).labels is None
    edit(folder, id2label={str(i): f"LABEL_{i}" for i in range(5)})
    assert vitrail.load(folder).labels == [f"LABEL_{i}" for i in range(5)]


def test_labels_for_another_number_of_outputs_are_refused(saved):
    folder = saved(build("ViT", **SMALL))
    edit(folder, id2label={"0": "cat", "1": "dog"})
    with pytest.raises(VitrailError, match="id2label for 2 classes.*outputs 0 to 4"):
        vitrail.load(folder)


@pytest.mark.parametrize(
    ("problem", "classes", "task"),
    [
        (None, 5, "classify"),
        ("single_label_classification", 5, "classify"),
        ("multi_label_classification", 5, "multilabel"),
        ("regression", 5, "regress"),
        (None, 1, "regress"),
    ],
)
def test_the_task_is_that_of_problem_type(problem, classes, task, saved):
    folder = saved(build("ViT", **SMALL, num_labels=classes))
    edit(folder, problem_type=problem)
    assert vitrail.load(folder).task == task


def test_training_settings_come_along(saved):
    ours = vitrail.load(saved(build("DINOv2", **SMALL, drop_path_rate=0.2, layerscale_value=0.1))).config
    assert (ours.drop_path, ours.layer_scale) == (0.2, 0.1)
    rates = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.3}
    ours = vitrail.load(saved(build("ViT", **SMALL, **rates))).config
    assert (ours.dropout, ours.attention_dropout) == (0.1, 0.3)


# ---- preprocessing


@pytest.mark.parametrize(
    ("case", "normalisation", "resize", "interpolation"),
    [
        ("ViT", HALF, "squash", "bilinear"),
        ("DeiT, two heads", IMAGENET, "crop", "bicubic"),
        ("MAE", IMAGENET, "crop", "bicubic"),
        ("DINOv2", IMAGENET, "crop", "bicubic"),
        ("registers", IMAGENET, "crop", "bicubic"),
    ],
)
def test_without_a_processors_file_the_published_preprocessing_is_assumed_and_noted(
    case, normalisation, resize, interpolation, saved
):
    ours = vitrail.load(saved(build(case, **SMALL)))
    found = ours.preprocessing
    assert ((found.mean, found.std), found.resize, found.interpolation) == (normalisation, resize, interpolation)
    assert found.size == (32, 32)
    assert any("preprocessing was assumed" in note for note in ours.notes)


def test_dinov2_is_native_at_518_and_prepared_at_224(saved):
    ours = vitrail.load(saved(build("DINOv2", **{**SMALL, "image_size": 518, "patch_size": 14})))
    assert ours.config.image_size == (518, 518)
    assert ours.preprocessing.size == (224, 224)
    assert ours.preprocessing.crop_fraction == 224 / 256


VIT = {"image_processor_type": "ViTImageProcessor"}
BIT = {"image_processor_type": "BitImageProcessor"}


@pytest.mark.parametrize(
    ("processor", "size", "resize", "fraction"),
    [
        ({**VIT, "size": 48}, (48, 48), "squash", 1.0),
        ({"feature_extractor_type": "ViTFeatureExtractor", "size": 48}, (48, 48), "squash", 1.0),
        ({"image_processor_type": "ViTImageProcessorFast", "size": 48}, (48, 48), "squash", 1.0),
        ({"size": 48}, (48, 48), "squash", 1.0),
        ({**VIT, "size": [48, 64]}, (48, 64), "squash", 1.0),
        ({**VIT, "size": {"height": 48, "width": 64}}, (48, 64), "squash", 1.0),
        ({**VIT, "size": {"shortest_edge": 48}}, (48, 48), "crop", 1.0),
        ({**BIT, "size": 64, "crop_size": 48}, (48, 48), "crop", 0.75),
        ({**BIT, "size": {"shortest_edge": 64}, "crop_size": {"height": 48, "width": 48}}, (48, 48), "crop", 0.75),
        ({**BIT, "size": {"shortest_edge": 64}, "crop_size": {"height": 48, "width": 56}}, (48, 56), "crop", 0.75),
        ({**BIT, "size": {"shortest_edge": 64}, "crop_size": 48, "do_center_crop": False}, (64, 64), "crop", 1.0),
        ({"feature_extractor_type": "DeiTFeatureExtractor", "size": 64, "crop_size": 48}, (48, 48), "squash", 0.75),
        (BIT, (224, 224), "crop", 1.0),
        ({**BIT, "size": None, "crop_size": None}, (224, 224), "crop", 1.0),
        ({**VIT, "size": 50}, (48, 48), "squash", 1.0),
    ],
    ids=str,
)
def test_the_processors_file_says_how_images_are_resized(processor, size, resize, fraction, saved):
    folder = saved(build("ViT", **SMALL))
    edit(folder, "preprocessor_config.json", **processor)
    found = vitrail.load(folder).preprocessing
    assert (found.size, found.resize, found.crop_fraction) == (size, resize, fraction)


@pytest.mark.parametrize(
    ("processor", "mean", "std"),
    [
        ({}, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
        ({"image_mean": 0.1, "image_std": 0.4}, (0.1, 0.1, 0.1), (0.4, 0.4, 0.4)),
        ({"do_normalize": False}, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        ({"rescale_factor": 1 / 127.5, "image_mean": 1.0, "image_std": 1.0}, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ({"do_rescale": False, "image_mean": 127.5, "image_std": 127.5}, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    ],
    ids=str,
)
def test_the_processors_file_says_how_pixels_are_scaled(processor, mean, std, saved):
    folder = saved(build("ViT", **SMALL))
    edit(folder, "preprocessor_config.json", **VIT, **processor)
    found = vitrail.load(folder).preprocessing
    assert found.mean == pytest.approx(mean)
    assert found.std == pytest.approx(std)


@pytest.mark.parametrize(("number", "name"), [(0, "nearest"), (1, "lanczos"), (2, "bilinear"), (3, "bicubic")])
def test_the_processors_file_says_how_to_interpolate(number, name, saved):
    folder = saved(build("ViT", **SMALL))
    edit(folder, "preprocessor_config.json", **VIT, resample=number)
    assert vitrail.load(folder).preprocessing.interpolation == name


@pytest.mark.parametrize(
    ("processor", "word"),
    [
        ({"feature_extractor_type": "DeiTFeatureExtractor", "size": 64, "crop_size": 48}, "keeps their aspect"),
        ({**BIT, "size": 48, "do_center_crop": False}, "cuts out the centre square"),
        ({**BIT, "size": 48, "crop_size": 64}, "pads with black"),
        ({**VIT, "size": 50}, "does not divide"),
    ],
    ids=str,
)
def test_a_processor_that_is_followed_only_in_part_is_noted(processor, word, saved):
    folder = saved(build("ViT", **SMALL))
    edit(folder, "preprocessor_config.json", **processor)
    assert any(word in note for note in vitrail.load(folder).notes)


def test_a_real_processor_is_followed(saved):
    folder = saved(build("DINOv2", **{**SMALL, "image_size": 518, "patch_size": 14}))
    published = {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}
    processor = transformers.BitImageProcessor(**published, image_mean=list(IMAGENET[0]), image_std=list(IMAGENET[1]))
    processor.save_pretrained(folder)
    found = vitrail.load(folder).preprocessing
    assert (found.size, found.crop_fraction, found.interpolation) == ((224, 224), 0.875, "bicubic")
    assert (found.mean, found.std) == IMAGENET


# ---- what is refused


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"use_mean_pooling": True}, "use_mean_pooling True"),
        ({"window_size": 7}, "window_size 7"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"head_dim": 16}, "head_dim 16"),
        ({"model_type": "swin"}, "model_type 'swin'"),
        ({"hidden_size": 96}, "hidden_size 96, but the weights have 48"),
        ({"num_hidden_layers": 4}, "num_hidden_layers 4, but the weights have 3"),
        ({"patch_size": 16}, r"patch_size 16, but the weights have \(8, 8\)"),
        ({"image_size": 64}, "image_size 64, which is 8 x 8 patches, but the weights have 16 positions"),
        ({"image_size": "big"}, "image_size is 'big'"),
        ({"num_attention_heads": 5}, "48 is not divisible by heads 5"),
        ({"num_attention_heads": "4"}, "num_attention_heads '4'"),
        ({"layer_norm_eps": "small"}, "norm_eps is a number"),
        ({"problem_type": "captioning"}, "problem_type 'captioning'"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_expressed_is_refused_by_name(changes, sentence, saved):
    folder = saved(build("ViT", **SMALL))
    edit(folder, **changes)
    with pytest.raises(VitrailError, match=rf"theirs cannot be loaded: .*{sentence}") as refusal:
        vitrail.load(folder)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"resample": 4}, "resample 4"),
        ({"resample": [2]}, "resample [2]"),
        ({"size": {"longest_edge": 224}}, "leaves the image size open"),
        ({"size": "large"}, "size is 'large'"),
        ({"image_mean": "grey"}, "image_mean 'grey'"),
        ({"rescale_factor": 0}, "rescale_factor 0"),
        ({"image_std": [0, 0, 0]}, "std is above 0"),
    ],
    ids=str,
)
def test_a_processors_file_that_cannot_be_followed_is_refused_by_name(changes, sentence, saved):
    folder = saved(build("ViT", **SMALL))
    edit(folder, "preprocessor_config.json", **VIT, **changes)
    with pytest.raises(VitrailError, match=re.escape(sentence)):
        vitrail.load(folder)


def test_a_tensor_that_is_left_over_or_missing_is_named(saved, tmp_path):
    theirs = build("ViT", **SMALL)
    saved(theirs)
    state = theirs.state_dict()
    torch.save({**state, "vit.embeddings.more_tokens": torch.zeros(1, 2, 48)}, tmp_path / "more.pt")
    with pytest.raises(VitrailError, match=r"no place.*more_tokens"):
        vitrail.load(tmp_path / "more.pt", heads=4)
    for name in ("vit.embeddings.position_embeddings", "vit.layers.1.mlp.fc2.bias", "vit.layernorm.weight"):
        torch.save({key: tensor for key, tensor in state.items() if key != name}, tmp_path / "less.pt")
        with pytest.raises(VitrailError, match=f"lack {name.removeprefix('vit.')}"):
            vitrail.load(tmp_path / "less.pt", heads=4)
