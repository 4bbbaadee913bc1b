"""GPT's sizes, inputs, saving, and errors."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.models.gpt.model import GPT, GPTConfig, gpt
from tests.decoder_architectures import ARCHITECTURES
from tests.drawing import as_numpy, redraw
from tests.naming import shown
from tests.tolerances import HALF, assert_close

TINY = {"width": 16, "num_heads": 2, "mlp_dim": 24, "vocabulary_size": 30, "max_length": 12}
IDS = np.array([[2, 7, 8, 3, 9, 0], [5, 11, 3, 0, 2, 29]])
VARIANTS = pytest.mark.parametrize("variant", ["pico", "llama-tiny", "char"])
WIDE_HEADS = {"width": 20, "num_heads": 3, "head_dim": 8}  # 24 channels of attention


def tiny(variant: str = "pico", **options) -> GPT:
    return redraw(gpt(variant, **{**TINY, "depth": 2, **options}))


@pytest.mark.parametrize(
    ("name", "count"),
    # GPT-2's checkpoints; nanoGPT prints 10.65 M for "char", which is without positions
    [
        ("124M", 124_439_808),
        ("355M", 354_823_168),
        ("774M", 774_030_080),
        ("1558M", 1_557_611_200),
        ("char", 10_646_784 + 256 * 384),
        ("117M", 116_534_784),  # of transformers' openai-gpt
    ],
)
def test_exact_parameters(name: str, count: int):
    assert keras_tx.cost(GPTConfig.variant(name)).params == count


# Layers, width and parameters of table 2.1 of Brown et al.
GPT_3 = {
    "125M": (12, 768, 125e6),
    "350M": (24, 1024, 350e6),
    "760M": (24, 1536, 760e6),
    "1.3B": (24, 2048, 1.3e9),
    "2.7B": (32, 2560, 2.7e9),
    "6.7B": (32, 4096, 6.7e9),
    "13B": (40, 5140, 13e9),
    "175B": (96, 12288, 175e9),
}


@pytest.mark.parametrize("name", GPT_3)
def test_sizes_of_gpt_3(name: str):
    config = GPTConfig.variant(name)
    depth, width, params = GPT_3[name]
    assert (config.depth, config.width, config.max_length) == (depth, width, 2048)
    assert config.mlp_dim == 4 * width
    cost = keras_tx.cost(config)
    assert cost.params == pytest.approx(params, rel=0.025)
    # Kaplan et al.: 2 N operations of the blocks' matrices for each token, and those of scores and logits
    assert 2 * (cost.params - 50257 * width) * 2048 < cost.flops < 3 * cost.params * 2048


@VARIANTS
def test_cost_counts_every_parameter_of_a_real_model(variant: str):
    model = tiny(variant)
    cost = keras_tx.cost(model, tokens=8)
    assert cost.params == model.count_params()
    assert None not in [layer.flops for layer in cost.layers]
    logits = 2 * 8 * 16 * 30
    flops = {layer.name: layer.flops for layer in cost.layers if layer.flops}
    assert flops.pop("token_embedding" if model.config.tied else "logits") == logits
    kv = (model.config.kv_heads or 2) * 8
    gated = 3 if model.config.activation == "swiglu" else 2
    block = 2 * 8 * (2 * 16 * 16 + 2 * 16 * kv) + 2 * 2 * 8 * 8 * 16 + 2 * 8 * gated * 16 * 24
    assert flops == {"block_0": block, "block_1": block}


@VARIANTS
def test_inputs_that_are_left_out_are_derived(variant: str):
    model = tiny(variant)
    whole = {
        "input_ids": IDS,
        "attention_mask": np.ones_like(IDS),
        "position_ids": np.broadcast_to(np.arange(6), IDS.shape),
    }
    expected = as_numpy(model(whole))
    for inputs in (IDS, IDS.tolist(), {"input_ids": IDS}, {"input_ids": IDS, "attention_mask": None}):
        np.testing.assert_array_equal(as_numpy(model(inputs)), expected)
    assert_close(model.predict(IDS, verbose=0), expected)


@VARIANTS
def test_outputs_do_not_depend_on_later_tokens(variant: str):
    model = tiny(variant)
    before, after = as_numpy(model(IDS)), as_numpy(model(np.where(np.arange(6) == 4, 1, IDS)))
    assert_close(after[:, :4], before[:, :4])
    assert np.abs(after[:, 4:] - before[:, 4:]).max() > 1e-2


@VARIANTS
def test_padding_on_either_side_changes_nothing(variant: str):
    model = tiny(variant, pad_id=29)
    plain = as_numpy(model(IDS[:1]))
    for left, right in ((3, 0), (0, 4), (2, 2)):
        padded = np.pad(IDS[:1], ((0, 0), (left, right)), constant_values=29)
        assert_close(as_numpy(model(padded))[:, left : left + 6], plain)
        masked = {"input_ids": np.where(padded == 29, 1, padded), "attention_mask": padded != 29}
        assert_close(as_numpy(model(masked))[:, left : left + 6], plain)


@VARIANTS
def test_a_row_of_only_padding_is_finite(variant: str):
    logits = tiny(variant)({"input_ids": IDS, "attention_mask": np.zeros_like(IDS)})
    assert np.isfinite(as_numpy(logits)).all()


def test_a_head_dim_need_not_divide_the_width():
    model = tiny(**WIDE_HEADS)
    assert model.get_layer("block_0").attention.query.kernel.shape == (20, 24)
    assert model.config.head_size == 8 and np.isfinite(as_numpy(model(IDS))).all()
    with pytest.raises(ConfigError, match="width=20 is not divisible by num_heads=3"):
        tiny(width=20, num_heads=3)


def test_biases_equal_to_the_others_are_the_default():
    assert GPTConfig.variant("pico", qkv_bias=True) == GPTConfig.variant("pico")
    with pytest.raises(ConfigError, match="norm_position='sandwich'.*'pre', 'post'"):
        gpt("pico", norm_position="sandwich")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_are_saved_and_generate(name: str, tmp_path):
    variant, options = ARCHITECTURES[name]
    model = tiny(variant, **options)
    assert GPTConfig(**dataclasses.asdict(model.config)) == model.config
    assert keras_tx.cost(model, tokens=8).params == model.count_params()
    model.save(tmp_path / "model.keras")
    loaded = keras_tx.load_model(tmp_path / "model.keras")
    assert loaded.config == model.config
    np.testing.assert_array_equal(as_numpy(loaded(IDS)), as_numpy(model(IDS)))
    cached = keras_tx.generate(model, [3, 1, 2], max_new_tokens=5).ids
    assert cached == tuple(greedy(model, [3, 1, 2], 5))
    model.compile("sgd")
    assert np.isfinite(model.fit(IDS, np.roll(IDS, -1, 1), verbose=0).history["loss"][0])


def greedy(model: GPT, ids: list[int], count: int) -> list[int]:
    """The most probable tokens, each computed from the whole text."""
    start = len(ids)
    for _ in range(count):
        ids = [*ids, int(as_numpy(model(np.array([ids])))[0, -1].argmax())]
    return ids[start:]


def test_position_ids_are_used():
    for variant in ("pico", "llama-tiny"):
        model = tiny(variant)
        later = {"input_ids": IDS, "position_ids": np.broadcast_to([0, 1, 2, 7, 8, 9], IDS.shape)}
        assert np.abs(as_numpy(model(later)) - as_numpy(model(IDS))).max() > 1e-3


def test_rotary_positions_are_relative():
    model = tiny("llama-tiny")
    shifted = {"input_ids": IDS, "position_ids": np.broadcast_to(np.arange(6) + 5, IDS.shape)}
    assert_close(as_numpy(model(shifted)), as_numpy(model(IDS)))


def test_without_biases_there_is_none():
    assert not [v.path for v in tiny("char").weights if v.name in ("bias", "beta")]
    assert not [v.path for v in tiny("llama-tiny").weights if v.name in ("bias", "beta")]


def test_tied_logits_are_one_variable():
    for tied, count in ((True, 1), (False, 2)):
        shapes = [sorted(v.shape) for v in tiny(tied=tied).weights]
        assert shapes.count([16, 30]) == count


def test_model_without_head_returns_hidden_states():
    model, headless = tiny(), gpt("pico", **TINY, depth=2, head=None)
    headless.set_weights(model.get_weights())
    assert headless.output_shape == (None, None, 16)
    table = as_numpy(model.get_layer("token_embedding").table)
    assert_close(as_numpy(headless(IDS)) @ table.T, as_numpy(model(IDS)))


def test_initialization_is_that_of_the_paper():
    model = gpt("pico", width=64, depth=8)
    block = model.get_layer("block_3")
    for layer in (block.attention.query, block.feed_forward.up, model.get_layer("token_embedding")):
        assert as_numpy(layer.weights[0]).std() == pytest.approx(0.02, rel=0.05)
    for layer in (block.attention.output_projection, block.feed_forward.down):
        assert as_numpy(layer.kernel).std() == pytest.approx(0.02 / 4, rel=0.05)


@pytest.mark.parametrize(
    "variant", ["pico", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("char", "llama-tiny"))]
)
def test_training_continues_after_saving(variant: str, tmp_path):
    head = keras_tx.CausalLMHead(label_smoothing=0.1)
    model = tiny(variant, depth=1, head=head, dropout=0.0, attention_dropout=0.0)
    tokens = np.tile(np.arange(8), (4, 1)) + np.arange(4)[:, None]
    x, y = tokens[:, :-1], np.where(tokens[:, 1:] == 5, -100, tokens[:, 1:])
    model.compile(keras_tx.AdamW(3e-3), jit_compile=False)
    history = model.fit(x, y, epochs=3, verbose=0, shuffle=False).history
    assert history["loss"][-1] < history["loss"][0]
    assert set(history) == {"loss", "accuracy", "perplexity"}
    model.save(tmp_path / "model.keras")
    loaded = keras_tx.load_model(tmp_path / "model.keras")
    assert type(loaded) is GPT
    assert (loaded.config, loaded.head) == (model.config, head)
    assert loaded.get_config() == model.get_config()
    np.testing.assert_array_equal(as_numpy(loaded(x)), as_numpy(model(x)))
    assert int(loaded.optimizer.iterations) == 3
    loaded.run_eagerly = True
    assert loaded.fit(x, y, verbose=0, shuffle=False).history["loss"][0] < history["loss"][0]


@VARIANTS
@pytest.mark.parametrize("policy", HALF)
def test_logits_are_float32_under_every_policy(variant: str, policy: str):
    model = tiny(variant, depth=1)
    half = keras_tx.from_checkpoint(model, dtype=policy)
    logits = half(IDS)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert_close(as_numpy(logits), as_numpy(model(IDS)), 3 * HALF[policy])  # embedding, block, norm


def test_from_config_of_get_config():
    for variant in ("pico", "llama-tiny"):
        model = tiny(variant)
        assert GPT.from_config(model.get_config()).get_config() == model.get_config()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gpt("124m"), r"variant='124m' is unknown.*'124M'"),
        (lambda: gpt("pico", block_size=7), r"no field 'block_size'"),
        (lambda: gpt("pico", num_heads=5), r"width=32 is not divisible by num_heads=5"),
        (lambda: gpt("pico", width="wide"), r"width is 'wide', expected a whole number"),
        (lambda: gpt("llama-tiny", kv_heads=3), r"num_heads=4 is not divisible by kv_heads=3"),
        (lambda: gpt("pico", kv_heads=0), r"kv_heads is 0"),
        (lambda: gpt("pico", positions="rotery"), r"positions='rotery' is unknown.*'rotary'"),
        (lambda: gpt("pico", positions="rotary", width=6), r"6 / 2 = 3"),
        (lambda: gpt("pico", norm="rmsnorm"), r"norm='rmsnorm' is unknown.*'rms'"),
        (lambda: gpt("pico", activation="gelu_new"), r"activation='gelu_new' is unknown.*'gelu'"),
        (lambda: gpt("pico", pad_id=256), r"pad_id=256"),
        (lambda: gpt("pico", dropout=-0.1), r"dropout is -0.1"),
        (lambda: gpt("pico", head=keras_tx.MaskedLMHead()), r"head=MaskedLMHead"),
        (lambda: keras_tx.CausalLMHead(label_smoothing=1), r"label_smoothing is 1"),
        (lambda: tiny()(np.ones((1, 13), "int32")), r"length 13.*max_length=12.*max_length=13"),
        (lambda: tiny()(np.array([[30]])), r"input_ids has 30 in row 0.*0 to 29"),
        (
            lambda: tiny()({"input_ids": IDS, "position_ids": IDS + 5}),
            r"position_ids has 12 in row 0.*0 to 11",
        ),
        (lambda: tiny()({"input_ids": IDS, "token_type_ids": IDS}), r"no input 'token_type_ids'"),
    ],
    ids=shown,
)
def test_errors(call, message: str):
    with pytest.raises(ConfigError, match=message):
        call()
