"""The page of the check: complete in itself, and names are never more than text."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.commands.check import check
from vitrail.report.pages.check_page import page
from vitrail.visuals.thumbnails import thumbnail

EVIL = "<script>alert(1)<"
QUOTED = "'\"><img src=x onerror=alert(2)>.png"


def photo(seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (6, 7, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((48, 40), Image.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, label in enumerate(("cat", EVIL)):
        (tmp_path / label).mkdir()
        for n in range(12):
            photo(100 * number + n).save(tmp_path / label / f"{n}.png")
    photo(3).save(tmp_path / "cat" / QUOTED)
    (tmp_path / "cat" / "empty.png").write_bytes(b"")
    return tmp_path


class Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def test_names_are_text(folder: Path) -> None:
    reader = Reader(page(check(folder)))
    assert not [tag for tag, _ in reader.tags if tag in ("script", "link", "iframe", "object")]
    assert not [attrs for _, attrs in reader.tags if any(name.startswith("on") for name in attrs)]
    assert EVIL in reader.texts and f"cat/{QUOTED}" in reader.texts


def test_nothing_is_loaded_from_elsewhere(folder: Path) -> None:
    text = page(check(folder))
    reader = Reader(text)
    pictures = [attrs["src"] for tag, attrs in reader.tags if tag == "img"]
    assert pictures and all(src and src.startswith("data:image/jpeg;base64,") for src in pictures)
    assert not [attrs for _, attrs in reader.tags if "href" in attrs]
    assert "url(" not in text and "@import" not in text


def test_it_shows_every_finding_and_the_balance(folder: Path) -> None:
    report = check(folder)
    text = page(report)
    texts = Reader(text).texts
    for finding in report.findings:
        assert finding.title[0].upper() + finding.title[1:] in texts
    assert "is empty (0 bytes)" in texts
    assert text.count('class="train"') > 2 and "prefers-color-scheme: dark" in text and "width=device-width" in text


def test_many_classes_unfold(tmp_path: Path) -> None:
    for label in range(40):
        (tmp_path / str(label)).mkdir()
        photo(label).save(tmp_path / str(label) / "1.png")
    texts = Reader(page(check(tmp_path))).texts
    assert "10 more" in texts and "39" in texts


def test_numbers_have_a_histogram(tmp_path: Path) -> None:
    for n in range(20):
        photo(n).save(tmp_path / f"{n}.png")
    rows = "\n".join(f"{n}.png,{n},7" for n in range(20))
    (tmp_path / "t.csv").write_text(f"image,age,constant\n{rows}\n")
    texts = Reader(page(check(tmp_path))).texts
    assert "Images by age" in texts and "Images by constant" in texts and "0 to 1.58" in texts


def test_thumbnails_are_small_upright_and_absent_for_what_is_no_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    photo(1).resize((800, 400)).save(tmp_path / "a.jpg", exif=exif)
    uri = thumbnail(tmp_path / "a.jpg", 100)
    assert uri is not None
    import base64
    import io

    with Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))) as image:
        assert image.size == (50, 100)
    (tmp_path / "b.jpg").write_bytes(b"no")
    assert thumbnail(tmp_path / "b.jpg") is None and thumbnail(tmp_path / "none.jpg") is None
