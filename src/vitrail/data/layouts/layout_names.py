"""The names of all layouts. Light, for the command line and the settings."""

from __future__ import annotations

from vitrail.tasks.registry import own_layouts

FOLDERS = ("folders", "split-folders")
ANNOTATIONS = ("coco", "voc", "yolo")


def layout_names() -> tuple[str, ...]:
    """Every way in which data may lie: folders, a table, what a task reads itself, and annotations."""
    return (*FOLDERS, "table", *own_layouts(), *ANNOTATIONS)
