"""Boxes from COCO, Pascal VOC and YOLO: the same objects however they are written, and what is wrong with them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from tests.hostile import outcome
from vitrail.data.description import describe, trainable
from vitrail.data.layouts.recognise import read_dataset
from vitrail.data.loading.split import hold_out
from vitrail.dataset import Dataset
from vitrail.errors import VitrailError
from vitrail.tasks.dense_options import IGNORE, DenseOptions
from vitrail.tasks.detect.boxes import Boxes
from vitrail.tasks.shared.labels.class_names import read_colours

Photos = Callable[..., Path]
Object = tuple[str, float, float, float, float]  # class, left, top, right, bottom
NAMES = ("cat", "dog")
WIDTH, HEIGHT = 48, 40
GOOD: list[list[Object]] = [[("cat", 4, 8, 16, 24), ("dog", 0, 0, 48, 40)], [("dog", 12, 10, 24, 30)], []]


def coco(objects: Sequence[Sequence[Object]], **more: Any) -> dict[str, Any]:
    annotations = [(n, one) for n, some in enumerate(objects) for one in some]
    return {
        "images": [{"id": n, "file_name": f"{n}.jpg", "width": WIDTH, "height": HEIGHT} for n in range(len(objects))],
        "categories": [{"id": 7, "name": "cat"}, {"id": 9, "name": "dog"}],
        "annotations": [
            {
                "id": m,
                "image_id": n,
                "category_id": 7 + 2 * NAMES.index(name),
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                **more,
            }
            for m, (n, (name, x1, y1, x2, y2)) in enumerate(annotations)
        ],
    }


def voc(some: Sequence[Object], width: int = WIDTH, height: int = HEIGHT, first: int = 0, difficult: int = 0) -> bytes:
    objects = "".join(
        f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox><xmin>{x1 + first}</xmin>"
        f"<ymin>{y1 + first}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
        for name, x1, y1, x2, y2 in some
    )
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation><filename>x.jpg</filename>{size}{objects}</annotation>".encode()


def yolo(some: Sequence[Object]) -> bytes:
    lines = [
        f"{NAMES.index(name)} {(x1 + x2) / 2 / WIDTH} {(y1 + y2) / 2 / HEIGHT} {(x2 - x1) / WIDTH} {(y2 - y1) / HEIGHT}"
        for name, x1, y1, x2, y2 in some
    ]
    return "\n".join(lines).encode()


def objects_of(dataset: Dataset) -> list[list[Object]]:
    found = []
    for item in dataset.items:
        assert isinstance(item.target, Boxes)
        rows = zip(item.target.classes, item.target.corners, strict=True)
        found.append([(dataset.labels[n], *(round(v, 4) for v in corners)) for n, corners in rows])
    return found


def kinds(dataset: Dataset) -> dict[str, int]:
    return {finding.kind: finding.count for finding in dataset.findings}


@pytest.fixture
def written(photos: Photos, make: SimpleNamespace) -> Callable[..., Path]:
    """`written("voc", objects)`: pictures 0.jpg, 1.jpg, ... with annotations of a format."""

    def write(form: str, objects: Sequence[Sequence[Object]]) -> Path:
        folder = photos(*(f"{'JPEGImages' if form == 'voc' else 'images'}/{n}.jpg" for n in range(len(objects))))
        if form == "coco":
            make.put(folder / "boxes.json", json.dumps(coco(objects)).encode())
        if form == "yolo":
            make.put(folder / "data.yaml", b"nc: 2\nnames: ['cat', 'dog']\n")
        for n, some in enumerate(objects):
            if form == "voc":
                make.put(folder / f"Annotations/{n}.xml", voc(some))
            elif form == "yolo":
                make.put(folder / f"labels/{n}.txt", yolo(some))
        return folder

    return write


@pytest.mark.parametrize("form", ["coco", "voc", "yolo"])
def test_the_same_objects_in_every_format(form: str, written: Callable[..., Path]) -> None:
    dataset = read_dataset(written(form, GOOD))
    assert (dataset.layout, dataset.task, dataset.labels) == (form, "detect", NAMES)
    assert objects_of(dataset) == GOOD
    assert all(item.target.size == (HEIGHT, WIDTH) for item in dataset.items if isinstance(item.target, Boxes))
    assert kinds(dataset) == {"no-objects": 1} and trainable(dataset) is dataset
    name = {"coco": "COCO", "voc": "Pascal VOC", "yolo": "YOLO"}[form]
    expected = f"3 images with 3 boxes of 2 classes ({name}), no validation part: 20 % will be held out"
    assert describe(dataset) == expected
    assert dataset.class_counts() == [1, 2] and dataset.items[0].classes() == (0, 1)


@pytest.mark.parametrize("form", ["coco", "voc", "yolo"])
def test_one_object_three_hundred_and_none(form: str, written: Callable[..., Path]) -> None:
    many: list[Object] = [("dog", n % 40, n // 40, n % 40 + 5, n // 40 + 7) for n in range(300)]
    dataset = read_dataset(written(form, [[("cat", 1, 1, 2, 2)], many, []]))
    assert [len(some) for some in objects_of(dataset)] == [1, 300, 0]
    assert objects_of(dataset)[1] == many
    assert pickle.loads(pickle.dumps(dataset.items)) == dataset.items


BAD: list[Object] = [
    ("cat", 4, 8, 16, 24),
    ("cat", 16, 8, 4, 24),  # inverted
    ("dog", 5, 5, 5, 9),  # empty
    ("dog", 60, 5, 70, 9),  # outside
    ("dog", 40, 30, 70, 90),  # reaches beyond
    ("cat", 4, 8, 16, 24),  # the first again
]


@pytest.mark.parametrize("form", ["coco", "voc", "yolo"])
def test_bad_boxes_are_named_and_counted(form: str, written: Callable[..., Path]) -> None:
    dataset = read_dataset(written(form, [BAD, *GOOD[:2]]))
    assert objects_of(dataset)[0] == [("cat", 4, 8, 16, 24), ("dog", 40, 30, 48, 40)]
    expected = {"inverted-boxes": 1, "empty-boxes": 1, "outside-boxes": 1, "clipped-boxes": 1, "repeated-boxes": 1}
    assert kinds(dataset) == expected
    by_kind = {finding.kind: finding for finding in dataset.findings}
    assert by_kind["inverted-boxes"].severity == by_kind["outside-boxes"].severity == "error"
    assert by_kind["outside-boxes"].examples[0].files[0].name == "0.jpg"
    assert by_kind["outside-boxes"].examples[0].note.startswith("dog: ")


@pytest.mark.parametrize("form", ["coco", "voc"])
def test_a_size_that_is_not_the_pictures(form: str, written: Callable[..., Path], make: SimpleNamespace) -> None:
    folder = written(form, GOOD)
    picture = folder / ("JPEGImages" if form == "voc" else "images") / "0.jpg"
    make.put(picture, make.encoded(make.photo(0, (96, 80)), "JPEG"))
    dataset = read_dataset(folder)
    (finding,) = [one for one in dataset.findings if one.kind == "sizes-differ"]
    assert finding.severity == "error" and finding.examples[0].note == "is 96 x 80 upright, annotated as 48 x 40"
    assert len(dataset.items) == 2


@pytest.mark.parametrize("orientation", range(5, 9))
def test_boxes_on_stored_pixels_are_turned_along(orientation: int, photos: Photos, make: SimpleNamespace) -> None:
    folder = photos()
    make.put(folder / "0.jpg", make.turned(orientation))
    content = coco([[("cat", 4, 8, 16, 24)]], segmentation=[[4, 8, 16, 8, 16, 24, 4, 24]])
    make.put(folder / "a.json", json.dumps(content).encode())
    stored = Image.fromarray(np.zeros((HEIGHT, WIDTH), np.uint8))
    stored.paste(1, (4, 8, 16, 24))
    stored.getexif()[0x0112] = orientation
    upright = ImageOps.exif_transpose(stored)
    (item,) = read_dataset(folder).items
    assert isinstance(item.target, Boxes)
    assert item.target.corners == (upright.getbbox(),) and item.target.size == (WIDTH, HEIGHT)
    (drawn,) = read_dataset(folder, task="segment").items
    assert (drawn.target.read() == np.asarray(upright)).all()  # type: ignore[union-attr]


@pytest.mark.parametrize("form", ["coco", "voc", "yolo"])
def test_a_picture_that_cannot_be_read_is_left_to_the_check(form: str, written: Callable[..., Path]) -> None:
    folder = written(form, GOOD)
    next(folder.rglob("1.jpg")).write_bytes(b"")
    assert len(read_dataset(folder).items) == 3


# ---- COCO


def test_a_coco_file_by_itself(written: Callable[..., Path]) -> None:
    folder = written("coco", GOOD)
    dataset = read_dataset(folder / "boxes.json")
    assert objects_of(dataset) == GOOD and dataset.table == folder / "boxes.json"


@pytest.mark.parametrize(
    ("file", "image"),
    [
        ("annotations/instances_{part}2017.json", "{part}2017/{n}.jpg"),
        ("annotations/{part}.json", "images/{part}/{n}.jpg"),
        ("{part}/_annotations.coco.json", "{part}/{n}.jpg"),
    ],
)
def test_coco_by_part(file: str, image: str, photos: Photos, make: SimpleNamespace) -> None:
    for part, objects in (("train", GOOD), ("val", GOOD[:2])):
        folder = photos(*(image.format(part=part, n=n) for n in range(len(objects))))
        make.put(folder / file.format(part=part), json.dumps(coco(objects)).encode())
    make.put(folder / "annotations/captions_train2017.json", b'{"images": [], "annotations": [], "info": 1}')
    if not file.startswith("annotations/instances"):
        (folder / "annotations/captions_train2017.json").unlink()
    dataset = read_dataset(folder)
    assert [len(dataset.part(part)) for part in ("train", "val")] == [3, 2]
    assert all(item.split in item.path.parent.name for item in dataset.items if item.split)
    assert objects_of(dataset) == [*GOOD, *GOOD[:2]]


def test_crowds_are_neither_learnt_nor_counted(photos: Photos, make: SimpleNamespace) -> None:
    folder = photos("images/0.jpg", "images/1.jpg")
    make.put(folder / "a.json", json.dumps(coco(GOOD[:2], iscrowd=1)).encode())
    dataset = read_dataset(folder)
    assert dataset.class_counts() == [0, 0] and dataset.items[0].target.crowd == (True, True)  # type: ignore[union-attr]
    with pytest.raises(VitrailError, match="no training image has a box; annotate some"):
        trainable(dataset)


def test_categories_that_nobody_has_are_left_out(photos: Photos, make: SimpleNamespace) -> None:
    folder = photos("0.jpg", "1.jpg", "2.jpg")
    content = coco(GOOD)
    content["categories"].insert(0, {"id": 1, "name": "bird"})
    make.put(folder / "a.json", json.dumps(content).encode())
    dataset = read_dataset(folder)
    assert dataset.labels == NAMES and objects_of(dataset) == GOOD
    assert kinds(dataset)["unused-classes"] == 1


def test_what_does_not_fit_together_in_a_coco_file(photos: Photos, make: SimpleNamespace) -> None:
    folder = photos("0.jpg", "2.jpg")
    content = coco(GOOD)
    content["annotations"] += [
        {"id": 90, "image_id": 77, "category_id": 7, "bbox": [1, 1, 2, 2]},
        {"id": 91, "image_id": 0, "category_id": 5, "bbox": [1, 1, 2, 2]},
    ]
    make.put(folder / "a.json", json.dumps(content).encode())
    dataset = read_dataset(folder)
    assert kinds(dataset) == {"missing": 1, "stray-annotations": 1, "unknown-class-boxes": 1, "no-objects": 1}
    assert dataset.findings[0].examples[0].files[0].name == "1.jpg"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["annotations"][0].update(bbox=[1, 2]), "annotation 0 has a bbox or segmentation that is not"),
        (lambda c: c["annotations"][0].update(bbox="large"), "annotation 0 has a bbox"),
        (lambda c: c["categories"].append({"id": 3}), "a category needs an id and a name"),
        (lambda c: c.update(categories=[]), "has no categories"),
        (lambda c: c["images"].append(3), "in images is not an object"),
        (lambda c: c.update(annotations={}), "is not COCO"),
        (lambda c: c.update(images=c["images"][1:]), "none of its images is there"),
    ],
)  # fmt: skip
def test_coco_files_with_faults(
    change: Callable[[dict[str, Any]], None], words: str, photos: Photos, make: SimpleNamespace
) -> None:
    folder = photos("0.jpg")
    content = coco(GOOD)
    change(content)
    make.put(folder / "a.json", json.dumps(content).encode())
    with pytest.raises(VitrailError, match=words) as caught:
        read_dataset(folder)
    assert "\n" not in str(caught.value)


def test_json_that_is_none_and_several_files(photos: Photos, make: SimpleNamespace) -> None:
    folder = photos("0.jpg", "1.jpg", "2.jpg")
    make.put(folder / "a.json", b'{"images": [], "annotations": ')
    with pytest.raises(VitrailError, match="cannot read .*a.json"):
        read_dataset(folder)
    for name in "ab":
        make.put(folder / f"{name}.json", json.dumps(coco(GOOD)).encode())
    with pytest.raises(VitrailError, match=r"holds 2 files of annotations \(a.json, b.json\): name the one you mean"):
        read_dataset(folder)
    make.put(folder / "c.json", b"{}")
    with pytest.raises(VitrailError, match="c.json is neither"):
        read_dataset(folder / "c.json")


def test_outlines_become_masks(photos: Photos, make: SimpleNamespace) -> None:
    folder = photos("0.jpg", "1.jpg", "2.jpg")
    content = coco(GOOD)
    square = [4, 8, 16, 8, 16, 24, 4, 24]
    runs = {"size": [HEIGHT, WIDTH], "counts": [0, HEIGHT * WIDTH]}
    content["annotations"][0]["segmentation"] = [square]
    content["annotations"][1]["segmentation"] = runs  # the dog fills the picture, below the cat
    content["annotations"][2].update(segmentation=[[12, 10, 24, 10, 24, 30, 12, 30]], iscrowd=1)
    make.put(folder / "a.json", json.dumps(content).encode())
    dataset = read_dataset(folder, task="segment")
    assert dataset.labels == ("background", *NAMES)
    assert describe(dataset).startswith("3 images with masks of 3 classes (COCO)")
    first, second, third = (item.target.read() for item in dataset.items)  # type: ignore[union-attr]
    expected = np.full((HEIGHT, WIDTH), 2)
    expected[8:24, 4:16] = 1
    assert (first == expected).all()
    assert (second[10:30, 12:24] == IGNORE).all() and (second == IGNORE).sum() == 240 and not third.any()
    assert objects_of(read_dataset(folder)) == GOOD  # boxes, unless masks are asked for
    targets = [item.target for item in dataset.items]
    assert len({str(target) for target in targets}) == 3
    content["annotations"][0]["segmentation"] = [[value + 1 for value in square]]
    make.put(folder / "a.json", json.dumps(content).encode())
    assert str(read_dataset(folder, task="segment").items[0].target) != str(targets[0])


def test_outlines_without_boxes_are_segmentation_and_broken_ones_say_so(photos: Photos, make: SimpleNamespace) -> None:
    folder = photos("0.jpg", "1.jpg", "2.jpg")
    content = coco(GOOD)
    for one in content["annotations"]:
        del one["bbox"]
        one["segmentation"] = {"size": [HEIGHT, WIDTH], "counts": [5]}
    make.put(folder / "a.json", json.dumps(content).encode())
    dataset = read_dataset(folder)
    assert dataset.task == "segment"
    with pytest.raises(VitrailError, match="a.json has a broken outline for 0.jpg .its runs cover 5 pixels"):
        dataset.items[0].target.read()  # type: ignore[union-attr]
    make.put(folder / "a.json", json.dumps(coco(GOOD)).encode())
    with pytest.raises(VitrailError, match="has no outlines, which task='segment' needs"):
        read_dataset(folder, task="segment")


# ---- Pascal VOC


def test_voc_counts_from_one_unless_a_box_begins_at_zero(photos: Photos, make: SimpleNamespace) -> None:
    folder = photos("0.jpg", "1.jpg")
    make.put(folder / "0.xml", voc([("cat", 4, 8, 16, 24)], first=1))
    make.put(folder / "1.xml", voc([("dog", 0, 0, 48, 40)], first=1))
    assert objects_of(read_dataset(folder)) == [[("cat", 4, 8, 16, 24)], [("dog", 0, 0, 48, 40)]]


def test_voc_lists_and_what_is_missing(written: Callable[..., Path], make: SimpleNamespace) -> None:
    folder = written("voc", [*GOOD, GOOD[0], GOOD[1], GOOD[0]])
    make.put(folder / "ImageSets/Main/train.txt", b"0\n1\n5\n")
    make.put(folder / "ImageSets/Main/val.txt", b"2 1\n")
    make.put(folder / "ImageSets/Main/trainval.txt", b"0\n1\n2\n")
    make.put(folder / "ImageSets/Main/cat_train.txt", b"0 1\n1 -1\n")
    make.put(folder / "Annotations/gone.xml", voc(GOOD[0]))
    make.put(folder / "Annotations/5.xml", b"<annotation><object>")
    (folder / "Annotations/4.xml").unlink()
    dataset = read_dataset(folder)
    assert [(item.path.stem, item.split) for item in dataset.items] == [("0", "train"), ("1", "train"), ("2", "val")]
    expected = {"broken-annotations": 1, "no-image": 1, "no-annotation": 2, "unlisted": 1, "no-objects": 1}
    assert kinds(dataset) == expected
    make.put(folder / "ImageSets/Main/test.txt", b"0\n")
    with pytest.raises(VitrailError, match="lists 0 in train and in test"):
        read_dataset(folder)


def test_voc_by_part_difficult_and_without_a_size(photos: Photos, make: SimpleNamespace) -> None:
    folder = photos("train/0.jpg", "train/1.jpg", "valid/0.jpg")
    make.put(folder / "train/0.xml", voc(GOOD[0], 0, 0))
    make.put(folder / "train/1.xml", voc(GOOD[1], difficult=1))
    make.put(folder / "valid/0.xml", voc(GOOD[1]))
    dataset = read_dataset(folder)
    assert [item.split for item in dataset.items] == ["train", "train", "val"]
    assert dataset.items[1].target.crowd == (True,)  # type: ignore[union-attr]
    assert dataset.class_counts() == [1, 2]


# ---- YOLO


@pytest.mark.parametrize(
    "names",
    [b"names: [cat, 'dog']  # two\n", b"names:\n  0: cat\n  1: dog\nnc: 2\n", b"nc: 2\nnames:\n- cat\n- \"dog\"\n",
     b"names:\n  - cat\n  # a remark\n  - dog\n\ntrain: x\n", b"names: {0: cat, 1: dog}\n",
     b"names: ['cat',\n  'dog']\n"],
)  # fmt: skip
@pytest.mark.parametrize(
    "where",
    [("images/{part}/{n}", "labels/{part}/{n}"), ("{part}/images/{n}", "{part}/labels/{n}"), ("{part}/{n}",) * 2],
)
def test_yolo_by_part_and_its_names(
    names: bytes, where: tuple[str, str], photos: Photos, make: SimpleNamespace
) -> None:
    for part, objects in (("train", GOOD), ("val", GOOD[:1])):
        for n, some in enumerate(objects):
            folder = photos(where[0].format(part=part, n=n) + ".jpg")
            make.put(folder / (where[1].format(part=part, n=n) + ".txt"), yolo(some))
    make.put(folder / "data.yaml", names)
    dataset = read_dataset(folder)
    assert dataset.layout == "yolo" and dataset.labels == NAMES
    assert [item.split for item in dataset.items] == ["train", "train", "train", "val"]
    assert objects_of(dataset) == [*GOOD, GOOD[0]]


def test_yolo_without_names_or_files(written: Callable[..., Path], make: SimpleNamespace) -> None:
    folder = written("yolo", [*GOOD, GOOD[0], GOOD[0]])
    (folder / "data.yaml").unlink()
    (folder / "labels/3.txt").unlink()
    make.put(folder / "labels/4.txt", b"0 0.5 0.5\n")
    make.put(folder / "labels/gone.txt", yolo(GOOD[0]))
    dataset = read_dataset(folder)
    assert dataset.labels == ("0", "1")
    expected = {"unnamed-classes": 2, "broken-annotations": 1, "no-image": 1, "no-annotation": 1, "no-objects": 2}
    assert kinds(dataset) == expected
    (broken,) = [one for one in dataset.findings if one.kind == "broken-annotations"]
    assert broken.examples[0].note == "line 1 has 3 numbers; 'class x y width height' has 5"
    names = read_dataset(folder, dense=DenseOptions(classes=str(make.put(folder / "mine", b"Katze\nHund\n")))).labels
    assert names == ("Katze", "Hund")


def test_a_class_beyond_the_names_is_an_error(written: Callable[..., Path], make: SimpleNamespace) -> None:
    folder = written("yolo", GOOD)
    make.put(folder / "data.yaml", b"names: [cat]\n")
    dataset = read_dataset(folder)
    assert kinds(dataset)["unknown-class-boxes"] == 2 and dataset.class_counts() == [1]


def test_yolo_outlines(written: Callable[..., Path], make: SimpleNamespace) -> None:
    folder = written("yolo", GOOD)
    corners = [(4, 8), (16, 8), (16, 24), (4, 24)]
    line = "0 " + " ".join(f"{x / WIDTH} {y / HEIGHT}" for x, y in corners)
    make.put(folder / "labels/0.txt", line.encode())
    assert objects_of(read_dataset(folder))[0] == [("cat", 4, 8, 16, 24)]
    mask = read_dataset(folder, task="segment").items[0].target.read()  # type: ignore[union-attr]
    assert (mask[8:24, 4:16] == 1).all() and mask.sum() == 16 * 12


def test_captions_beside_pictures_are_no_boxes(photos: Photos, make: SimpleNamespace) -> None:
    folder = photos("cat/1.jpg", "dog/2.jpg")
    make.put(folder / "cat/1.txt", b"a cat on a mat")
    make.put(folder / "dog/2.txt", b"0 0.5 0.5 0.2 0.2")
    assert read_dataset(folder).layout == "folders"


# ---- all of them


def test_the_split_keeps_some_of_every_class(written: Callable[..., Path]) -> None:
    dataset = read_dataset(written("yolo", [[("cat", 1, 1, 9, 9)] * (n % 5 == 0) + GOOD[1] for n in range(30)]))
    parted = hold_out(dataset)
    assert all(parted.class_counts("train")) and all(parted.class_counts("val"))


def test_layouts_and_tasks_that_do_not_fit(written: Callable[..., Path], photos: Photos) -> None:
    folder = written("voc", GOOD)
    with pytest.raises(VitrailError, match="was taken as voc, which cannot teach task='classify'"):
        read_dataset(folder, layout="voc", task="classify")
    with pytest.raises(VitrailError, match="has nothing to learn segment from: images/ and masks/"):
        read_dataset(folder, task="segment")
    with pytest.raises(VitrailError, match="holds no annotations of the layout coco"):
        read_dataset(folder, layout="coco")
    with pytest.raises(VitrailError, match="targets are columns of a table"):
        read_dataset(folder, targets=["age"])
    with pytest.raises(VitrailError, match="which cannot teach task='detect': a COCO file"):
        read_dataset(folder, layout="folders", task="detect")


JSON = st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3) | st.just([]) | st.just({})


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """The way to everything inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


def test_an_annotation_of_no_image_is_counted_even_where_an_image_has_no_id(photos: Photos) -> None:
    folder = photos("0.jpg", "1.jpg", "2.jpg")
    content = coco(GOOD, iscrowd=0)
    del content["images"][0]["id"], content["annotations"][1]["image_id"]
    (folder / "a.json").write_text(json.dumps(content))
    assert "stray-annotations" in {finding.kind for finding in read_dataset(folder / "a.json").findings}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_coco_file_is_read_or_refused_in_a_sentence(data: st.DataObject, photos: Photos) -> None:
    folder = photos()
    if not (folder / "0.jpg").exists():
        photos("0.jpg", "1.jpg", "2.jpg")
    content = coco(GOOD, segmentation={"size": [HEIGHT, WIDTH], "counts": [5, 3, HEIGHT * WIDTH - 8]}, iscrowd=0)
    for _ in range(data.draw(st.integers(1, 2))):
        *way, last = data.draw(st.sampled_from([place for place in places(content) if place]))
        holder: Any = content
        for key in way:
            holder = holder[key]
        holder[last] = data.draw(JSON)
    (folder / "a.json").write_text(json.dumps(content))
    for task in (None, "segment"):
        try:
            for item in read_dataset(folder / "a.json", task=task).items:
                if task == "segment":
                    item.target.read()  # type: ignore[union-attr]
                for x1, y1, x2, y2 in getattr(item.target, "corners", ()):
                    assert 0 <= x1 < x2 <= WIDTH and 0 <= y1 < y2 <= HEIGHT
        except VitrailError as error:
            assert "\n" not in str(error) and len(str(error)) < 500


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.sampled_from(["0", "1", "-1", "0.5", "1e400", "nan", "inf", "1e30", "x", "\n", "3"]), max_size=14)
)
def test_damaged_numbers_are_read_or_counted(words: list[str], photos: Photos, make: SimpleNamespace) -> None:
    folder = photos()
    if not (folder / "images/0.jpg").exists():
        photos("images/0.jpg", "images/1.jpg", "images/2.jpg", "voc/0.jpg", "voc/1.jpg")
    for n in (0, 1):
        make.put(folder / f"labels/{n}.txt", yolo(GOOD[n]))
    make.put(folder / "labels/2.txt", " ".join(words).encode())
    assert len(read_dataset(folder, layout="yolo").items) in (2, 3)
    numbers = [*words, "1", "1", "9", "9", "5", "5"][:6]
    text = voc([("cat", 1, 1, 1, 1)], 1, 1)
    for number in numbers:
        text = text.replace(b">1<", f">{number.strip()}.<".encode(), 1)
    make.put(folder / "voc/0.xml", text)
    make.put(folder / "voc/1.xml", voc(GOOD[0]))
    assert len(read_dataset(folder / "voc").items) in (1, 2)


# ---- files that somebody made to do harm


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"images": ' + b"[" * 200_000 + b"]" * 200_000 + b', "annotations": []}', "nested too deeply"),
        (json.dumps(coco(GOOD)).replace('"cat"', r'"\ud800"').encode(), "class name .* is no text"),
        (json.dumps(coco(GOOD)).replace('"id": 7', '"id": ' + "7" * 5000).encode(), "cannot read"),
    ],
)
def test_hostile_coco_is_refused_in_a_sentence(text: bytes, words: str, photos: Photos, make: SimpleNamespace) -> None:
    folder = photos("0.jpg", "1.jpg", "2.jpg")
    make.put(folder / "a.json", text)
    with pytest.raises(VitrailError, match=words) as caught:
        read_dataset(folder / "a.json")
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500


@pytest.mark.parametrize("name", ["\ud800.jpg", "x" * 5000, "a\0b.jpg", "\x1b[2J.jpg", "../" * 2000])
def test_names_that_no_file_can_have_are_missing_images(name: str, photos: Photos, make: SimpleNamespace) -> None:
    folder = photos("0.jpg", "1.jpg", "2.jpg")
    content = coco(GOOD)
    content["images"][2]["file_name"] = name
    make.put(folder / "a.json", json.dumps(content).encode())
    dataset = read_dataset(folder)
    missing = next(finding for finding in dataset.findings if finding.kind == "missing")
    assert missing.count == 1 and len(dataset.items) == 2
    assert missing.to_dict(folder)["examples"][0]["files"][0].isprintable()


def test_a_label_of_thousands_of_digits_is_a_name(photos: Photos, make: SimpleNamespace) -> None:
    folder, long = photos("0.jpg", "1.jpg"), "9" * 5000
    make.put(folder / "0.xml", voc([(long, 0, 0, 5, 5), ("2", 0, 0, 9, 9), ("10", 0, 0, 7, 7)]))
    make.put(folder / "1.xml", voc([("2", 0, 0, 9, 9)]))
    assert read_dataset(folder).labels == ("2", "10", long)


def test_many_categories_take_no_time_that_grows_with_their_square(photos: Photos, make: SimpleNamespace) -> None:
    folder, content = photos("0.jpg", "1.jpg", "2.jpg"), coco(GOOD)
    content["categories"] = [{"id": n, "name": f"class {n}"} for n in range(100_000)]
    make.put(folder / "a.json", json.dumps(content).encode())
    code = f"""
    from vitrail.data.layouts.recognise import read_dataset
    print(*read_dataset({str(folder / "a.json")!r}).labels)
    """
    assert outcome(code, folder, seconds=30) == "class 7 class 9"


def test_the_size_that_an_annotation_claims_is_not_believed(photos: Photos, make: SimpleNamespace) -> None:
    """Of an image that cannot be read, nothing else is known."""
    folder, content = photos("1.jpg", "2.jpg"), coco(GOOD, segmentation=[[1, 1, 9, 1, 9, 9]])
    make.put(folder / "0.jpg", b"no picture")
    content["images"][0].update(width=10**6, height=10**6)
    make.put(folder / "a.json", json.dumps(content).encode())
    code = f"""
    from vitrail.data.layouts.recognise import read_dataset
    read_dataset({str(folder / "a.json")!r}, task="segment").items[0].target.read()
    """
    assert "has more than 178,956,970 pixels" in outcome(code, folder, megabytes=1500)


@pytest.mark.parametrize("encoding", ["foo-8", "utf-7", "base64", "undefined", "utf-16"])
def test_an_encoding_that_xml_cannot_have(encoding: str, photos: Photos, make: SimpleNamespace) -> None:
    folder = photos("0.jpg", "1.jpg")
    make.put(folder / "0.xml", f'<?xml version="1.0" encoding="{encoding}"?>'.encode() + voc(GOOD[0]))
    make.put(folder / "1.xml", voc(GOOD[1]))
    dataset = read_dataset(folder)
    assert len(dataset.items) == 1 and kinds(dataset)["broken-annotations"] == 1


def test_lists_of_parts_in_another_encoding(written: Callable[..., Path], make: SimpleNamespace) -> None:
    folder = written("voc", GOOD)
    make.put(folder / "ImageSets/Main/train.txt", "0\ncafé\n".encode("latin-1"))
    with pytest.raises(VitrailError, match="train.txt is not UTF-8 text: save it again as UTF-8"):
        read_dataset(folder)


@pytest.mark.parametrize("names", ["9000000000: dog", "65536: dog", f"{'9' * 900}: dog"])
def test_a_class_with_an_enormous_number(names: str, written: Callable[..., Path], make: SimpleNamespace) -> None:
    folder = written("yolo", GOOD)
    make.put(folder / "data.yaml", f"names:\n  0: cat\n  {names}\n".encode())
    code = f"""
    from vitrail.data.layouts.recognise import read_dataset
    read_dataset({str(folder)!r})
    """
    assert "numbers go up to 65,535" in outcome(code, folder)


@pytest.mark.parametrize("number", ["²", "9" * 5000, "256", "-1"])
def test_a_colour_that_is_none(number: str, tmp_path: Path) -> None:
    (tmp_path / "colours.txt").write_text(f"{number} 0 0 car\n0 0 {number} road\n", encoding="utf-8")
    with pytest.raises(VitrailError, match="is not 'R G B name'"):
        read_colours(tmp_path / "colours.txt")
