"""`vitrail.export`: every task and format gives the model's answers, carries what they mean, and is checked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.cli import main
from vitrail.errors import VitrailError
from vitrail.graphs import onnx_graph, quantize_search
from vitrail.graphs.answer_pass import Normalisation, Normalise
from vitrail.graphs.no_telemetry import import_silently
from vitrail.graphs.trace import trace_module
from vitrail.inference.calibration import int8_search
from vitrail.inference.calibration.quantized_model import quantized_model
from vitrail.inference.engine import task_of
from vitrail.inference.exporting import export_int8
from vitrail.inference.exporting.export_check import Check, answers_agree, refuse_if_off
from vitrail.model.presets import build_network, preset
from vitrail.model.swin.swin_config import SwinConfig
from vitrail.tasks.letterbox import Letterbox
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import IMAGENET, Preprocessing

LABELS = ["cat", 'a "quoted" & <b>dog</b>', "große\nowl"]


def checkpoint(task: str, labels: list[str] | None = None, state: dict[str, Any] | None = None, **config: Any) -> Any:
    """A tiny model whose every parameter matters."""
    labels = LABELS if labels is None and task != "embed" else labels
    torch.manual_seed(0)
    network = build_network(preset("mu/16", image_size=64, classes=len(labels or ()), depth=2, **config)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    resize = "pad" if network.config.is_dense else "crop"
    preprocessing = Preprocessing(size=(64, 64), resize=resize, mean=IMAGENET[0], std=IMAGENET[1])
    provenance = {"training": {"task": state}} if state else {}
    return Checkpoint(network, preprocessing, task, labels, provenance)


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)


def normalised(pixels: np.ndarray) -> np.ndarray:
    """As a reader of the metadata would do it: (pixel / 255 - mean) / std."""
    mean, std = (np.array(values, np.float32) for values in IMAGENET)
    return ((pixels.astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2)


def onnx_outputs(folder: Path, images: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    names = [output.name for output in session.get_outputs()]
    metadata = json.loads(session.get_modelmeta().custom_metadata_map["vitrail"])
    return dict(zip(names, session.run(names, {metadata["input"]["name"]: images}), strict=True)), metadata


def openvino_outputs(folder: Path, images: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    core = import_silently("openvino").Core()
    model = core.read_model(folder / "model.xml")
    metadata = json.loads(model.get_rt_info(["vitrail"]).astype(str))
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    results = compiled({metadata["input"]["name"]: images})
    return {name: results[name] for name in metadata["outputs"]}, metadata


def torch_outputs(folder: Path, images: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    extra = {"vitrail.json": ""}
    program = torch.export.load(folder / "model.pt2", extra_files=extra)
    outputs = program.module()(torch.from_numpy(images))
    return {name: value.numpy() for name, value in outputs.items()}, json.loads(extra["vitrail.json"])


EXTRAS = ["embedding", "patches", "attention"]
READERS: dict[str, Callable[..., Any]] = {"onnx": onnx_outputs, "openvino": openvino_outputs, "torch": torch_outputs}


# every task, every format and every way in, in as few files as that takes
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "classes, onnx": (("classify", None, {"images": 3, "counts": [1, 1, 1], "temperature": 1.5}), {"format": "onnx"}),
    "labels, torch": (("multilabel",), {"format": "torch", "preprocessing": "inside"}),
    "numbers, openvino": (("regress",), {"format": "openvino", "batch": 3}),
    "boxes, openvino": (("detect", None, {"threshold": 0.3, "nms_iou": 0.4}), {"format": "openvino"}),
    "masks, onnx": (("segment",), {"format": "onnx", "preprocessing": "inside"}),
    "depth, torch": (
        ("depth", ["depth (m)"], {"log_mean": 1.0, "log_std": 0.5}),
        {"format": "torch", "outputs": EXTRAS},
    ),
}
HEADS = {"detect": {"head": "box_tokens", "queries": 12}, "segment": {"head": "mask_decoder", "stem": "conv"}}
HEADS |= {"depth": {"head": "mask_linear"}}


@pytest.mark.parametrize("name", CASES)
def test_a_file_gives_the_models_answers_and_says_what_they_mean(name: str, tmp_path: Path, pixels: np.ndarray) -> None:
    arguments, options = CASES[name]
    model = checkpoint(*arguments, **HEADS.get(arguments[0], {}))
    exported = vitrail.export(model, tmp_path / "out", **options)
    inside = options.get("preprocessing") == "inside"
    images = pixels if inside else normalised(pixels)
    outputs, metadata = READERS[options["format"]](tmp_path / "out", images)
    with torch.no_grad():
        raw = model.model(torch.from_numpy(normalised(pixels)))
    task = task_of(model)
    if task.dense:
        decoded = task.decode(raw, [Letterbox.whole((64, 64))] * 3)
        check_places(task.name, decoded, outputs)
    elif task.name == "regress":
        np.testing.assert_allclose(outputs["values"], raw.numpy(), rtol=1e-4, atol=1e-4)
    else:
        for row, answer in zip(outputs["probabilities"], task.answer(raw, 3), strict=True):
            expected = {guess["label"]: guess["probability"] for guess in answer["top"]}
            np.testing.assert_allclose(row, [expected[label] for label in metadata["labels"]], atol=1e-5)
    assert metadata == exported.metadata == json.loads((tmp_path / "out" / "model.json").read_text())
    assert metadata["task"] == model.task and metadata["labels"] == model.labels
    assert metadata["preprocessing"] == model.preprocessing.to_dict() | {"inside": inside}
    state = arguments[2] if len(arguments) > 2 else {}
    assert metadata["calibration"].items() >= {k: state[k] for k in ("temperature", "threshold") if k in state}.items()
    assert set(metadata["outputs"]) == set(outputs)
    for output, value in outputs.items():
        assert metadata["outputs"][output]["shape"] == list(value.shape[1:])
    assert metadata["check"]["images"] == 8 and metadata["check"]["of"] == "noise"
    assert metadata["check"]["difference"] < 1e-4 and metadata["check"]["agreement"] in (None, 1.0)


def check_places(task: str, decoded: list[torch.Tensor], outputs: dict[str, np.ndarray]) -> None:
    for image, own in enumerate(decoded):
        if task == "segment":
            assert (outputs["mask"][image] == own.numpy()).mean() > 0.999
        elif task == "depth":
            np.testing.assert_allclose(outputs["depth"][image], own.numpy(), rtol=1e-3)
        else:
            count = len(own)
            np.testing.assert_allclose(outputs["scores"][image][:count], own[:, 1], atol=1e-5)
            np.testing.assert_allclose(outputs["boxes"][image][:count] * 64, own[:, 2:6], atol=1e-2)
            assert not outputs["scores"][image][count:].any()


@pytest.mark.parametrize("format", READERS)
def test_outputs_on_request_in_a_size_that_is_not_square_with_half_the_bytes(format: str, tmp_path: Path) -> None:
    model = checkpoint("classify", registers=2, positions="rotary")
    exported = vitrail.export(model, tmp_path, format=format, size=(64, 32), outputs=EXTRAS, precision="bf16")
    images = torch.randn(1, 3, 64, 32)
    outputs, metadata = READERS[format](tmp_path, images.numpy())
    with torch.no_grad():
        features = model.model.features(images, blocks=[0])
        block = model.model.blocks[1]
        q, k, _ = block.qkv(features.blocks[0], model.model.rotary((4, 2)))
        scores = torch.einsum("bhd,bhkd->bhk", q[:, :, 0], k)
        attention = (scores * q.shape[-1] ** -0.5).softmax(-1)[..., 3:].unflatten(2, (4, 2))
    assert metadata["precision"] == "bf16" and metadata["grid"] == [4, 2]
    for name, expected in (("embedding", features.cls), ("patches", features.patches), ("attention", attention)):
        scale = float(expected.abs().max())
        assert float(np.abs(outputs[name] - expected.numpy()).max()) < 0.05 * scale, name
    assert 0 < exported.check.difference < 0.05
    weights = sum(4 * parameter.numel() for parameter in model.model.parameters())
    held = next(tmp_path.glob("model.bin"), None)  # others have their graph in the same file
    assert held is None or held.stat().st_size < 0.6 * weights


def test_the_tokens_of_swin_are_those_of_its_last_stage(tmp_path: Path) -> None:
    config = SwinConfig(image_size=64, width=32, depths=(1, 1), heads=(2, 4), window_size=4, classes=3)
    model = Checkpoint(build_network(config).eval(), Preprocessing(size=(64, 64)), "classify", LABELS)
    exported = vitrail.export(model, tmp_path / "out", format="torch", size=(64, 36), outputs=["embedding", "patches"])
    outputs, metadata = torch_outputs(tmp_path / "out", np.ones((1, 3, 64, 36), np.float32))
    assert metadata["grid"] == [8, 5] and outputs["patches"].shape == (1, 40, 64)  # 9 tokens across are padded to 10
    np.testing.assert_allclose(outputs["patches"].mean(1), outputs["embedding"], atol=1e-5)
    assert exported.check.differences.keys() == {"probabilities", "embedding", "patches"}


def test_pictures_check_a_file_and_broken_ones_are_left_out(tmp_path: Path, pixels: np.ndarray) -> None:
    (tmp_path / "photos").mkdir()
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    exported = vitrail.export(checkpoint("embed"), tmp_path / "out", format="torch", images=tmp_path / "photos")
    assert (exported.check.images, exported.check.of, exported.check.agreement) == (3, "pictures", None)
    assert list(exported.metadata["outputs"]) == ["embedding"] and exported.metadata["labels"] is None


def test_a_file_that_answers_otherwise_is_not_left_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import vitrail.inference.exporting.export_model as export_room

    def wrong(program: Any, folder: Path, metadata: Any) -> None:
        with torch.no_grad():
            for value in program.state_dict.values():
                value.mul_(1.5)
        write(program, folder, metadata)

    write = export_room.torch_graph.write_torch
    monkeypatch.setattr(export_room.torch_graph, "write_torch", wrong)
    with pytest.raises(VitrailError, match="differs from the model by .* no file was written"):
        vitrail.export(checkpoint("classify"), tmp_path / "out", format="torch")
    assert not list(tmp_path.iterdir())


def test_weights_above_the_limit_of_one_file_lie_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pixels: np.ndarray
) -> None:
    monkeypatch.setattr(onnx_graph, "MOST_BYTES", 1000)
    model = checkpoint("classify")
    vitrail.export(model, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.onnx", "model.onnx.data", "model.json"}
    outputs, _ = onnx_outputs(tmp_path / "out", normalised(pixels))
    with torch.no_grad():
        expected = model.model(torch.from_numpy(normalised(pixels))).softmax(-1)
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-5)
    assert str(Path(vitrail.__file__).parent).encode() not in (tmp_path / "out" / "model.onnx").read_bytes()


def test_a_torch_file_runs_without_vitrail_and_tells_nothing_of_this_machine(tmp_path: Path) -> None:
    vitrail.export(checkpoint("classify"), tmp_path / "out", format="torch")
    assert str(Path(vitrail.__file__).parent).encode() not in (tmp_path / "out" / "model.pt2").read_bytes()
    code = (
        "import sys; sys.modules['vitrail'] = None\nimport torch\n"
        "extra = {'vitrail.json': ''}; program = torch.export.load('out/model.pt2', extra_files=extra)\n"
        "outputs = program.module()(torch.zeros(5, 3, 64, 64))\n"
        "assert outputs['probabilities'].shape == (5, 3) and 'owl' in extra['vitrail.json']"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


WRONG = {
    "a size that patches do not divide": (["--size", "60x64"], "height 60, which patch_size 16 does not divide"),
    "an output that there is not": (["--outputs", "tokens"], "no output 'tokens': choose from embedding"),
    "a batch of nothing": (["--batch", "0"], "neither dynamic nor a whole number above 0"),
    "an unknown format": (["--format", "tflite"], "'onnx', 'openvino', 'torch'"),
    "pictures that are none": (["--images", "model.safetensors"], "has no image that can be read"),
    "pictures that are not there": (["--images", "nowhere"], "there is no nowhere: give a picture"),
    "a folder with such a file": (["--out", "there"], "model.onnx is already there: give another folder"),
    "a file for a folder": (["--out", "model.safetensors"], "model.safetensors is a file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint("classify").save("model.safetensors")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "model.onnx").write_bytes(b"")
    options, sentence = WRONG[name]
    out = [] if "--out" in options else ["--out", "out"]
    try:
        code = main(["export", "model.safetensors", *out, *options])
    except SystemExit as end:  # click's own
        code = int(end.code or 0)
    assert code == 2 and sentence in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_attention_needs_cls_and_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VitrailError, match="attention is that of \\[CLS\\], which this model has not"):
        vitrail.export(checkpoint("classify", pool="mean", cls_token=False), tmp_path / "out", outputs=["attention"])
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(VitrailError, match=r"this needs onnxscript: pip install 'vitrail\[fast\]'"):
        vitrail.export(checkpoint("classify"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_says_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint("classify").save("model.safetensors")
    assert main(["export", "model.safetensors", "--format", "torch", "--out", "out", "--batch", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("wrote out/model.pt2 (0.") and lines[1] == "  input   images, float32, 2 x 3 x 64 x 64"
    assert lines[2].startswith("  output  probabilities: (B, labels)")
    assert lines[3].startswith("  checked against the model on 8 images of noise: largest difference 0.0e+00")


@pytest.fixture
def int8_of_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short search in this process that refuses nothing: it has tests of its own."""
    monkeypatch.setattr(int8_search, "run_in_child", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(int8_search, "quantized_model", partial(quantized_model, allowed_drop=1000.0))
    monkeypatch.setattr(quantize_search, "ALPHAS", (None,))


@pytest.fixture
def calibrating(tmp_path: Path) -> Path:
    """A folder of pictures as many as int8 asks for."""
    (tmp_path / "photos").mkdir()
    for number in range(12):
        picture = np.random.default_rng(number).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(picture).save(tmp_path / "photos" / f"{number}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize("task, format", [("segment", "onnx"), ("depth", "openvino"), ("detect", "onnx")])
def test_masks_depth_and_boxes_in_int8_are_those_of_the_int8_network(
    task: str, format: str, tmp_path: Path, calibrating: Path, pixels: np.ndarray, int8_of_anything: None
) -> None:
    labels = ["depth (m)"] if task == "depth" else None
    state = {"depth": {"log_mean": 1.0, "log_std": 0.5}, "detect": {"threshold": 0.3, "nms_iou": 0.4}}.get(task)
    model = checkpoint(task, labels, state, **HEADS[task])
    options = {"format": format, "preprocessing": "inside", "images": calibrating}
    exported = vitrail.export(model, tmp_path / "out", precision="int8", **options)
    outputs, metadata = READERS[format](tmp_path / "out", pixels)
    with torch.no_grad():
        raw = model.model(torch.from_numpy(normalised(pixels)))
        decoded = task_of(model).graph_outputs(raw, (64, 64))
    expected = {name: value.numpy() for name, value in decoded.items()}
    assert set(metadata["outputs"]) == set(outputs) == set(expected) and metadata["int8"]["layers"] > 5
    assert exported.check.difference > 0
    measured = {"segment": "logits", "depth": "depth", "detect": "scores"}[task]
    error = np.abs(outputs[measured] - expected[measured]).mean()
    assert 0 < error < 0.3 * expected[measured].std(), error
    if task == "segment":
        assert (outputs["mask"] == expected["mask"]).mean() > 0.9
    if task == "detect":
        assert answers_agree(expected, outputs, False, 0.3) > 0.5


@pytest.mark.parametrize("task, format", [("classify", "onnx"), ("detect", "openvino")])
def test_an_int8_file_that_is_not_its_network_is_not_left_there(
    task: str, format: str, tmp_path: Path, calibrating: Path, int8_of_anything: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped(parts: Any) -> Any:  # what stands before the network: half as bright as it should be
        module = Normalise(Normalisation((0.2, 0.2, 0.2), (0.9, 0.9, 0.9)))
        program = trace_module(module, torch.zeros(2, 64, 64, 3, dtype=torch.uint8), free_batch=True)
        return chain([export_int8._as_graph(program, format, "pixels", ["images"]), *parts[1:]])

    chain = getattr(export_int8, f"chain_{format}")
    monkeypatch.setattr(export_int8, f"chain_{format}", swapped)
    model = checkpoint(task, **HEADS.get(task, {}))
    options = {"format": format, "preprocessing": "inside", "images": calibrating}
    with pytest.raises(VitrailError, match="differs from its int8 network by .* no file was written"):
        vitrail.export(model, tmp_path / "out", precision="int8", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format, preprocessing", [("openvino", "inside"), ("onnx", "outside")])
def test_int8_is_searched_on_pictures_and_its_figures_are_in_the_file(
    format: str, preprocessing: str, tmp_path: Path, pixels: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_search, "run_in_child", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(quantize_search, "ALPHAS", (None,))  # what the search does is tested where it is
    (tmp_path / "photos").mkdir()
    for number, picture in enumerate([*pixels, *(255 - pixels), *pixels[:, ::-1], *pixels[:, :, ::-1]]):
        Image.fromarray(picture).save(tmp_path / "photos" / f"{number}.png")
    model = checkpoint("classify")
    with torch.no_grad():
        model.model.head.out.bias[0] += 1  # no two classes are near a tie, which rounding would decide otherwise
    options = {"format": format, "preprocessing": preprocessing, "images": tmp_path / "photos"}
    vitrail.export(model, tmp_path / "out", precision="int8", **options)
    images = pixels if preprocessing == "inside" else normalised(pixels)
    outputs, metadata = READERS[format](tmp_path / "out", images)
    with torch.no_grad():
        expected = model.model(torch.from_numpy(normalised(pixels))).softmax(-1).numpy()
    assert 0 < np.abs(outputs["probabilities"] - expected).max() < 0.1
    assert metadata["precision"] == "int8" and metadata["int8"]["layers"] > 5
    assert metadata["int8"]["loss"]["points"] <= 0.5 and metadata["check"]["of"] == "pictures"
    plain = vitrail.export(model, tmp_path / "plain", format=format)
    held = {"onnx": "model.onnx", "openvino": "model.bin"}[format]
    assert (tmp_path / "out" / held).stat().st_size < plain.path.with_name(held).stat().st_size


def test_boxes_that_are_elsewhere_are_refused_though_their_scores_are_right() -> None:
    expected = {"boxes": np.zeros((1, 4, 4)), "scores": np.full((1, 4), 0.9)}
    for precision in ("fp32", "int8"):
        refuse_if_off(Check(1, "noise", {"scores": 0.0}, 0.75), expected, precision)
        with pytest.raises(VitrailError, match="by where its boxes are: 25 % of them agree"):
            refuse_if_off(Check(1, "noise", {"scores": 0.0}, 0.25), expected, precision)


@pytest.mark.parametrize(
    "format, computes_bf16, hint", [("openvino", True, "bf16"), ("openvino", False, "f32"), ("onnx", True, "f32")]
)
def test_int8_is_judged_with_what_its_runtime_computes_in_between(
    format: str, computes_bf16: bool, hint: str, tmp_path: Path, calibrating: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(job: Any) -> Any:
        raise VitrailError(f"judged with {job.hint}")

    monkeypatch.setattr(export_int8, "search_int8_apart", search)
    precision = "bfloat16" if computes_bf16 else "float32"
    monkeypatch.setattr(export_int8.OpenVinoBackend, "choose_precision", lambda name: precision)
    with pytest.raises(VitrailError, match=f"judged with {hint}"):
        options = {"format": format, "images": calibrating}
        vitrail.export(checkpoint("classify"), tmp_path / "out", precision="int8", **options)


def test_what_int8_cannot_be_is_said(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"format": "torch"}, "choose --format onnx or openvino"),
        ({"batch": 2}, "leave out --batch 2"),
        ({"outputs": ["embedding"]}, "leave out --outputs embedding"),
        ({}, "no pictures to calibrate on"),
    ]
    for options, sentence in wrong:
        with pytest.raises(VitrailError, match=sentence):
            vitrail.export(checkpoint("classify"), tmp_path / "out", precision="int8", **options)
    assert not list(tmp_path.iterdir())
