"""What is to be explained: the answer for one class, one number, or the embedding itself, as one number an image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.explanation.looking import evaluated
from vitrail.model.vit import ViT


@dataclass(frozen=True)
class Question:
    """Of each image one output: class, label or number `targets[i]`; or, without a head, the embedding `outputs[i]`."""

    task: str  # classify, multilabel, regress, embed
    outputs: Tensor  # (B, K), the model's answer to the whole image
    targets: Tensor | None  # (B,), None for embed
    signs: Tensor | None = None  # (B,), regress: whether the image moves the number up or down from a blank one

    def score(self, outputs: Tensor) -> Tensor:
        """(B, K) -> (B,), what methods that need a slope explain.

        Of one class among many its log odds, log(p / (1 - p)): the evidence for it and not for the others. The bare
        logit would count what lifts all logits alike, which no softmax sees.
        """
        outputs = outputs.float()
        if (
            self.targets is None
        ):  # how much of the embedding is there; its likeness, the cosine, has no slope at the top
            own = self.outputs.float()
            return (outputs * own).sum(1) / own.square().sum(1).clamp(min=1e-12)
        own = outputs.gather(1, self.targets[:, None])[:, 0]
        if self.task == "regress":
            return own if self.signs is None else own * self.signs
        if self.task == "multilabel" or outputs.shape[1] == 1:
            return own
        others = outputs.scatter(1, self.targets[:, None], -torch.inf)
        return own - others.logsumexp(1)

    def value(self, outputs: Tensor) -> Tensor:
        """(B, K) -> (B,), what people read: the probability, the number, or the likeness to the image's embedding."""
        if self.task in ("classify", "multilabel") and self.targets is not None:
            return torch.sigmoid(self.score(outputs))  # of log odds it is the softmax's own probability
        if self.targets is None:
            return torch.cosine_similarity(outputs.float(), self.outputs.float(), dim=1)
        return self.score(outputs)

    def of(self, image: int, copies: int) -> Question:
        """The same question about so many versions of one image."""
        here = slice(image, image + 1)
        return Question(
            self.task,
            self.outputs[here].expand(copies, -1),
            None if self.targets is None else self.targets[here].expand(copies),
            None if self.signs is None else self.signs[here].expand(copies),
        )


@torch.no_grad()
def ask(model: ViT, images: Tensor, task: str = "classify", target: int | Tensor | None = None) -> Question:
    """The question why the model answers as it does; `target`: an output to ask about instead of its own answer.

    images: normalised, (B, C, H, W). For numbers the sign is that of the way from a picture of the mean colour.
    """
    with evaluated(model):
        outputs = model(images).float()
        if outputs.dim() != 2:
            raise VitrailError(
                "this model answers for every patch: relevance needs one answer an image; ask for attention"
            )
        if not model.config.classes or task == "embed":
            return Question("embed", outputs, None)
        targets = _targets(outputs, target)
        signs = None
        if task == "regress":
            gap = (outputs - model(blank(images)).float()).gather(1, targets[:, None])[:, 0]
            signs = torch.where(gap < 0, -1.0, 1.0)
    return Question(task, outputs, targets, signs)


def blank(images: Tensor) -> Tensor:
    """(B, C, H, W), each picture's mean colour instead of it: what hidden patches are filled with."""
    return images.mean(dim=(2, 3), keepdim=True).expand_as(images)


def _targets(outputs: Tensor, target: int | Tensor | None) -> Tensor:
    if target is None:
        return outputs.argmax(1)
    targets = torch.as_tensor(target, device=outputs.device).long().expand(len(outputs))
    if int(targets.min()) < 0 or int(targets.max()) >= outputs.shape[1]:
        raise VitrailError(
            f"there is no output {target}: the model has {outputs.shape[1]}, 0 to {outputs.shape[1] - 1}"
        )
    return targets
