"""What cached decoding adds to a graph: ports for keys and values of earlier tokens, and their mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ExportError

if TYPE_CHECKING:
    from keras_tx_onnx.graph.builder import GraphContext


class Cache:
    """The flag of the walk: with it, lowerings of attention take past, mask and positions from here.

    Keras's graph knows nothing of a past: its mask is as long as its tokens. In its place stands `stand_in`,
    which attention exchanges for the mask of past and tokens. Whatever else used it would be wrong as soon
    as there is a past, so that is refused.

    Args:
        mask: of past and tokens, (batch, total).
        stand_in: the mask that Keras's graph is given.
        positions: of the tokens, (batch, sequence).
        body: the last layer in front of the head, whose result is cut to the tokens whose logits are wanted.
    """

    def __init__(self, mask: ir.Value, stand_in: ir.Value, positions: ir.Value, body: str):
        self.mask = mask
        self.stand_in = stand_in
        self.positions = positions
        self.body = body
        self._presents: list[tuple[ir.Value, ir.Value]] = []
        self._count = 0

    def ports(self, cx: GraphContext, heads: int, size: int, value_size: int) -> tuple[ir.Value, ir.Value]:
        """The key and value of earlier tokens, as inputs of the graph for the next layer in order."""
        key, value = (
            cx.input(
                name.format(self._count),
                ir.DataType.FLOAT,
                [contract.BATCH_AXIS, heads, contract.PAST_AXIS, width],
            )
            for name, width in zip(contract.PAST, (size, value_size), strict=True)
        )
        self._count += 1
        return key, value

    def mask_for(self, given: ir.Value | None) -> ir.Value | None:
        if given is not None and given is not self.stand_in:
            raise ExportError(
                "A layer attends with a mask that is computed from attention_mask, which covers no past "
                "then. Give attention_mask itself to the layer, or export with cache=False."
            )
        return None if given is None else self.mask

    def keep(self, present: tuple[ir.Value, ir.Value] | None) -> None:
        assert present is not None
        self._presents.append(present)

    def after_layer(self, cx: GraphContext, results: Any) -> Any:
        """Behind the body: only the last tokens, where only their logits are wanted."""
        if cx.scope != self.body:
            return results
        name = cx.unique(contract.NUM_LOGITS_TO_KEEP)
        tensor = ir.tensor(np.int64(0), name=name)
        wanted = ir.Value(
            name=name, shape=ir.Shape(()), type=ir.TensorType(ir.DataType.INT64), const_value=tensor
        )
        cx.graph.register_initializer(wanted)
        self._wanted = wanted
        start = cx.op.Unsqueeze(cx.op.Neg(wanted), [0])  # -0 is the beginning, and so gives all
        return cx.op.Slice(results, start, [2**62], [1])

    def close(self, cx: GraphContext) -> None:
        """Adds the outputs; refuses a graph in which something else has used the mask."""
        users = [node.name for node, _ in self.stand_in.uses()]
        if users:
            raise ExportError(
                f"{users[0]!r} uses attention_mask outside of attention, where it covers no past. Export "
                "with cache=False."
            )
        cx.graph.inputs.append(self._wanted)  # an initializer that is an input as well may be overridden
        axes = (contract.BATCH_AXIS, contract.TOTAL_AXIS)
        for index, present in enumerate(self._presents):
            for name, value, port in zip(contract.PRESENT, present, contract.PAST, strict=True):
                past = next(x for x in cx.graph.inputs if x.name == port.format(index))
                assert past.shape is not None
                value.type = ir.TensorType(ir.DataType.FLOAT)
                value.shape = ir.Shape([axes[0], past.shape[1], axes[1], past.shape[3]])
                cx.output(value, name.format(index))
