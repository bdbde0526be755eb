"""YOLO annotations: a text file for each picture, `class x y width height` a line, as shares of the picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitrail.annotations import AnnotatedImage, Annotation, AnnotationSource
from vitrail.data.layouts.annotation_files import check_annotation_files
from vitrail.dataset import SPLITS, split_name
from vitrail.errors import VitrailError
from vitrail.findings import Example, Finding, about_files
from vitrail.images.listing import scan, subfolders
from vitrail.tasks.dense_options import DenseOptions
from vitrail.tasks.shared.labels.class_names import class_names
from vitrail.text import counted, nfc, shown

_NOT_LABELS = ("classes.txt", "names.txt", "labels.txt", "train.txt", "val.txt", "test.txt", "readme.txt")
_MOST = 9999  # the largest class that is one; beyond, the numbers are something else
_LOOKED = 20  # files that are enough to tell whether these are annotations


@dataclass(frozen=True)
class YoloFolders:
    """A folder of pictures, the folder of their text files (often the same), and the part that both are of."""

    images: Path
    labels: Path
    part: str | None = None


def find_yolo(root: Path) -> list[YoloFolders]:
    """images/ and labels/ (with parts inside, or inside of parts), or text files beside the pictures."""
    tops = {folder.name.casefold(): folder for folder in subfolders(root)}
    parts = [folder for folder in subfolders(root) if split_name(folder.name)]
    pairs = []
    if "images" in tops and "labels" in tops:
        inner = [folder for folder in subfolders(tops["images"]) if split_name(folder.name)]
        pairs = [YoloFolders(folder, tops["labels"] / folder.name, split_name(folder.name)) for folder in inner]
        pairs = pairs or [YoloFolders(tops["images"], tops["labels"])]
    if not pairs:
        inside = [(part, {folder.name.casefold(): folder for folder in subfolders(part)}) for part in parts]
        pairs = [
            YoloFolders(names["images"], names["labels"], split_name(part.name))
            for part, names in inside
            if "images" in names and "labels" in names
        ]
    if not pairs:
        folders = [root, *(folder for name, folder in tops.items() if name in ("obj_train_data", "data")), *parts]
        pairs = [YoloFolders(folder, folder, split_name(folder.name) if folder != root else None) for folder in folders]
    return [pair for pair in pairs if _is_yolo(pair)]


def read_yolo(root: Path, pairs: list[YoloFolders], options: DenseOptions) -> AnnotationSource:
    """All images with their objects, of which there may be none; problems with files become findings."""
    names, _ = class_names(options, root)
    source = AnnotationSource(root, "yolo", [], [])
    bare, broken, strays = [], [], []
    for pair in sorted(pairs, key=lambda pair: SPLITS.index(pair.part or "train")):
        deep = pair.images != root
        texts = {_key(path, pair.labels): path for path in _texts(pair.labels, deep)}
        for image in scan(pair.images, deep=deep).images:
            text = texts.pop(_key(image, pair.images), None)
            try:
                annotations = _read(text) if text is not None else []
            except (ValueError, OSError) as error:
                broken.append(Example((text or image,), str(error)))
                continue
            if text is None:
                bare.append(image)
            source.images.append(AnnotatedImage(image, annotations, pair.part, None, text, relative=True))
        strays += list(texts.values())
    highest = max((annotation.number for annotation in source.annotations()), default=-1)
    if not names:
        names = {number: str(number) for number in range(highest + 1)}
        source.findings += _unnamed(highest)
    source.labels = [names.get(number, str(number)) for number in range(max(names, default=-1) + 1)]
    if not source.labels:
        raise VitrailError(f"{shown(root)} has no object in any text file: nothing can be learnt from it")
    source.findings += _findings(bare, broken, strays)
    return source


# ---- one file


def _read(path: Path) -> list[Annotation]:
    """Five numbers a line; six, where the last is a confidence; or a class and a polygon."""
    annotations = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        cells = line.split()
        if not cells:
            continue
        try:
            values = [float(cell) for cell in cells[1:]]
            label = float(cells[0])
        except ValueError:
            raise ValueError(f"line {number} is not numbers: {line.strip()[:40]!r}") from None
        if label % 1 or abs(label) > _MOST:
            raise ValueError(f"line {number} begins with {cells[0][:20]}, which is no class")
        if len(values) in (4, 5):
            x, y, width, height = values[:4]
            annotations.append(Annotation(int(label), (x - width / 2, y - height / 2, x + width / 2, y + height / 2)))
        elif len(values) >= 6 and len(values) % 2 == 0:
            annotations.append(Annotation(int(label), None, polygons=(tuple(values),)))
        else:
            raise ValueError(f"line {number} has {len(cells)} numbers; 'class x y width height' has 5")
    return annotations


def _is_yolo(pair: YoloFolders) -> bool:
    """Pictures and text files of the same names, and what is in these are shares of a picture."""
    if not pair.labels.is_dir():
        return False
    texts = {_key(path, pair.labels): path for path in _texts(pair.labels, deep=pair.images != pair.labels)}
    images = {_key(path, pair.images) for path in scan(pair.images, deep=pair.images != pair.labels).images}
    both = sorted(texts.keys() & images)
    if not both or 2 * len(both) < len(texts):
        return False
    read = [annotations for key in both[:_LOOKED] if (annotations := _tried(texts[key])) is not None]
    if 2 * len(read) < len(both[:_LOOKED]):
        return False
    sides = [
        value
        for annotations in read
        for annotation in annotations
        for value in annotation.box or annotation.polygons[0]
    ]
    return not sides or sum(-0.5 <= value <= 1.5 for value in sides) * 2 >= len(sides)


def _tried(path: Path) -> list[Annotation] | None:
    try:
        return _read(path)
    except (ValueError, OSError):
        return None


# ---- parts


def _texts(folder: Path, deep: bool) -> list[Path]:
    files = scan(folder, deep=deep).others
    return [path for path in files if path.suffix.lower() == ".txt" and path.name.casefold() not in _NOT_LABELS]


def _key(path: Path, folder: Path) -> str:
    return nfc(str(path.relative_to(folder).with_suffix("")))


def _unnamed(highest: int) -> list[Finding]:
    title = "no file names the classes: they are called by their numbers"
    advice = "put a data.yaml or a classes.txt with the names beside the folders"
    return [Finding("unnamed-classes", "note", title, advice, highest + 1)]


def _findings(bare: list[Path], broken: list[Example], strays: list[Path]) -> list[Finding]:
    title = f"{counted(len(bare), 'image has', 'images have')} no text file: taken to show no object"
    advice = "nothing to do, if that is meant; annotate them otherwise"
    return [
        *check_annotation_files("text file", broken, strays),
        *about_files("no-annotation", "note", title, advice, bare),
    ]
