"""`vitrail.evaluate`: the right images against the right answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitrail
from vitrail.data.layouts.recognise import read_dataset
from vitrail.data.loading.split import digest_files, hold_out
from vitrail.errors import VitrailError
from vitrail.graphs.graph_formats import graph_parts, traced_graph
from vitrail.inference.calibration import int8_search
from vitrail.inference.calibration.int8_search import Int8Job
from vitrail.tasks.registry import task_for


def test_the_same_as_the_task_on_the_outputs(save: Callable[..., Path], photos: Path) -> None:
    model = vitrail.load(save())
    paths = [item.path for item in read_dataset(photos).items]
    truth = [0 if path.parent.name == "cat" else 1 for path in paths]
    expected = task_for("classify", model.labels or []).evaluate(
        model.outputs(paths), torch.tensor(truth), bootstrap=50
    )
    found = vitrail.evaluate(save(), photos, bootstrap=50, batch_size=5)
    assert found["images"] == 12 and found["part"] == "all" and found["unreadable"] == [] == found["notes"]
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-5)
    assert found["confusion"] == expected["confusion"]
    assert all(Path(miss["image"]).parent.name == miss["truth"] for miss in found["worst"])
    assert found["data"] == str(photos) and found["model"].endswith("model.safetensors")
    json.dumps(found)


@pytest.mark.parametrize("named", [None, "same", "other"])
def test_int8_says_what_it_was_calibrated_on(
    named: str | None, save: Callable[..., Path], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(job: Int8Job) -> tuple[list[bytes], dict[str, Any]]:
        loss = {"metric": "accuracy", "points": 0.1, "largest_probability_difference": None}
        record = {"loss": loss, "held_out": 4, "calibration": job.pictures.source, "images": len(job.pictures.images)}
        return graph_parts(job.graph_format, traced_graph(job.graph_format, job.checkpoint, job.size)), record

    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(int8_search, "search_int8_apart", search)  # it takes minutes, and has tests of its own
    shutil.copytree(photos, tmp_path / "others")
    folder = {"same": photos, "other": tmp_path / "others", None: None}[named]
    found = vitrail.evaluate(save(), photos, engine="onnxruntime", precision="int8", calibration=folder, bootstrap=0)
    [note] = found["notes"]
    of = "12 pictures at hand" if named is None else f"12 labelled pictures of {folder}"
    assert note.startswith(f"int8 was calibrated on {of}")
    assert ("flattered" in note) == (named != "other")


def test_labels_are_matched_by_name_not_by_place(save: Callable[..., Path], photos: Path) -> None:
    """The same network with its outputs in another order, and their names with them, has the same score."""
    model = vitrail.load(save())
    expected = vitrail.evaluate(model, photos, bootstrap=0)
    order = torch.tensor([2, 1, 0])
    assert model.model.head is not None
    with torch.no_grad():
        for tensor in (model.model.head.out.weight, model.model.head.out.bias):
            tensor.copy_(tensor[order].clone())
    model.labels = ["owl", "dog", "cat"]
    found = vitrail.evaluate(model, photos, bootstrap=0)
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-5)
    by_name = {row["label"]: row for row in expected["per_label"]}
    assert all(row == by_name[row["label"]] for row in found["per_label"])
    model.labels = ["dog", "cat", "owl"]
    assert vitrail.evaluate(model, photos, bootstrap=0)["confusion"] != expected["confusion"]


def test_a_class_that_the_model_does_not_know(save: Callable[..., Path], photos: Path) -> None:
    (photos / "cat").rename(photos / "wombat")
    with pytest.raises(VitrailError, match="no class 'wombat'"):
        vitrail.evaluate(save(), photos)


def test_broken_images_are_named_and_left_out(save: Callable[..., Path], photos: Path) -> None:
    whole = vitrail.evaluate(save(), photos, bootstrap=0)
    (photos / "cat" / "0 broken.png").write_bytes(b"nothing")
    found = vitrail.evaluate(save(), photos, bootstrap=0)
    assert found["metrics"] == pytest.approx(whole["metrics"]) and found["images"] == 12
    assert [Path(row["image"]).name for row in found["unreadable"]] == ["0 broken.png"]
    assert "is not an image" in found["unreadable"][0]["error"]


def test_nothing_but_broken_images(save: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "data" / "cat").mkdir(parents=True)
    (tmp_path / "data" / "cat" / "1.png").write_bytes(b"")
    with pytest.raises(VitrailError, match="none of 1 image could be read, the first because it is empty"):
        vitrail.evaluate(save(), tmp_path / "data")


def test_the_part_that_training_held_out(save: Callable[..., Path], photos: Path) -> None:
    divided = hold_out(read_dataset(photos), 0.4, seed=3)
    sample = [digest.hex() for digest in digest_files([item.path for item in divided.part("train")])]
    model = save(provenance={"training": {"holdout": 0.4, "seed": 3, "sample": sample}})
    found = vitrail.evaluate(model, photos, bootstrap=0)
    assert (found["part"], found["images"]) == ("val", len(divided.part("val")))
    assert found["notes"] == [f"left out {len(divided.part('train'))} images the model was trained on"]
    assert "flattered" in vitrail.evaluate(model, photos, part="all", bootstrap=0)["notes"][0]


@pytest.fixture
def table(photos: Path) -> Callable[[str], Path]:
    """A CSV beside the folder, its lines as given; {n} is the n-th picture."""

    def written(text: str) -> Path:
        paths = [str(item.path) for item in read_dataset(photos).items]
        path = photos.parent / "table.csv"
        path.write_text(text.format(*paths))
        return path

    return written


def test_numbers_by_the_names_of_their_columns(save: Callable[..., Path], table: Callable[[str], Path]) -> None:
    model = vitrail.load(save(("weight", "age"), task="regress"))
    path = table("image,age,note,weight,split\n{0},3,7,20,test\n{1},5,x,30,test\n{2},9,,10,train\n{3},1,,15,test\n")
    found = vitrail.evaluate(model, path, bootstrap=0)
    assert (found["part"], found["images"]) == ("test", 3)
    outputs = model.outputs([item.path for item in read_dataset(path, task="regress", targets=["age"]).part("test")])
    by_name = {row["label"]: row for row in found["per_label"]}
    truth = torch.tensor([[20.0, 3.0], [30.0, 5.0], [15.0, 1.0]])
    for place, name in enumerate(("weight", "age")):
        assert by_name[name]["MAE"] == pytest.approx((outputs - truth)[:, place].abs().mean().item(), rel=1e-4)
    with pytest.raises(VitrailError, match="has no column 'weight'"):
        vitrail.evaluate(model, table("image,age\n{0},3\n{1},4\n"))


def test_a_column_called_label_holds_numbers_for_a_model_of_numbers(
    save: Callable[..., Path], table: Callable[[str], Path]
) -> None:
    found = vitrail.evaluate(save(("label",), task="regress"), table("image,label\n{0},3\n{1},4\n"), bootstrap=0)
    assert found["task"] == "regress" and found["images"] == 2


def test_folders_named_by_numbers(save: Callable[..., Path], photos: Path) -> None:
    (photos / "cat").rename(photos / "1.5")
    (photos / "dog").rename(photos / "20")
    assert vitrail.evaluate(save(("number",), task="regress"), photos, bootstrap=0)["images"] == 12
    with pytest.raises(VitrailError, match="predicts 'age', which the data does not have .it has number"):
        vitrail.evaluate(save(("age",), task="regress"), photos)


def test_several_labels(save: Callable[..., Path], table: Callable[[str], Path]) -> None:
    path = table("image,labels\n{0},owl|cat\n{1},\n{2},owl\n")
    found = vitrail.evaluate(save(task="multilabel"), path, bootstrap=0)
    assert {row["label"]: row["support"] for row in found["per_label"]} == {"cat": 1, "dog": 0, "owl": 2}


@pytest.mark.parametrize(
    ("task", "how", "sentence"),
    [
        ("classify", {"task": "regress"}, "the model's task is classify, not regress"),
        ("multilabel", {}, "folders give one label an image"),
        ("regress", {}, "not named by a number"),
    ],
)
def test_data_for_another_task(
    save: Callable[..., Path], photos: Path, task: str, how: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(VitrailError, match=sentence):
        vitrail.evaluate(save(task=task), photos, **how)


def test_a_collection_for_another_task(save: Callable[..., Path], photos: Path) -> None:
    with pytest.raises(VitrailError, match="the model's task is multilabel, the data is for classify"):
        vitrail.evaluate(save(task="multilabel"), read_dataset(photos))


def test_models_that_cannot_be_measured(save: Callable[..., Path], photos: Path) -> None:
    with pytest.raises(VitrailError, match="untrained"):
        vitrail.evaluate("S/16", photos)
    with pytest.raises(VitrailError, match="no class names"):
        vitrail.evaluate(save(None), photos)
    with pytest.raises(VitrailError, match="embeddings"):
        vitrail.evaluate(save(None, task="embed", classes=0), photos)


def test_what_the_data_leaves_out_is_said(
    save: Callable[..., Path], photos: Path, picture: Callable[..., Image.Image]
) -> None:
    picture(1).save(photos / "loose.png")
    assert vitrail.evaluate(save(), photos, bootstrap=0)["notes"] == ["1 image lies outside the class folders"]
