"""Which patches are hidden. What is learnt from them is tested as whole runs (test_unlabelled_runs.py, test_mae.py)."""

from __future__ import annotations

import pytest
import torch

from vitrail.training.auxiliary.masked_patches import draw_hidden

CPU = torch.device("cpu")


@pytest.mark.parametrize(("share", "shown"), [(0.75, 4), (0.99, 1), (0.01, 15)])
def test_every_patch_is_either_shown_or_hidden(share: float, shown: int) -> None:
    drawn = draw_hidden(16, share, 7, CPU)
    assert len(drawn["shown"]) == shown
    assert sorted([*drawn["shown"].tolist(), *drawn["hidden"].tolist()]) == list(range(16))


def test_each_seed_hides_other_patches() -> None:
    first, again, other = (draw_hidden(16, 0.75, seed, CPU)["hidden"].tolist() for seed in (3, 3, 4))
    assert first == again != other
