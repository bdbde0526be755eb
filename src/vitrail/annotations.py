"""Annotated objects as a file format gives them, before a task turns them into targets: COCO, Pascal VOC and YOLO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitrail.findings import Example, Finding, about_files
from vitrail.images.exif import Corners, made_as_stored
from vitrail.images.header_checks import MAX_SIDE
from vitrail.images.headers import Header, Size, headers
from vitrail.text import counted

LOOKED_FOR = "a COCO file, Annotations/*.xml of Pascal VOC, or labels/*.txt of YOLO are looked for"


@dataclass(slots=True)
class Annotation:
    """One annotated object, as written."""

    number: int  # its class
    box: Corners | None  # left, top, right, bottom
    crowd: bool = False
    polygons: tuple[tuple[float, ...], ...] = ()
    runs: str | tuple[int, ...] | None = None
    runs_size: Size = (0, 0)

    @property
    def outlined(self) -> bool:
        """Whether it says which pixels it has, not only its box."""
        return bool(self.polygons) or self.runs is not None

    def corners(self) -> Corners | None:
        """Its box, or else the box of its polygons."""
        if self.box is not None:
            return self.box
        xs = [value for polygon in self.polygons for value in polygon[0::2]]
        ys = [value for polygon in self.polygons for value in polygon[1::2]]
        return (min(xs), min(ys), max(xs), max(ys)) if xs and ys else None


@dataclass(slots=True)
class AnnotatedImage:
    """One image and its objects. With `relative`, coordinates are shares of its width and height."""

    path: Path
    annotations: list[Annotation]
    split: str | None = None
    claimed: Size | None = None  # what the annotation says of the image's size
    source: Path | None = None  # the annotation's file
    relative: bool = False


@dataclass
class AnnotationSource:
    """Everything that a reader of a format read."""

    root: Path
    layout: str
    labels: list[str]
    images: list[AnnotatedImage]
    findings: list[Finding] = field(default_factory=list)
    table: Path | None = None

    def annotations(self) -> list[Annotation]:
        """The annotations of all images, one after another."""
        return [annotation for image in self.images for annotation in image.annotations]


FittingImages = list[tuple[AnnotatedImage, Header]]  # with the orientation to turn the annotation by


def fit_to_images(images: Sequence[AnnotatedImage]) -> tuple[FittingImages, list[Finding]]:
    """The images whose annotation was made for their size. One that cannot be read stays: the check reports images."""
    fitting, odd = [], []
    for image, header in zip(images, headers([image.path for image in images]), strict=True):
        claimed = image.claimed
        if header is None:
            fitting.append((image, Header(claimed if claimed and max(claimed) <= MAX_SIDE else (0, 0))))
        elif claimed is None or claimed == header.size:
            fitting.append((image, Header(header.size)))
        elif made_as_stored(claimed, header.size, header.orientation):
            fitting.append((image, header))
        else:
            (height, width), (tall, wide) = header.size, claimed
            note = f"is {width} x {height} upright, annotated as {wide} x {tall}"
            odd.append(Example((image.path,), note))
    title = f"{counted(len(odd), 'image has', 'images have')} another size than their annotation says"
    advice = "annotate the images as they are, or put back those that were annotated; they are left out"
    return fitting, about_files("sizes-differ", "error", title, advice, odd)
