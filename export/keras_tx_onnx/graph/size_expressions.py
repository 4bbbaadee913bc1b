"""Sizes as expressions over the dynamic axes of a graph, and conditions on them.

Expressions are sums of products in a normal form, so that equal sizes compare equal.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import onnx_ir as ir


@dataclasses.dataclass(eq=False)
class Symbol:
    """A dynamic axis of a value; `value` is None while the layer that computes it is being traced."""

    value: ir.Value | None
    axis: int
    least: int = 0  # the inputs of a model have at least one row and one column
    number: int = dataclasses.field(default_factory=itertools.count().__next__)

    @property
    def key(self) -> str:
        return f"s{self.number:08d}"


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of two expressions: //, %, min or max."""

    name: str
    left: Expression
    right: Expression

    @property
    def key(self) -> str:
        return f"{self.name}({self.left.key},{self.right.key})"


Atom = Symbol | Function
FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
}


@dataclasses.dataclass(frozen=True)
class Expression:
    """A sum of products of atoms, each with a coefficient; the product of no atoms is 1."""

    terms: tuple[tuple[tuple[Atom, ...], int], ...]

    @property
    def key(self) -> str:
        return "+".join(f"{c}*{'*'.join(a.key for a in atoms)}" for atoms, c in self.terms)

    @property
    def constant(self) -> int | None:
        """The value of a constant expression; otherwise None."""
        if not self.terms:
            return 0
        (atoms, coefficient), *rest = self.terms
        return coefficient if not rest and not atoms else None

    @property
    def symbol(self) -> Symbol | None:
        """The axis, if the expression is a single axis; otherwise None."""
        for atoms, coefficient in self.terms if len(self.terms) == 1 else ():
            if coefficient == 1 and len(atoms) == 1 and isinstance(atoms[0], Symbol):
                return atoms[0]
        return None

    def symbols(self) -> set[Symbol]:
        atoms = {atom for product, _ in self.terms for atom in product}
        inner = [a.left.symbols() | a.right.symbols() for a in atoms if isinstance(a, Function)]
        return {a for a in atoms if isinstance(a, Symbol)}.union(*inner)

    def __add__(self, other: Expression) -> Expression:
        return _sum([*self.terms, *other.terms])

    def __sub__(self, other: Expression) -> Expression:
        return _sum([*self.terms, *((atoms, -c) for atoms, c in other.terms)])

    def __mul__(self, other: Expression) -> Expression:
        pairs = itertools.product(self.terms, other.terms)
        return _sum([((*a, *b), c * d) for (a, c), (b, d) in pairs])

    def evaluate(self, values: Mapping[Symbol, int]) -> int:
        def number(atom: Atom) -> int:
            if isinstance(atom, Symbol):
                return values[atom]
            return FUNCTIONS[atom.name](atom.left.evaluate(values), atom.right.evaluate(values))

        return sum(c * math.prod(map(number, atoms)) for atoms, c in self.terms)

    def limits(self) -> tuple[float, float]:
        """The smallest and the largest value over all sizes."""
        low, high = 0.0, 0.0
        for atoms, coefficient in self.terms:
            ends = (float(coefficient), float(coefficient))
            for atom in atoms:
                ends = _product(ends, _limits(atom))
            low, high = low + ends[0], high + ends[1]
        least, largest = self._limits_without_division()
        return max(low, least), min(high, largest)

    def _limits_without_division(self) -> tuple[float, float]:
        """Limits by a // d = (a - a % d) / d, which show that n // 2 is not above n."""
        for index, (atoms, c) in enumerate(self.terms):
            atom = atoms[0] if len(atoms) == 1 else None
            divisor = atom.right.constant if isinstance(atom, Function) and atom.name == "//" else None
            if isinstance(atom, Function) and divisor is not None and divisor > 0:
                others = Expression(self.terms[:index] + self.terms[index + 1 :])
                low, high = (others * of_number(divisor) + atom.left * of_number(c)).limits()
                remainder = c * (divisor - 1)
                low, high = (low - max(remainder, 0)) / divisor, (high - min(remainder, 0)) / divisor
                return low if math.isinf(low) else math.ceil(low), high if math.isinf(high) else math.floor(
                    high
                )
        return -math.inf, math.inf

    def text(self, names: Mapping[Symbol, str | None]) -> str:
        """The expression in Python's syntax; an axis without a name is `axis_` and its number."""
        parts = []
        for atoms, coefficient in self.terms:
            factors = [] if abs(coefficient) == 1 and atoms else [str(abs(coefficient))]
            factors += [_text(atom, names) for atom in atoms]
            parts.append(("-" if coefficient < 0 else "+", " * ".join(factors)))
        first = "".join(parts[0]).removeprefix("+") if parts else "0"
        return " ".join([first, *(f"{sign} {part}" for sign, part in parts[1:])])


def _text(atom: Atom, names: Mapping[Symbol, str | None]) -> str:
    if isinstance(atom, Symbol):
        return names.get(atom) or f"axis_{atom.number}"
    left, right = atom.left.text(names), atom.right.text(names)
    if atom.name in ("min", "max"):
        return f"{atom.name}({left}, {right})"
    left = left if atom.left.symbol else f"({left})"
    return f"({left} {atom.name} {right if atom.right.constant is not None else f'({right})'})"


def _sum(terms: Iterable[tuple[tuple[Atom, ...], int]]) -> Expression:
    total: dict[tuple[Atom, ...], int] = {}
    for atoms, coefficient in terms:
        atoms = tuple(sorted(atoms, key=lambda a: a.key))
        total[atoms] = total.get(atoms, 0) + coefficient
    nonzero = [(atoms, c) for atoms, c in total.items() if c]
    # Constants last, as usual.
    nonzero.sort(key=lambda term: (not term[0], -len(term[0]), [a.key for a in term[0]]))
    return Expression(tuple(nonzero))


def of_number(value: int) -> Expression:
    return Expression((((), int(value)),) if value else ())


def of_symbol(symbol: Symbol) -> Expression:
    return Expression((((symbol,), 1),))


def _limits(atom: Atom) -> tuple[float, float]:
    if isinstance(atom, Symbol):
        return float(atom.least), math.inf
    a, b = atom.left.limits(), atom.right.limits()
    if atom.name == "min":
        return min(a[0], b[0]), min(a[1], b[1])
    if atom.name == "max":
        return max(a[0], b[0]), max(a[1], b[1])
    if b[0] < 0:
        return -math.inf, math.inf
    b = (max(b[0], 1.0), b[1])  # nothing is divided by 0
    if atom.name == "%":
        return 0.0, min(b[1] - 1, a[1]) if a[0] >= 0 else b[1] - 1
    if a[0] >= 0:
        return (0.0 if math.isinf(b[1]) else a[0] // b[1]), (math.inf if math.isinf(a[1]) else a[1] // b[0])
    return (-math.inf if math.isinf(a[0]) else a[0] // b[0]), max(0.0, a[1])


def _product(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    ends = [0.0 if 0 in pair else pair[0] * pair[1] for pair in itertools.product(a, b)]
    return min(ends), max(ends)


def apply(name: str, left: Expression, right: Expression) -> Expression:
    """A function of two expressions, simplified."""
    if left.constant is not None and right.constant is not None:
        return of_number(FUNCTIONS[name](left.constant, right.constant))
    if name in ("min", "max"):
        low, high = (left - right).limits()
        if low >= 0 or high <= 0:
            return left if (high <= 0) == (name == "min") else right
        left, right = sorted((left, right), key=lambda e: (e.constant is not None, e.key))
    elif right.constant is not None and right.constant > 0:
        return _divided(name, left, right.constant)
    elif len(right.terms) == 1 and right.limits()[0] >= 0:
        return _divided_by_product(name, left, right)
    return of_function(name, left, right)


def _divided_by_product(name: str, left: Expression, right: Expression) -> Expression:
    """left // right or left % right, where right is one positive product, such as n * 16."""
    ((divisor, factor),) = right.terms
    whole, rest = [], []
    for atoms, c in left.terms:
        others = list(atoms)
        for atom in divisor:
            if atom not in others:
                break
            others.remove(atom)
        else:
            if c % factor == 0:
                whole.append((tuple(others), c // factor))
                continue
        rest.append((atoms, c))
    remainder = Expression(tuple(rest))
    if not whole:
        return of_function(name, left, right)
    after = apply(name, remainder, right) if rest else of_number(0)
    return after if name == "%" else _sum([*whole, *after.terms])


def _divided(name: str, left: Expression, divisor: int) -> Expression:
    """left // divisor or left % divisor; multiples of the divisor are divided separately."""
    whole = [(atoms, c) for atoms, c in left.terms if c % divisor == 0]
    rest = Expression(tuple((atoms, c) for atoms, c in left.terms if c % divisor))
    if whole:
        remainder = apply(name, rest, of_number(divisor))
        quotients = ((atoms, c // divisor) for atoms, c in whole)
        return remainder if name == "%" else _sum([*quotients, *remainder.terms])
    low, high = left.limits()
    if low >= 0 and high < divisor:
        return left if name == "%" else of_number(0)
    return of_function(name, left, of_number(divisor))


def of_function(name: str, left: Expression, right: Expression) -> Expression:
    return Expression((((Function(name, left, right),), 1),))


# -- bounds -------------------------------------------------------------------------------------------------

RELATIONS: dict[str, tuple[Callable[[int, int], bool], str]] = {  # with the negated relation
    "<": (operator.lt, ">="),
    "<=": (operator.le, ">"),
    ">": (operator.gt, "<="),
    ">=": (operator.ge, "<"),
    "==": (operator.eq, "!="),
    "!=": (operator.ne, "=="),
}


@dataclasses.dataclass(frozen=True)
class Bound:
    """A condition for a graph to be correct: `difference` is in this relation to 0."""

    difference: Expression
    relation: str

    def text(self, names: Mapping[Symbol, str | None]) -> str:
        """The bound in Python's syntax, with the constant on the right side."""
        terms, relation = self.difference.terms, self.relation
        if terms and terms[0][1] < 0:
            relation = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(relation, relation)
            terms = tuple((atoms, -c) for atoms, c in terms)
        right = -sum(c for atoms, c in terms if not atoms)
        left = Expression(tuple((atoms, c) for atoms, c in terms if atoms))
        if relation in ("<", ">"):  # of integers
            relation, right = {"<": ("<=", right - 1), ">": (">=", right + 1)}[relation]
        negative = [(atoms, -c) for atoms, c in left.terms if c < 0]
        if right == 0 and negative:
            left = Expression(tuple(term for term in left.terms if term[1] > 0))
            return f"{left.text(names)} {relation} {Expression(tuple(negative)).text(names)}"
        return f"{left.text(names)} {relation} {right}"


def decide(difference: Expression, relation: str) -> bool | None:
    """Whether a relation of an expression to 0 holds at all sizes (True), at none (False), or at some."""
    low, high = difference.limits()
    if relation in ("==", "!="):
        if low > 0 or high < 0:
            return relation == "!="
        return relation == "==" if low == high == 0 else None
    if relation in (">", ">="):
        low, high = -high, -low
    strict = relation in ("<", ">")
    if high < 0 or (high == 0 and not strict):
        return True
    return False if low > 0 or (low == 0 and strict) else None
