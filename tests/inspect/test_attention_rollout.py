"""Attention rollout equals the paper's formula, with and without the residual connection."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.inspect import inspect, rollout
from tests.drawing import redraw
from tests.tolerances import assert_close

RNG = np.random.default_rng(0)


def random_layers(count: int, *, causal: bool = False) -> list[np.ndarray]:
    scores = np.exp(RNG.standard_normal((count, 2, 3, 6, 6)))
    scores = np.tril(scores) if causal else scores
    return list((scores / scores.sum(-1, keepdims=True)).astype("float32"))


@pytest.mark.parametrize("causal", [False, True])
def test_rollout_equals_the_formula(causal):
    layers = random_layers(4, causal=causal)
    means = [layer.mean(1).astype("float64") for layer in layers]
    expected = functools.reduce(np.matmul, means[::-1])  # A_4 A_3 A_2 A_1
    assert_close(rollout(layers, residual=False), expected.astype("float32"))
    with_residual = []
    for mean in means:
        mixed = 0.5 * mean + 0.5 * np.eye(6)
        with_residual.append(mixed / mixed.sum(-1, keepdims=True))
    expected = with_residual[3] @ with_residual[2] @ with_residual[1] @ with_residual[0]
    result = rollout(iter(layers))
    assert result.dtype == np.float32
    assert_close(result, expected.astype("float32"))
    assert_close(result.sum(-1), np.ones((2, 6), "float32"))
    assert np.abs(expected - functools.reduce(np.matmul, with_residual)).max() > 1e-3  # the order counts


def reference(attentions: list[np.ndarray]) -> np.ndarray:
    """The loop of published implementations, in PyTorch."""
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[torch]"')
    result = torch.eye(attentions[0].shape[-1])
    for attention in attentions:
        fused = torch.from_numpy(attention).mean(dim=1)
        fused = (fused + torch.eye(fused.shape[-1])) / 2
        result = torch.matmul(fused / fused.sum(dim=-1, keepdim=True), result)
    return result.numpy()


def test_rollout_equals_a_reference_in_pytorch():
    layers = random_layers(5)
    assert_close(rollout(layers), reference(layers))


def test_rows_of_padding_stay_their_own():
    layers = random_layers(2)
    for layer in layers:
        layer[:, :, 4:] = layer[:, :, :, 4:] = 0
    expected = rollout([layer[:, :, :4, :4] for layer in layers], residual=False)
    np.testing.assert_array_equal(rollout(layers, residual=False)[:, :4, :4], expected)
    np.testing.assert_array_equal(rollout(layers)[:, 4:, 4:], np.eye(2, dtype="float32")[None].repeat(2, 0))


def test_wrong_arrays_raise():
    with pytest.raises(ConfigError, match="no layers"):
        rollout([])
    with pytest.raises(ConfigError, match=r"\(2, 3, 6, 5\) in layer 0"):
        rollout([np.ones((2, 3, 6, 5))])
    with pytest.raises(ConfigError, match=r"\(2, 3, 5, 5\) in layer 1"):
        rollout([np.ones((2, 3, 6, 6)), np.ones((2, 3, 5, 5))])


def test_rollout_of_an_inspector():
    inspected = inspect(redraw(keras_tx.t5("tiny")))
    ids = np.array([[5, 6, 7, 8, 1]])
    layers = inspected.attention(ids, part="encoder")
    np.testing.assert_array_equal(
        inspected.rollout(ids, part="encoder", residual=False), rollout(layers, residual=False)
    )
    with pytest.raises(ConfigError, match="part='cross' has no rollout"):
        inspected.rollout(ids, targets=ids, part="cross")
