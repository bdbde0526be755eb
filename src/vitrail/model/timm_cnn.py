"""A CNN of timm: one of its feature maps as the tokens of stem="features", or whole, with its classifier, as a teacher.

`ViTConfig(stem="features", cnn="timm:resnet18", patch_size=16, feature_channels=256)` says all of it: timm's
architecture, and by the patch size which map, the one with that stride. So a model file can build it again. timm is an
extra of the package, imported when such a model is built.
"""

from __future__ import annotations

import difflib
import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.model.config import TIMM_CNN, ViTConfig


class FeatureMap(NamedTuple):
    """One of the maps that a CNN gives out."""

    place: int  # among its maps
    channels: int


class TimmCNN(nn.Module):
    """(B, C, H, W) -> (B, F, H / P, W / P): timm's network up to one feature map."""

    def __init__(self, features: nn.Module) -> None:
        super().__init__()
        self.features = features

    def forward(self, images: Tensor) -> Tensor:
        """The map of the stride that it was built for."""
        (features,) = self.features(images)
        return features


class TimmClassifier(nn.Module):
    """(B, C, H, W) -> (B, classes): a whole network of timm, with its classifier."""

    def __init__(self, network: nn.Module, architecture: str) -> None:
        super().__init__()
        self.network, self.architecture = network, architecture

    def forward(self, images: Tensor) -> Tensor:
        """The logits."""
        return self.network(images)

    def feature_map(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Its last feature map, (B, F, h, w), and the vector that its classifier reads, (B, D)."""
        network: Any = self.network
        features = network.forward_features(images)
        if features.dim() != 4 or features.shape[1] != network.feature_info[-1]["num_chs"]:
            raise VitrailError(
                f"timm's {self.architecture} gives no feature map with its channels first: of a ViT or a Swin give the "
                "hub id, such as timm/deit_tiny_patch16_224.fb_in1k"
            )
        return features, network.forward_head(features, pre_logits=True)


def build_timm_cnn(config: ViTConfig, device: str = "cpu") -> TimmCNN:
    """The CNN that a config names, with fresh weights.

    The device is named, so that what is no parameter has its numbers in a model built on the meta device."""
    assert config.cnn is not None
    with torch.device(device):
        return timm_cnn(config.cnn.removeprefix(TIMM_CNN), config.patch_size[0], config.channels)


def timm_cnn(architecture: str, stride: int, channels: int, **options: Any) -> TimmCNN:
    """timm's architecture up to the map of this stride. options: for timm.create_model, such as pretrained weights."""
    index = feature_map(architecture, stride).place
    chosen = {"features_only": True, "out_indices": (index,), "in_chans": channels}
    return TimmCNN(timm().create_model(architecture, **chosen, **options))


def timm_classifier(architecture: str, classes: int, **options: Any) -> TimmClassifier:
    """timm's architecture as a whole. options: for timm.create_model, such as pretrained weights."""
    return TimmClassifier(timm().create_model(architecture, num_classes=classes, **options), architecture)


def feature_map(architecture: str, stride: int) -> FeatureMap:
    """The last map of an architecture with this stride."""
    maps = feature_maps(architecture)
    if stride not in maps:
        raise VitrailError(
            f"timm's {architecture} has feature maps of stride {', '.join(map(str, maps))}, none of {stride}: set "
            "model.patch_size to one of them"
        )
    return maps[stride]


@functools.cache
def feature_maps(architecture: str) -> dict[int, FeatureMap]:
    """The maps of an architecture by their stride."""
    check_architecture(architecture)
    try:
        with torch.device("meta"):
            info = timm().create_model(architecture, features_only=True).feature_info
    except (RuntimeError, AttributeError, TypeError, ValueError, KeyError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise VitrailError(f"timm's {architecture} gives no feature maps: {reason}") from None
    return {
        stride: FeatureMap(info.out_indices[place], channels)
        for place, (stride, channels) in enumerate(zip(info.reduction(), info.channels(), strict=True))
    }


def parameters_of(config: ViTConfig) -> int:
    """How many parameters the CNN of a config has, counted without building its weights."""
    return sum(parameter.numel() for parameter in _without_weights(config).parameters())


def multiply_adds_of(config: ViTConfig) -> int:
    """Of one image through the CNN at the config's size, by torch's counter, without a weight."""
    from torch.utils.flop_counter import FlopCounterMode

    images = torch.zeros(1, config.channels, *config.image_size, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        _without_weights(config)(images)
    return counter.get_total_flops() // 2


def _without_weights(config: ViTConfig) -> nn.Module:
    return build_timm_cnn(config, "meta").eval()


def check_architecture(architecture: str) -> None:
    """Refuse what timm does not know, with the nearest names. A name never leads to another place than timm itself."""
    if ":" in architecture or not timm().is_model(architecture):
        close = difflib.get_close_matches(architecture, timm().list_models(), n=3)
        hint = f": did you mean {' or '.join(close)}?" if close else ""
        raise VitrailError(f"timm has no architecture {architecture!r}{hint}")


def timm() -> Any:
    """The package."""
    try:
        import timm as package
    except ImportError:
        raise VitrailError("a CNN of timm needs timm: install it with pip install 'vitrail[timm]'") from None
    except RuntimeError as error:  # of torchvision, which timm imports, where it was built for another torch
        reason = (str(error).splitlines() or [""])[0]
        raise VitrailError(f"timm cannot be imported ({reason}): install the torchvision of your torch") from None
    return package
