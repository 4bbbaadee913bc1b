"""Subclassed models: their inputs are recorded by the first call, or passed as input_signature."""

from __future__ import annotations

import keras
import numpy as np
import onnx
import pytest
from keras import layers, ops

from keras_tx.errors import ConfigError, ExportError
from keras_tx_onnx import export_onnx
from keras_tx_onnx.interfaces.base import axis_names
from tests.drawing import draw, redraw
from tests.export.exporting import outputs_of, run
from tests.tolerances import assert_close


class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden, self.answer = layers.Dense(8, activation="relu"), layers.Dense(3)
        self.drop = layers.Dropout(0.5)

    def call(self, x, training=False):
        return self.answer(self.drop(self.hidden(x), training=training) + x)


class Pair(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.table, self.mix = layers.Embedding(9, 4), layers.Dense(4)

    def call(self, tokens, context=None):
        vectors = self.table(tokens)
        return {"tokens": vectors + ops.mean(self.mix(context), axis=1, keepdims=True), "table": vectors * 2}


def names(folder) -> tuple[list, list]:
    graph = onnx.load(folder / "onnx" / "model.onnx").graph

    def spec(value):
        return value.name, [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]

    return [spec(v) for v in graph.input], [spec(v) for v in graph.output]


def test_first_call_records_the_inputs(tmp_path):
    model = Subclassed(name="mine")
    model(draw(2, 8))
    redraw(model)
    before = [(layer, len(layer._inbound_nodes)) for layer in model._flatten_layers()]
    report = export_onnx(model, tmp_path / "out")
    assert any("only its batch is dynamic" in note for note in report.manifest.notes)
    assert names(tmp_path / "out")[0] == [("x", ["batch_size", 8])]
    assert [name for name, _ in names(tmp_path / "out")[1]] == ["output"]
    x = draw(5, 8)
    assert_close(*run(tmp_path / "out", x), *outputs_of(model, x))
    assert before == [(layer, len(layer._inbound_nodes)) for layer in model._flatten_layers()]
    assert report.manifest.tiers["mine"] == "opened"


def test_export_after_more_training(tmp_path):
    model = Subclassed()
    model.compile("sgd", "mse")
    x, y = draw(4, 8), draw(4, 3, seed=1)
    model.fit(x, y, verbose=0)
    export_onnx(model, tmp_path / "out")
    model.fit(x, y, verbose=0)
    export_onnx(model, tmp_path / "out", overwrite=True)
    assert_close(*run(tmp_path / "out", x), *outputs_of(model, x))


def test_signature_sets_names_dtypes_and_dynamic_sizes(tmp_path):
    model = Pair(name="pair")
    tokens = keras.InputSpec(shape=(None, None), dtype="int32")
    context = keras.InputSpec(shape=(None, None, 6), dtype="float32", name="around")
    export_onnx(model, tmp_path / "out", input_signature=[tokens, context])
    inputs, outputs = names(tmp_path / "out")
    assert inputs == [
        ("tokens", ["batch_size", "tokens_sequence_length"]),
        ("around", ["batch_size", "around_sequence_length", 6]),
    ]
    assert [name for name, _ in outputs] == ["table", "tokens_1"]
    for length, other in ((3, 5), (9, 2)):
        arrays = np.arange(2 * length).reshape(2, length) % 9, draw(2, other, 6)
        expected = model(*arrays)
        got = run(tmp_path / "out", *arrays)
        assert_close(got[0], np.asarray(expected["table"]))
        assert_close(got[1], np.asarray(expected["tokens"]))


def test_unbuilt_sequential(tmp_path):
    model = keras.Sequential([layers.Dense(4), layers.Dense(2)])
    export_onnx(model, tmp_path / "out", input_signature=keras.InputSpec(shape=(None, 3), dtype="float32"))
    x = draw(2, 3)
    assert_close(*run(tmp_path / "out", x), *outputs_of(model, x))


class Optional(keras.Model):
    """The result depends on whether `b` is passed."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = layers.Dense(3)

    def call(self, a, b=None):
        y = self.first(a)
        return y if b is None else y + 2 * b


class Required(Optional):
    def call(self, a, b):
        return self.first(a) + 2 * b


class KeywordOnly(Optional):
    def call(self, a, *, b=None):
        return Optional.call(self, a, b)


class Masked(Optional):
    supports_masking = True

    def call(self, a, training=None, mask=None):
        y = self.first(a)
        return y if mask is None else y * ops.cast(mask, y.dtype)


class Scaled(Optional):
    def call(self, a, scale=1.0):
        return self.first(a) * scale


class AnyKeyword(keras.Model):
    def call(self, a, **others):
        return a * 2 if "b" not in others else a * 2 + ops.sum(others["b"])


class AnyNumber(keras.Model):
    def call(self, *tensors):
        return sum(ops.sum(x, axis=1) for x in tensors)


class Builds(Optional):
    """Keras records the shape of each argument that `build` names."""

    def build(self, a_shape, b_shape=None):
        self.first.build(a_shape)


class Unread(Optional):
    def call(self, a, training=None, mask=None, unread=None):
        return self.first(a)


class AlwaysBuilt(Optional):
    """Without `build`, Keras records no shapes."""

    def __init__(self):
        super().__init__()
        self.built = True


SPEC = r"keras.InputSpec\(shape=\(None, 4\), dtype='float32'\)"


@pytest.mark.parametrize(
    ("model", "arguments", "keywords", "message"),
    [
        (
            Optional,
            2,
            (),
            rf"'b'.*input_signature=\[{SPEC}\].*\[{SPEC}, keras.InputSpec\(shape=\(None, \.\.\.\)",
        ),
        (Optional, 1, (), rf"'b'.*input_signature=\[{SPEC}\]"),
        (Required, 2, (), rf"'b'.*input_signature=\[{SPEC}, keras.InputSpec\(shape=\(None, \.\.\.\)"),
        (KeywordOnly, 1, ("b",), rf"'b'.*input_signature=\[{SPEC}\]"),
        (Masked, 1, ("mask",), rf"'mask'.*input_signature=\[{SPEC}\]"),
        (AnyKeyword, 1, ("b",), rf"others.*input_signature=\[{SPEC}\]"),
        (AnyNumber, 2, (), r"\*tensors"),
        (AlwaysBuilt, 1, (), r"AlwaysBuilt.*input_signature=keras.InputSpec"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_arguments_that_keras_does_not_record_raise(model, arguments, keywords, message, tmp_path):
    model = model()
    model(*[draw(2, 4), draw(2, 3)][:arguments], **{name: draw(2, 3) for name in keywords})
    with pytest.raises(ExportError, match=message):
        export_onnx(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_argument_at_its_default_is_reported(tmp_path):
    one = keras.InputSpec(shape=(None, 4), dtype="float32")
    two = keras.InputSpec(shape=(None, 3), dtype="float32")
    model = Optional()
    a, b = draw(2, 4), draw(2, 3, seed=1)
    model(a, b)
    redraw(model)
    report = export_onnx(model, tmp_path / "a", input_signature=[one])
    assert any("'b'" in note and "default (None)" in note for note in report.manifest.notes)
    assert_close(*run(tmp_path / "a", a), np.asarray(model(a)))
    report = export_onnx(model, tmp_path / "ab", input_signature=[one, two])
    assert not any("default" in note for note in report.manifest.notes)
    assert_close(*run(tmp_path / "ab", a, b), np.asarray(model(a, b)))


def test_number_at_its_default_is_reported(tmp_path):
    model = Scaled()
    model(draw(2, 4), scale=2.0)
    report = export_onnx(model, tmp_path / "out")
    assert any("'scale'" in note and "default (1.0)" in note for note in report.manifest.notes)


def test_none_in_a_signature_omits_an_argument(tmp_path):
    class Three(keras.Model):
        def call(self, a, b=None, *, c=None):
            return a + (0 if b is None else b) * 2 + (0 if c is None else c) * 3

    spec = keras.InputSpec(shape=(None, 4), dtype="float32")
    report = export_onnx(Three(), tmp_path / "out", input_signature=[spec, None, spec])
    assert [name for name, _ in names(tmp_path / "out")[0]] == ["a", "c"]
    assert any("'b'" in note and "'c'" not in note for note in report.manifest.notes)
    a, c = draw(2, 4), draw(2, 4, seed=1)
    assert_close(*run(tmp_path / "out", a, c), a + 3 * c)


@pytest.mark.parametrize(("passed", "expected"), [(1, ["a"]), (2, ["a", "b"])])
def test_arguments_of_build_are_recorded(passed, expected, tmp_path):
    model, arrays = Builds(), [draw(2, 4), draw(2, 3)][:passed]
    model(*arrays)
    redraw(model)
    export_onnx(model, tmp_path / "out")
    assert [name for name, _ in names(tmp_path / "out")[0]] == expected
    assert_close(*run(tmp_path / "out", *arrays), np.asarray(model(*arrays)))


def test_unread_argument_needs_no_signature(tmp_path):
    model = Unread()
    model(draw(2, 4))
    report = export_onnx(model, tmp_path / "out")
    assert not any("default" in note for note in report.manifest.notes)


class Broken(keras.Model):
    def call(self, x):
        raise ValueError("it rains")


@pytest.mark.parametrize(
    ("model", "signature", "error", "message"),
    [
        (Subclassed, None, ExportError, "is not built.*input_signature"),
        (lambda: keras.Sequential([layers.Dense(2)]), None, ExportError, "is not built"),
        (Subclassed, (2, 8), ConfigError, "input_signature has 2 parts, but the call of .* accepts 1: x"),
        (Subclassed, "float32", ConfigError, "'float32' for 'x'.*Expected keras.InputSpec"),
        (
            Subclassed,
            keras.InputSpec(shape=(None, 8)),
            ConfigError,
            r"'x'.*no dtype.*keras.InputSpec\(shape=\(None, 8\), dtype='float32'\)",
        ),
        (Subclassed, keras.InputSpec(ndim=2, dtype="float32"), ConfigError, "'x'.*no shape"),
        (Required, [None, keras.InputSpec(shape=(None, 4), dtype="float32")], ConfigError, "'a'.*required"),
        (Required, keras.InputSpec(shape=(None, 4), dtype="float32"), ConfigError, "'b'.*required"),
        (
            Broken,
            keras.InputSpec(shape=(None, 2), dtype="float32"),
            ExportError,
            "Broken.*ValueError",
        ),
        (
            lambda: keras.Sequential([keras.Input((2,)), layers.Dense(2)]),
            keras.InputSpec(shape=(None, 2), dtype="float32"),
            ConfigError,
            "input_signature.*functional model",
        ),
    ],
)
def test_unknown_inputs_raise(model, signature, error, message, tmp_path):
    with pytest.raises(error, match=message):
        export_onnx(model(), tmp_path / "out", input_signature=signature)
    assert not list(tmp_path.iterdir())


class Heads(layers.Layer):
    """Its code reads the batch size."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.mix = layers.Dense(8)

    def call(self, x):
        batch, length = ops.shape(x)[0], ops.shape(x)[1]
        y = ops.reshape(self.mix(x), (batch, length, 2, 4))
        return ops.reshape(ops.transpose(y, (0, 2, 1, 3)), (batch, 2, length * 4))[:, :, :3]


class OfSequentials(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.Sequential([layers.Dense(4), Heads(), keras.Sequential([layers.Dense(2)])])

    def call(self, x):
        return {"answer": self.inner(x)}


@pytest.mark.parametrize("length", [5, None], ids=["fixed", "dynamic"])
def test_nested_sequentials_built_by_a_batch_accept_any_batch_size(length, tmp_path):
    model = OfSequentials()
    model(draw(4, 5, 3))
    redraw(model)
    signature = keras.InputSpec(shape=(None, length, 3), dtype="float32")
    report = export_onnx(model, tmp_path / "out", input_signature=signature)
    assert names(tmp_path / "out")[1] == [("answer", ["batch_size", 2, 2])]
    assert "tf2onnx" not in report.manifest.tiers.values()
    for shape in ((1, 5, 3), (7, length or 9, 3)):
        x = draw(*shape)
        (expected,) = keras.tree.flatten(model(x))
        assert_close(*run(tmp_path / "out", x), keras.ops.convert_to_numpy(expected))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((None, None, None, 3), ["batch_size", "height", "width", 3]),
        ((None, 3, None, None), ["batch_size", 3, "height", "width"]),
        ((None, 16, None, 1), ["batch_size", 16, "width", 1]),
        ((None, 2, None, None, None), ["batch_size", 2, "depth", "height", "width"]),
        ((None, None, None, None), ["batch_size", "height", "width", "axis_3"]),
    ],
    ids=str,
)
def test_names_of_dynamic_axes(shape: tuple, expected: list):
    assert axis_names(shape, "") == expected
