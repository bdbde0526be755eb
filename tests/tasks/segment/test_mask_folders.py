"""Images and masks: which belong together, what the values mean, and what is wrong with them."""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageOps

from vitrail.data.description import describe, trainable
from vitrail.data.layouts.recognise import read_dataset
from vitrail.dataset import Dataset
from vitrail.errors import VitrailError
from vitrail.images.unreadable import UnreadableImage
from vitrail.tasks.dense_options import IGNORE, DenseOptions
from vitrail.tasks.segment.mask_files import Mask

Photos = Callable[..., Path]
SIZE = (40, 48)  # height, width of the photos


def png(values: np.ndarray, mode: str | None = None) -> bytes:
    image = Image.fromarray(values)
    if mode == "P":
        image.putpalette([0, 0, 0, 200, 0, 0, 0, 200, 0, 0, 0, 200] + [9, 9, 9] * 252)
    buffer = io.BytesIO()
    (image if mode in (None, "P") else image.convert(mode)).save(buffer, "PNG")
    return buffer.getvalue()


def indices(seed: int = 0, classes: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, SIZE, dtype=np.uint8)


def kinds(dataset: Dataset) -> dict[str, int]:
    return {finding.kind: finding.count for finding in dataset.findings}


def read(dataset: Dataset) -> list[np.ndarray]:
    return [item.target.read() for item in dataset.items if isinstance(item.target, Mask)]


@pytest.fixture
def pairs(photos: Photos, make: SimpleNamespace) -> Callable[..., Path]:
    """Three images and their masks, `pairs(values, ...)` with values of the masks and folder names."""

    def write(*values: np.ndarray, images: str = "images", masks: str = "masks", end: str = ".png") -> Path:
        folder = photos(*(f"{images}/{n}.jpg" for n in range(max(1, len(values)))))
        for n, one in enumerate(values):
            make.put(folder / masks / f"{n}{end}", png(one))
        return folder

    return write


def names(folder: Path, *lines: str, file: str = "classes.txt") -> None:
    (folder / file).write_text("\n".join(lines))


# ---- what lies where


def test_images_and_masks(pairs: Callable[..., Path]) -> None:
    folder = pairs(indices(0), indices(1), indices(2))
    names(folder, "ground", "car", "bus")
    dataset = read_dataset(folder)
    assert (dataset.layout, dataset.task, dataset.labels) == ("masks", "segment", ("ground", "car", "bus"))
    assert not dataset.findings and trainable(dataset) is dataset
    assert [item.path.name for item in dataset.items] == ["0.jpg", "1.jpg", "2.jpg"]
    for n, mask in enumerate(read(dataset)):
        assert mask.dtype == np.uint8 and (mask == indices(n)).all()
    expected = "3 images with masks of 3 classes (images and masks), no validation part: 20 % will be held out"
    assert describe(dataset) == expected
    assert dataset.items[0].classes() == ()


@pytest.mark.parametrize(
    ("images", "masks"),
    [
        ("images/{part}", "masks/{part}"),
        ("{part}/images", "{part}/masks"),
        ("{part}", "{part}annot"),
        ("{part}", "{part}_labels"),
        ("images/{part}/deep", "labels/{part}/deep"),
        ("JPEGImages/{part}", "SegmentationClass/{part}"),
    ],
)
def test_parts_are_recognised(images: str, masks: str, photos: Photos, make: SimpleNamespace) -> None:
    for part, count in (("train", 3), ("val", 2), ("test", 1)):
        folder = photos(*(f"{images.format(part=part)}/{part}{n}.jpg" for n in range(count)))
        for n in range(count):
            make.put(folder / masks.format(part=part) / f"{part}{n}.png", png(indices(n)))
    dataset = read_dataset(folder)
    assert dataset.layout == "masks"
    assert [len(dataset.part(part)) for part in ("train", "val", "test")] == [3, 2, 1]
    assert "(images and masks by part): train 3, val 2, test 1" in describe(dataset)
    assert all(item.path.stem == item.target.path.stem for item in dataset.items if isinstance(item.target, Mask))


@pytest.mark.parametrize("end", ["_mask.png", "-label.png", "_L.png", "_gt.bmp"])
def test_masks_with_an_end_to_their_names(end: str, pairs: Callable[..., Path], make: SimpleNamespace) -> None:
    dataset = read_dataset(pairs(indices(0), indices(1), end=end))
    assert len(dataset.items) == 2 and kinds(dataset) == {"unnamed-classes": 3}


def test_pairs_that_are_named(pairs: Callable[..., Path]) -> None:
    folder = pairs(indices(0), indices(1), images="train", masks="by hand/of train")
    dense = DenseOptions(pairs="train : by hand/of train")
    assert [item.split for item in read_dataset(folder, dense=dense).items] == ["train", "train"]
    with pytest.raises(VitrailError, match="there is no folder .*nowhere, which pairs names"):
        read_dataset(folder, dense=DenseOptions(pairs="train:nowhere"))
    with pytest.raises(VitrailError, match="pairs are written as 'images:masks"):
        read_dataset(folder, dense=DenseOptions(pairs="train"))


def test_named_pairs_without_a_file_in_common(pairs: Callable[..., Path], make: SimpleNamespace) -> None:
    folder = pairs(images="train", masks="other")
    (folder / "empty").mkdir()
    make.put(folder / "other" / "stranger.png", png(indices(0)))
    with pytest.raises(VitrailError, match="1 image has no mask; add a mask of the same name"):
        read_dataset(folder, dense=DenseOptions(pairs="train:other"))
    with pytest.raises(VitrailError, match="there is no image in the folders that pairs names"):
        read_dataset(folder, dense=DenseOptions(pairs="empty:empty"))


def test_voc_lists_say_which_part(photos: Photos, make: SimpleNamespace) -> None:
    folder = photos(*(f"JPEGImages/{n}.jpg" for n in range(5)))
    for n in range(3):  # the others are for other tasks
        make.put(folder / "SegmentationClass" / f"{n}.png", png(indices(n)))
    make.put(folder / "ImageSets/Segmentation/train.txt", b"0\n1\n")
    make.put(folder / "ImageSets/Segmentation/val.txt", b"2\n")
    dataset = read_dataset(folder)
    assert [item.split for item in dataset.items] == ["train", "train", "val"]
    assert "no-mask" not in kinds(dataset)


def test_class_folders_of_any_name_stay_class_folders(photos: Photos) -> None:
    assert read_dataset(photos("images/1.png", "masks/2.png")).layout == "folders"
    assert read_dataset(photos("cat/1.png", "catmask/3.png")).layout == "folders"


def test_missing_pairs_are_named_and_counted(pairs: Callable[..., Path], make: SimpleNamespace) -> None:
    folder = pairs(*(indices(n) for n in range(4)))
    (folder / "masks/2.png").unlink()
    make.put(folder / "masks/other.png", png(indices()))
    dataset = read_dataset(folder)
    found = {finding.kind: finding for finding in dataset.findings}
    assert len(dataset.items) == 3
    assert found["no-mask"].severity == "error" and found["no-mask"].examples[0].files[0].name == "2.jpg"
    assert found["no-image"].severity == "warning" and found["no-image"].examples[0].files[0].name == "other.png"


def test_sizes_that_differ_are_named_and_left_out(pairs: Callable[..., Path], make: SimpleNamespace) -> None:
    folder = pairs(*(indices(n) for n in range(3)))
    make.put(folder / "masks/1.png", png(indices().T))
    dataset = read_dataset(folder)
    (finding,) = [one for one in dataset.findings if one.kind == "sizes-differ"]
    assert finding.severity == "error" and finding.examples[0].note == "mask 40 x 48, image 48 x 40"
    assert [item.path.name for item in dataset.items] == ["0.jpg", "2.jpg"]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_mask_of_a_turned_photo_is_upright(
    orientation: int, pairs: Callable[..., Path], make: SimpleNamespace
) -> None:
    """Made upright it stays; made on the stored pixels, as its size shows, it is turned along."""
    folder = pairs(indices(0), indices(1))
    names(folder, "ground", "car", "bus")
    make.put(folder / "images/1.jpg", make.turned(orientation))
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(indices(1))
    stored.getexif().update(exif)
    upright = np.asarray(ImageOps.exif_transpose(stored))
    mask = read(read_dataset(folder))[1]
    assert (mask == (upright if orientation > 4 else indices(1))).all()
    make.put(folder / "masks/1.png", png(upright))
    again = read_dataset(folder)
    assert (read(again)[1] == upright).all() and not again.findings


# ---- what the values mean


def test_palette_and_index_files_mean_the_same(pairs: Callable[..., Path], make: SimpleNamespace) -> None:
    folder = pairs(indices(0), indices(0), indices(0))
    make.put(folder / "masks/1.png", png(indices(0), "P"))
    make.put(folder / "masks/2.png", png(indices(0), "RGB"))
    for mask in read(read_dataset(folder)):
        assert (mask == indices(0)).all()


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_grey_files_of_few_bits_keep_their_indices(
    bits: int, pairs: Callable[..., Path], make: SimpleNamespace
) -> None:
    values = indices(0, classes=2**bits)
    packed = np.packbits(np.unpackbits(values[..., None], axis=2)[..., 8 - bits :].reshape(SIZE[0], -1), axis=1)
    raw = b"".join(b"\0" + row.tobytes() for row in packed)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", SIZE[1], SIZE[0], bits, 0, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    folder = pairs(indices(0))
    make.put(folder / "masks/0.png", whole)
    assert (read(read_dataset(folder))[0] == values).all()


@pytest.mark.parametrize(
    "table",
    ["0 0 0 ground\n200 0 0 car park\n0 200 0 bus\n", "name,r,g,b\nground,0,0,0\ncar park,200,0,0\nbus,0,200,0\n",
     "# label:color_rgb:parts:actions\nground:0,0,0::\ncar park:200,0,0::\nbus:0,200,0::\n"],
)  # fmt: skip
def test_colours_by_a_table(table: str, pairs: Callable[..., Path]) -> None:
    colours = np.array([(0, 0, 0), (200, 0, 0), (0, 200, 0)], dtype=np.uint8)
    folder = pairs(colours[indices(0)], np.zeros((*SIZE, 3), np.uint8))
    with pytest.raises(VitrailError, match="is a mask in colours, and no file says what they mean"):
        read_dataset(folder)
    names(folder, table, file="table.txt")
    dataset = read_dataset(folder, dense=DenseOptions(colours="table.txt"))
    assert dataset.labels == ("ground", "car park", "bus")
    first, second = read(dataset)
    assert (first == indices(0)).all() and not second.any()


def test_a_colour_that_is_not_in_the_table(pairs: Callable[..., Path]) -> None:
    values = np.full((*SIZE, 3), 7, np.uint8)
    folder = pairs(values, np.zeros_like(values), np.zeros_like(values))
    names(folder, "0 0 0 ground", "200 0 0 car", file="colours.txt")
    with pytest.raises(UnreadableImage, match="0.png holds the colour 7 7 7, no class of colours.txt"):
        read(read_dataset(folder))


def test_void_is_not_learnt(pairs: Callable[..., Path]) -> None:
    folder = pairs(indices(0, 4))
    names(folder, "ground", "Void", "car", "bus")
    dataset = read_dataset(folder)
    assert dataset.labels == ("ground", "car", "bus") and kinds(dataset) == {"void-class": 1}
    assert (read(dataset)[0] == np.array([0, IGNORE, 1, 2])[indices(0, 4)]).all()


def test_the_index_to_ignore_can_be_said(pairs: Callable[..., Path]) -> None:
    folder = pairs(indices(0, 4))
    names(folder, "ground", "car", "bus")
    mask = read(read_dataset(folder, dense=DenseOptions(ignore=3)))[0]
    assert (mask == np.array([0, 1, 2, IGNORE])[indices(0, 4)]).all()
    names(folder, "ground", "car", "bus", "bike")
    first = read_dataset(folder, dense=DenseOptions(ignore=0))
    assert first.labels == ("car", "bus", "bike")
    assert (read(first)[0] == np.array([IGNORE, 0, 1, 2])[indices(0, 4)]).all()
    with pytest.raises(VitrailError, match="ignore is an index from 0 to 255"):
        DenseOptions(ignore=256)


def test_255_is_ignored_and_all_ignored_is_a_mask(pairs: Callable[..., Path]) -> None:
    folder = pairs(np.full(SIZE, 255, np.uint8), indices(0))
    names(folder, "ground", "car", "bus")
    assert (read(read_dataset(folder))[0] == IGNORE).all()


def test_an_index_that_nobody_declared_is_an_error_with_the_fix(pairs: Callable[..., Path]) -> None:
    folder = pairs(indices(0, 4), indices(1, 4))
    names(folder, "ground", "car", "bus")
    dataset = read_dataset(folder)
    assert kinds(dataset) == {"unknown-class-index": 2}
    with pytest.raises(VitrailError) as caught:
        trainable(dataset)
    assert "holds the index 3, no class of classes.txt" in str(caught.value) and "ignore 3" in str(caught.value)
    with pytest.raises(UnreadableImage, match="0.png holds the index 3"):
        read(dataset)


def test_without_names_the_values_are_the_names(pairs: Callable[..., Path]) -> None:
    dataset = read_dataset(pairs(np.array([0, 7, 20, 255], np.uint8)[indices(0, 4)]))
    assert dataset.labels == ("0", "7", "20") and kinds(dataset) == {"unnamed-classes": 3}
    assert (read(dataset)[0] == np.array([0, 1, 2, IGNORE])[indices(0, 4)]).all()


def test_black_and_white_is_background_and_object(pairs: Callable[..., Path], make: SimpleNamespace) -> None:
    values = indices(0, 2)
    assert (read(read_dataset(pairs(values * 255)))[0] == values).all()
    dataset = read_dataset(pairs(values * 255))
    assert dataset.labels == ("background", "object")


def test_numbered_names_and_data_yaml(pairs: Callable[..., Path]) -> None:
    folder = pairs(np.array([3, 5], np.uint8)[indices(0, 2)])
    names(folder, "3: car", "5: traffic light", file="these.txt")
    dataset = read_dataset(folder, dense=DenseOptions(classes=str(folder / "these.txt")))
    assert dataset.labels == ("car", "traffic light") and (read(dataset)[0] == indices(0, 2)).all()
    names(folder, "names:", "  3: car", "  5: 'traffic light'", file="data.yaml")
    assert read_dataset(folder).labels == ("car", "traffic light")
    with pytest.raises(VitrailError, match="there is no file nothing.txt, which classes names"):
        read_dataset(folder, dense=DenseOptions(classes="nothing.txt"))
    names(folder, "a", "a", file="these.txt")
    with pytest.raises(VitrailError, match="names a class twice"):
        read_dataset(folder, dense=DenseOptions(classes="these.txt"))


@pytest.mark.parametrize(
    ("values", "end", "words"),
    [
        (np.zeros(SIZE, np.uint8), ".jpg", "is a JPEG, which blurs"),
        (np.full(SIZE, 300, np.uint16), ".png", "holds the index 300"),
    ],
)
def test_files_that_are_no_masks(
    values: np.ndarray, end: str, words: str, pairs: Callable[..., Path], make: SimpleNamespace
) -> None:
    folder = pairs(indices(0), indices(1), indices(2))
    names(folder, "ground", "car", "bus")
    (folder / "masks/1.png").unlink()
    form = "JPEG" if end == ".jpg" else "PNG"
    make.put(folder / f"masks/1{end}", make.encoded(Image.fromarray(values), form))
    with pytest.raises(UnreadableImage, match=words):
        read_dataset(folder).items[1].target.read()  # type: ignore[union-attr]


def test_broken_masks_are_named(pairs: Callable[..., Path], make: SimpleNamespace) -> None:
    folder = pairs(*(indices(n) for n in range(4)))
    names(folder, "ground", "car", "bus")
    make.put(folder / "masks/0.png", b"")
    whole = (folder / "masks/1.png").read_bytes()
    make.put(folder / "masks/1.png", whole[: len(whole) // 2])
    dataset = read_dataset(folder)
    assert kinds(dataset) == {"broken-masks": 1} and len(dataset.items) == 3
    with pytest.raises(UnreadableImage, match="1.png is truncated"):
        dataset.items[0].target.read()  # type: ignore[union-attr]


def test_odd_sizes(photos: Photos, make: SimpleNamespace) -> None:
    for n, (height, width) in enumerate([(1, 1), (1, 97), (33, 1), (31, 77)]):
        make.put(photos() / f"images/{n}.png", make.encoded(make.photo(n, (width, height)), "PNG"))
        make.put(photos() / f"masks/{n}.png", png(np.full((height, width), n % 2, np.uint8)))
    assert [mask.shape for mask in read(read_dataset(photos()))] == [(1, 1), (1, 97), (33, 1), (31, 77)]


# ---- masks as targets


def test_a_mask_is_what_it_holds(pairs: Callable[..., Path], make: SimpleNamespace) -> None:
    folder = pairs(indices(0), indices(1), indices(0))
    names(folder, "ground", "car", "bus")
    first, second, third = (item.target for item in read_dataset(folder).items)
    assert first == third and hash(first) == hash(third) and first != second
    assert str(first) == str(third) != str(second)
    again = pickle.loads(pickle.dumps(first))
    assert again == first and (again.read() == first.read()).all()  # type: ignore[union-attr]
    ignoring = read_dataset(folder, dense=DenseOptions(ignore=1)).items[0].target
    assert ignoring != first and str(ignoring) != str(first)
    make.put(folder / "masks/0.png", png(indices(5)))
    assert str(read_dataset(folder).items[0].target) != str(first)
