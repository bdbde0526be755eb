"""Heads that find objects: what they give, what they may see, and that everything in them learns."""

from __future__ import annotations

import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.heads.box_heads import (
    PRIOR,
    DecoderOutputs,
    box_points,
    centres,
    denoising_mask,
    nms_features,
    refine_boxes,
    sample,
    sine_embedding,
)
from vitrail.model.vit import ViT

SMALL = {
    "image_size": (32, 48),
    "patch_size": 8,
    "width": 32,
    "heads": 2,
    "depth": 2,
    "cls_token": False,
    "pool": "mean",
    "classes": 3,
    "queries": 10,
}


def build(head="box_decoder", **changes):
    torch.manual_seed(0)
    return ViT(ViTConfig(**{**SMALL, "head": head, **changes}))


def pictures(batch=2, size=(32, 48)):
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(1))


def some_hints(batch=2, groups=2, each=4):
    denoising_queries = 0.2 + 0.3 * torch.rand(batch, groups, each, 5, generator=torch.Generator().manual_seed(2))
    denoising_queries[..., 0] = 1
    return denoising_queries


def answering(model):
    """In evaluation but for the head's own answer: batch norms would tie the images of a batch together."""
    model.eval()
    model.head.training = True
    return model


@pytest.mark.parametrize(("head", "classes"), [("box_decoder", 3), ("box_tokens", 3 + 1)])
def test_one_tensor_while_it_evaluates(head, classes):
    with torch.no_grad():
        found = build(head).eval()(pictures())
    assert found.shape == (2, 10, classes + 4)
    assert ((found[..., -4:] >= 0) & (found[..., -4:] <= 1)).all()


@pytest.mark.parametrize("patch", [1, 4, 8, 14, 16, (8, 16)])
@pytest.mark.parametrize("stem", ["linear", "conv"])
def test_every_patch_size(patch, stem):
    size = {14: (28, 42), 1: (6, 8)}.get(patch, (32, 48))
    model = build(patch_size=patch, image_size=size, stem=stem, queries=5)
    assert model.eval()(pictures(1, size)).shape == (1, 5, 7)


def test_another_image_size_and_fewer_cells_than_queries():
    model = build(queries=1000).eval()
    cells = (64 // 8) * (40 // 8)
    assert model(pictures(1, (64, 40))).shape == (1, cells, 7)


def test_what_it_says_in_training():
    guesses = build(head_depth=3).train()(pictures(), denoising_queries=some_hints())
    assert isinstance(guesses, DecoderOutputs)
    cells = guesses.anchors.shape[0]
    assert guesses.proposed_logits.shape == (2, cells, 3) and guesses.proposed_boxes.shape == (2, cells, 4)
    assert guesses.logits.shape == (3, 2, 10, 3) and guesses.boxes.shape == (3, 2, 10, 4)
    assert guesses.denoised_logits.shape == (3, 2, 2, 4, 3) and guesses.denoised_boxes.shape == (3, 2, 2, 4, 4)


def test_without_hints_there_is_no_answer_to_them():
    guesses = build().train()(pictures())
    assert guesses.denoised_logits.numel() == guesses.denoised_boxes.numel() == 0


def test_the_last_block_says_what_evaluation_gives():
    model = answering(build())
    with torch.no_grad():
        told = model(pictures())
        alone = model.eval()(pictures())
    assert torch.allclose(alone, torch.cat([told.logits[-1], told.boxes[-1]], dim=-1), atol=1e-6)


def stirred(model):
    """Answers of a fresh model hardly depend on what its blocks see: the last layers are zero."""
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model


def test_queries_do_not_see_the_hints():
    model = answering(stirred(build()))
    with torch.no_grad():
        with_hints, without = model(pictures(), denoising_queries=some_hints()), model(pictures())
    assert torch.allclose(with_hints.logits, without.logits, atol=1e-5)
    assert torch.allclose(with_hints.boxes, without.boxes, atol=1e-5)


def test_a_group_of_hints_sees_neither_the_others_nor_padding():
    model = answering(stirred(build()))
    denoising_queries, other, padded = (some_hints() for _ in range(3))
    other[:, 1, :, 1:] = 0.5
    padded = torch.cat([padded, torch.zeros(2, 2, 3, 5)], dim=2)
    padded[:, :, 4:, 0] = -1
    with torch.no_grad():
        plain, changed, longer = (
            model(pictures(), denoising_queries=one).denoised_logits for one in (denoising_queries, other, padded)
        )
    assert torch.allclose(plain[:, :, 0], changed[:, :, 0], atol=1e-5)
    assert not torch.allclose(plain[:, :, 1], changed[:, :, 1], atol=1e-3)
    assert torch.allclose(plain, longer[:, :, :, :4], atol=1e-5)


def test_who_sees_whom():
    denoising_queries = torch.zeros(1, 2, 2, 5)
    denoising_queries[0, 1, 1, 0] = -1  # the last is padding
    seen = denoising_mask(1, denoising_queries)[0, 0].int().tolist()
    assert seen == [[1, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]


@pytest.mark.parametrize("head", ["box_decoder", "box_tokens"])
def test_every_parameter_learns(head):
    from vitrail.tasks.detect.detect import Detect

    model, task = build(head).train(), Detect(["a", "b", "c"])
    targets = torch.tensor([[[0, 0.5, 0.5, 0.4, 0.4]], [[2, 0.3, 0.6, 0.2, 0.3]]])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    keys = torch.arange(2, dtype=torch.int32)
    for _ in range(2):  # of the layers that begin at zero only the last learns in the first step
        optimizer.zero_grad()
        task.loss(model(pictures(), denoising_queries=task.denoising_queries(targets, keys)), targets).backward()
        optimizer.step()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []


def test_a_fresh_decoder_is_unsure_and_says_what_its_cells_propose():
    model = answering(build())
    with torch.no_grad():
        told = model(pictures())
    assert told.logits.sigmoid().mean().item() == pytest.approx(PRIOR, rel=0.2)
    best = told.proposed_boxes[0]
    assert all((best - box).abs().sum(-1).min() < 1e-5 for box in told.boxes[-1, 0])


def test_peaks_are_chosen_before_their_neighbours():
    model = build(queries=2)
    logits = torch.full((1, 24, 3), -5.0)
    logits[0, [7, 8, 16], 0] = torch.tensor([3.0, 2.9, 1.0])  # 8 is beside 7 on a grid of 4 x 6, 16 apart
    logits[0, 22, 1] = 0.5
    boxes = torch.arange(24.0)[None, :, None].expand(1, 24, 4)
    _, chosen = model.head.select_queries(logits, boxes, torch.zeros(1, 1, 4, 6))
    assert chosen[0, :, 0].tolist() == [7.0, 16.0]


def test_many_that_say_the_same_leave_queries_for_a_rare_object():
    model = build(queries=2)
    logits = torch.full((1, 24, 3), -5.0)
    logits[0, [0, 4, 14], 0] = torch.tensor([3.0, 2.5, 2.0])  # three peaks
    logits[0, 23, 1] = 0.5
    boxes = torch.tensor([0.3, 0.3, 0.4, 0.4]).repeat(1, 24, 1)  # of one object
    told, _ = model.head.select_queries(logits, boxes, torch.zeros(1, 1, 4, 6))
    assert told.argmax(-1).tolist() == [[0, 1]]


def test_places_and_points():
    assert centres((2, 2), torch.zeros(1)).tolist() == [[0.25, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.75]]
    features = centres((4, 6), torch.zeros(1)).T.reshape(1, 2, 4, 6)  # each cell knows where it is
    where = torch.tensor([[[0.3, 0.4, 0.1, 0.1], [0.5, 0.5, 0.2, 0.1]]])
    assert torch.allclose(sample(features, where), where[..., :2], atol=1e-6)
    inside = box_points(where).unflatten(1, (2, -1))
    assert torch.allclose(inside.mean(2), where[..., :2], atol=1e-6)
    assert sine_embedding(where).shape == (1, 2, 64)


def test_moved_boxes_stay_in_the_picture():
    boxes = torch.tensor([[0.5, 0.5, 0.2, 0.2]])
    assert torch.equal(refine_boxes(boxes, torch.zeros(1, 4)), boxes)
    assert torch.allclose(
        refine_boxes(boxes, torch.tensor([[0.5, 0.0, 0.0, 0.0]])), torch.tensor([[0.6, 0.5, 0.2, 0.2]])
    )
    far = refine_boxes(boxes, torch.full((1, 4), 100.0))
    assert ((far >= 0) & (far <= 1)).all()


def test_half_precision_answers_too():
    found = build().eval().to(torch.bfloat16)(pictures().to(torch.bfloat16))
    assert torch.isfinite(found).all()


def test_config():
    config = ViTConfig(**{**SMALL, "head": "box_decoder"})
    assert (config.head_depth, config.head_width, config.queries) == (2, 32, 10)
    assert ViTConfig.from_json(config.to_json()) == config
    plain = config.replace(head="linear")
    assert (plain.head_depth, plain.head_width, plain.queries) == (0, None, 0)
    with pytest.raises(VitrailError, match="head_depth 3 goes with head 'box_decoder'"):
        ViTConfig(**{**SMALL, "queries": 0, "head_depth": 3})
    with pytest.raises(VitrailError, match="block_positions true goes with positions 'learned'"):
        ViTConfig(block_positions=True, positions="sincos2d")


def test_rivals_are_overlaps_with_what_scores_higher():
    boxes = torch.tensor([[[0.5, 0.5, 0.4, 0.4], [0.5, 0.5, 0.4, 0.2], [0.9, 0.9, 0.1, 0.1]]])
    logits = torch.tensor([[[2.0, -1.0], [0.0, 1.0], [-3.0, -2.0]]])
    own, other = nms_features(logits, boxes, None)[0].T
    assert torch.allclose(own, torch.tensor([2.0, 1.0, -2.0]).sigmoid())
    assert other.tolist() == pytest.approx([0.0, 0.5, 0.0])
    alone = torch.eye(3, dtype=torch.bool)[None, None]
    assert nms_features(logits, boxes, alone)[0, :, 1].tolist() == [0, 0, 0]


def test_maps_of_a_look_are_what_it_does():
    look = build().eval().head.last_cross_attention
    queries, keys = torch.randn(2, 4, look.out.in_features), torch.randn(2, 6, look.out.in_features)
    maps = look.maps(queries, keys)
    assert torch.allclose(maps.sum(-1), torch.ones(2, look.heads, 4))
    by_hand = look.out((maps @ look.split(look.value(keys))).transpose(1, 2).flatten(2))
    assert torch.allclose(look(queries, keys, keys), by_hand, atol=1e-5)
