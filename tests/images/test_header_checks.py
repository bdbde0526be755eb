"""Files that claim too much are refused by their headers, wherever images are read; each is made here, and small."""

from __future__ import annotations

import io
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.images import hostile
from vitrail.cli import main
from vitrail.images.decode import read_image
from vitrail.images.decode_limits import decode_limits, limit_decoding
from vitrail.images.jpeg2000_header import Precincts, precincts_of
from vitrail.images.tiff_header import TiffPage, tiff_pages
from vitrail.images.unreadable import UnreadableImage
from vitrail.inference.read_source import read_source
from vitrail.weights.preprocessing import Preprocessing


def more_entries(tiff: bytes) -> bytes:
    """Its first directory promises more entries than there are. Libraries take those that are there."""
    data = bytearray(tiff)
    struct.pack_into("<H", data, struct.unpack_from("<I", data, 4)[0], 1000)
    return bytes(data)


# (what is made, channels that are asked for, what the sentence says)
REFUSED: list[tuple[Callable[[], bytes], int, str]] = [
    (hostile.jpeg2000, 3, "precincts"),
    (hostile.jpeg2000_in_boxes, 3, "precincts"),
    (lambda: hostile.jpeg2000(size=400, precinct=3, layers=20_000), 3, "in 20,000 layers"),  # took 1.6 GB
    (hostile.tiff_of_one_tile, 3, "in tiles of 16,000 x 16,000"),
    (hostile.tiff_of_one_tile, 5, "in tiles of 16,000 x 16,000"),
    (lambda: hostile.tiff_of_one_tile()[:-3], 3, "in tiles of 16,000 x 16,000"),  # nothing says what follows
    (lambda: more_entries(hostile.tiff_of_one_tile()), 3, "in tiles of 16,000 x 16,000"),  # or the directory ends early
    *((lambda kind=kind: hostile.tiff_of_one_tile_in_disguise(kind), 3, "in tiles of 16,000") for kind in (9, 16)),
    (lambda: hostile.tiff_of_one_tile_in_disguise(12), 3, "damaged"),  # a float
    (lambda: hostile.tiff_of_two_tile_sizes(16_000, 64), 3, "damaged"),
    (lambda: hostile.tiff_of_two_tile_sizes(64, 16_000), 3, "damaged"),
    (hostile.tiff_of_small_tiles, 3, "409,600 strips or tiles"),
    (hostile.tiff_of_small_tiles, 4, "409,600 strips or tiles"),
    (lambda: hostile.tiff_of_samples(20_000, 60_000), 5, "pixels: make it smaller first"),
    (lambda: hostile.tiff(*[hostile.grey(1, 1)] * 10_001), 5, "more than 10,000 pages"),
    (lambda: hostile.tiff_of_size(0, 0), 3, "damaged"),
    (lambda: hostile.tiff_of_size(0, 5), 3, "damaged"),
    (lambda: hostile.tiff_of_size(5, 0), 3, "damaged"),
    (hostile.png_strip, 3, "is a strip of 49,000,000 x 1 pixels"),
    (lambda: hostile.png(50_000, 50_000), 3, "more than 178,956,970 pixels"),
]


@pytest.mark.parametrize(("make", "channels", "sentence"), REFUSED)
def test_what_claims_too_much_is_refused_before_it_costs(
    make: Callable[[], bytes], channels: int, sentence: str
) -> None:
    data = make()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnreadableImage, match=sentence) as refused:
        read_image(data, channels)
    assert refused.value.kind in ("too large", "damaged")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_planes_are_counted_and_not_believed() -> None:
    pytest.importorskip("tifffile")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_image(hostile.ome_tiff(), 5).shape == (8, 8, 5)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.parametrize("options", [{}, {"tile": (16, 16)}, {"big_tiff": True}])
def test_a_tiff_says_what_it_is(options: dict[str, object]) -> None:
    tifffile = pytest.importorskip("tifffile")
    buffer = io.BytesIO()
    tifffile.imwrite(
        buffer,
        np.zeros((40, 30, 3), np.uint8),
        photometric="rgb",
        bigtiff="big_tiff" in options,
        tile=options.get("tile"),
        rowsperstrip=None if "tile" in options else 8,
    )
    tile, parts = ((16, 16), 6) if "tile" in options else (None, 5)
    (page,) = tiff_pages(buffer.getvalue())
    assert page == TiffPage(30, 40, 3, tile, parts, page.directory)
    assert 0 < page.directory < 400 and page.directory % (20 if "big_tiff" in options else 12) == 0


def test_directories_that_lead_in_a_circle_end() -> None:
    data = bytearray(hostile.tiff(hostile.grey(3, 2)))
    (first,) = struct.unpack_from("<I", data, 4)
    struct.pack_into("<I", data, len(data) - 4, first)
    assert [(page.width, page.height) for page in tiff_pages(bytes(data))] == [(3, 2)]
    assert list(tiff_pages(b"II*\0")) == []
    (cut,) = tiff_pages(bytes(data[: first + 2 + 2 * 12]))  # two entries are there, as every library takes them
    assert (cut.width, cut.height) == (3, 2)


def test_a_directory_beyond_every_file_has_no_pages() -> None:
    """Found by fuzzing: an offset of 64 bits, which no buffer has."""
    for offset in (2**63, 2**64 - 1):
        assert list(tiff_pages(struct.pack("<2sHHHQ", b"II", 43, 8, 0, offset))) == []
        box = struct.pack(">I4sQ", 1, b"free", offset)
        assert precincts_of(hostile.jpeg2000_in_boxes()[:12] + box * 2) is None


def test_directories_that_overlap_are_refused() -> None:
    """Ten thousand of them, each of thousands of entries, in a file that has room for one."""
    entries, count = 5000, 9000
    data = bytearray(struct.pack("<2sHI", b"II", 42, 8)) + bytes(12 * entries + 6 * count)
    for number in range(count):  # each begins 6 bytes after the one before; its pointer to the next lies behind it
        start = 8 + 6 * number
        struct.pack_into("<H", data, start, entries)
        struct.pack_into("<I", data, start + 2 + 12 * entries, start + 6)
    with pytest.raises(UnreadableImage, match="directories overlap"):
        read_image(bytes(data))


@pytest.mark.parametrize(
    "markers", [b"\xff\x93", b"\xff\x90\0\x0a\0\0\0\0\0\x0e\0\1\xff\x93\xff\x93\0\0"], ids=["no tile", "twice"]
)
def test_a_codestream_that_stands_still_ends(markers: bytes) -> None:
    """Data without a tile-part, or a second time in one: where it leads is where it was."""
    head = hostile.jpeg2000()
    tile = head.index(b"\xff\x90\0\x0a")
    assert precincts_of(head[:tile] + markers + bytes(70_000)) == precincts_of(head)


def test_an_ordinary_jpeg_2000_has_few_precincts() -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((600, 800, 3), np.uint8)).save(buffer, "JPEG2000", precinct_size=(128, 128))
    found = precincts_of(buffer.getvalue())
    assert found is not None and 3 * 5 * 7 < found.precincts < 1000 and found.pixels == 600 * 800
    assert (found.layers, found.resolutions) == (1, 6)
    assert read_image(buffer.getvalue()).shape == (600, 800, 3)
    assert precincts_of(hostile.jpeg2000(precinct=15, layers=9)) == Precincts(3 * 6 * 4, 9, 6, 2000 * 2000)


def test_a_strip_too_thin_for_the_model(tmp_path: Path) -> None:
    path = tmp_path / "strip.png"
    Image.new("L", (300_000, 1)).save(path)
    with pytest.raises(UnreadableImage, match=r"strip.png is a strip of 300,000 x 1 pixels: too long and thin"):
        read_source(path, Preprocessing(), "it")
    assert read_source(path, Preprocessing(resize="pad"), "it").shape == (224, 224, 3)


def test_the_limit_of_pixels_is_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(4):
            side = 80 if (label, number) == ("cat", 0) else 40
            Image.new("RGB", (side, side), (50 * number, 90, 0)).save(tmp_path / "data" / label / f"{number}.png")
    large = tmp_path / "data" / "cat" / "0.png"
    report = vitrail.check(tmp_path / "data", max_pixels=2000, quiet=True)
    assert "more than 2,000 pixels" in str(report) and report.exit_code == 1
    assert "more than" not in str(vitrail.check(tmp_path / "data", quiet=True))
    config = vitrail.preset("mu/4", classes=2, image_size=16, depth=1)
    checkpoint = vitrail.Checkpoint(vitrail.ViT(config), Preprocessing(size=config.image_size), "classify", ["a", "b"])
    model = checkpoint.save(tmp_path / "m.safetensors")
    assert main(["predict", str(model), str(large), "--max-pixels", "2000"]) == 1
    assert "more than 2,000 pixels" in capsys.readouterr().out
    assert main(["predict", str(model), str(large)]) == 0


def test_a_larger_limit_lets_larger_images_through() -> None:
    data = hostile.png(15_000, 15_000)
    with limit_decoding(300_000_000), pytest.raises(UnreadableImage, match="truncated|damaged"):
        read_image(data)
    with pytest.raises(UnreadableImage, match="178,956,970"):
        read_image(data)
    with limit_decoding(formats=["JPEG"]), pytest.raises(UnreadableImage):
        read_image(data)
    assert decode_limits().formats is None
