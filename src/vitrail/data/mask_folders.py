"""Images and masks in two folders: which belong together, and what the values of the masks mean."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrail.data.class_names import class_colours, class_names
from vitrail.data.collection import Collection, Item, split_name
from vitrail.data.dense_options import DenseOptions
from vitrail.data.findings import Example, Finding, single
from vitrail.data.folders import scan, subfolders
from vitrail.data.headers import Header, Size, header, headers
from vitrail.data.images import read_file
from vitrail.data.mask_codes import code_of, sample_finding
from vitrail.data.masks import MaskCode, MaskFile
from vitrail.data.names import counted, nfc, shown
from vitrail.data.threads import in_threads
from vitrail.data.turning import made_as_stored
from vitrail.data.unreadable import UnreadableImage
from vitrail.errors import VitrailError

IMAGES = ("images", "image", "imgs", "img", "jpegimages", "leftimg8bit")
MASKS = ("masks", "mask", "labels", "annotations", "annots", "segmentationclass", "segmentations", "gt", "gtfine")
SUFFIXES = ("annot", "_annot", "_labels", "_label", "_masks", "_mask", "masks", "labels")  # X/ and Xannot/
_ENDS = re.compile(r"[_-](mask|masks|label|labels|labelids|gt|seg|segmentation|annot|annotation|l)$", re.I)
_CITYSCAPES = re.compile(r"_(leftImg8bit|gtFine_labelIds|gtFine_labelTrainIds)$")


@dataclass(frozen=True)
class Pair:
    """Two folders of which one has the masks of the other's images."""

    images: Path
    masks: Path


def find_pairs(root: Path, written: str = "") -> list[Pair]:
    """Those that the user names, else those that are there."""
    if written:
        return _written(root, written)
    top = subfolders(root)
    found = [*_named(top)]
    for folder in top:
        if split_name(folder.name) is not None:
            found += _named(subfolders(folder))
    names = {folder.name.casefold(): folder for folder in top}
    for folder in top:
        masks = next((names[key] for end in SUFFIXES if (key := folder.name.casefold() + end) in names), None)
        if masks is not None:
            found.append(Pair(folder, masks))
    return [pair for pair in found if _belong(pair)]


def from_masks(root: Path, options: DenseOptions) -> Collection:
    pairs = find_pairs(root, options.pairs)
    if not pairs:
        raise VitrailError(
            f"{shown(root)} has no folders of images and masks with the same names: images/ and masks/ are looked for, "
            "or say which are meant, such as pairs 'train:trainannot, val:valannot'"
        )
    matched, findings = _matched(root, pairs)
    names, named_in = class_names(options, root)
    colours, coloured_in = class_colours(options, root)
    masks = in_threads(_look, [mask for _, mask, _ in matched])
    known = headers([image for image, _, _ in matched])
    kept, odd = _of_one_size(matched, masks, known)
    if not kept:
        raise VitrailError(f"{shown(root)}: {odd[0].title}; {odd[0].advice}")
    files = [matched[place][1] for place in kept]
    code, labels, said = code_of(files, names, named_in, colours, coloured_in, options.ignore)
    items = tuple(
        Item(image, _mask_file(path, masks[place], known[place], code), part)
        for place in kept
        for image, path, part in [matched[place]]
    )
    findings += [*odd, *said, *sample_finding([item.target for item in items if isinstance(item.target, MaskFile)])]
    return Collection(root, "masks", "segment", labels, items, tuple(findings))


# ---- which folders


def _written(root: Path, written: str) -> list[Pair]:
    pairs = []
    for piece in written.split(","):
        images, colon, masks = (part.strip() for part in piece.partition(":"))
        if not (images and colon and masks):
            raise VitrailError(f"pairs are written as 'images:masks, more:of-them', and {piece.strip()!r} is not")
        for name in (images, masks):
            if not (root / name).is_dir():
                raise VitrailError(f"there is no folder {shown(root / name)}, which pairs names")
        pairs.append(Pair(root / images, root / masks))
    return pairs


def _named(folders: Sequence[Path]) -> Iterator[Pair]:
    """Folders called so: images and masks."""
    by_name = {folder.name.casefold(): folder for folder in folders}
    images = next((by_name[name] for name in IMAGES if name in by_name), None)
    for name in MASKS:
        if images is not None and name in by_name and _belong(Pair(images, by_name[name])):
            yield Pair(images, by_name[name])
            return


def _belong(pair: Pair) -> bool:
    """Half of the masks, or more, are called as an image is."""
    images = {_key(path, pair.images) for path in scan(pair.images).images}
    masks = _by_key(scan(pair.masks).images, pair.masks, images)
    return bool(masks) and 2 * len(masks.keys() & images) >= len(masks)


# ---- which files

Matched = tuple[Path, Path, str | None]  # image, mask, part


def _matched(root: Path, pairs: Sequence[Pair]) -> tuple[list[Matched], list[Finding]]:
    matched: list[Matched] = []
    bare: list[Path] = []
    strange: list[Path] = []
    for pair in pairs:
        images = {_key(path, pair.images): path for path in scan(pair.images).images}
        masks = _by_key(scan(pair.masks).images, pair.masks, images.keys())
        parts = _listed_parts(root, pair)
        if parts is not None:  # a list says which images have masks
            images = {key: path for key, path in images.items() if key in parts or key in masks}
        matched += [(path, masks[key], _part(pair, key, parts)) for key, path in images.items() if key in masks]
        bare += [path for key, path in images.items() if key not in masks]
        strange += [path for key, path in masks.items() if key not in images]
    findings = []
    if bare:
        title = f"{counted(len(bare), 'image has', 'images have')} no mask"
        advice = "add a mask of the same name, or remove the image; it is left out"
        findings.append(Finding("no-mask", "error", title, advice, len(bare), single(bare)))
    if strange:
        title = f"{counted(len(strange), 'mask has', 'masks have')} no image"
        advice = "add the image, or remove the mask; it is left out"
        findings.append(Finding("no-image", "warning", title, advice, len(strange), single(strange)))
    order = {"train": 0, None: 0, "val": 1, "test": 2}
    return sorted(matched, key=lambda one: (order[one[2]], nfc(str(one[0])))), findings


def _key(path: Path, folder: Path) -> str:
    """The name below its folder, without what tells images and masks apart."""
    inside = path.relative_to(folder).with_suffix("")
    return nfc(str(inside.with_name(_CITYSCAPES.sub("", inside.name))))


def _by_key(paths: Sequence[Path], folder: Path, images: Container[str]) -> dict[str, Path]:
    """Masks by the name of their image: the same, or with an end such as _mask that no image has."""
    found: dict[str, Path] = {}
    for path in paths:
        if path.stem.endswith(("_instanceIds", "_color")):  # of Cityscapes, beside the indices
            continue
        key = _key(path, folder)
        if key not in images:
            key = _ENDS.sub("", key)
        found.setdefault(key, path)
    return found


def _part(pair: Pair, key: str, parts: dict[str, str] | None) -> str | None:
    """train, val or test: from a list, from a folder inside, or from the pair's own folders."""
    if parts:
        return parts.get(key)
    inside = split_name(Path(key).parts[0]) if len(Path(key).parts) > 1 else None
    return inside or split_name(pair.images.name) or split_name(pair.images.parent.name)


def _listed_parts(root: Path, pair: Pair) -> dict[str, str] | None:
    """Of Pascal VOC: ImageSets/Segmentation/train.txt and so on; None where this is not VOC."""
    if pair.masks.name.casefold() != "segmentationclass":
        return None
    folder, found = root / "ImageSets" / "Segmentation", {}
    for part in ("train", "val", "test"):
        path = folder / f"{part}.txt"
        if path.is_file():
            found.update(dict.fromkeys(path.read_text(encoding="utf-8").split(), part))
    return found


# ---- what is in them


@dataclass(frozen=True)
class _Looked:
    mark: str
    size: Size | None


def _look(path: Path) -> _Looked:
    """The digest of a mask's bytes, and its size as its header says."""
    try:
        data = read_file(path)
    except UnreadableImage:
        return _Looked("unreadable", None)
    known = header(path)
    return _Looked(hashlib.blake2b(data, digest_size=16).hexdigest(), known.size if known else None)


def _mask_file(path: Path, mask: _Looked, image: Header | None, code: MaskCode) -> MaskFile:
    size = mask.size or (0, 0)
    if image is None or mask.size == image.size:
        return MaskFile(mask.mark, path, size, code)
    return MaskFile(mask.mark, path, image.size, code, image.orientation)


def _of_one_size(
    matched: list[Matched], masks: list[_Looked], known: list[Header | None]
) -> tuple[list[int], list[Finding]]:
    """The places whose mask fits; those of an unreadable image stay, because the check reports images."""
    kept, odd, broken = [], [], []
    for place, (_, path, _) in enumerate(matched):
        mask, image = masks[place].size, known[place]
        if mask is None:
            broken.append(Example((path,), "cannot be read"))
        elif image is None or mask == image.size or made_as_stored(mask, image.size, image.orientation):
            kept.append(place)
        else:
            note = f"mask {mask[1]} x {mask[0]}, image {image.size[1]} x {image.size[0]}"
            odd.append(Example((path,), note))
    findings = []
    if broken:
        title = f"{counted(len(broken), 'mask')} cannot be read"
        advice = "replace them, or remove their images; they are left out"
        findings.append(Finding("broken-masks", "error", title, advice, len(broken), tuple(broken)))
    if odd:
        title = f"{counted(len(odd), 'mask is', 'masks are')} of another size than the image"
        advice = "save masks at the size of their images, as these are shown upright; they are left out"
        findings.append(Finding("sizes-differ", "error", title, advice, len(odd), tuple(odd)))
    return kept, findings
