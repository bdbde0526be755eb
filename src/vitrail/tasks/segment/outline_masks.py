"""From annotated outlines to masks: what no outline covers is background, class 0."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from vitrail.annotations import AnnotatedImage, Annotation, AnnotationSource, fit_to_images
from vitrail.dataset import Dataset, Item
from vitrail.errors import VitrailError
from vitrail.images.headers import Header
from vitrail.tasks.dense_options import IGNORE
from vitrail.tasks.segment.mask_files import MOST, DrawnMask, Region
from vitrail.text import shown

BACKGROUND = "background"


def from_outlines(source: AnnotationSource) -> Dataset:
    fitting, odd = fit_to_images(source.images)
    labels, numbers = _classes(source)
    items = [Item(image.path, _drawn(image, header, numbers), image.split) for image, header in fitting]
    findings = (*source.findings, *odd)
    if not items:
        raise VitrailError(f"{shown(source.table or source.root)}: {findings[-1].title}; {findings[-1].advice}")
    return Dataset(source.root, source.layout, "segment", labels, tuple(items), findings, source.table)


def _classes(source: AnnotationSource) -> tuple[tuple[str, ...], list[int]]:
    """The names of the classes, and the number of each of the source's in a mask."""
    if not any(annotation.outlined for annotation in source.annotations()):
        raise VitrailError(f"{shown(source.table or source.root)} has no outlines, which task='segment' needs")
    names = [label for label in source.labels if label.casefold() != BACKGROUND]
    if len(names) + 1 > MOST:
        raise VitrailError(f"{shown(source.root)} has {len(names)} classes; masks have at most {MOST}")
    number = {label: names.index(label) + 1 if label in names else 0 for label in source.labels}
    return (BACKGROUND, *names), [number[label] for label in source.labels]


def _drawn(image: AnnotatedImage, header: Header, numbers: Sequence[int]) -> DrawnMask:
    """Large regions first, so that a cup is seen on its table."""
    height, width = header.size if image.relative else (1, 1)
    outlined = [annotation for annotation in image.annotations if annotation.outlined]
    outlined.sort(key=_area, reverse=True)
    regions = tuple(
        Region(
            IGNORE if annotation.crowd or not 0 <= annotation.number < len(numbers) else numbers[annotation.number],
            tuple(
                tuple(value * (height if odd % 2 else width) for odd, value in enumerate(polygon))
                for polygon in annotation.polygons
            ),
            annotation.runs,
            annotation.runs_size,
        )
        for annotation in outlined
    )
    mark = hashlib.blake2b(f"{header} {regions}".encode(), digest_size=16).hexdigest()
    return DrawnMask(mark, image.source or image.path, header.size, image.path.name, regions, turn=header.orientation)


def _area(annotation: Annotation) -> float:
    box = annotation.corners()
    return (box[2] - box[0]) * (box[3] - box[1]) if box else 0.0
