"""The ONNX graph of a folder with other outputs, edited in memory in the format of the file.

The file is not changed, and the weights stay where they are. Three things differ from the served graph:

- Attention nodes have their fourth output, the attention weights.
- A model that reads one token computes only this token after the last keys and values. This selection is
  removed, so that the last layer has all queries.
- Nodes that the outputs do not need are left out.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from keras_tx.errors import FolderError
from keras_tx.protobuf import read_fields, write_field

# Field numbers of onnx.proto.
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE_INFO = 1, 5, 11, 12, 13
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP_TYPE, NODE_ATTRIBUTE = 1, 2, 3, 4, 5
ATTRIBUTE_NAME, ATTRIBUTE_INT, ATTRIBUTE_GRAPH, ATTRIBUTE_TYPE = 1, 3, 6, 20
VALUE_NAME, VALUE_TYPE, TENSOR_NAME = 1, 2, 8
TENSOR_TYPE, ELEMENT_TYPE, SHAPE, DIMENSION = 1, 1, 2, 1  # of a TypeProto and the messages in it
TYPE_INT = 2
# Numbers of TensorProto.DataType.
ELEMENTS = {
    **{"float32": 1, "float64": 11, "float16": 10, "bool": 9},
    **{"int8": 3, "int16": 5, "int32": 6, "int64": 7},
    **{"uint8": 2, "uint16": 4, "uint32": 12, "uint64": 13},
}

MODE, AFTER_SOFTMAX = b"qk_matmul_output_mode", 3
WEIGHTS = 3  # index of the output of Attention with the attention weights
SELECTED = re.compile(r"(.*/)?selected/Slice(_\d+)?")  # the exporter's names for a selected token
ATTENTION_PARTS = ("attention", "cross_attention")  # names of the attention layers of a TransformerBlock
NORMS = ("LayerNormalization", "RMSNormalization")


@dataclasses.dataclass(frozen=True)
class Node:
    """A node of a graph.

    Attributes:
        name, op_type, inputs, outputs: as in ONNX.
        attributes: the bytes of each AttributeProto.
        rest: the other fields, such as the domain.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[bytes, ...]
    rest: bytes

    @classmethod
    def read(cls, content: bytes) -> Node:
        fields: dict[int, list[bytes]] = {
            number: [] for number in (NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP_TYPE, NODE_ATTRIBUTE)
        }
        rest = b""
        for field in read_fields(content):
            if field.number in fields:
                fields[field.number].append(content[field.first : field.end])
            else:
                rest += content[field.start : field.end]
        (name,), (op_type,) = (_texts(fields[number]) or [""] for number in (NODE_NAME, NODE_OP_TYPE))
        inputs, outputs = (tuple(_texts(fields[number])) for number in (NODE_INPUT, NODE_OUTPUT))
        return cls(name, op_type, inputs, outputs, tuple(fields[NODE_ATTRIBUTE]), rest)

    def write(self) -> bytes:
        parts = [(NODE_INPUT, x.encode()) for x in self.inputs]
        parts += [(NODE_OUTPUT, x.encode()) for x in self.outputs]
        parts += [(NODE_NAME, self.name.encode()), (NODE_OP_TYPE, self.op_type.encode())]
        parts += [(NODE_ATTRIBUTE, attribute) for attribute in self.attributes]
        return b"".join(write_field(*part) for part in parts) + self.rest

    @property
    def path(self) -> str:
        """The layer of the node."""
        return self.name.rpartition("/")[0]

    def names(self) -> Iterator[str]:
        """Names of values that the node reads."""
        yield from filter(None, self.inputs)  # a missing input has no name
        for subgraph in self.subgraphs():
            yield from subgraph.names()

    def subgraphs(self) -> list[Graph]:
        """The graphs in its attributes, such as the branches of an If."""
        return [subgraph for attribute in self.attributes for subgraph in _subgraphs(attribute)]

    def with_subgraphs(self, change: Callable[[Graph], Graph]) -> Node:
        """A copy whose graphs are changed."""
        attributes = []
        for attribute in self.attributes:
            parts = [
                write_field(ATTRIBUTE_GRAPH, change(Graph.read(attribute[field.first : field.end])).write())
                if field.number == ATTRIBUTE_GRAPH
                else attribute[field.start : field.end]
                for field in read_fields(attribute)
            ]
            attributes.append(b"".join(parts))
        return dataclasses.replace(self, attributes=tuple(attributes))

    def with_weights(self, name: str) -> Node:
        """A copy of an Attention with its weights as output, or of an If with those of its branches."""
        if self.op_type == "If":
            branches = self.with_subgraphs(
                lambda subgraph: subgraph.with_weights(_only_attention(subgraph), name)
            )
            return dataclasses.replace(branches, outputs=(*self.outputs, name))
        mode = write_field(ATTRIBUTE_NAME, MODE) + write_field(ATTRIBUTE_INT, AFTER_SOFTMAX)
        mode += write_field(ATTRIBUTE_TYPE, TYPE_INT)
        others = [x for x in self.attributes if _first_text(x, ATTRIBUTE_NAME) != MODE.decode()]
        outputs = [*self.outputs, "", "", ""][:WEIGHTS]
        return dataclasses.replace(self, outputs=(*outputs, name), attributes=(*others, mode))


@dataclasses.dataclass(frozen=True)
class Graph:
    """A graph, or a subgraph of a node.

    Attributes:
        nodes: in the order of the file.
        initializers: the bytes of each TensorProto, by name.
        inputs: the bytes of each ValueInfoProto, by name.
        outputs: the bytes of each ValueInfoProto, by name.
        rest: the other fields, except for the shapes of values, which other outputs change.
    """

    nodes: tuple[Node, ...]
    initializers: dict[str, bytes]
    inputs: dict[str, bytes]
    outputs: dict[str, bytes]
    rest: bytes

    @classmethod
    def read(cls, content: bytes) -> Graph:
        nodes: list[Node] = []
        named: dict[int, dict[str, bytes]] = {GRAPH_INITIALIZER: {}, GRAPH_INPUT: {}, GRAPH_OUTPUT: {}}
        rest = b""
        for field in read_fields(content):
            value = content[field.first : field.end]
            if field.number == GRAPH_NODE:
                nodes.append(Node.read(value))
            elif field.number in named:
                number = TENSOR_NAME if field.number == GRAPH_INITIALIZER else VALUE_NAME
                named[field.number][_first_text(value, number)] = value
            elif field.number != GRAPH_VALUE_INFO:
                rest += content[field.start : field.end]
        return cls(tuple(nodes), named[GRAPH_INITIALIZER], named[GRAPH_INPUT], named[GRAPH_OUTPUT], rest)

    def write(self) -> bytes:
        parts = [(GRAPH_NODE, node.write()) for node in self.nodes]
        for number, values in (
            (GRAPH_INITIALIZER, self.initializers),
            (GRAPH_INPUT, self.inputs),
            (GRAPH_OUTPUT, self.outputs),
        ):
            parts += [(number, value) for value in values.values()]
        return b"".join([write_field(number, value) for number, value in parts] + [self.rest])

    def names(self) -> Iterator[str]:
        """Names of values that the nodes read, and of the outputs."""
        for node in self.nodes:
            yield from node.names()
        yield from self.outputs

    def with_weights(self, node: Node, name: str) -> Graph:
        """A copy that also outputs the attention weights of a node."""
        nodes = tuple(x.with_weights(name) if x is node else x for x in self.nodes)
        return dataclasses.replace(self, nodes=nodes, outputs={**self.outputs, name: _value_info(name)})

    def with_all_tokens(self) -> Graph:
        """A copy without the selection of a token."""
        producers = {output: node for node in self.nodes for output in node.outputs}
        places = next((node.outputs[0] for node in self.nodes if _locates_tokens(node, producers)), None)
        return dataclasses.replace(self, nodes=tuple(_with_all_tokens(node, places) for node in self.nodes))

    def with_outputs(self, names: Iterable[str]) -> Graph:
        """A copy with these outputs, and only the nodes and weights that they need."""
        outputs = dict.fromkeys(names)
        nodes = nodes_for(self.nodes, outputs)
        needed = {*outputs, *(name for node in nodes for name in node.names())}
        needed |= set(self.inputs)  # an input with a default value has an initializer
        return dataclasses.replace(
            self,
            nodes=tuple(nodes),
            initializers={name: value for name, value in self.initializers.items() if name in needed},
            outputs={name: _value_info(name) for name in outputs},
        )


@dataclasses.dataclass(frozen=True)
class AttentionNode:
    """An Attention node of a graph, or an If whose branches have one each.

    Attributes:
        path: of the layer, such as "block_0/attention".
        node: in the graph.
    """

    path: str
    node: Node

    @property
    def layer(self) -> str:
        """The transformer block; the attention layer itself, if it is not in a block."""
        block, _, name = self.path.rpartition("/")
        return block if block and name in ATTENTION_PARTS else self.path

    @property
    def is_cross(self) -> bool:
        """Whether it is the cross-attention of a TransformerBlock."""
        return self.path.rpartition("/")[2] == ATTENTION_PARTS[1]

    @property
    def weights(self) -> str:
        """The name of the output with the attention weights."""
        return f"{self.node.outputs[0]}/attention_weights"


@dataclasses.dataclass(frozen=True)
class Segment:
    """The part of a graph from one attention layer to the next.

    Attributes:
        attention: the Attention node at its end.
        nodes: the nodes that no earlier segment computes.
        values: values that later segments read.
        later: names that later segments read.
    """

    attention: AttentionNode
    nodes: tuple[Node, ...]
    values: tuple[str, ...]
    later: frozenset[str]


class GraphOutputs:
    """A graph file whose outputs can be chosen.

    Args:
        content: of the .onnx file.
        layers: paths of the layers of the model.

    Attributes:
        attention: the Attention nodes, in the order of the graph.

    Raises:
        ValueError: if the content is not valid.
        FolderError: if an Attention node is in a loop.
    """

    def __init__(self, content: bytes, layers: Iterable[str] = ()) -> None:
        graph, self._rest = None, b""
        for field in read_fields(content):
            if field.number == MODEL_GRAPH:
                graph = Graph.read(content[field.first : field.end])
            else:
                self._rest += content[field.start : field.end]
        if graph is None:
            raise ValueError("it has no graph")
        named_by_exporter = not any("selected" in path.split("/") for path in layers)
        self.graph = graph.with_all_tokens() if named_by_exporter else graph
        self.attention = [x for node in self.graph.nodes for x in _attention_nodes(node)]

    def write(self, attention: Sequence[AttentionNode] = (), values: Sequence[str] = ()) -> bytes:
        """Returns the graph with the weights of Attention nodes and other values as outputs."""
        graph = self.graph
        for one in attention:
            graph = graph.with_weights(one.node, one.weights)
        graph = graph.with_outputs([*(one.weights for one in attention), *values])
        return self._rest + write_field(MODEL_GRAPH, graph.write())

    def segments(self, attention: Sequence[AttentionNode]) -> Iterator[Segment]:
        """Yields the segments that compute the weights of Attention nodes in the order of the graph."""
        done: set[int] = set()
        for index, one in enumerate(attention):
            nodes = [node for node in self._nodes_for([one]) if id(node) not in done]
            done |= {id(node) for node in nodes}
            after = [node for node in self._nodes_for(attention[index + 1 :]) if id(node) not in done]
            later = frozenset(name for node in after for name in node.names())
            values = tuple(name for node in nodes for name in node.outputs if name in later)
            yield Segment(one, tuple(nodes), values, later)

    def _nodes_for(self, attention: Sequence[AttentionNode]) -> list[Node]:
        return nodes_for(self.graph.nodes, [one.node.outputs[0] for one in attention])

    def write_segment(self, segment: Segment, known: Mapping[str, np.ndarray]) -> bytes:
        """Returns the graph of a segment; the values of earlier segments are inputs."""
        inputs = {name: _value_info(name, value) for name, value in known.items()} | self.graph.inputs
        graph = dataclasses.replace(self.graph, nodes=segment.nodes, inputs=inputs)
        graph = graph.with_weights(segment.attention.node, segment.attention.weights)
        graph = graph.with_outputs([segment.attention.weights, *segment.values])
        return self._rest + write_field(MODEL_GRAPH, graph.write())

    def write_constant(self, name: str) -> bytes:
        """Returns a graph without inputs whose output is a constant of this graph."""
        graph = dataclasses.replace(self.graph, nodes=(), inputs={}).with_outputs([name])
        return self._rest + write_field(MODEL_GRAPH, graph.write())

    def constants_of(self, layer: str) -> list[str]:
        """Returns the names of the constants that the nodes of a layer read, and of its weights elsewhere."""
        return [
            name
            for node in self.graph.nodes
            for name in node.inputs
            if name in self.graph.initializers and layer in (node.path, name.rpartition("/")[0])
        ]

    def hidden_states(self, final_norm: bool) -> list[str] | None:
        """Returns the names of the values with hidden states; None if the graph has no transformer blocks.

        The first is the input of the first block, the others are the outputs of the blocks.

        Args:
            final_norm: whether the last hidden state is the output of the norm after the last block, if there
                is one.
        """
        blocks = [one.layer for one in self.attention if not one.is_cross and one.layer != one.path]
        nodes = {node.name: node for node in self.graph.nodes}
        sums = [nodes.get(f"{block}/add/Add") for block in blocks]
        if not blocks or None in sums:
            return None
        states = [node.inputs[0] for node in sums if node is not None]
        return [*states, self._last_state(blocks[-1], "" if final_norm else f"{blocks[-1]}/")]

    def _last_state(self, block: str, prefix: str) -> str:
        """The last residual sum of a block, or the output of a norm behind it whose name has the prefix."""
        sums = [node for node in self.graph.nodes if node.name.startswith(f"{block}/add")]
        last = sums[-1].outputs[0]
        while (norm := self._norm_of(last, prefix)) is not None:
            last = norm
        return last

    def _norm_of(self, value: str, prefix: str) -> str | None:
        """The output of the norm with this start of its name that reads a value, or None."""
        for node in self.graph.nodes:
            if node.op_type in NORMS and node.inputs[0] == value and node.name.startswith(prefix):
                return node.outputs[0]
        return None


def _attention_nodes(node: Node) -> list[AttentionNode]:
    if node.op_type == "Attention":
        return [AttentionNode(node.path, node)]
    if not any(map(_has_attention, node.subgraphs())):
        return []
    if node.op_type != "If":
        raise FolderError(
            f"The layer {node.path!r} has its Attention inside a {node.op_type}, whose attention weights "
            "cannot be read. Inspect the Keras model instead."
        )
    for subgraph in node.subgraphs():
        _only_attention(subgraph)
    return [AttentionNode(node.path, node)]


def _has_attention(subgraph: Graph) -> bool:
    return any(
        node.op_type == "Attention" or any(map(_has_attention, node.subgraphs())) for node in subgraph.nodes
    )


def _only_attention(subgraph: Graph) -> Node:
    nodes = [node for node in subgraph.nodes if node.op_type == "Attention"]
    if len(nodes) != 1:
        raise FolderError(
            f"A branch has {len(nodes)} Attention nodes, expected 1. Inspect the Keras model instead."
        )
    return nodes[0]


def _locates_tokens(node: Node, producers: dict[str, Node]) -> bool:
    """Whether a node computes the place of each token among those that an unpadded graph computes."""
    if node.op_type != "ScatterND" or not node.name.startswith("unpad/"):
        return False
    return producers[node.inputs[2]].op_type == "Range"


def _with_all_tokens(node: Node, places: str | None) -> Node:
    """The node; one that selects a token passes all tokens."""
    if node.op_type == "Slice" and SELECTED.fullmatch(node.name):
        return dataclasses.replace(node, op_type="Identity", inputs=node.inputs[:1])
    if node.op_type == "Gather" and places and SELECTED.fullmatch(node.outputs[0]):
        return dataclasses.replace(node, inputs=(node.inputs[0], places))
    return node.with_subgraphs(Graph.with_all_tokens) if node.subgraphs() else node


def nodes_for(nodes: Sequence[Node], outputs: Iterable[str]) -> list[Node]:
    """Returns the nodes that compute these values, in their order."""
    needed, result = set(outputs), []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            result.append(node)
            needed.update(node.names())
    return result[::-1]


def _value_info(name: str, value: np.ndarray | None = None) -> bytes:
    """A ValueInfoProto with the type of an array, or without type, which onnxruntime infers."""
    info = write_field(VALUE_NAME, name.encode())
    if value is None:
        return info
    shape = write_field(DIMENSION, b"") * value.ndim
    tensor = write_field(ELEMENT_TYPE, ELEMENTS[str(value.dtype)]) + write_field(SHAPE, shape)
    return info + write_field(VALUE_TYPE, write_field(TENSOR_TYPE, tensor))


def _subgraphs(attribute: bytes) -> list[Graph]:
    return [
        Graph.read(attribute[field.first : field.end])
        for field in read_fields(attribute)
        if field.number == ATTRIBUTE_GRAPH
    ]


def _texts(values: Iterable[bytes]) -> list[str]:
    return [value.decode("utf-8") for value in values]


def _first_text(message: bytes, number: int) -> str:
    """The string in a field of a message; empty without the field."""
    values = (message[field.first : field.end] for field in read_fields(message) if field.number == number)
    return next(values, b"").decode("utf-8")
