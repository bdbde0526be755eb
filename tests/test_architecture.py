"""The rooms of docs/architecture.md: imports point one way, and no room reaches around in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "vitrail"

# A room may import rooms of lower layers, and of its own as long as there is no circle.
LAYERS = (
    {"errors", "files"},
    {"model"},
    {"tasks", "weights"},
    {"data", "training", "infer", "explanation"},
    {"report", "serving", "info", "measure"},
    {"cli"},
    {"__main__"},
)
LAYER = {room: height for height, rooms in enumerate(LAYERS) for room in rooms}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every imported module of ours, `vitrail.model.vit`, with its line; imports inside functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "vitrail")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written out in full"
            if node.module == "vitrail":
                yield from ((node.lineno, f"vitrail.{alias.name}") for alias in node.names)
            elif node.module is not None and node.module.startswith("vitrail."):
                yield node.lineno, node.module


# __init__.py is the shop window: it names what is inside, lazily, and stands outside of the layers.
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    room = room_of(path)
    assert room in LAYER, f"{room} has no layer: give it one here and in docs/architecture.md"
    for line, module in imports(path):
        target = module.split(".")[1]
        if target == "__version__":
            continue
        assert target in LAYER, f"{path}:{line}: import {module} from where it lives, not from the shop window"
        assert LAYER[target] <= LAYER[room], f"{path}:{line}: {room} may not import {module}"


def test_rooms_form_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in FILES:
        targets = {module.split(".")[1] for _, module in imports(path)} - {"__version__"}
        graph.setdefault(room_of(path), set()).update(targets - {room_of(path)})
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_the_network_knows_only_torch() -> None:
    for path in sorted((SOURCE / "model").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] not in {"numpy", "PIL", "safetensors", "os", "pathlib"}, f"{path}: {name}"


def test_every_room_is_in_the_picture_and_the_text() -> None:
    text = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    for room in {room_of(path) for path in FILES} - {"__main__"}:
        assert f"`{room}" in text, f"docs/architecture.md does not mention {room}"
