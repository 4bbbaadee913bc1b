"""Converts config.json of Hugging Face's ViT, DeiT, DINOv2 and DINOv3, in both directions.

DINO is a ViT. A file without a config may have the tensor names of timm, DINOv2's authors or torchvision.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, nearest, user_stacklevel
from keras_tx.heads import ClassifierHead, DistilledClassifierHead, Head, MultiLabelHead, RegressionHead
from keras_tx.models.config import make_config
from keras_tx.models.families import HuggingFace, HuggingFaceConfig, WeightSource, label_fields
from keras_tx.models.vit import huggingface_dinov3, huggingface_tensors, state_dicts
from keras_tx.models.vit.huggingface_tensors import Grid, canonical, dialect, module_name
from keras_tx.models.vit.model import ViT, ViTConfig, has_remainder
from keras_tx.processing import ImageTransform
from keras_tx.weights.checkpoint import read_json
from keras_tx.weights.config_json import ACTIVATIONS, Fields, labels_of
from keras_tx.weights.tensor_map import Plan
from keras_tx.weights.tensor_source import Checkpoint, Tensors

CLASSES = {
    "vit": "ViT",
    "deit": "DeiT",
    "dinov2": "Dinov2",
    "dinov2_with_registers": "Dinov2WithRegisters",
    "dinov3_vit": "DINOv3ViT",
}
MODEL_TYPES = tuple(CLASSES)
THEIR_ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    "quick_gelu": "quick_gelu",
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh"), "gelu_tanh"),
    "relu": "relu",
}
# Keys in config.json by fields of ViTConfig.
KEYS = {
    "head.num_classes": "num_labels",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "mlp_dim": "intermediate_size",
    "channels": "num_channels",
    "registers": "num_register_tokens",
    "rotary_base": "rope_theta",
    "layer_scale": "layerscale_value",
    "norm_epsilon": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "drop_path": "drop_path_rate",
}
POOLER, MASK_TOKEN = "pooler.dense.weight", "embeddings.mask_token"
OPTIONAL = (POOLER, "pooler.dense.bias", MASK_TOKEN)
CLASSIFIER = "ForImageClassification"
TEACHER = "ForImageClassificationWithTeacher"


def plan(model: ViT, tensors: Tensors | None, old: Grid | None = None) -> Plan:
    """Returns the tensor map of a model for the names of a checkpoint, or for the names to write.

    `old` is the grid of the checkpoint's positions, if its config contains it.
    """
    if tensors is not None and state_dicts.is_timm(tensors.shapes):
        return state_dicts.timm_plan(model, tensors)
    if tensors is not None and state_dicts.is_torchvision(tensors.shapes):
        return state_dicts.torchvision_plan(model, tensors)
    kind = _written_type(model) if tensors is None else dialect(model.config)
    if kind == huggingface_dinov3.MODEL_TYPE:
        return huggingface_dinov3.plan(model, tensors)
    return huggingface_tensors.plan(model, kind, tensors, old)


def read(checkpoint: Checkpoint) -> WeightSource:
    """Describes a checkpoint.

    Raises:
        ConfigError: for a field of config.json that is not supported.
    """
    tensors = checkpoint.tensors
    config = Fields(checkpoint)
    kind = config.text("model_type", MODEL_TYPES)
    dinov2, dinov3 = kind.startswith("dinov2"), kind == huggingface_dinov3.MODEL_TYPE
    config.names = KEYS
    fields = _fields(config, kind)
    # Zeros were written for parts that the model does not have but transformers requires.
    zeros = tuple(name for name in OPTIONAL if _is_zero(tensors, kind, name))
    if dinov3 or kind == "dinov2_with_registers":
        fields["mask_token"] = MASK_TOKEN not in zeros
    pooled = not dinov2 and POOLER not in zeros and _is_there(tensors, kind, POOLER)

    def adapted(made: ViTConfig, head: Head | None, overrides: dict[str, Any]) -> ViTConfig:
        """Sets pooling and pooler: DINOv2's classifiers use the class token and the mean of the patches."""
        changes: dict[str, Any] = {}
        if "pooling" not in overrides and dinov2:
            changes["pooling"] = "token" if head is None else "token+average"
        if "pooler" not in overrides and pooled and head is None and made.pooling == "token":
            changes |= {"pooler": "tanh", "pooler_dim": _pooler_dim(config, made.width)}
        return dataclasses.replace(made, **changes)

    made = make_config(ViTConfig, fields, config)
    return WeightSource(
        where=tensors.where,
        model_class=ViT,
        fields=fields,
        head=huggingface_dinov3.head_of(config) if dinov3 else _head(config, kind),
        processing=_transform(checkpoint, made),
        tensors=tensors,
        config=config,
        plan=lambda model: _with_computed(plan(model, tensors, made.grid), zeros),
        adapted=adapted,
    )


def _with_computed(plan: Plan, names: tuple[str, ...]) -> Plan:
    return dataclasses.replace(plan, computed=(*plan.computed, *names))


def _fields(config: Fields, kind: str) -> dict[str, Any]:
    for name in ("is_decoder", "add_cross_attention", "is_encoder_decoder"):
        config.refuse(name, False)
    config.refuse("pruned_heads", {})
    config.refuse("quantization_config", None)
    dinov3 = kind == huggingface_dinov3.MODEL_TYPE
    width = config.number("hidden_size", 384 if dinov3 else 768)
    heads = config.number("num_attention_heads", 6 if dinov3 else 12)
    config.refuse("head_dim", width // max(heads, 1))
    image_size = _size(config, "image_size", 224)
    patch_size = _size(config, "patch_size", 14 if kind == "dinov2" else 16)
    fields = {
        "width": width,
        "depth": config.number("num_hidden_layers", 12),
        "num_heads": heads,
        "image_size": image_size,
        "patch_size": patch_size,
        "drop_remainder": has_remainder(image_size, patch_size),  # transformers always drops it
        "channels": config.number("num_channels", 3),
    }
    if dinov3:
        return {**fields, **huggingface_dinov3.read_fields(config)}
    fields |= {
        "activation": THEIR_ACTIVATIONS[config.text("hidden_act", THEIR_ACTIVATIONS, "gelu")],
        "qkv_bias": _switch(config, "qkv_bias", True),
        "dropout": config.real("hidden_dropout_prob", 0.0),
        "attention_dropout": config.real("attention_probs_dropout_prob", 0.0),
    }
    if kind.startswith("dinov2"):
        return {**fields, **_dinov2_fields(config, kind, fields)}
    config.refuse("pooler_act", "tanh")
    return {
        **fields,
        "mlp_dim": config.number("intermediate_size", 3072),
        "norm_epsilon": config.real("layer_norm_eps", 1e-12),
        "distillation": kind == "deit",
    }


def _dinov2_fields(config: Fields, kind: str, common: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(common["image_size"], int):
        raise config.error("image_size", "expected one number: positions of DINOv2 are a square")
    if not isinstance(common["patch_size"], int):
        raise config.error("patch_size", "expected one number: DINOv2's patches are squares")
    hidden = int(common["width"] * config.real("mlp_ratio", 4))
    if common["width"] and not hidden:
        raise config.error("mlp_ratio", "expected a number above 0")
    fields = {
        "mlp_dim": hidden,
        "norm_epsilon": config.real("layer_norm_eps", 1e-6),
        "layer_scale": config.real("layerscale_value", 1.0),
        "drop_path": config.real("drop_path_rate", 0.0),
    }
    if _switch(config, "use_swiglu_ffn", False):
        fields |= {"activation": "swiglu", "mlp_dim": gated_dim(hidden)}
    if kind == "dinov2":
        return {**fields, "mask_token": _switch(config, "use_mask_token", True)}
    registers = config.number("num_register_tokens", 4)
    if not registers:
        raise config.error("num_register_tokens", "expected 1 or more; without registers it is dinov2")
    return {**fields, "registers": registers}


def gated_dim(hidden: int) -> int:
    """Returns the size of a gated layer of DINOv2: two thirds of `hidden`, rounded up to a multiple of 8."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8


def _switch(config: Fields, name: str, default: bool) -> bool:
    value = config.get(name, default)
    if not isinstance(value, bool):
        raise config.error(name, "expected true or false")
    return value


def _size(config: Fields, name: str, default: int) -> int | tuple[int, int]:
    size = config.get(name, default)
    if isinstance(size, list) and len(size) == 2 and all(type(x) is int and x > 0 for x in size):
        return size[0] if size[0] == size[1] else (size[0], size[1])
    if type(size) is int and size > 0:
        return size
    raise config.error(name, "expected a number, or height and width")


def _pooler_dim(config: Fields, width: int) -> int | None:
    units = config.number("pooler_output_size", width, none=True)
    return None if units in (None, 0, width) else units


def _is_there(tensors: Tensors, kind: str, name: str) -> bool:
    known = canonical(kind)
    return any(known(x) == name for x in tensors.shapes)


def _is_zero(tensors: Tensors, kind: str, name: str) -> bool:
    known = canonical(kind)
    return any(known(x) == name and not np.any(tensors.read(x)) for x in tensors.shapes)


def _head(config: Fields, kind: str) -> Head | ConfigError | None:
    """Returns the head of the checkpoint, or an error if it is not supported."""
    architecture = config.architecture()
    name = architecture.removeprefix(CLASSES[kind])
    if name in ("Model", "Backbone"):
        return None
    if name != CLASSIFIER and (name != TEACHER or kind != "deit"):
        known = ["Model", CLASSIFIER, *([TEACHER] if kind == "deit" else [])]
        return ConfigError(
            f"{config.where} has the architecture {architecture!r}, whose head is not supported "
            f"({nearest(name, known)}) Pass the head that you want: head=None loads the encoder alone."
        )
    count, labels = labels_of(config)
    if count == 0:
        return None
    problem = config.get("problem_type")
    if problem == contract.MULTI_LABEL and name == CLASSIFIER:
        return MultiLabelHead(count, labels=labels)
    if name == CLASSIFIER and (problem == contract.REGRESSION or count == 1):
        return RegressionHead(count, labels=labels)
    if count == 1 or problem not in (None, contract.SINGLE_LABEL):
        return config.error(
            "problem_type", f"a distilled classifier with {count} labels does not support it. Pass head=None"
        )
    return (ClassifierHead if name == CLASSIFIER else DistilledClassifierHead)(count, labels=labels)


def _transform(checkpoint: Checkpoint, config: ViTConfig) -> ImageTransform | None:
    """Reads preprocessor_config.json; warns about unsupported settings."""
    folder = checkpoint.folder
    if folder is None or not (folder / contract.PREPROCESSOR).is_file():
        return None
    fields = read_json(folder, contract.PREPROCESSOR)
    try:
        return ImageTransform.from_preprocessor_config(fields)
    except ConfigError as error:
        known = {key: fields[key] for key in KEPT if fields.get(key) is not None}
        size = {"height": config.size[0], "width": config.size[1]}
        transform = ImageTransform.from_preprocessor_config({**known, "size": size})
        warnings.warn(
            f"{folder}/{contract.PREPROCESSOR}: {error} Whole images are resized to {config.size[0]} x "
            f"{config.size[1]}; the other settings of the file are used.",
            stacklevel=user_stacklevel(),
        )
        return transform


# Settings that are also valid for image processors that crop.
KEPT = ("resample", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")


def to_config(model: ViT, labels: Sequence[str] | None = None, processing: Any = None) -> HuggingFaceConfig:
    """Returns the config.json of a ViT."""
    config: ViTConfig = model.config
    kind = _written_type(model)
    fields: dict[str, Any] = {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "initializer_range": 0.02,
        "layer_norm_eps": config.norm_epsilon,
        "image_size": config.size[0] if config.size[0] == config.size[1] else list(config.size),
        "patch_size": config.patch_size if isinstance(config.patch_size, int) else list(config.patch_size),
        "num_channels": config.channels,
    }
    dinov3 = kind == huggingface_dinov3.MODEL_TYPE
    fields |= huggingface_dinov3.written(config) if dinov3 else _written(config, kind)
    if isinstance(model.head, MultiLabelHead):
        fields["problem_type"] = contract.MULTI_LABEL
    elif isinstance(model.head, RegressionHead):
        fields["problem_type"] = contract.REGRESSION
    fields |= label_fields(labels)
    reasons = _unsupported_options(model, kind)
    if reasons:
        return HuggingFaceConfig(fields, reasons)
    if isinstance(model.head, DistilledClassifierHead):
        architecture = TEACHER
    else:
        architecture = "Model" if model.head is None else CLASSIFIER
    architectures = [CLASSES[kind] + architecture]
    return HuggingFaceConfig({"model_type": kind, "architectures": architectures, **fields})


def _written(config: ViTConfig, kind: str) -> dict[str, Any]:
    """Returns the entries of config.json by their names in ViT, DeiT and DINOv2."""
    fields: dict[str, Any] = {
        "hidden_act": ACTIVATIONS.get(config.activation, config.activation),
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "qkv_bias": config.qkv_bias,
    }
    if not kind.startswith("dinov2"):
        fields["intermediate_size"] = config.mlp_dim
        if config.pooler is not None:
            fields |= {"pooler_act": config.pooler, "pooler_output_size": config.pooler_dim or config.width}
        return fields
    gated = config.activation == "swiglu"
    fields |= {
        "hidden_act": "gelu" if gated else fields["hidden_act"],
        "mlp_ratio": _ratio(config) or config.mlp_dim / config.width,
        "use_swiglu_ffn": gated,
        "layerscale_value": config.layer_scale,
        "drop_path_rate": config.drop_path,
    }
    if kind == "dinov2":
        return {**fields, "use_mask_token": config.mask_token}
    return {**fields, "num_register_tokens": config.registers}


def _written_type(model: ViT) -> str:
    """Returns the model_type to save a model as.

    Only Dinov2's classes have LayerScale. A model with other options that they do not support is saved as a
    ViT, whose dense layers absorb the LayerScale.
    """
    kind = dialect(model.config)
    if kind != "dinov2":
        return kind
    return min(("dinov2", "vit"), key=lambda candidate: len(_unsupported_options(model, candidate)))


def _ratio(config: ViTConfig) -> int | None:
    """Returns DINOv2's mlp_ratio, an integer; None if no integer results in mlp_dim."""
    gated = config.activation == "swiglu"
    about = config.mlp_dim / config.width * (1.5 if gated else 1.0)
    for ratio in range(max(int(about) - 1, 1), int(about) + 3):
        hidden = config.width * ratio
        if (gated_dim(hidden) if gated else hidden) == config.mlp_dim:
            return ratio
    return None


def _unsupported_options(model: ViT, kind: str) -> list[str]:
    """Returns the options of a model that the classes of a model_type do not support."""
    if kind == huggingface_dinov3.MODEL_TYPE:
        return huggingface_dinov3.unsupported_options(model)
    config, head = model.config, model.head
    dinov2 = kind.startswith("dinov2")
    poolings = ("token", "none") if head is None else ("token+average",) if dinov2 else ("token",)
    scaled = f" with layer_scale={config.layer_scale}" if dinov2 and config.layer_scale is not None else ""
    differences = {
        f"pooling={config.pooling!r}{scaled}": config.pooling not in poolings,
        "class_token=False": not config.has_class_token and "token" not in config.pooling,
        f"positions={config.positions!r}": config.positions != "learned",
        f"activation={config.activation!r}": config.activation not in ACTIVATIONS
        and not (dinov2 and config.activation == "swiglu"),
        "patch_bias=False": not config.patch_bias,
        f"stem={config.stem!r}": config.stem != "patches",
        "pre_norm=True": config.pre_norm,
        "qk_norm=True": config.qk_norm,
        f"key_bias={config.key_bias}": config.key_bias is not None,
        "pooled_norm=True": config.pooled_norm,
        f"pooler={config.pooler!r}": config.pooler is not None and (dinov2 or head is not None),
    }
    if dinov2:
        differences |= {
            f"image_size={config.image_size!r}": config.size[0] != config.size[1],
            f"patch_size={config.patch_size!r}": not isinstance(config.patch_size, int),
            f"mlp_dim={config.mlp_dim} with width={config.width}": _ratio(config) is None,
            f"registers={config.registers} without layer_scale": config.layer_scale is None,
        }
    else:
        differences |= {
            f"registers={config.registers} with a distillation token": config.registers != 0,
            "mask_token=True": config.mask_token,
        }
    return [difference for difference, present in differences.items() if present]


CONVERTER = HuggingFace(MODEL_TYPES, read, plan, to_config, module_name=module_name)
