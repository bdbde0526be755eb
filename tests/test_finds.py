"""What fuzzing begins with, and what it found: each is read, or refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("resource")  # the fuzzer sets limits, which Windows does not have

from benchmarks.fuzz import TARGETS, check, forget_peak, read_or_refuse
from benchmarks.fuzzing.json_mutation import mutate_json, places_in

FINDS = sorted((Path(__file__).parent / "finds").iterdir())


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_runs_on_its_seeds(target: str, tmp_path: Path) -> None:
    for seed in TARGETS[target].seeds():
        read_or_refuse(TARGETS[target].read, seed, tmp_path)


@pytest.mark.parametrize("target", [name for name, target in TARGETS.items() if target.json])
def test_json_is_changed_as_json(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.fuzzing.json_mutation.mutate_bytes", lambda data, longest: data)
    seed = TARGETS[target].seeds()[0]
    changed = {mutate_json(seed, 10**6, number) for number in range(100)}
    assert len(changed) > 50
    for data in sorted(changed):
        read_or_refuse(TARGETS[target].read, data, tmp_path)


@pytest.mark.parametrize("target", [name for name, target in TARGETS.items() if target.json])
@pytest.mark.parametrize("number", [10**400, 10**3000, 10**4299], ids=["400", "3000", "4299"])
def test_a_number_of_very_many_digits_anywhere(target: str, number: int, tmp_path: Path) -> None:
    """Alone, and as both sides of a size."""
    first, mark, rest = TARGETS[target].seeds()[-1].partition(b"\0")
    for part in (0, 1) if mark else (0,):
        parts = [first, rest]
        for place, _ in enumerate(places_in(json.loads(parts[part]))):
            for value in (number, [number, number]):
                content = json.loads(parts[part])
                holder, key = [*places_in(content)][place]
                holder[key] = value
                changed = [*parts[:part], json.dumps(content).encode(), *parts[part + 1 :]]
                read_or_refuse(TARGETS[target].read, changed[0] + mark + changed[1], tmp_path)


@pytest.mark.parametrize("find", FINDS, ids=lambda find: find.name)
def test_what_was_found_is_mended(find: Path, tmp_path: Path) -> None:
    """A file is called after its target: `coco-...`. It keeps the bounds of time and memory, too."""
    target = TARGETS[find.name.partition("-")[0]]
    read_or_refuse(target.read, target.seeds()[0], tmp_path)  # what is made once is made now
    forget_peak()
    check(target.read, find.read_bytes(), tmp_path)
