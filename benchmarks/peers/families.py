"""Models of timm and transformers with random weights, one entry a family that we read, at three sizes.

small: seconds, for the tests. wide: the published width, two blocks. published: the published model, all of its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

Size = tuple[int, int]
Outputs = tuple[Tensor, list[Tensor]]  # what a model answers, and what each of its blocks gives out


class Built(NamedTuple):
    """Another library's model, ready to be compared."""

    path: Path  # what `vitrail.load` is given
    run: Callable[[Tensor], Outputs]
    sizes: Sequence[Size]  # native, another, and one that is no square
    settings: Mapping[str, Any] = {}  # what the file does not tell


@dataclass(frozen=True)
class Peer:
    """One model of another library. `build` takes small, wide or published, and a folder to save to."""

    family: str
    library: str
    name: str
    build: Callable[[str, Path], Built]

    def __str__(self) -> str:
        return f"{self.library} {self.name}"


def randomise_all(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random norms, biases, tokens and scales too, at sizes that keep activations near 1, so that nothing hides."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1 and name.endswith("bias"):
                parameter.copy_(0.2 * noise)
            elif parameter.dim() == 1:  # norms and layer scales
                parameter.copy_(1 + 0.2 * noise)
            elif name.endswith("weight"):
                parameter.copy_(noise / math.sqrt(parameter[0].numel()))
            else:  # tokens and positions
                parameter.copy_(0.5 * noise)
    return model.eval()


def sizes_of(side: int, patch: int) -> list[Size]:
    """The native size, a larger one, and one that is no square."""
    grid = side // patch
    return [(side, side), (patch * (grid + 2),) * 2, (patch * (grid - 1), patch * (grid + 3))]


# ---- timm


@dataclass(frozen=True)
class Timm:
    """An architecture of timm: its patch and native image side, and what is other than usual."""

    architecture: str
    patch: int
    side: int
    arguments: Mapping[str, Any] = field(default_factory=dict)
    head_bias: bool = True

    def build(self, size: str, folder: Path) -> Built:
        """The model with random weights, saved as timm saves its own for the hub."""
        import timm

        small = {"img_size": 4 * self.patch, "patch_size": self.patch}
        shrunk = {"small": {**small, "embed_dim": 48, "depth": 3, "num_heads": 3}, "wide": {**small, "depth": 2}}
        arguments = {**shrunk.get(size, {"img_size": self.side}), **self.arguments}
        one_size = self.architecture.startswith("beit")  # which timm builds for one image size
        model = timm.create_model(self.architecture, **arguments, **({} if one_size else {"dynamic_img_size": True}))
        randomise_all(model)
        if not self.head_bias:
            nn.init.zeros_(model.head.bias)
        timm.models.save_for_hf(model, str(folder), model_args=arguments, safe_serialization=True)
        sizes = sizes_of(self._side(size), self.patch)[: 1 if one_size else None]
        return Built(folder, lambda images: outputs_of(model, model.blocks, images), sizes)

    def _side(self, size: str) -> int:
        return self.side if size == "published" else 4 * self.patch


def outputs_of(model: nn.Module, blocks: Sequence[nn.Module], images: Tensor) -> Outputs:
    """What a model answers, and what each of its blocks gives out."""
    hidden: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda _m, _i, out: hidden.append(out[0] if isinstance(out, tuple) else out))
        for block in blocks
    ]
    with torch.no_grad():
        answer = model(images)
    for hook in hooks:
        hook.remove()
    return answer, hidden


def timm_peer(family: str, architecture: str, patch: int, side: int, **arguments: Any) -> Peer:
    """An entry for one of timm's architectures, with a head of ten classes unless its arguments say otherwise."""
    recipe = Timm(architecture, patch, side, {"num_classes": 10, **arguments})
    return Peer(family, "timm", architecture, recipe.build)


# ---- transformers


@dataclass(frozen=True)
class Transformers:
    """A class of transformers: the arguments of its published config, and how its answer is read."""

    model: str
    arguments: Mapping[str, Any]
    answer: Callable[[Any], Tensor]
    options: Mapping[str, Any] = field(default_factory=dict)  # of its forward pass
    small: Mapping[str, Any] = field(default_factory=dict)  # arguments of the small one

    def config(self, size: str) -> dict[str, Any]:
        """The arguments of its config at one of the three sizes."""
        patch = self.arguments["patch_size"]
        shrunk = {
            "wide": {"num_hidden_layers": 2, "image_size": 4 * patch},
            "small": {
                "hidden_size": 48,
                "num_hidden_layers": 3,
                "num_attention_heads": 3,
                "intermediate_size": 96,
                "image_size": 4 * patch,
                **self.small,
            },
        }
        return {**self.arguments, **shrunk.get(size, {})}

    def make(self, size: str) -> nn.Module:
        """The model with random weights."""
        import transformers

        model_class = getattr(transformers, self.model)
        return randomise_all(model_class(model_class.config_class(**self.config(size))))

    def run(self, model: nn.Module, images: Tensor) -> Outputs:
        """The answer, and every block's output."""
        with torch.no_grad():
            output = model(images, output_hidden_states=True, **self.options)
        return self.answer(output), list(output.hidden_states[1:])

    def build(self, size: str, folder: Path) -> Built:
        """The model saved as its users save it."""
        model: Any = self.make(size)
        model.save_pretrained(folder)
        config = self.config(size)
        return Built(
            folder, lambda images: self.run(model, images), sizes_of(config["image_size"], config["patch_size"])
        )


def pooled(output: Any) -> Tensor:
    """The pooled vector of a model without a head."""
    return output.pooler_output


def logits(output: Any) -> Tensor:
    """What a head answers."""
    return output.logits


def embedded(output: Any) -> Tensor:
    """CLIP's projected vector."""
    return output.image_embeds


SIZE_B = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
SIZE_S = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536}
SO400M = {"hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16, "intermediate_size": 4304}
ANY_SIZE = {"interpolate_pos_encoding": True}

DINOV3 = {**SIZE_S, "patch_size": 16, "image_size": 224, "num_register_tokens": 4, "layerscale_value": 1.0}
DINOV3_PLUS = {**DINOV3, "use_gated_mlp": True, "hidden_act": "silu"}
VIT = {**SIZE_B, "patch_size": 16, "image_size": 224, "num_labels": 10}
DINOV2 = {**SIZE_S, "patch_size": 14, "image_size": 518, "num_labels": 10}
CLIP = {"patch_size": 16, "image_size": 224, "projection_dim": 512}
TIPS = {**SIZE_B, "patch_size": 14, "image_size": 448}
TIPS_GATED = {**TIPS, "use_swiglu_ffn": True}
IJEPA = {**SIZE_B, "patch_size": 16, "image_size": 224, "layer_norm_eps": 1e-6, "num_labels": 10}
BEIT = {**SIZE_B, "patch_size": 16, "image_size": 224, "use_relative_position_bias": True, "num_labels": 10}
BEIT_SHARED = {
    **BEIT,
    "use_relative_position_bias": False,
    "use_shared_relative_position_bias": True,
    "use_mean_pooling": False,
}
SIGLIP = {"patch_size": 16, "image_size": 224, "hidden_act": "gelu_pytorch_tanh"}


def dinov3_of_meta(arguments: Mapping[str, Any]) -> Callable[[str, Path], Built]:
    """DINOv3 as Meta publishes it: the weights of transformers' model under Meta's names, periods in bfloat16."""
    recipe = Transformers("DINOv3ViTModel", arguments, pooled)

    def build(size: str, folder: Path) -> Built:
        model: Any = recipe.make(size)
        config = model.config
        periods = 100.0 ** (torch.arange(len(model.rope_embeddings.inv_freq)) / len(model.rope_embeddings.inv_freq))
        periods = periods.to(torch.bfloat16)
        torch.save(metas_dinov3(model.state_dict(), periods), folder / "dinov3.pth")
        with torch.no_grad():
            model.rope_embeddings.inv_freq.copy_(1 / periods.float())
        settings = {"heads": config.num_attention_heads}
        sizes = sizes_of(config.image_size, config.patch_size)
        return Built(folder / "dinov3.pth", lambda images: recipe.run(model, images), sizes, settings)

    return build


def renamed_timm(architecture: str, patch: int, side: int, file: str, names: Callable[..., dict[str, Tensor]]) -> Any:
    """A model of timm saved under the names that its publisher's own file has."""

    def build(size: str, folder: Path) -> Built:
        import timm

        grid = side // patch if size == "published" else 4  # its own file does not say where patches were counted
        counted = {"ref_feat_shape": (grid, grid)} if "_pe_" in architecture else {}
        recipe = Timm(architecture, patch, side, {"num_classes": 10, **counted}, head_bias="_pe_" not in architecture)
        built = recipe.build(size, folder / "timm")
        model = timm.create_model(f"local-dir:{folder / 'timm'}", pretrained=True)
        torch.save(names(model.state_dict()), folder / file)
        return built._replace(path=folder / file, settings={"heads": model.blocks[0].attn.num_heads})

    return build


PERCEPTION_NAMES = (  # timm's, and Meta's for the same
    ("attn_pool.proj.", "attn_pool.attn.out_proj."),
    ("attn_pool.norm.", "attn_pool.layernorm."),
    ("attn_pool.latent", "attn_pool.probe"),
    ("patch_embed.proj.", "conv1."),
    ("norm_pre.", "ln_pre."),
    (".norm1.", ".ln_1."),
    (".norm2.", ".ln_2."),
    (".attn.qkv.", ".attn.in_proj_"),
    (".attn.proj.", ".attn.out_proj."),
    (".fc1.", ".c_fc."),
    (".fc2.", ".c_proj."),
    ("blocks.", "transformer.resblocks."),
)


def metas_perception(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Meta's file of a Perception Encoder: an image tower, and something of a text tower."""
    theirs = {"text_projection": torch.ones(3, 3), "transformer.resblocks.0.ln_1.weight": torch.ones(3)}
    for name, tensor in state.items():
        if name.startswith(("attn_pool.q.", "attn_pool.kv.", "head.")):
            continue
        for of_timm, of_meta in PERCEPTION_NAMES:
            name = name.replace(of_timm, of_meta)
        whole = {"cls_token": ("class_embedding", tensor.flatten()), "pos_embed": ("positional_embedding", tensor[0])}
        name, tensor = whole.get(
            name, (name.replace("norm.", "ln_post.") if name.startswith("norm.") else name, tensor)
        )
        theirs[f"visual.{name}"] = tensor.contiguous()
    for end in ("weight", "bias"):
        both = [state[f"attn_pool.q.{end}"], state[f"attn_pool.kv.{end}"]]
        theirs[f"visual.attn_pool.attn.in_proj_{end}"] = torch.cat(both)
    theirs["visual.proj"] = state["head.weight"].T.contiguous()
    return theirs


EVA_NAMES = (
    ("mlp.fc1_g.", "mlp.w1."),
    ("mlp.fc1_x.", "mlp.w2."),
    ("mlp.fc2.", "mlp.w3."),
    ("mlp.norm.", "mlp.ffn_ln."),
    ("attn.norm.", "attn.inner_attn_ln."),
)


def evas_own(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """EVA-02's own file: its MLP's names, biases beside the maps, and the computed rotary positions."""
    theirs = {"rope.freqs_cos": torch.ones(4, 4), "rope.freqs_sin": torch.ones(4, 4)}
    for name, tensor in state.items():
        for of_timm, of_eva in (*EVA_NAMES, ("q_proj.bias", "q_bias"), ("v_proj.bias", "v_bias")):
            name = name.replace(of_timm, of_eva)
        theirs[name] = tensor
    return {"model": theirs}


def evas_clip(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """EVA-02's own CLIP: the image tower beside a text tower, without a name around them."""
    tower = {f"visual.{name}": tensor for name, tensor in evas_own(state)["model"].items()}
    return {**tower, "logit_scale": torch.ones(()), "text.positional_embedding": torch.ones(4, 8)}


def google_file(size: str, folder: Path) -> Built:
    """A ViT as an .npz of Google's; another image size goes by Google's own rule, which timm has not."""
    import timm

    from benchmarks.peers.google_arrays import arrays_of

    built = Timm("vit_base_patch16_224", 16, 224, {"num_classes": 10, "act_layer": "gelu_tanh"}).build(size, folder)
    model = timm.create_model(f"local-dir:{folder}", pretrained=True)
    np.savez(folder / "vit.npz", **arrays_of(model))
    return built._replace(path=folder / "vit.npz", sizes=built.sizes[:1])


def torchvision_file(size: str, folder: Path) -> Built:
    """torchvision's vit_b_16, which takes images of one size."""
    from torchvision.models import VisionTransformer

    width, heads, depth, side = {"small": (48, 3, 3, 64), "wide": (768, 12, 2, 64)}.get(size, (768, 12, 12, 224))
    model = randomise_all(VisionTransformer(side, 16, depth, heads, width, 4 * width, num_classes=10))
    torch.save(model.state_dict(), folder / "vit_b_16.pth")
    blocks = list(model.encoder.layers)
    settings = {"heads": heads}
    path = folder / "vit_b_16.pth"
    return Built(path, lambda images: outputs_of(model, blocks, images), [(side, side)], settings)


def dino_of_meta(size: str, folder: Path) -> Built:
    """DINO's .pth has timm's names; another image size goes by Meta's own rule, which timm has not."""
    built = Timm("vit_small_patch16_224", 16, 224, {"num_classes": 0}).build(size, folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "dino_deitsmall16_pretrain.pth")
    settings = {"heads": 3 if size == "small" else 6}
    return built._replace(path=folder / "dino_deitsmall16_pretrain.pth", sizes=built.sizes[:1], settings=settings)


META_NAMES = (  # the beginning or end of a name in transformers' DINOv3, and Meta's
    ("embeddings.patch_embeddings.", "patch_embed.proj."),
    ("embeddings.register_tokens", "storage_tokens"),
    ("embeddings.", ""),
    ("model.layer.", "blocks."),
    ("layer_scale1.lambda1", "ls1.gamma"),
    ("layer_scale2.lambda1", "ls2.gamma"),
    ("attention.o_proj", "attn.proj"),
)


def metas_dinov3(state: Mapping[str, Tensor], periods: Tensor) -> dict[str, Tensor]:
    """Meta's file: the keys have a bias that a mask takes out, and there is what only its training used."""
    gated = any("gate_proj" in name for name in state)
    mlp = {"gate_proj": "w1", "up_proj": "w2", "down_proj": "w3"} if gated else {"up_proj": "fc1", "down_proj": "fc2"}
    theirs: dict[str, Tensor] = {"rope_embed.periods": periods}
    for name, tensor in state.items():
        for before, after in (*META_NAMES, *mlp.items()):
            name = name.replace(before, after)
        if ".attention." not in name:
            theirs[name] = tensor
    for block in {name.split(".attention.")[0] for name in state if ".attention." in name}:
        q, k, v = (state[f"{block}.attention.{letter}_proj.weight"] for letter in "qkv")
        q_bias, v_bias = (state[f"{block}.attention.{letter}_proj.bias"] for letter in "qv")
        whole = block.replace("model.layer.", "blocks.") + ".attn.qkv"
        theirs[f"{whole}.weight"] = torch.cat([q, k, v])
        theirs[f"{whole}.bias"] = torch.cat([q_bias, torch.full_like(q_bias, 0.5), v_bias])
        theirs[f"{whole}.bias_mask"] = torch.cat(
            [torch.ones_like(q_bias), torch.zeros_like(q_bias), torch.ones_like(v_bias)]
        )
    for end in ("weight", "bias"):
        theirs[f"local_cls_norm.{end}"] = state[f"norm.{end}"].clone()
    return theirs


def peer(family: str, model: str, arguments: Mapping[str, Any], answer: Callable[[Any], Tensor], **more: Any) -> Peer:
    """An entry for one of transformers' classes."""
    return Peer(family, "transformers", model, Transformers(model, arguments, answer, **more).build)


EVA_FILE = renamed_timm("eva02_base_patch14_224", 14, 224, "eva02.pt", evas_own)
EVA_CLIP_FILE = renamed_timm("eva02_base_patch16_clip_224", 16, 224, "EVA02_CLIP.pt", evas_clip)
PE_FILE = renamed_timm("vit_pe_core_base_patch16_224", 16, 224, "PE-Core.pt", metas_perception)

PEERS: tuple[Peer, ...] = (
    timm_peer("ViT", "vit_base_patch16_224", 16, 224),
    peer("ViT", "ViTForImageClassification", {**VIT, "layer_norm_eps": 1e-12}, logits, options=ANY_SIZE),
    Peer("ViT", "torchvision", "vit_b_16", torchvision_file),
    Peer("ViT", "Google", ".npz, vit_base_patch16_224", google_file),
    timm_peer("DeiT", "deit_base_distilled_patch16_224", 16, 224),
    peer("DeiT", "DeiTForImageClassificationWithTeacher", VIT, logits, options=ANY_SIZE),
    Peer("DINO", "Meta", ".pth, vit_small_patch16_224", dino_of_meta),
    timm_peer("DINOv2", "vit_small_patch14_dinov2", 14, 518),
    peer("DINOv2", "Dinov2ForImageClassification", DINOV2, logits),
    peer("DINOv2 with registers", "Dinov2WithRegistersForImageClassification", DINOV2, logits),
    timm_peer("CLIP", "vit_base_patch16_clip_224", 16, 224, num_classes=512),
    peer("CLIP", "CLIPVisionModelWithProjection", {**SIZE_B, **CLIP}, embedded, options=ANY_SIZE),
    timm_peer("ViT with registers", "vit_medium_patch16_reg4_gap_256", 16, 256),
    peer("DINOv3", "DINOv3ViTModel", DINOV3, pooled),
    Peer("DINOv3", "transformers", "DINOv3ViTModel, gated", Transformers("DINOv3ViTModel", DINOV3_PLUS, pooled).build),
    timm_peer("DINOv3", "vit_small_patch16_dinov3_qkvb", 16, 256),
    timm_peer("DINOv3", "vit_small_plus_patch16_dinov3", 16, 256),
    Peer("DINOv3", "Meta", "names, DINOv3ViTModel", dinov3_of_meta(DINOV3)),
    Peer("DINOv3", "Meta", "names, DINOv3ViTModel, gated", dinov3_of_meta(DINOV3_PLUS)),
    timm_peer("LingBot-Vision", "vit_small_patch16_lingbot", 16, 512),
    peer("SigLIP 2, fixed size", "SiglipVisionModel", {**SIGLIP, **SIZE_B}, pooled, options=ANY_SIZE),
    peer("so400m", "SiglipVisionModel", {**SIGLIP, **SO400M, "patch_size": 14}, pooled, options=ANY_SIZE),
    timm_peer("SigLIP 2, fixed size", "vit_base_patch16_siglip_224", 16, 224, num_classes=0),
    timm_peer("so400m", "vit_so400m_patch14_siglip_224", 14, 224, num_classes=0),
    timm_peer("EVA-02", "eva02_small_patch14_224", 14, 224),
    timm_peer("EVA-02", "eva02_base_patch14_224", 14, 224),
    timm_peer("EVA-02, CLIP", "eva02_base_patch16_clip_224", 16, 224, num_classes=512),
    Peer("EVA-02", "BAAI", "names, eva02_base_patch14_224", EVA_FILE),
    Peer("EVA-02, CLIP", "BAAI", "names, eva02_base_patch16_clip_224", EVA_CLIP_FILE),
    timm_peer("Perception Encoder", "vit_pe_core_base_patch16_224", 16, 224),
    Peer("Perception Encoder", "Meta", "names, vit_pe_core_base_patch16_224", PE_FILE),
    timm_peer("Perception Encoder", "vit_pe_spatial_base_patch16_512", 16, 512),
    peer("TIPS v2", "Tipsv2VisionModel", TIPS, pooled),
    Peer(
        "TIPS v2",
        "transformers",
        "Tipsv2VisionModel, gated",
        Transformers("Tipsv2VisionModel", TIPS_GATED, pooled).build,
    ),
    timm_peer("TIPS v2", "vit_base_patch14_reg1_tipsv2", 14, 448, num_classes=0),
    peer("I-JEPA", "IJepaForImageClassification", IJEPA, logits, options=ANY_SIZE),
    timm_peer("I-JEPA", "vit_huge_patch14_gap_224", 14, 224, num_classes=0),
    peer("BEiT v2", "BeitForImageClassification", BEIT, logits),
    Peer(
        "BEiT v2",
        "transformers",
        "BeitForImageClassification, shared",
        Transformers("BeitForImageClassification", BEIT_SHARED, logits).build,
    ),
    timm_peer("BEiT v2", "beitv2_base_patch16_224", 16, 224),
    timm_peer("ViT with RoPE", "vit_medium_patch16_rope_reg1_gap_256", 16, 256),
)
