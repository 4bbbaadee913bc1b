"""The tensor maps between a ViT and files of timm, torchvision and the authors of DeiT, DINO and DINOv2."""

from __future__ import annotations

import re
from collections.abc import Iterable

from keras_tx.heads import DistilledClassifierHead
from keras_tx.models.vit.huggingface_tensors import MASK, checked_entries, packed, positions
from keras_tx.models.vit.model import ViT, ViTConfig
from keras_tx.weights.tensor_map import CONVOLUTION, HEAD, POOLER, Entry, Form, Plan, layer_norm, linear
from keras_tx.weights.tensor_source import Tensors

ROW = Form(reshape=(1, 1, -1))
QKV = ("query", "key", "value")

# DINOv2's names are mostly those of timm.
DINOV2 = {"register_tokens": "reg_token"}
DINOV2_MLP = {"mlp.w12": "mlp.fc1", "mlp.w3": "mlp.fc2"}
# torchvision before 0.13
OLD_TORCHVISION = {"mlp.linear_1": "mlp.0", "mlp.linear_2": "mlp.3"}


def is_timm(names: Iterable[str]) -> bool:
    return any(timm_name(name) == "patch_embed.proj.weight" for name in names)


def is_torchvision(names: Iterable[str]) -> bool:
    return any(torchvision_name(name) == "conv_proj.weight" for name in names)


def timm_name(name: str) -> str:
    name = name.removeprefix("module.")
    for old, new in DINOV2_MLP.items():
        name = re.sub(rf"^(blocks\.\d+\.){re.escape(old)}\.", rf"\1{new}.", name)
    return DINOV2.get(name, name)


def timm_plan(model: ViT, tensors: Tensors) -> Plan:
    """Returns the tensor map; positions are resized with antialiasing, as in timm."""
    config, head = model.config, model.head
    shapes = {timm_name(name): tuple(shape) for name, shape in tensors.shapes.items()}
    entries = [
        Entry("patch_embed.proj.weight", ("patch_embedding/kernel",), CONVOLUTION),
        *([Entry("patch_embed.proj.bias", ("patch_embedding/bias",))] if config.patch_bias else []),
        *([Entry("mask_token", ("mask_token/token",), MASK)] if config.mask_token else []),
        *([Entry("cls_token", ("class_token/tokens",), ROW)] if config.has_class_token else []),
        *([Entry("dist_token", ("distillation_token/tokens",), ROW)] if config.distillation else []),
        *(
            [Entry("reg_token", ("registers/tokens",), Form(reshape=(1, config.registers, -1)))]
            if config.registers
            else []
        ),
        positions("pos_embed", config, shapes.get("pos_embed"), None, "antialiased"),
        *(layer_norm("norm_pre", "pre_norm") if config.pre_norm else []),
    ]
    for index in range(config.depth):
        entries += _timm_block(config, f"blocks.{index}", f"block_{index}")
    entries += layer_norm("fc_norm" if config.pooled_norm else "norm", "norm")
    if config.pooler is not None:
        entries += linear("pre_logits.fc", "pooler", part=POOLER)
    if isinstance(head, DistilledClassifierHead):
        entries += linear("head", "class_logits", part=HEAD)
        entries += linear("head_dist", "distillation_logits", part=HEAD)
    elif head is not None:
        entries += linear("head", "logits", part=HEAD)
    return Plan(
        checked_entries(model, entries, "timm's ViT"),
        timm_name,
        others=("head.", "head_dist.", "pre_logits.", "mask_token"),
    )


def _timm_block(config: ViTConfig, name: str, path: str) -> list[Entry]:
    inside = f"{path}/feed_forward"
    entries = [
        *layer_norm(f"{name}.norm1", f"{path}/attention_norm"),
        *packed(f"{name}.attn.qkv", [f"{path}/attention/{x}" for x in QKV], bias=config.qkv_bias),
        *(
            [
                *layer_norm(f"{name}.attn.q_norm", f"{path}/attention/query_norm"),
                *layer_norm(f"{name}.attn.k_norm", f"{path}/attention/key_norm"),
            ]
            if config.qk_norm
            else []
        ),
        *linear(f"{name}.attn.proj", f"{path}/attention/output"),
        *layer_norm(f"{name}.norm2", f"{path}/feed_forward_norm"),
        *(
            packed(f"{name}.mlp.fc1", [f"{inside}/gate", f"{inside}/up"])
            if config.activation == "swiglu"
            else linear(f"{name}.mlp.fc1", f"{inside}/up")
        ),
        *linear(f"{name}.mlp.fc2", f"{inside}/down"),
    ]
    if config.layer_scale is not None:
        entries.append(Entry(f"{name}.ls1.gamma", (f"{path}/attention_scale",)))
        entries.append(Entry(f"{name}.ls2.gamma", (f"{path}/feed_forward_scale",)))
    return entries


def torchvision_name(name: str) -> str:
    name = name.removeprefix("module.")
    for old, new in OLD_TORCHVISION.items():
        name = name.replace(f".{old}.", f".{new}.")
    return name


def torchvision_plan(model: ViT, tensors: Tensors) -> Plan:
    """Returns the tensor map; positions are resized with aligned corners, as in torchvision."""
    config, head = model.config, model.head
    shapes = {torchvision_name(name): tuple(shape) for name, shape in tensors.shapes.items()}
    entries = [
        Entry("conv_proj.weight", ("patch_embedding/kernel",), CONVOLUTION),
        Entry("conv_proj.bias", ("patch_embedding/bias",)),
        Entry("class_token", ("class_token/tokens",), ROW),
        positions("encoder.pos_embedding", config, shapes.get("encoder.pos_embedding"), None, "aligned"),
    ]
    for index in range(config.depth):
        name, path = f"encoder.layers.encoder_layer_{index}", f"block_{index}"
        attention = [f"{path}/attention/{x}" for x in QKV]
        entries += layer_norm(f"{name}.ln_1", f"{path}/attention_norm")
        entries += packed(f"{name}.self_attention.in_proj", attention, ends=("_weight", "_bias"))
        entries += linear(f"{name}.self_attention.out_proj", f"{path}/attention/output")
        entries += layer_norm(f"{name}.ln_2", f"{path}/feed_forward_norm")
        entries += linear(f"{name}.mlp.0", f"{path}/feed_forward/up")
        entries += linear(f"{name}.mlp.3", f"{path}/feed_forward/down")
    entries += layer_norm("encoder.ln", "norm")
    if config.pooler is not None:
        entries += linear("heads.pre_logits", "pooler", part=POOLER)
    if head is not None:
        entries += linear("heads.head", "logits", part=HEAD)
    return Plan(checked_entries(model, entries, "torchvision's ViT"), torchvision_name, others=("heads.",))
