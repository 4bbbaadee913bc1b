"""keras-hub's layers: one Attention each, masks made in the graph and once, at every length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import keras_hub
import numpy as np
import onnx
import pytest
from keras_hub.src.models.gemma.gemma_attention import CachedGemmaAttention
from keras_hub.src.models.gemma3.gemma3_attention import CachedGemma3Attention
from keras_hub.src.models.llama.llama_attention import LlamaAttention
from keras_hub.src.models.qwen.qwen_attention import QwenAttention
from keras_hub.src.models.qwen3.qwen3_attention import Qwen3Attention

import keras_tx_onnx.lowerings.keras_hub  # noqa: F401  registers them
from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from keras_tx_onnx.reading.registry import registered
from tests.covering import covering
from tests.drawing import draw, redraw
from tests.export.exporting import example_input, example_model, exported, nodes_of, outputs_of, run
from tests.tolerances import assert_close

layers = keras_hub.layers
HUB = [
    pytest.param(lowering, id=f"{lowering.target.__module__.split('.')[-1]}.{lowering.name}")
    for lowering in registered()
    if getattr(lowering.target, "__module__", "").startswith("keras_hub.")
]


@pytest.mark.parametrize("lowering", HUB)
def test_nodes_of_each_layer(lowering, tmp_path):
    assert nodes_of(exported(example_model(lowering), tmp_path / "out")) == lowering.nodes


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("lowering", HUB)
def test_equals_keras(lowering, opset: int, tmp_path):
    model, x = example_model(lowering), example_input(lowering)
    folder = exported(model, tmp_path / "out", opset=opset)
    for got, expected in zip(run(folder, x), outputs_of(model, x), strict=True):
        assert_close(got, expected)


def model_of(layer: Any, **masks: bool) -> Any:
    """The layer on a text, with a padding mask."""
    x, mask = keras.Input((None, 16), name="x"), keras.Input((None,), dtype="int32", name="mask")
    return redraw(keras.Model([x, mask], layer(x, mask)))


def padded(batch: int, length: int, sides: str = "right") -> np.ndarray:
    """Real tokens of every second text, padded on one side; none at all in the last text of `nothing`."""
    real = np.arange(length)[None] < np.where(np.arange(batch) % 2, length, length - 2)[:, None]
    real = real[:, ::-1] if sides == "left" else real
    if sides == "nothing":
        real[-1] = False
    return real.astype("int32")


BLOCKS: dict[str, Callable[..., Any]] = {
    "encoder": lambda x, mask: layers.TransformerEncoder(24, 4)(x, padding_mask=mask),
    "encoder, dropout": lambda x, mask: layers.TransformerEncoder(24, 4, dropout=0.1)(x, padding_mask=mask),
    "first": lambda x, mask: layers.TransformerEncoder(24, 4, normalize_first=True)(x, padding_mask=mask),
    "decoder": lambda x, mask: layers.TransformerDecoder(24, 4)(x, decoder_padding_mask=mask),
    "decoder, dropout": lambda x, mask: layers.TransformerDecoder(24, 4, dropout=0.1)(
        x, decoder_padding_mask=mask
    ),
    "not causal": lambda x, mask: layers.TransformerDecoder(24, 4)(
        x, decoder_padding_mask=mask, use_causal_mask=False
    ),
    "cross": lambda x, mask: layers.TransformerDecoder(24, 4)(
        keras.layers.Dense(16)(x), x, encoder_padding_mask=mask
    ),
    "attention mask": lambda x, mask: layers.TransformerEncoder(24, 4)(
        x, padding_mask=mask, attention_mask=keras.ops.einsum("bi,bj->bij", mask, mask)
    ),
}


@covering(name=list(BLOCKS), sides=["right", "left", "nothing"], opset=[17, 23])
def test_masks_equal_keras_at_every_length(name: str, sides: str, opset: int, tmp_path):
    model = model_of(BLOCKS[name])
    folder = exported(model, tmp_path / "out", opset=opset)
    for batch, length in ((2, 5), (3, 9)):
        arrays = draw(batch, length, 16), padded(batch, length, sides)
        (got,) = run(folder, arrays[0], arrays[1].astype("int64"))
        (expected,) = outputs_of(model, *arrays)
        assert_close(got, expected)


def test_queries_and_keys_of_different_lengths(tmp_path):
    x, y = keras.Input((None, 16), name="x"), keras.Input((None, 16), name="y")
    mask = keras.Input((None,), dtype="bool", name="mask")
    out = layers.TransformerDecoder(24, 4)(x, y, encoder_padding_mask=mask)
    model = redraw(keras.Model([x, y, mask], out))
    folder = exported(model, tmp_path / "out")
    arrays = draw(2, 5, 16), draw(2, 8, 16, seed=1), padded(2, 8).astype("bool")
    (got,) = run(folder, *arrays)
    assert_close(got, *outputs_of(model, *arrays))


def test_mask_is_shared_by_all_blocks(tmp_path):
    def deep(depth: int) -> int:
        x, mask = keras.Input((None, 16), name="x"), keras.Input((None,), dtype="int32", name="mask")
        y = x
        for _ in range(depth):
            y = layers.TransformerDecoder(24, 4, dropout=0.1)(y, decoder_padding_mask=mask)
        folder = exported(redraw(keras.Model([x, mask], y)), tmp_path / str(depth))
        return nodes_of(folder).total()

    assert deep(3) - deep(2) == 15


@pytest.mark.filterwarnings("ignore:(?s).*was passed an input with a mask attached")  # by keras-hub itself
@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("kind", [layers.TransformerEncoder, layers.TransformerDecoder])
def test_mask_of_mask_zero_is_passed_to_the_block(kind, first: bool, opset: int, tmp_path):
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = layers.TokenAndPositionEmbedding(7, 12, 16, mask_zero=True)(ids)
    model = redraw(keras.Model(ids, kind(24, 4, normalize_first=first)(x)))
    folder = exported(model, tmp_path / "out", opset=opset)
    tokens = np.array([[3, 1, 4, 0, 0], [5, 2, 6, 5, 3]], "int32")
    (got,) = run(folder, tokens.astype("int64"))
    assert_close(got, *outputs_of(model, tokens))


@pytest.mark.parametrize(
    "options", [{}, {"rope_type": "yarn", "scaling_factor": 4.0}, {"scaling_factor": 2.0}]
)
def test_rotary_positions(options: dict, tmp_path):
    x = keras.Input((None, 2, 8), name="x")
    model = keras.Model(x, layers.RotaryEmbedding(**options)(x))
    folder = exported(model, tmp_path / "out")
    array = draw(2, 30, 2, 8)
    assert_close(*run(folder, array), *outputs_of(model, array))


def test_unregistered_rotary_positions_are_opened(tmp_path):
    x = keras.Input((None, 8), name="x")
    model = keras.Model(x, layers.RotaryEmbedding()(x, start_index=3))
    report = export_onnx(model, tmp_path / "out", verify=False)
    assert set(report.manifest.tiers.values()) == {"opened"}
    array = draw(2, 6, 8)
    assert_close(*run(tmp_path / "out", array), *outputs_of(model, array))


def test_explicit_positions(tmp_path):
    x = keras.Input((None, 4), name="x")
    positions = keras.Input((None,), dtype="int32", name="positions")
    layer = layers.PositionEmbedding(9)
    model = redraw(keras.Model([x, positions], layer(x, positions=positions)))
    folder = exported(model, tmp_path / "out")
    arrays = draw(2, 3, 4), np.array([[0, 4, 2], [8, 1, 1]], "int32")
    assert_close(*run(folder, arrays[0], arrays[1].astype("int64")), *outputs_of(model, *arrays))


def test_start_index(tmp_path):
    x = keras.Input((None, 4), name="x")
    model = redraw(keras.Model(x, layers.PositionEmbedding(9)(x, start_index=2)))
    array = draw(2, 5, 4)
    assert_close(*run(exported(model, tmp_path / "out"), array), *outputs_of(model, array))


ATTENTION = {
    "llama": lambda: LlamaAttention(4, 2),
    "window": lambda: QwenAttention(4, 2, use_sliding_window_attention=True, sliding_window_size=3),
    "norms and window": lambda: Qwen3Attention(4, 2, head_dim=4, sliding_window_size=2),
    "soft cap": lambda: CachedGemmaAttention(4, 4, 2, logit_soft_cap=2.0),
    "soft cap and window": lambda: CachedGemmaAttention(
        4, 4, 2, logit_soft_cap=2.0, use_sliding_window_attention=True, sliding_window_size=3
    ),
    "one plus scale": lambda: CachedGemma3Attention(4, 4, 2, use_query_key_norm=True),
    "another scale": lambda: CachedGemmaAttention(8, 4, 2, query_head_dim_normalize=False),
}


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_with_rotary_positions(name: str, opset: int, tmp_path):
    x, mask = keras.Input((None, 16), name="x"), keras.Input((None, None), dtype="int32", name="mask")
    model = redraw(keras.Model([x, mask], ATTENTION[name]()(x, attention_mask=mask)))
    folder = exported(model, tmp_path / "out", opset=opset)
    for batch, length in ((2, 5), (3, 9)):
        causal = np.tril(np.ones((length, length), "int32"))[None] * padded(batch, length, "left")[:, None]
        (got,) = run(folder, draw(batch, length, 16), causal.astype("int64"))
        (expected,) = outputs_of(model, draw(batch, length, 16), causal)
        assert_close(got, expected)


def test_cache_of_keras_hub_raises(tmp_path):
    x, cache = keras.Input((1, 16), name="x"), keras.Input((2, 8, 4, 4), name="cache")
    layer = LlamaAttention(4, 4, name="odd")
    model = keras.Model([x, cache], layer(x, cache=cache, cache_update_index=0)[0])
    with pytest.raises(ExportError, match="'odd' .*cache, cache_update_index"):
        export_onnx(model, tmp_path / "out", verify=False)


def test_tied_embeddings_are_stored_once(tmp_path):
    ids = keras.Input((None,), dtype="int32", name="ids")
    table = layers.ReversibleEmbedding(11, 8)
    model = redraw(keras.Model(ids, table(table(ids), reverse=True)))
    folder = exported(model, tmp_path / "out")
    tokens = np.array([[3, 1, 4], [10, 2, 6]], "int32")
    assert_close(*run(folder, tokens.astype("int64")), *outputs_of(model, tokens))
    graph = onnx.load(folder / "onnx" / "model.onnx").graph
    assert sum(list(weight.dims) in ([11, 8], [8, 11]) for weight in graph.initializer) == 1


def test_xlnet_equals_keras_with_every_mask(tmp_path):
    """Its encoder returns None in place of a second tensor, and its layers declare wrong shapes."""
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    model = redraw(keras_hub.models.XLNetBackbone(vocabulary_size=30, **sizes))
    folder = exported(model, tmp_path / "out")
    random = np.random.default_rng(0)
    for batch, length, sides in ((1, 5, "right"), (3, 7, "right"), (2, 6, "left"), (2, 4, "nothing")):
        mask = padded(batch, length, sides).astype("int64")
        ids, segments = random.integers(0, 30, (batch, length)), random.integers(0, 2, (batch, length))
        arrays = (mask, segments, ids)
        assert_close(*run(folder, *arrays), *outputs_of(model, *arrays))
