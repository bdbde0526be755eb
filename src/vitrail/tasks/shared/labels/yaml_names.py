"""The class names in a YOLO data.yaml, from a file that anybody may have written.

PyYAML's nodes are read, not its values: `no`, `1.50` and `2020-01-01` are names here, not a truth value, a number and a
date, and a name that is there twice is seen. Nothing is built from tags; aliases are refused before they multiply."""

from __future__ import annotations

from pathlib import Path

import yaml

from vitrail.errors import VitrailError
from vitrail.text import nfc, shown

MOST_BYTES = 1_000_000
DEEPEST = 20  # lists and mappings inside of each other
_PLAIN_TAGS = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "seq", "map"))

Names = list[tuple[int, str]]


def yaml_names(path: Path, text: str) -> Names | None:
    """Index and name of each class, in the file's order; None where the file has no `names:`."""
    root = _root(path, text)
    if root is None:
        return None
    if not isinstance(root, yaml.MappingNode):
        raise _not_names(path)
    node = next((value for key, value in root.value if key.value == "names"), None)
    if node is None:
        return None
    if isinstance(node, yaml.ScalarNode) and not node.value:
        return []
    if isinstance(node, yaml.SequenceNode):
        names = [(index, _name(path, item)) for index, item in enumerate(node.value)]
    elif isinstance(node, yaml.MappingNode):
        names = [(_index(path, key), _name(path, item)) for key, item in node.value]
    else:
        raise _not_names(path)
    return [(index, name) for index, name in names if name]


def _root(path: Path, text: str) -> yaml.Node | None:
    if len(text) > MOST_BYTES:
        raise VitrailError(f"{shown(path)} is larger than {MOST_BYTES // 1_000_000} MB: too large for a list of names")
    try:
        _refuse_hostile(path, text)
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise VitrailError(f"{shown(path)} is not YAML: {where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise VitrailError(f"{shown(path)} is not YAML: {str(error).splitlines()[0]}") from None


def _refuse_hostile(path: Path, text: str) -> None:
    """Before anything is built. The events come one by one, so that a deep file is not read to its end."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise VitrailError(f"{shown(path)}: line {line} has an alias (*): write the names themselves")
        tag = getattr(event, "tag", None)
        if (tag and not tag.startswith(_PLAIN_TAGS)) or (tag and "python" in tag):
            raise VitrailError(f"{shown(path)}: line {line} has a tag (!): remove it, names are plain text")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise VitrailError(f"{shown(path)} is nested too deeply (line {line}): names are one list")


def _name(path: Path, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _not_names(path)
    return nfc(node.value.strip())


def _index(path: Path, node: yaml.Node) -> int:
    if not isinstance(node, yaml.ScalarNode) or not (node.value.isascii() and node.value.isdigit()):
        raise _not_names(path)
    return int(node.value[:20])


def _not_names(path: Path) -> VitrailError:
    return VitrailError(f"{shown(path)}: names: is to be a list of names, or of 'index: name'")
