"""The rooms of docs/architecture.md: imports point one way, and no room reaches around in a circle."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "vitrail"

# A room may import rooms of lower layers, and of its own as long as there is no circle.
LAYERS = (
    {"errors", "files", "text", "findings", "threads", "options", "option_types", "progress", "terminal", "storage"},
    {"model"},
    {"images", "visuals"},
    {"dataset", "annotations"},
    {"tasks"},
    {"weights"},
    {"data", "graphs"},
    {"inference"},
    {"training", "pretraining", "explanation", "search", "shards"},
    {"report", "serving"},
    {"commands"},
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


# ---- the shape of the tree
#
# Each limit holds today; its comment says where it is to go. Tighten it when the tree allows it, never loosen it.

MOST_FILES = 15  # in a folder
TWICE: frozenset[str] = frozenset()  # file names that may occur twice
TASK_NAMES_OUTSIDE = 15  # lines that quote a task's name outside tasks/
MANY_PARAMETERS, FUNCTIONS_WITH_MANY = 7, 5  # at most 5 functions have more than 7 parameters
LONGEST, LONG_FUNCTIONS = 60, 0  # no function is longer than 60 lines
BLOCK_LOOPS = {"model/encoder.py"}  # files that may iterate over an encoder's blocks
BLOCK_NUMBERS = {"explanation/output/map_png.py"}  # here `.blocks` are the numbers of the chosen ones, no modules

TASK_NAMES = {"classify", "multilabel", "regress", "segment", "detect"}  # "depth" is also a ViT's number of blocks
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    """Every function and method, with its file and line."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Function):
                yield f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}", node


def test_no_file_name_twice() -> None:
    names = Counter(path.name for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
    twice = {name for name, count in names.items() if count > 1}
    assert twice <= TWICE, f"{len(twice)} file names occur more than once: {sorted(twice)}"


def test_no_folder_is_crowded() -> None:
    counts = Counter(path.parent.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if path.name != "__init__.py")
    crowded = {str(folder): count for folder, count in counts.items() if count > MOST_FILES}
    assert not crowded, f"more than {MOST_FILES} files in a folder: {crowded}"


def test_tasks_are_asked_through_their_registry() -> None:
    lines = {
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        if room_of(path) != "tasks"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in TASK_NAMES
    }
    assert len(lines) <= TASK_NAMES_OUTSIDE, f"{len(lines)} lines name a task: {sorted(lines)}"


def test_one_loop_over_the_blocks_of_an_encoder() -> None:
    """`.blocks` of a head's decoder is another thing: it is an attribute of `self` in model/heads/."""
    looping = {
        f"{path.relative_to(SOURCE)}:{loop.iter.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        for loop in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(loop, ast.For | ast.AsyncFor | ast.comprehension)
        if any(isinstance(node, ast.Attribute) and node.attr == "blocks" for node in ast.walk(loop.iter))
        if path.relative_to(SOURCE).parts[:2] != ("model", "heads")
    }
    elsewhere = {place for place in looping if place.rpartition(":")[0] not in BLOCK_LOOPS | BLOCK_NUMBERS}
    assert not elsewhere, f"{len(elsewhere)} loops over blocks outside of {sorted(BLOCK_LOOPS)}: {sorted(elsewhere)}"


def test_few_functions_have_many_parameters() -> None:
    counts = {}
    for name, node in functions():
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        counts[name] = len([one for one in every if one.arg not in ("self", "cls")])
    many = {name: count for name, count in counts.items() if count > MANY_PARAMETERS}
    assert len(many) <= FUNCTIONS_WITH_MANY, (
        f"{len(many)} functions have more than {MANY_PARAMETERS} parameters: {many}"
    )


def test_functions_fit_on_a_screen() -> None:
    lengths = {name: (node.end_lineno or node.lineno) - node.lineno + 1 for name, node in functions()}
    long = {name: length for name, length in lengths.items() if length > LONGEST}
    assert len(long) <= LONG_FUNCTIONS, f"{len(long)} functions are longer than {LONGEST} lines: {long}"
