"""Images in folders: `DATA/<class>/...`, and `DATA/{train,val,test}/<class>/...`."""

from __future__ import annotations

from pathlib import Path

from vitrail.dataset import Dataset, Item, split_name
from vitrail.errors import VitrailError
from vitrail.findings import Finding, about_files
from vitrail.images.listing import Listing, scan, subfolders
from vitrail.tasks.registry import task_data, tasks_of_layout
from vitrail.text import counted, listing, natural, nfc, shown


def from_folders(root: Path, task: str | None = None) -> Dataset:
    """`DATA/<class>/...`: every image below a class folder is of that class."""
    classes = subfolders(root)
    files = {folder: scan(folder, above=[root]) for folder in classes}
    loose = scan(root, deep=False)
    if not any(listed.images for listed in files.values()):
        raise _no_classes(root, loose, classes)
    return _dataset(root, "folders", task, {None: files}, loose, [])


def from_split_folders(root: Path, task: str | None = None) -> Dataset:
    """`DATA/{train,val,test}/<class>/...`."""
    parts: dict[str | None, dict[Path, Listing]] = {}
    loose, strangers = scan(root, deep=False), []
    for folder in subfolders(root):
        part = split_name(folder.name)
        if part is None:
            strangers.append(folder)
            continue
        classes = parts.setdefault(part, {})
        classes.update({inner: scan(inner, above=[root, folder]) for inner in subfolders(folder)})
        beside = scan(folder, deep=False)
        loose.images += beside.images
        loose.others += beside.others
        loose.special += beside.special
    if not any(files.images for classes in parts.values() for files in classes.values()):
        raise VitrailError(
            f"{shown(root)} has folders for parts, but no class folders with images in them: "
            "train/cat/1.jpg is what is looked for (for classes with such names use layout='folders')"
        )
    return _dataset(root, "split-folders", task, parts, loose, strangers)


# ---- parts


def _dataset(
    root: Path,
    layout: str,
    task: str | None,
    parts: dict[str | None, dict[Path, Listing]],
    loose: Listing,
    strangers: list[Path],
) -> Dataset:
    data = task_data(task) if task else tasks_of_layout(layout)[0]
    folders = [(split, folder, files) for split, classes in parts.items() for folder, files in classes.items()]
    labels, targets = data.targets_of_folders([folder for _, folder, files in folders if files.images])
    items = []
    for split, folder, files in sorted(folders, key=lambda row: (_order(row[0]), natural(nfc(row[1].name)))):
        items += [Item(path, targets[folder], split) for path in files.images]
    return Dataset(
        root=root,
        layout=layout,
        task=data.name,
        labels=labels,
        items=tuple(items),
        findings=_findings(root, folders, loose, strangers),
    )


def _findings(
    root: Path, folders: list[tuple[str | None, Path, Listing]], loose: Listing, strangers: list[Path]
) -> tuple[Finding, ...]:
    findings = []
    names = {nfc(folder.name) for _, folder, files in folders if files.images}
    empty = [folder for _, folder, files in folders if not files.images and nfc(folder.name) not in names]
    if empty:
        title = f"{counted(len(empty), 'class folder is', 'class folders are')} empty: {_names(empty, root)}"
        advice = "add images or remove it; it is left out"
        findings.append(Finding("empty-class", "warning", title, advice, len(empty)))
    title = f"{counted(len(loose.images), 'image lies', 'images lie')} outside the class folders"
    advice = "move into a class folder what should be used; the rest is left out"
    findings += about_files("loose-images", "warning", title, advice, loose.images)
    outside = [image for folder in strangers for image in scan(folder, above=[root]).images]
    where = f"outside train, val and test: {_names(strangers, root)}"
    title = f"{counted(len(outside), 'image lies', 'images lie')} {where}"
    advice = "move into a part what should be used; the rest is left out"
    findings += about_files("other-folders", "warning", title, advice, outside)
    dead = [link for _, _, files in folders for link in files.dead] + loose.dead
    title = f"{counted(len(dead), 'link leads', 'links lead')} nowhere"
    findings += about_files("missing", "error", title, "restore the files or remove the links", dead)
    listings = [*(files for _, _, files in folders), loose]
    others = [file for files in listings for file in (*files.others, *files.special)]
    kinds = listing(sorted({file.suffix.lower() or file.name for file in others}), 4)
    title = f"{counted(len(others), 'file is no image', 'files are no images')} ({kinds})"
    advice = "nothing to do, if that is meant: they are left out"
    return (*findings, *about_files("other-files", "note", title, advice, others))


def _no_classes(root: Path, loose: Listing, classes: list[Path]) -> VitrailError:
    if loose.images:
        return VitrailError(
            f"{shown(root)} holds {counted(len(loose.images), 'image')} but no class folders: put the images of each "
            "class into a folder of its own, or add a CSV with the columns image and label"
        )
    others = loose.others + [file for folder in classes for file in scan(folder, above=[root]).others]
    what = f", only {counted(len(others), 'other file')} such as {shown(others[0].name)}" if others else ""
    empty = f" in its {counted(len(classes), 'folder')}" if classes else ""
    return VitrailError(
        f"{shown(root)} holds no images{empty}{what}: one folder for each class is looked for (cat/1.jpg), or a CSV"
    )


def _order(split: str | None) -> int:
    return ("train", "val", "test").index(split) if split else 0


def _names(folders: list[Path], root: Path) -> str:
    return listing([shown(folder, root) for folder in folders])
