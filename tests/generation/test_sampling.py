"""Frequencies of drawn tokens, also against transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from keras_tx.errors import ConfigError, RunError
from keras_tx.generation import DistinctTokens, Sampling, choose_token, log_probability, log_softmax
from keras_tx.generation.logits import draw_token, penalize, top_k_ids

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2])).astype("float32")


def shares(logits: np.ndarray, count: int = 20_000, **options: Any) -> np.ndarray:
    """The frequency of each token."""
    random = np.random.default_rng(0)
    return (
        np.bincount([draw_token(logits, random, **options) for _ in range(count)], minlength=len(logits))
        / count
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.1, 0.4, 0.05, 0.25, 0.2]),
        ({"top_k": 2}, [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
        ({"top_k": 99}, [0.1, 0.4, 0.05, 0.25, 0.2]),
        ({"top_p": 0.5}, [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
        ({"top_p": 0.1}, [0, 1, 0, 0, 0]),
        ({"min_p": 0.45}, [0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85]),
        ({"temperature": 0.5, "top_k": 2}, [0, 0.16 / 0.2225, 0, 0.0625 / 0.2225, 0]),
        ({"temperature": 1e-310}, [0, 1, 0, 0, 0]),
    ],
)
def test_draw_frequencies(options, expected):
    actual = shares(LOGITS, **options)
    assert ((actual > 0) == (np.array(expected) > 0)).all()
    np.testing.assert_allclose(actual, expected, atol=0.012)


@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0])
def test_top_k_ids_equal_sort(scale: float):
    """Also for equal logits, of which the first ids count."""
    random = np.random.default_rng(4)
    logits = np.round(random.standard_normal(5003) * scale, 2).astype("float32")
    order = np.argsort(-logits, kind="stable")
    for count in (1, 40, 500):
        np.testing.assert_array_equal(top_k_ids(logits, count), np.sort(order[:count]))
    weights = np.exp(logits[order].astype("float64"))
    weights /= weights.sum()
    for share in (0.02, 0.3, 0.95):
        needed = 1 + int(np.searchsorted(weights.cumsum(), share))
        actual = {draw_token(logits, random, top_p=share) for _ in range(3000)}
        assert actual <= set(order[: needed + 1].tolist())  # the border is a matter of rounding
        if needed < 300:
            assert set(order[: needed // 4].tolist()) <= actual


def test_draws_over_many_blocks():
    """Several blocks, the last of them partly filled; most weights are 0."""
    logits = np.full(1000, -np.inf, "float32")
    places = [0, 255, 256, 511, 767, 768, 999]
    logits[places] = np.log(np.arange(1, 8))
    actual = shares(logits)
    assert np.flatnonzero(actual).tolist() == places
    np.testing.assert_allclose(actual[places], np.arange(1, 8) / 28, atol=0.012)


def test_draw_at_the_end():
    class Last:
        def random(self) -> float:
            return float(np.nextafter(1.0, 0.0))

    logits = np.log(np.random.default_rng(0).random(1000)).astype("float32")
    logits[-3:] = -np.inf
    last: Any = Last()
    assert draw_token(logits, last) == 996


@pytest.mark.parametrize("options", [{}, {"top_k": 1}, {"top_p": 0.5}, {"temperature": 1.0}], ids=str)
def test_nan_logits_raise(options):
    logits = LOGITS.copy()
    logits[2] = np.nan
    with pytest.raises(RunError, match="NaN"):
        choose_token(logits, Sampling(**options), DistinctTokens(), np.random.default_rng(0))


def test_distinct_tokens():
    tokens = DistinctTokens([3, 3, 7])
    for token in [*range(100), 7]:
        tokens.add(token)
    assert sorted(tokens.ids.tolist()) == list(range(100))


@pytest.mark.parametrize(
    ("options", "samples"),
    [
        ({}, False),
        ({"seed": 0}, True),
        ({"top_k": 5}, True),
        ({"temperature": 0.0, "seed": 0}, False),
        ({"top_k": 5, "do_sample": False}, False),
        ({"do_sample": True}, True),
        ({"repetition_penalty": 1.2}, False),
    ],
)
def test_do_sample_default(options, samples):
    assert Sampling(**options).samples is samples


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", "1"), ("temperature", float("inf")), ("seed", 1.5)]
)
def test_invalid_values_raise(name: str, value: Any):
    with pytest.raises(ConfigError, match=f"{name} is {value!r}"):
        Sampling(**{name: value})


def test_log_probability_equals_log_softmax():
    logits = np.random.default_rng(0).standard_normal(50257).astype("float32") * 4
    for token in (0, 7, int(logits.argmax())):
        assert log_probability(logits, token) == pytest.approx(log_softmax(logits)[token], abs=2e-6)


def test_log_softmax_of_large_logits():
    np.testing.assert_allclose(log_softmax(np.array([[1e4, 1e4]], "float32")), np.log([[0.5, 0.5]]))


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 7},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 1.7, "top_k": 20, "top_p": 0.7, "min_p": 0.05},
        {"temperature": 0.3, "top_p": 0.99},
    ],
    ids=str,
)
def test_sampling_equals_transformers(options):
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import torch
    from transformers.generation import logits_process as theirs

    logits = np.random.default_rng(1).standard_normal(50).astype("float32") * 3
    text = [3, 3, 7, 49]
    ids: Any = torch.tensor([text])
    scores = torch.from_numpy(logits)[None]
    scores = theirs.RepetitionPenaltyLogitsProcessor(1.3)(ids, scores)
    np.testing.assert_allclose(penalize(logits, DistinctTokens(text).ids, 1.3), scores[0].numpy(), rtol=1e-6)
    kinds = {
        "temperature": theirs.TemperatureLogitsWarper,
        "top_k": theirs.TopKLogitsWarper,
        "top_p": theirs.TopPLogitsWarper,
        "min_p": theirs.MinPLogitsWarper,
    }
    for name, kind in kinds.items():
        if name in options:
            scores = kind(options[name])(ids, scores)
    expected = torch.softmax(scores[0], -1).numpy()
    actual = shares(penalize(logits, DistinctTokens(text).ids, 1.3), **options)
    assert ((actual > 0) <= (expected > 0)).all()
    assert actual[expected > 0.002].all()
    np.testing.assert_allclose(actual, expected, atol=0.012)
