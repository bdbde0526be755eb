"""What detection learns from: class, L1 and GIoU, summed over the objects of a batch. The task divides the sums by the
number of objects in the whole step (`Detect.loss_share`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.model.heads.box_heads import DecoderOutputs
from vitrail.tasks.detect.box_geometry import giou, iou, to_corners
from vitrail.tasks.detect.box_matching import assign, match

L1, GIOU = 5.0, 2.0  # weights, against 1 for the class, as in DETR
NOTHING = 0.1  # what "no object" weighs in YOLOS' softmax, as in DETR: most queries find none
PLACES = 3.0  # how many cells learn an object, by the sum of their wanted scores: 2.2 early to 3.7 late in training
FOCUS = 1.5  # the power by which confident rights, and small false scores, count less


def scored_loss(logits: Tensor, boxes: Tensor, targets: Tensor) -> Tensor:
    """One to one, sigmoid scores: logits (B, Q, K), boxes (B, Q, 4), targets (B, M, 5)."""
    matched = match(logits.detach().sigmoid(), boxes.detach(), targets)  # (B, M)
    image, target = (matched >= 0).nonzero(as_tuple=True)
    return _given(logits, boxes, (image, matched[image, target]), targets[image, target])


def softmax_loss(logits: Tensor, boxes: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
    """One to one, DETR's and YOLOS' own: logits (B, Q, K + 1), of which the last is "no object".

    Not a sum: classes are averaged by their weights over all queries of the step, as DETR does, boxes over its objects.
    counts (2,): images and objects of the step.
    """
    matched = match(logits.detach().softmax(-1)[..., :-1], boxes.detach(), targets)
    image, target = (matched >= 0).nonzero(as_tuple=True)
    query, truth = matched[image, target], targets[image, target]
    nothing = logits.shape[-1] - 1
    classes = torch.full(logits.shape[:2], nothing, device=logits.device)
    classes[image, query] = truth[:, 0].long()
    weights = torch.where(torch.arange(nothing + 1, device=logits.device) == nothing, NOTHING, 1.0)
    named = F.cross_entropy(logits.flatten(0, 1), classes.flatten(), weights, reduction="sum")
    images, objects = counts
    queries = images * logits.shape[1]
    total = NOTHING * queries + (1 - NOTHING) * torch.minimum(objects, queries)
    return named / total + _placed(boxes[image, query], truth[:, 1:]) / objects.clamp(min=1)


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
    """Many to one: the cells in the middle of an object learn its class, as surely as their box fits, and its box.

    Divided by PLACES for each object. Task-aligned assignment divides by the wanted scores of the batch instead, which
    are about as many, but are only known once all of its parts have been run.
    """
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
    loss = _named(logits, target_scores)
    if matched_boxes:
        loss = loss + _placed(torch.cat(matched_boxes), torch.cat(truth), torch.cat(weight))
    return loss / PLACES


def hinted_loss(logits: Tensor, boxes: Tensor, targets: Tensor) -> Tensor:
    """Hints (B, G, 2 M, ...): of a group the first M lead back to the M objects, the others, farther off, to none. The
    mean over the groups, which are fewer where images have more objects."""
    groups, objects = logits.shape[1], targets.shape[1]
    image, group, target = (targets[:, None, :, 0] >= 0).expand(-1, groups, -1).nonzero(as_tuple=True)
    where = (image, group * 2 * objects + target)
    padding = (targets[:, :, 0] < 0).repeat(1, 2 * groups)  # (B, G 2 M)
    given = targets[image, target]
    return _given(logits.flatten(1, 2), boxes.flatten(1, 2), where, given, padding) / groups


def _given(
    logits: Tensor,
    boxes: Tensor,
    where: tuple[Tensor, Tensor],
    truth: Tensor,
    padding: Tensor | None = None,
) -> Tensor:
    """The loss once it is known which answers belong to which objects: answer where[0][i], where[1][i] to truth[i]."""
    matched_boxes = boxes[where]  # (n, 4)
    fit = iou(to_corners(matched_boxes.detach()), to_corners(truth[:, 1:])).clamp(0, 1)
    target_scores = torch.zeros_like(logits)
    target_scores[where[0], where[1], truth[:, 0].long()] = fit**FOCUS
    right = torch.zeros_like(logits, dtype=torch.bool)
    right[where[0], where[1], truth[:, 0].long()] = True
    return _named(logits, target_scores, right, padding) + _placed(matched_boxes, truth[:, 1:])


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
