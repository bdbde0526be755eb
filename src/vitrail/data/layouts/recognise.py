"""How a set of images lies on disk, recognised by itself: class folders, a table, annotations, or what a task reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from vitrail.annotations import LOOKED_FOR, AnnotationSource
from vitrail.data.layouts import table_file
from vitrail.data.layouts.coco import find_coco, is_coco, read_coco
from vitrail.data.layouts.folders import from_folders, from_split_folders
from vitrail.data.layouts.layout_names import ANNOTATIONS, FOLDERS, layout_names
from vitrail.data.layouts.manifest_layout import from_manifest
from vitrail.data.layouts.table import from_table
from vitrail.data.layouts.voc import find_voc, read_voc
from vitrail.data.layouts.yolo import find_yolo, read_yolo
from vitrail.data.manifest.manifest_file import is_manifest
from vitrail.dataset import Dataset, split_name
from vitrail.errors import VitrailError
from vitrail.images.listing import is_image, scan, subfolders
from vitrail.storage import is_url
from vitrail.tasks.dense_options import DenseOptions
from vitrail.tasks.registry import own_layouts, task_data, task_names, tasks_of_layout
from vitrail.text import counted, listing, shown

_FINDERS: dict[str, Callable[[Path], object]] = {"coco": find_coco, "voc": find_voc, "yolo": find_yolo}


def read_dataset(
    data: str | Path,
    *,
    layout: str | None = None,
    task: str | None = None,
    targets: Sequence[str] | None = None,
    dense: DenseOptions | None = None,
    manifests: bool = False,
) -> Dataset:
    """The images of DATA with their targets: a folder, a CSV or Parquet file, or a COCO file.

    layout: folders (DATA/<class>/...), split-folders (DATA/{train,val,test}/<class>/...), table, coco, voc, yolo, or
    one that a task reads, such as masks; else recognised. task: by default what the layout and the columns say.
    targets: the columns of a table that hold the numbers to predict; by default all that are numbers.
    dense: what is not found by itself about masks and boxes. manifests: whether the caller reads images by
    `Item.source`, so that a manifest will do as well.
    """
    _check_choice("layout", layout, layout_names())
    _check_choice("task", task, task_names())
    if not manifests:
        refuse_manifest(data)
    if is_manifest(data):
        check_manifest_fits(data, layout, targets)
        dataset = from_manifest(data, task)
    else:
        dataset = _read(data, layout, task, targets, dense or DenseOptions())
    for label in dataset.labels:
        if not label.isascii() and any("\ud800" <= letter <= "\udfff" for letter in label):
            where = shown(dataset.address)
            raise VitrailError(f"{where}: the class name {shown(label)!r} is no text: rename it, in letters of UTF-8")
    return dataset


def refuse_manifest(data: str | Path) -> None:
    """For who reads images by their paths."""
    if is_manifest(data):
        raise VitrailError(f"{shown(data)} is a manifest, which this command does not take: give its folder")


def check_manifest_fits(data: str | Path, layout: str | None, targets: Sequence[str] | str | None) -> None:
    """Whether what was said of DATA goes with a manifest."""
    if layout is not None or targets:
        what = f"layout={layout!r} does" if layout is not None else "targets, columns of a table, do"
        raise VitrailError(f"{shown(data)} is a manifest, which {what} not fit: leave that out")


def _read(
    data: str | Path, layout: str | None, task: str | None, targets: Sequence[str] | None, dense: DenseOptions
) -> Dataset:
    if is_url(data):
        raise VitrailError(f"{shown(data)} is no manifest: vitrail manifest {shown(data)} --out M makes one of it")
    path = Path(data)
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
    if layout in ANNOTATIONS:
        return _from_annotations(path, layout, task, dense)
    if layout in own_layouts():
        return tasks_of_layout(layout)[0].read(path, dense)
    return from_folders(path, task) if layout == "folders" else from_split_folders(path, task)


def recognise(root: Path, task: str | None = None, dense: DenseOptions | None = None) -> str:
    """The layout of a folder, among those that can teach the task.

    A table wins, because someone wrote it on purpose; then annotations, and what lies beside images. Then parts: train
    with class folders inside, and nothing but parts beside it, or val or test as well. A lone `train` beside `bus` and
    `car` is a vehicle.
    """
    dense = dense or DenseOptions()
    layouts = ("table", *ANNOTATIONS, *own_layouts()) if task is None else task_data(task).layouts
    if dense.pairs and (paired := [layout for layout in own_layouts() if task is None or layout in layouts]):
        return paired[0]
    for layout in layouts:
        if layout not in FOLDERS and _is_there(root, layout, dense):
            return layout
    if task is not None and not set(layouts) & set(FOLDERS):
        raise VitrailError(f"{shown(root)} has nothing to learn {task} from: {task_data(task).looked_for}")
    return _of_folders(root)


def _is_there(root: Path, layout: str, dense: DenseOptions) -> bool:
    if layout == "table":
        return bool(_tables(root))
    if layout in ANNOTATIONS:
        return bool(_FINDERS[layout](root))
    return tasks_of_layout(layout)[0].find(root, dense)


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


# ---- parts


def _from_annotations(root: Path, layout: str, task: str | None, dense: DenseOptions) -> Dataset:
    if layout == "coco" and (files := find_coco(root)):
        return _of_task(read_coco(root, files), task)
    if layout == "voc" and (folders := find_voc(root)):
        return _of_task(read_voc(root, folders), task)
    if layout == "yolo" and (places := find_yolo(root)):
        return _of_task(read_yolo(root, places, dense), task)
    raise VitrailError(f"{shown(root)} holds no annotations of the layout {layout}: {LOOKED_FOR}")


def _of_task(source: AnnotationSource, task: str | None) -> Dataset:
    """Annotated objects as the dataset of the task that is asked for, or that they suit."""
    if not source.images:
        raise VitrailError(f"{shown(source.table or source.root)} annotates no image that is there")
    if task is not None:
        return task_data(task).from_annotations(source)
    data = next(data for data in tasks_of_layout(source.layout) if data.suits_annotations(source))
    return data.from_annotations(source)


def _check_fits(path: Path, layout: str, task: str | None) -> None:
    if task is None or layout in task_data(task).layouts:
        return
    hint = f": {task_data(task).looked_for}" if task_data(task).looked_for else ""
    raise VitrailError(f"{shown(path)} was taken as {layout}, which cannot teach task={task!r}{hint}")


def _from_file(path: Path, layout: str | None, task: str | None, targets: Sequence[str] | None) -> Dataset:
    if path.suffix.lower() in table_file.ENDINGS:
        if layout not in (None, "table"):
            raise VitrailError(f"{shown(path)} is a table, which layout={layout!r} does not fit")
        _check_fits(path, "table", task)
        return from_table(path, task, targets)
    if path.suffix.lower() == ".json" and is_coco(path):
        _check_fits(path, layout or "coco", task)
        return _of_task(read_coco(path.parent, [path]), task)
    if is_image(path.name):
        raise VitrailError(f"{shown(path)} is one image: give the folder that holds the class folders")
    if path.suffix.lower() in (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar"):
        raise VitrailError(f"{shown(path)} is an archive: unpack it, then give the folder")
    raise VitrailError(f"{shown(path)} is neither a folder nor a table ({', '.join(table_file.ENDINGS)})")


def _tables(root: Path) -> list[Path]:
    files = [path for path in scan(root, deep=False).others if path.suffix.lower() in table_file.ENDINGS]
    return [path for path in files if table_file.lists_images(path)]


def _the_table(root: Path) -> Path:
    tables = _tables(root)
    if not tables:
        raise VitrailError(f"{shown(root)} holds no table with a column 'image' and something to learn")
    if len(tables) > 1:
        names = listing([shown(path.name) for path in tables])
        raise VitrailError(
            f"{shown(root)} holds {counted(len(tables), 'table')} of images ({names}): name the one you mean, "
            "or put them into one with a column 'split'"
        )
    return tables[0]


def _check_parquet(root: Path, folders: list[Path]) -> None:
    """A Parquet file that cannot be looked into is not taken for a table; where nothing else is there, say why."""
    files = [path for path in scan(root, deep=False).others if path.suffix.lower() == ".parquet"]
    if files and not any(scan(folder, above=[root]).images for folder in folders):
        table_file.read_table(files[0], rows=1)


def _check_choice(name: str, value: str | None, choices: Sequence[str]) -> None:
    if value is not None and value not in choices:
        raise VitrailError(f"{name} is {value!r}; choose one of {', '.join(choices)}")
