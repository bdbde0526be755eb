"""How a set of images is laid out on disk, recognised by itself: class folders, a table, masks, or annotations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitrail.data import tables
from vitrail.data.annotated import as_collection
from vitrail.data.coco import find_coco, is_coco, read_coco
from vitrail.data.collection import TASKS, Collection, split_name
from vitrail.data.dense_options import DenseOptions
from vitrail.data.folders import from_folders, from_split_folders, is_image, scan, subfolders
from vitrail.data.listed import from_table
from vitrail.data.mask_folders import find_pairs, from_masks
from vitrail.data.names import counted, listing, shown
from vitrail.data.voc import find_voc, read_voc
from vitrail.data.yolo import find_yolo, read_yolo
from vitrail.errors import VitrailError

LAYOUTS = ("folders", "split-folders", "table", "masks", "coco", "voc", "yolo")
_TAUGHT = {  # what a layout can teach; the first is what it teaches unless another is asked for
    "masks": ("segment",),
    "coco": ("detect", "segment"),
    "voc": ("detect",),
    "yolo": ("detect", "segment"),
}
_OTHERS = ("classify", "multilabel", "regress")


def collect(
    data: str | Path,
    *,
    layout: str | None = None,
    task: str | None = None,
    targets: Sequence[str] | None = None,
    dense: DenseOptions | None = None,
) -> Collection:
    """The images of DATA with their targets: a folder, a CSV or Parquet file, or a COCO file.

    layout: folders (DATA/<class>/...), split-folders (DATA/{train,val,test}/<class>/...), table, masks, coco, voc or
    yolo; else recognised. task: by default what the layout and the columns say.
    targets: the columns of a table that hold the numbers to predict; by default all that are numbers.
    dense: what is not found by itself about masks and boxes.
    """
    path, dense = Path(data), dense or DenseOptions()
    _check_choice("layout", layout, LAYOUTS)
    _check_choice("task", task, TASKS)
    if path.is_file():
        return _from_file(path, layout, task, targets)
    if not path.is_dir():
        raise VitrailError(f"there is no folder or table {shown(path)}")
    layout = layout or recognise(path, task, dense)
    _check_fits(path, layout, task)
    if layout == "table":
        return from_table(_the_table(path), task, targets)
    if targets:
        raise VitrailError(f"targets are columns of a table, and {shown(path)} was taken as {layout}")
    if layout in _TAUGHT:
        return _from_annotations(path, layout, task, dense)
    return from_folders(path, task) if layout == "folders" else from_split_folders(path, task)


def recognise(root: Path, task: str | None = None, dense: DenseOptions | None = None) -> str:
    """The layout of a folder, among those that can teach the task.

    A table wins, because someone wrote it on purpose; then annotations, and masks beside images. Then parts: train
    with class folders inside, and nothing but parts beside it, or val or test as well. A lone `train` beside `bus` and
    `car` is a vehicle.
    """
    if dense is not None and dense.pairs:
        return "masks"
    if task in (None, *_OTHERS) and _tables(root):
        return "table"
    if task not in _OTHERS:
        finders = {"coco": find_coco, "voc": find_voc, "yolo": find_yolo, "masks": find_pairs}
        order = ("masks", "coco", "yolo", "voc") if task == "segment" else ("coco", "voc", "yolo", "masks")
        found = [layout for layout in order if task in (None, *_TAUGHT[layout]) and finders[layout](root)]
        if found:
            return found[0]
        if task is not None:
            raise VitrailError(f"{shown(root)} has nothing to learn {task} from: {_WANTED[task]}")
    return _of_folders(root)


def _of_folders(root: Path) -> str:
    folders = subfolders(root)
    parts = {split_name(folder.name) for folder in folders} - {None}
    others = [folder for folder in folders if split_name(folder.name) is None]
    train_has_classes = any(subfolders(folder) for folder in folders if split_name(folder.name) == "train")
    if train_has_classes and (len(parts) > 1 or not others):
        return "split-folders"
    if parts and not others:
        return "split-folders"  # without classes inside, which it will say
    _check_parquet(root, folders)
    return "folders"


_WANTED = {
    "segment": "images/ and masks/ with files of the same names, or annotations with outlines, are looked for",
    "detect": "a COCO file, Annotations/*.xml of Pascal VOC, or labels/*.txt of YOLO are looked for",
}


# ---- parts


def _from_annotations(root: Path, layout: str, task: str | None, dense: DenseOptions) -> Collection:
    if layout == "masks":
        return from_masks(root, dense)
    if layout == "coco" and (files := find_coco(root)):
        return as_collection(read_coco(root, files), task)
    if layout == "voc" and (folders := find_voc(root)):
        return as_collection(read_voc(root, folders), task)
    if layout == "yolo" and (places := find_yolo(root)):
        return as_collection(read_yolo(root, places, dense), task)
    raise VitrailError(f"{shown(root)} holds no annotations of the layout {layout}: {_WANTED['detect']}")


def _check_fits(path: Path, layout: str, task: str | None) -> None:
    taught = _TAUGHT.get(layout, _OTHERS)
    if task is not None and task not in taught:
        hint = f": {_WANTED[task]}" if task in _WANTED else ""
        raise VitrailError(f"{shown(path)} was taken as {layout}, which cannot teach task={task!r}{hint}")


def _from_file(path: Path, layout: str | None, task: str | None, targets: Sequence[str] | None) -> Collection:
    if path.suffix.lower() in tables.ENDINGS:
        if layout not in (None, "table"):
            raise VitrailError(f"{shown(path)} is a table, which layout={layout!r} does not fit")
        _check_fits(path, "table", task)
        return from_table(path, task, targets)
    if path.suffix.lower() == ".json" and is_coco(path):
        _check_fits(path, layout or "coco", task)
        return as_collection(read_coco(path.parent, [path]), task)
    if is_image(path.name):
        raise VitrailError(f"{shown(path)} is one image: give the folder that holds the class folders")
    if path.suffix.lower() in (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar"):
        raise VitrailError(f"{shown(path)} is an archive: unpack it, then give the folder")
    raise VitrailError(f"{shown(path)} is neither a folder nor a table ({', '.join(tables.ENDINGS)})")


def _tables(root: Path) -> list[Path]:
    files = [path for path in scan(root, deep=False).others if path.suffix.lower() in tables.ENDINGS]
    return [path for path in files if tables.lists_images(path)]


def _the_table(root: Path) -> Path:
    found = _tables(root)
    if not found:
        raise VitrailError(f"{shown(root)} holds no table with a column 'image' and something to learn")
    if len(found) > 1:
        names = listing([shown(path.name) for path in found])
        raise VitrailError(
            f"{shown(root)} holds {counted(len(found), 'table')} of images ({names}): name the one you mean, "
            "or put them into one with a column 'split'"
        )
    return found[0]


def _check_parquet(root: Path, folders: list[Path]) -> None:
    """A Parquet file that cannot be looked into is not taken for a table; where nothing else is there, say why."""
    files = [path for path in scan(root, deep=False).others if path.suffix.lower() == ".parquet"]
    if files and not any(scan(folder, above=[root]).images for folder in folders):
        tables.read_table(files[0], rows=1)


def _check_choice(name: str, value: str | None, choices: Sequence[str]) -> None:
    if value is not None and value not in choices:
        raise VitrailError(f"{name} is {value!r}; choose one of {', '.join(choices)}")
