"""Every architectural choice of Swin and Swin v2, in one validated, immutable object that is JSON both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vitrail.errors import VitrailError
from vitrail.model.encoder_config import HEADS, QUERIES_AMONG_TOKENS, EncoderConfig, Level, pair_of_sides

HIDDEN = 512  # width of the MLP that gives version 2 its relative positions

CHOICES: dict[str, tuple[str, ...]] = {
    "network": ("swin",),
    "version": ("v1", "v2"),
    "padding": ("before_shift", "after_shift"),
    "activation": ("gelu", "gelu_tanh", "quick_gelu"),
    "head": tuple(head for head in HEADS if head not in QUERIES_AMONG_TOKENS),  # a window has no place for queries
}


@dataclass(frozen=True, kw_only=True)
class SwinConfig(EncoderConfig):
    """One Swin Transformer. The defaults are Swin-T at 224 px with 1000 classes.

    Sizes are `(height, width)`; one whole number stands for a square. Lists have one number a stage. `None` for
    `head_width` and `pretrained_windows` means the usual value, which is filled in.
    """

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = CHOICES

    network: str = "swin"  # tells its JSON from that of other networks

    # 1. image to tokens
    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (4, 4)
    channels: int = 3
    patch_bias: bool = True

    # 2. stages of blocks; between two stages 2 x 2 tokens become one of twice the width
    version: str = "v1"  # v2: cosine attention, positions from an MLP, norms after the branches
    width: int = 96  # of the first stage
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    mlp_ratio: float = 4.0
    activation: str = "gelu"
    norm_eps: float = 1e-5
    qkv_bias: bool = True  # v2 has it for queries and values, never for keys

    # 3. windows
    window_size: tuple[int, int] = (7, 7)  # tokens; at most the grid, on each axis for itself
    pretrained_windows: tuple[int, ...] | None = None  # v2: windows of an earlier training, 0: the same as now
    padding: str = "before_shift"  # Microsoft and transformers pad a grid, then shift it; timm the other way round

    # 4. from tokens to answers
    classes: int = 1000  # outputs of the head; 0: no head, the pooled vector itself
    head: str = "linear"
    head_width: int | None = None
    queries: int = 0  # candidate objects of head="box_decoder"
    head_depth: int = 0
    head_bias: bool = True

    # training only
    dropout: float = 0.0
    attention_dropout: float = 0.0
    head_dropout: float = 0.0
    drop_path: float = 0.0  # of the last block; earlier blocks linearly less

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size", "window_size"):
            self._set(name, pair_of_sides(name, getattr(self, name)))
        self._check_types()
        for name in ("depths", "heads"):
            self._set(name, _numbers(name, getattr(self, name), 1))
        if self.pretrained_windows is None:
            self._set("pretrained_windows", (0,) * len(self.depths))
        self._set("pretrained_windows", _numbers("pretrained_windows", self.pretrained_windows, 0))
        self._check_choices()
        self._complete_head()
        self._check_shared_numbers()
        self._check_sizes()
        self._check_stages()
        self._check_head()

    # ---- sizes that follow from the choices

    @property
    def depth(self) -> int:
        """The number of blocks of all stages."""
        return sum(self.depths)

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.depths)

    @property
    def stage_of_block(self) -> list[int]:
        """The stage of each block, by the block's number."""
        return [stage for stage, depth in enumerate(self.depths) for _ in range(depth)]

    def stage_width(self, stage: int) -> int:
        """D of a stage's tokens."""
        return self.width * 2**stage

    def mlp_width(self, stage: int) -> int:
        """The hidden width of a stage's MLPs."""
        return int(self.stage_width(stage) * self.mlp_ratio)

    def stage_grid(self, stage: int, grid: tuple[int, int] | None = None) -> tuple[int, int]:
        """Tokens (down, across) of a stage; an odd row or column was padded. grid: of the first stage, None: native."""
        height, width = grid or self.grid
        return -(-height // 2**stage), -(-width // 2**stage)

    def stage_window(self, stage: int, grid: tuple[int, int] | None = None) -> tuple[int, int]:
        """The window of a stage: `window_size`, or the grid where that is smaller."""
        rows, columns = self.stage_grid(stage, grid)
        return min(self.window_size[0], rows), min(self.window_size[1], columns)

    @property
    def levels(self) -> tuple[Level, ...]:
        """One a stage."""
        lasts = [sum(self.depths[: stage + 1]) - 1 for stage in range(self.stages)]
        down, across = self.patch_size
        return tuple(Level(last, self.stage_width(i), (down << i, across << i)) for i, last in enumerate(lasts))

    @property
    def prefix(self) -> int:
        """No [CLS], no registers: a window has no place for them."""
        return 0

    @property
    def pool(self) -> str:
        """The mean of the last stage's tokens."""
        return "mean"

    @property
    def drops_tokens(self) -> bool:
        """A window needs all of its tokens."""
        return False

    def in_words(self) -> str:
        """Such as "Swin v1, width 96, depths 2 2 6 2, heads 3 6 12 24, windows of 7 x 7"."""
        depths, heads = (" ".join(map(str, numbers)) for numbers in (self.depths, self.heads))
        window = f"{self.window_size[0]} x {self.window_size[1]}"
        return f"Swin {self.version}, width {self.width}, depths {depths}, heads {heads}, windows of {window}"

    def heads_of(self, block: int) -> int:
        """The attention heads of a block: those of its stage."""
        return self.heads[self.stage_of_block[block]]

    @property
    def tokens(self) -> int:
        """How many tokens the first block takes at the native size."""
        return self.patches

    @property
    def pooled_width(self) -> int:
        """The dims of the vector that the head reads."""
        return self.stage_width(self.stages - 1)

    # ---- validation

    def _following(self) -> dict[str, Any]:
        usual = not any(self.pretrained_windows or ())
        return super()._following() | ({"pretrained_windows": None} if usual else {})

    def _check_stages(self) -> None:
        for name in ("heads", "pretrained_windows"):
            count = len(getattr(self, name))
            if count != self.stages:
                raise VitrailError(f"{name} has {count} numbers for {self.stages} stages of depths {self.depths}")
        if self.stages > 8:
            raise VitrailError(f"depths has {self.stages} stages; there can be 8")
        if not 0 < self.mlp_ratio <= 64:
            raise VitrailError(f"mlp_ratio is {self.mlp_ratio}; it must be above 0 and at most 64")
        for stage, heads in enumerate(self.heads):
            if self.stage_width(stage) % heads:
                raise VitrailError(
                    f"width {self.stage_width(stage)} of stage {stage} is not divisible by its heads {heads}"
                )
        if self.patches > 2**22:
            raise VitrailError(f"image_size and patch_size give {self.patches:,} patches, more than {2**22:,}")
        if 1 in (self.pretrained_windows or ()):
            raise VitrailError("pretrained_windows has a window of 1, in which no token has a neighbour")


def _numbers(name: str, value: Any, least: int) -> tuple[int, ...]:
    if not isinstance(value, tuple | list) or not value or any(type(one) is not int or one < least for one in value):
        raise VitrailError(f"{name} is a list of whole numbers of at least {least}, one a stage, not {value!r}")
    return tuple(value)
