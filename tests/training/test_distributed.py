"""Several processes as one: what torchrun tells them."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import torch.distributed as dist

from vitrail.training.distributed import STORE_PORT, own_store, torchrun_start


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


def test_processes_that_are_started_again_do_not_look_for_the_dead_ones(monkeypatch):
    """torchrun's store still has the port of the store that died with the main process."""
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dead = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    agent.set(STORE_PORT, str(dead.port))
    del dead
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(agent.port))
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(own_store, 1)
        time.sleep(0.5)
        assert not other.done()
        main = own_store(0)  # which answers as long as it is kept
        main.set("address", "here")
        assert other.result(timeout=30).get("address") == b"here"
