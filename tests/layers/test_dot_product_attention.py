"""Attention without its weights equals Keras's layer, in outputs and in gradients."""

from __future__ import annotations

import gc
import itertools

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.layers import MultiHeadAttention, dot_product_attention
from tests.drawing import as_numpy, built, draw
from tests.memory import begin_peak, peak, resident
from tests.tolerances import FP32, HALF, assert_close

PADDING = np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]], bool)
NO_KEYS = np.array([[0, 0, 0, 0, 0, 0], [1, 1, 0, 1, 1, 0]], bool)
RANDOM = (np.random.default_rng(7).random((2, 6, 6)) > 0.4) | np.eye(6, dtype=bool)
POLICIES = {"float32": FP32, **HALF}


@pytest.fixture(params=["short", "long"])
def length(request, monkeypatch):
    """Long sequences are computed in blocks, or by PyTorch's fused operation in half precision."""
    if request.param == "long":
        monkeypatch.setattr(dot_product_attention, "LONG", 0)
        monkeypatch.setattr(dot_product_attention, "BLOCK", 4)  # of 6 queries


def model_of(layer: keras.layers.Layer, policy: str, **arguments) -> keras.Model:
    x = keras.Input((6, 8))
    return keras.Model(x, keras.layers.Activation("linear", dtype="float32")(layer(x, **arguments)))


def steps(model: keras.Model, **options) -> list[np.ndarray]:
    """The change of each weight in a step of gradient descent."""
    before = [as_numpy(w) + 0 for w in model.weights]
    options = options or {"run_eagerly": keras.backend.backend() != "jax", "jit_compile": False}
    model.compile(keras.optimizers.SGD(1.0), "mse", **options)
    model.train_on_batch(draw(2, 6, 8), draw(2, 6, 8, seed=3))
    return [as_numpy(w) - b for w, b in zip(model.weights, before, strict=True)]


MASKS = {"none": None, "padding": PADDING[:, None].repeat(6, axis=1), "random": RANDOM}
USUAL = [("float32", 4, mask) for mask in MASKS] + [("float32", 2, "random"), ("mixed_bfloat16", 4, "random")]
OTHERS = [case for case in itertools.product(POLICIES, (4, 2), MASKS) if case not in USUAL]


@pytest.mark.parametrize(
    ("policy", "kv_heads", "mask"),
    [*USUAL, *(pytest.param(*case, marks=pytest.mark.thorough) for case in OTHERS)],
)
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.usefixtures("length")
def test_outputs_and_gradients_equal_those_of_keras(causal, policy, kv_heads, mask):
    mask = MASKS[mask]
    ours = MultiHeadAttention(4, kv_heads=kv_heads, causal=causal, dtype=policy)
    if kv_heads == 4:
        theirs = keras.layers.MultiHeadAttention(4, 2, flash_attention=False)
    else:
        theirs = keras.layers.GroupQueryAttention(2, 4, kv_heads, flash_attention=False)
    built(ours, draw(2, 6, 8))
    theirs.build((2, 6, 8), (2, 6, 8))
    theirs.set_weights([w.reshape(v.shape) for w, v in zip(ours.get_weights(), theirs.weights, strict=True)])
    x = draw(2, 6, 8)
    arguments = {"attention_mask": mask, "use_causal_mask": causal}
    output = ours(x) if mask is None else ours(x, attention_mask=mask)
    assert_close(as_numpy(output), as_numpy(theirs(x, x, **arguments)), POLICIES[policy])

    tokens = keras.Input((6, 8))
    reference = steps(keras.Model(tokens, theirs(tokens, tokens, **arguments)))
    for actual, expected in zip(steps(model_of(ours, policy, attention_mask=mask)), reference, strict=True):
        scale = max(np.abs(x).max() for x in reference)
        assert np.abs(actual - expected.reshape(actual.shape)).max() <= 2 * POLICIES[policy] * scale


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.usefixtures("length")
def test_rows_without_keys_are_zero_and_have_zero_gradients(causal, policy):
    layer = MultiHeadAttention(2, causal=causal, dtype=policy)
    x, mask = draw(2, 6, 8), np.repeat(NO_KEYS[:, None], 6, axis=1)
    output = as_numpy(built(layer, x)(x, padding_mask=NO_KEYS))
    bias = as_numpy(keras.ops.cast(layer.output_projection.bias, layer.compute_dtype))
    np.testing.assert_array_equal(output[0], np.broadcast_to(bias, (6, 8)))
    both = steps(model_of(layer, policy, attention_mask=mask))
    assert all(np.isfinite(step).all() for step in both)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_output_is_that_beside_the_weights(policy):
    """The weights are written out where they are returned."""
    x = draw(2, 6, 8)
    layer = built(MultiHeadAttention(2, causal=True, dtype=policy), x)
    output, weights = layer(x, padding_mask=PADDING, return_attention_scores=True)
    assert_close(as_numpy(layer(x, padding_mask=PADDING)), as_numpy(output), POLICIES[policy])
    assert tuple(weights.shape) == (2, 2, 6, 6)


@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "XLA"])
def test_blocks_in_a_step(compiled, monkeypatch):
    """As a graph and compiled, also in blocks of a transformer that are recomputed."""
    if keras.backend.backend() == "torch":
        pytest.skip("PyTorch has a fused operation.")
    results = []
    for length, remat in ((dot_product_attention.LONG, False), (0, False), (0, True)):
        monkeypatch.setattr(dot_product_attention, "LONG", length)
        monkeypatch.setattr(dot_product_attention, "BLOCK", 4)
        keras.utils.set_random_seed(1)
        block = keras_tx.TransformerBlock(2, 8, causal=True, dropout=0.2)
        model = model_of(block, "float32", attention_mask=RANDOM)
        block.remat = remat
        results.append(steps(model, jit_compile=compiled))
    for other in results[1:]:
        for actual, expected in zip(other, results[0], strict=True):
            assert np.abs(actual - expected).max() <= FP32 * max(np.abs(x).max() for x in results[0])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_square_of_the_length():
    if not resident():
        pytest.skip("The resident memory can be read on Linux only.")
    heads, tokens = 8, 4096
    x = draw(1, tokens, 512)
    layer = built(MultiHeadAttention(heads, causal=True), x[:, :8])
    tensor = keras.Input((tokens, 512))
    model = keras.Model(tensor, layer(tensor))
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    gc.collect()
    before = resident()
    begin_peak()
    model.train_on_batch(x, x)
    scores = heads * tokens**2 * 4  # bytes; a step that stores them needs 3.6 times as much, or more
    assert peak() - before < 1.5 * scores


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch's operation")
def test_pytorch_runs_its_fused_operation_unless_weights_are_needed(monkeypatch):
    import torch

    calls = []
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *args, **kwargs: (calls.append(args), fused(*args, **kwargs))[1],
    )
    x = draw(2, 6, 8)

    def is_fused(policy="float32", training=False, bias=None, **config) -> bool:
        layer = built(MultiHeadAttention(2, **config, dtype=policy), x)
        calls.clear()
        layer(x, training=training, bias=bias)
        return bool(calls)

    assert is_fused() and is_fused(causal=True) and is_fused(dropout=0.5)
    assert not is_fused(dropout=0.5, training=True)
    assert not is_fused(bias=draw(1, 2, 6, 6))
    assert not is_fused(relative_grid=6)
    assert not is_fused("mixed_bfloat16")
    monkeypatch.setattr(dot_product_attention, "LONG", 6)
    assert is_fused("mixed_bfloat16")
