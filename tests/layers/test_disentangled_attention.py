"""DisentangledAttention equals that of transformers, with lengths below and above the buckets."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.layers.disentangled_attention import DisentangledAttention, log_buckets
from keras_tx.layers.relative_embeddings import RelativeEmbeddings
from tests.drawing import as_numpy, draw, redraw
from tests.naming import shown
from tests.tolerances import HALF, assert_close

WIDTH, HEADS = 16, 2
OPTIONS: list[dict[str, Any]] = [
    {"buckets": 8, "max_distance": 24},
    {"buckets": 4, "max_distance": 5, "shared_projections": False},
    {"buckets": None, "max_distance": 6},
    {"buckets": 8, "max_distance": 24, "content_to_position": False},
    {"buckets": 6, "max_distance": 9, "position_to_content": False, "shared_projections": False},
]


def with_positions(x: np.ndarray, **options: Any) -> tuple[DisentangledAttention, np.ndarray]:
    layer = DisentangledAttention(HEADS, **options)
    positions = draw(layer.position_count, x.shape[-1], seed=3)
    layer(x, positions=positions)
    return redraw(layer), positions


def expected(
    layer: DisentangledAttention, x: np.ndarray, positions: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The formula in float64, one query and one key after the other: outputs and weights."""

    def heads(dense: keras.layers.Dense, values: np.ndarray) -> np.ndarray:
        y = values.astype("float64") @ as_numpy(dense.kernel) + as_numpy(dense.bias)
        return y.reshape(*values.shape[:-1], HEADS, layer.size)

    q, k, v = (heads(dense, x) for dense in (layer.query, layer.key, layer.value))
    as_keys = heads(layer.position_key, positions)
    as_queries = heads(layer.position_query, positions)
    places = layer.places()
    n, reach = x.shape[1], layer.max_distance
    scores = np.einsum("bihd,bjhd->bhij", q, k)
    for i in range(n):
        for j in range(n):
            place = places[np.clip(i - j, -reach, reach) + reach]
            if layer.content_to_position:
                scores[:, :, i, j] += np.einsum("bhd,hd->bh", q[:, i], as_keys[place])
            if layer.position_to_content:
                scores[:, :, i, j] += np.einsum("bhd,hd->bh", k[:, j], as_queries[place])
    terms = 1 + layer.content_to_position + layer.position_to_content
    scores = np.where(mask[:, None, None] == 1, scores / np.sqrt(terms * layer.size), -1e30)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    attended = np.einsum("bhij,bjhd->bihd", weights, v).reshape(*x.shape)
    return attended @ as_numpy(layer.output_projection.kernel) + as_numpy(
        layer.output_projection.bias
    ), weights


@pytest.mark.parametrize("options", OPTIONS, ids=shown)
@pytest.mark.parametrize("tokens", [1, 2, 5, 40])
def test_equals_the_formula(options: dict[str, Any], tokens: int):
    x = draw(2, tokens, WIDTH)
    layer, positions = with_positions(x, **options)
    mask = np.ones((2, tokens), "int32")
    mask[1, (tokens + 1) // 2 :] = 0
    output, weights = layer(x, positions=positions, padding_mask=mask, return_attention_scores=True)
    for mine, theirs in zip((output, weights), expected(layer, x, positions, mask), strict=True):
        assert_close(as_numpy(mine), theirs)


@pytest.mark.parametrize("options", OPTIONS, ids=shown)
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_equals_transformers(options: dict[str, Any], tokens: int):
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    deberta = pytest.importorskip(
        "transformers.models.deberta_v2.modeling_deberta_v2", reason='pip install "keras-tx[parity]"'
    )
    x = draw(2, tokens, WIDTH)
    layer, positions = with_positions(x, **options)
    terms = {"c2p": layer.content_to_position, "p2c": layer.position_to_content}
    config = deberta.DebertaV2Config(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        relative_attention=True,
        share_att_key=layer.shared_projections,
        pos_att_type=[name for name, is_on in terms.items() if is_on],
        position_buckets=layer.buckets or -1,
        max_relative_positions=layer.max_distance,
    )
    theirs = deberta.DebertaV2Attention(config).eval()
    parts = {"query_proj": layer.query, "key_proj": layer.key, "value_proj": layer.value}
    if not layer.shared_projections:
        parts |= {"pos_key_proj": layer.position_key} if layer.content_to_position else {}
        parts |= {"pos_query_proj": layer.position_query} if layer.position_to_content else {}
    attention = theirs.self
    for name, dense in parts.items():
        getattr(attention, name).weight.data = torch.tensor(as_numpy(dense.kernel).T.copy())
        getattr(attention, name).bias.data = torch.tensor(as_numpy(dense.bias))
    mask = np.ones((2, tokens), "int32")
    mask[1, (tokens + 1) // 2 :] = 0
    with torch.no_grad():
        pairs = torch.tensor(mask[:, None, :, None] * mask[:, None, None, :])
        context, weights = attention(torch.tensor(x), pairs, True, rel_embeddings=torch.tensor(positions))
    output, mine = layer(x, positions=positions, padding_mask=mask, return_attention_scores=True)
    real = mask == 1
    assert_close(np.moveaxis(as_numpy(mine), 1, 2)[real], np.moveaxis(weights.numpy(), 1, 2)[real])
    last = layer.output_projection
    projected = context.numpy() @ as_numpy(last.kernel) + as_numpy(last.bias)
    assert_close(as_numpy(output)[real], projected[real])


def test_buckets_equal_transformers():
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    deberta = pytest.importorskip(
        "transformers.models.deberta_v2.modeling_deberta_v2", reason='pip install "keras-tx[parity]"'
    )
    for buckets in (4, 6, 16, 32, 256, 512):
        for distance in (buckets // 2 + 2, buckets, 2 * buckets, 512, 4096):
            if distance < buckets // 2 + 2:
                continue
            offsets = np.arange(-distance - 50, distance + 51)
            theirs = deberta.make_log_bucket_position(torch.tensor(offsets), buckets, distance).numpy()
            np.testing.assert_array_equal(log_buckets(offsets, buckets, distance), theirs)
            layer = DisentangledAttention(1, distance, buckets)
            mine = layer.places()[np.clip(offsets, -distance, distance) + distance]
            np.testing.assert_array_equal(mine, np.clip(theirs + buckets, 0, 2 * buckets - 1))


def test_masks_and_a_bias_apply_too():
    x = draw(2, 6, WIDTH)
    layer, positions = with_positions(x, buckets=4, max_distance=5)
    bias, near = draw(2, 6, 6, seed=5), np.tri(6, dtype=bool)
    _, plain = layer(x, positions=positions, return_attention_scores=True)
    _, weights = layer(x, positions=positions, bias=bias, attention_mask=near, return_attention_scores=True)
    theirs = as_numpy(plain) * np.exp(bias)[:, None] * near
    assert_close(as_numpy(weights), theirs / theirs.sum(-1, keepdims=True))


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
@pytest.mark.parametrize("options", OPTIONS[:2], ids=shown)
def test_keras_checks(run_layer_test: Any, options: dict[str, Any]):
    rows = DisentangledAttention(HEADS, **options).position_count
    run_layer_test(
        DisentangledAttention,
        init_kwargs={"num_heads": HEADS, "position_dropout": 0.1, **options},
        call_kwargs={"positions": keras.ops.convert_to_tensor(draw(rows, WIDTH))},
        input_shape=(2, 6, WIDTH),
        expected_output_shape=(2, 6, WIDTH),
        expected_num_trainable_weights=8 if layer_shares(options) else 12,
        expected_num_seed_generators=1,
        expected_num_losses=0,
        supports_masking=True,
        run_training_check=False,
        run_mixed_precision_check=False,
    )


def layer_shares(options: dict[str, Any]) -> bool:
    return options.get("shared_projections", True)


@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")
def test_keras_checks_of_the_embeddings(run_layer_test: Any):
    run_layer_test(
        RelativeEmbeddings,
        init_kwargs={"count": 8, "width": 6, "norm_epsilon": 0.1},
        input_shape=(2, 3),
        input_dtype="int32",
        expected_output_shape=(8, 6),
        expected_num_trainable_weights=3,
        supports_masking=True,
        run_training_check=False,
        run_mixed_precision_check=False,
    )


@pytest.mark.parametrize("options", OPTIONS, ids=shown)
def test_it_is_saved_with_its_options(options: dict[str, Any], tmp_path):
    x = keras.Input((None, WIDTH))
    count = DisentangledAttention(HEADS, **options).position_count
    positions = RelativeEmbeddings(count, WIDTH, name="positions")(x)
    y = DisentangledAttention(HEADS, **options, position_dropout=0.2, name="attention")(
        x, positions=positions
    )
    model = redraw(keras.Model(x, y))
    model.save(tmp_path / "x.keras")
    loaded = keras.models.load_model(tmp_path / "x.keras")
    for name in ("attention", "positions"):
        assert loaded.get_layer(name).get_config() == model.get_layer(name).get_config()
    inputs = draw(2, 7, WIDTH)
    np.testing.assert_array_equal(as_numpy(loaded(inputs)), as_numpy(model(inputs)))


@pytest.mark.parametrize("policy", HALF)
def test_half_precision(policy: str):
    x = draw(2, 6, WIDTH)
    layer, positions = with_positions(x, buckets=4, max_distance=5)
    half = DisentangledAttention.from_config({**layer.get_config(), "dtype": policy})
    half(x, positions=positions)
    half.set_weights(layer.get_weights())
    result = half(x, positions=positions)
    assert keras.backend.standardize_dtype(result.dtype) == policy.removeprefix("mixed_")
    both = as_numpy(keras.ops.cast(result, "float32")), as_numpy(layer(x, positions=positions))
    assert_close(*both, 2 * HALF[policy])  # of the positions too


def test_embeddings_are_normalized():
    layer = RelativeEmbeddings(5, 8, norm_epsilon=0.1)
    layer(np.zeros((1, 2)))
    redraw(layer)
    table, gamma, beta = (as_numpy(weight).astype("float64") for weight in layer.weights)
    centered = table - table.mean(-1, keepdims=True)
    theirs = centered / np.sqrt(table.var(-1, keepdims=True) + 0.1) * gamma + beta
    assert_close(as_numpy(layer(np.zeros((1, 2)))), theirs)
    plain = RelativeEmbeddings(5, 8, normalize=False)
    np.testing.assert_array_equal(as_numpy(plain(np.zeros((1, 2)))), as_numpy(plain.weights[0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckets": 5}, "buckets is 5, expected an even number, 4 or more"),
        ({"buckets": 2}, "buckets is 2"),
        ({"buckets": 16, "max_distance": 9}, "max_distance is 9, expected 10 or more for buckets=16"),
        ({"content_to_position": False, "position_to_content": False}, "position_to_content=False"),
        ({"causal": True}, "causal=True, which a DisentangledAttention does not support"),
        ({"kv_heads": 1}, "kv_heads=1"),
        ({"rotary_base": 100.0}, "rotary_base=100.0"),
        ({"relative_grid": 9}, "relative_grid=9"),
        ({"qk_norm": True}, "qk_norm=True"),
    ],
)
def test_unsupported_options_raise(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        DisentangledAttention(HEADS, **options)


def test_unsupported_calls_raise():
    x = draw(1, 3, WIDTH)
    layer = DisentangledAttention(HEADS, buckets=4)
    with pytest.raises(ConfigError, match=r"positions has the shape None.*\(8, 16\)"):
        layer(x)
    with pytest.raises(ConfigError, match=r"positions has the shape \(4, 16\)"):
        layer(x, positions=draw(4, WIDTH))
    with pytest.raises(ConfigError, match="called with value="):
        layer(x, x, positions=draw(8, WIDTH))
