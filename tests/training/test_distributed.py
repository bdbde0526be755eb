"""Several processes as one: what torchrun tells them."""

from __future__ import annotations

import os

from vitrail.training.distributed import torchrun_start


def test_a_start_of_torchrun_has_a_name_of_its_own(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert torchrun_start() is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job 7")
    assert torchrun_start() == "job 7"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # of every start without an id
    here = torchrun_start()
    assert here is not None and here.endswith(f" {os.getppid()}")
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert torchrun_start() != here
