"""The benchmarks with hostile clients and with kills, each for some seconds."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if sys.platform != "linux":
    pytest.skip("they read /proc and kill by SIGKILL", allow_module_level=True)

from benchmarks.hostile_clients import KINDS, Address
from benchmarks.kills import VICTIMS, Tally, check_old_or_new, run
from tests.serving.conftest import checkpoint
from tests.serving.server import ThreadServer, picture


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    from benchmarks import soak

    return soak


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadServer]:
    server = ThreadServer(checkpoint(), patience=0.3, decode_seconds=0.5)
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_hostile_client_gets_what_it_may(server: ThreadServer, kind: str) -> None:
    assert KINDS[kind].act(Address(server.port), [picture(1), picture(2)]) in KINDS[kind].allowed
    assert server.send("/v1/predict", picture(3)).status == 200


def answer(*probabilities: float) -> dict[str, Any]:
    return {"top": [{"label": label, "probability": p} for label, p in zip("ab", probabilities, strict=True)]}


def test_an_answer_belongs_to_the_nearest_image(soak: Any) -> None:
    answers = soak.Answers([answer(0.9, 0.1), answer(0.88, 0.12), answer(0.2, 0.8)])
    assert answers.apart() == pytest.approx(0.02)
    assert answers.belongs_to(answer(0.897, 0.103), 0)
    assert not answers.belongs_to(answer(0.881, 0.119), 0)  # of the image beside it
    assert not answers.belongs_to(answer(0.5, 0.5), 2)  # of none


def test_what_does_not_hold_is_told(soak: Any) -> None:
    def verdicts(seconds: float = 1.0, lost: int = 0, wrong: int = 0, grown: float = 1.0, code: int = 0) -> list[bool]:
        memory = SimpleNamespace(own=[100.0] * 30 + [100.0 * grown] * 30)
        memory.growth = lambda: soak.Memory.growth(memory)
        soaked = soak.Honest([seconds] * 100, Counter({"503": lost} if lost else {}), wrong)
        hostile = SimpleNamespace(unexpected=dict)
        result = soak.Soak(soak.Honest([1.0] * 100), soaked, hostile, memory, 0.1, 20.0, code)
        return [holds for _, holds in result.verdicts]

    assert all(verdicts()) and all(verdicts(seconds=1.9, grown=1.01))
    for number, broken in enumerate(({"lost": 1}, {"wrong": 1}, {"seconds": 2.1}, {"grown": 1.03}, {"code": 1})):
        assert [place for place, holds in enumerate(verdicts(**broken)) if not holds] == [number]


def test_a_few_kills_change_nothing() -> None:
    tallies = run(kills=6, seed=1)
    assert len(tallies) == len(VICTIMS)
    for tally in tallies:
        assert tally.counts["kills"] >= 2 and tally.counts["ended"] >= 1 and not tally.counts["failed"]


def test_half_a_file_is_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    tally, contents = Tally("writers"), [{"a": b"old"}, {"a": b"newer"}]
    for files in ({"a": b"old"}, {"a": b"newer"}):
        check_old_or_new(files, contents, tally)
    assert not tally.counts["failed"]
    check_old_or_new({"a": b"new"}, contents, tally)
    check_old_or_new({}, contents, tally)
    assert tally.counts["failed"] == 2 and "neither the older nor the new one" in capsys.readouterr().err
