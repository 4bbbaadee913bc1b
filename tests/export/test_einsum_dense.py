"""EinsumDense: MatMul for equations of matrix products, otherwise Einsum."""

from __future__ import annotations

import pytest
from keras import layers

from tests.export.one_input import same

CASES = [
    ("ab,bc->ac", (4,), 3, "c", "MatMul"),
    ("...x,xy->...y", (5, 4), 3, "y", "MatMul"),
    ("abc,cde->abde", (5, 4), (None, 2, 3), "de", "MatMul"),
    ("abcd,cde->abe", (5, 2, 4), (None, 3), "e", "MatMul"),
    ("abcd,cdef->abef", (5, 2, 4), (None, 3, 2), "ef", "MatMul"),
    ("abc,bde->acde", (5, 4), (None, 2, 3), "e", "Einsum"),
    ("abc,dc->abd", (5, 4), (None, 3), "d", "Einsum"),
    ("abc,cd->adb", (5, 4), (3, None), None, "Einsum"),
    ("abcd,dc->ab", (5, 2, 4), (None,), None, "Einsum"),
    ("abc,bcd->abd", (5, 4), (5, 3), "bd", "Einsum"),
]


@pytest.mark.parametrize(("equation", "shape", "out", "bias", "node"), CASES)
def test_equations(equation, shape, out, bias, node, tmp_path):
    def call(x):
        return layers.EinsumDense(equation, out, bias_axes=bias, activation="relu")(x)

    assert same(call, shape, tmp_path, opsets=(17, 23))[node] == 1


@pytest.mark.parametrize(
    ("equation", "shape", "out", "sizes", "node"),
    [
        ("abc,cde->abde", (None, 4), (None, 2, 3), [(5, 4), (3, 4)], "MatMul"),
        ("abcd,cde->abe", (None, 2, 4), (None, 3), [(5, 2, 4), (3, 2, 4)], "MatMul"),
        ("abcd,de->abce", (None, None, 4), (None, None, 3), [(5, 2, 4), (3, 1, 4)], "MatMul"),
        ("abcd,def->abcef", (None, None, 4), (None, None, 3, 2), [(5, 2, 4), (3, 1, 4)], "MatMul"),
        ("...d,de->...e", (None, None, 4), 3, [(5, 2, 4), (3, 1, 4)], "MatMul"),
    ],
)
def test_dynamic_sizes(equation, shape, out, sizes, node, tmp_path):
    nodes = same(lambda x: layers.EinsumDense(equation, out)(x), shape, tmp_path, sizes=sizes)
    assert nodes[node] == 1
