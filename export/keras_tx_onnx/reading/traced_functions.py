"""Control flow of keras.ops: the functions that cond, while_loop and their like receive, as graphs.

On Keras tensors, keras.ops keeps such functions as they are, and its graph does not show which tensors they
read from outside. While a layer is opened, each of them is traced instead: it becomes a body, a graph whose
inputs are its parameters and the outer tensors that it reads. Three operations hold bodies: a choice (ONNX's
If), a loop (Loop) and a scan (Scan).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops, tree

from keras_tx_onnx.errors import NotLowered
from keras_tx_onnx.reading import keras_patches
from keras_tx_onnx.reading.symbolic_backend import Trace, body_of, tracing_body
from keras_tx_onnx.reading.symbolic_sizes import Size


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """A function as a graph.

    Attributes:
        trace: the graph. Its inputs are the parameters, then `captured`.
        captured: tensors from outside that the function reads.
        results: its return values, flat: Keras tensors, numbers or arrays.
        structure: its return value, with indices into `results` as leaves, and None where it returned None.
    """

    trace: Trace
    captured: list[keras.KerasTensor]
    results: list[Any]
    structure: Any

    def specs(self) -> list[keras.KerasTensor]:
        """Shape and dtype of each result."""
        return [spec_of(result) for result in self.results]

    def known_specs(self) -> list[keras.KerasTensor]:
        """Shape and dtype of each result, without dynamic axes."""
        return [
            keras.KerasTensor([None if isinstance(n, Size) else n for n in x.shape], x.dtype)
            for x in self.specs()
        ]


def trace(function: Callable[..., Any], *specs: Any) -> Body:
    """Calls a function on Keras tensors of these shapes and dtypes, and returns its graph."""
    parameters = tree.map_structure(lambda x: keras.KerasTensor(x.shape, x.dtype), specs)
    with tracing_body() as calls:
        result = function(*parameters)
    traced, captured = body_of(calls, tree.flatten(parameters), result)
    results, structure = _flat(result)
    return Body(traced, captured, results, structure)


def _flat(returned: Any) -> tuple[list[Any], Any]:
    """The tensors and numbers of a structure, and the structure with their places."""
    returned = _ordered(returned)
    leaves = tree.flatten(returned)
    results = [x for x in leaves if x is not None]
    places = itertools.count()
    return results, tree.pack_sequence_as(returned, [None if x is None else next(places) for x in leaves])


def _ordered(structure: Any) -> Any:
    """The structure with sorted dict keys: on PyTorch, Keras flattens them in the order of insertion."""
    if isinstance(structure, dict):
        return {key: _ordered(structure[key]) for key in sorted(structure)}
    if isinstance(structure, (list, tuple)):
        parts = [_ordered(part) for part in structure]
        return type(structure)(*parts) if hasattr(structure, "_fields") else type(structure)(parts)
    return structure


def _packed(structure: Any, results: Sequence[Any]) -> Any:
    return tree.map_structure(lambda place: None if place is None else results[place], structure)


def spec_of(x: Any) -> keras.KerasTensor:
    """Shape and dtype of a tensor, an array or a number."""
    x = x if isinstance(x, keras.KerasTensor) else ops.convert_to_tensor(x)
    return keras.KerasTensor(x.shape, keras.backend.standardize_dtype(x.dtype))


class Bodies(keras.Operation):
    """An operation with bodies, in place of an operation of Keras."""

    def __init__(self, operation: Any, *bodies: Body):
        super().__init__(name=operation.name)
        self.traced = type(operation).__name__
        self._bodies = bodies

    @property
    def bodies(self) -> tuple[Body, ...]:
        return self._bodies

    def call(self, *args: Any) -> Any:
        raise NotImplementedError("It is only traced.")


class Choice(Bodies):
    """One of several bodies, by an index; for ops.cond the second is that of a true predicate."""

    def compute_output_spec(self, index: Any, captured: Any) -> list[keras.KerasTensor]:
        return self.bodies[0].specs()


class Repeat(Bodies):
    """A condition and a body, which computes the next values of the variables."""

    def compute_output_spec(self, limit: Any, variables: Any, captured: Any) -> list[keras.KerasTensor]:
        return self.bodies[1].specs()


class Steps(Bodies):
    """A body that is called for each element of sequences: from states and elements, states and results."""

    def __init__(self, operation: Any, body: Body, states: int, reverse: bool):
        super().__init__(operation, body)
        self.states = states
        self.reverse = reverse

    def compute_output_spec(
        self, states: Any, sequences: list[Any], captured: Any
    ) -> list[keras.KerasTensor]:
        specs = self.bodies[0].specs()
        length = sequences[0].shape[0]
        rest = [keras.KerasTensor((length, *x.shape), x.dtype) for x in specs[self.states :]]
        return specs[: self.states] + rest


def _choose(operation: Any, index: Any, functions: Sequence[Callable[[], Any]]) -> Any:
    if not isinstance(index, keras.KerasTensor):  # a number is known while tracing
        return functions[max(0, min(int(index), len(functions) - 1))]()
    if len(index.shape) > 0:
        raise NotLowered(f"It chooses a branch by a tensor of shape {tuple(index.shape)}, expected a scalar.")
    bodies = [trace(function) for function in functions]
    first = bodies[0]
    for body in bodies[1:]:
        if _signature(body) != _signature(first):
            raise NotLowered(
                f"Its branches return different structures, shapes or dtypes: {_signature(first)} and "
                f"{_signature(body)}. Return the same from each."
            )
    if not first.results:
        return first.structure
    choice = Choice(operation, *bodies)
    return _packed(first.structure, choice.symbolic_call(index, [body.captured for body in bodies]))


def _signature(body: Body) -> Any:
    specs = [(tuple(x.shape), x.dtype) for x in body.specs()]
    return tree.map_structure(lambda place: None if place is None else specs[place], body.structure)


def _cond(operation: Any, pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    return _choose(operation, pred, (false_fn, true_fn))


def _switch(operation: Any, index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    return _choose(operation, index, [functools.partial(branch, *operands) for branch in branches])


def _while_loop(operation: Any, loop_vars: Any) -> Any:
    return _repeat(operation, operation.cond, operation.body, loop_vars, operation.maximum_iterations)


def _repeat(
    operation: Any, condition: Callable[..., Any], body: Callable[..., Any], variables: Any, limit: Any
) -> Any:
    several = isinstance(variables, (list, tuple))
    arguments = tuple(_ordered(variables)) if several else (_ordered(variables),)
    parameters = tree.map_structure(spec_of, arguments)

    def step(*values: Any) -> tuple[Any, ...]:
        after = body(*values)
        return tuple(after) if several else (after,)

    loop = Repeat(operation, trace(condition, *parameters), trace(step, *parameters))
    _check_unchanged("A loop", tree.flatten(parameters), loop.bodies[1].specs())
    captured = [body.captured for body in loop.bodies]
    results = loop.symbolic_call(tree.flatten(arguments), captured, limit)
    packed = tree.pack_sequence_as(arguments, results)
    return packed if several else packed[0]


def _check_unchanged(
    kind: str, before: Sequence[keras.KerasTensor], after: Sequence[keras.KerasTensor]
) -> None:
    if [(x.shape, x.dtype) for x in before] != [(x.shape, x.dtype) for x in after]:
        raise NotLowered(
            f"{kind} changes the shapes or dtypes of its variables, from {_shapes(before)} to "
            f"{_shapes(after)}. They must stay the same."
        )


def _shapes(specs: Sequence[keras.KerasTensor]) -> str:
    return ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in specs)


def _fori_loop(operation: Any, init_val: Any) -> Any:
    _, last = _repeat(
        operation,
        lambda index, value: index < operation.upper,
        lambda index, value: (index + 1, operation.body_fun(index, value)),
        (operation.lower, init_val),
        None,
    )
    return last


def _scan(operation: Any, f: Callable[..., Any], init: Any, xs: Any = None) -> Any:
    return _steps(operation, f, init, xs, operation.length, operation.reverse)


def _map(operation: Any, f: Callable[[Any], Any], xs: Any) -> Any:
    return _steps(operation, lambda states, x: (states, f(x)), (), xs)[1]


def _vectorized_map(operation: Any, elements: Any) -> Any:
    return _map(operation, operation.function, elements)


def _steps(
    operation: Any,
    f: Callable[..., Any],
    states: Any,
    sequences: Any,
    length: Any = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    states, sequences = _ordered(states), _ordered(sequences)
    if sequences is None:
        flat = [ops.arange(length)]  # it is only counted
    else:
        flat = [ops.convert_to_tensor(x) if length is None else x[:length] for x in tree.flatten(sequences)]
    parameters = tree.map_structure(spec_of, states)
    elements = [spec_of(x[0]) for x in flat]

    def step(states: Any, elements: list[Any]) -> tuple[Any, Any]:
        return f(states, None if sequences is None else tree.pack_sequence_as(sequences, elements))

    body = trace(step, parameters, elements)
    before = tree.flatten(parameters)
    _check_unchanged("A scan", before, body.specs()[: len(before)])
    steps = Steps(operation, body, len(before), bool(reverse))
    results = steps.symbolic_call(tree.flatten(states), flat, [body.captured])
    return _packed(body.structure, results)


def _associative_scan(operation: Any, f: Callable[[Any, Any], Any], elems: Any) -> Any:
    """One element after the other: where a function is associative, the results are the same."""
    axis = operation.axis

    def step(state: Any, element: Any) -> tuple[Any, Any]:
        started, before = state
        here = tree.map_structure(lambda x: ops.expand_dims(x, axis), element)
        after = tree.map_structure(lambda x, y: ops.where(started, x, y), f(before, here), here)
        return (True, after), tree.map_structure(lambda x: ops.squeeze(x, axis), after)

    first = tree.map_structure(lambda x: x[(slice(None),) * (axis % len(x.shape)) + (slice(1),)], elems)
    sequences = tree.map_structure(lambda x: ops.moveaxis(x, axis, 0), elems)
    _, results = _steps(operation, step, (False, first), sequences, None, operation.reverse)
    return tree.map_structure(lambda x: ops.moveaxis(x, 0, axis), results)


# How each operation is traced and lowered.
TRACED: dict[str, tuple[Callable[..., Any], type[Bodies]]] = {
    "Cond": (_cond, Choice),
    "Switch": (_switch, Choice),
    "WhileLoop": (_while_loop, Repeat),
    "ForiLoop": (_fori_loop, Repeat),
    "Scan": (_scan, Steps),
    "Map": (_map, Steps),
    "VectorizedMap": (_vectorized_map, Steps),
    "AssociativeScan": (_associative_scan, Steps),
}


keras_patches.CONTROL_FLOW.update({name: trace for name, (trace, _) in TRACED.items()})
