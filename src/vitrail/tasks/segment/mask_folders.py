"""Images and masks in two folders: what they are called, and what the values of the masks mean."""

from __future__ import annotations

import re
from pathlib import Path

from vitrail.dataset import Dataset, Item
from vitrail.errors import VitrailError
from vitrail.images.headers import Header, headers
from vitrail.tasks.dense_options import DenseOptions
from vitrail.tasks.segment.mask_codes import code_of, sample_finding
from vitrail.tasks.segment.mask_files import MaskCode, MaskFile
from vitrail.tasks.shared.folder_pairs import (
    FileLook,
    PairNaming,
    find_pairs,
    fit_to_size,
    look_at_file,
    match_files,
)
from vitrail.tasks.shared.labels.class_names import class_colours, class_names
from vitrail.text import shown
from vitrail.threads import in_threads

MASKS = PairNaming(
    noun="mask",
    folders=("masks", "mask", "labels", "annotations", "annots", "segmentationclass", "segmentations", "gt", "gtfine"),
    suffixes=("annot", "_annot", "_labels", "_label", "_masks", "_mask", "masks", "labels"),
    file_ends=re.compile(r"[_-](mask|masks|label|labels|labelids|gt|seg|segmentation|annot|annotation|l)$", re.I),
    image_ends=re.compile(r"_(leftImg8bit|gtFine_labelIds|gtFine_labelTrainIds)$"),
    left_out=("_instanceIds", "_color"),  # of Cityscapes, beside the indices
    lists=("segmentationclass", "ImageSets/Segmentation"),  # of Pascal VOC
)


def has_masks(root: Path, options: DenseOptions) -> bool:
    return bool(find_pairs(root, MASKS, options.pairs))


def from_masks(root: Path, options: DenseOptions) -> Dataset:
    pairs = find_pairs(root, MASKS, options.pairs)
    if not pairs:
        raise VitrailError(
            f"{shown(root)} has no folders of images and masks with the same names: images/ and masks/ are looked for, "
            "or say which are meant, such as pairs 'train:trainannot, val:valannot'"
        )
    matches, findings = match_files(root, pairs, MASKS)
    looks = in_threads(look_at_file, [match.other for match in matches])
    known = headers([match.image for match in matches])
    fitting, odd = fit_to_size(matches, looks, known, MASKS.noun)
    if not fitting:
        raise VitrailError(f"{shown(root)}: {odd[0].title}; {odd[0].advice}")
    names, named_in = class_names(options, root)
    colours, coloured_in = class_colours(options, root)
    files = [matches[index].other for index in fitting]
    code, labels, decisions = code_of(files, names, named_in, colours, coloured_in, options.ignore)
    masks = [_mask_file(matches[index].other, looks[index], known[index], code) for index in fitting]
    items = [Item(matches[index].image, mask, matches[index].part) for index, mask in zip(fitting, masks, strict=True)]
    findings += [*odd, *decisions, *sample_finding(masks)]
    return Dataset(root, "masks", "segment", labels, tuple(items), tuple(findings))


def _mask_file(path: Path, look: FileLook, image: Header | None, code: MaskCode) -> MaskFile:
    if image is None or look.size == image.size:
        return MaskFile(look.digest, path, look.size or (0, 0), code)
    return MaskFile(look.digest, path, image.size, code, image.orientation)
