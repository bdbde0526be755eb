"""The folder of a run: one writer, and a log that a crash cannot spoil."""

import json
import math

import pytest

from vitrail.errors import VitrailError
from vitrail.training.run_folder import RunFolder


def test_only_one_holds_the_lock(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.open(resume=False)
    second = RunFolder(tmp_path / "run")
    with folder.locked(), pytest.raises(VitrailError, match="another run is writing"), second.locked():
        pass
    with RunFolder(tmp_path / "run").locked():
        pass


def test_a_run_is_that_of_the_start_of_torchrun_that_wrote_last(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.held(resume=False, start="job 7"):
        assert not folder.is_of("job 7")  # there is no plan yet: nothing to go on with
        folder.plan.write_text("{}")
    assert folder.is_of("job 7") and not folder.is_of("job 8") and not folder.is_of(None)
    with pytest.raises(VitrailError, match="already holds a run"), folder.held(resume=False, start="job 8"):
        pass
    assert not folder.is_of("job 8")  # which was refused: torchrun may start it again
    with folder.held(resume=True, start="job 8"):
        assert folder.is_of("job 8")


def test_a_run_that_failed_before_its_plan_leaves_nothing_behind(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(VitrailError, match="no"), folder.held(resume=False, start="job 7"):
        raise VitrailError("no images")
    assert not folder.path.exists()


def test_rows_after_a_step_are_forgotten_and_a_cut_line_too(tmp_path):
    folder = RunFolder(tmp_path)
    folder.metrics.write_text("".join(json.dumps({"step": n}) + "\n" for n in range(5)) + '{"step": 5, "lo')
    assert [row["step"] for row in folder.history()] == [0, 1, 2, 3, 4]
    folder.forget_after(2)
    assert [row["step"] for row in folder.history()] == [0, 1, 2]
    assert folder.metrics.read_text().endswith('{"step": 2}\n')
    assert RunFolder(tmp_path / "none").history() == []


def test_it_needs_nothing_that_windows_lacks(monkeypatch):
    import importlib
    import sys

    from vitrail.training import run_folder

    monkeypatch.setitem(sys.modules, "fcntl", None)
    importlib.reload(run_folder)


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1,', "",
        "5", "[]", "{}", '"text"', '{"step": "2"}', '{"step": 2.5}', '{"step": true}', '{"step": 1, "loss": "low"}',
        '{"step": 1, "loss": 2.0}', '{"step": 1, "epoch": 1, "validation": 3}',
        '{"step": 1, "epoch": 1, "validation": {"loss": []}}', '{"step": 1, "best": true}',
        '{"step": 1, "epoch": Infinity, "loss": 2.0}', f'{{"step": 1, "epoch": {10**400}, "loss": 2.0}}',
    ],
)  # fmt: skip
def test_an_edited_row_is_named(tmp_path, line):
    folder = RunFolder(tmp_path)
    folder.metrics.write_text(f'{{"step": 0}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(VitrailError, match="metrics.jsonl: line 2 is no row of a run"):
        folder.forget_after(3)


def test_a_number_of_very_many_digits_is_infinite(tmp_path):
    folder = RunFolder(tmp_path)
    folder.metrics.write_text(f'{{"step": 0, "epoch": 1, "loss": {10**400}, "validation": {{"loss": {10**400}}}}}\n')
    assert folder.history() == [{"step": 0, "epoch": 1, "loss": math.inf, "validation": {"loss": math.inf}}]


def test_a_log_that_is_no_text(tmp_path):
    folder = RunFolder(tmp_path)
    folder.metrics.write_bytes(b'{"step": 0}\n\xff\xfe\n')
    with pytest.raises(VitrailError, match="metrics.jsonl is not UTF-8 text"):
        folder.history()
