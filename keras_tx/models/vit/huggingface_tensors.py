"""The tensor maps between a ViT and Hugging Face's ViT, DeiT and DINOv2."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable

import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.heads import DistilledClassifierHead
from keras_tx.models.vit import huggingface_dinov3
from keras_tx.models.vit.model import ViT, ViTConfig, resize_positions
from keras_tx.weights.tensor_map import (
    CONVOLUTION,
    HEAD,
    POOLER,
    TRANSPOSED,
    Entry,
    Form,
    Plan,
    Scaled,
    Shape,
    Zeros,
    layer_norm,
    linear,
)
from keras_tx.weights.tensor_source import Tensors
from keras_tx.weights.weight_values import merged_weights

Grid = tuple[int, int]

# The names in files and in the classes of transformers 4; classes of transformers 5 have others.
ATTENTION = {
    "attention/query": "attention.attention.query",
    "attention/key": "attention.attention.key",
    "attention/value": "attention.attention.value",
    "attention/output": "attention.output.dense",
}
VIT_BLOCK = ATTENTION | {
    "attention_norm": "layernorm_before",
    "feed_forward_norm": "layernorm_after",
    "feed_forward/up": "intermediate.dense",
    "feed_forward/down": "output.dense",
}
DINOV2_BLOCK = ATTENTION | {"attention_norm": "norm1", "feed_forward_norm": "norm2"}
DINOV2_MLP = {"feed_forward/up": "mlp.fc1", "feed_forward/down": "mlp.fc2"}
NEW_ATTENTION = {
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
}
NEW_VIT = NEW_ATTENTION | {"mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}
NEW_DINOV2 = NEW_ATTENTION | {"mlp.down_proj": "mlp.weights_out"}

CLASSIFIERS = ("classifier.", "cls_classifier.", "distillation_classifier.")
OTHERS = (*CLASSIFIERS, "pooler.", "decoder.", "embeddings.mask_token")


def dialect(config: ViTConfig) -> str:
    """Returns the model_type that has all the parts of a model."""
    if config.positions == "rotary":
        return huggingface_dinov3.MODEL_TYPE
    if config.distillation:
        return "deit"
    if config.registers:
        return "dinov2_with_registers"
    return "vit" if config.layer_scale is None else "dinov2"


def canonical(kind: str) -> Callable[[str], str]:
    """Returns a function that converts names to those in files, without the prefix of the family."""
    if kind == huggingface_dinov3.MODEL_TYPE:
        return huggingface_dinov3.canonical
    new = NEW_DINOV2 if kind.startswith("dinov2") else NEW_VIT

    def known(name: str) -> str:
        name = re.sub(r"^(vit|deit|dinov2|dinov2_with_registers)\.", "", name)
        name = re.sub(r"^layers\.(\d+)\.", r"encoder.layer.\1.", name)
        match = re.fullmatch(r"(encoder\.layer\.\d+)\.(.+)\.(weight|bias)", name)
        if match and match[2] in new:
            return f"{match[1]}.{new[match[2]]}.{match[3]}"
        return name

    return known


def module_name(model: ViT, name: str) -> str | None:
    """Returns the name of a dense layer in the classes of transformers 5, for its name in files.

    None for gate and up of a gated DINOv2, which are one tensor in files and two modules in the class.
    """
    kind = dialect(model.config)
    if kind == huggingface_dinov3.MODEL_TYPE:
        return huggingface_dinov3.module_name(name)
    dinov2 = kind.startswith("dinov2")
    if name.endswith(".mlp.weights_in"):
        return None
    if not dinov2:
        name = name.replace("encoder.layer.", "layers.")
    for new, old in (NEW_DINOV2 if dinov2 else NEW_VIT).items():
        if re.search(rf"\d\.{re.escape(old)}$", name):
            return f"{name.removesuffix(old)}{new}"
    return name


def plan(model: ViT, kind: str, tensors: Tensors | None, old: Grid | None = None) -> Plan:
    """Returns the tensor map of a model for the names of the model_type `kind`.

    `old` is the grid of the checkpoint's positions, None for a square.
    """
    config, head = model.config, model.head
    known = canonical(kind)
    prefix = "" if head is None else f"{kind}."
    there = {known(name) for name in (tensors.shapes if tensors is not None else ())}
    entries = [*_embeddings(config, f"{prefix}embeddings", tensors, known, old)]
    for index in range(config.depth):
        entries += _block(config, kind, f"{prefix}encoder.layer.{index}", f"block_{index}", there)
    if tensors is None and config.layer_scale is not None and not kind.startswith("dinov2"):
        entries = [_with_layer_scale(entry) for entry in entries]
    entries += layer_norm(f"{prefix}layernorm", "norm")
    if config.pooler is not None:
        entries += linear(f"{prefix}pooler.dense", "pooler", part=POOLER)
    if isinstance(head, DistilledClassifierHead):
        entries += linear("cls_classifier", "class_logits", part=HEAD)
        entries += linear("distillation_classifier", "distillation_logits", part=HEAD)
    elif head is not None:
        entries += linear("classifier", "logits", part=HEAD)
    if tensors is None:
        entries += _zeros(model, kind, prefix)
    return Plan(checked_entries(model, entries, f"a {kind} of Hugging Face"), known, others=OTHERS)


def checked_entries(model: ViT, entries: list[Entry], checkpoint: str) -> tuple[Entry, ...]:
    """Returns the entries; raises a ConfigError unless they cover exactly the variables of the model."""
    named = {path for entry in entries for path in entry.paths}
    variables = set(merged_weights(model))
    for paths, problem in (
        (variables - named, "no tensor for"),
        (named - variables, "tensors that the model does not have:"),
    ):
        if paths:
            raise ConfigError(
                f"{checkpoint} has {problem} {', '.join(sorted(paths)[:4])}. Create the model with the "
                "options of the checkpoint."
            )
    return tuple(entries)


def _embeddings(
    config: ViTConfig, name: str, tensors: Tensors | None, known: Callable[[str], str], old: Grid | None
) -> list[Entry]:
    row = Form(reshape=(1, 1, -1))
    table = next((x for x in (tensors.shapes if tensors else ()) if known(x) == POSITIONS), None)
    rows = tensors.shapes[table] if tensors is not None and table is not None else None
    return [
        Entry(f"{name}.cls_token", ("class_token/tokens",), row),
        *([Entry(f"{name}.mask_token", ("mask_token/token",), MASK)] if config.mask_token else []),
        *(
            [Entry(f"{name}.distillation_token", ("distillation_token/tokens",), row)]
            if config.distillation
            else []
        ),
        *(
            [Entry(f"{name}.register_tokens", ("registers/tokens",), Form(reshape=(1, config.registers, -1)))]
            if config.registers
            else []
        ),
        positions(f"{name}.position_embeddings", config, rows, old, config.resizing),
        Entry(f"{name}.patch_embeddings.projection.weight", ("patch_embedding/kernel",), CONVOLUTION),
        Entry(f"{name}.patch_embeddings.projection.bias", ("patch_embedding/bias",)),
    ]


POSITIONS = "embeddings.position_embeddings"
MASK = Form(reshape=(1, -1))


def positions(
    name: str,
    config: ViTConfig,
    has: Shape | None,
    old: Grid | None,
    kind: str = "plain",
    *,
    batched: bool = True,
) -> Entry:
    """Returns the entry of the positions, which are resized if the checkpoint has another grid.

    `has` is the shape of the checkpoint's tensor, or None; `old` is its grid. If `old` is None, the grid is
    that of the model if the number of rows is equal, else a square. Missing rows for the tokens before the
    patches become zeros.
    """
    if config.positions != "learned":
        raise ConfigError(
            f"positions={config.positions!r} is not supported with weights=. Only positions='learned' is."
        )
    form = Form(reshape=(1, -1, config.width)) if batched else Form()
    rows = 0 if has is None or len(has) != 2 + batched else has[-2]
    before = config.positioned
    if rows and old is None:
        before, old = _grid_of(rows, config)
    if old is None or (old == config.grid and before == config.positioned):
        return Entry(name, ("positions/table",), form)

    def fit(tensor: np.ndarray, shape: Shape) -> np.ndarray:
        if tensor.shape[-2:] != (before + math.prod(old), config.width) or tensor.ndim != len(shape):
            raise ConfigError(
                f"{name} is {' x '.join(map(str, tensor.shape))}, expected positions of width {config.width} "
                f"for {config.positioned} tokens and a grid of {old[0]} x {old[1]} patches."
            )
        table = np.asarray(tensor, "float32").reshape(-1, config.width)
        if before < config.positioned:
            table = np.concatenate([np.zeros((config.positioned, config.width), "float32"), table])
        return resize_positions(table, old, config, kind).reshape(shape)

    return Entry(name, ("positions/table",), form, fit=fit, always=True)


def _grid_of(rows: int, config: ViTConfig) -> tuple[int, Grid | None]:
    """Returns the number of rows for tokens before the patches, and the grid of the others."""
    candidates = dict.fromkeys((config.positioned, 0))
    for before in candidates:
        if rows - before == math.prod(config.grid) and config.grid[0] == config.grid[1]:
            return before, config.grid
    for before in candidates:
        side = math.isqrt(max(rows - before, 0))
        if side and side**2 == rows - before:
            return before, (side, side)
        if rows - before == math.prod(config.grid):
            return before, config.grid
    return config.positioned, None


def _block(config: ViTConfig, kind: str, name: str, path: str, there: set[str]) -> list[Entry]:
    dinov2 = kind.startswith("dinov2")
    entries: list[Entry] = []
    names = dict(DINOV2_BLOCK if dinov2 else VIT_BLOCK)
    if dinov2:
        for half, scale in enumerate(("attention_scale", "feed_forward_scale"), 1):
            entries.append(Entry(f"{name}.layer_scale{half}.lambda1", (f"{path}/{scale}",)))
        if config.activation == "swiglu":
            entries += _gated(name, path, there)
        else:
            names |= DINOV2_MLP
    for layer, tensor in names.items():
        if layer.endswith("norm"):
            entries += layer_norm(f"{name}.{tensor}", f"{path}/{layer}")
        else:
            bias = config.qkv_bias or not layer.endswith(("query", "key", "value"))
            entries += linear(f"{name}.{tensor}", f"{path}/{layer}", bias=bias)
    return entries


def _with_layer_scale(entry: Entry) -> Entry:
    """Returns the entry, multiplied by the LayerScale if one follows its dense layer."""
    layer = re.fullmatch(r"(block_\d+)/(attention/output|feed_forward/down)/(kernel|bias)", entry.paths[0])
    if layer is None:
        return entry
    half = layer[2].split("/")[0]
    form = Scaled(entry.form.permute)
    return dataclasses.replace(entry, paths=(*entry.paths, f"{layer[1]}/{half}_scale"), form=form)


def _gated(name: str, path: str, there: set[str]) -> list[Entry]:
    """Returns gate and up: one tensor in files, two in the classes of transformers 5."""
    inside = f"{path}/feed_forward"
    plain = name.removeprefix("dinov2.").removeprefix("dinov2_with_registers.")
    if f"{plain}.mlp.gate_proj.weight" in there:
        both = [
            *linear(f"{name}.mlp.gate_proj", f"{inside}/gate"),
            *linear(f"{name}.mlp.up_proj", f"{inside}/up"),
        ]
    else:
        both = packed(f"{name}.mlp.weights_in", [f"{inside}/gate", f"{inside}/up"])
    return [*both, *linear(f"{name}.mlp.weights_out", f"{inside}/down")]


def packed(
    name: str,
    paths: list[str],
    *,
    bias: bool = True,
    ends: tuple[str, str] = (".weight", ".bias"),
) -> list[Entry]:
    """Returns the entries of several Dense layers that are concatenated in one Linear."""
    return [
        Entry(f"{name}{ends[0]}", tuple(f"{path}/kernel" for path in paths), TRANSPOSED),
        *([Entry(f"{name}{ends[1]}", tuple(f"{path}/bias" for path in paths))] if bias else []),
    ]


def _zeros(model: ViT, kind: str, prefix: str) -> list[Entry]:
    """Tensors that transformers would initialize at random, with a warning, if the file lacked them."""
    width = model.config.width
    missing: dict[str, Shape] = {}
    if kind in ("vit", "deit") and model.head is None and model.config.pooler is None:
        missing = {"pooler.dense.weight": (width, width), "pooler.dense.bias": (width,)}
    elif kind == "dinov2_with_registers" and not model.config.mask_token:
        missing = {f"{prefix}embeddings.mask_token": (1, width)}
    return [Entry(name, (), Zeros(shape=shape)) for name, shape in missing.items()]
