"""What is chosen for learning without labels where it is not set: method, network, batch, crops and rates.

benchmarks/results/pretrain.md has the measurements.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from vitrail.errors import VitrailError
from vitrail.model.config import ViTConfig
from vitrail.model.encoder_config import EncoderConfig
from vitrail.model.presets import build_network
from vitrail.pretraining.pile import PileData
from vitrail.tasks.registry import EMBED
from vitrail.training.choices.compatibility import check_network, check_sharing, check_start
from vitrail.training.choices.facts import Facts
from vitrail.training.choices.model_choice import PHOTO, SMALL, Choice, choose_model, config_of
from vitrail.training.choices.recipe_choice import choose_optimizer
from vitrail.training.run_context import Run
from vitrail.training.settings import Settings
from vitrail.weights.adapt import adapt, without_head
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.load import load
from vitrail.weights.preprocessing import Preprocessing

AUTO = "simdino"
SMALL_WIDTH = 192  # up to which a network has a small head
HEADLESS = {"classes": 0, "head": "linear", "queries": 0, "head_depth": 0}
MOMENTUM = 0.9  # of simdino's teacher at the start: what does not collapse need not wait for a slow teacher
LARGEST = 224  # pixels a side of a model that is gone on from, unless set: several crops of 518 px would take long
DINO_RATE = 1e-3  # of AdamW in batches of 256
CONTINUED_RATE = 2e-4  # of AdamW in batches of 256, where good weights are to be changed a little
METHOD_WORDS = {
    "dino": "DINO: a student follows the mean of itself over {crops} crops of an image, {outputs} prototypes",
    "simdino": "SimDINO: a student follows the mean of itself over {crops} crops of an image; a coding rate over "
    "{outputs} dimensions keeps images apart",
    "mae": "MAE: {mask:.0%} of the patches are hidden and painted from the rest; for fine-tuning, not for search",
    "features": "the features of {teacher}, [CLS] and patches, of the same crops",
}


def load_encoder(settings: Settings) -> Checkpoint | None:
    """The network to go on from, without its head; None: from scratch."""
    check_start(settings)
    model, train = settings.model, settings.train
    if model.start is None:
        return None
    torch.manual_seed(train.seed)
    extra: dict[str, Any] = {"drop_path": train.drop_path or 0.0, "dropout": train.dropout}
    loaded = load(model.start, channels=model.channels, image_size=model.image_size, **extra)
    if model.image_size is None and max(loaded.config.image_size) > LARGEST:
        down, across = loaded.config.patch_size
        loaded = adapt(loaded, image_size=(LARGEST // down * down, LARGEST // across * across))
    return without_head(loaded, "mean" if loaded.config.pool == "none" else None)


def choose_pretraining(run: Run, pile: PileData, loaded: Checkpoint | None) -> Choice:
    """Settings with all that the network and the time of a step depend on. What is set stays, so a resumed run, whose
    settings are complete, goes through this unchanged."""
    settings = run.settings.where_unset({"data.validation": pile.holdout})
    facts = pile.facts(run.processes.device.type, settings.train.minutes)
    settings = settings.where_unset(method_values(settings))
    if settings.train.batch_size is not None:  # before the rates, which follow from it
        settings = settings.with_values({"train.batch_size": min(settings.train.batch_size, facts.images)})
    if loaded is not None:
        choice = _continued(settings, facts, loaded)
        config = loaded.config
    else:
        choice = _from_scratch(settings, facts)
        config = config_of(choice.settings, HEADLESS)
    check_plain(config)
    settings = choose_crops(choice.settings, config)
    if settings.pretrain.method == "dino" and loaded is None:
        settings = settings.where_unset(dino_rates(settings))
    every_patch = settings.pretrain.method in ("mae", "features")
    settings = choose_optimizer(settings, False, every_patch)
    check_sharing(settings.train, run.processes.world, False)
    check_network(settings, config)
    return Choice(settings, (*choice.reasons, method_reason(settings)))


def dino_rates(settings: Settings) -> dict[str, Any]:
    """AdamW at the paper's rate, twice as high: Muon's first steps moved all images onto one prototype before the
    centre could follow."""
    assert settings.train.batch_size is not None
    return {"train.optimizer": "adamw", "train.lr": DINO_RATE * (min(settings.train.batch_size, 1024) / 256) ** 0.5}


def method_values(settings: Settings) -> dict[str, Any]:
    """The method: what is asked for, features where there is a teacher, else the one that was measured to be best."""
    pretrain = settings.pretrain
    if pretrain.teacher is not None and pretrain.method not in (None, "features"):
        raise VitrailError(f"a teacher's features are learnt instead of --method {pretrain.method}: give one of them")
    if pretrain.teacher is None and pretrain.method == "features":
        raise VitrailError("pretrain.method = 'features' needs a model to learn from: --teacher")
    return {"pretrain.method": "features" if pretrain.teacher is not None else AUTO}


def _from_scratch(settings: Settings, facts: Facts) -> Choice:
    settings = settings.where_unset({"model.resize": "crop"})
    size = settings.model.image_size or min(PHOTO, facts.height, facts.width)
    if settings.model.model is None:
        # the attention of [CLS] shows what a photo is about; of small pictures there is little to show, and training
        # from scratch has the mean of the patches
        settings = settings.where_unset({"model.pool": "mean" if size <= SMALL else "cls"})
    return choose_model(settings.where_unset({"train.batch_size": batch_for_views(facts, size)}), facts)


def _continued(settings: Settings, facts: Facts, loaded: Checkpoint) -> Choice:
    """What the model to go on from has already decided."""
    own = loaded.preprocessing
    batch = batch_for_views(facts, max(own.size))
    chosen = settings.where_unset(
        {
            "model.channels": loaded.config.channels,
            "model.resize": own.resize,
            "model.crop_fraction": own.crop_fraction,
            "train.batch_size": batch,
        }
    )
    assert chosen.train.batch_size is not None
    scale = (min(chosen.train.batch_size, 1024) / 256) ** 0.5
    chosen = chosen.where_unset({"train.lr": CONTINUED_RATE * scale})
    return Choice(chosen, (f"model: goes on from {settings.model.start}",))


def batch_for_views(facts: Facts, size: int) -> int:
    """Images a step. A coding rate and batch norms need many of them; photos must fit into memory."""
    largest = 256 if size <= SMALL else 128 if size <= PHOTO else 32
    while largest > 16 and facts.images < 8 * largest:
        largest //= 2
    return min(largest, max(2, facts.images - facts.images % 2))


def choose_crops(settings: Settings, config: EncoderConfig) -> Settings:
    """How many crops of which size and area, and how wide the head."""
    method, small = settings.pretrain.method, max(config.image_size) <= SMALL
    crops = method in ("dino", "simdino")
    if method == "simdino":
        settings = settings.where_unset({"pretrain.momentum": MOMENTUM})
    return settings.where_unset(
        {
            "augment.flip": "horizontal",
            "pretrain.global_area": (0.3 if small else 0.4) if crops else 0.25,
            "pretrain.local_crops": 6 if crops else 0,
            "pretrain.local_area": 0.3 if small else 0.4,
            "pretrain.local_size": local_side(config),
            "pretrain.hidden": 512 if config.width <= SMALL_WIDTH else 2048,
            "pretrain.outputs": outputs_for(method, config.width),
        }
    )


def outputs_for(method: str | None, width: int) -> int:
    """Prototypes, or dimensions of the coding rate; fewer for small networks, which see few images."""
    if method == "dino":
        return 1024 if width <= SMALL_WIDTH else 8192
    return 128 if width <= SMALL_WIDTH else 256


def local_side(config: EncoderConfig) -> int:
    """About half of the model's size, in whole patches."""
    patch = max(config.patch_size)
    return max(patch, min(config.image_size) // 2 // patch * patch)


def complete_recipe(settings: Settings, facts: Facts, epochs: float) -> Choice:
    """What remains once the length of the run is known. Views differ as it is: nothing is mixed, nothing erased."""
    chosen = settings.where_unset(
        {"train.drop_path": 0.0, "train.mixup": 0.0, "train.cutmix": 0.0, "augment.erase": 0.0}
    )
    return Choice(chosen, (f"each image is seen {epochs:.3g} times, {views_of(chosen)} at once",))


def views_of(settings: Settings) -> str:
    """How many crops are made of an image, in words."""
    local = settings.pretrain.local_crops or 0
    count = 2 + local if settings.pretrain.method in ("dino", "simdino") else 1
    return "1 crop" if count == 1 else f"{count} crops"


def method_reason(settings: Settings) -> str:
    """The line that says what is learnt, and how."""
    pretrain = settings.pretrain
    assert pretrain.method is not None
    words = METHOD_WORDS[pretrain.method].format(
        crops=2 + (pretrain.local_crops or 0),
        outputs=pretrain.outputs,
        mask=pretrain.mask,
        teacher=pretrain.teacher,
    )
    return f"method: {words}"


def check_plain(config: EncoderConfig) -> None:
    """Crops of several sizes and hidden patches are for plain ViTs."""
    if not isinstance(config, ViTConfig):
        raise VitrailError(f"vitrail pretrain is for plain ViTs, and not for {config.in_words()}")


def build_encoder(settings: Settings, loaded: Checkpoint | None) -> Checkpoint:
    """The network with its preprocessing, before any image was seen; a loaded one gets only the latter."""
    model = settings.model
    if loaded is not None:
        changes = {"resize": model.resize, "crop_fraction": model.crop_fraction or 1.0}
        return replace(loaded, preprocessing=loaded.preprocessing.replace(**changes))
    torch.manual_seed(settings.train.seed)
    config = config_of(settings, HEADLESS)
    preprocessing = Preprocessing(size=config.image_size, resize=model.resize or "crop", crop_fraction=1.0)
    return Checkpoint(build_network(config), preprocessing.for_channels(config.channels), EMBED)
