"""`vitrail info`: what a model is, what it costs, and what another patch size would cost."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.inference.profiling import measure as measure_forward
from vitrail.model.config import ViTConfig
from vitrail.model.cost import FLOAT32, cost
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.presets import is_preset, preset
from vitrail.terminal import table
from vitrail.text import counted, json_text

if TYPE_CHECKING:
    from vitrail.weights.checkpoint import Checkpoint

PATCH_SIZES = (8, 14, 16, 32)
MERGED_PATCH_SIZES = (2, 4, 8)  # of networks that merge patches on the way
# The config as text, in the lecture's order; a network has some of these fields.
CONFIG_LINES = {
    "image": (
        "image_size",
        "patch_size",
        "channels",
        "stem",
        "stem_blocks",
        "stem_maps",
        "feature_channels",
        "cnn",
        "patch_bias",
    ),
    "prefix": ("cls_token", "cls_init", "distillation", "registers", "queries"),
    "positions": ("positions", "cls_position", "block_positions", "relative_bias", "resample", "stem_norm"),
    "rotary": ("rotary_too", "rotary_base", "rotary_grid", "rotary_start", "rotary_bfloat16"),
    "blocks": (
        *("version", "width", "depth", "depths", "heads", "qkv_bias", "qk_norm", "attention_norm"),
        *("mlp_width", "mlp_ratio", "mlp_norm", "activation"),
    ),
    "windows": ("attention_window", "global_blocks", "window_size", "pretrained_windows", "padding"),
    "norms": ("norm", "norm_eps", "layer_scale"),
    "answer": (
        "pool",
        "pool_heads",
        "pool_mlp_width",
        "final_norm",
        "classes",
        "head",
        "head_depth",
        "head_width",
        "head_bias",
    ),
    "training": ("dropout", "attention_dropout", "head_dropout", "drop_path"),
}


def describe(source: str, image_size: tuple[int, int] | None = None, measure: bool = False) -> dict[str, Any]:
    """All that `vitrail info` tells, as plain values: the content of `--json`."""
    if is_preset(source) and not Path(source).exists():
        config, checkpoint = preset(source, **({} if image_size is None else {"image_size": image_size})), None
        bytes_per_value = FLOAT32
    else:
        from vitrail.weights.load import load

        checkpoint = load(source)
        config = checkpoint.config
        bytes_per_value = next(checkpoint.model.parameters()).element_size()
    costs = cost(config, image_size, bytes_per_value=bytes_per_value)
    at_size = config.replace(image_size=costs.image_size)
    return {
        "source": source,
        "kind": "preset" if checkpoint is None else "file",
        "summary": config.in_words(),
        "config": config.to_dict(),
        "cost": costs.to_dict(),
        "patch_sizes": [_row(row, bytes_per_value, measure) for row in patch_size_variants(at_size)],
        "engines": [] if checkpoint is None else _engines(checkpoint),
        "int8": [] if checkpoint is None else _int8(checkpoint),
        "checkpoint": None if checkpoint is None else _checkpoint(checkpoint),
        "calibration_images": None if checkpoint is None else _calibration_images(source),
    }


def patch_size_variants(config: EncoderConfig) -> list[EncoderConfig]:
    """The same model with every usual patch size that divides its image size, and with its own, small patches first."""
    if isinstance(config, ViTConfig) and config.stem == "features":  # the patches are the cells of its CNN's map
        return [config]
    usual = PATCH_SIZES if len(config.levels) == 1 else MERGED_PATCH_SIZES
    sizes = {(side, side) for side in usual if not any(length % side for length in config.image_size)}
    return [config.replace(patch_size=size) for size in sorted({*sizes, config.patch_size})]


def _row(config: EncoderConfig, bytes_per_value: int, measure: bool) -> dict[str, Any]:
    row = {"patch_size": list(config.patch_size), **cost(config, bytes_per_value=bytes_per_value).to_dict()}
    return {**row, "measured": measure_forward(config)} if measure else row


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    kept = checkpoint.familiarity
    return {
        "task": checkpoint.task,
        "labels": checkpoint.labels,
        "preprocessing": checkpoint.preprocessing.to_dict(),
        "provenance": checkpoint.provenance,
        "notes": checkpoint.notes,
        "familiarity": None if kept is None else {"vectors": len(kept.vectors), "held_out": len(kept.held_out)},
    }


def _calibration_images(source: str) -> int | None:
    """How many pictures lie beside the model; a preset, which has none, is described without Pillow."""
    from vitrail.inference.calibration.calibration_file import calibration_beside, count_calibration

    file = calibration_beside(source)
    return None if file is None else count_calibration(file)


def _engines(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """What `--engine auto` chose for this model on this machine, the last choice first."""
    from vitrail.inference.auto.choice_record import choices_of
    from vitrail.inference.backends.graph_cache import fingerprint

    return [{**asdict(choice), "words": choice.in_words()} for choice in choices_of(fingerprint(checkpoint))]


def _int8(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The figures of the network in int8, where it was asked for on this machine."""
    from vitrail.inference.backends.graph_cache import fingerprint
    from vitrail.inference.backends.int8_record import int8_records, int8_words

    return [{**record, "words": int8_words(record)} for record in int8_records(fingerprint(checkpoint))]


# ---- as text


def to_json(description: dict[str, Any]) -> str:
    """The description as indented JSON."""
    return json_text(description, indent=2)


def to_text(description: dict[str, Any]) -> str:
    """The description as the text that `vitrail info` prints."""
    parts = [_headline(description), _cost_lines(description["cost"], description["config"])]
    if description["checkpoint"] is not None:
        parts.append(_checkpoint_lines(description["checkpoint"], description["calibration_images"]))
    if description["engines"]:
        parts.append(_engine_lines(description["engines"]))
    parts += [f"{record['words']} ({record['calibration']})" for record in description["int8"]]
    parts += [_config_lines(description["config"]), _patch_table(description)]
    return "\n\n".join(parts)


def _headline(description: dict[str, Any]) -> str:
    what = "a preset" if description["kind"] == "preset" else "a model file"
    return f"{description['source']}: {what}, {description['summary']}"


def _cost_lines(costs: dict[str, Any], config: dict[str, Any]) -> str:
    down, across = costs["grid"]
    tokens, prefix = costs["tokens"], costs["tokens"] - down * across
    lines = [
        ("parameters", f"{costs['parameters']:,}" + _without_cnn(config)),
        ("image", f"{_by(costs['image_size'])} px"),
        ("tokens", f"{tokens:,} = {down} x {across} patches" + (f" + {prefix} before them" if prefix else "")),
        ("multiply-adds", f"{costs['multiply_adds']:,} for one image: all tokens through all blocks, and the head"),
        ("attention", f"{costs['attention_entries']:,} entries per head and block{_pairs(costs, config)}"),
        *_window_lines(costs, config),
        ("memory", f"{_bytes(costs['weight_bytes'])} weights, about {_bytes(costs['activation_bytes'])} activations"),
    ]
    return _aligned(lines)


def _window_lines(costs: dict[str, Any], config: dict[str, Any]) -> list[tuple[str, str]]:
    if costs["window_entries"] is None:
        return []
    side, windowed = config["attention_window"], config["depth"] - config["global_blocks"]
    words = f"but {costs['window_entries']:,} in {counted(windowed, 'block')} with windows of {side} x {side} patches"
    return [("", words)]


def _without_cnn(config: dict[str, Any]) -> str:
    own = config.get("stem") == "features" and config["cnn"] is None
    return " without your CNN, whose multiply-adds are not counted either" if own else ""


def _pairs(costs: dict[str, Any], config: dict[str, Any]) -> str:
    tokens, entries = costs["tokens"], costs["attention_entries"]
    if "window_size" not in config:
        return f" ({tokens:,} x {tokens:,})"
    more = f"{tokens**2 / entries:.0f} times as many"
    return f" of the first stage, in windows of {_by(config['window_size'])}; without them {tokens**2:,}, {more}"


def _checkpoint_lines(checkpoint: dict[str, Any], calibration_images: int | None) -> str:
    labels: list[str] | None = checkpoint["labels"]
    names = "none" if labels is None else f"{len(labels)}: {', '.join(labels[:5])}{', ...' if len(labels) > 5 else ''}"
    lines = [("task", checkpoint["task"]), ("labels", names)]
    lines.append(("preprocessing", _values(checkpoint["preprocessing"])))
    origin = {name: value for name, value in checkpoint["provenance"].items() if name not in ("notes", "training")}
    trained = checkpoint["provenance"].get("training")
    if isinstance(trained, dict):  # the rest is for `evaluate`, and for --json
        origin |= {name: trained[name] for name in ("images", "steps", "seed") if name in trained}
    lines.append(("provenance", _values(origin) or "not recorded"))
    if isinstance(trained, dict) and isinstance(taught := trained.get("distillation"), dict):
        lines.append(("taught by", _values(taught)))
    if calibration_images:
        pictures = counted(calibration_images, "training picture")
        lines.append(("calibration", f"{pictures} in calibration.zip beside it, for int8 and to check engines"))
    if kept := checkpoint["familiarity"]:
        vectors, held_out = (counted(kept[name], "picture") for name in ("vectors", "held_out"))
        lines.append(("familiarity", f"told by vectors of {vectors} of training, measured on {held_out}"))
    lines += [("note", note) for note in checkpoint["notes"]]
    return _aligned(lines)


def _engine_lines(engines: Sequence[dict[str, Any]]) -> str:
    lines = []
    for choice in engines:
        lines.append(
            (
                choice["date"],
                f"{choice['words']} ({choice['pictures']}; {_by(choice['size'])} px, {choice['batch']} at a time)",
            )
        )
        lines += [("  not taken", f"{name}: {why}") for name, why in choice["refused"].items()]
    return "chosen here by --engine auto\n" + _aligned(lines)


def _config_lines(config: dict[str, Any]) -> str:
    lines = [
        (name, _values({field: config[field] for field in fields if config.get(field) is not None}))
        for name, fields in CONFIG_LINES.items()
    ]
    lines = [(name, values) for name, values in lines if values]
    return "config\n" + _aligned(lines)


def _patch_table(description: dict[str, Any]) -> str:
    rows, image_size = description["patch_sizes"], _by(description["cost"]["image_size"])
    measured = "measured" in rows[0]
    header = ["patch", "tokens", "multiply-adds", "parameters", "attention entries", "memory"]
    cells = [header + (["time", "peak memory"] if measured else [])]
    for row in rows:
        own = "* " if row["patch_size"] == description["config"]["patch_size"] else ""
        line = [own + _by(row["patch_size"]), f"{row['tokens']:,}", _count(row["multiply_adds"])]
        line += [_count(row["parameters"]), f"{row['attention_entries']:,}", _bytes(row["memory_bytes"])]
        cells.append(line + (_measured_cells(row["measured"]) if measured else []))
    title = f"patch sizes for {image_size} px (* this model; entries per head and block; memory estimated)"
    return f"{title}\n{table(cells, left=0)}" + (_measured_note(rows) if measured else "")


def _measured_cells(measured: dict[str, Any]) -> list[str]:
    if "error" in measured:
        return ["failed", "-"]
    peak = measured["peak_bytes"]
    return [_seconds(measured["seconds"]), "-" if peak is None else _bytes(peak)]


def _measured_note(rows: list[dict[str, Any]]) -> str:
    failed = [row for row in rows if "error" in row["measured"]]
    notes = [f"patch {_by(row['patch_size'])} failed: {row['measured']['error']}" for row in failed]
    good = [row["measured"] for row in rows if row not in failed]
    if good:
        threads, baseline = good[0]["threads"], good[0]["baseline_bytes"]
        share = "" if baseline is None else f", {_bytes(baseline)} of it Python and torch"
        notes.insert(0, f"measured here: one image, threads: {threads}, median run; peak of the process{share}")
    return "".join(f"\n  {note}" for note in notes)


def _aligned(lines: Sequence[tuple[str, str]]) -> str:
    """Names in one column, values in the next, long values wrapped under themselves."""
    column = max(13, *(len(name) for name, _ in lines))
    wrapped = []
    for name, value in lines:
        first, indent = f"  {name.ljust(column)}  ", " " * (column + 4)
        lines_of_value = textwrap.wrap(value, 118 - len(indent), break_on_hyphens=False, break_long_words=False)
        wrapped.append(first + f"\n{indent}".join(lines_of_value))
    return "\n".join(wrapped)


def _values(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_plain(value)}" for name, value in values.items())


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        whole = all(isinstance(v, int) for v in value)
        return _by(value) if whole and len(value) == 2 else "(" + " ".join(map(_plain, value)) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _by(size: Sequence[int]) -> str:
    return f"{size[0]} x {size[1]}"


def _count(number: int) -> str:
    for unit, name in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if number >= unit:
            return f"{number / unit:.2f} {name}"
    return f"{number:,}"


def _bytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.1f} MB"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
