"""Every architectural choice of the network, in one validated, immutable object that is JSON both ways."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vitrail.errors import VitrailError
from vitrail.model.encoder_config import HEADS, EncoderConfig, Level, pair_of_sides

CHOICES: dict[str, tuple[str, ...]] = {
    "stem": ("linear", "conv", "features"),
    "stem_maps": ("fine", "wide"),
    "positions": ("learned", "sincos1d", "sincos2d", "rotary", "none"),
    "cls_position": ("learned", "fixed", "none"),
    "cls_init": ("normal", "zeros"),
    "resample": ("bicubic_antialias", "bicubic", "bicubic_offset", "bilinear", "bilinear_antialias", "linear"),
    "norm": ("pre", "post"),
    "final_norm": ("tokens", "pooled", "none"),
    "activation": ("gelu", "gelu_tanh", "quick_gelu", "swiglu"),
    "pool": ("cls", "mean", "cls_mean", "attention", "none"),
    "head": HEADS,
}
TIMM_CNN = "timm:"  # how the name of a CNN begins


@dataclass(frozen=True, kw_only=True)
class ViTConfig(EncoderConfig):
    """One Vision Transformer. The defaults are S/16 at 224 px with 1000 classes.

    Sizes are `(height, width)`; one whole number stands for a square. `None` for `mlp_width`, `head_width`,
    `cls_position` and `final_norm` means the usual value, which is filled in, so a config always reads back complete.
    """

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = CHOICES

    # 1. image to tokens
    image_size: tuple[int, int] = (224, 224)
    patch_size: tuple[int, int] = (16, 16)
    channels: int = 3
    stem: str = "linear"  # linear: flatten and project; conv: small convolutions; features: the user's CNN
    stem_blocks: int = 0  # residual convolutions after each stride of stem="conv": slower, learns more from few images
    stem_maps: str = "fine"  # of stem="conv": fine, a map after each halving; wide, no large ones, but more channels
    feature_channels: int | None = None  # F, the channels of the user's CNN; only with stem="features"
    cnn: str | None = None  # of stem="features": timm:resnet18, or None for a module that is handed in
    patch_bias: bool = True  # CLIP has none

    # 2. prefix tokens and positions
    cls_token: bool = True
    cls_init: str = "normal"  # normal(0.02) or zeros
    distillation: bool = False  # DeiT's second [CLS], with a head of its own
    registers: int = 0
    positions: str = "learned"
    cls_position: str | None = None  # learned, fixed (the formula's own value for slot 0), none
    resample: str = "bicubic_antialias"  # how learned positions go to another grid; families differ, see positions.py
    rotary_too: bool = False  # added positions and rotary ones too: EVA-02, Perception Encoder
    rotary_base: float = 100.0
    rotary_grid: tuple[int, int] | None = None  # None: centres of patches in [-1, 1], DINOv3. (h, w): patches are
    # counted, and the count is scaled to a grid of this size: EVA-02, Perception Encoder
    rotary_start: float = 0.0  # where that count begins; Perception Encoder: 1
    rotary_bfloat16: bool = False  # the periods are rounded to bfloat16, as in Meta's own DINOv3 files
    relative_bias: bool = False  # BEiT: a learned bias of attention for each step from patch to patch, in every block
    stem_norm: bool = False  # CLIP's extra norm before the blocks
    block_positions: bool = False  # YOLOS: learned positions are added again after every block but the last

    # 3. encoder
    width: int = 384
    depth: int = 12
    heads: int = 6
    mlp_width: int | None = None  # 4 x width
    mlp_norm: bool = False  # EVA-02: a norm inside the MLP, before its second map
    activation: str = "gelu"
    norm: str = "pre"
    norm_eps: float = 1e-6
    qkv_bias: bool = True
    qk_norm: bool = False
    attention_norm: bool = False  # EVA-02 as a CLIP tower: a norm of the heads' sums, before they are mixed
    layer_scale: float | None = None  # the initial value, or no layer scale
    attention_window: int = 0  # patches a side of the windows that attention stays in; 0: full attention
    global_blocks: int | None = None  # blocks whose attention is full all the same, evenly spaced up to the last

    # 4. from tokens to answers
    pool: str = "cls"
    pool_heads: int | None = None  # of attention pooling, if not the encoder's; Perception Encoder: 8
    pool_mlp_width: int | None = None  # of its MLP, if not the encoder's; the largest Perception Encoder: 4 x width
    final_norm: str | None = None  # tokens: before pooling; pooled: after it; none (post-norm blocks end in a norm)
    classes: int = 1000  # outputs of the head; 0: no head, the pooled vector itself
    head: str = "linear"  # one answer an image: linear, mlp; every pixel: mask_...; objects: box_...
    head_width: int | None = None  # hidden width of head="mlp", channels of "mask_decoder" and "mask_queries"
    queries: int = 0  # learned tokens that look for something: one a class for "mask_queries", one a candidate object
    head_depth: int = 0  # decoder blocks of head="box_decoder"
    head_bias: bool = True

    # training only
    dropout: float = 0.0  # after the positions, after attention's output, after each step of the MLP
    attention_dropout: float = 0.0
    head_dropout: float = 0.0
    drop_path: float = 0.0  # of the last block; earlier blocks linearly less

    def __post_init__(self) -> None:
        self._set("image_size", pair_of_sides("image_size", self.image_size))
        self._set("patch_size", pair_of_sides("patch_size", self.patch_size))
        if self.rotary_grid is not None:
            self._set("rotary_grid", pair_of_sides("rotary_grid", self.rotary_grid))
        self._check_types()
        if self.mlp_width is None:
            self._set("mlp_width", 4 * self.width)
        self._complete_head()
        if self.global_blocks is None:
            self._set("global_blocks", self._usual_global_blocks())
        if self.cls_position is None:
            self._set("cls_position", self._usual_cls_position())
        if self.final_norm is None:
            self._set("final_norm", "tokens" if self.norm == "pre" else "none")
        self._check_choices()
        self._check_numbers()
        self._check_together()

    # ---- sizes that follow from the choices

    @property
    def levels(self) -> tuple[Level, ...]:
        """One: all blocks have the same patches."""
        return (Level(self.depth - 1, self.width, self.patch_size),)

    @property
    def prefix(self) -> int:
        """How many tokens stand before the patches: [CLS], distillation, registers, queries."""
        return int(self.cls_token) + int(self.distillation) + self.registers + self.query_tokens

    @property
    def prefix_positions(self) -> int:
        """How many of the prefix tokens have a learned position (registers never do)."""
        return int(self.cls_token) + int(self.distillation) if self.cls_position == "learned" else 0

    @property
    def is_rotary(self) -> bool:
        """Whether attention turns queries and keys by the place of their patch."""
        return self.rotary_too or self.positions == "rotary"

    @property
    def tokens(self) -> int:
        """How many tokens the blocks take at the native size: prefix + N."""
        return self.prefix + self.patches

    @property
    def drops_tokens(self) -> bool:
        """Full attention takes any tokens, so patches can be left out; windows need all of theirs."""
        return not self.attention_window

    def in_words(self) -> str:
        """Such as "width 384, depth 12, 6 heads, linear stem"."""
        return f"width {self.width}, depth {self.depth}, {self.heads} heads, {self.stem} stem"

    def heads_of(self, block: int) -> int:
        """The attention heads of a block: the same in all."""
        return self.heads

    @property
    def block_windows(self) -> tuple[int, ...]:
        """Each block's window, in patches a side; 0 for full attention."""
        count = (self.global_blocks or 0) if self.attention_window else self.depth
        full = {(number + 1) * self.depth // count - 1 for number in range(count)}
        return tuple(0 if block in full else self.attention_window for block in range(self.depth))

    @property
    def head_dim(self) -> int:
        """d, the dims of one attention head."""
        return self.width // self.heads

    @property
    def pooled_width(self) -> int:
        """The dims of the vector that the head reads."""
        return 2 * self.width if self.pool == "cls_mean" else self.width

    # ---- values that follow from others, and validation

    def _following(self) -> dict[str, Any]:
        follows = {
            "mlp_width": self.mlp_width == 4 * self.width,
            "cls_position": self.cls_position == self._usual_cls_position(),
            "global_blocks": self.global_blocks == self._usual_global_blocks(),
            "final_norm": self.final_norm == ("tokens" if self.norm == "pre" else "none"),
        }
        return super()._following() | {name: None for name, usual in follows.items() if usual}

    def _usual_cls_position(self) -> str:
        if not self.cls_token or self.positions in ("rotary", "none"):
            return "none"
        return "learned" if self.positions == "learned" else "fixed"

    def _usual_global_blocks(self) -> int:
        """4 of 12 or more, as in ViTDet; of fewer a third."""
        return min(4, max(1, self.depth // 3)) if self.attention_window else 0

    def _check_numbers(self) -> None:
        self._check_shared_numbers()
        self._check_at_least(1, "depth", "heads", "mlp_width", "feature_channels", "pool_heads", "pool_mlp_width")
        self._check_at_least(0, "registers", "stem_blocks", "attention_window")
        if not (self.rotary_base > 1 and math.isfinite(self.rotary_base)):
            raise VitrailError(f"rotary_base is {self.rotary_base}; it must be above 1")
        if not math.isfinite(self.rotary_start):
            raise VitrailError(f"rotary_start is {self.rotary_start}; it must be a finite number")
        if self.layer_scale is not None and not abs(self.layer_scale) < 1e38:  # float32 ends there
            raise VitrailError(f"layer_scale is {self.layer_scale}; it must be a finite number or null")

    def _check_together(self) -> None:
        self._check_sizes()
        if self.patches > 2**18:
            raise VitrailError(f"image_size and patch_size give {self.patches:,} patches, more than {2**18:,}")
        if self.width % self.heads:
            raise VitrailError(f"width {self.width} is not divisible by heads {self.heads}")
        divisor = {"sincos1d": 2, "sincos2d": 4}.get(self.positions, 1)
        if self.width % divisor:
            raise VitrailError(f"positions {self.positions!r} need a width divisible by {divisor}, not {self.width}")
        self._check_rotary()
        if self.block_positions and self.positions != "learned":
            raise VitrailError(f"block_positions true goes with positions 'learned', not {self.positions!r}")
        if self.stem == "features" and self.feature_channels is None:
            raise VitrailError("stem 'features' needs feature_channels, the channels of your CNN's feature map")
        if self.stem != "conv" and self.stem_blocks:
            raise VitrailError(f"stem_blocks {self.stem_blocks} goes with stem 'conv', not {self.stem!r}")
        if self.stem != "conv" and self.stem_maps != "fine":
            raise VitrailError(f"stem_maps {self.stem_maps!r} goes with stem 'conv', not {self.stem!r}")
        if self.stem != "features" and self.feature_channels is not None:
            raise VitrailError(f"feature_channels {self.feature_channels} goes with stem 'features', not {self.stem!r}")
        if self.cnn is not None and (self.stem != "features" or not self.cnn.startswith(TIMM_CNN)):
            raise VitrailError(f"cnn {self.cnn!r} goes with stem 'features', and begins with {TIMM_CNN!r}")
        if self.cnn is not None and self.patch_size[0] != self.patch_size[1]:
            raise VitrailError(f"cnn {self.cnn!r} has feature maps of one stride, so patch_size must be square")
        self._check_head()
        if self.pool_heads is not None and (self.pool != "attention" or self.width % self.pool_heads):
            raise VitrailError(
                f"pool_heads {self.pool_heads} goes with pool 'attention' and a width that it divides, "
                f"not with {self.pool!r} and {self.width}"
            )
        if self.pool_mlp_width is not None and self.pool != "attention":
            raise VitrailError(f"pool_mlp_width {self.pool_mlp_width} goes with pool 'attention', not {self.pool!r}")
        self._check_windows()
        self._check_cls()

    def _check_rotary(self) -> None:
        if self.rotary_too and self.positions in ("rotary", "none"):
            raise VitrailError(
                f"rotary_too true goes with added positions, not with {self.positions!r}: "
                "positions 'rotary' are rotary ones alone"
            )
        if self.is_rotary and self.head_dim % 4:
            raise VitrailError(
                f"rotary positions need width / heads divisible by 4, not {self.width} / {self.heads} = {self.head_dim}"
            )
        if not self.is_rotary and (self.rotary_grid is not None or self.rotary_bfloat16):
            raise VitrailError(f"rotary_grid and rotary_bfloat16 go with rotary positions, not {self.positions!r}")
        if self.rotary_start and self.rotary_grid is None:
            raise VitrailError(f"rotary_start {self.rotary_start:g} needs rotary_grid, the grid on which it is counted")

    def _check_windows(self) -> None:
        assert self.global_blocks is not None
        if self.global_blocks < 0:
            raise VitrailError(f"global_blocks is {self.global_blocks}; it must be at least 0")
        if self.global_blocks and not self.attention_window:
            raise VitrailError(f"global_blocks {self.global_blocks} goes with attention_window, which is 0")
        if self.relative_bias and self.attention_window:
            raise VitrailError(f"attention_window {self.attention_window} goes without relative_bias, which is true")
        if self.global_blocks > self.depth:
            raise VitrailError(f"global_blocks {self.global_blocks} of a depth of {self.depth}: there are not so many")

    def _check_cls(self) -> None:
        if not self.cls_token:
            if self.pool in ("cls", "cls_mean"):
                raise VitrailError(f"pool {self.pool!r} needs cls_token true, not false; 'mean' and 'attention' do not")
            if self.distillation:
                raise VitrailError("distillation true needs cls_token true, not false")
            if self.cls_position != "none":
                raise VitrailError(f"cls_position {self.cls_position!r} needs cls_token true, not false")
        if self.distillation and self.pool != "cls" and self.classes:  # without heads its tokens pool in any way
            raise VitrailError(f"distillation true goes with pool 'cls', not {self.pool!r}")
        if self.cls_position == "fixed" and self.positions not in ("sincos1d", "sincos2d"):
            raise VitrailError(f"cls_position 'fixed' goes with positions sincos1d or sincos2d, not {self.positions!r}")
        if self.cls_position == "learned" and self.positions in ("rotary", "none"):
            raise VitrailError(f"cls_position 'learned' goes with added positions, not {self.positions!r}")
