"""What does int8 lose? Our search against NNCF's defaults, on images that neither was calibrated on.

    python -m benchmarks.int8 MODEL DATA [--runtime openvino|onnxruntime] [--name NAME] [--write]

DATA is a data set of the model's task, or a folder of photos whose names begin with their class number and `_`. It is
cut into halves: calibrated on one, measured on the other, then the other way round. NNCF's defaults are
`nncf.quantize(model, dataset, model_type=TRANSFORMER)`; bf16 is OpenVINO's, where the CPU has it. All that is shown is
of the half that was not calibrated on.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import VitrailError
from vitrail.graphs import quantize_onnx
from vitrail.graphs.graph_file import IMAGES
from vitrail.graphs.graph_formats import graph_from_parts, traced_graph
from vitrail.graphs.no_telemetry import import_silently
from vitrail.inference.bench.bench_text import machine_line
from vitrail.inference.calibration.answer_loss import AnswerJudge, AnswerLoss, NormalisedImages
from vitrail.inference.calibration.calibration_images import CalibrationImages, calibration_images
from vitrail.inference.calibration.int8_search import Int8Job, search_int8_apart
from vitrail.inference.calibration.quantized_model import graphs_of
from vitrail.inference.image_processor import ImageProcessor
from vitrail.model.precision import computes_bf16
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.load import load

RESULTS = Path(__file__).parent / "results"
PAGE = """# int8 against NNCF's defaults

{today}, openvino {openvino}, nncf {nncf}, onnxruntime {onnxruntime}, float32 between int8 layers.
`python -m benchmarks.int8 MODEL DATA --write`

Calibrated on one half of the images, without their labels, and measured on the other, by their labels; and the other
way round. The means of both. Of accuracy on 300 images one is 0.33 points: the distance tells more. It is between
outputs: of classes the total variation of the probabilities, else the relative error. Agreement is the share of answers
that are float32's, as `--engine auto` counts them; `-` where it was not counted. bf16 is shown where it was measured.
The largest change is that of a probability.

| model | images | metric | float32 | | loss in points | agreement | distance | largest change | chosen | measured |
|---|---|---|---|---|---|---|---|---|---|---|
{rows}
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("data", type=Path)
    arguments.add_argument("--name", help="in the table")
    arguments.add_argument("--images", type=int, default=300)
    arguments.add_argument("--runtime", choices=("openvino", "onnxruntime"), default="openvino")
    arguments.add_argument("--write", action="store_true", help="add the row to the results")
    options = arguments.parse_args()
    checkpoint = load(options.model)
    images = read_images(checkpoint, options.data)
    row = measure(checkpoint, images.part(range(min(options.images, len(images.images)))), options.runtime)
    print(json.dumps(row, indent=1))
    if options.write:
        write({f"{options.name or options.model.stem}, {options.runtime}": row})


def read_images(checkpoint: Checkpoint, data: Path) -> CalibrationImages:
    """Images with their truth."""
    numbered = sorted(path for path in data.glob("*.jpg") if path.name.partition("_")[0].isdigit())
    if not numbered:
        return calibration_images(checkpoint, folder=data)
    processor = ImageProcessor(checkpoint.preprocessing)
    truths = [int(path.name.partition("_")[0]) for path in numbered]
    return CalibrationImages([processor.read(path) for path in numbered], str(data), truths)


def measure(checkpoint: Checkpoint, images: CalibrationImages, runtime: str) -> dict[str, Any]:
    """A row: float32, NNCF's defaults and ours, over both halves."""
    graph_format, size = {"openvino": "openvino", "onnxruntime": "onnx"}[runtime], checkpoint.preprocessing.size
    model = traced_graph(graph_format, checkpoint, size)
    compiled = graphs_of(model).compiled
    halves = [images.part(range(start, len(images.images), 2)) for start in (0, 1)]
    folds = []
    for calibrated, measured in (halves, halves[::-1]):
        unlabelled = CalibrationImages(calibrated.images, "one half")
        judge = AnswerJudge(checkpoint, measured)
        inputs = NormalisedImages(calibrated.images, checkpoint.preprocessing)
        fold: dict[str, Any] = {"float32": judge.score, "metric": judge.metric}
        fold["defaults"] = figures(judge(compiled(nncf_defaults(model, inputs))))
        if runtime == "openvino" and computes_bf16("cpu"):
            fold["bf16"] = figures(judge(compiled(model, "bf16")))
        try:
            parts, fold["record"] = search_int8_apart(Int8Job(checkpoint, size, graph_format, unlabelled))
            fold["ours"] = figures(judge(compiled(graph_from_parts(graph_format, parts))))
        except VitrailError as refused:
            fold["refused"] = str(refused)
        print(json.dumps(fold), flush=True)
        folds.append(fold)
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return {"images": len(images.images), "folds": folds, "measured": f"{today}, {machine_line()}"}


def nncf_defaults(model: Any, inputs: NormalisedImages) -> Any:
    """What a user of NNCF gets who says that the model is a transformer, and nothing more."""
    nncf = import_silently("nncf")
    nncf.set_log_level(logging.ERROR)
    dataset = nncf.Dataset(inputs, (lambda image: {IMAGES: image}) if graphs_of(model) is quantize_onnx else None)
    return nncf.quantize(model, dataset, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(inputs))


def figures(loss: AnswerLoss) -> dict[str, float | None]:
    assert loss.agreement is not None
    return {
        "points": loss.points,
        "agreement": loss.agreement.share,
        "distance": loss.distance,
        "largest": loss.agreement.largest if loss.agreement.of == "probability" else None,
    }


def write(new: dict[str, Any]) -> None:
    """Rows are kept in a JSON file, so that models can be measured one by one."""
    file = RESULTS / "int8.json"
    rows = (json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}) | new
    file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    versions = {name: importlib.metadata.version(name) for name in ("openvino", "nncf", "onnxruntime")}
    lines = [line for name, row in rows.items() for line in table_lines(name, row)]
    today = datetime.datetime.now(tz=datetime.UTC).date()
    (RESULTS / "int8.md").write_text(PAGE.format(today=today, rows="\n".join(lines), **versions), encoding="utf-8")


def table_lines(name: str, row: dict[str, Any]) -> list[str]:
    folds = row["folds"]
    score = np.mean([fold["float32"] for fold in folds])
    begin = f"| {name} | {row['images']} | {folds[0]['metric']} | {100 * score:.2f} |"
    lines, when = [], row.get("measured", "2026-11-18")
    for title, kind in (("bf16", "bf16"), ("NNCF's defaults", "defaults"), ("ours", "ours")):
        measured = [fold[kind] for fold in folds if kind in fold]
        if not measured and kind == "bf16":  # on a processor that has none
            continue
        if not measured:
            lines.append(f"{begin} {title} | refused | | | | {folds[0]['refused']} | {when} |")
            continue
        points, distance = (np.mean([one[key] for one in measured]) for key in ("points", "distance"))
        shares = [one["agreement"] for one in measured if one["agreement"] is not None]
        agreement = f"{100 * np.mean(shares):.2f} %" if shares else "-"
        largest = max((one["largest"] for one in measured if one["largest"] is not None), default=None)
        change = "-" if largest is None else f"{largest:.3f}"
        chosen = "" if kind != "ours" else "; ".join(chosen_words(fold) for fold in folds)
        lines.append(f"{begin} {title} | {points:.2f} | {agreement} | {distance:.4f} | {change} | {chosen} | {when} |")
    return lines


def chosen_words(fold: dict[str, Any]) -> str:
    if "record" not in fold:
        return "refused"
    record = fold["record"]
    alpha = "off" if record["smooth_quant_alpha"] is None else f"{record['smooth_quant_alpha']:g}"
    return f"alpha {alpha}, {len(record['layers_in_float'])} of {record['layers']} layers in float"


if __name__ == "__main__":
    main()
