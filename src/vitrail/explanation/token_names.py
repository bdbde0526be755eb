"""Tokens by name: [CLS], a register, the patch in row 3 and column 4."""

from __future__ import annotations

import re
from typing import TypeAlias

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.positions import Grid

# "cls", "register 0", "3,4" or (3, 4) for the patch in row 3 and column 4; a number is an index in the sequence
Query: TypeAlias = str | int | tuple[int, int]


def prefix_names(config: EncoderConfig) -> list[str]:
    """The tokens before the patches, in order."""
    if not isinstance(config, ViTConfig):
        return []
    names = ["[CLS]"] if config.cls_token else []
    names += ["[DIST]"] if config.distillation else []
    names += [f"register {number}" for number in range(config.registers)]
    return names + [f"query {number}" for number in range(config.prefix - len(names))]


def token_index(query: Query, config: EncoderConfig, grid: Grid, patches: Grid | None = None) -> int:
    """The index of a token in the sequence, where 0 is the first prefix token.

    patches: the grid of the picture's patches, where a block has merged some: a patch's token is the one that holds it.
    """
    if isinstance(query, bool):
        raise VitrailError(_unknown_token(query, config, grid))
    if isinstance(query, int):
        return _checked_index(query, config, grid)
    if isinstance(query, tuple):
        return _patch_index(query, config, grid, patches)
    word = " ".join(query.strip().lower().replace("[", "").replace("]", "").split())
    names = [name.lower().strip("[]") for name in prefix_names(config)]
    word = {"distillation": "dist"}.get(word, word)
    if word in names:
        return names.index(word)
    if word == "cls":
        raise VitrailError(
            "this model has no [CLS] token: ask for a patch, such as 3,4 (row, column from 0), or for its relevance"
        )
    pair = re.fullmatch(r"(\d+) ?[,x ] ?(\d+)", word)
    if pair:
        return _patch_index((int(pair[1]), int(pair[2])), config, grid, patches)
    raise VitrailError(_unknown_token(query, config, grid))


def token_name(token: int, config: EncoderConfig, grid: Grid) -> str:
    """Its name on a page: '[CLS]', 'register 0', 'patch 3,4'."""
    if token < config.prefix:
        return prefix_names(config)[token]
    row, column = divmod(token - config.prefix, grid[1])
    return f"patch {row},{column}"


def _patch_index(patch: tuple[int, int], config: EncoderConfig, grid: Grid, patches: Grid | None) -> int:
    (row, column), (rows, columns) = patch, patches or grid
    if not (0 <= row < rows and 0 <= column < columns):
        raise VitrailError(
            f"there is no patch {row},{column}: the grid has {rows} rows and {columns} columns, counted from 0"
        )
    row, column = row // -(-rows // grid[0]), column // -(-columns // grid[1])  # of the token that holds it
    return config.prefix + row * grid[1] + column


def _checked_index(token: int, config: EncoderConfig, grid: Grid) -> int:
    tokens = config.prefix + grid[0] * grid[1]
    if not -tokens <= token < tokens:
        raise VitrailError(f"there is no token {token}: this image has {tokens}, 0 to {tokens - 1}")
    return token % tokens


def _unknown_token(query: object, config: EncoderConfig, grid: Grid) -> str:
    names = ", ".join([*prefix_names(config), f"a patch from 0,0 to {grid[0] - 1},{grid[1] - 1}"])
    return f"there is no token {query!r}: choose one of {names}"
