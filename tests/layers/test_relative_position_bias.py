from __future__ import annotations

import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.layers import MultiHeadAttention, RelativePositionBias
from tests.drawing import as_numpy, built, draw
from tests.tolerances import assert_close


def buckets(layer: RelativePositionBias, queries: int, keys: int) -> np.ndarray:
    """The bucket of each query and key, read from a table that holds the numbers of its rows."""
    query, context = np.zeros((1, queries, 1), "float32"), np.zeros((1, keys, 1), "float32")
    layer.build(query.shape)
    layer.table.assign(np.arange(layer.buckets, dtype="float32")[:, None] * np.ones((1, layer.num_heads)))
    return as_numpy(layer(query, context))[0, -1].astype(int)


def test_buckets_by_hand():
    """8 buckets, 4 each way: distance 0, 1, 2 to 3, 4 and more; those ahead are 4 higher."""
    result = buckets(RelativePositionBias(2, buckets=8, max_distance=8), 6, 6)
    assert result[5].tolist() == [3, 3, 2, 2, 1, 0]
    assert result[0].tolist() == [0, 5, 6, 6, 7, 7]
    assert buckets(RelativePositionBias(2, 8, 8, bidirectional=False), 6, 6)[0].tolist() == [0] * 6


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    "count, max_distance", [(32, 128), (32, 20), (8, 16), (64, 256), (4, 5), (6, 100), (10, 37), (128, 300)]
)
def test_buckets_equal_t5(count, max_distance, bidirectional):
    torch = pytest.importorskip("torch", reason='needs torch: pip install "keras-tx[parity]"')
    t5 = pytest.importorskip(
        "transformers.models.t5.modeling_t5", reason='needs transformers: pip install "keras-tx[parity]"'
    )
    for queries, keys in ((1, 330), (330, 1)):  # ahead and back, beyond every max_distance
        distances = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
        theirs = t5.T5Attention._relative_position_bucket(distances, bidirectional, count, max_distance)
        ours = buckets(RelativePositionBias(1, count, max_distance, bidirectional), queries, keys)
        np.testing.assert_array_equal(ours, theirs.numpy())


def test_each_head_uses_its_column():
    x, context = draw(2, 3, 4), draw(2, 5, 4)
    layer = built(RelativePositionBias(4), x)
    bias, table = as_numpy(layer(x, context)), as_numpy(layer.table)
    assert bias.shape == (1, 4, 3, 5)
    np.testing.assert_array_equal(bias[0, :, 2, 0], table[2])  # two back
    np.testing.assert_array_equal(bias[0, :, 0, 4], table[16 + 4])  # four ahead


def test_attention_adds_it_to_the_scores():
    x = draw(1, 4, 8)
    attention, bias = built(MultiHeadAttention(2), x), built(RelativePositionBias(2), x)
    scores = as_numpy(bias(x))
    _, plain = as_numpy(attention(x, return_attention_scores=True))
    _, biased = as_numpy(attention(x, bias=scores, return_attention_scores=True))
    expected = plain * np.exp(scores)
    assert_close(biased, expected / expected.sum(-1, keepdims=True))


@pytest.mark.parametrize(
    "config",
    [
        {"buckets": 2},
        {"buckets": 7},
        {"max_distance": 8},
        {"buckets": 32, "max_distance": 16, "bidirectional": False},
    ],
)
def test_errors_contain_argument_and_value(config):
    with pytest.raises(ConfigError) as error:
        RelativePositionBias(2, **config)
    arguments = {"buckets": 32, "max_distance": 128} | config
    assert f"buckets={arguments['buckets']}, max_distance={arguments['max_distance']}" in str(error.value)
    assert "must be even" in str(error.value)
