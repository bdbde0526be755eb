"""Settings: complete in the run's file, refused with a sentence when wrong."""

from itertools import pairwise

import pytest

from vitrail.errors import VitrailError
from vitrail.training.optim.schedule import learning_rate
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


def test_what_is_not_set_is_none_and_a_commented_line(tmp_path):
    assert Settings().train.lr is None and Settings().augment.flip is None and Settings().data.ignore is None
    lines = Settings().to_toml().splitlines()
    assert "# lr = (not set)" in lines and lines[lines.index("# lr = (not set)") - 1].startswith("# peak learning rate")
    chosen = Settings().where_unset({"train.lr": 0.1, "train.clip": 2.0})
    assert (chosen.train.lr, chosen.train.clip) == (0.1, 1.0)
    assert chosen.where_unset({"train.lr": 0.2}) == chosen
    assert chosen.with_values({"train.lr": None}) == Settings()
    assert chosen.changed() == {"train.lr": 0.1}


EARLIER = """
[data]
layout = "auto"
targets = ""
ignore = -1
validation = 0.0
[model]
model = "auto"
start = ""
image_size = 0
stem_blocks = -1
crop_fraction = 0
[train]
epochs = 0.0
lr = 0.0
mixup = -1.0
cutmix = 0.0
drop_path = -1
precision = "auto"
patience = 0
[augment]
flip = "auto"
erase = -1.0
"""


def test_files_of_earlier_versions_are_read_with_their_spellings_of_unset(tmp_path):
    (tmp_path / "earlier.toml").write_text(EARLIER)
    settings = Settings.read(tmp_path / "earlier.toml")
    assert settings == Settings().with_values({"train.cutmix": 0.0})  # where 0 is a value, it stays one
    assert settings.train.patience == 0


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
        ({"train.minutes": 1e308}, "train.minutes is 1e\\+308; it must be at most"),  # seconds without end: a traceback
        ({"train.epochs": float("inf")}, "train.epochs is inf; it must be at most"),
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


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000, "[train]\nlr = " + "9" * 5000, "[train]\nlr = " + "9" * 400, "[train]\nseed = 1.5",
        "a." * 50_000 + "b = 1",  # minutes in the parser
        "[train]\nlr = [[1]]", "[train.lr]\na = 1", "[[train]]\nlr = 1", "train = 3", "[train]\nlr = 1979-05-27",
    ],
)  # fmt: skip
def test_hostile_toml_is_refused_in_a_sentence(tmp_path, text):
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(VitrailError, match="s.toml") as caught:
        Settings.read(tmp_path / "s.toml")
    assert "\n" not in str(caught.value)
