from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.layers import FeedForward, MultiHeadAttention, PositionalEmbedding, TransformerBlock
from tests.covering import covering
from tests.drawing import as_numpy, built, draw, redraw
from tests.tolerances import FP32, HALF, UNIT_ROUNDOFF, assert_close

PADDING = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
NO_KEYS = np.array([[0, 0, 0, 0, 0], [1, 1, 0, 1, 1]], bool)  # the first sample has none


def identity(width: int, **config) -> MultiHeadAttention:
    """One head whose projections change nothing."""
    layer = MultiHeadAttention(1, use_bias=False, **config)
    layer.build((None, None, width))
    for weight in layer.weights:
        weight.assign(np.eye(width))
    return layer


# --- by hand -------------------------------------------------------------------------------------------


def test_softmax_of_scaled_products_by_hand():
    """Q = K = V = x. Q K^T / sqrt(2) of the two rows of x:

        (1, 0): 1/sqrt(2) = 0.7071, 0                   -> e^0.7071 = 2.0281, e^0 = 1 -> 0.6698, 0.3302
        (0, 2): 0,                  4/sqrt(2) = 2.8284  -> e^0 = 1, e^2.8284 = 16.919 -> 0.0558, 0.9442

    The output is the weights times the rows (1, 0) and (0, 2).
    """
    x = np.array([[[1, 0], [0, 2]]], "float32")
    output, weights = as_numpy(identity(2)(x, return_attention_scores=True))
    np.testing.assert_allclose(weights[0, 0], [[0.669762, 0.330238], [0.055807, 0.944193]], atol=1e-6)
    np.testing.assert_allclose(output[0], [[0.669762, 0.660477], [0.055807, 1.888386]], atol=2e-6)


def test_look_ahead_mask_by_hand():
    """Equal tokens share equally what they may see: 1; 1/2, 1/2; 1/3, 1/3, 1/3. The rest is exactly 0."""
    _, weights = as_numpy(
        identity(2, causal=True)(np.ones((1, 3, 2), "float32"), return_attention_scores=True)
    )
    np.testing.assert_allclose(
        weights[0, 0], [[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]], atol=1e-7
    )
    assert (weights[0, 0][np.triu_indices(3, 1)] == 0).all()


def test_nine_tokens_of_512_in_eight_heads_of_64():
    x = draw(2, 9, 512)
    layer = MultiHeadAttention(8, causal=True)
    empty = np.zeros((2, 8, 0, 64), "float32")
    output, (key, value), weights = layer(x, past=(empty, empty), return_attention_scores=True)
    assert tuple(output.shape) == (2, 9, 512)
    assert tuple(key.shape) == tuple(value.shape) == (2, 8, 9, 64)
    assert tuple(weights.shape) == (2, 8, 9, 9)


def test_grouped_heads_with_another_width():
    layer = built(MultiHeadAttention(4, key_dim=6, kv_heads=2), draw(1, 3, 10))
    shapes = {w.path.split("/", 1)[-1]: tuple(w.shape) for w in layer.weights}
    assert shapes == {
        **{"query/kernel": (10, 24), "query/bias": (24,), "key/kernel": (10, 12), "key/bias": (12,)},
        **{"value/kernel": (10, 12), "value/bias": (12,), "output/kernel": (24, 10), "output/bias": (10,)},
    }


# --- properties ----------------------------------------------------------------------------------------


def test_causal_outputs_do_not_depend_on_later_tokens():
    x = draw(2, 6, 8)
    changed = np.concatenate([x[:, :4], draw(2, 2, 8, seed=9)], axis=1)
    layer = built(MultiHeadAttention(2, causal=True), x)
    before, after = as_numpy(layer(x)), as_numpy(layer(changed))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).all()


def test_permuting_tokens_permutes_outputs_without_positions():
    x, order = draw(2, 6, 8), np.array([3, 0, 5, 1, 4, 2])
    plain, rotary = (built(MultiHeadAttention(2, rotary_base=base), x) for base in (None, 1e4))
    assert_close(as_numpy(plain(x[:, order])), as_numpy(plain(x))[:, order])
    with pytest.raises(AssertionError):
        assert_close(as_numpy(rotary(x[:, order])), as_numpy(rotary(x))[:, order])


def test_rotary_depends_only_on_distances():
    x, positions = draw(2, 6, 8), np.arange(6)[None]
    layer = built(MultiHeadAttention(2, rotary_base=1e4), x)
    np.testing.assert_array_equal(as_numpy(layer(x)), as_numpy(layer(x, positions=positions)))
    assert_close(as_numpy(layer(x, positions=positions + 30)), as_numpy(layer(x)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, PADDING, NO_KEYS], ids=["no mask", "padding", "no keys"])
def test_weights_of_a_row_sum_to_one_or_to_zero(mask, causal):
    x = draw(2, 5, 8)
    layer = built(MultiHeadAttention(2, causal=causal), x)
    _, weights = as_numpy(layer(x, padding_mask=mask, return_attention_scores=True))
    allowed = np.ones((2, 1, 5, 5), bool) if mask is None else mask[:, None, None, :].repeat(5, axis=2)
    allowed = np.broadcast_to(allowed & np.tril(np.ones((5, 5), bool)) if causal else allowed, (2, 2, 5, 5))
    np.testing.assert_allclose(weights.sum(-1), allowed.any(-1).astype("float32"), atol=FP32)
    assert (weights[~allowed] == 0).all() and (weights[allowed] > 0).all()


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
def test_padding_mask_of_any_dtype(dtype):
    x = draw(2, 5, 8)
    layer = built(MultiHeadAttention(2), x)
    expected = as_numpy(layer(x, padding_mask=PADDING))
    np.testing.assert_array_equal(as_numpy(layer(x, padding_mask=PADDING.astype(dtype))), expected)


def test_padding_does_not_change_outputs():
    x = draw(2, 5, 8)
    layer = built(MultiHeadAttention(2), x)
    assert_close(as_numpy(layer(x, padding_mask=PADDING))[:1, :3], as_numpy(layer(x[:1, :3])))


def test_dropout_on_attention_weights_is_only_active_in_training():
    x = np.ones((1, 40, 4), "float32")
    layer = identity(4, dropout=0.5)
    np.testing.assert_allclose(as_numpy(layer(x)), x, atol=FP32)
    # How many of the 40 weights of 1/40 stayed, each doubled.
    trained = as_numpy(layer(x, training=True))[0, :, 0] * 20
    np.testing.assert_allclose(trained, trained.round(), atol=1e-4)
    assert len(np.unique(trained.round())) > 3 and 10 < trained.mean() < 30


# --- a query without keys ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["float32", *HALF])
@pytest.mark.parametrize(
    "config", [{}, {"causal": True}, {"causal": True, "kv_heads": 1, "rotary_base": 1e4}]
)
def test_a_row_without_keys_is_zero_before_the_output_projection(config, policy):
    x = draw(2, 5, 8)
    layer = MultiHeadAttention(2, **config, dtype=policy)
    output = as_numpy(built(layer, x)(x, padding_mask=NO_KEYS))
    bias = as_numpy(keras.ops.cast(layer.output_projection.bias, layer.compute_dtype))
    np.testing.assert_array_equal(output[0], np.broadcast_to(bias, (5, 8)))
    assert np.isfinite(output).all()


@pytest.mark.parametrize("policy", ["float32", *HALF])
def test_a_row_without_keys_has_a_finite_gradient(policy):
    ids, mask = keras.Input((5,), dtype="int32"), keras.Input((5,), dtype="bool")
    x = keras.layers.Embedding(10, 8)(ids)
    x = MultiHeadAttention(2, causal=True, dtype=policy)(x, padding_mask=mask)
    model = redraw(keras.Model([ids, mask], x))
    before = [as_numpy(w) + 0 for w in model.weights]
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.train_on_batch([np.arange(10).reshape(2, 5), NO_KEYS], draw(2, 5, 8))
    steps = [as_numpy(w) - b for w, b in zip(model.weights, before, strict=True)]
    assert all(np.isfinite(step).all() for step in steps)
    assert (steps[0][:5] == 0).all() and (steps[0][5:7] != 0).any()  # tokens of the sample without keys


@pytest.mark.parametrize("policy", HALF)
def test_half_precision_with_padding_and_causal_mask(policy):
    x = draw(2, 5, 8)
    config = {"causal": True, "rotary_base": 1e4}
    exact, half = MultiHeadAttention(2, **config), MultiHeadAttention(2, **config, dtype=policy)
    built(exact, x), built(half, x)
    arguments = {"padding_mask": NO_KEYS, "bias": draw(1, 2, 5, 5, seed=4)}
    assert_close(as_numpy(half(x, **arguments)), as_numpy(exact(x, **arguments)), HALF[policy])


@pytest.mark.parametrize("policy", HALF)
def test_scores_and_bias_are_added_in_float32(policy):
    """1000 more for every key changes no weight. In bfloat16 it would round scores to multiples of 4."""
    x = draw(2, 5, 8)
    layer = built(MultiHeadAttention(2, dtype=policy), x)
    _, plain = as_numpy(layer(x, return_attention_scores=True))
    _, shifted = as_numpy(layer(x, bias=np.full((1, 1, 5, 5), 1000, "float32"), return_attention_scores=True))
    assert_close(shifted, plain, 2 * UNIT_ROUNDOFF[policy.removeprefix("mixed_")])


# --- Keras masks ---------------------------------------------------------------------------------------


def test_keras_mask_is_used_and_propagated():
    """Embedding(mask_zero=True), then everything that must carry its mask, compiled and not."""
    ids = np.array([[1, 2, 3, 0, 0], [4, 1, 2, 3, 5]])
    tokens = keras.Input((5,), dtype="int32")
    layers = [
        PositionalEmbedding(5, "sine-cosine"),
        FeedForward(8),
        MultiHeadAttention(2),
        TransformerBlock(2, 8),
        TransformerBlock(2, 8, norm="rms"),
        TransformerBlock(2, 8, norm="rms", norm_position="post"),
    ]
    embedding = keras.layers.Embedding(6, 8, mask_zero=True)
    x = embedding(tokens)
    for layer in layers:
        x = layer(x)
    model = redraw(keras.Model(tokens, x))

    expected = as_numpy(keras.ops.take(embedding.embeddings, ids, axis=0))
    for layer in layers:
        attends = isinstance(layer, (MultiHeadAttention, TransformerBlock))
        expected = as_numpy(layer(expected, padding_mask=ids != 0) if attends else layer(expected))
    assert_close(as_numpy(model(ids)), expected)
    assert_close(model.predict(ids, verbose=0), expected)


def test_keras_mask_of_the_value_is_used():
    ids, query = np.array([[1, 2, 0, 0, 0], [4, 1, 2, 3, 0]]), draw(2, 3, 8)
    tokens, queries = keras.Input((5,), dtype="int32"), keras.Input((3, 8))
    embedding, layer = keras.layers.Embedding(6, 8, mask_zero=True), MultiHeadAttention(2)
    model = redraw(keras.Model([tokens, queries], layer(queries, embedding(tokens))))
    context = as_numpy(keras.ops.take(embedding.embeddings, ids, axis=0))
    expected = as_numpy(layer(query, context, padding_mask=ids != 0))
    assert_close(model.predict([ids, query], verbose=0), expected)


def test_padding_mask_overrides_the_keras_mask():
    ids, layer = np.array([[1, 0, 0]]), MultiHeadAttention(2)
    x = keras.layers.Embedding(2, 8, mask_zero=True)(ids)
    explicit = as_numpy(built(layer, x)(x, padding_mask=np.ones((1, 3), bool)))
    assert_close(explicit, as_numpy(layer(as_numpy(x))))


# --- against code of others ----------------------------------------------------------------------------


def projected(layer: MultiHeadAttention, name: str, x: np.ndarray, heads: int) -> np.ndarray:
    dense = getattr(layer, name)
    y = x @ as_numpy(dense.kernel) + as_numpy(dense.bias)
    return y.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)  # (b, heads, s, d)


@covering(
    kv_heads=[4, 2, 1],
    kind=["self", "causal", "cross"],
    masked={"": False, "padding": True},
    biased={"": False, "bias": True},
    normalized={"": False, "norms": True, "rms": "rms"},
)
def test_equals_torch(kv_heads, kind, masked, biased, normalized):
    torch = pytest.importorskip("torch", reason='needs torch: pip install "keras-tx[parity]"')
    x = draw(2, 5, 12)
    context = draw(2, 7, 10, seed=2) if kind == "cross" else x
    layer = MultiHeadAttention(
        4, kv_heads=kv_heads, causal=kind == "causal", qk_norm=normalized, norm_epsilon=0.1
    )
    args = (x, context) if kind == "cross" else (x,)
    built(layer, *args)
    keys = context.shape[1]
    padding = np.random.default_rng(5).random((2, keys)) > 0.4
    padding[:, 0] = True  # torch gives NaN where nothing is allowed
    bias = draw(1, 4, 5, keys, seed=3)

    mask = np.zeros((2, 4, 5, keys), "float32") + (bias if biased else 0)
    mask = np.where(padding[:, None, None, :] if masked else True, mask, -np.inf)
    mask = np.where(np.tril(np.ones((5, keys), bool)) if kind == "causal" else True, mask, -np.inf)
    q, k, v = (
        torch.from_numpy(projected(layer, name, source, heads))
        for name, source, heads in (("query", x, 4), ("key", context, kv_heads), ("value", context, kv_heads))
    )
    if normalized:
        function = "rms_norm" if normalized == "rms" else "layer_norm"
        q, k = (
            getattr(torch.nn.functional, function)(
                heads, (3,), *(torch.from_numpy(as_numpy(w) + 0) for w in norm.weights), eps=0.1
            )
            for heads, norm in ((q, layer.query_norm), (k, layer.key_norm))
        )
    attended = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.from_numpy(mask.astype("float32")), enable_gqa=kv_heads < 4
    )
    attended = attended.numpy().transpose(0, 2, 1, 3).reshape(2, 5, -1)
    expected = attended @ as_numpy(layer.output_projection.kernel)
    arguments = {"padding_mask": padding if masked else None, "bias": bias if biased else None}
    assert_close(as_numpy(layer(*args, **arguments)), expected + as_numpy(layer.output_projection.bias))


@covering(
    kv_heads=[4, 2],
    kind=["self", "causal", "cross"],
    masked={"": False, "padding": True},
)
def test_equals_keras(kv_heads, kind, masked):
    x = draw(2, 5, 12)
    context = draw(2, 7, 10, seed=2) if kind == "cross" else x
    ours = MultiHeadAttention(4, kv_heads=kv_heads, causal=kind == "causal")
    args = (x, context) if kind == "cross" else (x,)
    built(ours, *args)
    theirs = (
        keras.layers.MultiHeadAttention(4, 3)
        if kv_heads == 4
        else keras.layers.GroupQueryAttention(3, 4, kv_heads)
    )
    theirs.build(x.shape, context.shape)
    theirs.set_weights([w.reshape(v.shape) for w, v in zip(ours.get_weights(), theirs.weights, strict=True)])
    padding = np.arange(context.shape[1])[None] < np.array([[3], [context.shape[1]]])
    mask = padding if masked else None
    expected, scores = theirs(
        x,
        context,
        attention_mask=mask[:, None, :].repeat(5, axis=1) if masked else None,
        use_causal_mask=kind == "causal",
        return_attention_scores=True,
    )
    output, weights = ours(*args, padding_mask=mask, return_attention_scores=True)
    assert_close(as_numpy(output), as_numpy(expected))
    assert_close(as_numpy(weights), as_numpy(scores))


RANDOM_MASK = np.random.default_rng(7).random((2, 4, 5, 7)) > 0.4


@covering(
    arguments=["query, value", "query, value, key"],
    axes=["", "TS", "BTS", "B1TS", "1HTS", "BHTS"],
    value_dim=[None, 5],
)
def test_equals_keras_with_the_same_arguments(arguments, axes, value_dim):
    query, value, key = draw(2, 5, 12), draw(2, 7, 10, seed=2), draw(2, 7, 9, seed=3)
    args = (query, value, key)[: len(arguments.split(", "))]
    ours = MultiHeadAttention(4, key_dim=3, value_dim=value_dim)
    theirs = keras.layers.MultiHeadAttention(4, key_dim=3, value_dim=value_dim)
    built(ours, *args)
    theirs.build(*(x.shape for x in args))
    theirs.set_weights([w.reshape(v.shape) for w, v in zip(ours.get_weights(), theirs.weights, strict=True)])
    whole = RANDOM_MASK | (np.arange(7) == 2)  # no row without a key, where Keras returns the mean
    mask = {
        "": None,
        "TS": whole[0, 0],
        "BTS": whole[:, 0],
        "B1TS": whole[:, :1],
        "1HTS": whole[:1],
        "BHTS": whole,
    }[axes]
    of_keras = None if mask is None else mask[None] if mask.ndim == 2 else mask
    expected, scores = theirs(*args, attention_mask=of_keras, return_attention_scores=True)
    output, weights = ours(*args, attention_mask=mask, return_attention_scores=True)
    assert_close(as_numpy(output), as_numpy(expected))
    assert_close(as_numpy(weights), as_numpy(scores))


def test_causal_cross_attention_equals_keras():
    query, value = draw(2, 5, 12), draw(2, 7, 12, seed=2)
    ours, theirs = MultiHeadAttention(4, causal=True), keras.layers.MultiHeadAttention(4, 3)
    built(ours, query, value)
    theirs.build(query.shape, value.shape)
    theirs.set_weights([w.reshape(v.shape) for w, v in zip(ours.get_weights(), theirs.weights, strict=True)])
    expected = theirs(query, value, use_causal_mask=True)
    assert_close(as_numpy(ours(query, value)), as_numpy(expected))


@pytest.mark.parametrize("config", [{"causal": True}, {"rotary_base": 1e4}, {}], ids=str)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_query_as_value_is_self_attention(config, policy):
    """As Keras's layer is called. Under a mixed policy Keras casts each argument to a tensor of its own."""
    x = draw(2, 5, 8)
    layer = built(MultiHeadAttention(2, **config, dtype=policy), x)
    for args in ((x, x), (x, x, x)):
        np.testing.assert_array_equal(as_numpy(layer(*args)), as_numpy(layer(x)))


def test_masks_of_key_and_value_are_combined():
    ids = np.array([[1, 2, 0, 3], [0, 1, 2, 3]]), np.array([[1, 2, 3, 0], [3, 1, 2, 0]])
    embedding, layer = keras.layers.Embedding(4, 8, mask_zero=True), MultiHeadAttention(2)
    query, value, key = draw(2, 3, 8), embedding(ids[0]), embedding(ids[1])
    plain = [as_numpy(x) for x in (value, key)]
    built(layer, query, *plain)
    expected = layer(query, *plain, padding_mask=(ids[0] != 0) & (ids[1] != 0))
    assert_close(as_numpy(layer(query, value, key)), as_numpy(expected))


@pytest.mark.parametrize("policy", ["float32", *HALF])
def test_a_bias_of_minus_infinity_masks(policy):
    """A row of it alone is a query that may attend to nothing: weights of zero, and no NaN."""
    x, mask = draw(2, 5, 8), RANDOM_MASK[:, :2, :, :5].copy()
    mask[0, 1, 3] = False
    layer = built(MultiHeadAttention(2, dtype=policy), x)
    bias = np.where(mask, 0, -np.inf).astype("float32")
    output, weights = as_numpy(layer(x, bias=bias, return_attention_scores=True))
    expected, scores = as_numpy(layer(x, attention_mask=mask, return_attention_scores=True))
    assert (weights[0, 1, 3] == 0).all()
    np.testing.assert_array_equal(weights, scores)
    np.testing.assert_array_equal(output, expected)


def test_masks_and_past():
    """Keys of an attention mask include the past."""
    x, mask = draw(2, 5, 8), RANDOM_MASK[:, 0, :, :5]
    layer = built(MultiHeadAttention(2, causal=True), x)
    whole = as_numpy(layer(x, attention_mask=mask))
    empty = np.zeros((2, 2, 0, 4), "float32")
    first, past = layer(x[:, :3], past=(empty, empty), attention_mask=mask[:, :3, :3])
    second, _ = layer(x[:, 3:], past=past, attention_mask=mask[:, 3:])
    assert_close(np.concatenate([as_numpy(first), as_numpy(second)], axis=1), whole)


# --- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config, shape, parts",
    [
        ({"num_heads": 4, "kv_heads": 3}, None, ["'mix'", "num_heads=4", "kv_heads=3"]),
        ({"num_heads": 0}, None, ["num_heads is 0"]),
        ({"num_heads": 4, "kv_heads": 0}, None, ["kv_heads is 0"]),
        ({"num_heads": 4, "key_dim": 0}, None, ["key_dim is 0", "None"]),
        ({"num_heads": 4, "key_dim": 5, "rotary_base": 1e4}, None, ["key_dim=5", "odd"]),
        ({"num_heads": 7}, (1, 5, 768), ["'mix'", "768", "num_heads=7", "key_dim="]),
        ({"num_heads": 4, "rotary_base": 1e4}, (1, 5, 12), ["'mix'", "12 / 4 = 3", "odd"]),
        (
            {"num_heads": 4, "rotary_scaling": {"rope_type": "linear", "factor": 2.0}},
            None,
            ["'mix'", "rotary_base", "rotary_scaling="],
        ),
    ],
)
def test_errors_contain_argument_and_value(config, shape, parts):
    with pytest.raises(ConfigError) as error:
        MultiHeadAttention(**config, name="mix").build(shape)
    assert all(part in str(error.value) for part in parts), str(error.value)


@pytest.mark.parametrize(
    "shapes, match",
    [
        ({"attention_mask": (5,)}, r"'mix': attention_mask has the shape \(5,\).*\(2, 2, 3, 4\)"),
        ({"attention_mask": (2, 4)}, r"attention_mask has the shape \(2, 4\).*padding_mask"),
        ({"attention_mask": (2, 4, 3)}, r"attention_mask has the shape \(2, 4, 3\)"),
        ({"attention_mask": (2, 3, 3, 4)}, r"attention_mask has the shape \(2, 3, 3, 4\)"),
        ({"attention_mask": (3, 1, 3, 4)}, r"attention_mask has the shape \(3, 1, 3, 4\)"),
        ({"bias": (3, 5)}, r"bias has the shape \(3, 5\)"),
        ({"padding_mask": (2, 3)}, "padding_mask covers 3 keys, expected 4"),
        ({"key": (2, 5, 8)}, "value has 4 tokens, but key has 5"),
        ({"key": (8, 5)}, r"key has the shape \(8, 5\)"),
        ({"positions": (1, 3)}, "rotary_base.*positions="),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_raise(shapes, match):
    """For arrays and symbolic tensors."""
    dtypes = {"attention_mask": bool, "padding_mask": bool, "positions": "int32"}
    arrays = {name: np.ones(shape, dtypes.get(name, "float32")) for name, shape in shapes.items()}
    query, value = draw(2, 3, 8), draw(2, 4, 8)
    with pytest.raises(ConfigError, match=match):
        MultiHeadAttention(2, name="mix")(query, value, **arrays)
    symbolic = {
        name: keras.KerasTensor(x.shape, keras.backend.standardize_dtype(x.dtype))
        for name, x in arrays.items()
    }
    tensors = [keras.KerasTensor(x.shape, "float32") for x in (query, value)]
    with pytest.raises(ConfigError, match=match):
        MultiHeadAttention(2, name="mix")(*tensors, **symbolic)


@pytest.mark.parametrize("name", ["past", "positions"])
def test_past_and_positions_with_another_sequence_raise(name):
    x, past = draw(1, 3, 8), np.zeros((1, 2, 0, 4), "float32")
    argument = (past, past) if name == "past" else np.arange(3)[None]
    with pytest.raises(ConfigError, match=f"'mix': {name}= .* value"):
        MultiHeadAttention(2, rotary_base=1e4, name="mix")(x, x, **{name: argument})


def test_float_mask_raises():
    """0 and -1e9 are added to scores; as booleans they mean the opposite."""
    with pytest.raises(ConfigError, match=r"attention_mask is float32.*bias="):
        MultiHeadAttention(2)(draw(1, 3, 8), attention_mask=np.zeros((3, 3), "float32"))


def test_padding_mask_of_another_length_raises():
    """A mask of one key would broadcast over all keys."""
    layer, past = MultiHeadAttention(2, causal=True, name="mix"), np.zeros((1, 2, 3, 4), "float32")
    with pytest.raises(ConfigError, match="'mix': padding_mask covers 1 keys, expected 4"):
        layer(draw(1, 1, 8), past=(past, past), padding_mask=np.ones((1, 1), bool))


@pytest.mark.parametrize("value", ["layer", "RMS", 1, None])
def test_unknown_qk_norm_raises(value):
    with pytest.raises(ConfigError, match=f"qk_norm is {value!r}, expected True or False, or 'rms'"):
        MultiHeadAttention(2, qk_norm=value)
