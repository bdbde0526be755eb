"""A manifest whose rows have labels: class folders, or what lies beside the images of a tar or a Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitrail.data.loading.window_sampler import POOL
from vitrail.data.manifest.manifest_file import Manifest, open_manifest
from vitrail.data.manifest.manifest_items import item_of
from vitrail.data.manifest.manifest_row import ManifestRow
from vitrail.data.manifest.parquet_cells import keep_row_groups
from vitrail.dataset import Dataset, Item
from vitrail.errors import VitrailError
from vitrail.findings import Example, Finding
from vitrail.tasks.registry import DEFAULT_TASK
from vitrail.text import counted, natural, nfc, shown

NAMED = 1000  # rows that a finding names


def from_manifest(path: str | Path, task: str | None = None) -> Dataset:
    """The images that have a label, as items in memory."""
    manifest = open_manifest(path)
    check_manifest(manifest, task)
    left_out = LeftOut()
    rows = [row for shard in manifest.shards for row in manifest.rows(shard) if left_out.takes(row)]
    if any(row.column is not None for row in rows):
        keep_row_groups(2 * POOL)
    names = [nfc(row.label or "") for row in rows]
    labels = tuple(sorted(set(names), key=natural))
    number = {name: index for index, name in enumerate(labels)}
    items = [item_of(row, manifest.root, number[name], row.split) for row, name in zip(rows, names, strict=True)]
    return manifest_dataset(manifest, labels, tuple(items), left_out.findings())


def check_manifest(manifest: Manifest, task: str | None) -> None:
    """Whether its files are to be seen, and whether its labels are what the task learns from."""
    manifest.check_root()
    if task not in (None, DEFAULT_TASK):
        raise VitrailError(
            f"{shown(manifest.path)} is a manifest, which has one label for each image: that teaches {DEFAULT_TASK}; "
            f"for {task} give the folder or table itself"
        )


def manifest_dataset(
    manifest: Manifest, labels: tuple[str, ...], items: Sequence[Item], findings: Sequence[Finding]
) -> Dataset:
    """VitrailError where no image has a label."""
    if not items:
        raise VitrailError(
            f"no image of {shown(manifest.path)} has a label to learn from: a label is the class folder that an image "
            "lies in (cat/1.jpg), a .cls beside it in a tar, or the column label of a Parquet file"
        )
    return Dataset(
        root=Path(manifest.root),
        layout="manifest",
        task=DEFAULT_TASK,
        labels=labels,
        items=items,
        findings=tuple(findings),
        manifest=manifest.path,
    )


class LeftOut:
    """The rows that nothing can be learnt from, counted, and the first of them by name."""

    def __init__(self) -> None:
        self.errors: list[Example] = []
        self.unlabelled: list[Example] = []
        self.counts = [0, 0]  # of both

    def takes(self, row: ManifestRow) -> bool:
        """Whether a row has an image and a label; if not, it is noted."""
        if row.error is None and row.label:
            return True
        kind = int(row.error is None)
        some = self.unlabelled if kind else self.errors
        self.counts[kind] += 1
        if len(some) < NAMED:
            some.append(Example((Path(row.name),), row.error or ""))
        return False

    def add(self, other: LeftOut) -> None:
        """Those of other rows."""
        self.counts = [own + more for own, more in zip(self.counts, other.counts, strict=True)]
        self.errors = [*self.errors, *other.errors][:NAMED]
        self.unlabelled = [*self.unlabelled, *other.unlabelled][:NAMED]

    def findings(self) -> list[Finding]:
        """What there is to say of them."""
        errors, unlabelled = self.counts
        findings = []
        if errors:
            title = f"{counted(errors, 'file')} could not be listed as a whole when the manifest was made"
            advice = "mend them and make the manifest again; the images that are listed are used"
            findings.append(Finding("not-listed", "error", title, advice, errors, tuple(self.errors)))
        if unlabelled:
            title = f"{counted(unlabelled, 'image has', 'images have')} no label"
            advice = "put them into class folders and make the manifest again; they are left out"
            findings.append(Finding("no-label", "warning", title, advice, unlabelled, tuple(self.unlabelled)))
        return findings
