"""Weights by a hub id, `owner/name` or `owner/name@revision`, from the hub's cache when there is no network."""

from __future__ import annotations

import re
from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.weights.source import FILES

PREFIXES = ("hf-hub:", "hf_hub:", "hf://")


def is_hub_id(text: str) -> bool:
    """Whether a text has the form `owner/name` or `owner/name@revision`."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", _plain(text)) is not None


def fetch(text: str) -> Path:
    """The folder in the hub's cache that holds the weights and what belongs to them."""
    try:
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise VitrailError(f"{text} is a hub id: install what it needs with pip install 'vitrail[hub]'") from None
    # else requests name the torch and the coding agent here; not by its variable, for timm may have imported it before
    constants.HF_HUB_DISABLE_TELEMETRY = True
    repository, _, revision = _plain(text).partition("@")
    # .bin files only where there is no safetensors: asked for in a second go, so that nothing is fetched twice
    wanted = ["config.json", "p*processor_config.json", "*.npz", "model*.safetensors", "model.safetensors.index.json"]
    wanted += ["adapter_config.json", "adapter_model.safetensors"]
    try:
        folder = Path(snapshot_download(repository, revision=revision or None, allow_patterns=wanted))
        if not any((folder / name).exists() for name in FILES) and not list(folder.glob("*.npz")):
            more = [*wanted, "pytorch_model*.bin", "pytorch_model.bin.index.json", "*.pth"]
            folder = Path(snapshot_download(repository, revision=revision or None, allow_patterns=more))
        return folder
    except LocalEntryNotFoundError:
        raise VitrailError(
            f"{text} is not in the hub's cache and the hub cannot be reached: try again online"
        ) from None
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise VitrailError(f"cannot fetch {text} from the hub: {reason[:200]}") from None


def _plain(text: str) -> str:
    for prefix in PREFIXES:
        text = text.removeprefix(prefix)
    return text
