"""Reading one image: every kind of the zoo, upright, whole, in the channels asked for; or one clear sentence."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageFile

from vitrail.errors import VitrailError
from vitrail.images.decode import UnreadableImage, read_image
from vitrail.images.sniffing import what_it_is

# pytest resets the filter that images.py sets; the last test here shows that users are spared these
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")


def test_every_animal_of_the_zoo_is_read(readable: tuple[str, bytes], make: SimpleNamespace, tmp_path: Path) -> None:
    name, data = readable
    path = make.put(tmp_path / name, data)
    image = read_image(path)
    assert image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
    np.testing.assert_array_equal(image, read_image(data))
    for channels in (1, 4):
        assert read_image(data, channels).shape == (*image.shape[:2], channels)


def test_every_sick_animal_is_named_with_its_reason(broken: tuple, make: SimpleNamespace, tmp_path: Path) -> None:
    name, data, kind = broken
    path = make.put(tmp_path / name, data)
    with pytest.raises(UnreadableImage) as caught:
        read_image(path)
    assert caught.value.kind == kind
    assert str(caught.value) == f"{path} {caught.value.why}"
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, VitrailError)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_file_cut_anywhere_is_an_error_or_the_whole_image(form: str, make: SimpleNamespace) -> None:
    data = make.encoded(make.photo(), form)
    whole = read_image(data)
    errors = 0
    for cut in range(1, len(data), max(1, len(data) // 60)):
        try:
            image = read_image(data[:cut])
        except UnreadableImage:
            errors += 1
        else:
            np.testing.assert_array_equal(image, whole)  # a last byte that no pixel needs
    assert errors > 50


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_damage_anywhere_gives_an_image_or_the_one_kind_of_error(form: str, make: SimpleNamespace) -> None:
    data, random = make.encoded(make.photo(), form), np.random.default_rng(0)
    outcomes = {"image": 0, "error": 0}
    for _ in range(60):
        damaged = bytearray(data)
        for place in random.integers(0, min(len(data), 400), 3):  # headers above all
            damaged[place] = random.integers(0, 256)
        try:
            outcomes["image" if read_image(bytes(damaged)).ndim == 3 else "?"] += 1
        except UnreadableImage:
            outcomes["error"] += 1
    assert outcomes["error"] > 0 and sum(outcomes.values()) == 60


def test_formats_that_need_a_package_name_it() -> None:
    heic, avif = b"\0\0\0\x18ftypheic" + bytes(100), b"\0\0\0\x18ftypavif" + bytes(100)
    assert "pip install pillow-heif" in what_it_is(heic, ())[1]
    assert "Pillow 11.3" in what_it_is(avif, ())[1]
    assert what_it_is(heic, ("HEIF",))[0] == what_it_is(avif, ("AVIF",))[0] == "damaged"


def test_truncated_files_stay_errors_where_another_library_made_pillow_lenient(
    make: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    data = make.encoded(make.photo(), "JPEG")
    with pytest.raises(UnreadableImage, match="truncated"):
        read_image(data[: len(data) // 2])


def test_missing_files_folders_and_dead_links_have_their_sentences(tmp_path: Path) -> None:
    (tmp_path / "link.jpg").symlink_to(tmp_path / "nowhere.jpg")
    for name, sentence in (
        ("none.jpg", "does not exist"),
        ("link.jpg", "is a link that leads nowhere"),
        ("", "is a folder"),
        ("a\0b.jpg", "cannot be read"),
    ):
        with pytest.raises(UnreadableImage, match=sentence):
            read_image(tmp_path / name)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_puts_the_photo_upright(orientation: int, make: SimpleNamespace) -> None:
    upright = np.zeros((32, 48, 3), np.uint8)
    upright[:16, :24], upright[:16, 24:], upright[16:, :24] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = Image.fromarray(upright)
    stored = stored.transpose(undo[orientation]) if orientation in undo else stored
    image = read_image(make.turned(orientation, stored))
    assert image.shape == upright.shape
    assert np.abs(image.astype(int) - upright).mean() < 8  # JPEG


def test_a_tiff_and_a_png_are_turned_once(make: SimpleNamespace) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for form in ("TIFF", "PNG", "WEBP"):
        assert read_image(make.encoded(make.photo(), form, exif=exif)).shape == (48, 40, 3), form


def test_transparency_lies_over_white_and_is_kept_for_four_channels(make: SimpleNamespace) -> None:
    black = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    black.putpixel((0, 0), (10, 20, 30, 255))
    data = make.encoded(black, "PNG")
    assert read_image(data)[1, 1].tolist() == [255, 255, 255]
    assert read_image(data)[0, 0].tolist() == [10, 20, 30]
    assert read_image(data, 1)[1, 1].tolist() == [255]
    assert read_image(data, 4)[1, 1, 3] == 0 and read_image(data, 4)[0, 0].tolist() == [10, 20, 30, 255]
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([200, 0, 0, 0, 0, 0])
    assert read_image(make.encoded(palette, "PNG", transparency=0))[0, 0].tolist() == [255, 255, 255]
    assert read_image(make.encoded(palette, "PNG"), 4)[0, 0].tolist() == [200, 0, 0, 255]


def test_grey_is_repeated_and_colour_becomes_its_luminance(make: SimpleNamespace) -> None:
    grey = read_image(make.encoded(make.photo().convert("L"), "PNG"))
    assert (grey[..., 0] == grey[..., 1]).all() and (grey[..., 0] == grey[..., 2]).all()
    np.testing.assert_array_equal(
        read_image(make.encoded(make.photo(), "PNG"), 1)[..., 0], np.asarray(make.photo().convert("L"))
    )


def test_cmyk_and_palette_look_as_they_should(make: SimpleNamespace) -> None:
    red = Image.new("RGB", (16, 16), (250, 10, 10))
    for data in (
        make.encoded(red.convert("CMYK"), "JPEG"),
        make.encoded(red.convert("CMYK"), "TIFF"),
        make.encoded(red.quantize(4), "PNG"),
        make.encoded(red.quantize(4), "GIF"),
    ):
        assert np.abs(read_image(data).astype(int) - (250, 10, 10)).max() <= 6


def test_the_first_frame_of_a_moving_gif(make: SimpleNamespace) -> None:
    first, second = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    data = make.encoded(first, "GIF", save_all=True, append_images=[second])
    assert read_image(data)[4, 4].tolist() == [255, 0, 0]


@pytest.mark.parametrize("size", [(200, 150), (400, 800), (1000, 300), (64, 64), (63, 200)])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jpeg_is_decoded_smaller_but_never_below_the_target(
    size: tuple[int, int], orientation: int, make: SimpleNamespace
) -> None:
    data = make.turned(orientation, make.photo(3, size))
    whole = read_image(data)
    for target in ((32, 32), (64, 50), (100, 20)):
        small = read_image(data, target=target)
        assert all(small.shape[i] >= min(target[i], whole.shape[i]) for i in (0, 1))
    if min(size) >= 200:
        assert read_image(data, target=(32, 32)).shape[0] < whole.shape[0]


def test_a_smaller_decoding_shows_the_same(make: SimpleNamespace) -> None:
    data = make.encoded(make.photo(5, (512, 384)), "JPEG", quality=95)
    small = Image.fromarray(read_image(data, target=(48, 64))).resize((64, 48), Image.Resampling.BOX)
    whole = Image.fromarray(read_image(data)).resize((64, 48), Image.Resampling.BOX)
    assert np.abs(np.asarray(small).astype(int) - np.asarray(whole)).mean() < 2


def test_the_error_crosses_processes_whole() -> None:
    error = pickle.loads(pickle.dumps(UnreadableImage("a.jpg", "empty", "is empty (0 bytes)")))
    assert (str(error), error.kind, error.name) == ("a.jpg is empty (0 bytes)", "empty", "a.jpg")


def test_no_warning_reaches_the_user_and_torch_is_not_needed(zoo: Path) -> None:
    script = (
        "import sys, pathlib, warnings; warnings.simplefilter('error')\n"
        "from vitrail.images.decode import read_image, UnreadableImage\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).rglob('*.*')):\n"
        "    try: read_image(path)\n"
        "    except UnreadableImage: pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(zoo)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr
    assert "Warning" not in done.stderr
