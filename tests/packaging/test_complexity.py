"""Functions stay small: branches, boolean operators, loops and comprehensions are counted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = 20
# Above this, a comment `# Branches: reason` stands beside the function's name or on the line above it.
USUAL = 15
BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.Assert,
    ast.match_case,
)


def branches(function: ast.AST) -> int:
    """1, and 1 for each place where the function's own code, without nested functions, decides something."""
    count, nodes = 1, list(ast.iter_child_nodes(function))
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        count += isinstance(node, BRANCHES)
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
        nodes += ast.iter_child_nodes(node)
    return count


def functions() -> Iterator[tuple[str, int, bool]]:
    """Name, branches, and whether a reason stands above it, of each function of the two packages."""
    for package in ("keras_tx", "export/keras_tx_onnx"):
        for path in sorted((ROOT / package).rglob("*.py")):
            source = path.read_text("utf-8")
            lines = source.splitlines()
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    first = min([node.lineno, *(x.lineno for x in node.decorator_list)])
                    reason = any("# Branches: " in lines[n] for n in (first - 2, node.lineno - 1))
                    yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", branches(node), reason


def test_branches_are_counted():
    tree = ast.parse("def f(x):\n    if x and x > 1:\n        return [y for y in x if y]\n    return x or 1")
    assert branches(tree.body[0]) == 6


def test_no_function_has_too_many_branches():
    bad = [
        f"{name}: {count}"
        for name, count, reason in functions()
        if count > MOST or (count > USUAL and not reason)
    ]
    assert not bad, "\n".join(bad)
