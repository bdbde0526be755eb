"""OpenVINO and ONNX Runtime give torch's answers for every task and network; their graphs are kept, whole or not."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.conftest import lively_vit
from vitrail.errors import VitrailError
from vitrail.graphs import quantize_search
from vitrail.graphs.graph_formats import graph_from_parts, graph_parts, traced_graph
from vitrail.inference.auto import crash_record
from vitrail.inference.auto.candidates import Candidate
from vitrail.inference.auto.crash_record import remember_crash
from vitrail.inference.backends import graph_backend, openvino_run
from vitrail.inference.backends.backend import load_backend
from vitrail.inference.backends.graph_backend import GraphBackend
from vitrail.inference.backends.graph_cache import fingerprint
from vitrail.inference.backends.int8_record import graph_name, int8_records
from vitrail.inference.backends.openvino_backend import OpenVinoBackend
from vitrail.inference.backends.openvino_run import core
from vitrail.inference.calibration import int8_search
from vitrail.inference.calibration.calibration_file import write_calibration
from vitrail.inference.calibration.int8_search import Int8Job
from vitrail.inference.calibration.quantized_model import quantized_model
from vitrail.inference.engine import Engine
from vitrail.inference.image_processor import ImageProcessor
from vitrail.inference.predictor import Predictor
from vitrail.model.encoder import Encoder
from vitrail.model.presets import build_network, preset
from vitrail.model.swin.swin_config import SwinConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

GRAPHS = ("openvino", "onnxruntime")
LABELS = ["a", "b", "c"]
METRICS = {
    "classify": "accuracy",
    "multilabel": "mAP",
    "regress": "R2",
    "segment": "mIoU",
    "depth": "AbsRel",
    "detect": "AP50",
}  # that int8 is judged by


def vit(**settings: Any) -> Callable[[], Encoder]:
    return lambda: lively_vit(preset("mu/8", **{"image_size": 32, "classes": 3, **settings}))


def swin() -> Encoder:
    torch.manual_seed(0)
    return build_network(
        SwinConfig(image_size=64, width=32, depths=(2, 1), heads=(2, 4), window_size=4, classes=3)
    ).eval()


# Tasks of one head share a network, and so its graph: tracing takes seconds.
NETWORKS: dict[str, tuple[str, Callable[[], Encoder], str]] = {
    "classify": ("classify", vit(), "crop"),
    "multilabel": ("multilabel", vit(), "crop"),
    "regress": ("regress", vit(), "crop"),
    "segment": ("segment", vit(head="mask_linear"), "pad"),
    "segment in windows": ("segment", vit(head="mask_linear"), "window"),
    "depth": ("depth", vit(head="mask_linear", classes=1), "pad"),
    "detect": ("detect", vit(head="box_tokens", queries=4), "squash"),
    "Swin": ("classify", swin, "crop"),
}


def checkpoint_of(name: str) -> Checkpoint:
    task, network, resize = NETWORKS[name]
    model = network()
    preprocessing = Preprocessing(size=model.config.image_size, resize=resize)
    return Checkpoint(model, preprocessing, task, LABELS[: model.config.classes])


def pictures(count: int = 3) -> list[np.ndarray]:
    return [np.random.default_rng(seed).integers(0, 256, (45, 70, 3), np.uint8) for seed in range(count)]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("engine", GRAPHS)
def test_the_answers_are_torchs(engine: str, name: str) -> None:
    checkpoint = checkpoint_of(name)
    expected, fast = (Engine.open(checkpoint, engine=one, precision="fp32", batch_size=2) for one in ("torch", engine))
    assert (fast.backend.name, fast.backend.precision) == (engine, "float32")
    images = [expected.read(picture) for picture in pictures()]
    for one, other in zip(expected.outputs(images), fast.outputs(images), strict=True):
        torch.testing.assert_close(other, one, atol=2e-4, rtol=1e-3)
    answers = [row.answer for row in Predictor(fast).predict(pictures(), top=1)]
    torch_answers = [row.answer for row in Predictor(expected).predict(pictures(), top=1)]
    assert [answer.keys() for answer in answers if answer] == [answer.keys() for answer in torch_answers if answer]
    assert next(expected.checkpoint.model.parameters()).dtype == torch.float32  # the caller's network is as it was


# ---- graphs: made once, for the sizes that come


@pytest.fixture(params=GRAPHS)
def backend(request: pytest.FixtureRequest) -> GraphBackend:
    loaded = load_backend(request.param, checkpoint_of("classify"), precision="fp32")
    assert isinstance(loaded, GraphBackend)
    return loaded


def test_a_second_process_traces_nothing(backend: GraphBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: GraphBackend, *size: Any) -> list[bytes]:
        raise AssertionError("it is in the cache")

    images = torch.randn(2, 3, 32, 32)
    monkeypatch.setattr(type(backend), "make_graph", fail)
    again = load_backend(backend.name, checkpoint_of("classify"), precision="fp32")
    assert torch.equal(again(images), backend(images))


def test_another_size_is_prepared_when_it_comes(
    backend: GraphBackend, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in backend.cache.folder.glob("*-32x48*"):  # of an earlier session, where the cache folder is set
        path.unlink()
    monkeypatch.setattr(graph_backend, "MOST_SIZES", 1)
    images = torch.randn(3, 3, 32, 48)
    with torch.no_grad():
        expected = backend.checkpoint.model(images)
    torch.testing.assert_close(backend(images), expected, atol=2e-4, rtol=1e-3)
    said = capsys.readouterr().err
    assert f"the engine {backend.name} is being prepared for 32 x 48 px" in said
    small = images[..., :32].contiguous()  # the first size was given up, and is on disk
    with torch.no_grad():
        torch.testing.assert_close(backend(small), backend.checkpoint.model(small), atol=2e-4, rtol=1e-3)
    assert "being prepared" not in capsys.readouterr().err


def test_a_damaged_graph_is_made_again(
    backend: GraphBackend, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also one whose bytes are whole, and which the runtime does not take."""
    own = tmp_path / backend.cache.folder.relative_to(os.environ["VITRAIL_CACHE"])
    shutil.copytree(backend.cache.folder, own)  # tests in another process read and mend the shared ones
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    backend = load_backend(backend.name, checkpoint_of("classify"), precision="fp32")
    assert backend.cache.folder == own
    (path,) = backend.cache.folder.glob(f"{backend.graph_format}-32x32*")
    whole = path.read_bytes()
    parts = backend.cache.read(f"{backend.graph_format}-32x32")
    assert parts is not None
    made = [bytes(part) for part in parts]
    monkeypatch.setattr(type(backend), "make_graph", lambda self, *size: made)  # tracing takes seconds
    path.write_bytes(whole[: len(whole) // 2] + b"?" + whole[len(whole) // 2 + 1 :])
    again = load_backend(backend.name, checkpoint_of("classify"), precision="fp32")
    assert "is damaged: it is made again" in capsys.readouterr().err and path.read_bytes() == whole
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(again(images), backend(images))
    backend.cache.write(path.stem, [b"no graph"] * len(made))
    again = load_backend(backend.name, checkpoint_of("classify"), precision="fp32")
    assert f"is not taken by {backend.name}" in capsys.readouterr().err and path.read_bytes() == whole
    assert torch.equal(again(images), backend(images))


def test_an_engine_that_crashed_before_is_run_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = checkpoint_of("classify")
    load_backend("openvino", checkpoint, precision="fp32")  # traced, and kept
    assert "crashed" not in capsys.readouterr().err
    monkeypatch.setattr(crash_record, "cache_folder", lambda: tmp_path)
    remember_crash(fingerprint(checkpoint), Candidate("openvino", "float32"), "a segmentation fault")
    load_backend("openvino", checkpoint, precision="fp32")
    said = capsys.readouterr().err
    assert "openvino in float32 with this model: it crashed on " in said and "use another engine" in said


def test_the_cpu_is_where_graphs_run(backend: GraphBackend) -> None:
    with pytest.raises(VitrailError, match=f"the engine {backend.name} runs on the CPU, not on cuda"):
        Engine.open(backend.checkpoint, engine=backend.name, device="cuda")


# ---- precision


def test_openvino_is_told_its_precision_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: list[dict[str, Any]] = []

    class Spy:
        def __getattr__(self, name: str) -> Any:
            return getattr(core(), name)

        def get_property(self, device: str, name: str) -> Any:
            return ["FP32", "BF16"]

        def compile_model(self, model: Any, device: str, given: dict[str, Any]) -> Any:
            settings.append(given)
            return core().compile_model(model, device, {**given, "INFERENCE_PRECISION_HINT": "f32"})

    monkeypatch.setattr(openvino_run, "core", Spy)
    for asked, computes, told in [
        ("auto", True, "bf16"),
        ("auto", False, "f32"),
        ("bf16", False, "bf16"),
        ("fp32", True, "f32"),
    ]:
        monkeypatch.setattr("vitrail.model.precision.computes_bf16", lambda device, computes=computes: computes)
        loaded = load_backend("openvino", checkpoint_of("classify"), precision=asked)
        loaded(torch.zeros(1, 3, 32, 32))
        assert settings[-1]["INFERENCE_PRECISION_HINT"] == told
        assert loaded.precision == {"bf16": "bfloat16", "f32": "float32"}[told]
        assert settings[-1]["INFERENCE_NUM_THREADS"] == torch.get_num_threads()


def test_two_batch_sizes_have_graphs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """And all others one together: nothing is compiled again and again. What comes much more often gets its own."""
    checkpoint, shapes = checkpoint_of("classify"), []

    class Spy:
        def __getattr__(self, name: str) -> Any:
            return getattr(core(), name)

        def compile_model(self, model: Any, device: str, given: dict[str, Any]) -> Any:
            shapes.append(str(model.input(0).partial_shape[0]))
            return core().compile_model(model, device, given)

    loaded = load_backend("openvino", checkpoint, precision="fp32")
    monkeypatch.setattr(openvino_run, "core", Spy)
    images = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        expected = checkpoint.model(images)
    for count in (3, 1, 2, 5, 3, 1, 4):
        torch.testing.assert_close(loaded(images[:count]), expected[:count], atol=2e-4, rtol=1e-3)
    assert shapes == ["3", "1", "?"]
    for count in 12 * [2] + [3, 1] + 20 * [2]:  # a server's first batches are small, then they are full
        torch.testing.assert_close(loaded(images[:count]), expected[:count], atol=2e-4, rtol=1e-3)
    assert shapes == ["3", "1", "?", "2"]


def test_a_processor_without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def get_property(self, device: str, name: str) -> list[str]:
            return ["FP32", "INT8"]

    monkeypatch.setattr(openvino_run, "core", Old)
    assert OpenVinoBackend.choose_precision("auto") == "float32"
    with pytest.raises(VitrailError, match="this processor has no bf16.*: choose fp32"):
        OpenVinoBackend.choose_precision("bfloat16")


def test_onnxruntime_has_no_bf16() -> None:
    with pytest.raises(VitrailError, match="the engine onnxruntime does not compute in bf16.*: choose auto, fp32"):
        load_backend("onnxruntime", checkpoint_of("classify"), precision="bf16")


LOSS = {"points": 0.21, "metric": "accuracy", "largest_probability_difference": 0.04}


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[int, str]]:
    """How many pictures each search for int8 had, and its hint. The search has tests of its own, and takes minutes."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    calls: list[tuple[int, str]] = []

    def search(job: Int8Job) -> tuple[list[bytes], dict[str, Any]]:
        count = len(job.pictures.images)
        calls.append((count, job.hint))
        model = traced_graph(job.graph_format, job.checkpoint, job.size)
        record = {"loss": LOSS, "held_out": 2, "calibration": job.pictures.source, "images": count}
        return graph_parts(job.graph_format, model), record

    monkeypatch.setattr(int8_search, "search_int8_apart", search)
    monkeypatch.setattr("vitrail.inference.calibration.calibration_images.FEWEST", 1)
    return calls


def test_int8_is_searched_again_on_more_pictures_and_on_others(
    searches: list[tuple[int, str]], tmp_path: Path, save: Callable[..., Path]
) -> None:
    """One photo was once enough for good, and a folder that was named later was ignored."""
    path = save()
    for folder, count in (("few", 2), ("many", 40)):
        (tmp_path / folder).mkdir()
        for number, picture in enumerate(pictures(count)):
            Image.fromarray(picture).save(tmp_path / folder / f"{number}.png")
    steps: list[tuple[Any, int]] = [
        (pictures(1), 1), (pictures(1), 0), (pictures(3), 3), (tmp_path / "few", 2), (tmp_path / "few", 0),
        (tmp_path / "many", 40), (pictures(5), 0), (None, 0),
    ]  # fmt: skip
    for calibration, searched in steps:
        searches.clear()
        Engine.open(path, engine="onnxruntime", precision="int8", calibration=calibration)
        assert [count for count, _ in searches] == ([searched] if searched else []), calibration


def test_int8_is_searched_again_for_the_same_weights_with_another_task_pixels_or_processor(
    searches: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept is found by the network alone: a change of anything else would have been answered by its int8."""
    first = checkpoint_of("classify")
    other_pixels = dataclasses.replace(first, preprocessing=first.preprocessing.replace(mean=(0.2, 0.3, 0.4)))
    for checkpoint in (first, first, other_pixels, dataclasses.replace(other_pixels, task="multilabel")):
        Engine.open(checkpoint, engine="onnxruntime", precision="int8", calibration=pictures())
    assert len(searches) == 3
    monkeypatch.setattr("vitrail.graphs.vnni.saturates_int8", lambda: "otherwise")
    Engine.open(checkpoint, engine="onnxruntime", precision="int8", calibration=pictures())
    assert len(searches) == 4


def test_a_loaded_model_knows_the_pictures_beside_its_file(
    searches: list[tuple[int, str]], save: Callable[..., Path]
) -> None:
    path = save()
    model = vitrail.load(path)
    near = ImageProcessor(model.preprocessing, False)
    training = model.provenance.get("training", {})
    write_calibration(path.with_name("calibration.zip"), [near.read(picture) for picture in pictures(4)], training)
    model.predict(pictures(1)[0], engine="onnxruntime", precision="int8")
    assert [count for count, _ in searches] == [4]
    assert dataclasses.replace(model).path is None  # something else now


@pytest.mark.parametrize("engine", GRAPHS)
def test_int8_is_searched_once_on_pictures(
    engine: str, searches: list[tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = checkpoint_of("classify")
    with pytest.raises(VitrailError, match="int8 needs pictures to be calibrated on.*: give a folder of pictures"):
        Engine.open(checkpoint, engine=engine, precision="int8")
    for _ in range(2):  # the second time without pictures
        loaded = Engine.open(checkpoint, engine=engine, precision="int8", calibration=() if searches else pictures())
        assert loaded.backend.precision == "int8"
        words = "int8 loses 0.21 points of accuracy on 2 pictures, largest difference of a probability 0.04"
        assert words in capsys.readouterr().err
    assert searches == [(3, "f32")]
    [record] = int8_records(fingerprint(checkpoint))
    assert record["loss"] == LOSS and record["format"] == loaded.backend.graph_format
    if engine == "openvino":  # another size runs without; once is enough, for it is traced
        images = torch.zeros(1, 3, 32, 48)
        torch.testing.assert_close(loaded.forward(images), checkpoint.model(images), atol=2e-4, rtol=1e-3)
        assert "int8 was calibrated for another size: 32 x 48 px run in f32" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("engine", "name"),
    [  # every task once, and the longest graph with both; for more of them NNCF is too slow
        *(("openvino", name) for name in ("regress", "segment", "depth", "detect", "Swin")),
        *(("onnxruntime", name) for name in ("multilabel", "detect")),
    ],
)
def test_every_task_in_int8(engine: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the real search, for one alpha and any loss: these networks were never trained."""
    checkpoint = checkpoint_of(name)
    kept = load_backend(engine, checkpoint, precision="fp32")  # has it traced, or finds it: that takes seconds
    assert isinstance(kept, GraphBackend)
    size = checkpoint.preprocessing.size
    parts = kept.cache.read(graph_name(kept.graph_format, size, is_int8=False, gives_pooled=False))
    assert parts is not None
    model = graph_from_parts(kept.graph_format, [bytes(part) for part in parts])
    monkeypatch.setattr(int8_search, "traced_graph", lambda *arguments: model)
    monkeypatch.setattr(int8_search, "run_in_child", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(int8_search, "quantized_model", functools.partial(quantized_model, allowed_drop=100.0))
    monkeypatch.setattr(quantize_search, "ALPHAS", (None,))
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))  # tasks that share a network are judged each by its own metric
    expected = Engine.open(checkpoint, precision="fp32")
    fast = Engine.open(checkpoint, engine=engine, precision="int8", calibration=pictures(12))
    assert isinstance(fast.backend, GraphBackend) and fast.backend.precision == "int8"
    assert fast.backend.int8["loss"]["metric"].startswith(METRICS[checkpoint.task])
    images = [expected.read(picture) for picture in pictures(6)]
    right, given = (torch.stack(list(one.outputs(images, decode=False))) for one in (expected, fast))
    error = float((given - right).norm() / right.norm())
    assert 1e-3 < error < 0.25  # 0 would be float32
    answers = [row.answer for row in Predictor(fast).predict(pictures(1), top=1)]
    assert [row.answer.keys() for row in Predictor(expected).predict(pictures(1), top=1) if row.answer] == [
        answer.keys() for answer in answers if answer
    ]


def test_too_few_pictures_are_refused_before_a_search_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(VitrailError, match="int8 needs 12 pictures or more, .* here are 3"):
        Engine.open(checkpoint_of("classify"), engine="onnxruntime", precision="int8", calibration=pictures())
    assert "which takes minutes" not in capsys.readouterr().err


def test_torch_has_no_int8() -> None:
    for engine in ("torch", "compiled"):
        with pytest.raises(VitrailError, match="torch does not compute in int8: choose the engine openvino"):
            Engine.open(checkpoint_of("classify"), engine=engine, precision="int8")


@pytest.mark.parametrize("engine", GRAPHS)
def test_a_missing_package_is_one_sentence(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, engine, None)
    monkeypatch.setattr(openvino_run, "core", core.__wrapped__)
    with pytest.raises(VitrailError, match=rf"this needs {engine}: pip install 'vitrail\[fast\]'"):
        load_backend(engine, checkpoint_of("classify"))
