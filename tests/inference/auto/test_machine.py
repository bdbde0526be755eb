"""What a measurement depends on besides the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitrail.inference.auto import machine as module
from vitrail.inference.auto.machine import machine, processor


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    processor.cache_clear()
    yield
    processor.cache_clear()


def test_the_processor_by_name_and_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = "processor : {0}\nmodel name\t: Some CPU: fast @ 3 GHz\nflags\t\t: sse avx2 avx512_bf16\n\n"
    (tmp_path / "cpuinfo").write_text("".join(core.format(number) for number in range(2)))
    monkeypatch.setattr(module, "CPUINFO", tmp_path / "cpuinfo")
    assert processor() == ("Some CPU: fast @ 3 GHz", ("avx2", "avx512_bf16", "sse"))


def test_a_system_that_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPUINFO", tmp_path / "nothing")
    name, instructions = processor()
    assert name and instructions == ()


def test_it_is_fit_for_a_key() -> None:
    assert json.loads(json.dumps(machine())) == machine()
    assert machine()["threads"] >= 1 and machine()["versions"]["torch"]
