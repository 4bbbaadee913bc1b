"""`save_adapter` and `load_adapter`: the adapters of a model as a folder of PEFT."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tx.atomic_write import atomic_directory, check_target
from keras_tx.errors import ConfigError
from keras_tx.layers.low_rank import LowRank, column_norms
from keras_tx.models.adapters.adaptation import adapt, check_model, trained_whole
from keras_tx.models.adapters.layer_selection import adaptable_layers, adapted_layers, layers_of
from keras_tx.models.adapters.peft_config import CONFIG, PeftConfig, config_json
from keras_tx.models.adapters.peft_modules import Module, ModuleNames
from keras_tx.models.class_names import check_names, named_head
from keras_tx.weights.safetensors_file import open_tensors, write_tensors
from keras_tx.weights.tensor_map import Entry
from keras_tx.weights.tensor_source import Tensors
from keras_tx.weights.weight_values import array_of, check_values

TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."
BLOCKS = "keras_tx.block_ranks"  # metadata: the ranks of the layers that a module contains, by its name
LABELS = "keras_tx.labels"  # metadata: the class names of a head that is saved with the adapters
OF_FOLDER = "Create the model with these names: keras_tx.from_checkpoint(base, head=...(labels=...))."
KINDS = {  # of tensors, by the end of their names
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_embedding_A": "a",
    ".lora_embedding_B": "b",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
}
DIVERGED = "Save the adapters as they were before the training diverged."


@dataclasses.dataclass
class LayerAdapter:
    """The adapter of one layer.

    Args:
        options: options of the adapter.
        values: "a" (in, rank), "b" (rank, out) and, for DoRA, "magnitude" (out).
    """

    options: LowRank
    values: dict[str, np.ndarray]


@dataclasses.dataclass
class AdapterFile:
    """The content of an adapter folder for one model.

    Args:
        where: the folder.
        adapters: adapters by the paths of their layers.
        whole: values of fully trained weights, by the paths of the variables.
        labels: the class names of the head among these weights; None if they are unknown.
    """

    where: Path
    adapters: dict[str, LayerAdapter]
    whole: dict[str, np.ndarray]
    labels: tuple[str, ...] | None = None


def save_adapter(
    model: Any, folder: str | os.PathLike[str], *, base: str | None = None, overwrite: bool = False
) -> Path:
    """Writes the adapters of a model as a folder that PEFT can load.

    The folder contains adapter_config.json and adapter_model.safetensors, with the adapters and the layers
    that were fully trained. Tensors have the names of the class in transformers for models of keras_tx, and
    the names of the layers for other models.

    Args:
        model: a model with adapters, from `lora` or `load_adapter`.
        folder: folder to write.
        base: name or path of the checkpoint of the base, for the config.
        overwrite: whether to replace a folder written by this function.

    Returns:
        The path of the folder.

    Raises:
        ConfigError: the model has no adapters, PEFT has no name for one of them, a weight is NaN or infinite,
            or the folder exists and may not be replaced.
    """
    check_model(model)
    layers = adapted_layers(model)
    if not layers:
        raise ConfigError(f"Model {model.name!r} has no adapters. Add them with keras_tx.lora.")
    folder = Path(folder)
    names = ModuleNames(model)
    modules = {module.name: module for module in (names.of_layer(path) for path in layers)}
    adapters = {
        name: _joined(module, layers, adaptable_layers(model)) for name, module in sorted(modules.items())
    }
    tensors = _named_tensors(adapters, modules, layers)
    saved = _saved_entries(model, names)
    weights = {x.path: x for x in model.weights}
    for entry in saved:
        values = [array_of(weights[path]) for path in entry.paths]
        tensors[f"{PREFIX}{entry.name}"] = entry.form.to_tensor(values)
    whole = sorted({entry.name.rpartition(".")[0] for entry in saved})
    transposed = all(module.transposed for module in modules.values()) and names.named_by_class
    options = {name: adapter.options for name, adapter in adapters.items()}
    content = config_json(options, whole, base, transposed=transposed)
    check_target(folder, overwrite, ConfigError, lambda _: {CONFIG, TENSORS})
    for name, value in tensors.items():
        check_values(value, f"{name} of model {model.name!r}", DIVERGED)
    arrays = {name: np.ascontiguousarray(x, "float32") for name, x in tensors.items()}
    with atomic_directory(folder, ConfigError) as temporary:
        (temporary / CONFIG).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        write_tensors(
            temporary / TENSORS,
            {name: (x.dtype, x.shape) for name, x in arrays.items()},
            arrays.__getitem__,
            {BLOCKS: json.dumps(_block_ranks(modules, layers)), **_label_metadata(model, saved)},
        )
    return folder


def _named_tensors(
    adapters: Mapping[str, LayerAdapter], modules: Mapping[str, Module], layers: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The tensors of the adapters, (rank, in) and (out, rank), by their names in PEFT."""
    tensors = {}
    for name, adapter in adapters.items():
        embedding = isinstance(layers.get(modules[name].layers[0]), keras.layers.Embedding)
        ends = ("embedding_A", "embedding_B") if embedding else ("A.weight", "B.weight")
        for end, key in zip(ends, "ab", strict=True):
            tensors[f"{PREFIX}{name}.lora_{end}"] = adapter.values[key].T
        if "magnitude" in adapter.values:
            tensors[f"{PREFIX}{name}.lora_magnitude_vector"] = adapter.values["magnitude"]
    return tensors


def _block_ranks(modules: Mapping[str, Module], layers: Mapping[str, Any]) -> dict[str, list[int]]:
    """The ranks of the layers of each module that contains several."""
    return {
        name: [layers[path].adapter.rank if path in layers else 0 for path in module.layers]
        for name, module in modules.items()
        if len(module.layers) > 1
    }


def _label_metadata(model: Any, saved: Sequence[Entry]) -> dict[str, str]:
    """The class names of the model's head, if its weights are saved."""
    labels = getattr(getattr(model, "head", None), "labels", None)
    if labels is None or not _of_head(model).intersection(path for entry in saved for path in entry.paths):
        return {}
    return {LABELS: json.dumps(list(labels))}


def _of_head(model: Any) -> set[str]:
    """The paths of the weights of a model's head."""
    layers = model.head_layers() if hasattr(model, "head_layers") else []
    return {variable.path for layer in layers for variable in layer.weights}


def _saved_entries(model: Any, names: ModuleNames) -> list[Entry]:
    paths = {variable.path for layer in trained_whole(model) for variable in layer.weights}
    return names.entries_of(paths) if paths else []


def _joined(module: Module, adapted: Mapping[str, Any], layers: Mapping[str, Any]) -> LayerAdapter:
    """The adapter of a module: B of several layers is block-diagonal."""
    parts = [adapted.get(path) for path in module.layers]
    first = next(part for part in parts if part is not None)
    options: LowRank = first.adapter
    if len(parts) == 1:
        return LayerAdapter(options, _values_of(first, module.factors[0]))
    outs = [layers[path].units for path in module.layers]
    rank = sum(part.adapter.rank for part in parts if part is not None)
    b = np.zeros((rank, sum(outs)), "float32")
    a, magnitudes = [], []
    row = column = 0
    for path, part, out, factor in zip(module.layers, parts, outs, module.factors, strict=True):
        if part is None:
            if options.dora:
                magnitudes.append(_norms(layers[path]))
        else:
            if (part.adapter.dora, part.adapter.rank_stabilized) != (options.dora, options.rank_stabilized):
                raise ConfigError(
                    f"Layers {module.layers[0]!r} and {path!r} are one module in PEFT, but have adapters of "
                    "different kinds. Add them with one call of keras_tx.lora."
                )
            values = _values_of(part, factor)
            a.append(values["a"])
            # All parts share the scale of the first.
            scaled = values["b"] * np.float32(part.adapter.scale / options.scale)
            b[row : row + part.adapter.rank, column : column + out] = scaled
            magnitudes += [values["magnitude"]] if options.dora else []
            row += part.adapter.rank
        column += out
    values = {"a": np.concatenate(a, axis=1), "b": b}
    if options.dora:
        values["magnitude"] = np.concatenate(magnitudes)
    return LayerAdapter(_with_scale(options, rank), values)


def _with_scale(options: LowRank, rank: int) -> LowRank:
    """The options of another rank with the same scale."""
    alpha = options.scale * (rank**0.5 if options.rank_stabilized else rank)
    return dataclasses.replace(options, rank=rank, alpha=float(alpha))


def _values_of(layer: Any, factor: float) -> dict[str, np.ndarray]:
    values = {name: array_of(variable) for name, variable in layer.adapter_variables.items()}
    values["a"] = values["a"].reshape(-1, layer.adapter.rank)
    values["b"] = values["b"] / np.float32(factor)
    if "magnitude" in values:
        values["magnitude"] = values["magnitude"] / np.float32(factor)
    return values


def _norms(layer: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(column_norms(layer._kernel)))


def load_adapter(model: Any, folder: str | os.PathLike[str]) -> Any:
    """Loads a folder that PEFT or `save_adapter` wrote into a model, in place.

    A model without adapters gets those of the folder, and its other weights are frozen. If the
    model has adapters already, they must match those of the folder; their values are replaced.

    If `save_adapter` wrote a head with class names, the model must have the same names in the same order, or
    none: it then gets those of the folder.

    Args:
        model: a model with the weights of the base.
        folder: a folder with adapter_config.json and adapter_model.safetensors.

    Returns:
        The model.

    Raises:
        ConfigError: the folder cannot be read, has options that are not supported, or does not match the
            model. The model is unchanged.
    """
    check_model(model)
    content = read_adapter(model, folder)
    current = adapted_layers(model)
    if current:
        _compare(content, {path: layer.adapter for path, layer in current.items()}, model.name)
        _compare_whole(content, model)
    else:
        owners = [
            layer
            for layer in layers_of(model)
            if any(variable.path in content.whole for variable in _own_variables(layer))
        ]
        adapt(model, {path: x.options for path, x in content.adapters.items()}, owners)
    assign_adapter(model, content)
    if content.labels is not None:
        model.head = named_head(model.head, content.labels)
    return model


def _own_variables(layer: Any) -> list[Any]:
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def assign_adapter(model: Any, content: AdapterFile) -> None:
    """Assigns the values of a folder to a model with its adapters."""
    for path, layer in adapted_layers(model).items():
        for name, variable in layer.adapter_variables.items():
            variable.assign(content.adapters[path].values[name].reshape(variable.shape))
    weights = {x.path: x for x in model.weights}
    for path, value in content.whole.items():
        weights[path].assign(value)


def _compare(content: AdapterFile, current: Mapping[str, LowRank], name: str) -> None:
    for path in sorted({*content.adapters, *current}):
        sides = [content.adapters.get(path), current.get(path)]
        texts = ["none" if x is None else f"{getattr(x, 'options', x)}" for x in sides]
        equal = None not in sides and _kind(sides[0].options) == _kind(sides[1])  # type: ignore[union-attr, arg-type]
        if not equal:
            raise ConfigError(
                f"{content.where} does not fit the adapters of model {name!r}: layer {path!r} has "
                f"{texts[0]} in the folder, and {texts[1]} in the model. Load it into a model without "
                "adapters."
            )


def _compare_whole(content: AdapterFile, model: Any) -> None:
    """Raises a ConfigError unless the folder has the fully trained layers of the model."""
    trained = {variable.path for layer in trained_whole(model) for variable in layer.weights}
    differing = sorted(trained.symmetric_difference(content.whole))
    if differing:
        owner = "the model trains" if differing[0] in trained else "the folder has"
        raise ConfigError(
            f"{content.where} does not fit model {model.name!r}: only {owner} the weight {differing[0]!r} "
            "besides the adapters. Load it into a model without adapters."
        )


def _kind(options: LowRank) -> tuple[Any, ...]:
    return options.rank, round(options.scale, 6), options.dora


def read_adapter(model: Any, folder: str | os.PathLike[str]) -> AdapterFile:
    """Reads a folder of PEFT for a model, and checks that it fits.

    Raises:
        ConfigError: as for `load_adapter`.
    """
    folder = Path(folder)
    config = PeftConfig(folder)
    tensors = open_tensors(folder / TENSORS)
    names = ModuleNames(model)
    modules: dict[str, dict[str, str]] = {}
    whole: list[str] = []
    for name in tensors.shapes:
        stem, kind = _kind_of(name.removeprefix(PREFIX))
        if kind is None:
            whole.append(name)
        else:
            modules.setdefault(stem, {})[kind] = name
    if not modules:
        raise ConfigError(f"{tensors.where} has no adapters: no tensor is named ...lora_A.weight.")
    content = AdapterFile(folder, {}, {})
    blocks = json.loads(tensors.metadata.get(BLOCKS, "{}"))
    layers = adaptable_layers(model)
    for stem, parts in sorted(modules.items()):
        module = names.of(stem)
        if module is None or not layers.keys() >= set(module.layers):
            raise ConfigError(
                f"{tensors.where} has an adapter of {stem!r}, which is not a dense layer of model "
                f"{model.name!r}. Load it into the model that it was trained with."
            )
        embedding = isinstance(layers[module.layers[0]], keras.layers.Embedding)
        options = config.options(stem, embedding=embedding)
        values = _read_values(tensors, stem, parts, options)
        content.adapters |= _split(module, options, values, layers, blocks.get(module.name), tensors.where)
    _read_whole(content, model, names, tensors, whole)
    if LABELS in tensors.metadata and _of_head(model).intersection(content.whole):
        content.labels = _labels_of(tensors)
        source = f"The head in {folder}"
        check_names(model.head, content.labels, model.name, source=source, remedy=OF_FOLDER)
    return content


def _labels_of(tensors: Tensors) -> tuple[str, ...]:
    try:
        labels = json.loads(tensors.metadata[LABELS])
    except ValueError:
        labels = None
    if not isinstance(labels, list) or not all(isinstance(name, str) for name in labels):
        raise ConfigError(
            f"{tensors.where}: the metadata {LABELS} is not a list of names. Copy the file again."
        )
    return tuple(labels)


def _kind_of(name: str) -> tuple[str, str | None]:
    for end, kind in KINDS.items():
        if name.endswith(end):
            return name.removesuffix(end), kind
    return name, None


def _read_values(
    tensors: Tensors, stem: str, parts: Mapping[str, str], options: LowRank
) -> dict[str, np.ndarray]:
    """The matrices of a module, (in, rank) and (rank, out)."""
    expected = {"a", "b"} | ({"magnitude"} if options.dora else set())
    if set(parts) != expected:
        missing = sorted(expected.symmetric_difference(parts))
        raise ConfigError(
            f"{tensors.where}: the adapter of {stem!r} has the tensors {sorted(parts.values())}, and "
            f"use_dora={options.dora} in {CONFIG} requires {sorted(expected)}: {missing} differ. Copy the "
            "folder again."
        )
    values = {kind: np.asarray(tensors.read(name), "float32") for kind, name in parts.items()}
    for kind in "ab":
        if values[kind].ndim != 2:
            raise ConfigError(f"{tensors.where}: {parts[kind]} has {values[kind].ndim} axes, expected 2.")
        values[kind] = values[kind].T
    ranks = values["a"].shape[1], values["b"].shape[0]
    if set(ranks) != {options.rank}:
        raise ConfigError(
            f"{tensors.where}: the adapter of {stem!r} has the ranks {ranks}, but {CONFIG} has "
            f"{options.rank}. Copy the folder again."
        )
    for kind, name in parts.items():
        check_values(
            values[kind], f"{name} of {tensors.where}", "Load an adapter from before its training diverged."
        )
    return values


def _split(
    module: Module,
    options: LowRank,
    values: dict[str, np.ndarray],
    layers: Mapping[str, Any],
    ranks: list[int] | None,
    where: str,
) -> dict[str, LayerAdapter]:
    """The adapters of the layers that a module contains. Without `ranks`, they share the matrix A."""
    adapters = {}
    inputs, outs = _sizes(layers, module)
    shapes = {"a": (inputs, options.rank), "b": (options.rank, sum(outs)), "magnitude": (sum(outs),)}
    for kind, value in values.items():
        if value.shape != shapes[kind]:
            raise ConfigError(
                f"{where}: {kind} of {module.name!r} has the shape {value.shape}, but model layers "
                f"{', '.join(module.layers)} need {shapes[kind]}."
            )
    if ranks is not None and (len(ranks) != len(outs) or sum(ranks) != options.rank):
        raise ConfigError(
            f"{where}: the metadata {BLOCKS} does not fit {module.name!r}. Copy the file again."
        )
    row = column = 0
    for index, (path, out, factor) in enumerate(zip(module.layers, outs, module.factors, strict=True)):
        rank = options.rank if ranks is None else ranks[index]
        rows = slice(None) if ranks is None else slice(row, row + rank)
        columns = slice(column, column + out)
        row, column = row + rank, column + out
        if not rank:
            continue
        part = {"a": values["a"][:, rows], "b": values["b"][rows, columns] * np.float32(factor)}
        if "magnitude" in values:
            part["magnitude"] = values["magnitude"][columns] * np.float32(factor)
        adapters[path] = LayerAdapter(options if ranks is None else _with_scale(options, rank), part)
    return adapters


def _sizes(layers: Mapping[str, Any], module: Module) -> tuple[int, list[int]]:
    """The number of inputs and outputs of the matrices of a module's layers."""
    sizes = []
    for path in module.layers:
        layer = layers[path]
        if isinstance(layer, keras.layers.Embedding):
            sizes.append((layer.input_dim, layer.output_dim))
        elif isinstance(layer, keras.layers.EinsumDense):
            shape = tuple(getattr(layer, "original_kernel_shape", None) or layer._kernel.shape)
            sizes.append((int(np.prod(shape[:-1])), shape[-1]))
        else:
            sizes.append((layer.input_spec.axes[-1], layer.units))
    return sizes[0][0], [out for _, out in sizes]


def _read_whole(
    content: AdapterFile, model: Any, names: ModuleNames, tensors: Tensors, whole: list[str]
) -> None:
    """Reads the tensors of fully trained layers."""
    shapes = {x.path: tuple(x.shape) for x in model.weights}
    for name in whole:
        entry = names.entry_of(name.removeprefix(PREFIX))
        if entry is None or not entry.paths or not shapes.keys() >= set(entry.paths):
            raise ConfigError(
                f"{tensors.where} has {name!r}, which is not a weight of model {model.name!r}. Load it "
                "into the model that it was trained with, with the same head."
            )
        expected = entry.form.tensor_shape([shapes[path] for path in entry.paths])
        if tensors.shapes[name] != expected:
            raise ConfigError(
                f"{tensors.where}: {name!r} has the shape {tensors.shapes[name]}, but "
                f"{', '.join(entry.paths)} of model {model.name!r} needs {expected}."
            )
        value = np.asarray(tensors.read(name), "float32")
        check_values(
            value, f"{name} of {tensors.where}", "Load an adapter from before its training diverged."
        )
        parts = entry.form.to_variables(value, [shapes[path] for path in entry.paths])
        content.whole |= dict(zip(entry.paths, parts, strict=True))
    owners = {path.rpartition("/")[0] for path in content.whole}
    partial = sorted(p for p in shapes if p.rpartition("/")[0] in owners and p not in content.whole)
    if partial:
        raise ConfigError(
            f"{tensors.where} has weights of layer {partial[0].rpartition('/')[0]!r}, but not "
            f"{partial[0]!r}. Copy the folder again."
        )
