"""What detection learns from: class, L1 and GIoU, each divided by the number of objects in the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.model.heads.box_heads import DecoderOutputs
from vitrail.tasks.detect.box_geometry import giou, iou, to_corners
from vitrail.tasks.detect.box_matching import assign, match

L1, GIOU = 5.0, 2.0  # weights, against 1 for the class, as in DETR
NOTHING = 0.1  # what "no object" weighs in YOLOS' softmax, as in DETR: most queries find none
FOCUS = 1.5  # the power by which confident rights, and small false scores, count less


def objects_in(targets: Tensor) -> float:
    """How many objects a batch has, at least 1, so that a batch without any has a loss too."""
    return max(1.0, float((targets[..., 0] >= 0).sum()))


def scored_loss(logits: Tensor, boxes: Tensor, targets: Tensor) -> Tensor:
    """One to one, sigmoid scores: logits (B, Q, K), boxes (B, Q, 4), targets (B, M, 5)."""
    matched = match(logits.detach().sigmoid(), boxes.detach(), targets)  # (B, M)
    image, target = (matched >= 0).nonzero(as_tuple=True)
    return _given(logits, boxes, (image, matched[image, target]), targets[image, target], objects_in(targets))


def softmax_loss(logits: Tensor, boxes: Tensor, targets: Tensor) -> Tensor:
    """One to one, DETR's and YOLOS' own: logits (B, Q, K + 1), of which the last is "no object"."""
    matched = match(logits.detach().softmax(-1)[..., :-1], boxes.detach(), targets)
    image, target = (matched >= 0).nonzero(as_tuple=True)
    query, truth = matched[image, target], targets[image, target]
    nothing = logits.shape[-1] - 1
    classes = torch.full(logits.shape[:2], nothing, device=logits.device)
    classes[image, query] = truth[:, 0].long()
    weights = torch.where(torch.arange(nothing + 1, device=logits.device) == nothing, NOTHING, 1.0)
    named = F.cross_entropy(logits.flatten(0, 1), classes.flatten(), weights)
    return named + _placed(boxes[image, query], truth[:, 1:]) / objects_in(targets)


def decoder_loss(outputs: DecoderOutputs, targets: Tensor) -> Tensor:
    """All that a decoder says in training: the proposals, each block's answers, and what it made of the hints."""
    loss = proposals_loss(outputs.anchors, outputs.proposed_logits, outputs.proposed_boxes, targets)
    for logits, boxes in zip(outputs.logits, outputs.boxes, strict=True):
        loss = loss + scored_loss(logits.float(), boxes.float(), targets)
    if outputs.denoised_logits.numel():
        for logits, boxes in zip(outputs.denoised_logits, outputs.denoised_boxes, strict=True):
            loss = loss + hinted_loss(logits.float(), boxes.float(), targets)
    return loss


def proposals_loss(places: Tensor, logits: Tensor, boxes: Tensor, targets: Tensor) -> Tensor:
    """Many to one: the cells in the middle of an object learn its class, as surely as their box fits, and its box."""
    logits, boxes = logits.float(), boxes.float()
    target_scores = torch.zeros_like(logits)
    matched_boxes: list[Tensor] = []
    truth: list[Tensor] = []
    weight: list[Tensor] = []
    chances = logits.detach().sigmoid()
    for image, target in enumerate(targets):
        real = target[target[:, 0] >= 0]
        if not len(real):
            continue
        assigned = assign(chances[image], boxes[image].detach(), places, real)
        theirs = real[assigned.target]
        target_scores[image, assigned.place, theirs[:, 0].long()] = assigned.quality
        matched_boxes.append(boxes[image, assigned.place])
        truth.append(theirs[:, 1:])
        weight.append(assigned.quality)
    total = target_scores.sum().clamp(min=1)
    loss = _named(logits, target_scores) / total
    if matched_boxes:
        loss = loss + _placed(torch.cat(matched_boxes), torch.cat(truth), torch.cat(weight)) / total
    return loss


def hinted_loss(logits: Tensor, boxes: Tensor, targets: Tensor) -> Tensor:
    """Hints (B, G, 2 M, ...): of a group the first M lead back to the M objects, the others, farther off, to none."""
    groups, objects = logits.shape[1], targets.shape[1]
    image, group, target = (targets[:, None, :, 0] >= 0).expand(-1, groups, -1).nonzero(as_tuple=True)
    where = (image, group * 2 * objects + target)
    padding = (targets[:, :, 0] < 0).repeat(1, 2 * groups)  # (B, G 2 M)
    given = targets[image, target]
    return _given(logits.flatten(1, 2), boxes.flatten(1, 2), where, given, groups * objects_in(targets), padding)


def _given(
    logits: Tensor,
    boxes: Tensor,
    where: tuple[Tensor, Tensor],
    truth: Tensor,
    objects: float,
    padding: Tensor | None = None,
) -> Tensor:
    """The loss once it is known which answers belong to which objects: answer where[0][i], where[1][i] to truth[i]."""
    matched_boxes = boxes[where]  # (n, 4)
    fit = iou(to_corners(matched_boxes.detach()), to_corners(truth[:, 1:])).clamp(0, 1)
    target_scores = torch.zeros_like(logits)
    target_scores[where[0], where[1], truth[:, 0].long()] = fit**FOCUS
    right = torch.zeros_like(logits, dtype=torch.bool)
    right[where[0], where[1], truth[:, 0].long()] = True
    return (_named(logits, target_scores, right, padding) + _placed(matched_boxes, truth[:, 1:])) / objects


def _named(logits: Tensor, target_scores: Tensor, right: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
    """Cross-entropy of sigmoid scores with wanted ones, summed. Where nothing is wanted, a score counts the more the
    higher it is (focal loss), else the many empty places would count more than the few objects."""
    right = target_scores > 0 if right is None else right
    weight = torch.where(right, 1.0, logits.detach().sigmoid() ** FOCUS)
    if padding is not None:
        weight = weight.masked_fill(padding[..., None], 0.0)
    return F.binary_cross_entropy_with_logits(logits, target_scores, weight, reduction="sum")


def _placed(boxes: Tensor, truth: Tensor, weight: Tensor | None = None) -> Tensor:
    """L1 in centre form and GIoU, summed over n boxes."""
    away = (boxes - truth).abs().sum(-1)
    apart = 1 - giou(to_corners(boxes), to_corners(truth))
    each = L1 * away + GIOU * apart
    return (each if weight is None else each * weight).sum()
