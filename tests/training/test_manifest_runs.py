"""Training and evaluation on manifests: of files, tars and Parquet files, small and large, resumed, shared, damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.manifest.test_list_images import write_parquet, write_tar
from tests.data.manifest.test_survey import manifest_of
from tests.training.running import tiny_settings, write_pictures
from tests.training.running import vitrail as command
from tests.training.test_resume import assert_alike, assert_same, kill_after
from vitrail.commands.evaluate import evaluate
from vitrail.commands.train import train
from vitrail.data.manifest.list_images import list_images
from vitrail.data.manifest.manifest_file import write_manifest
from vitrail.data.manifest.manifest_row import ManifestRow
from vitrail.errors import VitrailError
from vitrail.storage import write_bytes


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`folder`, and manifests of the same 30 pictures in the same order: of the files, of a tar, of a Parquet file, and
    of a class each."""
    made = tmp_path_factory.mktemp("sets")
    folder = write_pictures(made / "folder", each=10)
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.png"))}
    for name in ("tar", "cells", "mixed"):
        (made / name).mkdir()
    write_tar(made / "tar" / "a.tar", files)
    labels = [name.partition("/")[0] for name in files]
    write_parquet(made / "cells" / "a.parquet", {"image": list(files.values()), "label": labels}, rows=7)
    shutil.copytree(folder / "cat", made / "mixed" / "cat")
    write_tar(made / "mixed" / "d.tar", {name: data for name, data in files.items() if name.startswith("dog")})
    owls = [data for name, data in files.items() if name.startswith("owl")]
    write_parquet(made / "mixed" / "o.parquet", {"image": owls, "label": ["owl"] * 10}, rows=4)
    for name in ("folder", "tar", "cells", "mixed"):
        manifest_of(made / name, made / f"{name}.manifest", shard_size=8)
    return made


@pytest.fixture(scope="module")
def of_folder(sets: Path) -> Path:
    train(sets / "folder", sets / "of_folder", settings=tiny_settings())
    return sets / "of_folder"


@pytest.mark.parametrize("kind", ["folder", "tar", "cells", "mixed"])
def test_a_run_from_a_manifest_is_the_run_from_its_folder(sets: Path, tmp_path: Path, of_folder: Path, kind: str):
    """Bit for bit, and measured alike; the report shows the pictures."""
    finished = train(sets / f"{kind}.manifest", tmp_path / "run", settings=tiny_settings())
    assert_same(of_folder, tmp_path / "run")
    page, own = ((run / "report.html").read_text() for run in (tmp_path / "run", of_folder))
    assert page.count("data:image/jpeg") == own.count("data:image/jpeg") > 0
    assert len(list(finished.folder.samples.iterdir())) == len(list((of_folder / "samples").iterdir())) > 0
    assert finished.folder.calibration.exists()
    kept, before = ((run / "model.safetensors") for run in (tmp_path / "run", of_folder))
    results = [evaluate(model, sets / data) for model in (kept, before) for data in ("folder", f"{kind}.manifest")]
    assert all(one["part"] == "val" and one["metrics"] == results[0]["metrics"] for one in results)


@pytest.mark.parametrize("kind", ["folder", "cells", "mixed"])
def test_a_large_manifest_holds_out_what_the_folder_does(sets: Path, tmp_path: Path, of_folder: Path, kind: str):
    """Its pictures come in another order, so the weights differ; parts, facts and what is kept of them do not."""
    settings = tiny_settings(data__manifest_items=0)
    finished = train(sets / f"{kind}.manifest", tmp_path / "run", settings=settings)
    mine = finished.checkpoint.provenance["training"]
    results = json.loads((of_folder / "results.json").read_text())
    assert finished.results["images"] == results["images"] and mine["images"] == 30 - results["images"]
    assert mine["holdout"] == 0.2 and len(mine["sample"]) == mine["images"]
    result = evaluate(finished.folder.model, sets / "folder")
    metric = result["main_metric"]
    assert result["part"] == "val" and result["images"] == results["images"]
    assert result["metrics"][metric] == pytest.approx(finished.results["metrics"][metric])
    assert evaluate(finished.folder.model, sets / f"{kind}.manifest")["metrics"] == result["metrics"]
    assert any(finding.kind == "not-checked" for finding in finished.findings)
    assert finished.learnt is not None and len(finished.learnt.training_vectors) == mine["images"]
    assert finished.folder.calibration.exists()


def test_without_a_cache_the_pictures_are_the_same(sets: Path, tmp_path: Path):
    for mode in ("memory", "off"):
        settings = tiny_settings(data__manifest_items=0, data__cache=mode)
        train(sets / "cells.manifest", tmp_path / mode, settings=settings)
    assert_same(tmp_path / "memory", tmp_path / "off")


@pytest.fixture
def large(tmp_path: Path, tiny: Callable[..., Path]) -> Callable[..., Path]:
    """The settings file of a run that keeps no picture and no item."""

    def write(workers: int = 0, noise: float = 0.1) -> Path:
        path = tiny(workers, noise)
        text = path.read_text().replace("[data]", '[data]\nmanifest_items = 0\ncache = "off"')
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("kind", ["tar", "cells"])
def test_killed_and_resumed_is_bit_equal(sets: Path, tmp_path: Path, large: Callable[..., Path], kind: str):
    """Also to a run with another number of workers."""
    data, whole, run = sets / f"{kind}.manifest", tmp_path / "whole", tmp_path / "killed"
    done = command("train", data, "--out", whole, "--settings", large(workers=0))
    assert done.returncode == 0, done.stderr
    kill_after(2, "train", data, "--out", run, "--settings", large(workers=2), run=run)
    done = command("train", data, "--out", run, "--resume")
    assert done.returncode == 0, done.stderr
    assert "resumed after step" in done.stdout
    assert_same(whole, run)


def test_two_processes_learn_what_one_does(sets: Path, tmp_path: Path, large: Callable[..., Path]):
    data, settings = sets / "mixed.manifest", large(noise=0.0)
    assert command("train", data, "--out", tmp_path / "one", "--settings", settings).returncode == 0
    done = command("train", data, "--out", tmp_path / "two", "--settings", settings, processes=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_alike(tmp_path / "one", tmp_path / "two", loss=1e-4, weight=1e-4)


@pytest.mark.parametrize("items", [0, 100])
def test_what_cannot_be_used_is_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], items: int):
    folder = write_pictures(tmp_path / "data", each=10)
    members = {f"owl/{place}.png": (folder / "owl" / f"{place}.png").read_bytes() for place in range(10)}
    shutil.rmtree(folder / "owl")
    members["owl/7.png"] = members["owl/7.png"][:100]
    write_tar(folder / "a.tar", members | {"loose.png": members["owl/1.png"]})
    (folder / "cut.tar").write_bytes((folder / "a.tar").read_bytes()[:2000])
    manifest_of(folder, tmp_path / "m", shard_size=9)
    finished = train(tmp_path / "m", tmp_path / "run", settings=tiny_settings(data__manifest_items=items))
    said = capsys.readouterr().out
    assert "1 file cannot be read" in said and "a.tar::owl/7.png" in said
    assert "1 image has no label: a.tar::loose.png" in said
    assert "1 file could not be listed as a whole when the manifest was made: cut.tar" in said
    learnt, held_out = finished.checkpoint.provenance["training"]["images"], finished.results["images"]
    assert learnt + held_out == 29 + members_before_the_cut(folder / "cut.tar")


def members_before_the_cut(tar: Path) -> int:
    return sum(row.error is None and bool(row.label) for row in list_images(str(tar.parent), tar.name))


@pytest.mark.parametrize("items", [0, 100])
def test_what_teaches_nothing_is_refused_in_a_sentence(sets: Path, tmp_path: Path, items: int):
    settings = tiny_settings(data__manifest_items=items)
    (tmp_path / "plain").mkdir()
    for place in range(3):
        shutil.copy(sets / "folder" / "cat" / f"{place}.png", tmp_path / "plain")
    manifest_of(tmp_path / "plain", tmp_path / "unlabelled")
    write_manifest([ManifestRow("a.tar", error="is truncated")], str(tmp_path), tmp_path / "errors")
    for name in ("unlabelled", "errors"):
        with pytest.raises(VitrailError, match=f"no image of .*{name} has a label"):
            train(tmp_path / name, tmp_path / "run", settings=settings)
    (tmp_path / "broken" / "cat").mkdir(parents=True)
    (tmp_path / "broken" / "cat" / "1.png").write_bytes(b"no image")
    manifest_of(tmp_path / "broken", tmp_path / "b")
    with pytest.raises(VitrailError, match="none of the 1 image can be read"):
        train(tmp_path / "b", tmp_path / "run", settings=settings)
    manifest = sets / "tar.manifest"
    for changes, words in (
        ({"data__task": "segment"}, "teaches classify; for segment give the folder"),
        ({"data__layout": "folders"}, "layout='folders' does not fit"),
        ({"data__targets": "age"}, "columns of a table, do not fit"),
    ):
        with pytest.raises(VitrailError, match=words):
            train(manifest, tmp_path / "run", settings=tiny_settings(data__manifest_items=items, **changes))
    write_manifest([ManifestRow("cat/1.png", label="cat")], str(tmp_path / "gone"), tmp_path / "moved")
    with pytest.raises(VitrailError, match="gone.*is not there"):
        train(tmp_path / "moved", tmp_path / "run", settings=settings)
    assert not (tmp_path / "run").exists()


def test_balanced_drawing_is_for_small_manifests(sets: Path, tmp_path: Path):
    settings = tiny_settings(data__manifest_items=0, train__balanced=True)
    with pytest.raises(VitrailError, match="set train.class_weights instead"):
        train(sets / "tar.manifest", tmp_path / "run", settings=settings)


@pytest.mark.parametrize("items", [0, 100])
def test_parts_are_those_of_the_paths(tmp_path: Path, items: int):
    """A val part is measured on and nothing is held out; without one, train gives a tenth beside test."""
    for part, each in (("train", 8), ("val", 3), ("test", 2)):
        write_pictures(tmp_path / "data" / part, each=each, side=15 + each)
    manifest_of(tmp_path / "data", tmp_path / "m", shard_size=5)
    settings = tiny_settings(data__manifest_items=items)
    finished = train(tmp_path / "m", tmp_path / "run", settings=settings)
    history = finished.checkpoint.provenance["training"]
    assert (finished.part, finished.results["images"], history["images"], history["holdout"]) == ("test", 6, 24, None)
    assert evaluate(finished.folder.model, tmp_path / "m")["part"] == "test"
    shutil.rmtree(tmp_path / "data" / "val")
    manifest_of(tmp_path / "data", tmp_path / "m2", shard_size=5)
    finished = train(tmp_path / "m2", tmp_path / "run2", settings=settings)
    assert finished.checkpoint.provenance["training"]["holdout"] == 0.1
    assert "train 24, test 6, no validation part: 10 % of train" in finished.description


def test_images_that_changed_are_noticed_when_a_run_is_resumed(sets: Path, tmp_path: Path):
    folder = tmp_path / "data"
    shutil.copytree(sets / "folder", folder)
    manifest_of(folder, tmp_path / "m")
    settings = tiny_settings(data__manifest_items=0)
    train(tmp_path / "m", tmp_path / "run", settings=settings)
    shutil.copy(folder / "cat" / "1.png", folder / "dog" / "1.png")
    with pytest.raises(VitrailError, match="changed since the run"):
        train(tmp_path / "m", tmp_path / "run", resume=True)


@pytest.mark.parametrize("items", [0, 100])
def test_on_a_store(sets: Path, tmp_path: Path, of_folder: Path, items: int):
    """Files and a tar that lie on a store, named by a manifest that lies there too."""
    for path in sorted((sets / "mixed").rglob("*.*")):
        write_bytes(f"memory://train{items}/{path.relative_to(sets / 'mixed').as_posix()}", path.read_bytes())
    root = f"memory://train{items}"
    write_manifest(list_images(root), root, f"memory://manifest{items}", shard_size=8)
    settings = tiny_settings(data__manifest_items=items)
    finished = train(f"memory://manifest{items}", tmp_path / "run", settings=settings)
    assert finished.results["images"] == json.loads((of_folder / "results.json").read_text())["images"]
    if items:
        assert_same(of_folder, tmp_path / "run")
    measured = evaluate(finished.folder.model, f"memory://manifest{items}")
    assert measured["metrics"] == evaluate(finished.folder.model, sets / "folder")["metrics"]
    with pytest.raises(VitrailError, match="is no manifest: vitrail manifest memory://train"):
        train(root, tmp_path / "other", settings=settings)


@pytest.mark.parametrize("words", [["pretrain"], ["knn", "mu/16"], ["explore", "mu/16"], ["check"]])
def test_commands_that_read_paths_refuse_a_manifest(sets: Path, tmp_path: Path, words: list[str]):
    more = ["--out", tmp_path / "out"] if words[0] == "pretrain" else []
    done = command(*words, sets / "tar.manifest", *more)
    assert done.returncode == 2
    assert "is a manifest, which this command does not take" in done.stderr, done.stderr
