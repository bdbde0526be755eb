"""How far a job has come, in words."""

from __future__ import annotations

import pytest

from vitrail.shards.shard_progress import INTERVAL, ShardProgress, duration


def test_rate_and_time_left_are_of_this_run(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = ShardProgress(10, 1000, clock=lambda: now[0])
    progress.skipped(100, 0)
    now[0] = 10.0
    progress.ended(100, 3)
    progress.tried_again()
    assert progress.text() == "2 of 10 shards, 10.0 images/s, 1 done before, 1 tried again, 80 s left"
    assert capsys.readouterr().err == ""
    now[0] = INTERVAL + 1
    progress.gave_up()
    assert "2 of 10 shards" in capsys.readouterr().err  # a line a minute where there is no terminal
    assert (progress.errors, progress.failed) == (3, 1)


@pytest.mark.parametrize(
    ("seconds", "words"), [(40, "40 s"), (360, "6 min"), (7500, "2 h 5 min"), (3 * 86400, "3 days")]
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words
