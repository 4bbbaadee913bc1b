"""The ports of cached decoding: inputs and outputs for keys and values, and the mask of all tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from keras import tree
from onnx_ir.passes.common import RemoveUnusedNodesPass

from keras_tx import contract
from keras_tx.errors import ExportError
from keras_tx_onnx.graph.properties import TO_THE_END

if TYPE_CHECKING:
    from keras_tx_onnx.graph.builder import GraphContext

# Metadata key of a bias whose keys include the past of a cache: the causal mask (queries, keys).
AFTER_PAST = "after_past"
# Metadata key of the mask with which Keras's graph is lowered in place of that of past and tokens.
STAND_IN = "stand_in"


class Cache:
    """Marks a walk for cached decoding: lowerings of attention read past, mask and positions here.

    Keras's graph has no past, and its mask is as long as its tokens. It is lowered with `stand_in`, which
    attention replaces with the mask of past and tokens. Any other use of it would be wrong, and is refused.

    Args:
        mask: of past and tokens, (batch, total).
        stand_in: the mask with which Keras's graph is lowered.
        positions: of the tokens, (batch, sequence).
        body: the Keras tensor that the head reads; it is cut to the tokens whose logits are wanted.
    """

    def __init__(self, mask: ir.Value, stand_in: ir.Value, positions: ir.Value, body: Any):
        self.mask = mask
        self.stand_in = stand_in
        self.positions = positions
        self.body = body
        self.query_heads = 0  # of the last layer
        self.farthest = 0  # the largest number in computed masks and biases, such as a window
        self.cut: ir.Node | None = None  # selects the tokens whose logits are wanted
        self.pasts: list[ir.Value] = []
        self._wanted: ir.Value | None = None
        self._presents: list[tuple[ir.Value, ir.Value]] = []
        stand_in.meta[STAND_IN] = True

    def ports(self, cx: GraphContext, heads: int, size: int, value_size: int) -> tuple[ir.Value, ir.Value]:
        """Adds the inputs for the earlier keys and values of the next layer in order."""
        key, value = (
            cx.input(
                name.format(len(self.pasts) // 2),
                ir.DataType.FLOAT,
                [contract.BATCH_AXIS, heads, contract.PAST_AXIS, width],
            )
            for name, width in zip(contract.PAST, (size, value_size), strict=True)
        )
        self.pasts += [key, value]
        return key, value

    def mask_for(self, mask: ir.Value | None) -> ir.Value | None:
        """The mask of past and tokens for the mask of a layer; raises an ExportError for a computed one."""
        if mask is not None and mask is not self.stand_in:
            raise ExportError(
                "A layer attends with a mask that is computed from attention_mask, so it does not cover the "
                "cache. Pass attention_mask itself to the layer, or export with cache=False."
            )
        return None if mask is None else self.mask

    def past_length(self, cx: GraphContext) -> ir.Value:
        raise ExportError(
            f"The layer {cx.scope!r} numbers positions from the first token of its input, which is wrong "
            "with a cache. Use position_ids, or export with cache=False."
        )

    def keep(self, present: tuple[ir.Value, ir.Value] | None) -> None:
        """Remembers the keys and values of the next layer in order."""
        assert present is not None
        self._presents.append(present)

    def after_call(self, cx: GraphContext, tensors: Sequence[Any], results: Any) -> Any:
        """Cuts the body to the last tokens, if only their logits are wanted.

        Args:
            cx: of the graph.
            tensors: the Keras tensors that the call computes, by which the body is known: the layer may be
                called for other tensors as well.
            results: their values.
        """
        if not any(tensor is self.body for tensor in tensors):
            return results
        values = tree.flatten(results)
        self._wanted = cx.initializer(contract.NUM_LOGITS_TO_KEEP, np.array(0, "int64"))
        start = cx.op.Unsqueeze(cx.op.Neg(self._wanted), [0])  # -0 is the beginning, and so keeps all
        for index, tensor in enumerate(tensors):
            if tensor is self.body:
                values[index] = cx.op.Slice(values[index], start, [TO_THE_END], [1])
                self.cut = values[index].producer()
        return tree.pack_sequence_as(results, values)

    def close(self, cx: GraphContext) -> None:
        """Adds the outputs; raises an ExportError if something else than attention uses the mask."""
        if self._wanted is not None:  # None in a probe, in which the body is no layer of its own
            cx.graph.inputs.append(self._wanted)  # an initializer that is an input as well may be overridden
        axes = (contract.BATCH_AXIS, contract.TOTAL_AXIS)
        for index, present in enumerate(self._presents):
            pasts = self.pasts[2 * index : 2 * index + 2]
            for name, value, past in zip(contract.PRESENT, present, pasts, strict=True):
                assert past.shape is not None
                value.type = ir.TensorType(ir.DataType.FLOAT)
                value.shape = ir.Shape([axes[0], past.shape[1], axes[1], past.shape[3]])
                cx.output(value, name.format(index))
        # Masks that Keras computes for the tokens alone are replaced, and their nodes are not used.
        RemoveUnusedNodesPass()(ir.Model(cx.graph, ir_version=contract.IR_VERSIONS[cx.opset]))
        self._check_uses()

    def _check_uses(self) -> None:
        users = [node.name for node, _ in self.stand_in.uses()]
        if users:
            raise ExportError(
                f"{users[0]!r} uses attention_mask outside of recognized attention, where it does not "
                "cover the cache. Export with cache=False."
            )


class Seq2SeqCache:
    """The cache of the decoder of an encoder-decoder: keys and values of the target and of the source.

    Self-attention always continues its past, which is empty in the first call. The keys and values of the
    source are computed in the first call only: `use_cache_branch` selects the branch of an If. Targets are
    not padded, so positions continue after the past, and the mask of the target is left out.

    Args:
        source: the encoder's output, (batch, source, width).
        stand_in: the mask of the target with which Keras's graph is lowered.
        shape: layers, heads, and size of a head.
        open_ports: whether the size of a head is dynamic in the declared shapes of the inputs.
    """

    positions: ir.Value | None = None  # PositionalEmbedding numbers them

    def __init__(
        self,
        cx: GraphContext,
        source: ir.Value,
        stand_in: ir.Value,
        shape: tuple[int, int, int],
        open_ports: bool,
    ):
        self.source = source
        self.stand_in = stand_in
        self._shape = shape
        self._reshapes = open_ports
        depth, heads, size = shape
        axes = (contract.PAST_AXIS, contract.PAST_AXIS, contract.SOURCE_PAST_AXIS, contract.SOURCE_PAST_AXIS)
        self._pasts = [
            cx.input(
                name.format(index),
                ir.DataType.FLOAT,
                [contract.BATCH_AXIS, heads, axis, contract.HEAD_AXIS if open_ports else size],
            )
            for index in range(depth)
            for name, axis in zip(contract.SEQ2SEQ_PAST, axes, strict=True)
        ]
        self._is_cached = cx.input(contract.USE_CACHE_BRANCH, ir.DataType.BOOL, [1])
        self._presents: list[ir.Value] = []

    def past_length(self, cx: GraphContext) -> ir.Value:
        """The number of tokens of the target before this call, as a vector of one."""
        return cx.once("past_length", lambda: cx.op.Shape(self._pasts[0], start=2, end=3))

    def _next_pasts(
        self, cx: GraphContext, shape: tuple[int, int, int], of_source: bool
    ) -> tuple[ir.Value, ir.Value]:
        index, (heads, size, value_size) = len(self._presents), shape
        if index == len(self._pasts) or {(heads, size), (heads, value_size)} != {self._shape[1:]}:
            raise ExportError(
                f"The layer {cx.scope!r} has {heads} heads of size {size} and {value_size}, but the config "
                f"of the model has (layers, heads, size) = {self._shape}. Build the model from its config."
            )
        if (index % len(contract.SEQ2SEQ_PAST) != 0) != of_source:
            raise ExportError(
                f"The layer {cx.scope!r} attends out of order: a cache requires that self-attention and "
                "cross-attention alternate."
            )
        return self._pasts[index], self._pasts[index + 1]

    def ports(self, cx: GraphContext, heads: int, size: int, value_size: int) -> tuple[ir.Value, ir.Value]:
        """The keys and values of the earlier tokens of the target, for the next layer in order."""
        key, value = self._next_pasts(cx, (heads, size, value_size), of_source=False)
        if not self._reshapes:
            return key, value

        def shape() -> ir.Value:
            return cx.op.Concat(cx.op.Shape(key, start=0, end=1), [heads, -1, size], axis=0)

        shape_of_past = cx.once("past_shape", shape)
        return cx.op.Reshape(key, shape_of_past), cx.op.Reshape(value, shape_of_past)

    def mask_for(self, mask: ir.Value | None) -> None:
        """No mask, for the mask of the target; raises an ExportError for a computed one."""
        if mask is not None and mask is not self.stand_in:
            raise ExportError(
                "A layer attends with a mask that is computed from decoder_attention_mask, which a graph "
                "with a cache does not have. Pass decoder_attention_mask itself to the layer."
            )

    def keep(self, present: tuple[ir.Value, ir.Value] | None) -> None:
        """Remembers the keys and values of the target of the next layer in order."""
        assert present is not None
        self._presents += present

    def attend_to_source(
        self,
        cx: GraphContext,
        shape: tuple[int, int, int],
        project: Callable[[], tuple[ir.Value, ir.Value]],
        attend: Callable[[ir.Value, ir.Value], ir.Value],
    ) -> ir.Value:
        """Attends to the source, whose keys and values are projected in the first call only.

        Args:
            cx: of the graph.
            shape: the number of heads, and the sizes of those of keys and of values.
            project: adds the nodes of the keys and values (batch, heads, source, size).
            attend: adds the nodes of the attention for keys and values.

        Returns:
            The result of `attend`.
        """
        past = self._next_pasts(cx, shape, of_source=True)
        with cx.body([]) as cached:
            # Empty presents: an If copies each value that it returns.
            empty = [cx.op.Slice(x, [0], [0], [2]) for x in past]
            cached.outputs.extend([attend(*past), *empty])
        with cx.body([]) as first:
            keys, values = project()
            first.outputs.extend([attend(keys, values), keys, values])
        for value in (*cached.outputs, *first.outputs):
            value.type = ir.TensorType(ir.DataType.FLOAT)
        result, *presents = cx.op.If(self._is_cached, outputs=3, then_branch=cached, else_branch=first)
        self._presents += presents
        return result

    def after_call(self, cx: GraphContext, tensors: Sequence[Any], results: Any) -> Any:
        return results

    def close(self, cx: GraphContext) -> None:
        """Adds the outputs; raises an ExportError if the layers do not fit the config or use a mask."""
        users = [node.name for node, _ in self.stand_in.uses()]
        if users:
            raise ExportError(
                f"{users[0]!r} uses decoder_attention_mask outside of attention, but a graph with a cache "
                "does not have it. Remove that use."
            )
        if len(self._presents) != len(self._pasts):
            raise ExportError(
                f"The decoder has {len(self._presents) // 2} attention layers, but the config of the model "
                f"has (layers, heads, size) = {self._shape}, each with two. Build the model from its config."
            )
        _, heads, size = self._shape
        axes = (
            contract.TOTAL_AXIS,
            contract.TOTAL_AXIS,
            contract.SOURCE_PRESENT_AXIS,
            contract.SOURCE_PRESENT_AXIS,
        )
        for place, value in enumerate(self._presents):
            index, kind = divmod(place, len(contract.SEQ2SEQ_PRESENT))
            value.type = ir.TensorType(ir.DataType.FLOAT)
            value.shape = ir.Shape([contract.BATCH_AXIS, heads, axes[kind], size])
            cx.output(value, contract.SEQ2SEQ_PRESENT[kind].format(index))
