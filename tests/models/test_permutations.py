"""Whole models without positions are permutation equivariant in their tokens; positions break it."""

from __future__ import annotations

import numpy as np
import pytest

import keras_tx
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import assert_close, difference

SHIFT = 1e-3  # of the scale: what depends on positions differs by more


def permuted_patches(images: np.ndarray, patch: int, order: np.ndarray) -> np.ndarray:
    count, height, width, channels = images.shape
    grid = height // patch, width // patch
    patches = images.reshape(count, grid[0], patch, grid[1], patch, channels).swapaxes(2, 3)
    patches = patches.reshape(count, -1, patch, patch, channels)[:, order]
    return patches.reshape(count, *grid, patch, patch, channels).swapaxes(2, 3).reshape(images.shape)


@pytest.mark.parametrize("pooling", ["token", "average"])
def test_permuted_patches_permute_the_tokens_of_a_vit_without_positions(pooling):
    """Prefix tokens and class scores stay the same."""
    images, order = draw(2, 8, 8, 3), np.random.default_rng(0).permutation(16)
    config = {"image_size": 8, "num_classes": 3, "depth": 2, "registers": 2, "pooling": pooling}
    for positions in ("none", "learned"):
        model = redraw(keras_tx.vit("Mu/2", positions=positions, **config))
        inspected = model.with_outputs(hidden_states=True)
        before, after = (
            as_numpy(inspected(x)) for x in (images, permuted_patches(images, patch=2, order=order))
        )
        prefix = before["hidden_states"][-1].shape[1] - 16
        expected = before["hidden_states"][-1].copy()
        expected[:, prefix:] = expected[:, prefix:][:, order]
        if positions == "none":
            assert_close(after["hidden_states"][-1], expected)
            assert_close(after["logits"], before["logits"])
        else:
            assert difference(after["hidden_states"][-1], expected) > SHIFT
            assert difference(after["logits"], before["logits"]) > SHIFT


def test_permuted_words_with_their_positions_permute_the_tokens_of_a_bert():
    ids, order = np.array([[5, 9, 7, 3, 11, 2]]), np.array([3, 0, 5, 1, 4, 2])
    places, ones = np.arange(6)[None], np.ones((1, 6), int)
    model = redraw(keras_tx.bert("tiny", vocabulary_size=20, position_ids=True, head=None, pooler=None))

    def tokens(ids, positions):
        inputs = {"input_ids": ids, "attention_mask": ones, "token_type_ids": 0 * ones}
        return as_numpy(model({**inputs, "position_ids": positions}))["last_hidden_state"]

    expected = tokens(ids, places)[:, order]
    assert_close(tokens(ids[:, order], places[:, order]), expected)
    assert difference(tokens(ids[:, order], places), expected) > SHIFT


def test_permuted_source_does_not_change_the_target_of_a_t5_without_its_bias():
    source, target = np.array([[37, 9, 4, 22, 1]]), np.array([[0, 52, 7]])
    permuted = source[:, [3, 0, 4, 1, 2]]
    model = redraw(keras_tx.t5("tiny"))

    def logits(source):
        inputs = {"input_ids": source, "decoder_input_ids": target}
        masks = {"attention_mask": np.ones_like(source), "decoder_attention_mask": np.ones_like(target)}
        return as_numpy(model({**inputs, **masks}))

    assert difference(logits(permuted), logits(source)) > SHIFT
    table = model.get_layer("encoder_relative_bias").table
    table.assign(0 * as_numpy(table))
    assert_close(logits(permuted), logits(source))
