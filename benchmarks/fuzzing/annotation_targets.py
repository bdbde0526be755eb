"""What is fuzzed: annotations, tables, names of classes, outlines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from benchmarks.fuzzing.target import Target


def pictures(folder: Path, names: Iterable[str]) -> None:
    from PIL import Image

    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / name).exists():
            Image.new("RGB", (24, 16), "red").save(folder / name)


def read_all(path: Path, layout: str | None = None, tasks: Iterable[str | None] = (None,)) -> None:
    """Every target of a set, for every task that might take it."""
    from vitrail.data.layouts.recognise import read_dataset
    from vitrail.errors import VitrailError
    from vitrail.tasks.segment.mask_files import Mask

    errors = []
    for task in tasks:
        try:
            dataset = read_dataset(path, layout=layout, task=task)
            for item in dataset.items:
                if isinstance(item.target, Mask):
                    item.target.read()
            json.dumps([finding.to_dict(dataset.root) for finding in dataset.findings])
        except VitrailError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def coco(data: bytes, folder: Path) -> None:
    """The second picture cannot be read, so that what is said of its size is believed."""
    pictures(folder, ("0.png",))
    (folder / "1.png").write_bytes(b"no picture")
    (folder / "a.json").write_bytes(data)
    read_all(folder / "a.json", tasks=(None, "segment"))


def voc(data: bytes, folder: Path) -> None:
    pictures(folder, ("0.png", "1.png"))
    for number, part in enumerate(data.split(b"\0", 1)):
        (folder / f"{number}.xml").write_bytes(part)
    read_all(folder, "voc")


def yolo(data: bytes, folder: Path) -> None:
    pictures(folder, ("images/0.png", "images/1.png"))
    (folder / "labels").mkdir(exist_ok=True)
    parts = [*data.split(b"\0", 2), b"", b""]
    for name, part in zip(("data.yaml", "labels/0.txt", "labels/1.txt"), parts, strict=False):
        (folder / name).write_bytes(part)
    read_all(folder, "yolo", (None, "segment"))


def table(data: bytes, folder: Path) -> None:
    pictures(folder, ("0.png", "1.png"))
    (folder / "table.csv").write_bytes(data)
    read_all(folder / "table.csv", tasks=(None, "multilabel", "regress"))


def names(data: bytes, folder: Path) -> None:
    """The names and colours of classes."""
    from vitrail.tasks.shared.labels.class_names import read_colours, read_names

    (folder / "names.txt").write_bytes(data[1:])
    (read_names if data[:1] < b"\x80" else read_colours)(folder / "names.txt")


def outlines(data: bytes, folder: Path) -> None:
    """Compressed run lengths, run lengths as numbers, and polygons, of pictures up to 255 x 255."""
    from vitrail.errors import VitrailError
    from vitrail.images.polygons import inside
    from vitrail.images.rle import decode_rle

    kind, height, width = (*data[:3], 0, 0, 0)[:3]
    body = data[3:]
    try:
        if kind % 3 == 0:
            mask = decode_rle(body.decode("latin-1"), (height, width))
        elif kind % 3 == 1:
            runs = [int.from_bytes(body[n : n + 9], signed=True) for n in range(0, len(body), 9)]
            mask = decode_rle(runs, (height, width))
        else:
            numbers = np.frombuffer(body[: len(body) // 16 * 16], dtype=np.float64)
            mask = inside(numbers.reshape(-1, 2), (height, width))
    except (ValueError, OverflowError) as error:  # what DrawnMask turns into a sentence
        raise VitrailError(str(error)) from None
    assert mask.shape == (height, width)


def annotation_seeds() -> dict[str, list[bytes]]:
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    images = [{"id": n, "file_name": f"{n}.png", "width": 24, "height": 16} for n in range(2)]
    box = {"id": 1, "image_id": 0, "category_id": 1, "bbox": [2, 3, 8, 9], "iscrowd": 0}
    outlined = [
        {**box, "segmentation": [[1, 1, 9.5, 1, 9, 9]]},
        {**box, "image_id": 1, "segmentation": {"size": [16, 24], "counts": [100, 20, 264]}},
        {**box, "segmentation": {"size": [16, 24], "counts": "T3d08;"}, "iscrowd": 1},
    ]
    sets = [{"images": images, "categories": categories, "annotations": some} for some in ([box], outlined)]
    xml = (
        b"<annotation><filename>0.png</filename><size><width>24</width><height>16</height></size><object><name>cat"
        b"</name><difficult>0</difficult><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax></bndbox>"
        b"</object></annotation>"
    )
    return {
        "coco": [json.dumps(one).encode() for one in sets],
        "voc": [xml, b'<?xml version="1.0" encoding="utf-8"?>' + xml + b"\0" + xml],
        "yolo": [
            b"names: [cat, dog]\0" + b"0 0.5 0.5 0.2 0.3\n1 .1 .1 .1 .1 0.9\0" + b"1 0.1 0.1 0.9 0.1 0.9 0.9\n",
            b"names:\n  0: cat\n  1: dog\n\0" + b"0 0.5 0.5 0.2 0.3\0",
        ],
        "table": [
            b"image,label,split\n0.png,cat,train\n1.png,dog,val\n",
            b"image;labels\n0.png;cat|dog\n1.png;\n",
            b"image\tage\tgroup\n0.png\t1.5\ta\n1.png\t-2\tb\n",
        ],
        "names": [b"\0cat\ndog\n", b"\x000 cat\n3: dog\n", b"\xff0 0 0 void\n128 0 0 car\n", b"\xffcar:128,0,0::\n"],
        "outlines": [
            b"\0\x05\x05" + b"04d0",
            b"\1\x05\x05" + b"".join(n.to_bytes(9) for n in (5, 10, 10)),
            b"\2\x20\x20" + np.array([[1, 1], [20, 2.5], [9, 30]]).tobytes(),
        ],
    }


def seeds_of(name: str) -> Callable[[], list[bytes]]:
    return lambda: annotation_seeds()[name]


ANNOTATION_TARGETS = {
    "coco": Target(coco, seeds_of("coco"), json=True),
    "voc": Target(voc, seeds_of("voc")),
    "yolo": Target(yolo, seeds_of("yolo")),
    "table": Target(table, seeds_of("table")),
    "names": Target(names, seeds_of("names")),
    "outlines": Target(outlines, seeds_of("outlines")),
}
