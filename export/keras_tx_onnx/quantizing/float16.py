"""fp16: weights, activations and the cache in half precision; other inputs and outputs keep their dtypes.

Nodes that overflow or lose digits in half precision stay in float32 between two casts: softmax, powers, sums,
nodes with numbers near the end of the range, and nodes with a constant beyond or below it, such as a mask of
-1e9 or an epsilon of 1e-12. So do branches and loops, with everything inside. LayerNormalization computes in
float32 by its definition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.graph.first_call import is_of_cache

FLOAT, FLOAT16 = ir.DataType.FLOAT, ir.DataType.FLOAT16
IN_FLOAT32 = frozenset(
    "BlackmanWindow Cast CumSum DFT DequantizeLinear DynamicQuantizeLinear Exp EyeLike HammingWindow "
    "HannWindow Log LogSoftmax LpNormalization NonMaxSuppression Pow QuantizeLinear RandomNormal "
    "RandomNormalLike RandomUniform RandomUniformLike Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum "
    "ReduceLogSumExp ReduceMean ReduceProd ReduceSum ReduceSumSquare Resize STFT Softmax Softplus "
    "Sqrt".split()
)
# onnxruntime 1.31's CPU provider crashes, and the process with it, when it loads some graphs that have one of
# these beside half precision, even where the node itself stays in float32.
CRASHING = frozenset({"GRU", "LSTM", "RNN"})
PAST, PRESENT = "past_key_values.", "present."  # the names of the cache begin with these
LARGEST = float(np.finfo("float16").max)
SMALLEST = float(np.finfo("float16").tiny)  # below it numbers lose digits
NEAR_THE_END = LARGEST / 4  # other inputs may lead to larger numbers than those that were tried


def to_float16(graph: ir.Graph, large: Iterable[str] = ()) -> dict[str, int]:
    """Converts a graph in place.

    Args:
        graph: with the dtypes of all values.
        large: names of values with numbers near the end of the range.

    Returns:
        By operator, how many nodes stay in float32.

    Raises:
        ExportError: if the graph has a node with which onnxruntime crashes.
    """
    recurrent = next((node for node in graph if node.op_type in CRASHING), None)
    if recurrent is not None:
        raise ExportError(
            f"onnxruntime crashes in fp16 on {recurrent.name!r} ({recurrent.op_type}), a recurrent node. Use "
            "fp32 or int8."
        )
    return _Conversion(graph, large).run()


class _Conversion:
    def __init__(self, graph: ir.Graph, large: Iterable[str]):
        self._graph = graph
        self._large = set(large)
        self._editor = GraphEditor(graph)
        self._in_float32: Counter[str] = Counter()  # by operator

    def run(self) -> dict[str, int]:
        for value in self._graph.inputs:
            if value.dtype == FLOAT and str(value.name).startswith(PAST):
                value.type = ir.TensorType(FLOAT16)
        weights = [value for value in self._graph.initializers.values() if value.dtype == FLOAT]
        for node in list(self._graph):
            if is_of_cache(node) and not self._is_large(node):
                self._convert_branches(node)
            else:
                self._convert(node)
        self._cast_outputs()
        self._editor.remove_unused(weights)
        return self._in_float32

    def _is_large(self, node: ir.Node) -> bool:
        """Whether a branch has numbers near the end of the range; then the node stays in float32."""
        inner = (x for attribute in node.attributes.values() for x in attribute.as_graph())
        values = (value for each in (node, *inner) for value in (*each.inputs, *each.outputs))
        return any(value is not None and value.name in self._large for value in values)

    def _convert_branches(self, node: ir.Node) -> None:
        """Converts the branches of a cache, whose results have one dtype."""
        for attribute in node.attributes.values():
            branch = attribute.as_graph()
            for inner in list(branch):
                self._convert(inner)
            for index, value in enumerate(branch.outputs):
                if value.dtype == FLOAT:
                    branch.outputs[index] = self._cast(value, FLOAT16)
        for value in node.outputs:
            value.type = ir.TensorType(FLOAT16)

    def _convert(self, node: ir.Node) -> None:
        """Casts the inputs of a node to the precision in which it computes."""
        has_floats = any(value is not None and _is_float(value) for value in node.inputs)
        if node.op_type == "ConstantOfShape":
            self._convert_constant_of_shape(node)
        elif self._stays_in_float32(node):
            if has_floats and node.op_type != "Cast":
                self._in_float32[node.op_type] += 1
            self._cast_inputs(node, FLOAT)
            self._cast_inputs_of_bodies(node)
        elif has_floats:
            self._cast_inputs(node, FLOAT16)
            for value in node.outputs:
                if value.dtype == FLOAT:
                    value.type = ir.TensorType(FLOAT16)

    def _stays_in_float32(self, node: ir.Node) -> bool:
        if node.op_type in IN_FLOAT32 or _has_body(node) or any(map(_is_out_of_range, node.inputs)):
            return True
        return any(x is not None and x.name in self._large for x in (*node.inputs, *node.outputs))

    def _cast_inputs(self, node: ir.Node, dtype: ir.DataType) -> None:
        for index, value in enumerate(node.inputs):
            if value is not None and _is_float(value) and value.dtype != dtype:
                node.replace_input_with(index, self._cast(value, dtype))

    def _cast_inputs_of_bodies(self, node: ir.Node) -> None:
        """Values that a branch or loop reads from outside stay float32 for it."""
        for attribute in node.attributes.values():
            inner = attribute.as_graph().all_nodes() if attribute.type == ir.AttributeType.GRAPH else ()
            for reader in inner:
                for index, value in enumerate(reader.inputs):
                    if value is not None and value.dtype == FLOAT16 and value.graph is self._graph:
                        reader.replace_input_with(index, self._cast(value, FLOAT))

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """The value in another dtype, once: weights are stored anew, others are cast behind their node."""

        def make() -> ir.Value:
            if value.const_value is not None and value.is_initializer() and not value.is_graph_input():
                array = value.const_value.numpy().astype(dtype.numpy())
                return self._editor.initializer(f"{value.name}_{dtype.name.lower()}", array)
            producer = value.producer()
            layer = "" if producer is None else str(producer.name).rpartition("/")[0]
            name = f"{layer}/Cast".lstrip("/")
            graph = self._graph if producer is None else producer.graph
            return self._editor.add(
                "Cast", [value], [(dtype, value.shape)], after=value, graph=graph, name=name, to=dtype
            )

        return self._editor.once(("cast", value, dtype), make)

    def _convert_constant_of_shape(self, node: ir.Node) -> None:
        attribute = node.attributes.get("value")
        number = np.zeros(1, "float32") if attribute is None else attribute.as_tensor().numpy()
        if number.dtype == np.float32 and not _is_beyond_range(number):
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(number.astype("float16")))
            node.outputs[0].type = ir.TensorType(FLOAT16)

    def _cast_outputs(self) -> None:
        """Outputs keep their dtype and name, but the cache has half precision."""
        for index, value in enumerate(self._graph.outputs):
            dtype = FLOAT16 if str(value.name).startswith(PRESENT) else FLOAT
            if value.dtype in (FLOAT, FLOAT16) and value.dtype != dtype:
                name, value.name = value.name, self._editor.unique(f"{value.name}/cast")
                self._graph.outputs[index] = cast = self._cast(value, dtype)
                cast.name = name


def _has_body(node: ir.Node) -> bool:
    return any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values())


def _is_float(value: ir.Value) -> bool:
    return value.dtype in (FLOAT, FLOAT16)


def _is_out_of_range(value: ir.Value | None) -> bool:
    """Whether a value is a weight that is too large, or a small constant that would lose digits."""
    if value is None or value.dtype != FLOAT or value.const_value is None:
        return False
    return _is_beyond_range(value.const_value.numpy())


def _is_beyond_range(numbers: np.ndarray) -> bool:
    largest = float(np.abs(numbers).max(initial=0.0))
    return largest > LARGEST or (numbers.size == 1 and 0 < largest < SMALLEST)
