"""Models that Keras quantized to int4, GPTQ, AWQ or float8: the file has its numbers, and equals Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest
from keras import layers, quantizers

import keras_tx
from keras_tx.cli import main
from keras_tx.errors import ConfigError, ExportError
from keras_tx.runtime import load
from keras_tx_onnx import compare, export_onnx, tolerances
from keras_tx_onnx.graph.integer_weights import IntegerWeight, Layout
from keras_tx_onnx.reading import quantized_layers
from tests.covering import covering
from tests.drawing import redraw
from tests.export.exporting import exported, nodes_of, outputs_of, run
from tests.tolerances import assert_close

# model.quantize warns for every layer that it cannot quantize.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have a `quantize` method implemented:UserWarning",
    "ignore:Invalid quantization mode. Expected one of:UserWarning",
)

WIDTH = 40
IDS = 30


def dense() -> list[Any]:
    return [layers.Dense(11, activation="relu"), layers.Dense(7, use_bias=False)]


def heads() -> list[Any]:
    return [
        layers.EinsumDense("abc,cde->abde", (None, 2, 4), bias_axes="de"),
        layers.EinsumDense("abcd,cde->abe", (None, 9), bias_axes="e"),
    ]


def transposed() -> list[Any]:
    """Products that are no MatMul of the kernel as it is stored."""
    return [
        layers.EinsumDense("abc,dc->abd", (None, 12), bias_axes="d"),
        layers.EinsumDense("abc,cde->abde", (None, 2, 60), bias_axes="e"),
    ]


def model_of(body: list[Any]) -> Any:
    """A model that looks up ids and applies the layers."""
    ids = x = keras.Input((None,), name="ids", dtype="int32")
    for layer in (layers.Embedding(IDS, WIDTH), *body):
        x = layer(x)
    return redraw(keras.Model(ids, x))


def calibrated(body: list[Any], mode: str, *after: Any, **options: Any) -> Any:
    """The model, quantized with calibration on random ids; layers `after` the body are not calibrated."""
    model = model_of([*body, *after])
    config = {"gptq": quantizers.GPTQConfig, "awq": quantizers.AWQConfig}[mode](
        dataset=list(np.random.default_rng(0).integers(0, IDS, (6, 8))),
        tokenizer=str,
        num_samples=6,
        sequence_length=8,
        quantization_layer_structure={
            "pre_block_layers": [model.layers[1]],
            "sequential_blocks": [keras.Sequential(body)],
        },
        **options,
    )
    model.quantize(mode, config=config)
    return model


def check(model: Any, folder: Path, **options: Any) -> None:
    """Compares the exported model with Keras at sizes that the export did not see."""
    exported(model, folder, **options)
    for batch, length in ((1, 3), (4, 7)):
        ids = np.random.default_rng(length).integers(0, IDS, (batch, length))
        for computed, expected in zip(run(folder, ids), outputs_of(model, ids), strict=True):
            assert_close(computed, expected)


def stored(folder: Path) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in onnx.load(folder / "onnx/model.onnx").graph.initializer}


def integers_in(folder: Path) -> set[str]:
    return {name for name, x in stored(folder).items() if x.data_type == onnx.TensorProto.UINT8}


def largest_float(folder: Path) -> int:
    tensors = stored(folder).values()
    return max(np.prod(x.dims, dtype=int) for x in tensors if x.data_type == onnx.TensorProto.FLOAT)


# -- int4 ---------------------------------------------------------------------------------------------------


@covering(body=[dense, heads], block_size=[None, 16, 24, 32, 128], opset=[17, 23])
def test_int4(body, block_size: int | None, opset: int, tmp_path):
    model = model_of(body())
    model.quantize(config=quantizers.Int4QuantizationConfig(block_size=block_size))
    check(model, tmp_path / "out", opset=opset)
    nodes = nodes_of(tmp_path / "out")
    assert (nodes["MatMulNBits"], nodes["MatMul"], nodes["Einsum"]) == (2, 0, 0)
    assert len([name for name in integers_in(tmp_path / "out") if name.endswith("_q4")]) == 3
    assert largest_float(tmp_path / "out") <= IDS * 3  # scales


@pytest.mark.parametrize("body", [dense, heads], ids=lambda body: body.__name__)
def test_int4_with_rounded_inputs(body, tmp_path):
    model = model_of(body())
    quantizer = quantizers.AbsMaxQuantizer()
    config = quantizers.Int4QuantizationConfig(activation_quantizer=quantizer, block_size=None)
    model.quantize(config=config, filters="dense")
    check(model, tmp_path / "out")
    report = export_onnx(model, tmp_path / "verified")
    assert report.manifest.precisions == {"int4": "onnx/model.onnx"}
    assert report.manifest.parity.tolerance == tolerances.INT8
    assert "4-bit weights and inputs rounded to int8 in quantized layers" in str(report)


def test_int4_of_rounded_inputs_and_no_plain_product_raises(tmp_path):
    model = model_of(transposed())
    config = quantizers.Int4QuantizationConfig(
        activation_quantizer=quantizers.AbsMaxQuantizer(), block_size=None
    )
    model.quantize(config=config, filters="dense")
    with pytest.raises(ExportError, match="equation='abc,dc->abd', which cannot be written"):
        export_onnx(model, tmp_path / "out")


@pytest.mark.parametrize("block_size", [None, 16])
def test_int4_of_other_products(block_size: int | None, tmp_path):
    model = model_of(transposed())
    model.quantize(config=quantizers.Int4QuantizationConfig(block_size=block_size))
    check(model, tmp_path / "out")
    assert largest_float(tmp_path / "out") <= 120 * 3


@covering(tied=[True, False], rank=[2, 3], block_size=[None, 16, 24])
def test_reversible_embedding(tied: bool, rank: int, block_size: int | None, tmp_path):
    ids = keras.Input((None,), name="ids", dtype="int32")
    layer = layers.ReversibleEmbedding(IDS, 37, tie_weights=tied, logit_soft_cap=5.0)
    x = layer(ids)
    model = redraw(keras.Model(ids, layer(x if rank == 3 else x[:, 0], reverse=True)))
    model.quantize(config=quantizers.Int4QuantizationConfig(block_size=block_size))
    check(model, tmp_path / "out")
    assert nodes_of(tmp_path / "out")["MatMulNBits"] == 1
    tables = [name for name in integers_in(tmp_path / "out") if name.endswith("_q4")]
    assert len(tables) == (1 if tied else 2)
    assert largest_float(tmp_path / "out") <= IDS * 3


def test_reversible_embedding_with_rounded_inputs(tmp_path):
    ids = keras.Input((None,), name="ids", dtype="int32")
    layer = layers.ReversibleEmbedding(IDS, 32)
    model = redraw(keras.Model(ids, layer(layer(ids), reverse=True)))
    config = quantizers.Int4QuantizationConfig(
        activation_quantizer=quantizers.AbsMaxQuantizer(axis=-1), block_size=None
    )
    model.quantize(config=config)
    check(model, tmp_path / "out")


@pytest.mark.parametrize("mode", [None, "int4", "int8"])
def test_mask_of_reversible_embedding(mode: str | None, tmp_path):
    """Quantized, Keras's layer passes on no mask."""
    ids = keras.Input((None,), name="ids", dtype="int32")
    layer = layers.ReversibleEmbedding(IDS, 32, mask_zero=True)
    model = redraw(keras.Model(ids, layers.GlobalAveragePooling1D()(layer(ids))))
    if mode is not None:
        model.quantize(mode)
    ids = np.array([[3, 0, 5], [0, 0, 7]])
    folder = exported(model, tmp_path / "out")
    assert_close(*run(folder, ids), *outputs_of(model, ids))


# -- calibrated modes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [dense, heads, transposed], ids=lambda body: body.__name__)
@pytest.mark.parametrize(
    "options",
    [
        {"group_size": -1},
        {"group_size": 16},
        {"group_size": 20, "activation_order": True},
        {"group_size": 32, "symmetric": True},
        {"weight_bits": 8, "group_size": 16, "activation_order": True},
        {"weight_bits": 3, "group_size": 10},
        {"weight_bits": 2, "group_size": -1, "per_channel": False},
    ],
    ids=str,
)
def test_gptq(options: dict[str, Any], body, tmp_path):
    model = calibrated(body(), "gptq", **options)
    check(model, tmp_path / "out")
    bits = 8 if options.get("weight_bits") == 8 else 4
    assert len([name for name in integers_in(tmp_path / "out") if name.endswith(f"_q{bits}")]) == 2
    if body is not transposed:
        assert nodes_of(tmp_path / "out")["MatMulNBits"] == 2


@pytest.mark.parametrize("body", [dense, heads, transposed], ids=lambda body: body.__name__)
@pytest.mark.parametrize("group_size", [-1, 16, 20])
def test_awq(group_size: int, body, tmp_path):
    model = calibrated(body(), "awq", group_size=group_size)
    for layer in model.layers[2:]:
        layer.awq_scales.assign(np.random.default_rng(0).uniform(0.5, 2, layer.awq_scales.shape))
    check(model, tmp_path / "out")
    assert len([name for name in integers_in(tmp_path / "out") if name.endswith("_q4")]) == 2


def test_zero_points_out_of_range(tmp_path):
    """Keras's zero point of a group without positive weights is above 15."""
    model = calibrated(dense(), "gptq", group_size=16)
    layer = model.layers[2]
    layer.kernel_zero.assign(np.random.default_rng(0).integers(0, 25, layer.kernel_zero.shape))
    check(model, tmp_path / "out")
    assert nodes_of(tmp_path / "out")["MatMulNBits"] == 1
    assert largest_float(tmp_path / "out") <= IDS * WIDTH


@pytest.mark.parametrize("mode", ["gptq", "awq"])
def test_layer_that_is_not_calibrated_stays_float(mode: str, tmp_path):
    """Keras calibrates the layers of its blocks only."""
    model = calibrated(dense(), mode, layers.Dense(5, name="head"))
    check(model, tmp_path / "out")
    nodes = nodes_of(tmp_path / "out")
    assert (nodes["MatMulNBits"], nodes["MatMul"]) == (2, 1)


# -- float8 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [dense, heads], ids=lambda body: body.__name__)
def test_float8(body, tmp_path):
    model = model_of(body())
    model.quantize("float8")
    for layer in model.layers[2:]:
        layer.inputs_scale.assign(0.013)
        layer.kernel_scale.assign(0.0021)
    check(model, tmp_path / "out")
    kinds = [x.data_type for x in stored(tmp_path / "out").values()]
    assert kinds.count(onnx.TensorProto.FLOAT8E4M3FN) == 2
    report = export_onnx(model, tmp_path / "verified")
    assert report.manifest.precisions == {"float8": "onnx/model.onnx"}
    assert report.manifest.parity.tolerance == tolerances.FLOAT8


def test_float8_in_an_old_opset_raises(tmp_path):
    model = model_of(dense())
    model.quantize("float8")
    with pytest.raises(ExportError, match="float8.*opset=17"):
        export_onnx(model, tmp_path / "out", opset=17)


# -- families -----------------------------------------------------------------------------------------------


def tiny(family: str) -> Any:
    if family == "vit":
        return redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3, width=64, num_heads=2))
    if family == "bert":
        return redraw(keras_tx.bert("tiny", vocabulary_size=50, num_classes=3, max_length=16))
    return redraw(keras_tx.gpt("pico", width=64, vocabulary_size=50, max_length=32))


@pytest.mark.parametrize("family", ["vit", "bert", "gpt"])
@pytest.mark.parametrize("mode", ["int4", "float8"])
def test_families(family: str, mode: str, tmp_path):
    plain = export_onnx(tiny(family), tmp_path / "plain")
    model = tiny(family)
    model.quantize(mode)
    report = export_onnx(model, tmp_path / "out")
    assert report.manifest.precisions.keys() == {mode}
    assert (
        report.nodes["MatMulNBits" if mode == "int4" else "Clip"] >= {"vit": 7, "bert": 12, "gpt": 12}[family]
    )
    size = (tmp_path / "out/onnx/model.onnx").stat().st_size
    assert size < 0.8 * (tmp_path / "plain/onnx/model.onnx").stat().st_size
    assert plain.manifest.task == report.manifest.task
    assert mode in str(report) or "4-bit" in str(report)


@pytest.mark.parametrize("mode", ["int4", "gptq", "awq"])
def test_language_models_of_keras_hub(mode: str, tmp_path):
    models = pytest.importorskip("keras_hub").models
    backbone = models.Llama3Backbone(
        vocabulary_size=60,
        num_layers=2,
        num_query_heads=4,
        num_key_value_heads=2,
        hidden_dim=64,
        intermediate_dim=96,
    )
    model = redraw(models.Llama3CausalLM(backbone=backbone, preprocessor=None))
    if mode == "int4":
        model.quantize(mode)
    else:
        ids = list(np.random.default_rng(0).integers(0, 60, (4, 40)))
        kind = {"gptq": quantizers.GPTQConfig, "awq": quantizers.AWQConfig}[mode]
        config = kind(dataset=ids, tokenizer=str, num_samples=4, sequence_length=16, group_size=32)
        model.quantize(mode, config=config)
    report = export_onnx(model, tmp_path / "out")
    assert report.nodes["MatMulNBits"] == 14 + (mode == "int4")  # the logits are not calibrated
    assert report.manifest.parity is not None and report.manifest.parity.tolerance == tolerances.FLOAT32


def test_inverses_of_half_scales_are_float32():
    layer = layers.Dense(11, dtype="float16")
    layer.build((None, WIDTH))
    layer.quantize("int4", config=quantizers.Int4QuantizationConfig(block_size=-1))
    scale = np.asarray(layer.kernel_scale)
    assert scale.dtype == np.float16
    inverses = quantized_layers.integer_kernel(layer).scales()[:, 0]
    assert_close(inverses, 1 / scale.astype("float32"), 1e-6)


def test_generated_text(tmp_path):
    model = tiny("gpt")
    model.quantize("int4")
    export_onnx(model, tmp_path / "out")
    prompts = [[3, 5, 7], [11], list(range(9))]
    expected = keras_tx.generate(model, prompts, max_new_tokens=12, do_sample=False)
    assert load(tmp_path / "out").generate(prompts, max_new_tokens=12, do_sample=False) == expected


@pytest.mark.parametrize("family", ["gpt", "bert"])
@pytest.mark.parametrize("mode", ["gptq", "awq"])
def test_calibrated_families(mode: str, family: str, tmp_path):
    """The structure of the blocks is that of the model; the layers behind them stay in float32."""
    model = tiny(family)
    config = {"gptq": quantizers.GPTQConfig, "awq": quantizers.AWQConfig}[mode](
        dataset=list(np.random.default_rng(0).integers(0, 50, (4, 24))),
        tokenizer=str,
        num_samples=4,
        sequence_length=12,
        group_size=32,
    )
    model.quantize(mode, config=config, filters="query|key|value|output|up|down")
    report = export_onnx(model, tmp_path / "out")
    assert report.nodes["MatMulNBits"] == 12
    assert report.manifest.precisions == {"int4": "onnx/model.onnx"}
    with pytest.raises(ConfigError, match=f"quantization_mode='{mode}'.* does not save"):
        model.save(tmp_path / "model.keras")
    with pytest.raises(ConfigError, match=f"quantization_mode='{mode}'.* does not save"):
        model.save_weights(tmp_path / "model.weights.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.filterwarnings("ignore:Skipping nested container:UserWarning")
@pytest.mark.parametrize("mode", ["gptq", "awq"])
def test_keras_does_not_save_zero_points(mode: str, tmp_path):
    """If this fails, a newer Keras does: keras_tx's models can be saved, too."""
    model = calibrated(dense(), mode)
    model.layers[2].quantization_config.quantization_layer_structure = None  # layers, which Keras would save
    model.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="but received [45] variables"):
        keras.models.load_model(tmp_path / "model.keras")


def test_saved_file_through_the_command(tmp_path):
    model = tiny("vit")
    model.quantize("int4")
    model.save(tmp_path / "model.keras")
    assert main(["export", str(tmp_path / "model.keras"), str(tmp_path / "out")]) == 0
    assert nodes_of(tmp_path / "out")["MatMulNBits"] == 7
    (comparison,) = compare(model, tmp_path / "out")
    assert comparison.difference <= comparison.tolerance == tolerances.FLOAT32


@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_saved_models_of_keras_tx(mode: str, tmp_path):
    model, images = tiny("vit"), np.random.default_rng(0).standard_normal((2, 8, 8, 3), "float32")
    model.quantize(mode)
    model.save(tmp_path / "model.keras")
    assert_close(
        *outputs_of(keras_tx.load_model(tmp_path / "model.keras"), images), *outputs_of(model, images)
    )
    with pytest.raises(ConfigError, match="model.keras contains a model that Keras quantized"):
        keras_tx.from_checkpoint(tmp_path / "model.keras")


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("mode", ["int4", "gptq"])
def test_mixed_precision_is_compared_in_float32(mode: str, policy: str, tmp_path):
    with_policy = keras.dtype_policies.get(policy)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(with_policy)
    try:
        if mode == "int4":
            model = model_of(dense())
            model.quantize("int4")
        else:
            model = calibrated(dense(), "gptq", group_size=16, weight_bits=8)
    finally:
        keras.config.set_dtype_policy(before)
    report = export_onnx(model, tmp_path / "out")
    assert report.nodes["MatMulNBits"] == 2


# -- layout -------------------------------------------------------------------------------------------------


def weight_of(groups: list[int], bits: int = 4) -> IntegerWeight:
    count = max(groups) + 1
    return IntegerWeight(
        (),
        bits,
        np.array(groups),
        np.full((2, count), 8),
        lambda: np.zeros((2, len(groups)), "uint8"),
        lambda: np.ones((2, count), "float32"),
    )


def test_layout_of_contiguous_groups_needs_no_order():
    layout = Layout.of(weight_of([0] * 64 + [1] * 64 + [2] * 50))
    assert (layout.in_order, layout.size, layout.width) == (True, 64, 178)


def test_layout_of_interleaved_groups():
    groups = [0, 1] * 20
    layout = Layout.of(weight_of(groups))
    assert not layout.in_order
    blocks = layout.columns.reshape(-1, layout.size)
    for block, group in zip(blocks, layout.groups, strict=True):
        assert {groups[column] for column in block if column >= 0} == {group}
    assert sorted(column for column in layout.columns if column >= 0) == list(range(40))


def test_modes_are_those_of_keras():
    from keras.src.dtype_policies import QUANTIZATION_MODES

    assert set(QUANTIZATION_MODES) == {"int8", "float8", *quantized_layers.INTEGER_MODES}
