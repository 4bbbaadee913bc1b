"""Every layer passes Keras's own checks, a .keras round trip, half precision, and has distinct weights."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_tx.layers
from keras_tx.layers import (
    Bias,
    ClassToken,
    FeedForward,
    MultiHeadAttention,
    PatchEmbedding,
    PositionalEmbedding,
    RelativePositionBias,
    TokenEmbedding,
    TransformerBlock,
)
from keras_tx.layers.mask_token import MaskToken
from tests.drawing import as_numpy, built, draw, redraw
from tests.tolerances import HALF, assert_close

TOKENS = (2, 6, 8)

# layer, config, input shape, output shape, number of weights
CASES = [
    (PatchEmbedding, {"width": 8, "patch_size": 4}, (2, 8, 12, 3), TOKENS, 2),
    (PatchEmbedding, {"width": 8, "patch_size": (2, 4), "use_bias": False}, (2, 4, 12, 1), TOKENS, 1),
    (PatchEmbedding, {"width": 8, "patch_size": 5, "kernel_initializer": "ones"}, (2, 30, 2), TOKENS, 2),
    (PatchEmbedding, {"width": 8, "patch_size": (2, 2, 4)}, (2, 4, 6, 4, 3), TOKENS, 2),
    (PatchEmbedding, {"width": 8, "patch_size": 4, "drop_remainder": True}, (2, 11, 14, 3), TOKENS, 2),
    (ClassToken, {}, TOKENS, (2, 7, 8), 1),
    (ClassToken, {"count": 4, "after": 1, "initializer": "random_normal"}, TOKENS, (2, 10, 8), 1),
    (PositionalEmbedding, {"grid": 6, "kind": "none"}, TOKENS, TOKENS, 0),
    (PositionalEmbedding, {"grid": 9}, TOKENS, TOKENS, 1),
    (PositionalEmbedding, {"grid": (1, 5), "prefix_tokens": 1}, TOKENS, TOKENS, 1),
    (PositionalEmbedding, {"grid": (2, 2), "kind": "learned-2d", "prefix_tokens": 2}, TOKENS, TOKENS, 3),
    (PositionalEmbedding, {"grid": 6, "kind": "sine-cosine"}, TOKENS, TOKENS, 0),
    (PositionalEmbedding, {"grid": (1, 4), "kind": "sine-cosine", "prefix_tokens": 2}, TOKENS, TOKENS, 0),
    (PositionalEmbedding, {"grid": (1, 2, 2), "kind": "sine-cosine"}, (2, 4, 12), (2, 4, 12), 0),
    (PositionalEmbedding, {"grid": (1, 5, 1), "prefix_tokens": 1}, TOKENS, TOKENS, 1),
    (PositionalEmbedding, {"grid": (3, 2), "kind": "fourier", "bands": 3}, TOKENS, TOKENS, 1),
    (PositionalEmbedding, {"grid": (3, 1, 2), "kind": "fourier", "bands": 2}, TOKENS, TOKENS, 1),
    (MultiHeadAttention, {"num_heads": 2}, TOKENS, TOKENS, 8),
    (MultiHeadAttention, {"num_heads": 2, "key_dim": 6, "use_bias": False}, TOKENS, TOKENS, 4),
    (MultiHeadAttention, {"num_heads": 2, "use_bias": False, "qkv_bias": True}, TOKENS, TOKENS, 7),
    (
        MultiHeadAttention,
        {"num_heads": 4, "kv_heads": 2, "causal": True, "rotary_base": 1e4, "dropout": 0.1},
        TOKENS,
        TOKENS,
        8,
    ),
    (MultiHeadAttention, {"num_heads": 2, "key_dim": 3, "value_dim": 5}, TOKENS, TOKENS, 8),
    (MultiHeadAttention, {"num_heads": 2, "key_bias": False}, TOKENS, TOKENS, 7),
    (
        MultiHeadAttention,
        {"num_heads": 2, "rotary_base": 100.0, "rotary_grid": (2, 2), "prefix_tokens": 2},
        TOKENS,
        TOKENS,
        8,
    ),
    (MultiHeadAttention, {"num_heads": 2, "qk_norm": True, "norm_epsilon": 1e-3}, TOKENS, TOKENS, 12),
    (MultiHeadAttention, {"num_heads": 2, "qk_norm": "rms", "norm_epsilon": 1e-3}, TOKENS, TOKENS, 10),
    (
        MultiHeadAttention,
        {
            "num_heads": 4,
            "kv_heads": 2,
            "causal": True,
            "rotary_base": 1e4,
            "use_bias": False,
            "qk_norm": True,
        },
        TOKENS,
        TOKENS,
        6,
    ),
    (MultiHeadAttention, {"num_heads": 2, "relative_grid": 9}, TOKENS, TOKENS, 9),
    (
        MultiHeadAttention,
        {"num_heads": 4, "kv_heads": 2, "relative_grid": (1, 5), "prefix_tokens": 1, "qk_norm": True},
        TOKENS,
        TOKENS,
        14,
    ),
    (RelativePositionBias, {"num_heads": 2}, TOKENS, (1, 2, 6, 6), 1),
    (
        RelativePositionBias,
        {"num_heads": 3, "buckets": 8, "max_distance": 16, "bidirectional": False},
        TOKENS,
        (1, 3, 6, 6),
        1,
    ),
    (TokenEmbedding, {"vocabulary_size": 7, "width": 8}, (2, 6), TOKENS, 1),
    (TokenEmbedding, {"vocabulary_size": 5, "width": 8, "initializer": "ones"}, (2, 6), TOKENS, 1),
    (Bias, {}, TOKENS, TOKENS, 1),
    (Bias, {"initializer": "ones"}, TOKENS, TOKENS, 1),
    (FeedForward, {"hidden": 12}, TOKENS, TOKENS, 4),
    (FeedForward, {"hidden": 12, "activation": "gelu_tanh", "dropout": 0.1}, TOKENS, TOKENS, 4),
    (FeedForward, {"hidden": 12, "activation": "relu"}, TOKENS, TOKENS, 4),
    (FeedForward, {"hidden": 12, "activation": "swiglu", "use_bias": False}, TOKENS, TOKENS, 3),
    (FeedForward, {"hidden": 12, "activation": "geglu_exact"}, TOKENS, TOKENS, 6),
    (TransformerBlock, {"num_heads": 2, "mlp_dim": 12}, TOKENS, TOKENS, 16),
    (
        TransformerBlock,
        {
            "num_heads": 2,
            "mlp_dim": 12,
            "norm_position": "post",
            "dropout": 0.1,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.1,
        },
        TOKENS,
        TOKENS,
        16,
    ),
    (TransformerBlock, {"num_heads": 2, "mlp_dim": 12, "use_bias": False}, TOKENS, TOKENS, 8),
    (TransformerBlock, {"num_heads": 2, "mlp_dim": 12, "qkv_bias": False}, TOKENS, TOKENS, 13),
    (
        TransformerBlock,
        {
            "num_heads": 2,
            "mlp_dim": 12,
            "key_bias": False,
            "rotary_base": 100.0,
            "rotary_grid": (1, 5),
            "prefix_tokens": 1,
        },
        TOKENS,
        TOKENS,
        15,
    ),
    (
        TransformerBlock,
        {"num_heads": 2, "mlp_dim": 12, "qk_norm": True, "norm_epsilon": 1e-3},
        TOKENS,
        TOKENS,
        20,
    ),
    (TransformerBlock, {"num_heads": 2, "mlp_dim": 12, "qk_norm": "rms"}, TOKENS, TOKENS, 18),
    (
        TransformerBlock,
        {"num_heads": 2, "mlp_dim": 12, "relative_grid": (2, 2), "prefix_tokens": 2},
        TOKENS,
        TOKENS,
        18,
    ),
    (
        TransformerBlock,
        {
            "num_heads": 4,
            "mlp_dim": 12,
            "key_dim": 6,
            "value_dim": 3,
            "kv_heads": 2,
            "causal": True,
            "rotary_base": 1e4,
            "activation": "swiglu",
            "norm": "rms",
            "norm_epsilon": 1e-5,
            "drop_path": 0.2,
            "layer_scale": 0.1,
            "use_bias": False,
            "kernel_initializer": "he_normal",
        },
        TOKENS,
        TOKENS,
        11,
    ),
]
every_case = pytest.mark.parametrize(
    "cls, config, shape, output_shape, count",
    CASES,
    ids=[f"{cls.__name__}-{'-'.join(map(str, config.values())) or 'default'}" for cls, config, *_ in CASES],
)


def inputs_of(cls: type, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers, or ids for a table that has five rows or more."""
    if cls is TokenEmbedding:
        return np.random.default_rng(0).integers(0, 5, shape).astype("int32")
    return draw(*shape)


def test_every_public_layer_has_a_case():
    assert {cls.__name__ for cls, *_ in CASES} == set(keras_tx.layers.__all__)


def harness(test):
    """Keras's harness trips over Keras's warnings: it fits from a generator, and layers without weights."""
    for warning in ("`shuffle=True` was passed", "The model does not have any trainable weights"):
        test = pytest.mark.filterwarnings(f"ignore:{warning}:UserWarning")(test)
    return test


@harness
@every_case
def test_keras_layer_checks(run_layer_test, cls, config, shape, output_shape, count):
    run_layer_test(
        cls,
        config,
        input_shape=shape,
        input_dtype="int32" if cls is TokenEmbedding else None,
        expected_output_shape=output_shape,
        expected_num_trainable_weights=count,
        expected_num_non_trainable_weights=0,
        expected_num_losses=0,
        supports_masking=cls not in (PatchEmbedding, ClassToken),
    )


CROSS = {"num_heads": 2, "mlp_dim": 12, "cross_attention": True}


@pytest.mark.parametrize(
    "cls, config, tensors, output_shape, count",
    [
        (MultiHeadAttention, {"num_heads": 2}, "query value", (2, 6, 8), 8),
        (MultiHeadAttention, {"num_heads": 2, "value_dim": 3}, "query value key", (2, 6, 8), 8),
        (RelativePositionBias, {"num_heads": 2}, "query value", (1, 2, 6, 5), 1),
        (TransformerBlock, CROSS, "inputs value", (2, 6, 8), 26),
        (TransformerBlock, {**CROSS, "causal": True, "layer_scale": 0.1}, "inputs value", (2, 6, 8), 29),
    ],
)
def test_keras_layer_checks_of_cross_attention(run_layer_test, cls, config, tensors, output_shape, count):
    shapes = ((2, 6, 8), (2, 5, 10), (2, 5, 9))
    run_layer_test(
        cls,
        config,
        input_shape={f"{name}_shape": shape for name, shape in zip(tensors.split(), shapes, strict=False)},
        expected_output_shape=output_shape,
        expected_num_trainable_weights=count,
        run_training_check=False,  # Keras's training step feeds one tensor
    )


@every_case
def test_saved_model_is_bit_equal(tmp_path, cls, config, shape, output_shape, count):
    x = inputs_of(cls, shape)
    inputs = keras.Input(shape[1:], dtype=x.dtype)
    model = redraw(keras.Model(inputs, cls(**config)(inputs)))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.layers[-1].get_config() == model.layers[-1].get_config()
    assert [w.path for w in loaded.weights] == [w.path for w in model.weights]
    np.testing.assert_array_equal(as_numpy(loaded(x)), as_numpy(model(x)))


@every_case
def test_unknown_sizes(cls, config, shape, output_shape, count):
    """A functional model over unknown batch and length gives what the layer gives."""
    x = inputs_of(cls, shape)
    layer = built(cls(**config), x)
    last = () if cls is TokenEmbedding else shape[-1:]
    unknown = keras.Input((None,) * (len(shape) - 1 - len(last)) + last, dtype=x.dtype)
    model = keras.Model(unknown, layer(unknown))
    assert model.output_shape[-1] == output_shape[-1] or cls is RelativePositionBias
    assert_close(as_numpy(model(x)), as_numpy(layer(x)))


@pytest.mark.parametrize("policy", HALF)
@every_case
def test_half_precision(policy, cls, config, shape, output_shape, count):
    x = inputs_of(cls, shape)
    exact = built(cls(**config), x)
    half = cls(**config, dtype=policy)
    half.build(shape)
    half.set_weights(exact.get_weights())
    outputs = half(x)
    assert keras.backend.standardize_dtype(outputs.dtype) == policy.removeprefix("mixed_")
    assert_close(as_numpy(outputs), as_numpy(exact(x)), HALF[policy])


def specs_of(outputs) -> list[tuple]:
    """Shape and dtype of each output, in order and with the structure of the call."""
    return keras.tree.map_structure(
        lambda x: f"{tuple(x.shape)} {keras.backend.standardize_dtype(x.dtype)}", outputs
    )


def symbolic(*arrays: np.ndarray) -> list[keras.KerasTensor]:
    return [keras.KerasTensor(x.shape, keras.backend.standardize_dtype(x.dtype)) for x in arrays]


# On JAX and PyTorch Keras's own matmul of float64 is float32.
DOUBLE = ["float64"] if keras.backend.backend() == "tensorflow" else []
POLICIES = pytest.mark.parametrize(
    "policy", ["float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16", *DOUBLE]
)


@POLICIES
@every_case
def test_output_spec_equals_the_call(policy, cls, config, shape, output_shape, count):
    x = inputs_of(cls, shape)
    layer = cls(**config, dtype=policy)
    spec = layer.compute_output_spec(*symbolic(x))
    assert specs_of(spec) == specs_of(layer(x)) == specs_of(layer(*symbolic(x)))


@POLICIES
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("cls", [MultiHeadAttention, TransformerBlock])
def test_output_spec_of_past_and_scores(cls, scores, past, policy):
    config = {"num_heads": 4, "kv_heads": 2, "value_dim": 3, "causal": True, "dtype": policy}
    layer = cls(**config, **({"mlp_dim": 8} if cls is TransformerBlock else {}))
    x = draw(2, 6, 8)
    arrays = (draw(2, 2, 5, 2), draw(2, 2, 5, 3)) if past else ()
    options = {"return_attention_scores": scores}
    spec = layer.compute_output_spec(
        *symbolic(x), **options, **({"past": tuple(symbolic(*arrays))} if past else {})
    )
    assert specs_of(spec) == specs_of(layer(x, **options, **({"past": arrays} if past else {})))
    assert len(keras.tree.flatten(spec)) == 1 + 2 * past + scores


@POLICIES
@pytest.mark.parametrize("cls", [MultiHeadAttention, RelativePositionBias, TransformerBlock])
def test_output_spec_of_cross_attention(cls, policy):
    layer = cls(2, dtype=policy) if cls is not TransformerBlock else cls(dtype=policy, **CROSS)
    options = {} if cls is RelativePositionBias else {"return_attention_scores": True}
    arrays = draw(2, 6, 8), draw(2, 5, 10)
    assert specs_of(layer.compute_output_spec(*symbolic(*arrays), **options)) == specs_of(
        layer(*arrays, **options)
    )


@POLICIES
@pytest.mark.parametrize("layer", [MaskToken, lambda dtype: TokenEmbedding(7, 8, dtype=dtype)])
def test_output_spec_of_mask_token_and_reverse(layer, policy):
    layer, x = layer(dtype=policy), draw(2, 6, 8)
    options = {} if isinstance(layer, MaskToken) else {"reverse": True}
    spec = layer.compute_output_spec(*symbolic(x), **options)
    assert specs_of(spec) == specs_of(layer(x, **options))


@pytest.mark.parametrize(
    "make",
    [
        lambda init: PatchEmbedding(8, 2, kernel_initializer=init),
        lambda init: ClassToken(2, initializer=init),
        lambda init: PositionalEmbedding(4, initializer=init),
        lambda init: MultiHeadAttention(2, kernel_initializer=init),
        lambda init: RelativePositionBias(2, initializer=init),
        lambda init: TokenEmbedding(8, 4, initializer=init),
        lambda init: FeedForward(8, activation="swiglu", kernel_initializer=init),
        lambda init: TransformerBlock(2, 8, kernel_initializer=init),
    ],
)
def test_each_weight_is_initialized_differently(make):
    initializer = keras.initializers.RandomNormal()
    matrices = []
    for _ in range(2):
        layer = make(initializer)
        layer.build((1, 4, 4, 8) if isinstance(layer, PatchEmbedding) else (1, 4, 8))
        matrices += [w for w in layer.get_weights() if w.ndim > 1]
    assert len({w.tobytes() for w in matrices}) == len(matrices) > 1
