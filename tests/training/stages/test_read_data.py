"""What a run works on, once its data was read and checked."""

import pytest

from vitrail.training.run_log import RunLog
from vitrail.training.settings import Data
from vitrail.training.stages.read_data import prepare_data


@pytest.fixture
def prepared(pictures):
    return prepare_data(str(pictures), Data(), 0, RunLog(None, None))


def test_broken_files_change_the_fingerprint_and_are_a_finding(prepared):
    path = prepared.train[0].path
    rest = prepared.without({path: None})
    assert len(rest.train) == len(prepared.train) - 1 and rest.fingerprint != prepared.fingerprint
    assert rest.findings[-1].kind == "broken" or rest.findings[0].kind == "broken"
    assert prepared.without({}) is prepared
