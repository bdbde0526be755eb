"""What is explained, as one number an image: the score of one class, label or number, or the embedding itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.explanation.forward_pass import evaluation_mode
from vitrail.model.encoder import Encoder
from vitrail.tasks.registry import DEFAULT_TASK, task_class

PROBABILITIES = ("softmax", "sigmoid")  # the links whose answers are probabilities


@dataclass(frozen=True)
class TargetScore:
    """Of each image one output: class, label or number `targets[i]`; or, without a head, the embedding `outputs[i]`."""

    task: str  # its name, or embed
    outputs: Tensor  # (B, K), the model's answer to the whole image
    targets: Tensor | None  # (B,), None for embed
    signs: Tensor | None = None  # (B,), regress: whether the image moves the number up or down from a blank one

    @property
    def link(self) -> str:
        """What makes an answer of the outputs (`Task.link`); "" for an embedding."""
        return "" if self.targets is None else task_class(self.task).link

    def score(self, outputs: Tensor) -> Tensor:
        """(B, K) -> (B,), what methods that need a gradient explain.

        Of one class among many its log odds, log(p / (1 - p)): the evidence for it and not for the others. The bare
        logit would count what lifts all logits alike, which no softmax sees.
        """
        outputs = outputs.float()
        if self.targets is None:  # the projection on the embedding; the cosine has no gradient at its maximum
            own = self.outputs.float()
            return (outputs * own).sum(1) / own.square().sum(1).clamp(min=1e-12)
        own = outputs.gather(1, self.targets[:, None])[:, 0]
        if self.link == "identity":
            return own if self.signs is None else own * self.signs
        if self.link == "sigmoid" or outputs.shape[1] == 1:
            return own
        others = outputs.scatter(1, self.targets[:, None], -torch.inf)
        return own - others.logsumexp(1)

    def value(self, outputs: Tensor) -> Tensor:
        """(B, K) -> (B,), what people read: the probability, the number, or the likeness to the image's embedding."""
        if self.link in PROBABILITIES:
            return torch.sigmoid(self.score(outputs))  # of log odds it is the softmax's own probability
        if self.targets is None:
            return torch.cosine_similarity(outputs.float(), self.outputs.float(), dim=1)
        return self.score(outputs)

    def for_versions(self, image: int, count: int) -> TargetScore:
        """The same score for `count` versions of one image, such as those with hidden patches."""
        own = slice(image, image + 1)
        return TargetScore(
            self.task,
            self.outputs[own].expand(count, -1),
            None if self.targets is None else self.targets[own].expand(count),
            None if self.signs is None else self.signs[own].expand(count),
        )


@torch.no_grad()
def target_score(
    model: Encoder,
    images: Tensor,
    task: str = DEFAULT_TASK,
    target: int | Tensor | None = None,
    outputs: Tensor | None = None,
) -> TargetScore:
    """The score of the model's own answer; `target`: of another output. images: normalised, (B, C, H, W).

    outputs: the model's, where they are known already. For numbers the sign is that of the difference from a picture
    of the mean colour.
    """
    with evaluation_mode(model):
        outputs = (explained_outputs(model, images) if outputs is None else outputs.detach()).float()
        if outputs.dim() != 2:
            raise VitrailError(
                "this model answers for every patch: relevance needs one answer an image; ask for attention"
            )
        if not model.config.classes or model.config.is_dense or task == "embed":
            return TargetScore("embed", outputs, None)
        targets = _checked_targets(outputs, target)
        signs = None
        if task_class(task).link == "identity":
            gap = (outputs - model(blank(images)).float()).gather(1, targets[:, None])[:, 0]
            signs = torch.where(gap < 0, -1.0, 1.0)
    return TargetScore(task, outputs, targets, signs)


def explained_outputs(model: Encoder, images: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, K): the model's answer; of one that answers about places, its pooled embedding (B, D)."""
    return model.forward_embedding(model.embed(images)) if model.config.is_dense else model(images)


def blank(images: Tensor) -> Tensor:
    """(B, C, H, W) filled with each picture's mean colour: what hidden patches show."""
    return images.mean(dim=(2, 3), keepdim=True).expand_as(images)


def _checked_targets(outputs: Tensor, target: int | Tensor | None) -> Tensor:
    """(B,): the chosen output of each image; None: the largest."""
    if target is None:
        return outputs.argmax(1)
    targets = torch.as_tensor(target, device=outputs.device).long().expand(len(outputs))
    if int(targets.min()) < 0 or int(targets.max()) >= outputs.shape[1]:
        raise VitrailError(
            f"there is no output {target}: the model has {outputs.shape[1]}, 0 to {outputs.shape[1] - 1}"
        )
    return targets
