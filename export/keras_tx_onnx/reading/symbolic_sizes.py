"""Symbolic sizes: integers with the expression by which a layer's code computed them.

While a layer is traced, each dynamic axis is a `Size`: an int with a sample value, and an `Expression`
over the dynamic axes of the graph. Arithmetic applies to both. A comparison is decided by the expression if
possible; otherwise the sample value decides, and the result of the comparison becomes a `Bound` of the
graph.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import sys
import types
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx_onnx.errors import NotLowered
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext
from keras_tx_onnx.graph.size_expressions import (
    FUNCTIONS,
    RELATIONS,
    Atom,
    Bound,
    Expression,
    Symbol,
    apply,
    decide,
    of_number,
    of_symbol,
)

SIZES = "sizes"  # key of a value's metadata with its sizes: integers, and expressions for dynamic axes
LARGEST = 2**15  # expressions must fit into 64 bits for axes of this length
EXACT = 2**50  # below, rounding in float64 moves no number past an integer


@dataclasses.dataclass
class Observer:
    """Records how a layer's code uses sizes during a trace."""

    bounds: dict[Bound, None] = dataclasses.field(default_factory=dict)
    lost: list[str] = dataclasses.field(default_factory=list)
    unequal: Expression | None = None  # the difference of what was compared last, and was not equal
    quiet: int = 0  # within Keras's own shape inference, where nothing is recorded

    def lose(self, how: str) -> None:
        """Records that code converted a size to a plain number; Keras's own code may do so."""
        caller = sys._getframe(2).f_globals.get("__name__", "")
        if not self.quiet and not caller.startswith(("keras.src.", "keras_tx_onnx.")):
            self.lost.append(how)


OBSERVER: ContextVar[Observer | None] = ContextVar("keras_tx_sizes", default=None)


def _expression(x: Any) -> Expression | None:
    if isinstance(x, Size):
        return x.expression
    return of_number(int(x)) if isinstance(x, (int, np.integer)) and not isinstance(x, bool) else None


def plain(x: Any) -> int:
    """The sample value of a size."""
    return int.__int__(x) if isinstance(x, Size) else int(x)


def plain_number(x: Any) -> Any:
    """The sample value of a size, also of those in a slice; anything else is returned as it is."""
    if isinstance(x, slice):
        return slice(*map(plain_number, (x.start, x.stop, x.step)))
    if isinstance(x, Real):
        return float.__float__(x)
    return plain(x) if isinstance(x, Size) else x


def with_plain_sizes(x: Any) -> Any:
    """A Keras tensor or a number with sample values in place of sizes."""
    if isinstance(x, keras.KerasTensor):
        return keras.KerasTensor([n if n is None else plain(n) for n in x.shape], x.dtype)
    return plain_number(x)


def _plain_result(usual: Any, how: str) -> Any:
    """A method of numbers that converts a size to a plain number."""

    def method(x: Any, *args: Any) -> Any:
        observer = OBSERVER.get()
        if observer is not None:
            observer.lose(how)
        return usual(x, *args)

    return method


class Size(int):
    """An integer with the expression that computed it."""

    expression: Expression

    def __new__(cls, value: int, expression: Expression) -> Any:
        if expression.constant is not None:
            return expression.constant
        size = int.__new__(cls, value)
        size.expression = expression
        return size

    def __repr__(self) -> str:
        return self.expression.text({})

    def __bool__(self) -> bool:
        return self != 0

    def __neg__(self) -> Any:
        return 0 - self

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __floor__(self) -> Any:
        return self

    __ceil__ = __trunc__ = __floor__

    def __round__(self, digits: Any = None) -> Any:
        return (
            self if digits is None or digits >= 0 else _plain_result(int.__round__, "round()")(self, digits)
        )

    def __invert__(self) -> Any:
        return -1 - self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if modulus is None and isinstance(other, int) and not isinstance(other, Size) and 0 <= other <= 8:
            return math.prod([self] * other)
        if modulus is None and isinstance(other, (int, float)) and not isinstance(other, Size):
            return Real(self) ** other
        return _plain_result(int.__pow__, "**")(self, other, modulus)

    def __truediv__(self, other: Any) -> Any:
        return Real(self).__truediv__(other)

    def __rtruediv__(self, other: Any) -> Any:
        return Real(self).__rtruediv__(other)


def _binary(name: str, combine: Callable[[Expression, Expression], Expression], compute: Any) -> Any:
    def forward(a: Size, b: Any) -> Any:
        if _expression(b) is None:
            return getattr(Real(a), f"__{name}__")(b) if isinstance(b, float) else NotImplemented
        return computed(a, b)

    def backward(a: Size, b: Any) -> Any:
        if _expression(b) is None:
            return getattr(Real(a), f"__r{name}__")(b) if isinstance(b, float) else NotImplemented
        return computed(b, a)

    def computed(a: Any, b: Any) -> Any:
        left, right = _expression(a), _expression(b)
        assert left is not None and right is not None
        result = compute(plain(a), plain(b))
        if name in ("floordiv", "mod"):
            compared(right, "!=", True)
        return Size(result, _fitting(combine(left, right)))

    return forward, backward


def _fitting(expression: Expression) -> Expression:
    for atoms, coefficient in expression.terms:
        if abs(coefficient) * LARGEST ** len(atoms) >= 2**62:
            raise NotLowered(
                f"A size is computed as {expression.text({})}, which does not fit "
                "into 64 bits at long inputs. Compute it in floating point with keras.ops."
            )
    return expression


def _comparing(relation: str) -> Any:
    function = RELATIONS[relation][0]

    def compare(a: Size, b: Any) -> Any:
        other = _expression(b)
        if other is None:
            if isinstance(b, float) and not isinstance(b, Real):
                whole = math.floor(b) if relation in ("<=", ">") else math.ceil(b)
                if b == whole or relation in ("<", "<=", ">", ">="):
                    return function(a, whole)
            return NotImplemented
        difference, observer = a.expression - other, OBSERVER.get()
        if relation == "==" and other.constant == 1 and observer is not None and observer.quiet:
            # Keras would infer another size where this axis has size 1. The node broadcasts it there.
            return decide(difference, "==") is True
        return compared(difference, relation, function(plain(a), plain(b)))

    return compare


def compared(difference: Expression, relation: str, result: bool) -> bool:
    """The result of a comparison: proved for all sizes, or that of the sample, which becomes a bound."""
    proved = decide(difference, relation)
    if proved is not None:
        return proved
    observer = OBSERVER.get()
    if observer is not None and (relation, result) in (("==", False), ("!=", True)):
        observer.unequal = difference
    if observer is not None and not observer.quiet:
        observer.bounds[Bound(difference, relation if result else RELATIONS[relation][1])] = None
    return result


def _complete_size() -> None:
    """Adds the operators of integers to `Size`."""
    for name, combine, compute in (
        ("add", operator.add, operator.add),
        ("sub", operator.sub, operator.sub),
        ("mul", operator.mul, operator.mul),
        ("floordiv", lambda a, b: apply("//", a, b), operator.floordiv),
        ("mod", lambda a, b: apply("%", a, b), operator.mod),
    ):
        forward, backward = _binary(name, combine, compute)
        setattr(Size, f"__{name}__", forward)
        setattr(Size, f"__r{name}__", backward)
    for relation, name in (("<", "lt"), ("<=", "le"), (">", "gt"), (">=", "ge"), ("==", "eq"), ("!=", "ne")):
        setattr(Size, f"__{name}__", _comparing(relation))
    for name in ("and", "or", "xor", "lshift", "rshift", "rand", "ror", "rxor", "rlshift", "rrshift", "rpow"):
        setattr(Size, f"__{name}__", _plain_result(getattr(int, f"__{name}__"), f"the operator {name!r}"))
    for name, how in {"hash": "a key of a dictionary or a set", "int": "int()", "float": "float()"}.items():
        setattr(Size, f"__{name}__", _plain_result(getattr(int, f"__{name}__"), how))
    _complete_methods(Size, int)
    Size.__repr__ = _plain_result(Size.__repr__, "repr()")  # type: ignore[method-assign]
    Size.__str__ = _plain_result(Size.__repr__, "str()")  # type: ignore[method-assign]
    Size.__format__ = _plain_result(lambda x, spec: repr(x), "a format string")  # type: ignore[method-assign]


def _complete_methods(kind: type, number: type) -> None:
    """Notes the methods and properties that a number has beside its operators, such as `bit_length`."""
    for name, member in vars(number).items():
        if isinstance(member, types.GetSetDescriptorType):
            setattr(kind, name, property(_plain_result(member.__get__, f"the attribute {name!r}")))
        elif isinstance(member, types.MethodDescriptorType) and name[0] != "_":
            setattr(kind, name, _plain_result(member, f"the method {name!r}"))


_complete_size()


def smaller(a: Any, b: Any) -> Any:
    """min of integers and sizes, without a comparison."""
    return _chosen("min", a, b)


def larger(a: Any, b: Any) -> Any:
    return _chosen("max", a, b)


def _chosen(name: str, a: Any, b: Any) -> Any:
    left, right = _expression(a), _expression(b)
    assert left is not None and right is not None
    return Size(FUNCTIONS[name](plain(a), plain(b)), apply(name, left, right))


@dataclasses.dataclass(frozen=True)
class Quotient:
    """An exact quotient with the same floor and ceiling as a floating-point number computed from sizes."""

    top: Expression
    bottom: int = 1

    @property
    def is_exact(self) -> bool:
        """Whether the number itself is exact, because it is divided by a power of two."""
        return self.bottom & (self.bottom - 1) == 0

    def times(self, factor: int) -> Expression:
        return self.top * of_number(factor)


def _quotient(x: Any) -> Quotient | None:
    if isinstance(x, Real):
        return x.quotient
    expression = _expression(x)
    if expression is not None:
        return Quotient(expression)
    if not isinstance(x, float) or not math.isfinite(x):
        return None
    top, bottom = x.as_integer_ratio()
    return Quotient(of_number(top), bottom)


def _combined(operation: str, a: Quotient | None, b: Quotient | None) -> Quotient | None:
    """The result of an operation; None if it may be rounded past an integer, as 0.7 * 10 may."""
    if a is None or b is None:
        return None
    result = _OPERATIONS[operation](a, b) if operation in _OPERATIONS else None
    if result is None or result.bottom > LARGEST:
        return None
    fits = all(abs(c) * LARGEST ** len(atoms) < EXACT for atoms, c in result.top.terms)
    return result if fits else None


def _sum(a: Quotient, b: Quotient, sign: int = 1) -> Quotient | None:
    # A quotient such as n / 3 is rounded, so only integers may be added to it.
    if not (a.is_exact and b.is_exact) and 1 not in (a.bottom, b.bottom):
        return None
    bottom = math.lcm(a.bottom, b.bottom)
    return Quotient(a.times(bottom // a.bottom) + b.times(sign * bottom // b.bottom), bottom)


def _multiplied(a: Quotient, b: Quotient) -> Quotient | None:
    return Quotient(a.top * b.top, a.bottom * b.bottom) if a.is_exact and b.is_exact else None


def _divided(a: Quotient, b: Quotient) -> Quotient | None:
    divisor = b.top.constant
    if not divisor or not (a.is_exact and b.is_exact):
        return None
    return Quotient(a.times(b.bottom if divisor > 0 else -b.bottom), a.bottom * abs(divisor))


_OPERATIONS: dict[str, Callable[[Quotient, Quotient], Quotient | None]] = {
    "Add": _sum,
    "Sub": functools.partial(_sum, sign=-1),
    "Mul": _multiplied,
    "Div": _divided,
}


class Real(float):
    """A floating-point number computed from a size: the size itself, or an operation on two numbers."""

    operation: str
    operands: tuple[Any, ...]
    quotient: Quotient | None

    def __new__(cls, size: Any, operation: str = "", operands: tuple[Any, ...] = ()) -> Real:
        value = int.__float__(plain(size)) if isinstance(size, Size) else size
        real = float.__new__(cls, value)
        real.operation, real.operands = operation, operands or (size,)
        real.quotient = _combined(operation, *map(_quotient, operands)) if operation else _quotient(size)
        return real

    def __neg__(self) -> Any:
        return 0.0 - self

    def __pos__(self) -> Any:
        return self

    def __floor__(self) -> Any:
        if self.quotient is None:
            return _plain_result(float.__floor__, "floor of a rounded quotient")(self)
        whole = apply("//", self.quotient.top, of_number(self.quotient.bottom))
        return Size(float.__floor__(self), _fitting(whole))

    def __ceil__(self) -> Any:
        if self.quotient is None:
            return _plain_result(float.__ceil__, "ceil of a rounded quotient")(self)
        top = self.quotient.top + of_number(self.quotient.bottom - 1)
        return Size(float.__ceil__(self), _fitting(apply("//", top, of_number(self.quotient.bottom))))


def expression_of(x: Any) -> Any:
    """The computation of a size, in a form that is equal for equal computations."""
    if isinstance(x, Size):
        return x.expression
    return (x.operation, *map(expression_of, x.operands)) if isinstance(x, Real) else x


def _real_binary(name: str) -> Any:
    usual = getattr(float, f"__{name}__")
    node = {"add": "Add", "sub": "Sub", "mul": "Mul", "truediv": "Div", "pow": "Pow"}.get(
        name.removeprefix("r")
    )

    def compute(a: Real, b: Any) -> Any:
        if not isinstance(b, (int, float)):
            return NotImplemented
        other = int.__float__(plain(b)) if isinstance(b, int) else float.__float__(b)
        result = usual(float.__float__(a), other)
        divisor = {"truediv": b, "rtruediv": a.operands[0]}.get(name)
        if isinstance(divisor, Size):
            compared(divisor.expression, "!=", True)
        if node is None or not isinstance(result, float):
            return _plain_result(lambda x: result, f"the operator {name!r}")(a)
        return Real(result, node, (b, a) if name[0] == "r" else (a, b))

    return compute


def _complete_real() -> None:
    """Adds the operators of floating-point numbers to `Real`."""
    for name in ("add", "sub", "mul", "truediv", "pow", "floordiv", "mod"):
        setattr(Real, f"__{name}__", _real_binary(name))
        setattr(Real, f"__r{name}__", _real_binary(f"r{name}"))
    for name in (
        "__float__",
        "__int__",
        "__trunc__",
        "__round__",
        "__hash__",
        "__bool__",
        "__repr__",
        "__abs__",
        "__divmod__",
        "__rdivmod__",
    ):
        setattr(Real, name, _plain_result(getattr(float, name), f"{name.strip('_')} of a quotient"))
    for name in ("__str__", "__format__", "__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
        setattr(Real, name, _plain_result(getattr(float, name), f"{name.strip('_')} of a quotient"))
    _complete_methods(Real, float)


_complete_real()


# -- sizes in the graph -------------------------------------------------------------------------------------


def lowered(cx: GraphContext, x: Any) -> ir.Value:
    """A size as a scalar of the graph, in place of a Python number."""
    if isinstance(x, Real):
        value = cx.op.Cast(_double(cx, x), to=ir.DataType.FLOAT)

        value.meta[KERAS_TENSOR] = keras.KerasTensor((), "float32")
        return value
    return _scalar(cx, x.expression)


def _double(cx: GraphContext, x: Any) -> Any:
    if isinstance(x, Size):
        return cx.op.Cast(_scalar(cx, x.expression), to=ir.DataType.DOUBLE)
    if not isinstance(x, Real):
        return np.float64(x)
    if not x.operation:
        return _double(cx, x.operands[0])
    left, right = (
        cx.constant(v, "float64") if isinstance(v, np.float64) else v
        for v in map(lambda o: _double(cx, o), x.operands)
    )
    return getattr(cx.op, x.operation)(left, right)


def _scalar(cx: GraphContext, expression: Expression) -> ir.Value:
    if expression.constant is not None:
        return cx.constant(np.int64(expression.constant))
    total: Any = None
    for atoms, coefficient in expression.terms:
        value: Any = None
        for atom in atoms:
            one = _atom(cx, atom)
            value = one if value is None else cx.op.Mul(value, one)
        if value is None:
            value = np.int64(coefficient)
            total = cx.op.Add(total, value) if coefficient > 0 else cx.op.Sub(total, np.int64(-coefficient))
            continue
        if abs(coefficient) != 1:
            value = cx.op.Mul(value, np.int64(abs(coefficient)))
        if total is None:
            constant = expression.terms[-1]
            if coefficient < 0 and not constant[0]:  # 8 - n
                rest = Expression(expression.terms[1:-1])
                total = cx.op.Sub(np.int64(constant[1]), value)
                return total if not rest.terms else cx.op.Add(total, _scalar(cx, rest))
            total = value if coefficient > 0 else cx.op.Neg(value)
        else:
            total = cx.op.Add(total, value) if coefficient > 0 else cx.op.Sub(total, value)
    return total


def _atom(cx: GraphContext, atom: Atom) -> ir.Value:
    op = cx.op
    if isinstance(atom, Symbol):
        assert atom.value is not None
        return op.Squeeze(op.Shape(atom.value, start=atom.axis, end=atom.axis + 1), [0])
    a, b = _scalar(cx, atom.left), _scalar(cx, atom.right)
    if atom.name in ("min", "max"):
        return (op.Min if atom.name == "min" else op.Max)(a, b)
    if atom.name == "%":  # of integers, with the sign of the divisor, as in Python
        return op.Mod(a, b)
    if atom.left.limits()[0] >= 0 and atom.right.limits()[0] > 0:
        return op.Div(a, b)
    return op.Div(op.Sub(a, op.Mod(a, b)), b)  # the node rounds towards zero, and Python down


def sizes_of(value: ir.Value) -> tuple[int | Expression, ...]:
    """The sizes of a value. An unknown dynamic axis is a new symbol."""
    shape = value.meta[KERAS_TENSOR].shape
    sizes = list(value.meta.get(SIZES) or shape)
    for axis, size in enumerate(sizes):
        if size is None:
            sizes[axis] = of_symbol(Symbol(value, axis))
    value.meta[SIZES] = tuple(sizes)
    return value.meta[SIZES]


def contradict(one: int | Expression, other: int | Expression) -> bool:
    """Whether two sizes of an axis contradict each other; unknown for inner axes of a graph."""
    symbols = set().union(*(size.symbols() for size in (one, other) if isinstance(size, Expression)))
    return one != other and all(symbol.least for symbol in symbols)


def axis_length(cx: GraphContext, value: ir.Value, axis: int) -> ir.Value:
    """The size of an axis, as a vector of one, of the first value that has it, so that all share one node."""
    size = sizes_of(value)[axis]
    if isinstance(size, int):
        return cx.constant([size])
    symbol = size.symbol
    source, axis = (value, axis) if symbol is None else (symbol.value, symbol.axis)
    return cx.op.Shape(source, start=axis, end=axis + 1)


# -- the inputs of a model ----------------------------------------------------------------------------------

TOKENS = ("token_ids", "input_ids")  # keras-hub's word and Hugging Face's
ABOUT_TOKENS = (
    "padding_mask",
    "attention_mask",
    "response_mask",
    "vision_mask",
    "segment_ids",
    "token_type_ids",
    "position_ids",
)


def text_of(name: str, names: Sequence[str]) -> str | None:
    """The token ids that an input describes, among a model's inputs, by the usual names."""
    end = next((end for end in (*TOKENS, *ABOUT_TOKENS) if name.endswith(end)), None)
    texts = [] if end is None else [name.removesuffix(end) + tokens for tokens in TOKENS]
    return next((text for text in texts if text in names), None)


def begin(inputs: list[ir.Value], names: list[str]) -> None:
    """Notes the sizes of a model's inputs: all share the batch, every other dynamic size is separate.

    Padding masks and similar inputs are as long as the `token_ids` that they describe.
    """
    batch: Expression | None = None
    values = dict(zip(names, inputs, strict=True))
    for name in sorted(names, key=lambda name: not name.endswith(TOKENS)):
        value, text = values[name], text_of(name, names)
        if SIZES in value.meta:
            continue
        sizes: list[int | Expression | None] = list(value.meta[KERAS_TENSOR].shape)
        if text not in (None, name) and len(sizes) == len(sizes_of(values[text])) == 2:
            value.meta[SIZES] = sizes_of(values[text])
            continue
        for axis, size in enumerate(sizes):
            if size is None:
                own = of_symbol(Symbol(value, axis, least=1))
                sizes[axis] = batch if axis == 0 and batch is not None else own
        if sizes and isinstance(sizes[0], Expression):
            batch = sizes[0]
        value.meta[SIZES] = tuple(sizes)


def axis_name(graph: ir.Graph, symbol: Symbol) -> str | None:
    """The name of an axis of an input; None for an axis of any other value."""
    value = symbol.value
    if value is None or value.shape is None:
        return None
    if value in graph.inputs:
        size = value.shape[symbol.axis]
        return str(size.value) if isinstance(size, ir.SymbolicDim) and size.value is not None else None
    return contract.BATCH_AXIS if symbol.least and symbol.axis == 0 else None
