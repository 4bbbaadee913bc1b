"""Tier 3: TensorFlow traces calls that cannot be lowered or opened, and tf2onnx converts the trace."""

from __future__ import annotations

import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import onnx
import onnx_ir as ir
from keras import tree

from keras_tx_onnx.conversion import tf2onnx_operations
from keras_tx_onnx.conversion.splice import splice
from keras_tx_onnx.errors import NotLowered, one_line
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext
from keras_tx_onnx.reading import functional_graph, keras_masks
from keras_tx_onnx.reading.keras_patches import deterministic

RANDOM = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}
_LOCK = threading.Lock()  # tf2onnx keeps the state of a conversion in its modules


def convert(
    context: GraphContext, operation: Any, args: tuple, kwargs: dict, opened: NotLowered | None = None
) -> list[ir.Value]:
    """Adds the nodes that tf2onnx produces for a call, and returns the values of its outputs.

    `opened` is the error of opening the layer.
    """
    call = _Call(operation, args, kwargs)
    try:
        model, variables = _converted(call, context.opset)
        with context.attempt(call.values):
            results, count = splice(context, model, [*call.values, *variables])
    except Exception as error:  # whatever the layer's code, TensorFlow and tf2onnx raise
        raise _refusal(_named(context, operation), type(operation), opened, error) from error
    context.tiers[context.scope] = "tf2onnx"
    reason = "it has no lowering." + ("" if opened is None else f" {one_line(opened)}")
    lost = "its nodes are not named after layers, and no node represents a whole layer, such as Attention"
    if call.variables and not variables:
        lost += "; its weights are constants without their names"
    if call.asserts:
        lost += "; its assertions, so that the file computes where Keras raises an error"
    if not call.compared:
        lost += "; what TensorFlow traced was not compared with its call, which fails on random numbers"
    context.warnings.append(
        f"The {_named(context, operation)} was converted by tf2onnx to {count} nodes, because {reason} "
        f"What is lost: {lost}."
    )
    return results


def _named(context: GraphContext, operation: Any) -> str:
    kind = type(operation)
    if isinstance(operation, keras.layers.Layer):
        return f"layer {context.scope!r} ({kind.__module__}.{kind.__name__})"
    return f"operation {context.scope!r} ({kind.__name__})"


def _refusal(what: str, kind: type, opened: NotLowered | None, error: Exception) -> NotLowered:
    """The errors of all tiers, and the remedy."""
    target = repr(kind.__name__) if opened is None else kind.__name__
    tiers = ["tier 1, a lowering: none is registered"]
    if opened is not None:
        tiers.append(f"tier 2, its call on Keras tensors: {one_line(opened)}")
    tiers.append(f"tier 3, tf2onnx: {one_line(error)}")
    message = (
        f"The {what} has no ONNX lowering, and could not be converted. Write it with operations of keras.ops "
        f"that have one, or register a lowering with @keras_tx_onnx.lowers({target}, ...)."
    )
    return NotLowered("\n  ".join([message, *tiers]), f"The {what}: {one_line(error)}")


class _Call:
    """A call at inference, as a function of TensorFlow's tensors."""

    def __init__(self, operation: Any, args: tuple, kwargs: dict):
        self.operation = operation
        values = functional_graph.distinct_values((args, kwargs))
        self.carried = [(v, mask) for v in values if (mask := keras_masks.mask_of(v)) is not None]
        self.values = functional_graph.distinct_values([values, [mask for _, mask in self.carried]])
        self.args, self.kwargs = args, dict(kwargs)
        self.variables: list[Any] = []
        self.compared = True
        self.asserts = False
        if isinstance(operation, keras.layers.Layer):
            if "training" in inspect.signature(operation.call).parameters:
                self.kwargs["training"] = False
            floating = [v for v in operation.variables if keras.backend.is_float_dtype(v.dtype)]
            self.variables = list({id(v): v for v in floating}.values())

    def specs(self, variables: list[Any]) -> list[keras.KerasTensor]:
        return [v.meta[KERAS_TENSOR] for v in self.values] + [
            keras.KerasTensor(v.shape, v.dtype) for v in variables
        ]

    def run(self, tensors: list[Any], variables: list[Any]) -> list[Any]:
        """The outputs for tensors in the place of the values, and then of variables."""
        count = len(self.values)
        place = dict(zip(map(id, self.values), tensors[:count], strict=True))
        args, kwargs = tree.map_structure(lambda x: place.get(id(x), x), (self.args, self.kwargs))
        for value, mask in self.carried:
            functional_graph.set_mask(place[id(value)], place[id(mask)])
        with (
            deterministic(),
            keras.StatelessScope(state_mapping=list(zip(variables, tensors[count:], strict=True))),
        ):
            return tree.flatten(self.operation(*args, **kwargs))

    def check(self, traced: Callable[[list[Any]], list[Any]]) -> None:
        """Raises if the trace computes something else than the call, as where code reads a size of None."""
        # With short and with long axes, because its code may branch on a size.
        self.compared = sum(self._compare(traced, first) for first in (3, 301)) > 0

    def _compare(self, traced: Callable[[list[Any]], list[Any]], first: int) -> bool:
        """Compares at sizes from `first` on; returns False if the layer refuses them."""
        for equal in (False, True):  # whether axes with the same index have the same size
            tensors = self._samples(equal, first)
            try:
                expected = self.run(tensors, [])
            except Exception:  # the layer does not take these sizes or numbers: nothing to compare
                continue
            for got, right in zip(traced(tensors), expected, strict=True):
                if not _same(keras.ops.convert_to_numpy(got), keras.ops.convert_to_numpy(right)):
                    raise NotLowered(
                        "Its call computes something else in TensorFlow's trace, where sizes are None."
                    )
            return True
        return False

    def _samples(self, equal: bool, first: int) -> list[Any]:
        random, sizes = np.random.default_rng(0), iter(range(first, first + 96, 2))
        chosen: dict[Any, int] = {}
        tensors = []
        for value in self.values:
            known = value.meta[KERAS_TENSOR]
            keys = [i if equal or i == 0 else (value, i) for i in range(len(known.shape))]
            shape = [
                n if n is not None else 3 if key == 0 else chosen.setdefault(key, next(sizes))
                for key, n in zip(keys, known.shape, strict=True)
            ]
            drawn = random.standard_normal(shape)
            whole = not keras.backend.is_float_dtype(known.dtype)
            tensors.append(keras.ops.convert_to_tensor(drawn > 0 if whole else drawn, known.dtype))
        return tensors


def _same(got: np.ndarray, right: np.ndarray) -> bool:
    """Far coarser than rounding: numbers that come of another computation are meant."""
    if got.shape != right.shape or got.dtype != right.dtype:
        return False
    a, b = np.nan_to_num(got.astype("float32")), np.nan_to_num(right.astype("float32"))
    return bool(np.abs(a - b).max(initial=0) <= 1e-2 * max(np.abs(b).max(initial=0), 1e-30))


def _converted(call: _Call, opset: int) -> tuple[onnx.ModelProto, list[Any]]:
    """The call as an ONNX model, and the variables that are inputs of it, after the call's values.

    Some of tf2onnx's handlers want a constant where the layer has a variable: then none is an input.
    """
    if keras.backend.backend() != "tensorflow":
        raise NotLowered(
            f"It needs TensorFlow, and Keras runs on {keras.backend.backend()}. Load the model with "
            "KERAS_BACKEND=tensorflow and export it there."
        )
    with _LOCK, _quiet():
        tf2onnx_operations.register()
        try:
            return _by_tf2onnx(call, call.variables, opset), call.variables
        except Exception:
            if not call.variables:
                raise
        return _by_tf2onnx(call, [], opset), []


def _by_tf2onnx(call: _Call, variables: list[Any], opset: int) -> onnx.ModelProto:
    import tensorflow as tf
    from tf2onnx import constants, optimizer, tf_loader
    from tf2onnx.tfonnx import process_tf_graph

    signature = [
        tf.TensorSpec(x.shape, x.dtype, name=f"input_{i}") for i, x in enumerate(call.specs(variables))
    ]

    def run(*tensors: Any) -> list[Any]:
        return call.run(list(tensors), variables)

    traced: Any = tf.function(run, input_signature=signature, autograph=False)
    concrete = traced.get_concrete_function()
    definition = concrete.graph.as_graph_def()
    parts = [definition.node, *(function.node_def for function in definition.library.function)]
    call.asserts = any(node.op == "Assert" for part in parts for node in part)
    for node in concrete.graph.get_operations():
        if "_XlaMustCompile" in node.node_def.attr:  # then TensorFlow would not inline a function, such as
            node._clear_attr("_XlaMustCompile")  # Keras's convolution in groups
    names = [tensor.name for tensor in concrete.inputs[: len(signature)]]  # captured tensors follow
    outputs = [tensor.name for tensor in concrete.outputs]
    known = min(opset, max(constants.OPSET_TO_IR_VERSION))
    with tf.device("/cpu:0"):
        frozen = tf_loader.from_function(concrete, names, outputs)
    with tf.device("/cpu:0"), tf.Graph().as_default() as tf_graph:
        tf.import_graph_def(frozen, name="")
        converted = process_tf_graph(
            tf_graph,
            opset=known,
            extra_opset=[onnx.helper.make_opsetid(tf2onnx_operations.DOMAIN, 1)],
            input_names=names,
            output_names=outputs,
        )
    optimized = optimizer.optimize_graph(converted, catch_errors=False)
    model = optimized.make_model("layer")
    _check_standard(model, known)
    call.check(lambda tensors: concrete(*tensors, *(v.value for v in variables)))
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("", known))
    if opset > known:
        model = onnx.version_converter.convert_version(model, opset)
    inputs = {value.name: value for value in model.graph.input}
    if set(names) - set(inputs) or len(inputs) != len(names):
        raise NotLowered(f"Its graph has the inputs {sorted(inputs)} instead of {names}.")
    model = onnx.shape_inference.infer_shapes(model)
    del model.graph.input[:]
    model.graph.input.extend(inputs[name] for name in names)
    return model


def _check_standard(model: onnx.ModelProto, opset: int) -> None:
    """Raises if the graph has operations of TensorFlow, or of another domain."""
    drawn = sorted({name for _, name in _operators(model.graph)} & RANDOM)
    if drawn:
        raise NotLowered(f"It draws random numbers at inference ({', '.join(drawn)}).")
    foreign = sorted({name for name in _operators(model.graph) if not _is_standard(*name, opset)})
    if foreign:
        names = ", ".join(name if not domain else f"{domain}.{name}" for domain, name in foreign)
        raise NotLowered(f"tf2onnx cannot convert the operations {names} to standard ONNX.")


def _operators(proto: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    for node in proto.node:
        yield node.domain, node.op_type
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                yield from _operators(inner)


def _is_standard(domain: str, name: str, opset: int) -> bool:
    return domain in ("", "ai.onnx") and onnx.defs.has(name, opset)


@contextmanager
def _quiet() -> Iterator[None]:
    """A context without the logs and warnings of tf2onnx and TensorFlow."""
    import tensorflow as tf

    loggers = [logging.getLogger("tf2onnx"), tf.get_logger()]
    before = [(log, log.level) for log in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tf2onnx  # noqa: F401  sets the level of its logger

        try:
            for log in loggers:
                log.setLevel(logging.CRITICAL)
            yield
        finally:
            for log, level in before:
                log.setLevel(level)
