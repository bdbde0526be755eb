"""`vitrail explore` as a user runs it."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.cli import main


def test_a_page_a_table_and_text(
    save: Callable[..., Path], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, table = tmp_path / "explored.html", tmp_path / "explored.csv"
    assert main(["explore", str(save()), str(photos), "--page", str(page), "--csv", str(table), "--clusters", "2"]) == 0
    shown = capsys.readouterr()
    assert "12 images, 2 clusters" in shown.out and f"wrote {page}" in shown.out and shown.err == ""
    assert '<canvas id="map"' in page.read_text(encoding="utf-8")
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12 and {row["label"] for row in rows} == {"cat", "dog"}
    assert {row["cluster"] for row in rows} == {"0", "1"}


def test_json_is_what_python_gives(save: Callable[..., Path], photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "dog" / "broken.png").write_bytes(b"nothing")
    assert main(["explore", str(save()), str(photos), "--json"]) == 1
    shown = capsys.readouterr()
    assert json.loads(shown.out) == vitrail.explore(str(save()), str(photos)).to_dict()
    assert shown.err == "vitrail: 1 image could not be read\n"


def test_a_pile_needs_no_labels(save: Callable[..., Path], tmp_path: Path, picture: Callable[..., Image.Image]) -> None:
    (tmp_path / "pile").mkdir()
    for number in range(12):
        picture(number).save(tmp_path / "pile" / f"{number}.png")
    picture(3).save(tmp_path / "pile" / "again.png")
    found = vitrail.explore(save(), tmp_path / "pile")
    assert len(found.pile.paths) == 13 and found.pile.classes is None
    assert {found.name(place) for place in found.near_duplicates[0]} == {"3.png", "again.png"}


def test_images_beside_class_folders_are_not_passed_over(
    save: Callable[..., Path], photos: Path, picture: Callable[..., Image.Image]
) -> None:
    assert vitrail.explore(save(), photos).pile.labels == ("cat", "dog")
    picture(99).save(photos / "loose.png")
    found = vitrail.explore(save(), photos)
    assert len(found.pile.paths) == 13 and found.pile.classes is None


def test_vectors_of_a_file_are_not_computed_again(
    save: Callable[..., Path], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = vitrail.explore(save(), photos)
    vitrail.embed(save(), photos, tmp_path / "emb.parquet")
    monkeypatch.setattr("vitrail.search.embeddings.Embedder.embed", lambda self, sources: iter(()))
    kept = vitrail.explore(save(), photos, embeddings=tmp_path / "emb.parquet")
    assert kept.to_dict() == computed.to_dict()
    photos.rename(tmp_path / "elsewhere")
    moved = vitrail.explore(save(), tmp_path / "elsewhere", embeddings=tmp_path / "emb.parquet")
    assert moved.distance.tolist() == computed.distance.tolist()


def test_files_of_the_same_names_have_vectors_of_their_own(
    save: Callable[..., Path],
    photos: Path,
    tmp_path: Path,
    picture: Callable[..., Image.Image],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Paths in the file may be relative: below another folder they mean other pictures."""
    monkeypatch.chdir(photos)
    vitrail.embed(save(), ["cat", "dog"], tmp_path / "emb.parquet")
    (tmp_path / "other" / "cat").mkdir(parents=True)
    for number, path in enumerate(sorted((photos / "cat").iterdir())):
        picture(50 + number).save(tmp_path / "other" / "cat" / path.name)
        os.utime(tmp_path / "other" / "cat" / path.name, (0, 0))
    monkeypatch.chdir(tmp_path / "other")
    found = vitrail.explore(save(), "cat", embeddings=tmp_path / "emb.parquet")
    np.testing.assert_allclose(found.distance, vitrail.explore(save(), "cat").distance, atol=1e-5)


def test_images_that_changed_since_are_computed(
    save: Callable[..., Path], photos: Path, tmp_path: Path, picture: Callable[..., Image.Image]
) -> None:
    before = vitrail.explore(save(), photos)
    vitrail.embed(save(), photos, tmp_path / "emb.parquet")
    changed = before.pile.paths[4]
    picture(77).save(changed)
    earlier = (tmp_path / "emb.parquet").stat().st_mtime - 1000  # as of a copy that keeps the time of its original
    os.utime(changed, (earlier, earlier))
    before.pile.paths[5].unlink()
    found = vitrail.explore(save(), photos, embeddings=tmp_path / "emb.parquet")
    assert found.distance[4] == pytest.approx(vitrail.explore(save(), photos).distance[4], abs=1e-5)
    assert found.distance[4] != pytest.approx(before.distance[4], abs=1e-5) and len(found.pile.paths) == 11


def test_vectors_of_another_model_are_refused(
    save: Callable[..., Path], photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save(name="other.safetensors", depth=3)
    vitrail.embed(other, photos, tmp_path / "emb.parquet")
    assert main(["explore", str(save()), str(photos), "--embeddings", str(tmp_path / "emb.parquet")]) == 2
    shown = capsys.readouterr()
    assert "were made by another model" in shown.err and shown.err.count("\n") == 1


def test_an_empty_folder_is_one_sentence(
    save: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["explore", str(save()), str(tmp_path / "empty")]) == 2
    assert "holds no images" in capsys.readouterr().err
