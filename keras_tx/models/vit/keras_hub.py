"""Converts keras-hub's ViT and DeiT backbones and classifiers, in both directions."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError, user_stacklevel
from keras_tx.heads import ClassifierHead, DistilledClassifierHead, Head, MultiLabelHead, RegressionHead
from keras_tx.models.families import KerasHub, WeightSource
from keras_tx.models.vit.huggingface_tensors import Grid, checked_entries, positions
from keras_tx.models.vit.model import ViT, ViTConfig, has_remainder
from keras_tx.processing import ImageTransform
from keras_tx.weights.assignment import model_tensors
from keras_tx.weights.tensor_map import (
    HEAD,
    POOLER,
    Entry,
    Form,
    Plan,
    attention_layer,
    dense_layer,
    norm_layer,
)
from keras_tx.weights.tensor_source import Tensors

CLASSES = ("ViTBackbone", "ViTImageClassifier", "DeiTBackbone", "DeiTImageClassifier")
NORMS = {"attention_norm": "ln_1", "feed_forward_norm": "ln_2"}
VIT_MLP = {"feed_forward/up": "mlp/dense_1", "feed_forward/down": "mlp/dense_2"}
DEIT_MLP = {"feed_forward/up": "mlp/dense", "feed_forward/down": "output_layer/output"}
RESAMPLING = {"nearest": "nearest", "bilinear": "bilinear", "bicubic": "bicubic", "lanczos3": "lanczos"}


def read(source: keras.Model) -> WeightSource:
    """Describes a backbone or classifier; an unsupported option raises a ConfigError."""
    backbone: Any = getattr(source, "backbone", source)
    where = f"keras-hub's {type(source).__name__} {source.name!r}"
    fields = _fields(backbone, where)
    try:
        made = ViTConfig(**fields)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    head = None if source is backbone else _head(source, where, fields)
    variables = {variable.path: variable for variable in source.weights}
    tensors = Tensors(
        where=where,
        shapes={path: tuple(variable.shape) for path, variable in variables.items()},
        read=lambda path: ops.convert_to_numpy(variables[path]),
    )

    def adapted(config: ViTConfig, chosen: Head | None, overrides: dict[str, Any]) -> ViTConfig:
        """Sets pooling and pooler: a backbone returns all tokens; a classifier may have a pooler."""
        changes: dict[str, Any] = {}
        pooling = overrides.get("pooling")
        if pooling is None:
            pooling = _pooling(made) if chosen is not None else "none"
            changes["pooling"] = pooling
        units = getattr(source, "intermediate_dim", None)
        if "pooler" not in overrides and chosen is not None and units is not None and head is not None:
            changes |= {"pooler": "tanh", "pooler_dim": None if units == config.width else units}
        return dataclasses.replace(config, **changes)

    return WeightSource(
        where=where,
        model_class=ViT,
        fields=fields,
        head=head,
        processing=_transform(source, made, where),
        tensors=tensors,
        plan=lambda model: plan(model, made.grid, tensors),
        adapted=adapted,
    )


def to_keras_hub(model: ViT) -> Any:
    """Returns a backbone, or a classifier with the model's image transform, with equal outputs.

    Images of another size are resized by Keras, not by Pillow.
    """
    import keras_hub

    config, head = model.config, model.head
    reasons = _unsupported_options(model)
    if reasons:
        raise ConfigError(
            f"Model {model.name!r} has {', '.join(reasons)}, which keras-hub's ViT and DeiT do not support. "
            "Save it with model.save or keras_tx.save_checkpoint."
        )
    models: Any = keras_hub.models
    layers: Any = keras_hub.layers
    options = {
        "image_shape": (*config.size, config.channels),
        "patch_size": config.patch_size,
        "num_layers": config.depth,
        "num_heads": config.num_heads,
        "hidden_dim": config.width,
        "dropout_rate": config.dropout,
        "attention_dropout": config.attention_dropout,
        "layer_norm_epsilon": config.norm_epsilon,
        "data_format": "channels_last",
        "dtype": model.layers_policy,
    }
    name = "DeiT" if config.distillation else "ViT"
    if config.distillation:
        made = models.DeiTBackbone(**options, intermediate_dim=config.mlp_dim)
    else:
        made = models.ViTBackbone(
            **options,
            mlp_dim=config.mlp_dim,
            use_class_token=config.has_class_token,
            use_patch_bias=config.patch_bias,
        )
    if head is not None:
        converter = getattr(layers, f"{name}ImageConverter")(**_converter(model.processing))
        preprocessor = getattr(models, f"{name}ImageClassifierPreprocessor")(image_converter=converter)
        units = config.pooler_dim or config.width
        made = getattr(models, f"{name}ImageClassifier")(
            made,
            num_classes=head.num_classes,  # type: ignore[attr-defined]
            preprocessor=preprocessor,
            pooling="token" if config.pooling == "token" else "gap",
            dropout=head.dropout,  # type: ignore[attr-defined]
            head_dtype="float32",
            **({"intermediate_dim": units} if config.pooler is not None else {}),
        )
    variables = {variable.path: variable for variable in made.weights}
    for entry, value in model_tensors(model, plan(model)):
        variables.pop(entry.name).assign(value)
    assert not variables, sorted(variables)
    return made


def plan(model: ViT, old: Grid | None = None, tensors: Tensors | None = None) -> Plan:
    """Returns the tensor map between a model and keras-hub's variables; `old` is the grid of the latter."""
    config = model.config
    deit = config.distillation
    kind = "deit" if deit else "vit"
    first, encoder = f"{kind}_patching_and_embedding", f"{kind}_encoder"
    table = f"{first}/position_embedding" + ("" if deit else "/embeddings")
    row = Form(reshape=(1, 1, -1))
    entries = [
        *([Entry(f"{first}/class_token", ("class_token/tokens",), row)] if config.has_class_token else []),
        *([Entry(f"{first}/distillation_token", ("distillation_token/tokens",), row)] if deit else []),
        *dense_layer(f"{first}/patch_embedding", "patch_embedding", bias=config.patch_bias),
        positions(table, config, tensors.shapes.get(table) if tensors else None, old, batched=deit),
    ]
    for index in range(config.depth):
        source, block = f"{encoder}/transformer_block_{index + 1}", f"block_{index}"
        entries += attention_layer(
            f"{source}/mha", f"{block}/attention", config.num_heads, config.width // config.num_heads
        )
        for here, there in NORMS.items():
            entries += norm_layer(f"{source}/{there}", f"{block}/{here}")
        for here, there in (DEIT_MLP if deit else VIT_MLP).items():
            entries += dense_layer(f"{source}/{there}", f"{block}/{here}")
    entries += norm_layer(f"{encoder}/ln", "norm")
    if config.pooler is not None:
        entries += dense_layer("pre_logits", "pooler", part=POOLER)
    if isinstance(model.head, DistilledClassifierHead):
        raise ConfigError(
            "head=DistilledClassifierHead has two classifiers, but keras-hub's DeiT has one. Pass another "
            "head."
        )
    if model.head is not None:
        entries += dense_layer("predictions", contract.LOGITS, part=HEAD)
    return Plan(checked_entries(model, entries, "keras-hub's ViT"), others=("predictions/", "pre_logits/"))


def _fields(backbone: Any, where: str) -> dict[str, Any]:
    supported = {"data_format": "channels_last", "use_mha_bias": True, "use_mlp_bias": True}
    for name, value in supported.items():
        if getattr(backbone, name, value) != value:
            raise ConfigError(
                f"{where} has {name}={getattr(backbone, name)!r}. Only {name}={value!r} is supported."
            )
    patch = backbone.patch_size
    height, width, channels = backbone.image_shape
    deit = any(kind.__name__ == "DeiTBackbone" for kind in type(backbone).__mro__)
    class_token = deit or backbone.use_class_token
    return {
        "patch_size": patch[0] if patch[0] == patch[1] else tuple(patch),
        "width": backbone.hidden_dim,
        "depth": backbone.num_layers,
        "mlp_dim": backbone.intermediate_dim if deit else backbone.mlp_dim,
        "num_heads": backbone.num_heads,
        "image_size": height if height == width else (height, width),
        "channels": channels,
        "pooling": "none",
        "class_token": class_token,
        "distillation": deit,
        "patch_bias": deit or backbone.use_patch_bias,
        "norm_epsilon": backbone.layer_norm_epsilon,
        "dropout": backbone.dropout_rate,
        "attention_dropout": backbone.attention_dropout,
    }


def _pooling(config: ViTConfig) -> str:
    return "token" if config.has_class_token else "average"


def _head(task: Any, where: str, fields: dict[str, Any]) -> Head | ConfigError:
    remedy = f"Pass head=keras_tx.ClassifierHead({task.num_classes}), or head=None for the tokens."
    if keras.activations.get(task.activation) is not keras.activations.linear:
        activation = keras.activations.serialize(keras.activations.get(task.activation))
        return ConfigError(f"{where} has activation={activation!r}, but heads return logits. {remedy}")
    pooling = "token" if fields["class_token"] else "gap"
    if task.pooling != pooling:
        return ConfigError(
            f"{where} has pooling={task.pooling!r} with use_class_token={fields['class_token']}, where only "
            f"pooling={pooling!r} is supported. {remedy}"
        )
    if task.num_classes < 2:
        return ConfigError(
            f"{where} has num_classes={task.num_classes}, expected at least 2. Pass another head, or "
            "head=None for the tokens."
        )
    return ClassifierHead(task.num_classes, 0.0 if fields["distillation"] else task.dropout)


def _unsupported_options(model: ViT) -> list[str]:
    config, head = model.config, model.head
    deit = config.distillation
    pooled = config.pooling == ("none" if head is None else _pooling(config))
    differences = {
        f"pooling={config.pooling!r} with head={head}": not pooled,
        f"a {type(head).__name__}": isinstance(
            head, DistilledClassifierHead | MultiLabelHead | RegressionHead
        ),
        f"drop_remainder=True with image_size={config.image_size!r}": has_remainder(
            config.size, config.patch
        ),
        f"positions={config.positions!r}": config.positions != "learned",
        f"registers={config.registers}": config.registers != 0,
        f"stem={config.stem!r}": config.stem != "patches",
        "mask_token=True": config.mask_token,
        "patch_bias=False with a distillation token": deit and not config.patch_bias,
        "qkv_bias=False": not config.qkv_bias,
        f"key_bias={config.key_bias}": config.key_bias is not None,
        "qk_norm=True": config.qk_norm,
        "pre_norm=True": config.pre_norm,
        "pooled_norm=True": config.pooled_norm,
        f"pooler={config.pooler!r} with a distillation token": deit and config.pooler is not None,
        f"activation={config.activation!r}": config.activation != "gelu",
        f"layer_scale={config.layer_scale}": config.layer_scale is not None,
    }
    return [difference for difference, present in differences.items() if present]


def _transform(source: Any, config: ViTConfig, where: str) -> ImageTransform | None:
    """Converts the image converter of a preprocessor; warns about unsupported settings."""
    converter = getattr(getattr(source, "preprocessor", None), "image_converter", None)
    if converter is None:
        return None
    scale = 1.0 if converter.scale is None else converter.scale
    offset = 0.0 if converter.offset is None else converter.offset
    std = 1 / (255 * np.asarray(scale, "float64"))
    mean = np.broadcast_to(-np.asarray(offset, "float64") * std, (np.broadcast(std, offset).shape))
    size = converter.image_size or config.size
    ignored = [
        f"{name}={getattr(converter, name)!r}"
        for name in ("crop_to_aspect_ratio", "pad_to_aspect_ratio")
        if getattr(converter, name)
    ]
    if converter.interpolation not in RESAMPLING:
        ignored.append(f"interpolation={converter.interpolation!r}")
    if ignored:
        warnings.warn(
            f"{where}: its image converter has {', '.join(ignored)}, which is not supported. Whole images "
            f"are resized to {size[0]} x {size[1]}, {RESAMPLING.get(converter.interpolation, 'bilinear')}.",
            stacklevel=user_stacklevel(),
        )
    return ImageTransform(
        size,
        channels=config.channels,
        resample=RESAMPLING.get(converter.interpolation, "bilinear"),
        mean=_numbers(mean),
        std=_numbers(std),
    )


def _numbers(values: np.ndarray) -> Any:
    return float(values) if values.ndim == 0 else tuple(float(x) for x in values)


def _converter(transform: ImageTransform) -> dict[str, Any]:
    mean, std = np.asarray(transform.mean), np.asarray(transform.std)
    names = {resample: name for name, resample in RESAMPLING.items()}
    return {
        "image_size": (transform.height, transform.width),
        "scale": (transform.rescale / std).tolist(),
        "offset": (-mean / std).tolist(),
        "interpolation": names[transform.resample],
        "antialias": True,
        "crop_to_aspect_ratio": False,
    }


CONVERTER = KerasHub(CLASSES, read, to_keras_hub)
