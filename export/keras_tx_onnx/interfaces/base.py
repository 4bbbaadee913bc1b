"""Interface: the inputs, outputs and files of an exported folder, for one kind of model."""

from __future__ import annotations

import abc
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.models.families import family_of
from keras_tx.runtime.session import Session
from keras_tx_onnx import tolerances
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.graph.token_selection import select_tokens
from keras_tx_onnx.reading import functional_graph, quantized_layers
from keras_tx_onnx.reading.signature import Functional

Feed = dict[str, np.ndarray]  # the inputs of onnxruntime, by name
Example = tuple[Feed, list[np.ndarray]]  # and those of Keras, flat
Sizes = Mapping[str, int]  # of the dynamic axes, by name
Masks = Sequence[str]  # the kind of padding mask of each row
Run = Callable[[Session, Feed], Feed]
Pass = Callable[[ir.Model], int]
IN_CHUNKS = "in chunks"  # a run of a decoder that continues the past of a cache


class OtherRun(NamedTuple):
    """Another way to compute the outputs of a case; `last` is how many of the last tokens it returns."""

    run: Run
    last: int | None = None  # None for all


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """Models that have no options of their own."""


class Interface(abc.ABC):
    """The inputs, outputs and files of an exported folder. Each kind of model has a subclass.

    `Options` is a dataclass of the options of export_onnx that the subclass has. It validates their values.
    """

    kind: ClassVar[str]  # in error messages, with its article
    Options: ClassVar[type]
    tasks: ClassVar[
        tuple[str, ...]
    ] = ()  # that export_onnx accepts, if the model does not determine its task

    path: ClassVar[str] = contract.MODEL  # of the graph, in the folder
    adapter_path: ClassVar[str] = contract.ADAPTERS  # of the values of its ports, by the name of an adapter
    outputs: list[str]  # of the model, in order
    task: str | None = None
    labels: tuple[str, ...] | None = None
    axes: tuple[str, ...] = ()  # dynamic axes other than the batch
    sequences: bool = False  # whether these axes are lengths of sequences
    pictures: bool = False  # whether these axes are heights and widths
    masked: bool = False  # whether the inputs include padding masks
    batch: int | None = None  # the batch size, if it is fixed
    max_length: int | None = None  # the largest size of these axes, if it is limited
    farthest: int = 0  # the distance of tokens from which on masks and biases of attention are constant
    context_length: int = 0  # of a decoder with a cache: how many tokens it supports
    add_ports: Callable[[GraphContext], None] | None = None  # adds the ports of adapters to the graph

    def __init__(self, functional: Functional, options: Any, opset: int):
        self.model = functional.model  # the model that is exported
        self.options = options
        self.opset = opset
        self.files: dict[str, Any] = {}  # for clients, by name: text, or content that becomes JSON
        self.notes = list(functional.notes)
        self.signature = functional.signature
        self.family = family_of(self.model)  # None for models that belong to none
        self.passes: list[Pass] = [select_tokens]  # over a graph with known shapes
        self.sizes: Sizes = {}  # of dynamic axes that the graph has in one size only

    @property
    def precision(self) -> str:
        """That of the layers that Keras quantized; otherwise fp32, for any policy."""
        name = quantized_layers.precision_of(self._quantized) if self._quantized else "fp32"
        return "int8" if name == contract.method_of("int8", self.task) else name

    @property
    def tolerance(self) -> float:
        """Of a difference between the graph and Keras."""
        if self.precision == "float8":
            return tolerances.FLOAT8
        rounded = any(map(quantized_layers.rounds_inputs, self._quantized))
        return tolerances.INT8 if rounded else tolerances.FLOAT32

    @property
    def _quantized(self) -> list[Any]:
        """The layers that Keras quantized or is about to quantize."""
        layers = functional_graph.parts(self.model)
        return [layer for layer in layers if getattr(layer, "quantization_mode", None) is not None]

    @property
    def parts(self) -> Sequence[Interface]:
        """The interfaces of the graphs of the folder, the main one last; most have one graph."""
        return [self]

    @abc.abstractmethod
    def open(self, context: GraphContext) -> list[ir.Value]:
        """Adds the inputs of the graph and returns the values of the model's inputs."""

    @abc.abstractmethod
    def example(self, sizes: Sizes, masks: Masks, random: np.random.Generator) -> Example:
        """Draws inputs with these sizes of the dynamic axes and one row for each mask."""

    def close(self, context: GraphContext) -> None:  # noqa: B027  most interfaces add none
        """Adds outputs after those of the model."""

    def add_config(self, model: Any, labels: list[str] | None, processing: Any = None) -> None:
        """Adds the config.json of a model of a family."""
        assert self.family is not None
        config = self.family.config_json(model, labels, processing)
        self.files[contract.CONFIG] = config.content
        if config.note is not None:
            self.notes.append(config.note)

    def dynamic_axes(self) -> list[str]:
        """The names of the dynamic axes of the inputs."""
        context = GraphContext("inputs", self.opset)
        self.open(context)
        axes = [axis for value in context.graph.inputs for axis in value.shape or ()]
        return list(dict.fromkeys(str(axis.value) for axis in axes if isinstance(axis, ir.SymbolicDim)))

    def fix(self, sizes: Sizes) -> None:
        """Gives dynamic axes one size each."""
        lengths = {axis: size for axis, size in sizes.items() if axis in self.axes}
        if not self.permits(lengths):
            raise ConfigError(
                f"sizes={dict(sizes)} is out of range: model {self.model.name!r} supports up to "
                f"{self.max_length} tokens."
            )
        self.sizes = sizes
        self.batch = sizes.get(contract.BATCH_AXIS, self.batch)
        self.axes = tuple(axis for axis in self.axes if axis not in sizes)

    def permits(self, sizes: Sizes) -> bool:
        """Whether the model supports these sizes of the dynamic axes."""
        return self.max_length is None or max(sizes.values(), default=0) <= self.max_length

    def expected(self, outputs: list[np.ndarray], inputs: list[np.ndarray]) -> list[np.ndarray]:
        """The outputs that the graph must return where Keras returns `outputs` for `inputs`."""
        return outputs

    @property
    def run(self) -> Run:
        """Runs the graph on an example."""
        return Session.run

    def other_runs(self, feed: Feed, batch: int) -> dict[str, OtherRun]:
        """Other ways to compute the same outputs, by name.

        Args:
            feed: inputs of the graph.
            batch: the index of their batch among those of the verification.
        """
        return {}

    def last_runs(self, feed: Feed, count: int) -> dict[str, OtherRun]:
        """Ways to compute the outputs of the last tokens of a decoder with a cache, by name."""
        return {}

    def write_second_graph(self, path: Path, external: bool) -> Path | None:
        """Writes another graph over the same weights; `external` says whether these are in a data file."""
        return None

    def export_options(self) -> dict[str, Any]:
        """The options of this kind of model that shape the graph, as JSON values."""
        return {}


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is invalid. Pass True or False.")


def no_model_type(reason: str) -> str:
    """A note about a config.json that Hugging Face's classes cannot read."""
    return (
        f"config.json has no model_type: {reason}. Clients that need one (Optimum, transformers.js) cannot "
        "open the folder; onnxruntime and keras_tx.runtime can."
    )


def axis_names(shape: Sequence[int | None], prefix: str = "") -> list[int | str]:
    """Names of the dynamic axes of an input or output: identifiers, because bounds contain them.

    >>> axis_names((None, None, 64), "query")
    ['batch_size', 'query_sequence_length', 64]
    """
    prefix = re.sub(r"\W|^(?=\d)", "_", prefix)
    names = {4: ("height", "width"), 5: ("depth", "height", "width")}.get(len(shape), ("sequence_length",))
    channels_first = len(shape) > 3 and shape[1] is not None and shape[-1] is None
    first = 2 if channels_first else 1
    axes: list[int | str] = []
    for index, size in enumerate(shape):
        if size is not None:
            axes.append(size)
        elif index == 0:
            axes.append(contract.BATCH_AXIS)
        else:
            name = names[index - first] if 0 <= index - first < len(names) else f"axis_{index}"
            axes.append(f"{prefix}_{name}" if prefix else name)
    return axes
