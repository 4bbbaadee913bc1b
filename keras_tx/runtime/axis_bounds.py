"""Bounds of a graph: sizes of dynamic axes at which it computes the same as the Keras model.

A bound is a comparison of integers and names of dynamic axes in Python's syntax: "sequence_length <= 200".
The exporter writes bounds into the graph's metadata and into keras_tx.json.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_tx.errors import FolderError

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max}


def read_bounds(text: str) -> tuple[str, ...]:
    """Parses the bounds in a graph's metadata; raises a FolderError if they are not a list of strings."""
    bounds = json.loads(text)
    if not isinstance(bounds, list) or not all(isinstance(bound, str) for bound in bounds):
        raise FolderError(f"The graph's bounds are {text!r}, expected a list of comparisons. Export again.")
    return tuple(bounds)


def violated_bound(bounds: Sequence[str], sizes: Mapping[str, int]) -> str | None:
    """The first bound that sizes of axes violate, or None.

    >>> violated_bound(["sequence_length <= 200"], {"sequence_length": 300})
    'sequence_length <= 200'
    """
    return next((bound for bound in bounds if not _value(ast.parse(bound, mode="eval").body, sizes)), None)


def axes_of(bound: str) -> list[str]:
    """The names of the axes in a bound."""
    names = [node.id for node in ast.walk(ast.parse(bound, mode="eval")) if isinstance(node, ast.Name)]
    return [name for name in dict.fromkeys(names) if name not in _FUNCTIONS]


def _value(node: ast.AST, sizes: Mapping[str, int]) -> Any:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name) if name in sizes:
            return sizes[name]
        case ast.UnaryOp(op=op, operand=x) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(x, sizes))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(x, sizes) for x in arguments))
    raise FolderError(
        f"The graph has a bound with {ast.unparse(node)!r}, expected integers and the axes "
        f"{', '.join(sizes)}. Export again, or upgrade keras-tx."
    )
