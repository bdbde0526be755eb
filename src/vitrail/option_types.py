"""From the text of the shell to an option's value. A ValueError is one sentence that says what was expected."""

from __future__ import annotations

from vitrail.errors import VitrailError

PRECISIONS = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "int8": "int8",
}  # short names of torch's; both are taken wherever one is given


def count(text: str) -> int:
    """A whole number above 0."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ValueError(f"{text!r} is not a whole number above 0")
    return int(text)


def count_or_none(text: str) -> int:
    """A whole number, 0 included."""
    return 0 if text == "0" else count(text)


def whole_number(text: str) -> int:
    """A whole number, negative ones included."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def whole_numbers(text: str) -> list[int]:
    """'0,5,-1' is [0, 5, -1]."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r} is not a list of whole numbers such as 0,5,-1") from None


def counts(text: str) -> list[int]:
    """'1,16' is [1, 16], whole numbers above 0."""
    return [count(part.strip()) for part in text.split(",")]


def names(text: str) -> list[str]:
    """'torch,openvino' is ['torch', 'openvino']."""
    return [part.strip() for part in text.split(",") if part.strip()]


def positive(text: str) -> float:
    """A number above 0, and not infinity."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{text!r} is not a number above 0")
    return value


def size(text: str) -> tuple[int, int]:
    """'224' is (224, 224); '224x320' is height 224, width 320."""
    height, cross, width = text.partition("x")
    return count(height), count(width) if cross else count(height)


def box(text: str) -> tuple[float, float, float, float]:
    """'10,20,200,100' is x 10, y 20, width 200, height 100, in pixels."""
    try:
        x, y, width, height = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a box: give x,y,width,height in pixels, such as 10,20,200,100") from None
    if not (0 < width < float("inf") and 0 < height < float("inf") and abs(x) + abs(y) < float("inf")):
        raise ValueError(f"{text!r} is no box: its width and height must be above 0")
    return x, y, width, height


def port(text: str) -> int:
    """A TCP port; 0 lets the system choose one."""
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise ValueError(f"{text!r} is not a port: a whole number from 0 to 65535")
    return int(text)


def precision(text: str) -> str:
    """'bf16' is bfloat16, 'fp32' is float32; int8, auto, and torch's own names, are what they are."""
    name = PRECISIONS.get(text, text)
    if name not in ("auto", *PRECISIONS.values()):
        raise VitrailError(f"the precision is {text!r}; choose one of auto, {', '.join(PRECISIONS)}")
    return name


def merged_tokens(value: str | int | float) -> int | float:
    """'8' is 8 tokens for each block; '0.5%' is the drop that one allows, 0.005. Numbers of Python stay as they are."""
    share = isinstance(value, float) or (isinstance(value, str) and value.strip().endswith("%"))
    try:
        number = float(value.strip().removesuffix("%")) / 100 if isinstance(value, str) and share else float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < (1 if share else 10_000) or not (share or number.is_integer()):
        raise VitrailError(
            f"merge_tokens is {value!r}: give the tokens to merge for each block, such as 8, or the drop to allow, "
            "such as 0.5%"
        )
    return number if share else int(number)
