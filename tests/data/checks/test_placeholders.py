"""Pictures that stand for a missing one, or show nothing, are named; pictures that belong to their set are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from vitrail.commands.check import check
from vitrail.commands.make_data import make_data
from vitrail.data.checks.check_dataset import CheckReport
from vitrail.findings import Finding

Photos = Callable[..., Path]
Pixels = NDArray[np.uint8]

ABOUT_NOTHING = {"placeholder", "repeated-placeholder", "nearly-blank", "blank"}


def placeholder(
    size: tuple[int, int] = (240, 180), ground: str = "#eeeeee", ink: str = "#777777", icon: bool = False
) -> Image.Image:
    """What sites send in the place of a missing picture."""
    image = Image.new("RGB", size, ground)
    draw = ImageDraw.Draw(image)
    width, height = size
    font = ImageFont.load_default(size=height // 8)
    if icon:
        draw.rounded_rectangle((width * 0.3, height * 0.2, width * 0.7, height * 0.5), 8, outline=ink, width=5)
        draw.ellipse((width * 0.43, height * 0.25, width * 0.57, height * 0.45), fill=ink)
    for line, text in enumerate(("image not", "available")):
        draw.text((width / 2, height * (0.65 + line / 6)), text, fill=ink, font=font, anchor="mm")
    return image


def nearly_blank_scan(seed: int = 0) -> Image.Image:
    """A sheet of paper with two specks of dust."""
    random = np.random.default_rng(seed)
    page = 244 + random.normal(0, 1.5, (220, 160, 1)) + np.linspace(0, 2, 220)[:, None, None]
    page = np.repeat(page, 3, axis=2)
    page[40:44, 100:104] = page[150:153, 30:34] = 90
    return Image.fromarray(page.clip(0, 255).astype(np.uint8))


def drawing(seed: int, size: tuple[int, int] = (160, 160)) -> Image.Image:
    """Black lines on white, and a few boxes: a diagram."""
    random = np.random.default_rng(seed)
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for _ in range(int(random.integers(2, 12))):
        corners = random.integers(0, size[0], 4).tolist()
        draw.line(corners, fill="black", width=int(random.integers(1, 4)))
        left, top = random.integers(0, size[0] - 40, 2).tolist()
        draw.rectangle((left, top, left + 30, top + 20), outline="black", fill="white")
    return image


def photographs() -> dict[str, Pixels]:
    data = pytest.importorskip("skimage.data")
    names = ("astronaut", "brick", "camera", "cell", "chelsea", "clock", "coffee", "coins", "grass", "gravel",
             "hubble_deep_field", "immunohistochemistry", "moon", "retina", "rocket")  # fmt: skip
    return {name: getattr(data, name)() for name in names}


def finding(report: CheckReport, kind: str) -> Finding:
    return next(finding for finding in report.findings if finding.kind == kind)


def kinds(report: CheckReport) -> set[str]:
    return {finding.kind for finding in report.findings}


def files(finding: Finding) -> set[str]:
    return {file.name for example in finding.examples for file in example.files}


@pytest.fixture
def clean(photos: Photos) -> Path:
    return photos(*(f"{label}/{n}.jpg" for label in ("cat", "dog", "owl") for n in range(12)))


# ---- what is named


@pytest.mark.parametrize("form", ["GIF", "PNG", "JPEG"])
@pytest.mark.parametrize("icon", [False, True])
@pytest.mark.parametrize(
    "size, ground, ink",
    [
        ((240, 180), "#eeeeee", "#777777"),
        ((500, 374), "#ffffff", "#333333"),
        ((640, 480), "#000000", "#ffffff"),
        ((400, 300), "#1e3c78", "#ffffff"),
    ],
)
def test_an_image_that_is_not_available(
    clean: Path, make: SimpleNamespace, form: str, icon: bool, size: tuple[int, int], ground: str, ink: str
) -> None:
    image = placeholder(size, ground, ink, icon)
    make.put(clean / "cat" / f"missing.{form.lower()}", make.encoded(image, form))
    report = check(clean)
    found = finding(report, "placeholder")
    assert files(found) == {f"missing.{form.lower()}"} and found.severity == "warning" and report.exit_code == 0
    assert found.title == "1 image is of a few flat colours, as 'image not available' is"
    assert found.advice == "remove placeholders of missing images; keep a drawing that is meant"


def test_different_placeholders_are_one_finding(clean: Path, make: SimpleNamespace) -> None:
    make.put(clean / "cat" / "grey.gif", make.encoded(placeholder(), "GIF"))
    make.put(clean / "dog" / "blue.png", make.encoded(placeholder(ground="#1e3c78", ink="#fadc00", icon=True), "PNG"))
    found = finding(check(clean), "placeholder")
    assert files(found) == {"grey.gif", "blue.png"} and found.count == 2
    assert found.title == "2 images are of a few flat colours, as 'image not available' is"


def test_a_nearly_blank_scan(clean: Path, make: SimpleNamespace) -> None:
    make.put(clean / "cat" / "scan.png", make.encoded(nearly_blank_scan(), "PNG"))
    make.put(clean / "dog" / "scan.jpg", make.encoded(nearly_blank_scan(1), "JPEG", quality=80))
    report = check(clean)
    found = finding(report, "nearly-blank")
    assert files(found) == {"scan.png", "scan.jpg"} and found.severity == "warning"
    assert found.title == "2 images are nearly blank: one colour but for specks"
    assert "remove" in found.advice and "placeholder" not in kinds(report)


def test_a_blank_page_among_pages(tmp_path: Path, make: SimpleNamespace) -> None:
    """Full pages are mostly paper too, and are not nearly blank."""
    font = ImageFont.load_default(size=11)
    for label in "ab":
        for n in range(12):
            page = nearly_blank_scan(n)
            draw = ImageDraw.Draw(page)
            for line in range(14):
                words = " ".join(f"{label}{(n * 7919 + line * 104729) % 10**k}" for k in range(2, 7))
                draw.text((10, 10 + line * 14), words, fill="#222222", font=font)
            make.put(tmp_path / label / f"{n}.png", make.encoded(page, "PNG"))
    assert not kinds(check(tmp_path)) & ABOUT_NOTHING
    make.put(tmp_path / "a" / "empty.png", make.encoded(nearly_blank_scan(99), "PNG"))
    assert files(finding(check(tmp_path), "nearly-blank")) == {"empty.png"}


def test_one_colour_is_blank_and_nothing_else(clean: Path, make: SimpleNamespace) -> None:
    make.put(clean / "cat" / "red.png", make.encoded(Image.new("RGB", (80, 60), "#c02020"), "PNG"))
    report = check(clean)
    assert files(finding(report, "blank")) == {"red.png"} and kinds(report) & ABOUT_NOTHING == {"blank"}


def test_copies_of_a_placeholder_are_named_as_such(clean: Path, make: SimpleNamespace) -> None:
    """Keeping 'each image once, with its right label' would be the wrong advice."""
    data = make.encoded(placeholder(), "GIF")
    for label in ("cat", "dog", "owl"):
        make.put(clean / label / "missing.gif", data)
    make.put(clean / "cat" / "also missing.gif", data)
    report = check(clean)
    found = finding(report, "repeated-placeholder")
    assert found.severity == "error" and report.exit_code == 1  # three labels for one picture, as before
    assert found.count == 1 and len(found.examples[0].files) == 4
    assert found.examples[0].note.startswith("cat / dog / owl")
    assert found.title == "1 placeholder stands for 4 images, with different labels"
    assert found.advice == "remove every copy: nothing can be learnt from it"
    assert not {"placeholder", "copies", "copies-with-different-labels", "copies-across-parts"} & kinds(report)


def test_copies_of_a_placeholder_in_one_class(photos: Photos, make: SimpleNamespace) -> None:
    folder = photos(*(f"{part}/{label}/{n}.jpg" for part in ("train", "val") for label in "ab" for n in range(12)))
    data = make.encoded(placeholder(icon=True), "PNG")
    make.put(folder / "train" / "a" / "one.png", data)
    make.put(folder / "train" / "a" / "two.png", data)
    found = finding(check(folder), "repeated-placeholder")
    assert found.severity == "warning" and found.title == "1 placeholder stands for 2 images"
    make.put(folder / "val" / "a" / "three.png", data)
    found = finding(check(folder), "repeated-placeholder")
    assert found.severity == "error" and found.title == "1 placeholder stands for 3 images, in more than one part"
    assert found.examples[0].note == "train / val"


def test_other_copies_stay_copies(clean: Path, make: SimpleNamespace) -> None:
    make.put(clean / "dog" / "copy.jpg", (clean / "cat" / "3.jpg").read_bytes())
    make.put(clean / "dog" / "missing.gif", make.encoded(placeholder(), "GIF"))
    report = check(clean)
    assert files(finding(report, "copies-with-different-labels")) == {"3.jpg", "copy.jpg"}
    assert files(finding(report, "placeholder")) == {"missing.gif"}


def test_the_fast_look_decodes_nothing_and_says_nothing(clean: Path, make: SimpleNamespace) -> None:
    make.put(clean / "cat" / "missing.gif", make.encoded(placeholder(), "GIF"))
    assert not kinds(check(clean, fast=True)) & ABOUT_NOTHING


# ---- what is not


def write(folder: Path, images: Iterator[Image.Image], form: str = "PNG", **options: object) -> Path:
    """Into two classes by turns."""
    for number, image in enumerate(images):
        path = folder / "ab"[number % 2] / f"{number}.{form.lower()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, form, **options)
    return folder


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF"])
def test_photographs(tmp_path: Path, form: str) -> None:
    images = (Image.fromarray(pixels).convert("RGB") for pixels in photographs().values())
    report = check(write(tmp_path, images, form))
    assert not kinds(report) & ABOUT_NOTHING


@pytest.mark.parametrize("noise", [0, 2])
def test_night_photographs(clean: Path, make: SimpleNamespace, noise: float) -> None:
    """Dark all over, black where the camera saw nothing, with stars and a moon: content all the same."""
    random = np.random.default_rng(0)
    for name, pixels in photographs().items():
        dark = (np.asarray(Image.fromarray(pixels).convert("RGB")) / 255.0) ** 4 * 160
        dark = (dark - 6 + random.normal(0, noise, dark.shape) if noise else dark - 6).clip(0, 255)
        make.put(clean / "cat" / f"{name}.jpg", make.encoded(Image.fromarray(dark.astype(np.uint8)), "JPEG"))
    for n in range(6):
        sky = random.normal(3, noise or 1e-9, (240, 320, 3))
        sky[random.integers(0, 240, 200), random.integers(0, 320, 200)] = random.uniform(60, 255, (200, 1))
        rows, columns = np.mgrid[:240, :320]
        moon = (rows - 90) ** 2 + (columns - 200) ** 2 < (6 + 4 * n) ** 2
        sky[moon] = random.uniform(200, 255, (int(moon.sum()), 1))
        image = Image.fromarray(sky.clip(0, 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(1))
        make.put(clean / "dog" / f"sky {n}.jpg", make.encoded(image, "JPEG"))
    assert not kinds(check(clean)) & (ABOUT_NOTHING - {"blank"})


def test_digits(tmp_path: Path) -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    values = (datasets.load_digits().images[:200] * 15).astype(np.uint8)
    assert not kinds(check(write(tmp_path, (Image.fromarray(one) for one in values)))) & ABOUT_NOTHING


@pytest.mark.parametrize("side", [28, 56])
def test_small_grey_things_on_black(tmp_path: Path, side: int) -> None:
    """As Fashion-MNIST: shirts, and now and then a sandal that leaves most of the picture black."""
    random = np.random.default_rng(0)

    def things() -> Iterator[Image.Image]:
        for n in range(120):
            image = Image.new("L", (side, side), 0)
            height = side if n % 8 else side // 4
            top, left = side - height, int(random.integers(2, side // 4))
            ImageDraw.Draw(image).rectangle((left, top, side - left, side), fill=int(random.integers(90, 250)))
            shade = np.asarray(image.filter(ImageFilter.GaussianBlur(1)), float)
            shade *= random.uniform(0.8, 1.0, shade.shape)
            yield Image.fromarray(shade.clip(0, 255).astype(np.uint8))

    assert not kinds(check(write(tmp_path, things()))) & ABOUT_NOTHING


@pytest.mark.parametrize("form, options", [("PNG", {}), ("JPEG", {"quality": 85}), ("GIF", {})])
def test_a_set_of_drawings(tmp_path: Path, form: str, options: dict[str, object]) -> None:
    assert not kinds(check(write(tmp_path, map(drawing, range(60)), form, **options))) & ABOUT_NOTHING


def test_drawings_and_photographs_in_equal_parts(clean: Path, make: SimpleNamespace) -> None:
    for n in range(24):
        make.put(clean / "drawn" / f"{n}.png", make.encoded(drawing(n), "PNG"))
    assert not kinds(check(clean)) & ABOUT_NOTHING


def test_things_on_white(clean: Path, make: SimpleNamespace) -> None:
    """A shop's photographs: white ground, and in its middle something with shades."""
    for number, (name, pixels) in enumerate(photographs().items()):
        image = Image.fromarray(pixels).convert("RGB").resize((200, 200))
        mask = Image.new("L", image.size, 0)
        reach = 45 + 3 * number
        ImageDraw.Draw(mask).ellipse((100 - reach, 100 - reach, 100 + reach, 100 + reach), fill=255)
        image = Image.composite(image, Image.new("RGB", image.size, "white"), mask)
        make.put(clean / "cat" / f"{name}.jpg", make.encoded(image, "JPEG"))
    assert not kinds(check(clean)) & ABOUT_NOTHING


def test_generated_shapes(tmp_path: Path) -> None:
    make_data("shapes", tmp_path / "shapes", images=120, task="classify")
    assert not kinds(check(tmp_path / "shapes")) & ABOUT_NOTHING
