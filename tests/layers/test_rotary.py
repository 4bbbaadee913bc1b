from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.layers import MultiHeadAttention
from keras_tx.layers.rotary import check_scaling, grid_angles, inverse_frequencies, rotate
from tests.drawing import as_numpy, built, draw
from tests.tolerances import FP32, UNIT_ROUNDOFF, assert_close


def rotated(x: np.ndarray, positions: list[list[int]], base: float = 1e4) -> np.ndarray:
    return as_numpy(rotate(np.asarray(x, "float32"), np.array(positions, "int32"), base))


def test_by_hand():
    """Size 4, base 100: channels 0 and 2 turn by p, channels 1 and 3 by p / 10."""
    actual = rotated([[[[1, 1, 0, 0], [1, 1, 0, 0]]]], [[1, 20]], base=100.0)
    expected = [
        [0.5403023, 0.9950042, 0.8414710, 0.0998334],  # cos 1, cos 0.1, sin 1, sin 0.1
        [0.4080821, -0.4161468, 0.9129453, 0.9092974],  # cos 20, cos 2, sin 20, sin 2
    ]
    np.testing.assert_allclose(actual[0, 0], expected, atol=1e-6)


def test_angles_of_a_grid_by_hand():
    """Two rows at -1/2 and 1/2, one column at 0; size 8, base 100: a full turn, and a tenth of one."""
    turn = np.pi
    expected = [[0, 0, 0, 0], [-turn, -turn / 10, 0, 0], [turn, turn / 10, 0, 0]]
    np.testing.assert_allclose(grid_angles((2, 1), 8, 100.0, prefix_tokens=1), expected, atol=1e-6)
    columns = grid_angles((1, 2), 8, 100.0)
    np.testing.assert_allclose(columns, np.roll(np.array(expected)[1:], 2, axis=1), atol=1e-6)


def test_a_grid_rotates_queries_and_keys_of_patches_only():
    layer = built(
        MultiHeadAttention(2, rotary_base=100.0, rotary_grid=(2, 3), prefix_tokens=2), draw(1, 8, 8)
    )
    plain = MultiHeadAttention(2)
    plain.build((None, 8, 8))
    plain.set_weights(layer.get_weights())
    x = draw(1, 8, 8)
    with_scores = {"return_attention_scores": True}
    mine, theirs = (as_numpy(each(x, **with_scores)[1]) for each in (layer, plain))
    prefix = np.log(mine) - np.log(theirs)  # scores, up to a number for each query
    np.testing.assert_allclose(prefix[:, :, :2, 0], prefix[:, :, :2, 1], atol=1e-4)
    assert np.abs(mine - theirs).max() > 1e-2
    q, k = (as_numpy(each(x)).reshape(1, 8, 2, 4).transpose(0, 2, 1, 3) for each in (layer.query, layer.key))
    angles = grid_angles((2, 3), 4, 100.0, 2)
    numbers = [(y[..., :2] + 1j * y[..., 2:]) * np.exp(1j * angles) for y in (q, k)]
    scores = np.einsum("bhqc,bhkc->bhqk", numbers[0], numbers[1].conj()).real / 2
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert_close(mine, weights)


GRID = {"rotary_base": 100.0, "rotary_grid": (2, 2)}


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"rotary_grid": (2, 2)}, (1, 4, 8), "no rotary_base, so rotary_grid="),
        (
            {
                "rotary_base": 1e2,
                "rotary_grid": (2, 2),
                "rotary_scaling": {"rope_type": "linear", "factor": 2.0},
            },
            (1, 4, 8),
            r"rotary_grid=\(2, 2\) and rotary_scaling",
        ),
        (
            {"rotary_base": 1e2, "rotary_grid": (2, 2), "key_dim": 6},
            (1, 4, 8),
            "key_dim=6 is not divisible by 4",
        ),
        ({"rotary_base": 1e2, "rotary_grid": (2, 2)}, (1, 4, 12), "head width 12 / 2 = 6 is not divisible"),
        ({"rotary_base": 1e2, "rotary_grid": (2, 2)}, (1, 5, 8), r"\(2, 2\), which are 4 tokens.* with 5"),
        ({"rotary_base": 1e2, "prefix_tokens": 1}, (1, 4, 8), "no relative_grid and no rotary_grid"),
        ({"rotary_base": 1e2, "rotary_grid": 4}, (1, 4, 8), "rotary_grid is 4"),
    ],
    ids=str,
)
def test_unsupported_grids_raise(options: dict, shape: tuple, message: str):
    with pytest.raises(ConfigError, match=message):
        MultiHeadAttention(2, **options)(draw(*shape))


def test_a_grid_has_positions_of_its_own():
    layer = MultiHeadAttention(2, **GRID)
    x = draw(1, 4, 8)
    with pytest.raises(ConfigError, match=r"rotary_grid=\(2, 2\), so positions= has no effect"):
        layer(x, positions=np.arange(4)[None])
    with pytest.raises(ConfigError, match=r"rotary_grid=\(2, 2\), which is for self-attention.*with value"):
        layer(x, x)


def test_position_zero_is_the_identity():
    x = draw(2, 3, 5, 8)
    np.testing.assert_array_equal(rotated(x, [[0] * 5]), x)


def test_products_depend_only_on_the_distance():
    q, k = draw(1, 1, 1, 8), draw(1, 1, 1, 8, seed=1)
    at = [np.vdot(rotated(q, [[p]]), rotated(k, [[p - 3]])) for p in (3, 7, 40)]
    np.testing.assert_allclose(at, at[0], atol=10 * FP32)
    assert abs(at[0] - np.vdot(q, k)) > 0.01


# An angle is position x frequency, each rounded: at position p it is off by up to 2 p unit roundoffs in each
# program, so by 4 p between two.
@pytest.mark.parametrize("last, tolerance", [(40, FP32), (8000, 4 * 8000 * UNIT_ROUNDOFF["float32"])])
@pytest.mark.parametrize("size, base", [(8, 1e4), (64, 1e4), (16, 5e5)])
def test_equals_llama(size, base, last, tolerance):
    torch = pytest.importorskip("torch", reason='needs torch: pip install "keras-tx[parity]"')
    llama = pytest.importorskip(
        "transformers.models.llama.modeling_llama",
        reason='needs transformers: pip install "keras-tx[parity]"',
    )
    config = llama.LlamaConfig(
        hidden_size=2 * size,
        num_attention_heads=2,
        max_position_embeddings=2 * last,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    q, k = draw(2, 4, 6, size), draw(2, 2, 6, size, seed=1)
    positions = np.stack([np.arange(6), np.linspace(0, last, 6)]).astype("int64")
    cosine, sine = llama.LlamaRotaryEmbedding(config)(torch.from_numpy(q), torch.from_numpy(positions))
    theirs = llama.apply_rotary_pos_emb(torch.from_numpy(q), torch.from_numpy(k), cosine, sine)
    for x, expected in zip((q, k), theirs, strict=True):
        assert_close(rotated(x, positions.tolist(), base), expected.numpy(), tolerance)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_rotates_in_float32(dtype):
    """An angle of 3001 would be off by 1 in float16, by 7 in bfloat16."""
    x = draw(1, 1, 1, 8)
    half = as_numpy(rotate(keras.ops.cast(x, dtype), np.array([[3001]]), 1e4))
    # The input and the result are rounded once each.
    assert_close(half, rotated(x, [[3001]]), 4 * UNIT_ROUNDOFF[dtype])


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_linear_scaling_divides_positions():
    x = draw(1, 1, 2, 8)
    stretched = as_numpy(rotate(x, np.array([[4, 8]]), 1e4, {"rope_type": "linear", "factor": 4.0}))
    assert_close(stretched, rotated(x, [[1, 2]]))


def test_llama3_scales_low_frequencies():
    plain, scaled = inverse_frequencies(16, 1e4), inverse_frequencies(16, 1e4, LLAMA3)
    turns = 64 * plain / (2 * np.pi)
    np.testing.assert_array_equal(scaled[turns > 4], plain[turns > 4])
    np.testing.assert_allclose(scaled[turns < 1], plain[turns < 1] / 8, rtol=1e-6)
    between = (turns > 1) & (turns < 4)
    assert between.any() and (scaled < plain)[between].all() and (scaled > plain / 8)[between].all()


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ("linear", "rotary_scaling='linear'"),
        ({"rope_type": "yarn", "factor": 2.0}, "'yarn'.*'linear', 'llama3'"),
        ({"rope_type": "linear"}, "'linear' requires exactly factor"),
        ({"rope_type": "linear", "factor": 2.0, "low_freq_factor": 1.0}, "'linear' requires exactly factor"),
        ({"rope_type": "linear", "factor": 0.0}, "factor=0.0, expected a positive number"),
        ({"rope_type": "linear", "factor": "2"}, "factor='2', expected a positive number"),
        ({**LLAMA3, "low_freq_factor": 4.0}, "low_freq_factor=4.0.*high_freq_factor=4.0"),
    ],
)
def test_invalid_scaling_raises(scaling, message):
    with pytest.raises(ConfigError, match=message):
        check_scaling(scaling)
