"""Where the nodes of a graph run: on an execution target, or on the CPU.

The prediction reads the graph file and the table of kernels; it needs neither the target nor onnxruntime. The
graph that onnxruntime optimized has fewer nodes, because it merges some and computes constants.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from keras_tx.errors import FolderError
from keras_tx.kernels import TARGETS, has_kernel, versions
from keras_tx.protobuf import BYTES, VARINT, Field, read_fields, read_varint
from keras_tx.runtime.folder import checked_folder

# Field numbers of onnx.proto.
MODEL_GRAPH, MODEL_OPSET = 7, 8
OPSET_DOMAIN, OPSET_VERSION = 1, 2
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE_INFO = 1, 5, 11, 12, 13
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP_TYPE, NODE_ATTRIBUTE, NODE_DOMAIN = 1, 2, 3, 4, 5, 7
ATTRIBUTE_NAME, ATTRIBUTE_INTEGER, ATTRIBUTE_GRAPH = 1, 3, 6
TENSOR_DTYPE, TENSOR_NAME = 2, 8
VALUE_NAME, VALUE_TYPE, TENSOR_TYPE, ELEMENT_TYPE, SHAPE, DIMENSION, SIZE = 1, 2, 1, 1, 2, 1, 1
FLOATS = {1, 10, 11, 16}  # of TensorProto.DataType: float, float16, double, bfloat16
ON_WEBGPU = {1, 6, 9, 10, 12}  # float, int32, bool, float16, uint32
SIZES = {"Shape", "Size"}


@dataclasses.dataclass(frozen=True)
class GraphNode:
    """A node of a graph file.

    Attributes:
        operator: behind its domain, if that is not ONNX's own.
        integers: its attributes that are one integer, by name.
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    integers: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class GraphFile:
    """What a graph file says of its nodes.

    Attributes:
        opset: of ONNX's own operators.
        nodes: also those of branches and loops.
        dtypes: by the name of a value, the number of its TensorProto.DataType, as far as the file has it.
        constants: names of the weights.
        has_fixed_sizes: whether no input has a dynamic axis.
    """

    opset: int
    nodes: tuple[GraphNode, ...]
    dtypes: Mapping[str, int]
    constants: frozenset[str]
    has_fixed_sizes: bool

    def size_nodes(self) -> list[GraphNode]:
        """The nodes that compute sizes, positions and the like: they depend on sizes of inputs and constants.

        With fixed sizes, onnxruntime computes them when it opens the graph. With dynamic sizes, it leaves
        those without floating-point results to the CPU, where sizes are needed anyway.
        """
        known, sizes = set(self.constants), []
        for node in self.nodes:
            depends = [name for name in node.inputs if name and name not in known]
            if node.operator not in SIZES and (depends or not node.outputs):
                continue
            if self.has_fixed_sizes or not FLOATS.intersection(self.dtypes.get(x, 0) for x in node.outputs):
                sizes.append(node)
                known.update(node.outputs)
        return sizes


@dataclasses.dataclass(frozen=True)
class Placement:
    """How many nodes of a graph have a kernel of a target, and which run on the CPU, by operator.

    Attributes:
        target: nodes with a kernel.
        sizes: nodes that compute sizes on the CPU, or before the first run; they cost nothing.
        fallback: nodes without a kernel.
    """

    target: int
    sizes: int
    fallback: Counter[str]


def predict(graph: GraphFile, target: str, version: str) -> Placement:
    """The placement of a graph's nodes on a target by a version of onnxruntime, according to its kernels."""
    about = TARGETS[target]
    free = graph.size_nodes() if about.sizes_on_cpu or graph.has_fixed_sizes else []
    names = {output for node in free for output in node.outputs}
    others = [node for node in graph.nodes if not names.intersection(node.outputs)]
    fallback = Counter(
        node.operator
        for node in others
        if not has_kernel(target, node.operator, graph.opset, version)
        or not (about.integers or _fits(graph, node))
    )
    if about.fixed_sizes and not graph.has_fixed_sizes:
        fallback = Counter(node.operator for node in others)
    return Placement(len(others) - fallback.total(), len(free), fallback)


def _fits(graph: GraphFile, node: GraphNode) -> bool:
    """Whether WebGPU has the dtypes of a node's data; its other inputs are indices and sizes."""
    dtypes = (graph.dtypes.get(name) for name in (*node.inputs[:1], *node.outputs))
    return all(dtype is None or dtype in ON_WEBGPU for dtype in dtypes)


def of_folder(root: Path, target: str) -> dict[str, dict[str, Placement]]:
    """The placement of the graphs that a target may run, by their names and the version of onnxruntime.

    There is one for each precision, and two for an encoder-decoder. In fp32, the graph of the target is the
    main one, unless the folder has its own. On the CPU, a decoder may also have one with a shared cache,
    which `load` prefers.
    """
    folder = checked_folder(root, None, "fp32", target)
    folders = [checked_folder(root, name, name, target) for name in folder.manifest.precisions]
    on_cpu = target == "cpu"
    several = [(each.encoder, each.graph, each.shared if on_cpu else None) for each in folders]
    graphs = [graph for each in several for graph in each if graph is not None]
    return {
        graph.relative_to(folder.path).as_posix(): {
            version: predict(content, target, version) for version in versions()
        }
        for graph, content in ((graph, read_graph(graph)) for graph in graphs)
    }


def fallen_back(graph: Path, on_cpu: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Of the nodes that run on the CPU, as (name, operator), those that compute more than sizes.

    onnxruntime moves a Transpose behind a Shape, and then adds a Gather that reorders the sizes.
    """
    content = read_graph(graph)
    names = {node.name for node in content.nodes}
    sizes = {node.name for node in content.size_nodes()}
    return [
        (name, operator)
        for name, operator in on_cpu
        if name not in sizes and not (operator == "Gather" and name not in names)
    ]


def read_graph(path: Path) -> GraphFile:
    """Reads a graph file; raises a FolderError if it is damaged."""
    try:
        return _read(path.read_bytes())
    except (ValueError, OSError) as error:
        raise FolderError(f"{path} is not a valid ONNX file ({error}). Copy or export it again.") from error


def _read(content: bytes) -> GraphFile:
    messages = [(field.number, value) for field, value in _parts(content)]
    graph = next((value for number, value in messages if number == MODEL_GRAPH), b"")
    parts = [(field.number, value) for inner in _graphs(graph) for field, value in _parts(inner)]
    nodes = tuple(_node(value) for number, value in parts if number == GRAPH_NODE)
    weights = [value for number, value in parts if number == GRAPH_INITIALIZER]
    dtypes = {_text(value, TENSOR_NAME): _number(value, TENSOR_DTYPE) for value in weights}
    inputs = {
        _text(value, VALUE_NAME): value for field, value in _parts(graph) if field.number == GRAPH_INPUT
    }
    fixed = all(_has_fixed_shape(value) for name, value in inputs.items() if name not in dtypes)
    constants = frozenset(dtypes.keys() - inputs)  # a run may replace the value of an input
    dtypes |= _dtypes(parts)
    return GraphFile(_opset(messages), nodes, dtypes, constants, fixed)


def _opset(messages: Iterable[tuple[int, bytes]]) -> int:
    """The version of ONNX's own operators."""
    opsets = [value for number, value in messages if number == MODEL_OPSET]
    return next((_number(value, OPSET_VERSION) for value in opsets if not _text(value, OPSET_DOMAIN)), 0)


def _dtypes(parts: Iterable[tuple[int, bytes]]) -> dict[str, int]:
    """The data types of inputs, outputs and inferred values."""
    values = [value for number, value in parts if number in (GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE_INFO)]
    return {
        _text(value, VALUE_NAME): _number(_inside(value, VALUE_TYPE, TENSOR_TYPE), ELEMENT_TYPE)
        for value in values
    }


def _graphs(graph: bytes) -> Iterator[bytes]:
    """The graph, and the graphs in attributes of its nodes."""
    yield graph
    for field, node in _parts(graph):
        if field.number == GRAPH_NODE:
            for attribute, content in _parts(node):
                if attribute.number == NODE_ATTRIBUTE:
                    for inner, value in _parts(content):
                        if inner.number == ATTRIBUTE_GRAPH:
                            yield from _graphs(value)


def _node(content: bytes) -> GraphNode:
    texts: dict[int, list[str]] = {}
    integers = {}
    for field, value in _parts(content):
        if field.number == NODE_ATTRIBUTE:
            if any(inner.number == ATTRIBUTE_INTEGER for inner in read_fields(value)):
                integers[_text(value, ATTRIBUTE_NAME)] = _signed(_number(value, ATTRIBUTE_INTEGER))
        else:
            texts.setdefault(field.number, []).append(value.decode("utf-8"))
    domain = texts.get(NODE_DOMAIN, [""])[-1]
    operator = texts.get(NODE_OP_TYPE, [""])[-1]
    return GraphNode(
        texts.get(NODE_NAME, [""])[-1],
        f"{domain}.{operator}" if domain else operator,
        tuple(texts.get(NODE_INPUT, ())),
        tuple(texts.get(NODE_OUTPUT, ())),
        integers,
    )


def _has_fixed_shape(value: bytes) -> bool:
    shape = _inside(value, VALUE_TYPE, TENSOR_TYPE, SHAPE)
    axes = [value for field, value in _parts(shape) if field.number == DIMENSION]
    return all(any(field.number == SIZE for field in read_fields(axis)) for axis in axes)


def _parts(content: bytes) -> Iterator[tuple[Field, bytes]]:
    """The fields with strings of bytes or messages."""
    for field in read_fields(content):
        if field.wire_type == BYTES:
            yield field, content[field.first : field.end]


def _inside(content: bytes, *numbers: int) -> bytes:
    """The message in a message, by the numbers of their fields; empty if it is missing."""
    for number in numbers:
        content = next((value for field, value in _parts(content) if field.number == number), b"")
    return content


def _text(content: bytes, number: int) -> str:
    return _inside(content, number).decode("utf-8")


def _number(content: bytes, number: int) -> int:
    """An integer of a message; 0 if it is missing."""
    for field in read_fields(content):
        if field.number == number and field.wire_type == VARINT:
            return read_varint(content, field.first, field.end)[0]
    return 0


def _signed(number: int) -> int:
    """An int64 of a message, whose integers have no sign."""
    return number - 2**64 if number >= 2**63 else number
