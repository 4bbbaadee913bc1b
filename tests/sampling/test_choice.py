"""Which tokens remain and how often each is drawn, also against transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.sampling import Sampling, choose, log_softmax, warped
from keras_tx.sampling.choice import penalized

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2])).astype("float32")


@pytest.mark.parametrize(
    ("options", "ids", "probabilities"),
    [
        ({}, [0, 1, 2, 3, 4], [0.1, 0.4, 0.05, 0.25, 0.2]),
        ({"top_k": 2}, [1, 3], [0.4 / 0.65, 0.25 / 0.65]),
        ({"top_k": 99}, [0, 1, 2, 3, 4], [0.1, 0.4, 0.05, 0.25, 0.2]),
        ({"top_p": 0.5}, [1, 3], [0.4 / 0.65, 0.25 / 0.65]),
        ({"top_p": 0.1}, [1], [1.0]),
        ({"min_p": 0.45}, [1, 3, 4], [0.4 / 0.85, 0.25 / 0.85, 0.2 / 0.85]),
        ({"temperature": 0.5, "top_k": 2}, [1, 3], [0.16 / 0.2225, 0.0625 / 0.2225]),
        ({"temperature": 1e-310}, [0, 1, 2, 3, 4], [0, 1, 0, 0, 0]),
    ],
)
def test_what_remains(options, ids, probabilities):
    found, shares = warped(LOGITS, Sampling(**options))
    assert found.tolist() == ids
    np.testing.assert_allclose(shares, probabilities, atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0])
def test_a_large_vocabulary_is_searched_as_a_whole_sort_would(scale: float):
    """Equal logits too: as many remain as were asked for."""
    random = np.random.default_rng(4)
    logits = np.round(random.standard_normal(5003) * scale, 2).astype("float32")
    for count in (1, 40, 500):
        ids, _ = warped(logits, Sampling(top_k=count))
        assert len(ids) == count
        np.testing.assert_array_equal(np.sort(logits[ids]), np.sort(logits)[-count:])
    shares = np.exp(logits.astype("float64"))
    shares /= shares.sum()
    order = np.argsort(-shares, kind="stable")
    for share in (0.3, 0.95):
        ids, _ = warped(logits, Sampling(top_p=share))
        needed = 1 + int(np.searchsorted(shares[order].cumsum(), share))
        assert abs(len(ids) - needed) <= 1  # the border is a matter of rounding
        np.testing.assert_allclose(np.sort(shares[ids]), np.sort(shares)[-len(ids) :])


def test_tokens_are_drawn_as_often_as_they_are_likely():
    random = np.random.default_rng(0)
    counts = np.bincount([choose(LOGITS, Sampling(do_sample=True), [], random) for _ in range(20_000)])
    np.testing.assert_allclose(counts / 20_000, np.exp(LOGITS), atol=0.02)


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
def test_when_tokens_are_drawn(options, samples):
    assert Sampling(**options).samples is samples


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", "1"), ("temperature", float("inf")), ("seed", 1.5)]
)
def test_bad_values_are_named(name: str, value: Any):
    with pytest.raises(ConfigError, match=f"{name} is {value!r}"):
        Sampling(**{name: value})


def test_log_probabilities_do_not_overflow():
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
def test_equals_the_processors_of_transformers(options):
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import torch
    from transformers.generation import logits_process as theirs

    logits = np.random.default_rng(1).standard_normal(50).astype("float32") * 3
    text = [3, 3, 7, 49]
    ids: Any = torch.tensor([text])
    scores = torch.from_numpy(logits)[None]
    scores = theirs.RepetitionPenaltyLogitsProcessor(1.3)(ids, scores)
    np.testing.assert_allclose(penalized(logits, text, 1.3), scores[0].numpy(), rtol=1e-6)
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
    remaining, shares = warped(penalized(logits, text, 1.3), Sampling(**options))
    found = np.zeros(50)
    found[remaining] = shares
    np.testing.assert_allclose(found, expected, atol=1e-6)
