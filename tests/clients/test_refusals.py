"""A client refuses a folder only with the error that the page names."""

from __future__ import annotations

import pytest

from tests.clients.comparing import Comparison, refused

NAMED = "Got invalid dimensions for input: past_key_values"


def test_error_of_the_page_is_a_refusal():
    def attempt(comparison: Comparison) -> None:
        comparison.gap = 0.5
        raise RuntimeError("INVALID_ARGUMENT : Got invalid dimensions\n for input: past_key_values.0.key")

    comparison = Comparison()
    refused(attempt, NAMED, comparison)
    assert comparison.gap == 0


@pytest.mark.parametrize(
    "error", [FileNotFoundError("onnx/model.onnx"), RuntimeError("Unsupported model type")]
)
def test_another_error_is_no_refusal(error: Exception):
    def attempt(comparison: Comparison) -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        refused(attempt, NAMED, Comparison())


def test_wrong_tokens_are_no_refusal():
    with pytest.raises(ValueError, match="tokens is"):
        refused(lambda comparison: comparison.same("tokens", [1, 2], [1, 3]), NAMED, Comparison())


def test_answer_is_no_refusal():
    with pytest.raises(ValueError, match="but it does"):
        refused(lambda comparison: comparison.same("tokens", [1, 2], [1, 2]), NAMED, Comparison())
