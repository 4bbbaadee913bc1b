"""Layers without a lowering are opened: sizes become computations, and unsupported layers raise."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, draw, redraw
from tests.export.exporting import exported, nodes_of, outputs_of, run
from tests.tolerances import assert_close


class OwnAttention(layers.Layer):
    """Attention as users write it, with sizes from `ops.shape`."""

    def __init__(self, heads: int = 4, **kwargs):
        super().__init__(**kwargs)
        self.heads = heads
        self.qkv, self.out = layers.Dense(48), layers.Dense(16)

    def build(self, shape):
        self.qkv.build(shape)
        self.out.build(shape)

    def call(self, x):
        batch, length, width = ops.shape(x)
        split = ops.reshape(self.qkv(x), (batch, length, 3, self.heads, width // self.heads))
        query, key, value = ops.unstack(ops.transpose(split, (2, 0, 3, 1, 4)), 3)
        weights = ops.softmax(ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))) / 2.0)
        mixed = ops.transpose(ops.matmul(weights, value), (0, 2, 1, 3))
        return self.out(ops.reshape(mixed, (batch, length, width)))


class Table(layers.Layer):
    """Positions: the first rows of a table."""

    def build(self, shape):
        self.table = self.add_weight(shape=(128, shape[-1]), name="table")

    def call(self, x):
        return x + self.table[: ops.shape(x)[1]]


class Ranges(layers.Layer):
    def call(self, x):
        length = ops.shape(x)[1]
        steps = ops.arange(length, dtype="float32")
        earlier = ops.expand_dims(steps, 0) <= ops.expand_dims(steps, 1)
        return x + ops.expand_dims(steps, -1) + ops.sum(ops.cast(earlier, "float32"), -1, keepdims=True)


class Scaled(layers.Layer):
    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        length = ops.shape(x)[1]
        return x / ops.cast(length, x.dtype) + 2 * ops.cast(length, "float32")


class Filling(layers.Layer):
    def call(self, x):
        batch, length, width = ops.shape(x)
        return ops.concatenate(
            [x, ops.ones((batch, length + 2, width)), ops.zeros((batch, 2 * length, width))], 1
        )


class TwoLengths(layers.Layer):
    def call(self, x, context):
        ones = ops.ones((ops.shape(x)[0], ops.shape(x)[1], ops.shape(context)[1]))
        return x + ops.matmul(ones, context)


class Masked(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, x, mask=None):
        return x if mask is None else x * ops.cast(ops.expand_dims(mask, -1), x.dtype)


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize(
    "layer", [OwnAttention, Table, Ranges, Scaled, Filling], ids=lambda layer: layer.__name__
)
def test_one_export_runs_at_every_size(layer: type, opset: int, tmp_path):
    if layer is Table and keras.backend.backend() != "tensorflow":
        pytest.skip("Keras itself cannot infer the shape: it tries the layer at a length beyond the table")
    x = keras.Input((None, 16), name="x")
    model = redraw(keras.Model(x, layer(name="own")(x)))
    folder = exported(model, tmp_path / "out", opset=opset)
    for batch, length in ((1, 2), (2, 9), (5, 64)):
        tokens = draw(batch, length, 16)
        for got, expected in zip(run(folder, tokens), outputs_of(model, tokens), strict=True):
            assert_close(got, expected)


def test_two_inputs_of_different_lengths(tmp_path):
    x, context = keras.Input((None, 16), name="x"), keras.Input((None, 16), name="context")
    model = keras.Model([x, context], TwoLengths()(x, context))
    folder = exported(model, tmp_path / "out")
    arrays = draw(2, 3, 16), draw(2, 7, 16, seed=1)
    assert_close(*run(folder, *arrays), *outputs_of(model, *arrays))


def test_report_has_tiers_and_weights_have_paths(tmp_path):
    x = keras.Input((8, 16), name="x")
    model = redraw(keras.Model(x, Table(name="positions")(x)))
    report = export_onnx(model, tmp_path / "out")
    assert report.manifest.tiers["positions"] == "opened"
    assert nodes_of(tmp_path / "out")["Add"] == 1


def test_layer_is_not_changed(tmp_path):
    x = keras.Input((None, 16), name="x")
    layer = OwnAttention(name="own")
    model = redraw(keras.Model(x, layer(x)))
    tokens = draw(2, 5, 16)
    before, arange = as_numpy(model(tokens)), ops.arange
    weights, variables = layer.get_weights(), [id(v) for v in layer.variables]
    parts = [(part, len(part._inbound_nodes)) for part in layer._flatten_layers()]
    for index in range(2):
        export_onnx(model, tmp_path / str(index))
    assert ops.arange is arange
    assert parts == [(part, len(part._inbound_nodes)) for part in layer._flatten_layers()]
    assert variables == [id(v) for v in layer.variables]
    for mine, weight in zip(layer.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(mine, weight)
    np.testing.assert_array_equal(as_numpy(model(tokens)), before)


def test_mask_is_passed_to_an_opened_layer(tmp_path):
    x = keras.Input((None, 16), name="x")
    model = keras.Model(x, Masked()(layers.Masking()(x)))
    tokens = draw(2, 5, 16)
    tokens[0, 2:] = 0
    folder = exported(model, tmp_path / "out")
    assert_close(*run(folder, tokens), *outputs_of(model, tokens))


class Frozen(layers.Layer):
    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        return x + np.arange(x.shape[1], dtype="float32")[None, :, None] if x.shape[1] else x


class Filled(Frozen):
    def call(self, x):
        return x + np.ones((1, x.shape[1], 1), "float32") if x.shape[1] else x


class Looping(Frozen):
    def call(self, x):
        for _ in range(ops.shape(x)[1]) if isinstance(ops.shape(x)[1], int) else ():
            x = x + 1
        return x


class Converting(Frozen):
    def call(self, x):
        return x * 2 if int(ops.shape(x)[1]) < 3 else x


class NotAtAll(Frozen):
    def call(self, x):
        return np.asarray(x)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Frozen, "'odd' .* every size.* converts a size to a plain number"),
        (Filled, r"'odd' .* every size.*'add' has a constant .* array of shape \(1, 11, 1\)"),
        (Looping, "'odd' .* every size.* size-dependent control flow"),
        (Converting, r"'odd' .* every size.* converts a size to a plain number by int\(\)"),
        (
            NotAtAll,
            "(?s)'odd' .*NotAtAll.*keras.ops.*tier 2.*does not run on Keras tensors.*tier 3, tf2onnx: ",
        ),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_layers_without_a_graph_raise(layer: type, message: str, tmp_path):
    x = keras.Input((None, 16), name="x")
    with pytest.raises(ExportError, match=message):
        export_onnx(keras.Model(x, layer(name="odd")(x)), tmp_path / "out", verify=False)
    assert not list(tmp_path.iterdir())


class Neighbours(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.one, self.other = layers.Dense(1), layers.Dense(1)

    def call(self, nodes, adjacency):
        scores = self.one(nodes) + ops.swapaxes(self.other(nodes), 1, 2)
        weights = ops.softmax(ops.where(adjacency > 0, scores, -1e9), axis=-1)
        return ops.matmul(weights, nodes)


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis")
def test_axes_that_must_be_equal(tmp_path):
    nodes, adjacency = keras.Input((None, 4), name="nodes"), keras.Input((None, None), name="adjacency")
    model = redraw(keras.Model([nodes, adjacency], Neighbours(name="odd")(nodes, adjacency)))
    folder = exported(model, tmp_path / "out")
    for batch, length in ((1, 3), (4, 7)):
        arrays = draw(batch, length, 4), (draw(batch, length, length, seed=2) > -0.5).astype("float32")
        assert_close(*run(folder, *arrays), *outputs_of(model, *arrays))
    assert "Loop" not in nodes_of(folder) and nodes_of(folder)["Softmax"] == 1


class Noisy(layers.Layer):
    def __init__(self, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.seed = seed

    def call(self, x):
        return x + keras.random.normal((2, 16), seed=self.seed)


def test_random_numbers_raise(tmp_path):
    x = keras.Input((16,), batch_size=2, name="x")
    generator = keras.random.SeedGenerator(3)
    model = keras.Model(x, Noisy(generator, name="odd")(x))
    before = keras.ops.convert_to_numpy(generator.state)
    with pytest.raises(ExportError, match="'odd'.*\n.*\n.*It draws random numbers at inference"):
        export_onnx(model, tmp_path / "out", verify=False)
    np.testing.assert_array_equal(generator.state, before)
    assert not list(tmp_path.iterdir())


def test_random_numbers_of_a_fixed_seed_are_a_constant(tmp_path):
    x = keras.Input((16,), batch_size=2, name="x")
    model = keras.Model(x, Noisy(5)(x))
    array = draw(2, 16)
    assert_close(*run(exported(model, tmp_path / "out"), array), *outputs_of(model, array))


@pytest.mark.parametrize(
    "compared",
    [lambda x: x == 5.0, lambda x: x == 5 * ops.ones_like(x), lambda x: x != 5.0],
    ids=["number", "tensor", "unequal"],
)
def test_equality_compares_numbers(compared, tmp_path):
    """Random inputs never contain the number, so the verification does not cover it."""

    class Replacing(layers.Layer):
        def call(self, x):
            return ops.where(compared(x), 7 * x, x)

    x = keras.Input((4,), name="x")
    model = keras.Model(x, Replacing()(x))
    folder = exported(model, tmp_path / "out")
    numbers = np.array([[5, 1, 5, 2], [3, 4, 6, 5]], "float32")
    assert_close(*run(folder, numbers), *outputs_of(model, numbers))


class Pair(layers.Layer):
    """Declares two output tensors, and returns None in place of the second."""

    def call(self, x):
        return 2 * x, None

    def compute_output_shape(self, shape):
        return [shape, shape]


def test_none_in_place_of_a_declared_tensor(tmp_path):
    x = keras.Input((4,), name="x")
    first, second = Pair(name="pair")(x)
    model = keras.Model(x, layers.ReLU()(first))
    folder = exported(model, tmp_path / "out")
    numbers = draw(2, 4)
    assert_close(*run(folder, numbers), *outputs_of(model, numbers))
    with pytest.raises(ExportError, match="'pair'.*None, although compute_output_shape declares a tensor"):
        export_onnx(keras.Model(x, [first, layers.ReLU()(second)]), tmp_path / "other")
    assert not (tmp_path / "other").exists()


class Promising(layers.Layer):
    """Returns twice the rows of its input, and declares one row."""

    def call(self, x):
        return ops.concatenate([x, x], axis=1)

    def compute_output_shape(self, shape):
        return (shape[0], 1, shape[2])


def test_wrong_declared_size_of_a_dynamic_axis_is_not_used(tmp_path):
    class Turned(layers.Layer):
        def call(self, x):
            batch, length, width = ops.shape(x)
            return ops.reshape(x, (batch, length * width))

    x = keras.Input((None, 4), name="x")
    model = keras.Model(x, Turned()(Promising()(x)))
    folder = exported(model, tmp_path / "out")
    for length in (1, 5):
        rows = draw(2, length, 4)
        assert_close(*run(folder, rows), *outputs_of(model, rows))


class Clamped(layers.Layer):
    """Clips to bounds that are weights."""

    def build(self, shape):
        self.low = self.add_weight(shape=(), name="low")
        self.high = self.add_weight(shape=(), name="high")

    def call(self, x):
        return ops.clip(x, ops.minimum(self.low, self.high), ops.maximum(self.low, self.high))


class ClampedToLength(layers.Layer):
    """Clips to numbers that depend on the number of tokens."""

    def call(self, x):
        return ops.cast(ops.clip(ops.cast(10.0 * x, "int32"), 1, ops.shape(x)[1]), "float32")


class ClampedBetweenCrossingBounds(layers.Layer):
    """For fewer than five tokens, the lower bound is above the upper one; backends differ in which wins."""

    def call(self, x):
        return ops.cast(ops.clip(ops.cast(10.0 * x, "int32"), 2, ops.shape(x)[1] - 3), "float32")


class Waves(layers.Layer):
    """An einsum with an ellipsis, and code that uses the size of its result."""

    def call(self, x):
        waves = ops.einsum("...n,d->...nd", x, ops.arange(3, dtype="float32"))
        return ops.reshape(waves, (-1, ops.shape(waves)[1] * 3))


class Kept(layers.Layer):
    """Positions in an array that the layer made when it was built."""

    def build(self, shape):
        self.places = ops.expand_dims(ops.arange(64, dtype="float32"), 0)

    def call(self, x):
        return x + ops.expand_dims(self.places[:, : ops.shape(x)[1]], -1)


class Misled(layers.Layer):
    """Tokens and their number, by an inner layer that declares too few channels."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = Doubled()

    def call(self, x):
        y = self.inner(x)
        return ops.reshape(y, (ops.shape(y)[0], ops.shape(y)[1] * y.shape[2]))

    def compute_output_shape(self, shape):
        return (shape[0], None)


class Doubled(layers.Layer):
    def call(self, x):
        return ops.concatenate([x, x], -1)

    def compute_output_shape(self, shape):
        return shape


class Tiled(layers.Layer):
    """A weight of an inner layer for each row of the batch."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = layers.Dense(4)

    def build(self, shape):
        self.inner.build((None, 3))

    def call(self, x):
        rows = ops.tile(ops.reshape(self.inner.kernel, (1, 3, 4)), (ops.shape(x)[0], 1, 1))
        return ops.concatenate([x, rows], axis=1)


@pytest.mark.parametrize(
    "layer", [Clamped, ClampedToLength, ClampedBetweenCrossingBounds, Waves, Kept, Misled, Tiled]
)
def test_at_sizes_that_the_export_did_not_see(layer, tmp_path):
    shape = (None,) if layer is Waves else (None, 4)
    x = keras.Input(shape, name="x")
    model = redraw(keras.Model(x, layer()(x)))
    folder = exported(model, tmp_path / "out")
    for batch, length in ((1, 2), (3, 7), (2, 20)):
        value = draw(batch, length, *shape[1:], seed=length)
        assert_close(run(folder, value)[0], outputs_of(model, value)[0])


def test_fixed_size_of_an_inner_model_is_a_bound(tmp_path):
    inner_input = keras.Input((None, 4))
    inner = keras.Model(inner_input, layers.Dense(3)(inner_input))
    x = keras.Input((None, None), name="x")
    report = export_onnx(keras.Model(x, inner(x)), tmp_path / "out", verify=False)
    assert [bound for bound in report.manifest.bounds if bound.endswith("== 4")]


def test_axes_of_two_products_are_equal(tmp_path):
    """Rows of images in a batch, which two inputs number separately."""

    class Flat(layers.Layer):
        def call(self, a, b):
            flat = [ops.reshape(x, (ops.shape(x)[0] * ops.shape(x)[1], 4)) for x in (a, b)]
            return Added()(*flat)

    class Added(layers.Layer):
        def call(self, a, b):
            return a + ops.tanh(b)

    a, b = keras.Input((None, 4), name="a"), keras.Input((None, 4), name="b")
    model = keras.Model([a, b], Flat()(a, b))
    report = export_onnx(model, tmp_path / "out", verify=False)
    assert len(report.manifest.bounds) == 1 and " == " in report.manifest.bounds[0]
    for batch, length in ((1, 2), (3, 7)):
        values = draw(batch, length, 4, seed=1), draw(batch, length, 4, seed=2)
        assert_close(run(tmp_path / "out", *values)[0], outputs_of(model, *values)[0])


class Restored(layers.Layer):
    """Creates a layer with the size of its input in `call`, as DeepLabV3 of keras-hub does."""

    def __init__(self, make, **kwargs):
        super().__init__(**kwargs)
        self.make = make

    def call(self, x):
        height, width = ops.shape(x)[1:3]
        return self.make(height, width)(x[:, ::2, ::2])

    def compute_output_shape(self, shape):
        return shape


def test_layer_that_is_created_with_a_size(tmp_path):
    x = keras.Input((None, None, 3), name="x")
    model = keras.Model(x, Restored(layers.Resizing)(x))
    folder = exported(model, tmp_path / "out")
    for batch, height, width in ((1, 8, 12), (3, 5, 22)):
        value = draw(batch, height, width, 3)
        assert_close(run(folder, value)[0], outputs_of(model, value)[0])


@pytest.mark.parametrize("options", [{"interpolation": "nearest"}, {"crop_to_aspect_ratio": True}])
def test_other_layers_that_are_created_with_a_size_raise(options, tmp_path):
    x = keras.Input((None, None, 3), name="x")
    layer = Restored(lambda height, width: layers.Resizing(height, width, **options))
    with pytest.raises(ExportError, match="size"):
        export_onnx(keras.Model(x, layer(x)), tmp_path / "out", verify=False)


class Refusing(layers.Layer):
    """Declares no shape for these channels, and fails on every backend for another reason."""

    def call(self, x):
        return x + np.zeros(int(np.asarray(x)[0, 0]))

    def compute_output_spec(self, x):
        raise ValueError("It needs six channels.")


class Calling(layers.Layer):
    """Calls a layer, with a declared output shape, so that Keras does not call it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        return self.inner(x)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


def test_error_of_a_declaration_is_the_one_that_is_reported(tmp_path):
    x = keras.Input((4,), name="x")
    with pytest.raises(ExportError, match="It needs six channels"):
        export_onnx(keras.Model(x, Calling(Refusing())(x)), tmp_path / "out", verify=False)


class Pyramid(layers.Layer):
    """Adds a level to twice the next one."""

    def call(self, fine, coarse):
        return fine + ops.repeat(ops.repeat(coarse, 2, axis=1), 2, axis=2)


def test_inner_model_with_dynamic_sizes_is_called_with_fixed_ones(tmp_path):
    image = keras.Input((None, None, 3))
    fine = layers.Conv2D(4, 3, strides=2, padding="same")(image)
    inner = keras.Model(image, [fine, layers.Conv2D(4, 3, strides=2, padding="same")(fine)])
    x = keras.Input((16, 8, 3), name="x")
    model = redraw(keras.Model(x, Pyramid()(*inner(x))))
    report = export_onnx(model, tmp_path / "out")
    assert "tf2onnx" not in report.manifest.tiers.values()
    for batch in (1, 4):
        value = draw(batch, 16, 8, 3)
        assert_close(run(tmp_path / "out", value)[0], outputs_of(model, value)[0])
