"""How the command ends when it cannot begin: one sentence, exit code 2."""

from __future__ import annotations

import builtins
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.serving.server import AppClient
from vitrail.cli import main
from vitrail.commands.serve import serve
from vitrail.data.loading.transforms import resized_pixels
from vitrail.errors import VitrailError
from vitrail.inference.engine import open_model
from vitrail.serving.app import create_app
from vitrail.serving.http_errors import HttpError
from vitrail.serving.job_runner import JobRunner
from vitrail.serving.limits import Capacity, Limits
from vitrail.serving.middleware.access_policy import AccessPolicy
from vitrail.serving.routes.static_files import read_samples
from vitrail.serving.served_model import ServedModel
from vitrail.serving.server import announce, bind_socket, check_access_options, limits_from_options
from vitrail.weights.preprocessing import Preprocessing


def test_a_port_in_use_is_told_before_the_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "no-such-model", "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"vitrail: cannot listen on 127.0.0.1, port {port}: ") and "--port 0" in said


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "no-such-model.safetensors", "--port", "0"]) == 2
    assert "there is no file, folder, preset or published model" in capsys.readouterr().err


def test_the_token_of_the_command_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "mu/4", "--port", "0", "--token", "short"]) == 2
    assert "8 or more plain characters" in capsys.readouterr().err


def test_a_host_that_is_not_there() -> None:
    with pytest.raises(VitrailError, match="cannot listen on"):
        bind_socket("192.0.2.1", 0)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "uvicorn":
            raise ImportError("no uvicorn", name="uvicorn")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(VitrailError, match=r'\(uvicorn\): pip install "vitrail\[serve\]"'):
        serve("mu/4")


@pytest.mark.parametrize("token", ["short", "with a space", "caf\u00e9-caf\u00e9", ""])
def test_tokens_that_no_header_could_carry(token: str) -> None:
    with pytest.raises(VitrailError, match="8 or more plain characters"):
        check_access_options(token, [])


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/", "ftp://example.org", "https://"])
def test_origins_that_no_browser_would_send(origin: str) -> None:
    with pytest.raises(VitrailError, match="an origin looks like"):
        check_access_options(None, [origin])
    check_access_options(None, ["*", "https://example.org:8000"])


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_ports_that_are_none(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "m", "--port", port])
    assert "not a port" in capsys.readouterr().err


def test_a_folder_of_samples_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="there is no folder"):
        read_samples("mu/4", tmp_path / "none")
    assert read_samples("mu/4", None) == [] and read_samples("mu/4", tmp_path) == []


def test_limits_fit_together() -> None:
    assert limits_from_options(images=None, queue=3).images == 3  # more than all places could never be taken
    assert limits_from_options(pixels=7).pixels == 7


def test_places_come_back_however_it_ends() -> None:
    places = Capacity(3, "tests")
    with pytest.raises(KeyError), places.reserve(2):
        with pytest.raises(HttpError) as refused, places.reserve(2):
            pass
        assert refused.value.status_code == 503 and places.used == 2
        raise KeyError
    assert places.used == 0


@pytest.mark.parametrize(("resize", "most"), [("crop", 224 * 224 * 100), ("pad", 224 * 224), ("squash", 224 * 224)])
def test_what_resizing_makes_of_a_strip(resize: str, most: float) -> None:
    assert resized_pixels(10, 1000, Preprocessing(resize=resize)) == pytest.approx(most)
    assert Limits().pixels > resized_pixels(3000, 4000, Preprocessing())


def test_fastapi_sends_no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can, and an environment variable would be enough."""
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    client = AppClient(open_model("mu/16", untrained=True))
    client.close()
    settings = getattr(client.app.app, "_telemetry", {})  # versions before it had none
    assert not any(settings.values()), settings


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_precision_is_said_where_it_is_not_float32(precision: str, capsys: pytest.CaptureFixture[str]) -> None:
    served = ServedModel(open_model("mu/16", untrained=True), "m", Limits(), device="cpu", precision=precision)
    runner = JobRunner(served, served.limits)
    try:
        with bind_socket("127.0.0.1", 0) as listener:
            announce(create_app(runner, AccessPolicy()), runner, listener)
    finally:
        runner.close()
    said = capsys.readouterr()
    assert said.out.startswith("m is served at http://127.0.0.1:")
    assert said.err == ("vitrail: answers are computed in bfloat16\n" if precision == "bf16" else "")
