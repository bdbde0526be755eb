"""What the configs of all networks share: JSON both ways, a changed copy, the checks of types and choices, the head.

A network's config is a frozen dataclass with its own fields (`ViTConfig`, `SwinConfig`). Whoever needs only what every
network has (image size, classes, the head) takes an `EncoderConfig`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

from vitrail.errors import VitrailError
from vitrail.text import parsed_json

HEADS = ("linear", "mlp", "mask_linear", "mask_decoder", "mask_queries", "box_tokens", "box_decoder")
DENSE = ("mask_linear", "mask_decoder", "mask_queries", "box_tokens", "box_decoder")  # heads that read every patch
QUERIES_AMONG_TOKENS = ("mask_queries", "box_tokens")  # heads whose queries go through the encoder
HEADS_WITH_WIDTH = ("mlp", "mask_decoder", "mask_queries", "box_decoder")


class Level(NamedTuple):
    """A resolution at which an encoder has tokens. A plain ViT has one, an encoder that merges patches has several."""

    block: int  # the last block at this resolution
    width: int  # D of its tokens
    cell: tuple[int, int]  # the picture's pixels, (height, width), that a token stands for


class EncoderConfig(ABC):
    """The part of a config that does not depend on the network. Sizes are (height, width)."""

    choices: ClassVar[Mapping[str, tuple[str, ...]]]  # of the fields that are words

    # fields of every network
    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    channels: int
    patch_bias: bool
    width: int  # D of the first block's tokens
    norm_eps: float
    classes: int
    head: str
    head_width: int | None
    queries: int
    head_depth: int
    head_bias: bool
    dropout: float
    attention_dropout: float
    head_dropout: float
    drop_path: float

    @property
    def is_noisy(self) -> bool:
        """Whether the network draws at random in training."""
        return max(self.dropout, self.attention_dropout, self.head_dropout, self.drop_path) > 0

    # ---- sizes that follow from the choices

    @property
    def grid(self) -> tuple[int, int]:
        """Patches (down, across) at the native image size."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def patches(self) -> int:
        """N, the number of patch tokens at the native image size."""
        return self.grid[0] * self.grid[1]

    @property
    @abstractmethod
    def depth(self) -> int:
        """L, the number of blocks."""

    @property
    @abstractmethod
    def prefix(self) -> int:
        """How many tokens stand before the patches."""

    @property
    @abstractmethod
    def pool(self) -> str:
        """How tokens become one vector."""

    @property
    @abstractmethod
    def tokens(self) -> int:
        """How many tokens the first block takes at the native size: prefix + N."""

    @abstractmethod
    def heads_of(self, block: int) -> int:
        """The attention heads of a block."""

    @property
    @abstractmethod
    def drops_tokens(self) -> bool:
        """Whether it can train on some of the patches only."""

    @abstractmethod
    def in_words(self) -> str:
        """Its size and kind, for a line that people read."""

    @property
    @abstractmethod
    def levels(self) -> tuple[Level, ...]:
        """The resolutions of the encoder's tokens, the finest first; the last has the last block."""

    def level_of(self, block: int) -> Level:
        """The level that a block's tokens have."""
        return next(level for level in self.levels if block <= level.block)

    def level_grid(self, level: Level) -> tuple[int, int]:
        """Tokens (down, across) of a level at the native image size."""
        return -(-self.image_size[0] // level.cell[0]), -(-self.image_size[1] // level.cell[1])

    @property
    @abstractmethod
    def pooled_width(self) -> int:
        """The dims of the vector that the head reads."""

    @property
    def query_tokens(self) -> int:
        """The queries that go through the encoder among the patches; those of other heads come after it."""
        return self.queries if self.head in QUERIES_AMONG_TOKENS else 0

    @property
    def is_dense(self) -> bool:
        """Whether the head answers about places, not about the image as a whole."""
        return bool(self.classes) and self.head in DENSE

    # ---- JSON, and a changed copy

    @classmethod
    def fields(cls) -> dict[str, dataclasses.Field[Any]]:
        """The config's fields by name."""
        return {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed; values that followed from the old ones follow from the new ones."""
        for name in changes:
            self._check_known(name)
        values = {name: getattr(self, name) for name in self.fields()}
        values.update(self._following())
        if "head" in changes and changes["head"] != self.head:
            values["head_width"] = None
            values["head_depth"] = values["queries"] = 0
        if self.head == "mask_queries":  # one a class, of another head none
            values["queries"] = 0
        values.update(changes)
        return type(self)(**values)

    def _following(self) -> dict[str, Any]:
        """The fields that have the value that follows from others, as not set."""
        return {"head_width": None} if self.head_width == self._usual_head_width() else {}

    def to_dict(self) -> dict[str, Any]:
        """Every field, as JSON has it: lists, not tuples."""
        values = {name: getattr(self, name) for name in self.fields()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def unusual(self) -> dict[str, Any]:
        """The fields that differ from their defaults, as `to_dict` has them: a field that a later version adds is not
        among them, so what is kept under a key made of these is found by that version, too."""
        usual = self.fields()
        return {name: value for name, value in self.to_dict().items() if getattr(self, name) != usual[name].default}

    def to_json(self) -> str:
        """`to_dict` as indented text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The config of these fields; VitrailError for a field that does not exist."""
        if not isinstance(values, dict):
            raise VitrailError(f"a config is a JSON object of named fields, not {type(values).__name__}")
        for name in values:
            cls._check_known(name)
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The config of a JSON object of fields; VitrailError for anything else."""
        return cls.from_dict(json_object(text))

    # ---- validation

    @classmethod
    def _check_known(cls, name: Any) -> None:
        if name not in cls.fields():
            close = difflib.get_close_matches(str(name), cls.fields(), n=1)
            raise VitrailError(f"the config has no field {name!r}" + (f": did you mean {close[0]!r}?" if close else ""))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # the class is frozen for everyone else

    def _complete_head(self) -> None:
        """Fill in what the head usually has."""
        if self.head_width is None:
            self._set("head_width", self._usual_head_width())
        if self.head == "mask_queries" and not self.queries:
            self._set("queries", self.classes)
        if self.head in ("box_tokens", "box_decoder") and not self.queries:
            self._set("queries", 100)
        if self.head == "box_decoder" and not self.head_depth:
            self._set("head_depth", 2)

    def _usual_head_width(self) -> int | None:
        width = self.levels[-1].width
        if self.head == "mlp":
            return width
        if self.head == "box_decoder":  # it works on four times as many cells as there are patches
            return min(128, max(32, width))
        return max(32, min(width, 256)) if self.head in ("mask_decoder", "mask_queries") else None

    def _check_types(self) -> None:
        for name, field in self.fields().items():
            value = getattr(self, name)
            kinds = str(field.type).split(" | ")
            if (value is None and "None" in kinds) or kinds[0].startswith("tuple"):
                continue
            if kinds[0] == "float" and type(value) is int and abs(value) <= 2**53:  # beyond, a float is another number
                self._set(name, float(value))
            elif type(value).__name__ != kinds[0]:
                words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word"}
                raise VitrailError(f"{name} is {words[kinds[0]]}, not {value!r}")

    def _check_choices(self) -> None:
        for name, choices in self.choices.items():
            value = getattr(self, name)
            if value not in choices:
                raise VitrailError(f"{name} is {value!r}; choose one of {', '.join(choices)}")

    def _check_at_least(self, least: int, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and value < least:
                raise VitrailError(f"{name} is {value}; it must be at least {least}")

    def _check_shared_numbers(self) -> None:
        self._check_at_least(1, "channels", "width", "head_width")
        self._check_at_least(0, "classes", "queries", "head_depth")
        for name in ("dropout", "attention_dropout", "head_dropout", "drop_path"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise VitrailError(f"{name} is {getattr(self, name)}; it must be at least 0 and below 1")
        if not (self.norm_eps > 0 and math.isfinite(self.norm_eps)):
            raise VitrailError(f"norm_eps is {self.norm_eps}; it must be a small number above 0")

    def _check_sizes(self) -> None:
        for axis, size, patch in zip(("height", "width"), self.image_size, self.patch_size, strict=True):
            if size % patch:
                nearest = [patch * times for times in (size // patch, size // patch + 1) if times]
                raise VitrailError(
                    f"image_size has {axis} {size}, which patch_size {patch} does not divide: "
                    f"choose {' or '.join(map(str, nearest))}"
                )

    def _check_head(self) -> None:
        if self.head_width is not None and self.head not in HEADS_WITH_WIDTH:
            raise VitrailError(f"head_width {self.head_width} goes with head 'mlp', not {self.head!r}")
        if self.head == "mask_queries" and self.queries != self.classes:
            raise VitrailError(
                f"head 'mask_queries' has one query a class: set queries to {self.classes}, not {self.queries}"
            )
        if self.head_depth and self.head != "box_decoder":
            raise VitrailError(f"head_depth {self.head_depth} goes with head 'box_decoder', not {self.head!r}")


def json_object(text: str) -> dict[str, Any]:
    """The object that a JSON text holds; VitrailError for anything else."""
    try:
        values: dict[str, Any] = parsed_json(text)
    except (ValueError, RecursionError) as error:  # broken JSON, broken UTF-8, a number of thousands of digits
        raise VitrailError(f"the config is not JSON: {error}") from None
    return values


def pair_of_sides(name: str, value: Any) -> tuple[int, int]:
    """`16` and `[16, 16]` are both `(16, 16)`."""
    pair = (value, value) if isinstance(value, int) else value
    if (
        not isinstance(pair, tuple | list)
        or len(pair) != 2
        or any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in pair)
    ):
        raise VitrailError(f"{name} is a whole number above 0 or a pair of them (height, width), not {value!r}")
    return pair[0], pair[1]
