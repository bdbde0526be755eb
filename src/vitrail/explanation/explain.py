"""`vitrail.explain`: why a model answered as it did, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.inputs import normalise
from vitrail.errors import VitrailError
from vitrail.explanation.attention import attention_maps, attention_of_all, pool_attention
from vitrail.explanation.faithfulness import best_of
from vitrail.explanation.faithfulness import compare as compare_maps
from vitrail.explanation.looking import chosen_blocks, chosen_heads, evaluated
from vitrail.explanation.masks import foreground, mass_masks
from vitrail.explanation.occlusion import occlusion
from vitrail.explanation.question import Question, ask
from vitrail.explanation.relevance import relevance
from vitrail.explanation.result import METHODS, POOL, Explanation
from vitrail.explanation.rollout import rollout
from vitrail.explanation.tokens import Query, prefix_names, token_name
from vitrail.explanation.walk import walk as walk_through
from vitrail.explanation.weighted import weighted_attention
from vitrail.infer.opening import task_of
from vitrail.infer.predictor import chosen_device
from vitrail.infer.reading import SOURCES, Source, read_source
from vitrail.model.presets import is_preset
from vitrail.model.vit import without_head
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.load import load

DENSE_NOTE = "This model answers about places, so what is explained here is the picture's embedding; `predict` answers."
EVERY = 2_000_000  # entries of maps of all pairs: 12 blocks of 400 tokens, one of 1,400


class How(TypedDict, total=False):
    """What can be asked for; `Explainer` tells what each is, and its default."""

    query: Query | None
    blocks: Sequence[int] | None
    heads: Sequence[int] | None
    target: str | int | None
    compare: bool
    walk: bool
    walk_block: int
    image_size: int | tuple[int, int] | None
    every_query: bool
    top: int
    device: str


@overload
def explain(  # type: ignore[overload-overlap]  # a text is an iterable of texts too, but one image
    model: str | Path | Checkpoint, images: Source, **how: Unpack[How]
) -> Explanation: ...
@overload
def explain(model: str | Path | Checkpoint, images: Iterable[Source], **how: Unpack[How]) -> list[Explanation]: ...
def explain(
    model: str | Path | Checkpoint, images: Source | Iterable[Source], **how: Unpack[How]
) -> Explanation | list[Explanation]:
    """Why the model answers as it does: for an image, or for several a list in their order.

    images: a path, the bytes of a file, a Pillow image or an array; or several of these. how: see `Explainer`.
    """
    explainer = Explainer(model, **how)
    if isinstance(images, SOURCES):
        return explainer(images)
    return [explainer(image, f"image number {number}") for number, image in enumerate(images, start=1)]


class Explainer:
    """Explanations by one model, an image at a time.

    model: a file, a folder, a hub id, a preset (untrained, to look at the network), or what `vitrail.load` gave.
    query: whose attention: "cls", "register 0", (row, column) of a patch; None: [CLS], where there is one.
    blocks, heads: which maps; None: all. target: a class by name or number; None: the model's answer.
    compare: occlusion too, and which explanation to trust. walk: the steps of the forward pass, through `walk_block`.
    image_size: another than the model's, (height, width) or one number; learned positions are resampled.
    every_query: the attention of every token in every block, averaged over heads, as far as `EVERY` entries go.
    """

    def __init__(
        self,
        model: str | Path | Checkpoint,
        *,
        query: Query | None = None,
        blocks: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        target: str | int | None = None,
        compare: bool = False,
        walk: bool = False,
        walk_block: int = -1,
        image_size: int | tuple[int, int] | None = None,
        every_query: bool = False,
        top: int = 5,
        device: str = "auto",
    ) -> None:
        self.checkpoint = model if isinstance(model, Checkpoint) else opened(model)
        self.device = chosen_device(device)
        self.model = self.checkpoint.model.to(self.device)
        self.dense = self.model.config.is_dense
        if self.dense:  # what it answers about places is for `predict`; here its encoder is looked at
            self.model = without_head(self.model)
        self.query, self.top = query, top
        self.blocks = chosen_blocks(blocks, self.model.config.depth)
        self.heads = chosen_heads(heads, self.model.config.heads)
        self.compare, self.walk, self.every_query = compare, walk, every_query
        (self.walk_block,) = chosen_blocks([walk_block], self.model.config.depth)
        self.preprocessing = self.checkpoint.preprocessing
        if image_size is not None:
            size = (image_size, image_size) if isinstance(image_size, int) else image_size
            self.preprocessing = self.preprocessing.replace(size=fitting(size, self.model.config.patch_size))
        self.labels = None if self.model.config.classes == 0 else task_of(self.checkpoint).labels
        self.target = self._target(target)

    def __call__(self, source: Source, name: str = "the image") -> Explanation:
        """One image's; raises UnreadableImage."""
        picture = read_source(source, self.preprocessing, name)
        weight = next(self.model.parameters())
        images = normalise(torch.from_numpy(picture[None]).to(self.device), self.preprocessing).to(weight.dtype)
        question = ask(self.model, images, self.checkpoint.task, self.target)
        found = self._answered(str(source) if isinstance(source, str | Path) else name, picture, question)
        self._add_attention(found, images)
        self._add_objects(found, images)
        self._add_maps(found, images, question)
        if self.every_query:
            self._add_every_query(found, images)
        if self.walk:
            found.walk = walk_through(
                self.model,
                images,
                picture,
                self.labels,
                task=self.checkpoint.task,
                block=self.walk_block,
                patch=self._striking(found),
            )
        return found

    def _answered(self, name: str, picture: NDArray[np.uint8], question: Question) -> Explanation:
        patch = self.model.config.patch_size
        answer, target, words = None, None, None
        if self.labels is not None and question.targets is not None:
            task = task_of(self.checkpoint)
            answer = task.answer(question.outputs.cpu(), self.top)[0]
            words = task.words(answer)
            target = self.labels[int(question.targets[0])]
            value = float(question.outputs[0, question.targets[0]])
        if self.checkpoint.task != "regress" or target is None:
            value = float(question.value(question.outputs)[0])
        grid = picture.shape[0] // patch[0], picture.shape[1] // patch[1]
        notes = [note for note in self.checkpoint.notes if note.startswith("fresh weights")]
        if self.dense:
            notes.append(DENSE_NOTE)
        names = prefix_names(self.model.config)
        return Explanation(name, picture, answer, target, value, grid, prefix_names=names, notes=notes, words=words)

    def _add_attention(self, found: Explanation, images: Tensor) -> None:
        config = self.model.config
        if self.query is None and config.pool == "attention":
            pooled = pool_attention(self.model, images)
            maps = [replace(pooled, patches=pooled.patches[:, self.heads], prefix=pooled.prefix[:, self.heads])]
            found.query = POOL
            found.notes.append(
                f"{POOL.capitalize()} looks at what the last block gives; it is shown as block {config.depth}."
            )
        elif self.query is None and not config.cls_token:
            found.notes.append(
                "This model has no [CLS] token whose attention could be shown; relevance tells where its answer comes "
                "from, and the attention of any patch can be asked for."
            )
            return
        else:
            query = "cls" if self.query is None else self.query
            maps = list(attention_maps(self.model, images, query, blocks=self.blocks, heads=self.heads))
            found.query = token_name(maps[0].token, config, found.grid)
        found.blocks, found.heads = [one.block for one in maps], self.heads
        found.attention = torch.cat([one.patches for one in maps]).cpu().numpy()
        found.prefix = torch.cat([one.prefix for one in maps]).cpu().numpy()
        found.masks = mass_masks(torch.from_numpy(found.attention[-1])).numpy()

    def _add_objects(self, found: Explanation, images: Tensor) -> None:
        with torch.no_grad(), evaluated(self.model):
            tokens = self.model.features(images).patches
        objects = foreground(tokens.cpu(), found.grid)
        found.foreground, found.components = objects.mask[0].numpy(), objects.components[0].numpy()

    def _add_maps(self, found: Explanation, images: Tensor, question: Question) -> None:
        maps = {
            "relevance": relevance(self.model, images, question),
            "weighted_attention": weighted_attention(self.model, images, question).patches,
            "rollout": rollout(self.model, images).patches,
        }
        if found.query == "[CLS]" and found.attention is not None:
            maps["attention"] = torch.from_numpy(found.attention[-1].mean(0)[None])
        if self.compare:
            maps["occlusion"] = occlusion(self.model, images, question)
            each = {name: one[0] for name, one in maps.items()}
            found.curves = compare_maps(self.model, images[0], each, question)
            found.best = best_of(found.curves)
        found.maps = {name: maps[name][0].cpu().numpy() for name in METHODS if name in maps}

    def _add_every_query(self, found: Explanation, images: Tensor) -> None:
        """Of all asked blocks, of the last alone, or of none: it grows with the square of the tokens."""
        pairs = (self.model.config.prefix + found.grid[0] * found.grid[1]) ** 2
        blocks = self.blocks if pairs * len(self.blocks) <= EVERY else self.blocks[-1:] if pairs <= EVERY else []
        maps = [rows[0] for _, rows in attention_of_all(self.model, images, blocks=blocks)]  # (M, M) each
        if maps:
            levels = [(255 * one / one.amax(1, keepdim=True)).round().byte() for one in maps]
            found.every_blocks, found.every_query = blocks, torch.stack(levels).cpu().numpy()

    def _striking(self, found: Explanation) -> tuple[int, int]:
        """The patch that speaks most for the answer: the one that the walk follows."""
        row, column = divmod(int(found.maps["relevance"].argmax()), found.grid[1])
        return row, column

    def _target(self, target: str | int | None) -> int | None:
        if target is None or isinstance(target, int):
            return target
        if self.labels is None:
            raise VitrailError("this model gives embeddings and has no classes: leave out the target")
        if target not in self.labels:
            known = ", ".join(self.labels[:10]) + (
                f" and {len(self.labels) - 10} more" if len(self.labels) > 10 else ""
            )
            raise VitrailError(f"the model knows no {target!r}: choose one of {known}")
        return self.labels.index(target)


def opened(source: str | Path) -> Checkpoint:
    """Unlike `predict`, an explanation may be of an untrained preset: of seed 0, so that it is the same every time."""
    if is_preset(str(source)) and not Path(source).exists():
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return load(source)
    return load(source)


def fitting(size: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    for axis, length, side in zip(("height", "width"), size, patch, strict=True):
        if length % side:
            nearest = [side * times for times in (length // side, length // side + 1) if times]
            raise VitrailError(
                f"image size {axis} {length} is not divisible by the patch size {side}: "
                f"choose {' or '.join(map(str, nearest))}"
            )
    return size
