"""The walk over a Keras graph, which adds the ONNX nodes of each operation."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import onnx_ir as ir
from keras import tree

import keras_tx_onnx.lowerings  # noqa: F401  fills the registry
from keras_tx.errors import ExportError
from keras_tx_onnx.conversion import tf2onnx_fallback
from keras_tx_onnx.errors import NotLowered
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext, onnx_dtype
from keras_tx_onnx.graph.size_expressions import Bound, Expression, of_number
from keras_tx_onnx.reading import functional_graph, keras_masks, keras_patches, registry, symbolic_sizes
from keras_tx_onnx.reading.layer_tracing import SizeLost, declared_sizes, open_call, settings_of
from keras_tx_onnx.reading.symbolic_backend import AsTensor, Call, Trace
from keras_tx_onnx.reading.traced_functions import TRACED, Body

__all__ = ["lower", "lower_call_of"]


class WrongDeclaration(NotLowered):
    """A layer in a trace returns another shape than it declares."""


def lower(context: GraphContext, function: Any, inputs: list[ir.Value]) -> list[ir.Value]:
    """Adds the nodes of a functional graph or of a trace, and returns the values of its outputs."""
    context.lower_call_of, context.lower_body = lower_call_of, _lower_body
    traced = isinstance(function, Trace)
    if not traced:
        for value, tensor in zip(inputs, function.inputs, strict=True):
            _describe(value, tensor.shape, tensor.dtype)
            _fix_sizes(context, value)
        symbolic_sizes.begin(inputs, [tensor.name.split(":")[0] for tensor in function.inputs])

    with keras_patches.patched():
        walk = functional_graph.Walk(function, inputs)
        for call in walk:
            walk.set_results(_lower_node(context, call, traced))
        values = walk.outputs()
    if not context.scope:  # the whole model is lowered, and no attempt is undone any more
        for message in context.warnings:
            warnings.warn(message, stacklevel=4)  # the caller of export_onnx
    return values


def _fix_sizes(context: GraphContext, value: ir.Value) -> None:
    """Notes the fixed sizes that a model inside a model requires of an input with dynamic axes."""
    sizes, shape = value.meta.get(symbolic_sizes.SIZES), value.meta[KERAS_TENSOR].shape
    if sizes is None or len(sizes) != len(shape):
        return
    for size, n in zip(sizes, shape, strict=True):
        if n is not None and _follows_inputs(context, size):
            _note_bounds(context, [Bound(size - of_number(n), "==")])
    pairs = zip(sizes, shape, strict=True)
    value.meta[symbolic_sizes.SIZES] = tuple(size if n is None else n for size, n in pairs)


def _lower_node(context: GraphContext, call: Call, traced: bool) -> Any:
    """Lowers a call, and notes shapes and masks of its results."""
    with context.inside(functional_graph.name_of(call.operation)):
        context.rank = len(call.outputs[0].shape)
        results = _lower_call(context, _with_values(context, call) if traced else call)
        if context.cache is not None:
            results = context.cache.after_call(context, call.outputs, results)
    if traced:  # a trace has no tensors in place of None
        results = [value for value in tree.flatten(results) if value is not None]
        _describe_traced(call, results)
    else:
        _describe_declared(context, call, tree.flatten(results))
    keras_masks.propagate(context, call.operation, call.args, call.kwargs, results)
    return results


def _describe_declared(context: GraphContext, call: Call, values: list[ir.Value | None]) -> None:
    """Notes the declared shapes of results, or the inferred ones after a wrong declaration."""
    inferred = _inferred_shapes(context, call, values)
    shapes = [tensor.shape for tensor in call.outputs]
    if context.misled and len(inferred) == len(values):
        shapes = [tuple(n if isinstance(n, int) else None for n in shape) for shape in inferred]
    for value, shape, tensor in zip(values, shapes, call.outputs, strict=False):
        if value is not None:  # a layer may declare a tensor and return None
            wrong = _has_wrong_static_size(context, value, shape)
            agrees = _describe(value, value.meta[KERAS_TENSOR].shape if wrong else shape, tensor.dtype)
            context.misled |= wrong or not agrees
    fixed = bool(inferred) and _infers_fixed_sizes(call)
    for value, shape in zip(values, inferred, strict=False):
        if value is not None:
            _note(value, shape, fixed)


def _inferred_shapes(
    context: GraphContext, call: Call, values: list[ir.Value | None]
) -> list[tuple[Any, ...]]:
    """The sizes that Keras infers for results; empty if the declared ones are sufficient."""
    unknown = any(
        value is not None and symbolic_sizes.SIZES not in value.meta and None in tensor.shape
        for value, tensor in zip(values, call.outputs, strict=False)
    )
    if not unknown and not context.misled:
        return []
    return declared_sizes(call.operation, call.args, call.kwargs) or []


def _infers_fixed_sizes(call: Call) -> bool:
    """Whether Keras infers the sizes of results from numbers only, except for the batch.

    A model inside a model may declare None for them, because it accepts other sizes than it is called with.
    """
    inputs = functional_graph.distinct_values((call.args, call.kwargs))
    return type(call.operation).__module__.startswith("keras.src.") and all(
        isinstance(size, int) for value in inputs for size in symbolic_sizes.sizes_of(value)[1:]
    )


def _has_wrong_static_size(context: GraphContext, value: ir.Value, shape: tuple[Any, ...]) -> bool:
    """Whether a shape has a number in place of a size that is computed from dynamic axes of the inputs."""
    sizes = value.meta.get(symbolic_sizes.SIZES, ())
    if len(sizes) != len(shape):
        return False
    return any(n is not None and _follows_inputs(context, m) for n, m in zip(shape, sizes, strict=True))


def _follows_inputs(context: GraphContext, size: Any) -> bool:
    """Whether a size is known to be computed from dynamic axes of the inputs."""
    if not isinstance(size, Expression) or size.constant is not None:
        return False
    return all(symbolic_sizes.axis_name(context.graph, symbol) is not None for symbol in size.symbols())


def _note(value: ir.Value, shape: tuple[Any, ...], fixed: bool = False) -> None:
    """Notes the sizes of a value. Numbers in its shape stay; an unknown size becomes a new symbol.

    Unless `fixed`, an inferred number is an unknown size: it may be right at the sample sizes only.
    """
    known = value.meta[KERAS_TENSOR].shape
    if symbolic_sizes.SIZES in value.meta or len(shape) != len(known):
        return
    pairs = zip(known, shape, strict=True)
    value.meta[symbolic_sizes.SIZES] = tuple(
        b if a is None and (not isinstance(b, int) or (fixed and axis > 0)) else a
        for axis, (a, b) in enumerate(pairs)
    )


def _describe_traced(call: Call, values: list[ir.Value]) -> None:
    """Notes the shape of results as it was in the trace, and the axes that it could not express."""
    for value, tensor in zip(values, call.outputs, strict=True):
        shape = [n.expression if isinstance(n, symbolic_sizes.Size) else n for n in tensor.shape]
        actual = value.meta.get(symbolic_sizes.SIZES, shape)
        if len(actual) != len(shape) or any(map(symbolic_sizes.contradict, actual, shape)):
            raise WrongDeclaration(
                f"{functional_graph.name_of(call.operation)!r} returns another shape than it declares, and "
                "later code may compute with the wrong one. Correct its compute_output_shape."
            )
        _describe(value, tuple(n if isinstance(n, int) else None for n in shape), tensor.dtype)
        for axis, size in enumerate(shape):
            symbol = None if isinstance(size, int) else size.symbol
            if symbol is not None and symbol.value is None:
                symbol.value, symbol.axis = value, axis
        _note(value, tuple(shape))


def _describe(value: ir.Value, shape: tuple, dtype: str) -> bool:
    """Adds a known shape and dtype to a value; returns whether they agree."""
    before = value.meta.get(KERAS_TENSOR)
    agrees = True
    if before is not None:
        pairs = list(zip(before.shape, shape, strict=False))
        agrees = len(before.shape) == len(shape) and all(a == b for a, b in pairs if None not in (a, b))
        shape = tuple(b if a is None else a for a, b in pairs) if agrees else before.shape
        if onnx_dtype(before.dtype) != onnx_dtype(dtype):
            dtype = before.dtype
    value.meta[KERAS_TENSOR] = keras.KerasTensor(shape, dtype)
    if value.shape is None:
        value.shape = ir.Shape(shape)
    if value.type is None:
        value.type = ir.TensorType(onnx_dtype(dtype))
    return agrees


def _lower_call(context: GraphContext, call: Call) -> Any:
    operation, args = call.operation, call.args
    kwargs = {name: value for name, value in call.kwargs.items() if value is not None}
    if kwargs.pop("training", None) and not _trains_by_default(operation):
        raise ExportError(
            f"The layer {context.scope!r} is called with training=True, but an exported graph is for "
            "inference. Call it without training=True."
        )
    if isinstance(operation, AsTensor):
        return _as_value(context, args[0])
    if functional_graph.is_function(operation) and not functional_graph.has_own_call(operation):
        return _lower_model(context, operation, args, kwargs)
    lowering = registry.find(operation)
    if functional_graph.is_keras_operation(operation):
        if lowering is not None:
            return _apply(context, lowering, operation, args, kwargs)
        if type(operation).__name__ in TRACED:
            return tree.flatten(lower_call_of(context, operation, *args, **kwargs))
        return tf2onnx_fallback.convert(context, operation, args, kwargs)
    if isinstance(operation, keras.layers.Layer):
        kwargs = {**kwargs, **keras_masks.implicit_masks(operation, args, kwargs)}
    if lowering is None or lowering.function is None or _must_open(lowering, operation, args):
        return _opened(context, operation, args, kwargs)
    context.tiers[context.scope] = "registered"
    return _apply(context, lowering, operation, args, kwargs)


def _as_value(context: GraphContext, x: Any) -> ir.Value:
    """A value, or an array as a value of its own: equal constants are one value."""
    if isinstance(x, ir.Value):
        return x
    return context.op.Identity(context.constant(x, onnx_dtype(str(x.dtype)).numpy().name))


def _apply(context: GraphContext, lowering: Any, operation: Any, args: tuple, kwargs: dict) -> Any:
    try:
        inspect.signature(lowering.function).bind(context, operation, *args, **kwargs)
    except TypeError as error:
        raise ExportError(f"The lowering of {context.scope!r} does not support this call: {error}.") from None
    result = lowering.function(context, operation, *args, **kwargs)
    # A lowering may support only some settings and calls of its layer.
    return _opened(context, operation, args, kwargs) if result is NotImplemented else result


# Keras computes these with TensorFlow's string operations, or with the hashes of strings.
STRING_LAYERS = (
    keras.layers.HashedCrossing,
    keras.layers.Hashing,
    keras.layers.StringLookup,
    keras.layers.TextVectorization,
)


def _opened(context: GraphContext, operation: Any, args: tuple, kwargs: dict) -> Any:
    if isinstance(operation, STRING_LAYERS):
        raise ExportError(
            f"The layer {context.scope!r} ({type(operation).__name__}) computes with strings, which is not "
            "supported. Apply it to the data before the model, and export a model whose input is its output."
        )
    context.tiers[context.scope] = "opened"
    if "training" in inspect.signature(operation.call).parameters:
        kwargs = {**kwargs, "training": False}
    try:
        with context.attempt(functional_graph.distinct_values((args, kwargs))):
            return tree.flatten(lower_call_of(context, operation.call, *args, layer=operation, **kwargs))
    except SizeLost as error:  # TensorFlow's trace would have to guess, too
        named = str(error).startswith("The layer")
        raise (
            error
            if named
            else SizeLost(f"The layer {context.scope!r} cannot be exported for every size. {error}")
        ) from error
    except NotLowered as error:
        return tf2onnx_fallback.convert(context, operation, args, kwargs, error)


def _lower_model(context: GraphContext, model: Any, args: tuple, kwargs: dict) -> list[ir.Value]:
    """A model inside a model: its own graph is lowered."""
    function = functional_graph.function_of(model)
    mask = kwargs.pop("mask", None)
    passed = args[0] if args else kwargs.get("inputs")
    # Alone: on PyTorch, Keras sorts the keys of a dict, but not of one inside another.
    inputs = [x for x in tree.flatten(passed) if isinstance(x, ir.Value)]
    if mask is not None:
        keras_masks.attach(inputs, tree.flatten(mask))
    if isinstance(model, keras.Sequential) and len(inputs) == 1:
        # A model that was built on data has the sizes of that data, and Keras accepts others.
        known, built = inputs[0].meta[KERAS_TENSOR].shape, function.inputs[0].shape
        if len(known) == len(built) and any(
            n is not None and n != m for n, m in zip(built, known, strict=True)
        ):
            return tree.flatten(lower_call_of(context, model.call, *inputs, training=False))
    if len(inputs) > 1 and _structure(passed) != _structure(function.input):
        raise ExportError(
            f"The inputs of the model {context.scope!r} have another structure than at its construction. Use "
            "the same keys, or the same list."
        )
    return lower(context, function, inputs)


def _structure(x: Any) -> Any:
    return tree.lists_to_tuples(tree.map_structure(lambda leaf: 0, x))


def lower_call_of(
    context: GraphContext, function: Callable[..., Any], *args: Any, layer: Any = None, **kwargs: Any
) -> Any:
    """Traces a function of keras.ops for values of the graph, and adds its nodes.

    Args:
        function: called on Keras tensors in place of the values among `args` and `kwargs`.
        layer: its owner if the function is a method.

    Returns:
        The return value of the function, with values in place of Keras tensors.
    """
    values = functional_graph.distinct_values((args, kwargs))
    try:
        with context.attempt(values):
            return _lower_trace(context, function, args, kwargs, layer, trusting=True)
    except WrongDeclaration:
        return _lower_trace(context, function, args, kwargs, layer, trusting=False)


def _lower_trace(
    context: GraphContext, function: Callable[..., Any], args: tuple, kwargs: dict, layer: Any, trusting: bool
) -> Any:
    values = functional_graph.distinct_values((args, kwargs))
    carried = {id(value): mask for value in values if (mask := keras_masks.mask_of(value)) is not None}
    opened = open_call(context.scope, function, args, kwargs, layer=layer, masks=carried, trusting=trusting)
    _note_bounds(context, opened.bounds)
    weights: list[Any] = [
        None if variable is None else _weight(context, variable) for variable in opened.weights
    ]
    results = lower(context, opened.trace, [*opened.values, *weights])
    made = dict(zip(map(id, opened.trace.outputs), results, strict=True))
    inputs = dict(zip(map(id, opened.trace.inputs), opened.values, strict=False))
    return tree.map_structure(lambda x: {**inputs, **made}.get(id(x), x), opened.trace.result)


def _lower_body(context: GraphContext, body: Body, values: list[ir.Value]) -> list[Any]:
    """Adds the nodes of a body of control flow, and returns its results: values, numbers and arrays."""
    made = iter(lower(context, body.trace, values))
    return [
        next(made)
        if isinstance(x, keras.KerasTensor)
        else symbolic_sizes.lowered(context, x)
        if isinstance(x, (symbolic_sizes.Size, symbolic_sizes.Real))
        else x
        for x in body.results
    ]


def _note_bounds(context: GraphContext, bounds: Sequence[Bound]) -> None:
    for bound in bounds:
        names = {s: symbolic_sizes.axis_name(context.graph, s) for s in bound.difference.symbols()}
        if None in names.values():
            shown = bound.text({symbol: name or "size" for symbol, name in names.items()})
            raise SizeLost(
                f"It compares a size that is not computed from the sizes of the model's inputs ({shown}). "
                "Compare sizes of inputs."
            )
        context.bounds[bound.text(names)] = None


def _weight(context: GraphContext, variable: Any) -> ir.Value:
    value = context.weight(variable)
    _describe(value, tuple(variable.shape), variable.dtype)
    return value


def _with_values(context: GraphContext, call: Call) -> Call:
    """The call with values of the graph in place of weights and of numbers computed from sizes."""
    changed = False

    def value(x: Any) -> Any:
        nonlocal changed
        if isinstance(x, slice):
            return slice(*map(value, (x.start, x.stop, x.step)))
        if not isinstance(x, (symbolic_sizes.Size, symbolic_sizes.Real)):
            return x
        changed = True
        return symbolic_sizes.lowered(context, x)

    args, kwargs = tree.map_structure(value, (call.args, call.kwargs))
    operation = call.operation
    if isinstance(operation, keras.layers.Layer):  # one that code created with a size, such as Resizing(h, w)
        settings = {name: tree.map_structure(value, x) for name, x in vars(operation).items() if _has_size(x)}
        if settings:
            operation = object.__new__(type(operation))
            vars(operation).update({**vars(call.operation), **settings})
    else:
        settings = {name: tree.map_structure(value, x) for name, x in settings_of(operation).items()}
        if functional_graph.distinct_values(settings):
            operation = object.__new__(type(operation))  # copy.copy would go through Keras's serialization
            vars(operation).update({**vars(call.operation), **settings})
    lowering = registry.find(operation)
    if changed and not isinstance(operation, AsTensor) and (lowering is None or not lowering.takes_sizes):
        raise NotLowered(
            f"The operation {context.scope!r} ({type(operation).__name__}) has an argument that depends on "
            "the size of an input, which its lowering does not support."
        )
    return Call(operation, args, kwargs, call.outputs)


def _has_size(x: Any) -> bool:
    """Whether an attribute of a layer is a number computed from sizes, or has one among its elements."""
    elements = x if type(x) in (list, tuple) else (x,)
    return any(isinstance(n, (symbolic_sizes.Size, symbolic_sizes.Real)) for n in elements)


def _must_open(lowering: registry.Lowering, operation: Any, args: tuple) -> bool:
    """Whether the lowering of a layer would ignore masks of its inputs, or quantized parts."""
    if not isinstance(operation, keras.layers.Layer):
        return False
    if keras_masks.merges_masks(operation, args):
        return True
    inner = functional_graph.parts(operation)[1:]
    return not lowering.quantized_parts and any(part.quantization_mode for part in inner)


def _trains_by_default(operation: Any) -> bool:
    """Whether training=True is the default, which Keras's graph records as if it were passed."""
    parameter = inspect.signature(operation.call).parameters.get("training")
    return parameter is not None and parameter.default is True
