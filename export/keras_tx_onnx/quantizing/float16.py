"""fp16: weights, activations and the cache in half precision; other inputs and outputs keep their dtypes.

What half precision cannot hold, or sums badly, stays in float32 between two casts: softmax, powers, sums,
and every node with numbers near the end of its range, or with a constant that is beyond it or vanishes,
such as a mask of -1e9 or an epsilon of 1e-12. LayerNormalization computes in float32 by its definition,
whatever it is given.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.editor import Rewriter

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
CRASHES = frozenset({"GRU", "LSTM", "RNN"})
CACHE = ("past_key_values.", "present.")
# A quarter of the range: other inputs may give larger numbers than those that were tried.
NEAR_THE_END = float(np.finfo("float16").max) / 4
LARGEST = float(np.finfo("float16").max)
SMALLEST = float(np.finfo("float16").tiny)  # below it numbers lose digits


class Half:
    """Rewrites one graph; its values get new dtypes, so nothing else may hold on to them."""

    def __init__(self, graph: ir.Graph, large: Iterable[str] = ()):
        self.graph = graph
        self._large = set(large)  # values whose numbers come near the end of the range
        self._rewriter = Rewriter(graph)
        self.kept: dict[str, int] = {}  # by operator, how many nodes stay in float32

    def run(self) -> None:
        """Whole nodes stay where `IN_FLOAT32` or a constant says so, and those with graphs inside."""
        recurrent = next((node for node in self.graph if node.op_type in CRASHES), None)
        if recurrent is not None:
            raise ExportError(
                f"{recurrent.name!r} is a recurrent node ({recurrent.op_type}), with which onnxruntime "
                "crashes in fp16. Use fp32, or int8."
            )
        for value in self.graph.inputs:
            if value.dtype == FLOAT and str(value.name).startswith(CACHE[0]):
                value.type = ir.TensorType(FLOAT16)
        weights = [v for v in self.graph.initializers.values() if v.dtype == FLOAT]
        for node in list(self.graph):
            if node.op_type == "ConstantOfShape":
                self._constant_of_shape(node)
            elif self._stays(node):
                self._feed(node, FLOAT)
            elif any(value is not None and _is_float(value) for value in node.inputs):
                self._feed(node, FLOAT16)
                for value in node.outputs:
                    if value.dtype == FLOAT:
                        value.type = ir.TensorType(FLOAT16)
        self._outputs()
        self._rewriter.forget(weights)

    def _stays(self, node: ir.Node) -> bool:
        inside = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
        floating = any(value is not None and _is_float(value) for value in node.inputs)
        stays = bool(inside) or node.op_type in IN_FLOAT32 or any(map(_is_out_of_range, node.inputs))
        stays |= any(x is not None and x.name in self._large for x in (*node.inputs, *node.outputs))
        if stays and floating and node.op_type != "Cast":
            self.kept[node.op_type] = self.kept.get(node.op_type, 0) + 1
        for graph in inside:
            self._feed_inside(node, graph)
        return stays

    def _feed(self, node: ir.Node, dtype: ir.DataType) -> None:
        for index, value in enumerate(node.inputs):
            if value is not None and _is_float(value) and value.dtype != dtype:
                node.replace_input_with(index, self._as(value, dtype, node))

    def _feed_inside(self, outer: ir.Node, graph: ir.Graph) -> None:
        """What a graph inside a node takes from outside, it goes on to get in float32."""
        for node in graph.all_nodes():
            for index, value in enumerate(node.inputs):
                if value is not None and value.dtype == FLOAT16 and value.graph is self.graph:
                    node.replace_input_with(index, self._as(value, FLOAT, outer))

    def _as(self, value: ir.Value, dtype: ir.DataType, before: ir.Node) -> ir.Value:
        """The value in another dtype: a weight is stored anew, anything else is cast, once."""

        def make() -> ir.Value:
            if value.const_value is not None and value.is_initializer() and not value.is_graph_input():
                array = value.const_value.numpy().astype(dtype.numpy())
                return self._rewriter.weight(f"{value.name}_{dtype.name.lower()}", array)
            source = value.producer()
            after = before if source is None else source
            cast = self._rewriter.add(after, "Cast", [value], [(dtype, value.shape)], to=dtype)
            if source is not None:  # right behind what it casts: the first use may not be the earliest
                node = cast.producer()
                self.graph.remove(node)
                self.graph.insert_after(source, node)
            elif self.graph[0] is not cast.producer():
                node = cast.producer()
                self.graph.remove(node)
                self.graph.insert_before(self.graph[0], node)
            return cast

        return self._rewriter.once(("as", value, dtype), make)

    def _constant_of_shape(self, node: ir.Node) -> None:
        attribute = node.attributes.get("value")
        number = np.zeros(1, "float32") if attribute is None else attribute.as_tensor().numpy()
        if number.dtype == np.float32 and not _beyond(number):
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(number.astype("float16")))
            node.outputs[0].type = ir.TensorType(FLOAT16)

    def _outputs(self) -> None:
        for index, value in enumerate(self.graph.outputs):
            if value.dtype != FLOAT16 or str(value.name).startswith(CACHE[1]):
                continue
            name, value.name = value.name, self._rewriter.unique(f"{value.name}/half")
            producer = value.producer()
            assert producer is not None
            cast = self._as(value, FLOAT, producer)
            cast.name = name
            self.graph.outputs[index] = cast


def _is_float(value: ir.Value) -> bool:
    return value.dtype in (FLOAT, FLOAT16)


def _is_out_of_range(value: ir.Value | None) -> bool:
    """A weight that is too large, or a small constant that would lose digits."""
    if value is None or value.dtype != FLOAT or value.const_value is None:
        return False
    return _beyond(value.const_value.numpy())


def _beyond(numbers: np.ndarray) -> bool:
    sizes = np.abs(numbers)
    if sizes.size == 0:
        return False
    if float(sizes.max()) > LARGEST:
        return True
    return sizes.size == 1 and 0 < float(sizes.max()) < SMALLEST
