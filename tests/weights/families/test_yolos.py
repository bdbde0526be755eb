"""transformers' YOLOS: the same scores and boxes, at its own size and at others."""

from __future__ import annotations

import pytest
import torch

import vitrail
from vitrail.errors import VitrailError
from vitrail.tasks.registry import task_for

SMALL = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 80,
    "image_size": (48, 64),
    "patch_size": 8,
    "num_detection_tokens": 7,
}


def build(**changes):
    from transformers import YolosConfig, YolosForObjectDetection

    names = {i: f"thing {i}" for i in range(5)}
    config = YolosConfig(**{**SMALL, "id2label": names, "label2id": {v: k for k, v in names.items()}, **changes})
    return YolosForObjectDetection(config)


def differences(checkpoint, theirs, size):
    """The largest of the class logits, and of the boxes."""
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = theirs(images), checkpoint.model(images)
    assert expected.logits.std() > 0.05 and expected.pred_boxes.std() > 0.02
    logits, boxes = found.split([found.shape[-1] - 4, 4], dim=-1)
    assert logits.shape == expected.logits.shape
    return float((logits - expected.logits).abs().max()), float((boxes - expected.pred_boxes).abs().max())


@pytest.mark.parametrize("mid", [False, True], ids=["positions once", "positions after every block"])
@pytest.mark.parametrize("size", [(48, 64), (64, 40), (24, 96)], ids=str)
def test_the_same_scores_and_boxes(saved, mid, size):
    theirs = build(use_mid_position_embeddings=mid)
    ours = vitrail.load(saved(theirs))
    assert max(differences(ours, theirs, size)) <= 1e-4


def test_a_size_that_patches_do_not_divide(saved):
    """yolos-tiny has positions for 800 x 1333 px in patches of 16: what is left over of a row was never seen."""
    theirs = build(image_size=(48, 69), use_mid_position_embeddings=False)
    ours = vitrail.load(saved(theirs))
    assert ours.config.image_size == (48, 64)
    assert max(differences(ours, theirs, (48, 64))) <= 1e-4


def test_loaded_for_another_size_it_answers_the_same(saved):
    theirs = build()
    folder = saved(theirs)
    ours = vitrail.load(folder, image_size=(64, 80))
    assert max(differences(ours, theirs, (64, 80))) <= 1e-4


def test_what_it_carries(saved):
    ours = vitrail.load(saved(build()))
    config = ours.config
    assert (ours.task, config.head, config.queries, config.classes) == ("detect", "box_tokens", 7, 5)
    assert ours.labels == [f"thing {i}" for i in range(5)]
    assert ours.preprocessing.resize == "pad" and ours.preprocessing.size == (48, 64)
    assert ours.provenance["family"] == "transformers-yolos"
    assert task_for(ours.task, ours.labels).name == "detect"


def test_our_file_of_it_gives_the_same(saved, tmp_path):
    ours = vitrail.load(saved(build()))
    images = torch.randn(1, 3, 48, 64)
    again = vitrail.load(ours.save(tmp_path / "yolos.safetensors"))
    with torch.no_grad():
        assert torch.equal(again.model(images), ours.model(images))


def test_new_labels_keep_the_encoder(saved):
    ours = vitrail.load(saved(build()), labels=["cell", "platelet"])
    images = torch.randn(1, 3, 48, 64)
    assert ours.model(images).shape == (1, 7, 2 + 1 + 4)


def test_without_its_heads_it_is_refused(saved):
    from transformers import YolosConfig, YolosModel

    folder = saved(YolosModel(YolosConfig(**SMALL)))
    with pytest.raises(VitrailError, match="with its heads"):
        vitrail.load(folder)


@pytest.mark.parametrize("head", [{"head": "linear"}, {"head": "mask_queries", "queries": 4}], ids=str)
def test_another_head_keeps_the_positions_of_the_patches(saved, head):
    from vitrail.weights.adapt import adapt

    ours = vitrail.load(saved(build()))
    changed = adapt(ours, labels=["a", "b", "c", "d"], head=head)
    before, after = (one.model.block_positions.table for one in (ours, changed))
    assert torch.equal(before[:, 0], after[:, 0])
    assert torch.equal(before[:, -48:], after[:, -48:])
