"""Embeddings against the network's own tokens, and against transformers on the same weights."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import lively_vit
from tests.image_files import photo
from vitrail.errors import VitrailError
from vitrail.inference.engine import Engine
from vitrail.model.presets import build_network, preset
from vitrail.search.embeddings import WHAT, Embedder, embed_all
from vitrail.weights.adapt import without_head
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.load import load
from vitrail.weights.preprocessing import Preprocessing

SOURCES = [np.asarray(photo(seed)) for seed in range(5)]


def checkpoint(name: str = "mu/16", seed: int = 0, **changes: object) -> Checkpoint:
    config = preset(name, classes=3, image_size=32, **changes)
    return Checkpoint(lively_vit(config, seed), Preprocessing(size=(32, 32)), "classify", ["a", "b", "c"])


def tokens(checkpoint: Checkpoint) -> tuple[torch.Tensor, torch.Tensor]:
    """[CLS] (B, D) and patches (B, N, D) as `model.features` has them."""
    engine = Engine.open(checkpoint, precision="fp32")
    images = engine.transform([engine.read(source).pixels for source in SOURCES])
    with torch.inference_mode():
        features = checkpoint.model.features(images)
    assert features.cls is not None
    return features.cls, features.patches


def embedded(model: object, **options: object) -> np.ndarray:
    embeddings = Embedder(model, precision="fp32", **options).embed(SOURCES)  # type: ignore[arg-type]
    return np.stack([embedding.vector for embedding in embeddings])


@pytest.mark.parametrize("changes", [{}, {"pool": "mean"}, {"distillation": True}, {"registers": 2}])
def test_what_is_read_off_the_tokens(changes: dict[str, object]) -> None:
    model = checkpoint(**changes)
    cls, patches = tokens(model)
    expected = {
        "cls": cls,
        "mean": patches.mean(1),
        "both": torch.cat([cls, patches.mean(1)], 1),
        "patches": patches,
        "pooled": patches.mean(1) if changes.get("pool") == "mean" else cls,
    }
    for what, values in expected.items():
        embedder = Embedder(model, what=what, precision="fp32")
        vectors = np.stack([one.vector for one in embedder.embed(SOURCES)])
        np.testing.assert_allclose(vectors, values.numpy(), atol=1e-5)
        assert embedder.width == vectors.shape[-1]


def test_the_pooled_vector_is_what_the_head_reads() -> None:
    """Of attention pooling, of a norm after pooling, and of a head with a hidden layer."""
    for changes in ({"pool": "attention"}, {"pool": "mean", "final_norm": "pooled"}, {"head": "mlp"}):
        model = checkpoint(**changes)
        vectors = torch.from_numpy(embedded(model))
        with torch.inference_mode():
            answers = model.model.head(vectors)
        engine = Engine.open(model, precision="fp32")
        expected = torch.stack(engine.outputs([engine.read(source) for source in SOURCES]))
        torch.testing.assert_close(answers, expected, atol=1e-5, rtol=1e-5)


def test_both_where_the_final_norm_is_one_over_the_pooled_vector() -> None:
    """A config has one such norm, of one width: torch norms the two by itself."""
    model = checkpoint(pool="mean", final_norm="pooled")
    both = embedded(model, what="both")
    np.testing.assert_allclose(both[:, :32], embedded(model, what="cls"), atol=1e-5)
    np.testing.assert_allclose(both[:, 32:], embedded(model, what="mean"), atol=1e-5)


def test_swin_has_patches_and_a_mean_but_no_cls() -> None:
    config = preset("swin-mu", classes=2, image_size=32)
    torch.manual_seed(0)
    model = Checkpoint(build_network(config).eval(), Preprocessing(size=(32, 32)), "classify", ["a", "b"])
    patches = embedded(model, what="patches")
    np.testing.assert_allclose(patches.mean(1), embedded(model), atol=1e-5)
    np.testing.assert_allclose(patches.mean(1), embedded(model, what="mean"), atol=1e-5)
    with pytest.raises(VitrailError, match=r"no \[CLS\] token for 'cls': choose pooled, mean or patches"):
        Embedder(model, what="cls")
    with pytest.raises(VitrailError, match="from the engine torch alone"):
        Embedder(model, what="patches", engine="openvino")


@pytest.mark.parametrize("head", ["mask_decoder", "box_decoder", "mask_queries", "box_tokens"])
def test_a_dense_model_gives_the_mean_of_its_patches(head: str) -> None:
    config = preset("mu/16", classes=3, image_size=32, pool="none", head=head)
    task = "segment" if head.startswith("mask") else "detect"
    model = Checkpoint(lively_vit(config), Preprocessing(size=(32, 32), resize="pad"), task, ["a", "b", "c"])
    vectors = embedded(model)
    assert vectors.shape == (5, config.width) and np.isfinite(vectors).all()
    np.testing.assert_allclose(vectors, embedded(model, what="patches").mean(1), atol=1e-5)


@pytest.mark.parametrize(("engine", "what"), [("openvino", "both"), ("openvino", "patches"), ("onnxruntime", "pooled")])
def test_other_engines_give_the_same_vectors(engine: str, what: str) -> None:
    if importlib.util.find_spec(engine) is None:  # importing it here would let its telemetry loose
        pytest.skip(f"{engine} is not installed")
    model = checkpoint()
    np.testing.assert_allclose(embedded(model, what=what, engine=engine), embedded(model, what=what), atol=1e-3)


def test_transformers_pooler_input() -> None:
    """The [CLS] token and the patches of the same weights in transformers."""
    transformers = pytest.importorskip("transformers")
    config = transformers.DeiTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, image_size=32, patch_size=16
    )
    torch.manual_seed(0)
    theirs = transformers.DeiTModel(config, add_pooling_layer=False).eval()
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = load(folder)
    ours.preprocessing = ours.preprocessing.replace(size=(32, 32))
    engine = Engine.open(ours, precision="fp32")
    images = engine.transform([engine.read(source).pixels for source in SOURCES])
    with torch.inference_mode():
        expected = theirs(images).last_hidden_state  # [CLS], distillation, patches
    np.testing.assert_allclose(embedded(ours, what="cls"), expected[:, 0], atol=1e-4)
    np.testing.assert_allclose(embedded(ours, what="mean"), expected[:, 2:].mean(1), atol=1e-4)


def test_the_fingerprint_tells_apart_what_must_not_mix(save: Callable[..., Path]) -> None:
    base = checkpoint()
    other_head = Checkpoint(base.model, base.preprocessing, "classify", ["x", "y", "z"])
    darker = Checkpoint(base.model, base.preprocessing.replace(mean=(0.1, 0.1, 0.1)), "classify", base.labels)
    marks = {
        what: Embedder(base, what=what, normalise=normalise).fingerprint
        for what, normalise in itertools.product(("pooled", *WHAT), (False,))
    }
    assert len(set(marks.values())) == 5
    assert Embedder(base, normalise=True).fingerprint != marks["pooled"]
    assert Embedder(darker).fingerprint != marks["pooled"]
    assert Embedder(checkpoint(seed=1)).fingerprint != marks["pooled"]
    assert Embedder(other_head).fingerprint == marks["pooled"]  # a head is no part of it
    file = save()
    assert Embedder(file).fingerprint == Embedder(str(file)).fingerprint == Embedder(load(file)).fingerprint


def test_in_order_with_errors_in_their_places(embedder: Embedder, pile: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.png"
    cut.write_bytes((pile / "even" / "0.png").read_bytes()[:100])
    sources = [pile / "odd" / "1.png", cut, pile / "even" / "2.png", "nowhere.jpg"]
    embeddings = list(embedder.embed(sources))
    assert [one.source for one in embeddings] == sources
    assert [one.error.kind if one.error else None for one in embeddings] == [None, "truncated", None, "missing"]
    vectors, places, errors = embed_all(embedder, sources)
    assert vectors.shape == (2, embedder.width) and places == [0, 2] and len(errors) == 2
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert embed_all(embedder, [])[0].shape == (0, embedder.width)


def test_an_engine_is_taken_as_it_is() -> None:
    engine = Engine.open(checkpoint(), precision="fp32", batch_size=2)
    embedder = Embedder(engine)
    assert (embedder.engine.batch_size, embedder.engine.backend.precision) == (2, "float32")
    np.testing.assert_array_equal(
        np.stack([one.vector for one in embedder.embed(SOURCES)]), embedded(checkpoint(), batch_size=2)
    )


def test_a_network_without_its_head_shares_its_weights() -> None:
    model = checkpoint()
    headless = without_head(model)
    assert headless.config.classes == 0 and headless.task == "embed" and headless.labels is None
    own = dict(model.model.named_parameters())
    for name, parameter in headless.model.named_parameters():
        assert parameter.data_ptr() == own[name].data_ptr()
    assert model.config.classes == 3 and model.model.head is not None


def test_refusals() -> None:
    with pytest.raises(VitrailError, match="what is 'all'; choose one of pooled, cls, mean, both, patches"):
        Embedder(checkpoint(), what="all")
    with pytest.raises(VitrailError, match="untrained weights"):
        Embedder("mu/16")
    with pytest.raises(VitrailError, match="merged tokens have no place"):
        Embedder(checkpoint(), what="patches", merge_tokens=1)
