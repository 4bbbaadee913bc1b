"""Properties of nodes and values, used by passes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from keras_tx import contract

# Operators that compute each number of a result from the numbers of the operands at the same place.
ELEMENTWISE = frozenset(
    "Abs Add And Cast Celu Clip Cos Div Elu Equal Erf Exp Gelu Greater GreaterOrEqual HardSigmoid HardSwish "
    "Identity LeakyRelu Less LessOrEqual Log Max Min Mish Mul Neg Not Or PRelu Pow Reciprocal Relu Round "
    "Selu Shrink Sigmoid Sin Softplus Softsign Sqrt Sub Swish Tanh ThresholdedRelu Where".split()
)
NORMS = frozenset({"LayerNormalization", "RMSNormalization"})
CONTRIB = "com.microsoft"  # the domain of onnxruntime's own operators
TO_THE_END = 2**62  # where a Slice ends that keeps all that follows


def is_standard(node: ir.Node) -> bool:
    """Whether a node's operator is ONNX's own."""
    return node.domain in ("", "ai.onnx")


def rank(x: ir.Value | None) -> int | None:
    """The number of axes; None if it is unknown."""
    return None if x is None or x.shape is None else len(x.shape)


def array_of(x: ir.Value | None) -> np.ndarray | None:
    """The numbers of a weight or constant; None for any other value."""
    return None if x is None or x.const_value is None else x.const_value.numpy()


def is_constant(x: ir.Value | None, numbers: object) -> bool:
    """Whether a value is a weight or constant with these numbers."""
    array = array_of(x)
    return array is not None and array.tolist() == numbers


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """An input that may be missing."""
    return node.inputs[index] if len(node.inputs) > index else None


def permutation(node: ir.Node) -> list[int]:
    """The order of axes of a Transpose."""
    return list(node.attributes["perm"].as_ints())


def has_one_use(x: ir.Value) -> bool:
    """Whether one node reads a value, and no client of the graph does."""
    return len(x.uses()) == 1 and not x.is_graph_output()


def of_sequence(x: ir.Value) -> bool:
    """Whether a value is (batch, sequence) or (batch, sequence, ...)."""
    sizes = [] if x.shape is None else list(x.shape)[:2]
    names = [None if isinstance(size, int) else size.value for size in sizes]
    return names == [contract.BATCH_AXIS, contract.SEQUENCE_AXIS]
