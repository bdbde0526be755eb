"""How a set of images is laid out on disk, recognised by itself: class folders, parts of class folders, or a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitrail.data import tables
from vitrail.data.collection import TASKS, Collection, split_name
from vitrail.data.folders import from_folders, from_split_folders, is_image, scan, subfolders
from vitrail.data.listed import from_table
from vitrail.data.names import counted, listing, shown
from vitrail.errors import VitrailError

LAYOUTS = ("folders", "split-folders", "table")


def collect(
    data: str | Path, *, layout: str | None = None, task: str | None = None, targets: Sequence[str] | None = None
) -> Collection:
    """The images of DATA with their targets: a folder, or a CSV or Parquet file.

    layout: folders (DATA/<class>/...), split-folders (DATA/{train,val,test}/<class>/...) or table; else recognised.
    task: classify, multilabel or regress; by default what the columns say, and classify for folders.
    targets: the columns of a table that hold the numbers to predict; by default all that are numbers.
    """
    path = Path(data)
    _check_choice("layout", layout, LAYOUTS)
    _check_choice("task", task, TASKS)
    if path.is_file():
        return _from_file(path, layout, task, targets)
    if not path.is_dir():
        raise VitrailError(f"there is no folder or table {shown(path)}")
    layout = layout or recognise(path)
    if layout == "table":
        return from_table(_the_table(path), task, targets)
    if targets:
        raise VitrailError(f"targets are columns of a table, and {shown(path)} was taken as {layout}")
    return from_folders(path, task) if layout == "folders" else from_split_folders(path, task)


def recognise(root: Path) -> str:
    """The layout of a folder.

    A table wins, because someone wrote it on purpose. Then parts: train with class folders inside, and nothing but
    parts beside it, or val or test as well. A lone `train` beside `bus` and `car` is a vehicle.
    """
    if _tables(root):
        return "table"
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


# ---- parts


def _from_file(path: Path, layout: str | None, task: str | None, targets: Sequence[str] | None) -> Collection:
    if path.suffix.lower() in tables.ENDINGS:
        if layout not in (None, "table"):
            raise VitrailError(f"{shown(path)} is a table, which layout={layout!r} does not fit")
        return from_table(path, task, targets)
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
