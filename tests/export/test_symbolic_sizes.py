"""Layers that compute with sizes: correct at every length, limited by bounds, or refused; never wrong."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable

import hypothesis
import keras
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import strategies as st
from keras import layers, ops

import keras_tx
from keras_tx import contract
from keras_tx.errors import ExportError, InputError
from keras_tx.runtime.axis_bounds import violated_bound
from keras_tx.runtime.session import Session
from keras_tx_onnx import export_onnx
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.reading.walk import lower
from tests.drawing import as_numpy, draw
from tests.tolerances import assert_close

LENGTHS = (1, 2, 3, 7, 8, 150, 201, 900)
RIGHT, BOUNDED, REFUSED = "right", "bounded", "refused"


class Sized(layers.Layer):
    """A layer of one function of its input."""

    def __init__(self, function: Callable):
        super().__init__(name="sized")
        self.function = function
        self.table = self.add_weight(shape=(1000, 4), initializer="random_normal")

    def compute_output_spec(self, *inputs):  # Keras cannot infer what it is: the exporter must not ask
        return keras.KerasTensor((None, None, 4), "float32")

    def call(self, *inputs):
        return self.function(self, *inputs)


def length(x):
    return ops.shape(x)[1]


def minimum(self, x):
    return x * ops.cast(ops.minimum(length(x), 100), "float32")


def first_hundred(self, x):
    return x[:, : min(length(x), 100)]


def long_branch(self, x):
    return x * 2 if length(x) > 200 else x + 1


def short_branch(self, x):
    return x * 2 if length(x) < 3 else x + 1


def half(self, x):
    return x[:, : length(x) // 2 + 1]


def padded_to_eight(self, x):
    return ops.pad(x, [(0, 0), (0, (-length(x)) % 8), (0, 0)])


def in_windows(self, x):
    padded = ops.pad(x, [(0, 0), (0, (-length(x)) % 8), (0, 0)])
    windows = ops.reshape(padded, (ops.shape(x)[0], length(padded) // 8, 8, 4))
    return ops.reshape(windows - ops.mean(windows, axis=2, keepdims=True), ops.shape(padded))[:, : length(x)]


def unpadded_windows(self, x):
    if length(x) % 8:
        return x
    return ops.reshape(ops.reshape(x, (-1, length(x) // 8, 8, 4)) * 2, (-1, length(x), 4))


def loop(self, x):
    for index in range(length(x)):
        x = x + index
    return x


def flattened(self, x):
    flat = ops.reshape(x, (ops.shape(x)[0], -1))
    return x * ops.shape(flat)[1]


def steps(self, x):
    return x + ops.expand_dims(ops.arange(length(x), dtype="float32"), -1)


def every_third(self, x):
    return ops.concatenate([x[:, ::3], x * ops.shape(x[:, 1::3])[1]], axis=1)


def backwards(self, x):
    return x + ops.expand_dims(ops.arange(length(x) - 1, -1, -1, dtype="float32"), -1)


def one_hot(self, x):
    position = ops.cast(ops.argmax(x[:, :, 0], axis=1), "int32")
    return x * ops.expand_dims(ops.one_hot(position, length(x)), -1)


def causal(self, x):
    mask = ops.tril(ops.ones((length(x), length(x))))
    return ops.matmul(mask, x)


def positional(self, x):
    return x + self.table[: length(x)]


def last_positions(self, x):
    return x + self.table[1000 - length(x) :]


def convolved(self, x):
    y = layers.MaxPooling1D(3, strides=2, padding="same")(x)
    return ops.reshape(y, (ops.shape(x)[0], length(y) * 4, 1)) * length(y) + ops.zeros((1, 1, 4))


def scores(self, x):
    y = ops.einsum("bnd,bmd->bnm", x, x)
    return x * (ops.shape(y)[1] + ops.shape(y)[2])


def filled(self, x):
    return ops.concatenate([x, ops.full((ops.shape(x)[0], length(x) + 2, 4), 3.0)], axis=1)


def squared(self, x):
    return x * length(x) ** 2


def as_float(self, x):
    return x / float(length(x))


def cast(self, x):
    return x / ops.cast(length(x), "float32")


def square_root(self, x):
    return x / math.sqrt(length(x))


def power_of_half(self, x):
    return x / length(x) ** 0.5


def ratio(self, x):
    return x * (length(x) / 7 + 1 / length(x))


def fixed_slice(self, x):
    y = x[:, :5]
    return y * ops.shape(y)[1]


def last_five(self, x):
    y = x[:, -5:]
    return y + ops.shape(y)[1]


def split_parts(self, x):
    first, second = ops.split(x, [5], axis=1)
    return ops.concatenate([first * ops.shape(second)[1], second * ops.shape(first)[1]], axis=1)


def halves(self, x):
    middle = length(x) // 2
    return ops.concatenate([x[:, middle:], x[:, :middle]], axis=1)


def first_half(self, x):
    middle = length(x) // 2
    return x[:, :middle] + ops.expand_dims(ops.arange(middle, dtype="float32"), -1)


def even_rows(self, x):
    return x[:, ::2] * 2 + ops.mean(x, axis=1, keepdims=True)


def rounded_up(self, x):
    return ops.pad(x, [(0, 0), (0, math.ceil(length(x) / 8) * 8 - length(x)), (0, 0)])


def rounded_down(self, x):
    return x[:, math.floor(length(x) * 0.5) :] * math.ceil(1 - length(x) / 3)


def average(self, x):
    return ops.broadcast_to(ops.sum(x, axis=1, keepdims=True) / length(x), ops.shape(x))


def as_array(self, x):
    return x + np.arange(length(x), dtype="float32")[:, None]


def as_integer(self, x):
    return x * 2 if int(length(x)) < 3 else x


def looked_up(self, x):
    return x * {12: 5.0}.get(length(x), 1.0)


def written_out(self, x):
    return x * {"150": 5.0}.get(f"{length(x)}", 1.0)


def identity_matrix(self, x):
    return ops.matmul(ops.eye(length(x)), x)


def largest_of_both(self, x):
    return x * ops.cast(ops.maximum(ops.shape(x)[0], length(x)), "float32")


def logarithm(self, x):
    return x / (1.0 + ops.log(ops.cast(length(x), "float32")))


def repeated(self, x):
    return ops.repeat(x[:, :1], length(x), axis=1)


def stacked(self, x):
    return x + ops.sum(ops.cast(ops.stack([ops.shape(x)[0], length(x)]), "float32"))


def truth(self, x):
    return x * 3 if length(x) else x


def square_only(self, x):
    return x * (3 if length(x) != ops.shape(x)[0] else 4)


def quarter(self, x):
    return x * max(length(x) // 4, 1)


def inverted(self, x):
    return x * ~length(x)


def divided_by_it(self, x):
    return x * divmod(7, length(x))[0]


TABLE = {
    minimum: RIGHT,
    first_hundred: BOUNDED,
    long_branch: BOUNDED,
    short_branch: BOUNDED,
    half: RIGHT,
    padded_to_eight: RIGHT,
    in_windows: RIGHT,
    unpadded_windows: BOUNDED,
    loop: REFUSED,
    flattened: RIGHT,
    steps: RIGHT,
    every_third: RIGHT,
    backwards: RIGHT,
    one_hot: RIGHT,
    causal: RIGHT,
    positional: RIGHT,
    last_positions: RIGHT,
    convolved: RIGHT,
    scores: RIGHT,
    filled: RIGHT,
    squared: RIGHT,
    cast: RIGHT,
    power_of_half: RIGHT,
    ratio: RIGHT,
    fixed_slice: RIGHT,
    last_five: RIGHT,
    split_parts: RIGHT,
    halves: RIGHT,
    first_half: RIGHT,
    even_rows: RIGHT,
    rounded_up: RIGHT,
    rounded_down: RIGHT,
    average: RIGHT,
    identity_matrix: RIGHT,
    largest_of_both: RIGHT,
    logarithm: RIGHT,
    repeated: RIGHT,
    stacked: RIGHT,
    truth: RIGHT,
    inverted: RIGHT,
    divided_by_it: RIGHT,
    square_only: BOUNDED,
    quarter: BOUNDED,
    as_float: REFUSED,
    square_root: REFUSED,
    as_array: REFUSED,
}


def outcome(model: keras.Model, folder, inputs: Callable[[int, int], list[np.ndarray]]) -> str:
    """Compares an export with Keras at unseen lengths; returns RIGHT, BOUNDED or REFUSED."""
    try:
        export_onnx(model, folder)
    except ExportError as error:
        assert "'sized'" in str(error) and "every size" in str(error)
        return REFUSED
    bounded, compared = False, 0
    with Session(folder / contract.MODEL, provider="cpu") as session:
        for batch in (1, 3):
            for size in LENGTHS:
                arrays = inputs(batch, size)
                try:
                    expected = as_numpy(model(arrays[0] if len(arrays) == 1 else arrays))
                except Exception:  # Keras itself does not run at this length
                    continue
                names = [spec.name for spec in session.inputs]
                try:
                    got = session.run(dict(zip(names, arrays, strict=True)))
                except InputError as error:
                    assert any(bound in str(error) for bound in session.bounds)
                    bounded = True
                    continue
                compared += 1
                (value,) = got.values()
                assert value.shape == expected.shape, (batch, size)
                assert_close(value, expected)
    assert compared >= len(LENGTHS) // 2
    return BOUNDED if bounded else RIGHT


@pytest.mark.parametrize("function", TABLE, ids=lambda function: function.__name__)
def test_export_at_unseen_lengths(function: Callable, tmp_path):
    x = keras.Input((None, 4), name="x")
    model = keras.Model(x, Sized(function)(x))
    behaves = outcome(model, tmp_path / "out", lambda batch, size: [draw(batch, size, 4)])
    assert behaves == TABLE[function]


@pytest.mark.parametrize("function", [as_integer, looked_up, written_out], ids=lambda f: f.__name__)
def test_branch_on_a_converted_size_raises(function: Callable, tmp_path):
    """The error does not depend on sample sizes."""
    x = keras.Input((None, 4), name="x")
    with pytest.raises(ExportError, match="'sized' .*converts a size to a plain number"):
        export_onnx(keras.Model(x, Sized(function)(x)), tmp_path / "out")


UNSEEN = {
    "bit_length": lambda n: n.bit_length() > 11,
    "real": lambda n: n.real > 2000,
    "repr": lambda n: repr(n) == "150",
    "is_integer": lambda n: (n / 2).is_integer(),
    "abs": lambda n: abs(n / 2) < 2,
    "int of a quotient": lambda n: int(n * 0.5) < 2,
    # 0.7 is slightly less than 7 / 10, so the number may be rounded up to an integer.
    "floor of a rounded quotient": lambda n: math.floor(n * 0.7) < 7,
    # C code reads the number itself, so only a sample size shows these.
    "gcd": lambda n: math.gcd(n, 2) == 2,
    "log2": lambda n: math.log2(n) > 11,
    "isqrt": lambda n: math.isqrt(n) > 40,
    "short list": lambda n: len([0] * n) < 5,
    "long list": lambda n: len([0] * n) > 2000,
    "index": lambda n: operator.index(n) < 4,
}


@pytest.mark.parametrize("name", UNSEEN)
def test_conversions_of_sizes_to_numbers_raise(name: str, tmp_path):
    x = keras.Input((None, 4), name="x")
    layer = Sized(lambda self, x: x * 2 if UNSEEN[name](length(x)) else x)
    with pytest.raises(ExportError, match="'sized' .*every size"):
        export_onnx(keras.Model(x, layer(x)), tmp_path / "out", verify=False)


def test_at_most_four_layers_of_the_table_raise():
    assert len(TABLE) >= 30
    assert sum(kind == REFUSED for kind in TABLE.values()) <= 4


def test_bound_is_in_manifest_report_and_error(tmp_path):
    x = keras.Input((None, 4), name="x")
    report = export_onnx(keras.Model(x, Sized(long_branch)(x)), tmp_path / "out")
    assert report.manifest.bounds == ("sequence_length <= 200",)
    assert json.loads((tmp_path / "out" / contract.MANIFEST).read_text())["bounds"] == [
        "sequence_length <= 200"
    ]
    assert "sequence_length <= 200" in str(report)
    with Session(tmp_path / "out" / contract.MODEL, provider="cpu") as session:
        session.run({"x": draw(1, 200, 4)})
        with pytest.raises(
            InputError, match=r"sequence_length is 201 in 'x', expected sequence_length <= 200"
        ):
            session.run({"x": draw(1, 201, 4)})


def test_size_check_of_softmax_is_not_a_bound(tmp_path):
    """Keras compares the size of the axis only for a warning."""
    x = keras.Input((None, 4), name="x")
    layer = Sized(lambda self, x: ops.softmax(x, axis=1))
    assert export_onnx(keras.Model(x, layer(x)), tmp_path / "out").manifest.bounds == ()


def test_only_compared_axes_must_be_equal(tmp_path):
    """An encoder-decoder: the padding mask is as long as the values, and not as long as the queries."""
    x, values = keras.Input((None, 8), name="x"), keras.Input((None, 6), name="values")
    mask = keras.Input((None,), dtype="bool", name="mask")
    block = keras_tx.TransformerBlock(2, 16, cross_attention=True)
    model = keras.Model([x, values, mask], block(x, value=values, value_padding_mask=mask))
    report = export_onnx(model, tmp_path / "out")
    assert report.manifest.bounds == ("values_sequence_length == mask_sequence_length",)


def image(function: Callable, tmp_path, expected: str = RIGHT) -> None:
    x = keras.Input((None, None, 4), name="x")

    class Pictures(Sized):
        def compute_output_spec(self, *inputs):
            return keras.KerasTensor((None, None, None, 4), "float32")

    def pictures(batch: int, size: int) -> list[np.ndarray]:
        return [draw(batch, min(size, 40), min(size, 30) + 3, 4)]

    assert outcome(keras.Model(x, Pictures(function)(x)), tmp_path / "out", pictures) == expected


def test_height_and_width(tmp_path):
    def sequence(self, x):
        batch, height, width, channels = ops.shape(x)
        tokens = ops.reshape(x, (batch, height * width, channels)) * (height + 2 * width)
        grid = ops.reshape(ops.arange(height * width, dtype="float32"), (height, width, 1))
        return ops.reshape(tokens, (-1, height, width, channels)) + grid

    image(sequence, tmp_path)


def test_comparison_of_height_and_width_adds_a_bound(tmp_path):
    image(lambda self, x: x * 2 if ops.shape(x)[1] > ops.shape(x)[2] else x, tmp_path, BOUNDED)


class Widened(layers.Layer):
    """Declares the size of its input, and returns another one."""

    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        return ops.concatenate([x, x], axis=1)


class AroundWidened(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = Widened(name="inner")

    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        y = self.inner(x)
        return y * ops.cast(length(y), "float32")


@pytest.mark.filterwarnings("ignore:The layer 'sized' .* was converted by tf2onnx")
def test_wrong_declared_shape_of_an_inner_layer_is_not_used(tmp_path):
    x = keras.Input((None, 4), name="x")
    export_onnx(keras.Model(x, AroundWidened(name="sized")(x)), tmp_path / "out")
    with Session(tmp_path / "out" / contract.MODEL, provider="cpu") as session:
        array = draw(2, 7, 4)
        (got,) = session.run({"x": array}).values()
        assert_close(got, np.concatenate([array, array], axis=1) * 14)


# -- random expressions -----------------------------------------------------------------------------------

numbers = st.integers(-9, 9)
OPERATORS: dict[str, Callable] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": min,
    "max": max,
    "branch": lambda a, b: a + 1 if a < b else b - 1,
    "equal": lambda a, b: a if a == b else b,
    "square": lambda a, b: a**2 - b,
    "half": lambda a, b: -a // 2 + abs(b),
    "ceil": lambda a, b: math.ceil(a / 3 - b),
    "floor": lambda a, b: math.floor((a - b) * 0.75 + 0.5),
}
trees = st.recursive(
    st.sampled_from("abc") | numbers,
    lambda inner: st.tuples(st.sampled_from(sorted(OPERATORS)), inner, inner),
    max_leaves=6,
)


def value_of(tree, sizes: dict):
    if isinstance(tree, tuple):
        return OPERATORS[tree[0]](value_of(tree[1], sizes), value_of(tree[2], sizes))
    return sizes.get(tree, tree)


USES: dict[str, Callable] = {
    "factor": lambda x, n: x[:1, :1, :1] * n,
    "tensor": lambda x, n: x[:1, :1, :1] + ops.cast(ops.minimum(n, 50), "float32"),
    "slice": lambda x, n: x[:, : n % 7 + 1],
    "range": lambda x, n: ops.arange(n % 40, dtype="float32") + ops.sum(x),
    "shape": lambda x, n: ops.concatenate([x, ops.ones((ops.shape(x)[0], n % 5, ops.shape(x)[2]))], axis=1),
    "quotient": lambda x, n: x[:1, :1, :1] * (n / 3),
}


EXAMPLES = 500 if keras.backend.backend() == "tensorflow" else 10  # others compile each layer for each size


class Computing(layers.Layer):
    def __init__(self, tree, use: str):
        super().__init__(name="sized")
        self.tree, self.use = tree, use

    def compute_output_spec(self, x):
        return keras.KerasTensor((None,) * (1 if self.use == "range" else 3), "float32")

    def call(self, x):
        a, b, c = ops.shape(x)
        return USES[self.use](x, value_of(self.tree, {"a": a, "b": b, "c": c}))


@pytest.mark.thorough
@hypothesis.settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
@hypothesis.given(tree=trees, use=st.sampled_from(sorted(USES)))
def test_random_expressions_at_unseen_lengths(tree, use: str):
    """Lowered and run, without the files and the comparison of an export."""
    try:
        value_of(tree, {"a": 3, "b": 11, "c": 13})
    except ZeroDivisionError:  # in Keras, too
        hypothesis.reject()
    layer = Computing(tree, use)
    x = keras.Input((None, None), name="x")
    function = keras.Model(x, layer(x))
    context = GraphContext("sized", contract.DEFAULT_OPSET)
    value = context.input("x", ir.DataType.FLOAT, ["batch_size", "rows", "columns"])
    try:
        (result,) = lower(context, function, [value])
    except ExportError:
        return
    context.output(result, "y")
    session = onnxruntime.InferenceSession(ir.serde.serialize_model(context.model()).SerializeToString())
    for shape in ((1, 1, 1), (2, 1, 3), (1, 7, 2), (5, 4, 9), (3, 150, 8), (4, 201, 30), (1, 13, 900)):
        array = draw(*shape)
        axes: dict[str, int] = dict(zip(("batch_size", "rows", "columns"), shape, strict=True))
        if violated_bound(list(context.bounds), axes) is not None:
            continue
        try:
            if abs(value_of(tree, dict(zip("abc", shape, strict=True)))) >= 2**31:
                continue  # Keras computes with int32, which overflows
            expected = as_numpy(layer.call(ops.convert_to_tensor(array)))
        except ZeroDivisionError:
            raise AssertionError(f"Keras fails at {shape}, and {list(context.bounds)} permits it") from None
        (got,) = session.run(None, {"x": array})
        assert got.shape == expected.shape, (shape, list(context.bounds))
        assert_close(got, expected)
