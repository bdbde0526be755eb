"""Settings: complete in the run's file, refused with a sentence when wrong."""

from itertools import pairwise

import pytest

from vitrail.errors import VitrailError
from vitrail.training.schedule import learning_rate
from vitrail.training.settings import Settings


def test_the_written_file_reads_back_the_same_and_explains_every_setting(tmp_path):
    settings = Settings().with_values(
        {
            "train.lr": 0.001,
            "data.task": "regress",
            "train.balanced": True,
            "model.start": 'a"b',
            "data.cache_gigabytes": float("inf"),
        }
    )
    settings.write(tmp_path / "settings.toml")
    assert Settings.read(tmp_path / "settings.toml") == settings
    text = (tmp_path / "settings.toml").read_text().splitlines()
    assert all(
        text[i - 1].startswith("# ") for i, line in enumerate(text) if " = " in line and not line.startswith("#")
    )


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"train.learning_rate": 0.1}, "no setting train.learning_rate"),
        ({"train.batchsize": 8}, "did you mean train.batch_size"),
        ({"train.batch_size": "8"}, "train.batch_size is a whole number, not '8'"),
        ({"train.smoothing": 1.5}, "train.smoothing is 1.5; it must be at most 0.9"),
        ({"train.lr": -1}, "at least 0"),
        ({"train.lr": float("nan")}, "at least 0"),
        ({"augment.flip": "sideways"}, "choose one of auto, none, horizontal"),
        ({"train.epochs": 3, "train.minutes": 2}, "give one of them"),
        ({"train.balanced": 1}, "true or false"),
    ],
)
def test_a_wrong_setting_is_named(values, says):
    with pytest.raises(VitrailError, match=says):
        Settings().with_values(values)


@pytest.mark.parametrize("text", ["epochs = 3", "[train]\nepochs = ", "[train]\nepoch = 3", "[tran]\nlr = 1"])
def test_a_wrong_file_is_named(tmp_path, text):
    (tmp_path / "my.toml").write_text(text)
    with pytest.raises(VitrailError, match=r"my\.toml"):
        Settings.read(tmp_path / "my.toml")
    with pytest.raises(VitrailError, match="cannot read"):
        Settings.read(tmp_path / "none.toml")


def test_the_learning_rate_rises_then_falls_to_nothing():
    rates = [learning_rate(step, 100, 10, 1.0) for step in range(100)]
    assert 0 < rates[0] < rates[9] < 1 and rates[10] == 1.0
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert 0 < rates[-1] < 0.001
    assert learning_rate(0, 1, 0, 1.0) == 1.0
