"""transformers' CLIP and SigLIP: the image tower's own answers, whatever stands beside it."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from vitrail.errors import VitrailError
from vitrail.weights.preprocessing import CLIP, HALF

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 10}
TEXT = {**TEXT, "bos_token_id": 0, "eos_token_id": 1}


def tower(name, **sizes):
    sizes["intermediate_size"] = 2 * sizes["hidden_size"]
    config = "CLIPVisionConfig" if name.startswith("CLIP") else "SiglipVisionConfig"
    return getattr(transformers, name)(getattr(transformers, config)(**sizes))


def whole(name, labels=2, **sizes):
    sizes["intermediate_size"] = 2 * sizes["hidden_size"]
    config = "CLIPConfig" if name.startswith("CLIP") else "SiglipConfig"
    both = {"vision_config": sizes, "text_config": TEXT, "num_labels": labels}
    return getattr(transformers, name)(getattr(transformers, config)(**both))


def pooled(output):
    return output.pooler_output


def embedded(output):
    return output.image_embeds


def logits(output):
    return output.logits


CASES = {
    "CLIP": (tower, "CLIPVisionModel", pooled),
    "CLIP, projection": (tower, "CLIPVisionModelWithProjection", embedded),
    "CLIP, classifier": (whole, "CLIPForImageClassification", logits),
    "SigLIP": (tower, "SiglipVisionModel", pooled),
    "SigLIP, classifier": (whole, "SiglipForImageClassification", logits),
}


def build(case, **sizes):
    make, name, _ = CASES[case]
    return make(name, **sizes)


def edit(folder, file="config.json", **changes):
    path = folder / file
    values = {**json.loads(path.read_text()), **changes} if path.exists() else changes
    path.write_text(json.dumps(values))


def edit_tower(folder, **changes):
    inside = json.loads((folder / "config.json").read_text())["vision_config"]
    edit(folder, vision_config={name: value for name, value in {**inside, **changes}.items() if value is not None})


# ---- the same answers


@pytest.mark.parametrize("case", CASES)
def test_answers_are_theirs_at_a_small_width(case, saved, agrees):
    theirs = build(case, **SMALL)
    ours = vitrail.load(saved(theirs))
    for size in ((32, 32), (48, 48), (40, 64), (24, 24)):
        agrees(ours, theirs, size, CASES[case][2], interpolate_pos_encoding=True)


@pytest.mark.parametrize("width", [384, 768])
@pytest.mark.parametrize("case", ["CLIP, projection", "SigLIP"])
def test_answers_are_theirs_at_a_real_width(case, width, saved, agrees):
    sizes = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": width // 64}
    theirs = build(case, **sizes, image_size=224, patch_size=16)
    ours = vitrail.load(saved(theirs))
    for size in ((224, 224), (160, 160), (192, 272)):
        agrees(ours, theirs, size, CASES[case][2], batch=1, interpolate_pos_encoding=True)


@pytest.mark.parametrize("act", ["gelu", "quick_gelu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("case", ["CLIP", "SigLIP"])
def test_the_activation_is_that_of_config_json(case, act, saved, agrees):
    theirs = build(case, **SMALL, hidden_act=act)
    agrees(vitrail.load(saved(theirs)), theirs, (32, 32), pooled)


@pytest.mark.parametrize("case", ["CLIP", "SigLIP"])
def test_eps_is_that_of_config_json(case, saved, agrees):
    theirs = build(case, **SMALL, layer_norm_eps=0.5)
    agrees(vitrail.load(saved(theirs)), theirs, (32, 32), pooled)


@pytest.mark.parametrize("name", ["CLIPModel", "SiglipModel"])
def test_a_whole_model_gives_its_image_features_and_its_text_tower_is_left_out(name, saved):
    theirs = whole(name, **SMALL)
    ours = vitrail.load(saved(theirs))
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = theirs.get_image_features(images).pooler_output
        assert (ours.model(images) - expected).abs().max() <= 1e-4
    assert any("text tower" in note for note in ours.notes)
    assert (ours.task, ours.labels) == ("embed", None)


def test_clips_projection_is_a_head_without_bias_that_embeds(saved):
    ours = vitrail.load(saved(tower("CLIPVisionModelWithProjection", **SMALL, projection_dim=20)))
    assert (ours.config.classes, ours.config.head_bias, ours.task) == (20, False, "embed")
    assert (ours.config.patch_bias, ours.config.stem_norm, ours.config.final_norm) == (False, True, "pooled")


def test_what_a_classifier_does_not_read_is_noted(saved):
    ours = vitrail.load(saved(build("CLIP, classifier", **SMALL)))
    assert (ours.config.pool, ours.config.final_norm, ours.task) == ("mean", "none", "classify")
    assert any("final norm was left out" in note for note in ours.notes)
    ours = vitrail.load(saved(build("SigLIP, classifier", **SMALL)))
    assert (ours.config.pool, ours.config.final_norm, ours.task) == ("mean", "tokens", "classify")
    assert any("attention pooling was left out" in note for note in ours.notes)


def test_a_siglip_tower_without_its_pooling_gives_the_mean_and_says_so(saved, agrees):
    theirs = tower("SiglipVisionModel", **SMALL, vision_use_head=False)
    ours = vitrail.load(saved(theirs))
    agrees(ours, theirs, (32, 32), lambda output: output.last_hidden_state.mean(dim=1))
    assert any("mean of its patches was chosen" in note for note in ours.notes)


# ---- the ways they are published


@pytest.mark.parametrize("case", CASES)
def test_the_prefix_may_be_there_or_not(case, saved, tmp_path):
    folder = saved(build(case, **SMALL))
    published = vitrail.load(folder).model.state_dict()
    tensors = load_file(folder / "model.safetensors")
    outside = ("vision_model.", "visual_projection.", "classifier.")
    bare = {name.removeprefix("vision_model."): tensor for name, tensor in tensors.items()}
    prefixed = {name if name.startswith(outside) else f"vision_model.{name}": tensor for name, tensor in bare.items()}
    for names in (bare, prefixed):
        save_file(names, folder / "model.safetensors")
        found = vitrail.load(folder).model.state_dict()
        assert all(torch.equal(tensor, found[name]) for name, tensor in published.items())


def test_position_ids_of_older_files_are_passed_over(saved):
    folder = saved(build("CLIP", **SMALL))
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "embeddings.position_ids": torch.arange(17)[None]}, folder / "model.safetensors")
    assert vitrail.load(folder).config.patches == 16


def test_the_siglip_config_as_published_says_next_to_nothing(saved):
    """google/siglip-base-patch16-224 leaves every setting of its tower to transformers' defaults."""
    folder = saved(whole("SiglipModel", **{**SMALL, "num_attention_heads": 12}))
    edit(folder, vision_config={"model_type": "siglip_vision_model"})
    ours = vitrail.load(folder)
    assert (ours.config.heads, ours.config.norm_eps, ours.config.activation) == (12, 1e-6, "gelu_tanh")
    assert "default of 12" in ours.provenance["heads"]


def test_an_image_size_that_patches_do_not_fill_is_cut_to_whole_patches(saved, agrees):
    """SigLIP so400m: 384 px with patches of 14."""
    theirs = tower("SiglipVisionModel", **{**SMALL, "image_size": 36})
    folder = saved(theirs)
    edit(
        folder,
        "preprocessor_config.json",
        image_processor_type="SiglipImageProcessor",
        size={"height": 36, "width": 36},
    )
    ours = vitrail.load(folder)
    assert ours.config.image_size == ours.preprocessing.size == (32, 32)
    assert any("does not divide" in note for note in ours.notes)
    images = torch.randn(2, 3, 36, 36)
    with torch.no_grad():
        assert (ours.model(images[..., :32, :32]) - theirs(images).pooler_output).abs().max() <= 1e-4


@pytest.mark.parametrize(("case", "eps", "act"), [("CLIP", 1e-5, "quick_gelu"), ("SigLIP", 1e-6, "gelu_tanh")])
def test_a_file_without_a_config_is_taken_as_first_published_and_says_so(case, eps, act, saved, tmp_path):
    theirs = build(case, **{**SMALL, "hidden_size": 192, "num_attention_heads": 3})
    (saved(theirs) / "model.safetensors").rename(tmp_path / "bare.safetensors")
    ours = vitrail.load(tmp_path / "bare.safetensors")
    assert (ours.config.norm_eps, ours.config.activation, ours.config.resample) == (eps, act, "bicubic")
    assert ours.provenance["heads"] == "the published model of width 192; the file does not say"
    assert any("hidden_act" in note and "assumed" in note for note in ours.notes)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert (ours.model(images) - theirs(images).pooler_output).abs().max() <= 1e-4


def test_labels_and_task_of_a_classifier_come_from_the_whole_models_config(saved):
    folder = saved(whole("SiglipForImageClassification", labels=3, **SMALL))
    edit(folder, id2label={"2": "c", "0": "a", "1": "b"}, problem_type="multi_label_classification")
    ours = vitrail.load(folder)
    assert (ours.labels, ours.task) == (["a", "b", "c"], "multilabel")


# ---- preprocessing


@pytest.mark.parametrize(("case", "normalisation", "resize"), [("CLIP", CLIP, "crop"), ("SigLIP", HALF, "squash")])
def test_the_published_preprocessing_is_assumed_and_a_processors_file_followed(case, normalisation, resize, saved):
    folder = saved(build(case, **SMALL))
    ours = vitrail.load(folder)
    assert any("preprocessing was assumed" in note for note in ours.notes)
    name = "CLIPImageProcessor" if case == "CLIP" else "SiglipImageProcessor"
    getattr(transformers, name)().save_pretrained(folder)
    followed = vitrail.load(folder)
    assert followed.preprocessing == ours.preprocessing.replace(size=(224, 224))
    found = followed.preprocessing
    assert ((found.mean, found.std), found.resize, found.interpolation) == (normalisation, resize, "bicubic")
    assert not any("preprocessing was assumed" in note for note in followed.notes)


def test_a_processor_kept_with_that_of_the_text_is_found(saved):
    folder = saved(build("CLIP", **SMALL))
    edit(folder, "processor_config.json", image_processor={"image_processor_type": "CLIPImageProcessor", "size": 256})
    assert vitrail.load(folder).preprocessing.crop_fraction == 0.875


# ---- what is refused


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"hidden_size": 64}, "hidden_size 64, but the weights have 48"),
        ({"image_size": 64}, "image_size 64, which is 8 x 8 patches, but the weights have 16 positions"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_expressed_is_refused_by_name(changes, sentence, saved):
    folder = saved(whole("CLIPForImageClassification", **SMALL))
    edit_tower(folder, **changes)
    with pytest.raises(VitrailError, match=sentence):
        vitrail.load(folder)


def test_another_kind_of_tower_is_refused_by_its_type(saved):
    folder = saved(build("SigLIP", **SMALL))
    edit(folder, model_type="siglip2_vision_model")
    with pytest.raises(VitrailError, match="it is a NaFlex SigLIP 2.* take one of fixed size"):
        vitrail.load(folder)


def test_a_tensor_that_is_left_over_or_missing_is_named(saved):
    folder = saved(build("SigLIP", **SMALL))
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "encoder.layers.0.self_attn.q_norm.weight": torch.ones(12)}, folder / "model.safetensors")
    with pytest.raises(VitrailError, match=r"no place.*q_norm"):
        vitrail.load(folder)
    for name in ("post_layernorm.bias", "head.mlp.fc1.weight", "embeddings.position_embedding.weight"):
        save_file({key: tensor for key, tensor in tensors.items() if key != name}, folder / "model.safetensors")
        with pytest.raises(VitrailError, match=f"lack {name}"):
            vitrail.load(folder)
