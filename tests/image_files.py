"""Images for the tests of the data room: a plain one in any number, and the zoo of odd files, one of each kind."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, features


def photo(seed: int = 0, size: tuple[int, int] = (48, 40)) -> Image.Image:
    """Something like a photo: smooth, coloured, and another one for each seed. `size` is (width, height)."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 7, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def turned(orientation: int, image: Image.Image | None = None) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image or photo(), "JPEG", quality=95, exif=exif)


def readable_zoo() -> dict[str, bytes]:
    """One of each kind that must be read."""
    plain, grey = photo(), photo().convert("L")
    alpha = plain.convert("RGBA")
    alpha.putalpha(Image.linear_gradient("L").resize(plain.size))
    palette = plain.quantize(16)
    deep = np.asarray(grey).astype(np.uint16)
    zoo = {
        "plain.jpg": encoded(plain, "JPEG"),
        "progressive.jpeg": encoded(plain, "JPEG", progressive=True),
        "UPPER.JPG": encoded(plain, "JPEG"),
        "grey.jpg": encoded(grey, "JPEG"),
        "cmyk.jpg": encoded(plain.convert("CMYK"), "JPEG"),
        "turned.jpg": turned(6),
        "odd exif.jpg": encoded(plain, "JPEG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff\x12\x34"),
        "plain.png": encoded(plain, "PNG"),
        "grey.png": encoded(grey, "PNG"),
        "one bit.png": encoded(grey.convert("1"), "PNG"),
        "palette.png": encoded(palette, "PNG"),
        "palette with transparency.png": encoded(palette, "PNG", transparency=bytes(range(0, 256, 16))),
        "alpha.png": encoded(alpha, "PNG"),
        "grey and alpha.png": encoded(alpha.convert("LA"), "PNG"),
        "transparent colour.png": encoded(plain, "PNG", transparency=(255, 255, 255)),
        "16 bit.png": encoded(Image.fromarray(deep * 257), "PNG"),
        "12 bit in 16.png": encoded(Image.fromarray(deep * 16), "PNG"),
        "plain.webp": encoded(plain, "WEBP"),
        "alpha.webp": encoded(alpha, "WEBP"),
        "plain.bmp": encoded(plain, "BMP"),
        "plain.tif": encoded(plain, "TIFF"),
        "packed.tiff": encoded(plain, "TIFF", compression="tiff_lzw"),
        "16 bit.tif": encoded(Image.fromarray(deep * 257), "TIFF"),
        "float.tif": encoded(Image.fromarray(np.asarray(grey).astype(np.float32) / 255), "TIFF"),
        "cmyk.tif": encoded(plain.convert("CMYK"), "TIFF"),
        "pages.tif": encoded(grey, "TIFF", save_all=True, append_images=[grey] * 4),
        "moving.gif": encoded(plain, "GIF", save_all=True, append_images=[photo(1), photo(2)]),
        "still.gif": encoded(palette, "GIF", transparency=3),
        "lies.jpg": encoded(plain, "PNG"),
        "café über.png": encoded(plain, "PNG"),
        "'quoted' & \"spaced\".png": encoded(plain, "PNG"),
        "one pixel.png": encoded(plain.crop((0, 0, 1, 1)), "PNG"),
        "thin.png": encoded(plain.crop((0, 0, 48, 1)), "PNG"),
        "bytes.npy": npy(np.asarray(plain)),
    }
    if features.check("avif"):
        zoo["plain.avif"] = encoded(plain, "AVIF")
    return zoo


def broken_zoo() -> dict[str, tuple[bytes, str]]:
    """One of each kind that must not be read, with what it is called."""
    jpeg, png = encoded(photo(), "JPEG"), encoded(photo(), "PNG")
    webp, tiff = encoded(photo(), "WEBP"), encoded(photo(), "TIFF", compression="tiff_lzw")
    enormous = encoded(Image.new("1", (20_000, 20_000)), "PNG")
    return {
        "empty.jpg": (b"", "empty"),
        "truncated.jpg": (jpeg[: len(jpeg) // 2], "truncated"),
        "nearly whole.jpg": (jpeg[:-40], "truncated"),
        "no end mark.jpg": (jpeg[:-2], "truncated"),
        "filled with zeros.jpg": (jpeg[: len(jpeg) // 2] + bytes(len(jpeg) // 2), "truncated"),
        "truncated.png": (png[: len(png) // 2], "truncated"),
        "truncated.webp": (webp[: len(webp) // 2], "truncated"),
        "filled with zeros.webp": (webp[: len(webp) // 2] + bytes(len(webp) // 2), "truncated"),
        "truncated.tif": (tiff[: len(tiff) // 2], "truncated"),
        "truncated.bmp": (encoded(photo(), "BMP")[:2000], "truncated"),
        "truncated.gif": (encoded(photo(), "GIF")[:900], "truncated"),
        "truncated.npy": (npy(np.asarray(photo()))[:-100], "truncated"),
        "header only.jpg": (jpeg[:40], "truncated"),
        "only zeros.png": (bytes(5000), "truncated"),
        "damaged.png": (png[:60] + bytes(20) + png[80:], "damaged"),
        "text.jpg": (b"this is not an image", "not an image"),
        "web page.jpg": (b"\n<!DOCTYPE html><html><body>404</body></html>", "not an image"),
        "lfs.png": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "not an image"),
        "enormous.png": (enormous, "too large"),
        "channels.npy": (npy(np.zeros((8, 8, 7), dtype=np.uint8)), "wrong channels"),
    }


def npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `readable` or `broken` runs once for each animal of that part of the zoo."""
    if "readable" in metafunc.fixturenames:
        animals = readable_zoo()
        metafunc.parametrize("readable", animals.items(), ids=animals.keys())
    if "broken" in metafunc.fixturenames:
        sick = broken_zoo()
        metafunc.parametrize("broken", [(name, *rest) for name, rest in sick.items()], ids=sick.keys())


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The functions above, for tests to make their own."""
    return SimpleNamespace(photo=photo, encoded=encoded, turned=turned, npy=npy, put=put)


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """A folder `odd` with one file of each readable kind, and `broken` with one of each that is not."""
    for name, data in readable_zoo().items():
        put(tmp_path / "zoo" / "odd" / name, data)
    for name, (data, _) in broken_zoo().items():
        put(tmp_path / "zoo" / "broken" / name, data)
    return tmp_path / "zoo"


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Callable[..., Path]:
    """`photos("cat/1.jpg", "dog/2.png")` writes a different picture under each name, and gives the folder."""
    made = iter(range(10_000))

    def write(*names: str) -> Path:
        for name in names:
            form = {"jpg": "JPEG", "tif": "TIFF"}.get(name.rsplit(".")[-1].lower(), name.rsplit(".")[-1].upper())
            put(tmp_path / "data" / name, encoded(photo(next(made)), form))
        return tmp_path / "data"

    return write
