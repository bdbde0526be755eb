"""Every family against its library: answers and every block, at the native size, a larger one, one that is no square.

benchmarks/parity.py measures the same at the published width and depth.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.parity import largest_differences
from benchmarks.peers.families import PEERS, Peer

OUTPUTS, HIDDEN = 1e-4, 1e-3  # largest differences allowed, float32
ONE_OF_EACH = list({peer.family: peer for peer in reversed(PEERS)}.values())


@pytest.mark.parametrize("peer", PEERS, ids=str)
def test_small(peer: Peer, tmp_path: Path) -> None:
    built = peer.build("small", tmp_path)
    answer, block = largest_differences(built, built.sizes, batch=2)
    assert answer <= OUTPUTS and block <= HIDDEN


@pytest.mark.parametrize("peer", ONE_OF_EACH, ids=lambda peer: peer.family)
def test_of_real_width(peer: Peer, tmp_path: Path) -> None:
    built = peer.build("wide", tmp_path)
    answer, block = largest_differences(built, built.sizes)
    assert answer <= OUTPUTS and block <= HIDDEN
