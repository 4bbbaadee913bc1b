"""The ports of cached decoding: inputs and outputs for keys and values, and the mask of all tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ExportError
from keras_tx_onnx.graph.properties import TO_THE_END

if TYPE_CHECKING:
    from keras_tx_onnx.graph.builder import GraphContext


class Cache:
    """Marks a walk for cached decoding: lowerings of attention read past, mask and positions here.

    Keras's graph has no past, and its mask is as long as its tokens. It is lowered with `stand_in`, which
    attention replaces with the mask of past and tokens. Any other use of it would be wrong, and is refused.

    Args:
        mask: of past and tokens, (batch, total).
        stand_in: the mask with which Keras's graph is lowered.
        positions: of the tokens, (batch, sequence).
        body: path of the last layer before the head; its result is cut to the tokens whose logits are wanted.
    """

    def __init__(self, mask: ir.Value, stand_in: ir.Value, positions: ir.Value, body: str):
        self.mask = mask
        self.stand_in = stand_in
        self.positions = positions
        self.body = body
        self._presents: list[tuple[ir.Value, ir.Value]] = []
        self._count = 0

    def ports(self, cx: GraphContext, heads: int, size: int, value_size: int) -> tuple[ir.Value, ir.Value]:
        """Adds the inputs for the earlier keys and values of the next layer in order."""
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

    def mask_for(self, mask: ir.Value | None) -> ir.Value | None:
        """The mask of past and tokens for the mask of a layer; raises an ExportError for a computed one."""
        if mask is not None and mask is not self.stand_in:
            raise ExportError(
                "A layer attends with a mask that is computed from attention_mask, so it does not cover the "
                "cache. Pass attention_mask itself to the layer, or export with cache=False."
            )
        return None if mask is None else self.mask

    def keep(self, present: tuple[ir.Value, ir.Value] | None) -> None:
        """Remembers the keys and values of the next layer in order."""
        assert present is not None
        self._presents.append(present)

    def after_layer(self, cx: GraphContext, results: Any) -> Any:
        """Cuts the result of the body to the last tokens, if only their logits are wanted."""
        if cx.scope != self.body:
            return results
        self._wanted = cx.initializer(contract.NUM_LOGITS_TO_KEEP, np.array(0, "int64"))
        start = cx.op.Unsqueeze(cx.op.Neg(self._wanted), [0])  # -0 is the beginning, and so keeps all
        return cx.op.Slice(results, start, [TO_THE_END], [1])

    def close(self, cx: GraphContext) -> None:
        """Adds the outputs; raises an ExportError if something else than attention uses the mask."""
        users = [node.name for node, _ in self.stand_in.uses()]
        if users:
            raise ExportError(
                f"{users[0]!r} uses attention_mask outside of attention, where it does not cover the cache. "
                "Export with cache=False."
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
