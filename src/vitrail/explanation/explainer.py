"""Why a model answered as it did, as arrays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.explanation.explain_options import ExplainOptions
from vitrail.explanation.forward_pass import EXPLAINED_IN, ForwardPass, explanation_engine, run_forward_pass
from vitrail.explanation.methods.attention_maps import attention_maps, attention_of_all, pool_attention
from vitrail.explanation.methods.faithfulness import best_of
from vitrail.explanation.methods.faithfulness import compare as compare_maps
from vitrail.explanation.methods.foreground import foreground, mass_masks
from vitrail.explanation.methods.occlusion import occlusion
from vitrail.explanation.methods.relevance import relevance_of_stages
from vitrail.explanation.methods.rollout import rollout
from vitrail.explanation.methods.weighted_attention import weighted_attention
from vitrail.explanation.output.result import METHODS, POOL, Explanation, QueryGroup
from vitrail.explanation.selection import heads_of_blocks, select_blocks
from vitrail.explanation.target_score import TargetScore, target_score
from vitrail.explanation.token_names import prefix_names, token_index, token_name
from vitrail.explanation.walk.walk import walk as walk_through
from vitrail.inference.engine import Engine
from vitrail.inference.read_source import Source
from vitrail.model.attention import AttentionGroup
from vitrail.model.encoder import BlockStep
from vitrail.model.precision import autocast
from vitrail.model.vit import ViT
from vitrail.options import takes_options
from vitrail.weights.checkpoint import Checkpoint

DENSE_NOTE = "This model answers about places, so what is explained here is the picture's embedding; `predict` answers."
EVERY = 2_000_000  # entries of maps of all pairs: 12 blocks of 400 tokens, one of 1,400


class Explainer:
    """Explanations by one model, an image at a time.

    model: a file, a folder, a hub id, a preset (untrained, to look at the network), or what `vitrail.load` gave.
    query: whose attention: "cls", "register 0", (row, column) of a patch; None: [CLS], where there is one.
    blocks, heads: which maps; None: all. target: a class by name or number; None: the model's answer.
    compare: occlusion too, and which explanation to trust. walk: the steps of the forward pass, through `walk_block`.
    image_size: another than the model's, (height, width) or one number; learned positions are resampled.
    every_query: the attention of every token in every block, averaged over heads, as far as `EVERY` entries go.
    """

    @takes_options(ExplainOptions)
    def __init__(self, model: str | Path | Checkpoint | Engine, **options: Unpack[ExplainOptions]) -> None:
        opened = Engine.open(model, untrained=True, device=options["device"], precision=options["precision"])
        self.checkpoint, self.model = opened.checkpoint, opened.checkpoint.model
        self.dense = self.model.config.is_dense
        self.query, self.top = options["query"], options["top"]
        self.blocks = select_blocks(options["blocks"], self.model.depth)
        self.chosen_heads = options["heads"]
        self.heads = heads_of_blocks(self.chosen_heads, self.model.config, self.blocks)
        self.compare, self.walk, self.every_query = options["compare"], options["walk"], options["every_query"]
        (self.walk_block,) = select_blocks([options["walk_block"]], self.model.depth)
        image_size = options["image_size"]
        if image_size is not None:
            image_size = (image_size, image_size) if isinstance(image_size, int) else image_size
            check_divisible(image_size, self.model.config.patch_size)
        self.precision = EXPLAINED_IN if options["precision"] == "auto" else options["precision"]
        self.engine = explanation_engine(opened, precision=self.precision, image_size=image_size)
        self.predicted_in = opened.backend.precision
        # What a dense head answers about places is for `predict`; here its encoder's embedding is explained.
        self.labels = None if self.dense or self.model.config.classes == 0 else self.engine.task.labels
        self.target = self._target(options["target"])

    def __call__(self, source: Source, name: str = "the image") -> Explanation:
        """One image's; raises UnreadableImage."""
        with autocast(self.engine.backend.device, self.precision):  # methods run the network themselves, too
            return self._explain(source, name)

    def _explain(self, source: Source, name: str) -> Explanation:
        picture = self.engine.read(source, name).pixels
        images = self.engine.transform([picture]).to(next(self.model.parameters()).dtype)
        forward_pass = run_forward_pass(self.model, images, self.engine.forward)
        score = target_score(self.model, images, self.checkpoint.task, self.target, forward_pass.outputs)
        explanation = self._answered(str(source) if isinstance(source, str | Path) else name, picture, score)
        explanation.grids = [step.grid for step in forward_pass.steps]
        explanation.windows = [meeting_grid(step) for step in forward_pass.steps]
        self._add_attention(explanation, images, forward_pass)
        self._add_foreground(explanation, forward_pass)
        self._add_maps(explanation, images, score, forward_pass)
        if self.every_query:
            self._add_every_query(explanation, images, forward_pass)
        if self.walk:
            explanation.walk = walk_through(
                self.model,
                images,
                picture,
                self.labels,
                task=self.checkpoint.task,
                block=self.walk_block,
                patch=self._most_relevant_patch(explanation),
                steps=forward_pass.steps,
            )
        return explanation

    def _answered(self, name: str, picture: NDArray[np.uint8], score: TargetScore) -> Explanation:
        patch = self.model.config.patch_size
        answer, target, words = None, None, None
        if self.labels is not None and score.targets is not None:
            answer = self.engine.answer(self.engine.decode(score.outputs), self.top)[0]
            words = self.engine.task.words(answer)
            target = self.labels[int(score.targets[0])]
            value = float(score.outputs[0, score.targets[0]])
        if score.link != "identity" or target is None:
            value = float(score.value(score.outputs)[0])
        grid = picture.shape[0] // patch[0], picture.shape[1] // patch[1]
        notes = [note for note in self.checkpoint.notes if note.startswith("fresh weights")]
        if self.dense:
            notes.append(DENSE_NOTE)
        elif answer is not None and self.predicted_in != self.engine.backend.precision:
            notes.append(
                f"This is computed in {self.engine.backend.precision}; `predict` computes in {self.predicted_in} here, "
                "and its answer may differ in the third digit."
            )
        names = prefix_names(self.model.config)
        return Explanation(name, picture, answer, target, value, grid, prefix_names=names, notes=notes, words=words)

    def _add_attention(self, explanation: Explanation, images: Tensor, forward_pass: ForwardPass) -> None:
        config, steps = self.model.config, forward_pass.steps
        if self.query is None and config.pool == "attention":
            assert isinstance(self.model, ViT)
            pooled = pool_attention(self.model, images, steps=steps)
            maps = [replace(pooled, patches=pooled.patches[:, self.heads], prefix=pooled.prefix[:, self.heads])]
            explanation.query = POOL
            explanation.notes.append(
                f"{POOL.capitalize()} looks at what the last block gives; it is shown as block {config.depth}."
            )
        elif self.query is None and "[CLS]" not in explanation.prefix_names:
            explanation.notes.append(
                "This model has no [CLS] token whose attention could be shown; relevance tells where its answer comes "
                "from, and the attention of any patch can be asked for."
            )
            return
        else:
            query = "cls" if self.query is None else self.query
            heads = self.chosen_heads
            maps = list(attention_maps(self.model, images, query, blocks=self.blocks, heads=heads, steps=steps))
            explanation.query = token_name(token_index(query, config, explanation.grid), config, explanation.grid)
        explanation.blocks, explanation.heads = [block_map.block for block_map in maps], self.heads
        explanation.attention = [block_map.patches[0].cpu().numpy() for block_map in maps]
        explanation.prefix = [block_map.prefix[0].cpu().numpy() for block_map in maps]
        explanation.masks = mass_masks(torch.from_numpy(explanation.attention[-1])).numpy()

    def _add_foreground(self, explanation: Explanation, forward_pass: ForwardPass) -> None:
        patches = forward_pass.normed[:, self.model.prefix :].detach().cpu()  # (1, N, D)
        objects = foreground(patches, explanation.grids[-1])
        explanation.foreground = objects.mask[0].numpy()
        explanation.components = objects.components[0].numpy()

    def _add_maps(
        self, explanation: Explanation, images: Tensor, score: TargetScore, forward_pass: ForwardPass
    ) -> None:
        stages = relevance_of_stages(self.model, images, score)
        explanation.stages = [stage[0].cpu().numpy() for stage in stages]
        maps = {
            "relevance": stages[0],
            "weighted_attention": weighted_attention(self.model, images, score, forward_pass).patches,
            "rollout": rollout(self.model, images, steps=forward_pass.steps).patches,
        }
        if explanation.query == "[CLS]" and explanation.attention is not None:
            maps["attention"] = torch.from_numpy(explanation.attention[-1].mean(0)[None])
        if self.compare:
            maps["occlusion"] = occlusion(self.model, images, score)
            of_image = {name: values[0] for name, values in maps.items()}
            explanation.curves = compare_maps(self.model, images[0], of_image, score)
            explanation.best = best_of(explanation.curves)
        explanation.maps = {name: maps[name][0].cpu().numpy() for name in METHODS if name in maps}

    def _add_every_query(self, explanation: Explanation, images: Tensor, forward_pass: ForwardPass) -> None:
        """The attention of every token: for all chosen blocks, for the last alone, or for none, as far as it fits into
        EVERY numbers (it grows with the square of the tokens)."""
        blocks = self.blocks
        pairs = [pairs_of(forward_pass.steps[block]) for block in blocks]
        if sum(pairs) > EVERY:
            blocks = blocks[-1:] if pairs[-1] <= EVERY else []
        every = attention_of_all(self.model, images, blocks=blocks, steps=forward_pass.steps)
        found = [[query_group(group) for group in groups] for _, groups in every]
        if found:
            explanation.every_blocks, explanation.every_query = blocks, found

    def _most_relevant_patch(self, explanation: Explanation) -> tuple[int, int]:
        """The patch that speaks most for the answer, which the walk follows."""
        row, column = divmod(int(explanation.maps["relevance"].argmax()), explanation.grid[1])
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


def meeting_grid(step: BlockStep) -> NDArray[np.int64] | None:
    """(h, w): tokens with the same number attend to one another; None: all to all."""
    numbers = step.meeting()
    return None if numbers is None else numbers.unflatten(0, step.grid).cpu().numpy()


def pairs_of(step: BlockStep) -> int:
    """How many pairs of tokens attend to one another in a block."""
    numbers, tokens = step.meeting(), step.input.shape[1]
    if numbers is None:
        return tokens**2
    prefix, counts = tokens - len(numbers), numbers.bincount()
    return int((counts * (counts + prefix)).sum()) + prefix * tokens


def query_group(group: AttentionGroup) -> QueryGroup:
    """Of one image, in bytes. weights: (1, R, K)."""
    rows = group.weights[0]
    levels = (255 * rows / rows.amax(1, keepdim=True)).round().byte()
    return QueryGroup(group.queries.cpu().numpy(), group.keys.cpu().numpy(), levels.cpu().numpy())


def check_divisible(size: tuple[int, int], patch: tuple[int, int]) -> None:
    """Refuse an image size (height, width) that is not whole patches, and name the nearest ones."""
    for axis, length, side in zip(("height", "width"), size, patch, strict=True):
        if length % side:
            nearest = [side * times for times in (length // side, length // side + 1) if times]
            raise VitrailError(
                f"image size {axis} {length} is not divisible by the patch size {side}: "
                f"choose {' or '.join(map(str, nearest))}"
            )
