"""Images and masks in two folders: what they are called, and what the values of the masks mean."""

from __future__ import annotations

import re
from pathlib import Path

from vitrail.dataset import Dataset, Item
from vitrail.tasks.dense_options import DenseOptions
from vitrail.tasks.segment.mask_codes import code_of, sample_finding
from vitrail.tasks.segment.mask_files import MaskFile
from vitrail.tasks.shared.folder_pairs import PairNaming, find_pairs
from vitrail.tasks.shared.labels.class_names import class_colours, class_names
from vitrail.tasks.shared.paired_files import read_pairs

MASKS = PairNaming(
    noun="mask",
    looked_for="images/ and masks/ are looked for",
    example="train:trainannot, val:valannot",
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
    files, findings = read_pairs(root, MASKS, options.pairs)
    names, named_in = class_names(options, root)
    colours, coloured_in = class_colours(options, root)
    paths = [file.path for file in files]
    code, labels, decisions = code_of(paths, names, named_in, colours, coloured_in, options.ignore)
    masks = [MaskFile(file.digest, file.path, file.size, code, turn=file.turn) for file in files]
    items = [Item(file.image, mask, file.part) for file, mask in zip(files, masks, strict=True)]
    findings += [*decisions, *sample_finding(masks)]
    return Dataset(root, "masks", "segment", labels, tuple(items), tuple(findings))
