"""Attention of trained weights: all-MiniLM-L6-v2 and the sentences of lectures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.inspect import attention_parts, inspect
from tests.tolerances import assert_close
from tests.weights import test_minilm

folder = test_minilm.folder  # the fixture
pytestmark = pytest.mark.thorough

ANIMAL = "The animal didn't cross the street because it was too "
SPIRIT = (
    "It is in this spirit that a majority of American governments have passed new laws since 2009 making the "
    "registration or voting process more difficult"
)


@pytest.fixture(scope="module")
def inspector(folder: Path) -> Any:
    return inspect(keras_tx.from_checkpoint(folder))


def test_sentences_equal_transformers(folder: Path, inspector: Any):
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    import torch

    theirs = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in (f"{ANIMAL}tired", SPIRIT):
        encoded = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            expected = theirs(**encoded, output_attentions=True).attentions
        (part,) = attention_parts(inspector, text)
        assert list(part.queries) == tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
        for made, weights in zip(part.attentions, expected, strict=True):
            assert_close(made, weights[0].numpy())


def test_a_head_follows_the_pronoun(inspector: Any):
    """Head 1 of layer 3: "it" attends to the animal that was tired, and much less if "it" was wide."""
    weights = {}
    for word in ("tired", "wide"):
        (part,) = attention_parts(inspector, ANIMAL + word)
        tokens = list(part.queries)
        query = tokens.index("it")
        row = part.attentions[3][1, query]
        weights[word] = [row[tokens.index(name)] for name in ("animal", "street")]
        if word == "tired":
            to_class_token = np.mean([layer[:, query, 0] for layer in part.attentions])
    # docs/inspect.md has these numbers
    assert abs(to_class_token - 0.37) < 0.005
    np.testing.assert_allclose(weights["tired"], [0.64, 0.05], atol=0.005)
    np.testing.assert_allclose(weights["wide"], [0.27, 0.13], atol=0.005)
