"""A Vision Transformer you can train, measure and see through. `import vitrail` is light: torch comes when used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.commands.bench import bench as bench
    from vitrail.commands.check import check as check
    from vitrail.commands.convert import convert as convert
    from vitrail.commands.evaluate import evaluate as evaluate
    from vitrail.commands.explain import explain as explain
    from vitrail.commands.export import export as export
    from vitrail.commands.make_data import make_data as make_data
    from vitrail.commands.many_images.manifest import manifest as manifest
    from vitrail.commands.many_images.merge import merge as merge
    from vitrail.commands.models import models as models
    from vitrail.commands.serve import serve as serve
    from vitrail.commands.train import train as train
    from vitrail.commands.without_labels.embed import embed as embed
    from vitrail.commands.without_labels.explore import explore as explore
    from vitrail.commands.without_labels.index import index as index
    from vitrail.commands.without_labels.knn import knn as knn
    from vitrail.commands.without_labels.pretrain import pretrain as pretrain
    from vitrail.commands.without_labels.suggest import suggest as suggest
    from vitrail.errors import VitrailError as VitrailError
    from vitrail.explanation.explainer import Explainer as Explainer
    from vitrail.images.unreadable import UnreadableImage as UnreadableImage
    from vitrail.inference.loaded_model import Model as Model
    from vitrail.inference.loaded_model import load as load
    from vitrail.inference.predictor import Predictor as Predictor
    from vitrail.model.config import ViTConfig as ViTConfig
    from vitrail.model.lecture import vit_cls_forward as vit_cls_forward
    from vitrail.model.lecture import vit_mean_forward as vit_mean_forward
    from vitrail.model.precision import autocast as autocast
    from vitrail.model.presets import preset as preset
    from vitrail.model.presets import preset_names as preset_names
    from vitrail.model.swin.swin import Swin as Swin
    from vitrail.model.swin.swin_config import SwinConfig as SwinConfig
    from vitrail.model.vit import ViT as ViT
    from vitrail.search.embeddings import Embedder as Embedder
    from vitrail.search.index.image_index import ImageIndex as ImageIndex
    from vitrail.search.vector_file import read_vectors as read_vectors
    from vitrail.training.settings import Settings as Settings
    from vitrail.weights.checkpoint import Checkpoint as Checkpoint

__version__ = "0.1.0"

_HOMES = {
    "Checkpoint": "vitrail.weights.checkpoint",
    "Embedder": "vitrail.search.embeddings",
    "Explainer": "vitrail.explanation.explainer",
    "ImageIndex": "vitrail.search.index.image_index",
    "Model": "vitrail.inference.loaded_model",
    "Predictor": "vitrail.inference.predictor",
    "Settings": "vitrail.training.settings",
    "Swin": "vitrail.model.swin.swin",
    "SwinConfig": "vitrail.model.swin.swin_config",
    "UnreadableImage": "vitrail.images.unreadable",
    "ViT": "vitrail.model.vit",
    "ViTConfig": "vitrail.model.config",
    "VitrailError": "vitrail.errors",
    "autocast": "vitrail.model.precision",
    "bench": "vitrail.commands.bench",
    "check": "vitrail.commands.check",
    "convert": "vitrail.commands.convert",
    "embed": "vitrail.commands.without_labels.embed",
    "evaluate": "vitrail.commands.evaluate",
    "explain": "vitrail.commands.explain",
    "explore": "vitrail.commands.without_labels.explore",
    "export": "vitrail.commands.export",
    "index": "vitrail.commands.without_labels.index",
    "knn": "vitrail.commands.without_labels.knn",
    "load": "vitrail.inference.loaded_model",
    "make_data": "vitrail.commands.make_data",
    "manifest": "vitrail.commands.many_images.manifest",
    "merge": "vitrail.commands.many_images.merge",
    "models": "vitrail.commands.models",
    "preset": "vitrail.model.presets",
    "preset_names": "vitrail.model.presets",
    "pretrain": "vitrail.commands.without_labels.pretrain",
    "read_vectors": "vitrail.search.vector_file",
    "serve": "vitrail.commands.serve",
    "suggest": "vitrail.commands.without_labels.suggest",
    "train": "vitrail.commands.train",
    "vit_cls_forward": "vitrail.model.lecture",
    "vit_mean_forward": "vitrail.model.lecture",
}

__all__ = [  # the names of _HOMES, written out for tools that read this without running it
    "Checkpoint",
    "Embedder",
    "Explainer",
    "ImageIndex",
    "Model",
    "Predictor",
    "Settings",
    "Swin",
    "SwinConfig",
    "UnreadableImage",
    "ViT",
    "ViTConfig",
    "VitrailError",
    "__version__",
    "autocast",
    "bench",
    "check",
    "convert",
    "embed",
    "evaluate",
    "explain",
    "explore",
    "export",
    "index",
    "knn",
    "load",
    "make_data",
    "manifest",
    "merge",
    "models",
    "preset",
    "preset_names",
    "pretrain",
    "read_vectors",
    "serve",
    "suggest",
    "train",
    "vit_cls_forward",
    "vit_mean_forward",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
