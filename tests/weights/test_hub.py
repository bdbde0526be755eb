"""What is asked of the hub says nothing about who asks."""

from __future__ import annotations

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import build_hf_headers

from vitrail.errors import VitrailError
from vitrail.weights.hub import fetch


def test_requests_do_not_say_which_torch_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "torch/" in build_hf_headers()["user-agent"]
    with pytest.raises(VitrailError, match="cannot be reached"):
        fetch("someone/nothing")
    assert "torch/" not in build_hf_headers()["user-agent"]
