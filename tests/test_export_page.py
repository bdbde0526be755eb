"""The programs of docs/export.md: with onnxruntime, numpy and Pillow alone, and in a browser without a network."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import onnx
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Route
from skimage.data import astronaut

import vitrail
from tests.chromium import CHROMIUM
from vitrail.model.presets import preset
from vitrail.model.vit import ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import IMAGENET, Preprocessing

PAGE = Path(__file__).parents[1] / "docs" / "export.md"
WEB = "onnxruntime-web@1.30.0"
WEB_FILES = ("ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
WITHOUT = "import sys\nsys.modules['torch'] = sys.modules['vitrail'] = None  # importing them is an ImportError\n"


def block(language: str, containing: str) -> str:
    """The one block of the page in this language that has these words."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    [text] = [text for text in found if containing in text]
    return text


def save_model(path: Path, **rule: object) -> None:
    torch.manual_seed(0)
    network = ViT(preset("mu/16", image_size=96, classes=3)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    preprocessing = Preprocessing(size=(96, 96), mean=IMAGENET[0], std=IMAGENET[1], **rule)  # type: ignore[arg-type]
    Checkpoint(network, preprocessing, "classify", ["cat", "dog", "owl"]).save(path)


def change_rule(path: Path, rule: dict[str, object]) -> None:
    """Another rule in a file's metadata."""
    model = onnx.load(path)
    [entry] = [entry for entry in model.metadata_props if entry.key == "vitrail"]
    about = json.loads(entry.value)
    about["preprocessing"] |= rule
    entry.value = json.dumps(about)
    onnx.save(model, path)


def predicted(folder: Path, picture: str) -> dict[str, float]:
    answer = vitrail.load(folder / "model.safetensors").predict(folder / picture, precision="fp32")
    return {guess["label"]: guess["probability"] for guess in answer["top"]}


RULES: list[dict[str, object]] = [
    {"crop_fraction": 0.875},
    {"resize": "squash", "crop_fraction": 0.9, "crop_offset": "round"},
    {"resize": "pad", "interpolation": "bilinear", "crop_fraction": 1.0},
]


def test_the_page_runs_without_torch_and_vitrail(tmp_path: Path) -> None:
    photo = Image.fromarray(astronaut()[:410])  # not square
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    photo.save(tmp_path / "photo.jpg", exif=exif)
    save_model(tmp_path / "model.safetensors")
    vitrail.export(tmp_path / "model.safetensors", tmp_path / "exported")
    program = block("python", "onnxruntime.InferenceSession")
    for rule in RULES:
        save_model(tmp_path / "model.safetensors", **rule)
        change_rule(tmp_path / "exported" / "model.onnx", rule)  # the graph of such a model is the same
        done = subprocess.run([sys.executable, "-c", WITHOUT + program], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed = {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines()}
        assert printed == pytest.approx(predicted(tmp_path, "photo.jpg"), abs=1e-4), rule


@pytest.fixture
def web_runtime(request: pytest.FixtureRequest) -> Path:
    """The three files of onnxruntime-web, fetched from npm once and kept in pytest's cache."""
    if CHROMIUM is None:
        pytest.skip("the page's test needs Chromium: apt-get install chromium")
    folder = request.config.cache.mkdir("onnxruntime-web-1.30.0")  # type: ignore[union-attr]
    if not all((folder / name).exists() for name in WEB_FILES):
        if shutil.which("npm") is None:
            pytest.skip("the page's test fetches onnxruntime-web once: npm is not installed")
        done = subprocess.run(["npm", "pack", WEB, "--silent"], cwd=folder, capture_output=True, text=True, timeout=300)
        if done.returncode:
            pytest.skip(f"the page's test fetches onnxruntime-web once: npm cannot be reached ({done.stderr[-200:]})")
        [archive] = folder.glob("*.tgz")
        with tarfile.open(archive) as package:
            for name in WEB_FILES:
                member = package.extractfile(f"package/dist/{name}")
                assert member is not None
                (folder / name).write_bytes(member.read())
        archive.unlink()
    return folder


class Handler(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".mjs": "text/javascript", ".wasm": "application/wasm"}

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path, web_runtime: Path) -> Iterator[str]:
    for name in WEB_FILES:
        shutil.copy(web_runtime / name, tmp_path / name)
    (tmp_path / "index.html").write_text(block("html", "ort.InferenceSession"), encoding="utf-8")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=tmp_path))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def test_the_page_runs_in_a_browser_without_a_network(tmp_path: Path, served: str, browser: Browser) -> None:
    save_model(tmp_path / "model.safetensors")
    vitrail.export(tmp_path / "model.safetensors", tmp_path / "web", preprocessing="inside")
    Image.fromarray(astronaut()).resize((96, 96)).save(tmp_path / "photo.png")  # the model's size: nothing to resize
    outside: list[str] = []

    def watch(route: Route) -> None:
        if route.request.url.startswith(served):
            route.continue_()
        else:
            outside.append(route.request.url)
            route.abort()

    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.route("**/*", watch)
    page.goto(served)
    page.wait_for_function("document.title === 'ready'", timeout=120_000)
    page.set_input_files("#file", tmp_path / "photo.png")
    page.wait_for_function("document.getElementById('answer').textContent !== ''", timeout=120_000)
    text = page.text_content("#answer") or ""
    page.close()
    assert not outside and not errors
    shown = {line.split()[0]: float(line.split()[1]) for line in text.splitlines()}
    assert shown == pytest.approx(predicted(tmp_path, "photo.png"), abs=1e-4)
