"""Adapters that are stored beside the base model, as values of optional inputs of its graph."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from keras_tx.errors import ConfigError
from keras_tx.models.adapters.adapter_folder import AdapterFile, read_adapter
from keras_tx.models.adapters.layer_selection import adaptable_layers, adapted_layers
from keras_tx.runtime.adapter_file import write_adapter_file
from keras_tx.weights.weight_values import array_of
from keras_tx_onnx.graph.adapter_ports import REMEDY, AdapterPorts, LowRankValues
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.interfaces.base import Interface
from keras_tx_onnx.reading import functional_graph

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
Adapters = Mapping[str, Any] | Sequence[Any]


@dataclasses.dataclass(frozen=True)
class SeparateAdapter:
    """An adapter for a base model.

    Attributes:
        name: by which the runtime selects it.
        content: the adapter folder.
        products: the matrices by the Keras variable to which their product is added.
        replaced: values by the variable that they replace.
    """

    name: str
    content: AdapterFile
    products: tuple[tuple[Any, LowRankValues], ...]
    replaced: tuple[tuple[Any, np.ndarray], ...]

    @property
    def labels(self) -> tuple[str, ...] | None:
        return self.content.labels

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A context in which the Keras model has the adapter, merged into its weights."""
        sums = [(variable, array_of(variable) + _product(variable, x)) for variable, x in self.products]
        with _assigned([*sums, *self.replaced]):
            yield

    def values(self, ports: AdapterPorts) -> dict[str, np.ndarray]:
        """The values of the ports of the graph."""
        with _assigned(self.replaced):  # without the products, which have ports of their own
            return ports.values(
                {id(variable): matrices for variable, matrices in self.products},
                {id(variable) for variable, _ in self.replaced},
            )


@contextmanager
def _assigned(values: Sequence[tuple[Any, np.ndarray]]) -> Iterator[None]:
    """A context in which Keras variables have other values."""
    tensors = [(variable, ops.convert_to_tensor(value, variable.dtype)) for variable, value in values]
    with functional_graph.unchanged(tensors):
        yield


def _product(variable: Any, matrices: LowRankValues) -> np.ndarray:
    return (matrices.a @ matrices.b).reshape(variable.shape)


class SeparateAdapters:
    """The adapters of an export.

    Args:
        model: the base.
        interface: its interface, whose graphs get the ports.
        folders: the adapter folders, or a dict of them by name.

    Attributes:
        adapters: the adapters.
        values: by the name of a file, the values of the ports of its graph.

    Raises:
        ConfigError: if a folder does not fit the model, or cannot be stored beside it.
    """

    def __init__(self, model: Any, interface: Interface, folders: Adapters):
        self.adapters = read_adapters(model, interface, folders)
        self.values: dict[str, dict[str, np.ndarray]] = {}
        self._parts = interface.parts
        for part in self._parts if self.adapters else ():
            part.add_ports = partial(self._add_ports, part)

    def _add_ports(self, part: Interface, context: GraphContext) -> None:
        adapted = self._of_part(part, (x for adapter in self.adapters for x, _ in adapter.products))
        replaced = self._of_part(part, (x for adapter in self.adapters for x, _ in adapter.replaced))
        ports = AdapterPorts(context, adapted, replaced)
        for adapter in self.adapters:
            self.values[part.adapter_path.format(adapter.name)] = adapter.values(ports)

    def _of_part(self, part: Interface, variables: Iterable[Any]) -> list[Any]:
        """Variables, each once, without those that only other graphs use."""
        others = {id(x) for each in self._parts for x in each.model.weights}
        others -= {id(x) for x in part.model.weights}
        return list({id(x): x for x in variables if id(x) not in others}.values())

    def write(self, folder: Path) -> None:
        """Writes the files of the adapters."""
        for name, values in self.values.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_adapter_file(path, values)


def read_adapters(model: Any, interface: Interface, adapters: Adapters) -> list[SeparateAdapter]:
    """Reads adapter folders for a model; raises a ConfigError if one cannot be stored beside the base."""
    folders = _by_name(adapters)
    if adapted_layers(model):
        raise ConfigError(
            f"adapters= requires a base without adapters, but model {model.name!r} has some. Save them with "
            "keras_tx.save_adapter, and pass the base and that folder."
        )
    if interface.precision != "fp32":
        raise ConfigError(
            f"adapters= is not supported for model {model.name!r}, which Keras quantized. Export the float "
            "model with adapters=, and quantize the folder."
        )
    return [_read(model, name, folder) for name, folder in folders.items()]


def _by_name(adapters: Adapters) -> dict[str, Path]:
    if isinstance(adapters, str | os.PathLike):
        raise ConfigError(f"adapters={adapters!r}, expected a list of folders, or a dict of them by name.")
    pairs = adapters.items() if isinstance(adapters, Mapping) else ((Path(x).name, x) for x in adapters)
    folders: dict[str, Path] = {}
    for name, folder in pairs:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ConfigError(
                f"adapters has the name {name!r}, expected letters, digits, '.', '_' and '-', with a letter "
                "or digit first. Pass a dict of folders by name."
            )
        if name in folders:
            raise ConfigError(f"adapters has two folders named {name!r}. Pass a dict of folders by name.")
        folders[name] = Path(folder)
    return folders


def _read(model: Any, name: str, folder: Path) -> SeparateAdapter:
    content = read_adapter(model, folder)
    layers = adaptable_layers(model)
    products = []
    for path, adapter in content.adapters.items():
        if adapter.options.dora:
            raise ConfigError(
                f"Adapter {name!r} has a magnitude for layer {path!r} (DoRA), which cannot be added to the "
                f"result of the base. {REMEDY}"
            )
        layer, values = layers[path], adapter.values
        variable = layer._embeddings if hasattr(layer, "_embeddings") else layer._kernel
        scaled = values["b"] * np.float32(adapter.options.scale)
        products.append((variable, LowRankValues(values["a"], scaled)))
    weights = {variable.path: variable for variable in model.weights}
    replaced = tuple((weights[path], value) for path, value in content.whole.items())
    return SeparateAdapter(name, content, tuple(products), replaced)
