"""A traced network as a file of torch.export, which torch runs without Vitrail."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch.export import ExportedProgram

from vitrail.graphs.graph_file import Run

FILE = "model.pt2"


def write_torch(program: ExportedProgram, folder: Path, metadata: Mapping[str, str]) -> None:
    """`model.pt2` with these texts as extra files NAME.json."""
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)  # where each line of source stood on this machine
    extra = {f"{name}.json": text for name, text in metadata.items()}
    torch.export.save(program, folder / FILE, extra_files=extra)


def open_torch(folder: Path) -> Run:
    """The file as torch runs it."""
    module = torch.export.load(folder / FILE).module()

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        with torch.no_grad():
            outputs = module(torch.from_numpy(images))
        return {name: output.numpy() for name, output in outputs.items()}

    return run
