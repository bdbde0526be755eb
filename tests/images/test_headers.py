"""The size of a picture is looked up within the same bounds within which it is read."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.images import hostile
from vitrail.images.headers import Header, header


def test_a_header_is_the_size_of_the_upright_picture(tmp_path: Path) -> None:
    picture = Image.new("RGB", (6, 4))
    turned = Image.Exif()
    turned[0x0112] = 6
    for name in ("a.png", "a.tif", "a.jpg"):
        picture.save(tmp_path / name)
        assert header(tmp_path / name) == Header((4, 6))
    picture.save(tmp_path / "b.jpg", exif=turned)
    assert header(tmp_path / "b.jpg") == Header((6, 4), 6)
    np.save(tmp_path / "c.npy", np.zeros((4, 6, 5)))
    assert header(tmp_path / "c.npy") == Header((4, 6))
    (tmp_path / "d.png").write_text("no picture")
    assert header(tmp_path / "d.png") is header(tmp_path / "missing.png") is None


def test_a_tiff_of_many_channels_has_a_header(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    values = np.zeros((4, 6, 5), np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", values, photometric="minisblack", planarconfig="contig")
    assert header(tmp_path / "a.tif") == Header((4, 6))


def test_a_tiff_of_a_hundred_thousand_pages_is_no_picture(tmp_path: Path) -> None:
    """Pillow looks each page up in a list of those before it."""
    (tmp_path / "a.tif").write_bytes(hostile.tiff(*[hostile.grey(1, 1, (273, [8]), (279, [1]))] * 100_000))
    began = time.process_time()
    assert header(tmp_path / "a.tif") is None
    assert time.process_time() - began < 5
