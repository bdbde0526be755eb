"""The page of an explanation: complete in itself, strict about scripts, and names are never more than text."""

# ruff: noqa: RUF001  formulas and sizes are written as people write them

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.cli import main
from vitrail.explanation.explainer import Explainer
from vitrail.explanation.output.result import Explanation
from vitrail.explanation.walk.walk_steps import Figure, Step, Walk
from vitrail.model.config import ViTConfig
from vitrail.report.pages.explain_page import page
from vitrail.report.sections.walk_cards import walk_cards
from vitrail.visuals.embedded import matrix_png
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.preprocessing import Preprocessing

EVIL = "<img src=x onerror=alert(1)>"
LABELS = ["cat", EVIL, "</script><script>alert(2)</script>"]


class Reader(HTMLParser):
    """Walks through the page and insists that every element is closed in its turn."""

    VOID = ("meta", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data):
        if "script" in self.open:
            self.scripts.append((self.tags[-1][1].get("type"), data))
        elif "style" not in self.open:
            self.texts.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        return " ".join(text for text in self.texts if text)


@pytest.fixture
def model(lively) -> Checkpoint:
    config = ViTConfig(image_size=32, patch_size=8, width=32, heads=2, depth=3, classes=3, registers=1)
    return Checkpoint(lively(config), Preprocessing(size=(32, 32)), "classify", list(LABELS))


def explained(model: Checkpoint, **how) -> Explanation:
    picture = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    return Explainer(model, walk=True, every_query=True, **how)(picture, f"{EVIL}.jpg")


def read(model: Checkpoint, *found: Explanation) -> tuple[str, Reader]:
    text = page(found, model=f"{EVIL}.safetensors", checkpoint=model)
    return text, Reader(text)


def test_names_are_text_and_the_page_needs_no_other_file(model):
    text, reader = read(model, explained(model, target=EVIL))
    assert EVIL in reader.text
    assert LABELS[2] in reader.text
    assert not any("onerror" in attributes for _, attributes in reader.tags)
    sources = [attributes["src"] for tag, attributes in reader.tags if tag == "img"]
    assert len(sources) > 20
    assert all(source.startswith("data:image/") for source in sources)
    assert not [tag for tag, attributes in reader.tags if tag == "script" and "src" in attributes]
    assert "http://" not in text and "https://" not in text


def test_only_the_pages_own_script_may_run(model):
    _, reader = read(model, explained(model))
    policy = next(a["content"] for tag, a in reader.tags if tag == "meta" and "http-equiv" in a)
    scripts = [text for kind, text in reader.scripts if kind is None]
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert not [name for _, attributes in reader.tags for name in attributes if name.startswith("on")]


def test_the_script_gets_every_map(model):
    found = explained(model)
    _, reader = read(model, found)
    (data,) = [json.loads(text) for kind, text in reader.scripts if kind == "application/json"]
    assert (data["grid"], data["blocks"], data["heads"]) == ([4, 4], [0, 1, 2], [0, 1])
    levels = np.frombuffer(base64.b64decode(data["queryMaps"]["maps"]), np.uint8).reshape(3, 3, 4, 4)
    maps = levels / 255 * np.array(data["queryMaps"]["most"])[..., None, None]
    assert maps[:, :2] == pytest.approx(np.stack(found.attention), abs=2e-3)
    assert maps[:, 2] == pytest.approx(np.mean(found.attention, 1), abs=2e-3)  # the mean of the heads
    assert np.array(data["queryMaps"]["prefix"])[:, :2] == pytest.approx(np.stack(found.prefix), abs=1e-3)
    for block in data["every"]:
        assert block["groups"] == [[list(range(18)), list(range(18))]]
        assert np.frombuffer(base64.b64decode(block["levels"]), np.uint8).reshape(18, 18).max(1).min() == 255
    assert data["names"] == ["[CLS]", "register 0"]


def test_controls_have_labels(model):
    _, reader = read(model, explained(model))
    controls = [tag for tag, _ in reader.tags if tag in ("input", "select")]
    assert len(controls) == 5
    assert len([tag for tag, _ in reader.tags if tag == "label"]) == 5
    stage = next(a for tag, a in reader.tags if tag == "div" and a.get("class") == "stage")
    assert stage["tabindex"] == "0" and "arrow keys" in stage["aria-label"]


def test_the_page_names_the_better_explanation(model):
    found = explained(model, compare=True)
    _, reader = read(model, found)
    assert "Which explanation to trust" in reader.text
    assert ("trust this one" in reader.text) == (found.best is not None)
    found.best = "rollout"
    found.curves = {"rollout": found.curves["rollout"], "random": found.curves["random"]}
    _, reader = read(model, found)
    assert "trust this one" in reader.text
    plain = read(model, explained(model))[1].text
    assert "vitrail explain --compare measures which of them to trust" in " ".join(plain.split())
    assert "trust this one" not in plain


def test_several_images_share_a_page_and_one_walk(model):
    first, second = explained(model, compare=True), explained(model, compare=True)
    second.walk = None
    second.name = "second.jpg"
    _, reader = read(model, first, second)
    assert "2 images" in reader.text
    assert "over all images" in reader.text
    assert len([a for tag, a in reader.tags if a.get("class") == "look"]) == 2
    assert len([a for tag, a in reader.tags if tag == "ol"]) == 1


def test_every_step_of_the_walk_is_there(model):
    found = explained(model)
    _, reader = read(model, found)
    for step in found.walk.steps:
        assert step.title in reader.text
        assert step.shape in reader.text


@pytest.mark.parametrize("task", ["multilabel", "regress", "embed"])
def test_other_tasks(task, lively):
    config = ViTConfig(image_size=32, patch_size=8, width=32, heads=2, depth=1, classes=0 if task == "embed" else 2)
    model = Checkpoint(lively(config), Preprocessing(size=(32, 32)), task, None if task == "embed" else ["a", "b"])
    _, reader = read(model, explained(model, compare=True))
    assert "The walk" in reader.text
    if task == "embed":
        assert "An embedding" in reader.text


def test_a_model_without_cls_says_so(lively):
    config = ViTConfig(
        image_size=32, patch_size=8, width=32, heads=2, depth=1, classes=3, cls_token=False, pool="mean", channels=1
    )
    model = Checkpoint(lively(config), Preprocessing(size=(32, 32)).for_channels(1), "classify", list(LABELS))
    _, reader = read(model, explained(model))
    assert "This model has no [CLS] token" in reader.text
    assert "What a patch looks at" in reader.text  # any patch can be clicked
    (data,) = [json.loads(text) for kind, text in reader.scripts if kind == "application/json"]
    assert (data["queryMaps"], data["blocks"]) == (None, [0])


def test_the_query_of_attention_pooling_is_shown(lively):
    config = ViTConfig(
        image_size=32, patch_size=8, width=32, heads=2, depth=2, classes=3, cls_token=False, pool="attention"
    )
    model = Checkpoint(lively(config), Preprocessing(size=(32, 32)), "classify", list(LABELS))
    found = explained(model, heads=[1])
    assert (found.query, found.blocks, found.attention[0].shape) == ("the pooling query", [2], (1, 4, 4))
    _, reader = read(model, found)
    assert "What the pooling query looks at" in reader.text


def test_many_tokens_leave_out_what_would_make_the_page_huge(lively, monkeypatch):
    monkeypatch.setattr("vitrail.explanation.explainer.EVERY", 17 * 17)
    config = ViTConfig(image_size=32, patch_size=8, width=32, heads=2, depth=2, classes=3)
    model = Checkpoint(lively(config), Preprocessing(size=(32, 32)), "classify", list(LABELS))
    _, reader = read(model, explained(model))
    assert "kept for block 1 only" in reader.text
    monkeypatch.setattr("vitrail.explanation.explainer.EVERY", 5)
    _, reader = read(model, explained(model))
    assert not [tag for tag, _ in reader.tags if tag == "select"]


def test_matrices_and_bars():
    uri = matrix_png(np.array([[0.0, np.nan], [-1.0, 1.0]]), signed=True)
    assert uri.startswith("data:image/png;base64,")
    bars = Figure("logits", np.array([2.0, -4.0]), "bars", ("a", "b"))
    walk = Walk([Step("t", "f", "s", "x", [bars])], 0, (0, 0), np.zeros(2, np.float32))
    (card,) = walk_cards(walk)
    assert [(row["number"], row["width"], row["negative"]) for row in card["figures"][0]["rows"]] == [
        ("2", 50.0, False),
        ("−4", 100.0, True),
    ]


# ---- the command


@pytest.fixture
def saved(model, tmp_path) -> tuple[str, str]:
    path = model.save(tmp_path / "model.safetensors")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return str(path), str(tmp_path / "photo.png")


def test_the_command_prints_the_answer_and_where_it_comes_from(saved, capsys):
    assert main(["explain", *saved, "--top", "1"]) == 0
    shown = capsys.readouterr().out
    assert re.search(
        r"photo.png: .+ %\n  the evidence for .+: 60 % of it is in \d+ of 16 patches; the strongest", shown
    )
    assert "[CLS] in block 2 gives" in shown


def test_compare_prints_which_to_trust(saved, capsys):
    assert main(["explain", *saved, saved[1], "--compare"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("deletion   insertion    score") == 3  # each image, and both together
    for name in ("relevance", "gradient-weighted attention", "attention rollout", "occlusion", "a random order"):
        assert name in shown
    assert "over 2 images" in shown
    assert re.search("Trust |None beats a random order|ahead by little", shown)


def test_page_pictures_and_numbers_are_written(saved, tmp_path, capsys):
    out, png, numbers = tmp_path / "page.html", tmp_path / "slides", tmp_path / "numbers.json"
    asked = [
        "--out",
        str(out),
        "--png",
        str(png),
        "--json",
        str(numbers),
        "--blocks",
        "0,-1",
        "--query",
        "1,2",
        "--heads",
        "1",
    ]
    assert main(["explain", *saved, *asked, "--image-size", "32x48", "--target", "cat"]) == 0
    assert "What patch 1,2 looks at" in Reader(out.read_text(encoding="utf-8")).text
    (row,) = json.loads(numbers.read_text())
    assert (row["query"], row["blocks"], row["grid"], row["target"]) == ("patch 1,2", [0, 2], [4, 6], "cat")
    attention, prefix = np.array(row["attention"]), np.array(row["prefix"])
    assert (row["heads"], attention.shape) == ([1], (2, 1, 4, 6))
    assert attention.sum((2, 3)) + prefix.sum(2) == pytest.approx(np.ones((2, 1)), abs=1e-4)
    names = {path.name for path in png.iterdir()}
    assert {"photo-picture.png", "photo-relevance.png", "photo-attention-block-02-head-01.png"} <= names
    with Image.open(png / "photo-relevance.png") as picture:
        assert picture.size == (864, 576)


def test_json_on_standard_output_is_alone_there(saved, capsys):
    assert main(["explain", *saved, "--json", "-", "--compare"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["faithfulness"]["random"]["score"] == pytest.approx(0, abs=1)
    assert set(row["maps"]) == {"relevance", "weighted_attention", "rollout", "attention", "occlusion"}


def test_an_unreadable_image_is_told_and_the_others_are_explained(saved, tmp_path, capsys):
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    assert main(["explain", saved[0], str(tmp_path / "broken.jpg"), saved[1]]) == 1
    shown = capsys.readouterr().out
    assert "broken.jpg: error:" in shown
    assert "the evidence for" in shown


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["-"], "not standard input"),
        (["{photo}", "--query", "nose"], "no token 'nose'"),
        (["{photo}", "--target", "cow"], "knows no 'cow'"),
        (["{photo}", "--blocks", "9"], "no block 9"),
        (["{photo}", "--walk-block", "9"], "no block 9"),
        (["{photo}", "--heads", "2"], "no head 2"),
        (["{photo}", "--image-size", "30"], "not divisible by the patch size 8"),
        (["{photo}", "--out", "{folder}"], "is a folder"),
        (["{photo}", "--json", "{folder}"], "is a folder"),
        (["{folder}/empty"], "no images were found"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_sentence(arguments, why, saved, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    filled = [text.format(photo=saved[1], folder=tmp_path) for text in arguments]
    assert main(["explain", saved[0], *filled]) == 2
    shown = capsys.readouterr().err
    assert why in shown
    assert shown.count("\n") == 1


def test_too_many_images_are_refused(saved, capsys, monkeypatch):
    monkeypatch.setattr("vitrail.commands.explain.MOST", 1)
    assert main(["explain", *saved, saved[1]]) == 2
    assert "name fewer" in capsys.readouterr().err


def test_two_files_of_one_name_are_told_apart():
    from vitrail.explanation.output.map_png import file_prefixes

    assert file_prefixes(["a/cat.jpg", "b/cat.png", "../..", "x y?.png"]) == ["cat", "cat-2", "image", "x-y"]


def test_a_stranger_to_the_patch_grid_is_no_trouble(tmp_path: Path, capsys):
    """An untrained preset, a wide grey picture."""
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 200), np.uint8)).save(tmp_path / "wide.png")
    out = tmp_path / "page.html"
    assert main(["explain", "mu/16", str(tmp_path / "wide.png"), "--image-size", "32x96", "--out", str(out)]) == 0
    assert "untrained" in capsys.readouterr().out
    assert "2 × 6 patches" in Reader(out.read_text(encoding="utf-8")).text
    assert torch.is_grad_enabled()
