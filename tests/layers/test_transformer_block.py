from __future__ import annotations

import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.layers import TransformerBlock
from tests.drawing import as_numpy, built, draw
from tests.tolerances import HALF, assert_close

PADDING = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)


def normalized(layer, x: np.ndarray, kind: str, epsilon: float) -> np.ndarray:
    x = x.astype("float64")
    gamma, *beta = map(as_numpy, layer.weights)
    if kind == "rms":
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * gamma
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * gamma + beta[0]


@pytest.mark.parametrize("layer_scale", [None, 0.1])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_is_attention_and_feed_forward_with_norm_and_residual(norm_position, norm, layer_scale):
    x = draw(2, 5, 8)
    epsilon = 0.3  # large enough to show
    config = {
        "norm": norm,
        "norm_position": norm_position,
        "norm_epsilon": epsilon,
        "layer_scale": layer_scale,
    }
    block = built(TransformerBlock(2, 12, **config), x)

    def half(x, sublayer, norm_layer, scale):
        pre = norm_position == "pre"
        inner = normalized(norm_layer, x, norm, epsilon) if pre else x
        factor = 1.0 if scale is None else as_numpy(scale)
        y = x + factor * as_numpy(sublayer(inner.astype("float32")))
        return y if pre else normalized(norm_layer, y, norm, epsilon)

    expected = half(x, block.attention, block.attention_norm, block.attention_scale)
    expected = half(expected, block.feed_forward, block.feed_forward_norm, block.feed_forward_scale)
    assert_close(as_numpy(block(x)), expected)


def test_layer_scale_starts_at_its_value():
    block = TransformerBlock(2, 12, layer_scale=1e-5)
    block.build((None, None, 8))
    for scale in (block.attention_scale, block.feed_forward_scale):
        np.testing.assert_array_equal(as_numpy(scale), np.full(8, 1e-5, "float32"))


def test_both_attentions_normalize_query_and_key_with_the_epsilon_of_the_block():
    options = {"norm_epsilon": 1e-3, "qk_norm": True, "cross_attention": True}
    block = TransformerBlock.from_config(TransformerBlock(2, 12, **options).get_config())
    block.build((None, None, 8), (None, None, 6))
    for attention in (block.attention, block.cross_attention):
        for norm in (attention.query_norm, attention.key_norm):
            assert (tuple(norm.gamma.shape), norm.epsilon) == ((4,), 1e-3)


@pytest.mark.parametrize("masked", [False, True], ids=["", "padding"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_equals_torch(norm_position, activation, masked):
    torch = pytest.importorskip("torch", reason='needs torch: pip install "keras-tx[parity]"')
    x = draw(2, 5, 8)
    ours = built(
        TransformerBlock(2, 12, activation=activation, norm_position=norm_position, norm_epsilon=1e-5), x
    )
    theirs = torch.nn.TransformerEncoderLayer(
        8,
        2,
        12,
        activation=activation,
        batch_first=True,
        norm_first=norm_position == "pre",
        layer_norm_eps=1e-5,
    ).eval()

    def weights(*layers):
        return [
            torch.from_numpy(np.concatenate([as_numpy(getattr(layer, name)).T for layer in layers]))
            for name in (("gamma", "beta") if hasattr(layers[0], "gamma") else ("kernel", "bias"))
        ]

    attention, feed_forward = ours.attention, ours.feed_forward
    theirs.load_state_dict(
        {
            f"{name}weight" if i == 0 else f"{name}bias": value
            for name, layers in {
                "self_attn.in_proj_": (attention.query, attention.key, attention.value),
                "self_attn.out_proj.": (attention.output_projection,),
                "linear1.": (feed_forward.up,),
                "linear2.": (feed_forward.down,),
                "norm1.": (ours.attention_norm,),
                "norm2.": (ours.feed_forward_norm,),
            }.items()
            for i, value in enumerate(weights(*layers))
        }
    )
    ignored = torch.from_numpy(~PADDING) if masked else None
    expected = theirs(torch.from_numpy(x), src_key_padding_mask=ignored).detach().numpy()
    assert_close(as_numpy(ours(x, padding_mask=PADDING if masked else None)), expected)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_decoder_block_equals_torch(norm_position):
    torch = pytest.importorskip("torch", reason='needs torch: pip install "keras-tx[parity]"')
    x, encoded = draw(2, 5, 8), draw(2, 7, 8, seed=2)
    config = {"norm_position": norm_position, "norm_epsilon": 1e-5, "activation": "relu"}
    ours = built(TransformerBlock(2, 12, causal=True, cross_attention=True, **config), x, encoded)
    theirs = torch.nn.TransformerDecoderLayer(
        8, 2, 12, batch_first=True, norm_first=norm_position == "pre", layer_norm_eps=1e-5
    ).eval()

    def assign(parameters, *layers):
        for parameter, name in zip(parameters, ("kernel", "bias"), strict=True):
            parts = [as_numpy(getattr(layer, name)).T for layer in layers]
            parameter.data = torch.from_numpy(np.concatenate(parts))

    for attention, name in ((ours.attention, "self_attn"), (ours.cross_attention, "multihead_attn")):
        module = getattr(theirs, name)
        packed = (module.in_proj_weight, module.in_proj_bias)
        assign(packed, attention.query, attention.key, attention.value)
        assign((module.out_proj.weight, module.out_proj.bias), attention.output_projection)
    for dense, name in ((ours.feed_forward.up, "linear1"), (ours.feed_forward.down, "linear2")):
        assign((getattr(theirs, name).weight, getattr(theirs, name).bias), dense)
    for index, norm in enumerate((ours.attention_norm, ours.cross_attention_norm, ours.feed_forward_norm)):
        module = getattr(theirs, f"norm{index + 1}")
        module.weight.data, module.bias.data = (torch.from_numpy(as_numpy(w)) for w in norm.weights)

    padding = np.array([[1] * 7, [1, 1, 1, 1, 0, 0, 0]], bool)
    expected = theirs(
        torch.from_numpy(x),
        torch.from_numpy(encoded),
        tgt_mask=torch.nn.Transformer.generate_square_subsequent_mask(5),
        memory_key_padding_mask=torch.from_numpy(~padding),
    )
    output, own, cross = as_numpy(ours(x, encoded, value_padding_mask=padding, return_attention_scores=True))
    assert_close(output, expected.detach().numpy())
    assert own.shape == (2, 2, 5, 5) and cross.shape == (2, 2, 5, 7)
    assert (own[..., np.triu_indices(5, 1)[0], np.triu_indices(5, 1)[1]] == 0).all()
    assert (cross[1, ..., 4:] == 0).all()
    masked = as_numpy(ours(x, encoded, value_attention_mask=padding[:, None].repeat(5, axis=1)))
    assert_close(masked, output)


def test_cross_attention_requires_value():
    x = draw(1, 3, 8)
    with pytest.raises(ConfigError, match="'mix' has cross_attention=True.*value="):
        TransformerBlock(2, 12, cross_attention=True, name="mix")(x)
    for name in ("value", "value_padding_mask", "value_attention_mask"):
        with pytest.raises(ConfigError, match=f"'mix' was called with {name}="):
            TransformerBlock(2, 12, name="mix")(x, **{name: np.ones((1, 3, 8), "int32")})


def test_bias_and_positions_reach_the_attention():
    x, bias, positions = draw(2, 5, 8), draw(1, 2, 5, 5, seed=3), np.array([[0, 1, 1, 4, 9]])
    block = built(TransformerBlock(2, 12, rotary_base=1e4, causal=True), x)
    plain = as_numpy(block(x))
    biased = as_numpy(block(x, bias=bias, positions=positions))
    assert (biased[:, 1:] != plain[:, 1:]).any(axis=-1).all()
    inner = block.attention_norm(x)
    y = x + as_numpy(block.attention(inner, bias=bias, positions=positions))
    assert_close(biased, y + as_numpy(block.feed_forward(block.feed_forward_norm(y))))


# --- drop path and dropout -----------------------------------------------------------------------------


@pytest.mark.parametrize("half", ["attention", "feed_forward"])
def test_drop_path_drops_whole_samples_and_scales_the_others(half):
    """With the other half silent, a sample is either its input or the input plus the branch / (1 - rate)."""
    x = draw(200, 3, 8)
    block = built(TransformerBlock(2, 12, drop_path=0.25), x)
    silent = block.feed_forward.down if half == "attention" else block.attention.output_projection
    for weight in silent.weights:
        weight.assign(np.zeros(weight.shape))
    branch = as_numpy(block(x)) - x
    trained = as_numpy(block(x, training=True)) - x
    dropped = (trained == 0).all(axis=(1, 2))
    assert_close(trained[~dropped], branch[~dropped] / 0.75)
    assert 20 < dropped.sum() < 80  # 50 +- 5 standard deviations of sqrt(200 x 0.25 x 0.75)


def test_drop_path_is_independent_for_each_half():
    x = draw(200, 1, 8)
    block = built(TransformerBlock(2, 12, drop_path=0.5, layer_scale=1.0), x)
    for scale, value in ((block.attention_scale, 1e3), (block.feed_forward_scale, 1e6)):
        scale.assign(np.full(8, value))
    size = np.abs(as_numpy(block(x, training=True)) - x).max(axis=(1, 2))
    kinds = [(size == 0).sum(), ((size > 0) & (size < 1e5)).sum(), (size >= 1e5).sum()]
    assert min(kinds) > 20  # none 50, the first alone 50, the second or both 100, of 200


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "drop_path"])
def test_dropout_rates_are_only_active_in_training(rate):
    x = draw(20, 5, 8)
    plain, block = (built(TransformerBlock(2, 12, **config), x) for config in ({}, {rate: 0.5}))
    np.testing.assert_array_equal(as_numpy(block(x)), as_numpy(plain(x)))
    np.testing.assert_array_equal(as_numpy(block(x, training=False)), as_numpy(plain(x)))
    assert (as_numpy(block(x, training=True)) != as_numpy(plain(x))).any()
    assert (as_numpy(block(x, training=True)) != as_numpy(block(x, training=True))).any()


@pytest.mark.parametrize("policy", HALF)
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_half_precision_with_padding(policy, norm_position):
    x, empty = draw(2, 5, 8), np.array([[0] * 5, [1, 1, 1, 1, 0]], bool)
    config = {
        "num_heads": 2,
        "mlp_dim": 12,
        "causal": True,
        "layer_scale": 0.5,
        "norm_position": norm_position,
    }
    exact, half = (built(TransformerBlock(**config, dtype=dtype), x) for dtype in ("float32", policy))
    assert_close(as_numpy(half(x, padding_mask=empty)), as_numpy(exact(x, padding_mask=empty)), HALF[policy])


@pytest.mark.parametrize(
    "config, parts",
    [
        ({"norm": "Layer"}, ["norm='Layer'", "'layer'"]),
        ({"norm": "batch"}, ["norm='batch'", "'layer'", "'rms'"]),
        ({"norm_position": "prefix"}, ["norm_position='prefix'", "'pre'"]),
        ({"activation": "mish"}, ["activation='mish'", "swiglu"]),
        ({"kv_heads": 3}, ["num_heads=4", "kv_heads=3"]),
    ],
)
def test_errors_contain_argument_and_value(config, parts):
    with pytest.raises(ConfigError) as error:
        TransformerBlock(4, 12, **config)
    assert all(part in str(error.value) for part in parts), str(error.value)
