"""Images of any number of channels, as plain values (H, W, C): NumPy's .npy, and TIFF with pages or many samples."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.images.decode_limits import decode_limits
from vitrail.images.header_checks import check_file, check_size
from vitrail.images.unreadable import UnreadableImage, WrongChannels, as_sentences, too_large

_NPY = b"\x93NUMPY"
_EXTRA_SAMPLES = 338  # TIFF tag; 0: nobody said what the fourth channel is
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
# Formats whose metadata tells tifffile how many planes there are: a hundred million, if it says so. Pages are counted.
_NO_METADATA: dict[str, Any] = {
    f"is_{kind}": False
    for kind in (
        "shaped", "lsm", "mmstack", "ome", "imagej", "ndtiff", "fluoview", "stk", "sis", "svs", "scn", "qpi", "ndpi",
        "bif", "avs", "eer", "philips", "scanimage", "nih", "mdgel",
    )
}  # fmt: skip


def is_npy(data: bytes) -> bool:
    """Whether a file begins as numpy's .npy does."""
    return data.startswith(_NPY)


def is_tiff(data: bytes) -> bool:
    """Whether a file begins as a TIFF does."""
    return data.startswith(_TIFF)


def is_more_than_a_picture(data: bytes, channels: int) -> bool:
    """Whether a TIFF must be read as plain values to give these channels: more than a picture has, or a fourth that is
    no transparency, such as near infrared, which Pillow drops."""
    if not is_tiff(data) or channels in (1, 3):
        return False
    if channels != 4:
        return True
    try:
        with Image.open(io.BytesIO(data), formats=("TIFF",)) as image:
            return getattr(image, "tag_v2", {}).get(_EXTRA_SAMPLES) == (0,)
    except Exception:  # what does not open here is refused with a sentence where it is read
        return True


def load_npy(data: bytes, name: str) -> NDArray[Any]:
    """(H, W, C) from an .npy file of (H, W) or (H, W, C)."""
    if not decode_limits().allows("NPY"):
        raise UnreadableImage(name, "not an image", "is a NumPy array, which is not taken here: send it as JPEG or PNG")
    with as_sentences(name, data):
        return _checked(np.load(io.BytesIO(data), allow_pickle=False), name)


def load_tiff(data: bytes, name: str, channels: int | None = None) -> NDArray[Any]:
    """(H, W, C) from a TIFF: a page for each channel, or all in one page, which needs tifffile: Pillow stops at 4."""
    check_file(data, name)
    with as_sentences(name, data):
        pages = _grey_pages(data, name, channels)
        if pages is not None:
            return pages
        try:
            import tifffile
        except ImportError:
            many = "many" if channels is None else str(channels)
            raise WrongChannels(
                f"is a TIFF of {many} channels in one page, which needs one more package: pip install tifffile "
                "(or save it as .npy)"
            ) from None
        with tifffile.TiffFile(io.BytesIO(data), **_NO_METADATA) as file:
            series = file.series[0]
            if series.size > decode_limits().pixels * 4:
                raise too_large(name)
            axes, values = series.axes, series.asarray()
        # plane by plane: the axis of samples comes first
        planar = values.ndim == 3 and (axes[0] in "SCQI" and axes[-1] == "X")
        return _checked(np.moveaxis(values, 0, 2) if planar else values, name)


# ---- parts


def _grey_pages(data: bytes, name: str, channels: int | None) -> NDArray[Any] | None:
    """As many grey pages of one size as there are channels; None where the file is not made like that."""
    try:
        image = Image.open(io.BytesIO(data), formats=("TIFF",))
    except Exception:  # more samples in a page than Pillow knows: tifffile's turn
        return None
    with image:
        count = getattr(image, "n_frames", 1)
        if count != (channels or count) or count == 1:
            return None
        if image.width * image.height * count > decode_limits().pixels * 4:
            raise too_large(name)
        pages: list[NDArray[Any]] = []
        size = image.size
        for number in range(count):
            image.seek(number)
            if len(image.getbands()) != 1 or image.mode == "P" or image.size != size:
                return None
            pages.append(np.array(image.convert("L") if image.mode == "1" else image))
    return np.stack(pages, axis=2)


def _checked(values: NDArray[Any], name: str) -> NDArray[Any]:
    if values.ndim not in (2, 3) or 0 in values.shape:
        raise WrongChannels(f"has the shape {values.shape}: (height, width, channels) is needed")
    check_size(values.shape[1], values.shape[0], name)
    return values[..., None] if values.ndim == 2 else values
