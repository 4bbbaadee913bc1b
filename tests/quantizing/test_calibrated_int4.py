"""int4 of decoders: ranges of blocks that are searched, and rounding on calibration data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from keras_tx.errors import ConfigError, ExportError
from keras_tx.runtime import open_folder
from keras_tx_onnx import quantize
from keras_tx_onnx.quantizing import calibrated_blocks, gptq
from keras_tx_onnx.quantizing.block_ranges import CUTS, searched, steps_of
from tests.drawing import draw
from tests.quantizing.folders import exported, gpt, loaded, session, vit

BLOCK = 32


def values(blocks: np.ndarray, scales: np.ndarray, least: np.ndarray) -> np.ndarray:
    scales, least = scales[..., None], least[..., None]
    return least + scales * steps_of(blocks, scales, least)


def test_searched_ranges_are_as_good_as_those_of_onnxruntime():
    """Its k_quant, without the rounding of the zero point."""
    tools = pytest.importorskip("onnxruntime.quantization.neural_compressor.weight_only")
    blocks = draw(500, BLOCK)
    steps, scale, zero = tools.quant_tensor_k_quant_cpu(blocks, 4, BLOCK)
    theirs = scale * (steps - zero)
    ours = values(blocks, *searched(blocks))
    least, largest = blocks.min(axis=1), blocks.max(axis=1)
    plain = values(blocks, (largest - least) / 15, least)
    errors = [np.square(x - blocks).sum() for x in (ours, theirs, plain)]
    assert errors[0] < 0.95 * errors[1] and errors[0] < 0.85 * errors[2], errors
    assert (np.square(ours - blocks).sum(axis=1) <= np.square(plain - blocks).sum(axis=1) + 1e-5).all()


def test_weights_of_the_search():
    blocks, weights = draw(200, BLOCK), np.ones(BLOCK)
    weights[:8] = 100
    plain, weighted = (values(blocks, *searched(blocks, x)) - blocks for x in (None, weights))
    assert np.square(weighted[:, :8]).sum() < 0.7 * np.square(plain[:, :8]).sum()
    np.testing.assert_array_equal(searched(blocks, 0 * weights), searched(blocks))
    assert CUTS[0] == 0


def test_rounding_is_that_of_keras():
    """With the same ranges, on inputs that depend on each other."""
    from keras.src.quantizers.gptq import gptq_quantize_matrix

    kernel = draw(96, 40)
    inputs = draw(512, 96, seed=2) @ draw(96, 96, seed=3)
    moments = inputs.T @ inputs
    steps, scales, least = gptq.rounded(kernel, moments, BLOCK)
    damped = moments.astype("float64") + np.eye(96) * gptq.DAMPING * np.diagonal(moments).mean()
    groups = iter(np.split(np.diagonal(damped), 3))

    def ranges(group):
        scale, low = searched(np.asarray(group), next(groups))
        return scale[:, None], -low[:, None] / scale[:, None], 15.0

    theirs, their_scales, zeros, _ = gptq_quantize_matrix(
        kernel.T,
        np.linalg.cholesky(np.linalg.inv(damped)).T.astype("float32"),
        blocksize=BLOCK,
        group_size=BLOCK,
        compute_scale_zero=ranges,
    )
    np.testing.assert_allclose(scales, np.asarray(their_scales), rtol=1e-3)
    np.testing.assert_allclose(least, -np.asarray(zeros) * np.asarray(their_scales), rtol=1e-3)
    assert (steps == np.asarray(theirs)).mean() > 0.999
    rounded = least[..., None] + scales[..., None] * steps.reshape(40, 3, BLOCK)
    alone = values(kernel.T.reshape(40, 3, BLOCK).reshape(-1, BLOCK), *searched(kernel.T.reshape(-1, BLOCK)))
    errors = [np.square(inputs @ (x.reshape(40, 96).T - kernel)).sum() for x in (rounded, alone)]
    assert errors[0] < 0.7 * errors[1], errors


def test_inputs_that_are_always_zero():
    moments = np.zeros((64, 64))
    for part in (moments, np.diag(np.arange(64) > 9).astype("float64")):
        steps, scales, least = gptq.rounded(draw(64, 8), part, BLOCK)
        assert np.isfinite(scales).all() and np.isfinite(least).all() and steps.max() <= 15


def rows(seed: int) -> np.ndarray:
    """Ids of a few tokens, so that the inputs of products depend on each other."""
    return np.random.default_rng(seed).integers(0, 24, (16, 32))


def feed(ids: np.ndarray) -> dict[str, np.ndarray]:
    past = {
        f"past_key_values.{layer}.{kind}": np.zeros((len(ids), 4, 0, 16), "float32")
        for layer in range(2)
        for kind in ("key", "value")
    }
    positions = np.tile(np.arange(ids.shape[1]), (len(ids), 1))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": positions, **past}


def stored(folder) -> dict[str, np.ndarray]:
    return {x.name: numpy_helper.to_array(x) for x in loaded(folder, "model_q4.onnx").graph.initializer}


def share_of_equal_scales(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> float:
    """Sums in another order may turn a few steps, and with them the later blocks of a column."""
    names = [name for name in first if name.endswith("_scale")]
    assert len(names) == 9
    a, b = (np.concatenate([x[name].ravel() for name in names]) for x in (first, second))
    return (np.abs(a - b) < 1e-4 * a.max()).mean()


@pytest.fixture(scope="module")
def poet(tmp_path_factory):
    return exported(gpt(), tmp_path_factory.mktemp("poet") / "poet")


def test_calibration_reduces_the_error(poet):
    (expected,) = session(poet).run(["logits"], feed(rows(1)))
    errors, sizes = [], []
    for calibration in (None, {"input_ids": rows(0)}):
        report = quantize(poet, "int4", calibration=calibration)
        (computed,) = session(poet, "model_q4.onnx").run(["logits"], feed(rows(1)))
        errors.append(np.square(computed - expected).mean())
        sizes.append((poet / "onnx/model_q4.onnx").stat().st_size)
    assert errors[1] < 0.6 * errors[0], errors
    assert sizes[0] < sizes[1] < 1.1 * sizes[0]
    recipe = open_folder(poet).manifest.variants["int4"].recipe
    assert recipe.endswith(", rounded on 512 tokens") and recipe in str(report)


def test_few_tokens_spread_no_errors_by_chance():
    """Independent inputs, of which the calibration has half as many as the kernel has rows."""
    kernel, some, others = draw(128, 48), draw(64, 128, seed=2), draw(4096, 128, seed=3)
    moments = calibrated_blocks._Moments(some.T @ some, len(some))

    def error(used: np.ndarray) -> float:
        steps, scales, least = gptq.rounded(kernel, used, BLOCK)
        rounded = least[..., None] + scales[..., None] * steps.reshape(48, 4, BLOCK)
        return float(np.square(others @ (rounded.reshape(48, 128).T - kernel)).sum())

    alone = error(np.eye(128))
    assert error(moments.shrunk()) < 1.5 * alone < error(moments.sums), (error(moments.shrunk()), alone)
    many = calibrated_blocks._Moments(others.T @ others, len(others))
    assert error(many.shrunk()) < 1.05 * alone


def test_coarsest_weights_have_eight_bits(poet, monkeypatch):
    """A fifth of 98,304 numbers at most: those of the first block's attention lose the most by far."""
    note = "In 8-bit blocks, because 4 bits round them the most coarsely: "
    calibration = {"input_ids": rows(0)}
    quantize(poet, "int4", calibration=calibration)
    (listed,) = [x for x in open_folder(poet).manifest.variants["int4"].notes if x.startswith(note)]
    assert listed == f"{note}block_0/attention/qkv, block_0/attention/output."
    assert {"block_0/attention/output/kernel_q8", "block_1/attention/output/kernel_q4"} < stored(poet).keys()
    for name, number in (("SHARE_IN_8_BITS", 0.04), ("SMALLEST_LOSS", 1.0)):
        with monkeypatch.context() as patch:
            patch.setattr(calibrated_blocks, name, number)
            quantize(poet, "int4", calibration=calibration)
        assert not any("coarsely" in x for x in open_folder(poet).manifest.variants["int4"].notes)


def test_padding_does_not_count(poet):
    ids = rows(0)
    padded, mask = np.zeros((16, 40), "int64"), np.zeros((16, 40), "int64")
    padded[:8, :32], mask[:8, :32] = ids[:8], 1
    padded[8:, 8:], mask[8:, 8:] = ids[8:], 1
    quantize(poet, "int4", calibration={"input_ids": ids})
    unpadded = stored(poet)
    quantize(poet, "int4", calibration={"input_ids": padded, "attention_mask": mask})
    assert share_of_equal_scales(unpadded, stored(poet)) > 0.99
    quantize(poet, "int4", calibration={"input_ids": padded})
    assert share_of_equal_scales(unpadded, stored(poet)) < 0.5


def saved(folder: Path, nodes: list[NodeProto], arrays: dict[str, np.ndarray]) -> Path:
    """A graph of ids and their mask."""
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, [None, None])
        for name in ("input_ids", "attention_mask")
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "graph.onnx")
    return folder / "graph.onnx"


@pytest.mark.parametrize("shape", [(0, 0, 8), (-1, 8)], ids=["tokens", "mixture of experts"])
def test_padding_has_no_moments(tmp_path, shape):
    """Experts have all tokens on one axis."""
    table, kernel = draw(24, 8), draw(8, 8, seed=2)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["looked_up"]),
        helper.make_node("Reshape", ["looked_up", "shape"], ["x"]),
        helper.make_node("MatMul", ["x", "kernel"], ["y"]),
    ]
    path = saved(tmp_path, nodes, {"table": table, "kernel": kernel, "shape": np.array(shape)})
    ids, mask = rows(0), (np.arange(32) < np.arange(16, 32)[:, None]).astype("int64")
    batch = {"input_ids": ids, "attention_mask": mask}
    moments = calibrated_blocks._moments(path, ["x"], [batch])["x"]
    tokens = table[ids[mask == 1]]
    assert moments.tokens == mask.sum()
    np.testing.assert_allclose(moments.sums, tokens.T @ tokens, rtol=1e-5, atol=1e-3)


def test_measured_in_several_runs(poet, monkeypatch):
    quantize(poet, "int4", calibration={"input_ids": rows(0)})
    together = stored(poet)
    monkeypatch.setattr(calibrated_blocks, "NUMBERS", 1)
    quantize(poet, "int4", calibration={"input_ids": rows(0)})
    assert share_of_equal_scales(together, stored(poet)) > 0.99


def test_layers_that_stay_in_fp32(poet):
    quantize(poet, "int4", calibration={"input_ids": rows(0)}, keep=["block_1"])
    assert not any(name.startswith("block_1/") and "_q" in name for name in stored(poet))
    assert "block_0/feed_forward/up/kernel_q4" in stored(poet)


def test_weight_in_both_orientations_is_rounded_alone(tmp_path):
    """Its blocks along one axis are not those along the other."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"]),
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("Gemm", ["flat", "up/kernel"], ["wide"]),
        helper.make_node("Gemm", ["wide", "up/kernel"], ["narrow"], transB=1),
        helper.make_node("MatMul", ["narrow", "down/kernel"], ["y"]),
    ]
    arrays = {
        "table": draw(24, 64),
        "up/kernel": draw(64, 128),
        "down/kernel": draw(64, 64),
        "shape": np.array([-1, 64]),
    }
    path = saved(tmp_path, nodes, arrays)
    batches = [{"input_ids": rows(0), "attention_mask": np.ones((16, 32), "int64")}]
    calibrated = calibrated_blocks.calibrated(path, [], batches, "512 tokens", BLOCK, lambda product: True)
    assert calibrated.blocks.keys() == {"down/kernel"}


def test_wrong_scale_raises_with_layer(poet, monkeypatch):
    right = gptq.rounded

    def wrong(*arguments):
        steps, scales, least = right(*arguments)
        return steps, 1.3 * scales, least

    monkeypatch.setattr(gptq, "rounded", wrong)
    with pytest.raises(ExportError, match=r"'block_0/attention/qkv' .*int4"):
        quantize(poet, "int4", calibration={"input_ids": rows(0)})


def test_other_files_of_a_decoder_are_made_without_calibration(poet):
    """Fixed ranges would make int8-dynamic another precision than its name says."""
    quantize(poet, ["int4", "int8-dynamic"], calibration={"input_ids": rows(0)})
    variants = open_folder(poet).manifest.variants
    assert variants["int8-dynamic"].recipe == "dynamic" and "rounded on" in variants["int4"].recipe
    kinds = {node.op_type for node in loaded(poet, "model_int8.onnx").graph.node}
    assert "DynamicQuantizeLinear" in kinds and not kinds & {"QuantizeLinear", "DequantizeLinear"}


def test_examples_of_a_decoder_are_compared_whole(poet):
    """The calibration is cut, because logits are large; a batch of the caller is not."""
    ids = np.random.default_rng(1).integers(0, 300, (64, 32))
    quantize(poet, "int4", calibration={"input_ids": rows(0)}, examples={"input_ids": ids})
    files = ("model.onnx", "model_q4.onnx")
    answers = [session(poet, name).run(["logits"], feed(ids))[0].argmax(-1) for name in files]
    share = (answers[0] == answers[1]).mean()
    assert open_folder(poet).manifest.variants["int4"].agreement == pytest.approx(share, abs=1e-3)


def test_notes_on_the_calibration(poet):
    """Few tokens, and a comparison on the tokens of the rounding."""
    few, same = "fewer than 1,024: measure whether", "Compared with fp32 on tokens on which it was rounded"
    many, other = np.concatenate([rows(0), rows(1)]), {"input_ids": rows(2)}
    for calibration, options, expected in (
        ({"input_ids": rows(0)}, {}, [few, same]),
        ({"input_ids": rows(0)}, {"examples": other}, [few]),
        ({"input_ids": many}, {"examples": other}, []),
        (None, {}, []),
    ):
        report = quantize(poet, "int4", calibration=calibration, **options)
        notes = open_folder(poet).manifest.variants["int4"].notes
        assert [text for text in (few, same) if any(text in note for note in notes)] == expected
        assert all(note in str(report) for note in notes)


def test_calibration_without_effect(tmp_path):
    """All blocks of 32 would be partial, so all products have 8 bits."""
    folder = exported(gpt(width=72, mlp_dim=72), tmp_path / "poet")
    quantize(folder, "int4", calibration={"input_ids": rows(0)})
    variant = open_folder(folder).manifest.variants["int4"]
    assert variant.recipe == "4 bits in blocks of 32 with offsets, 8 bits for tokens and logits"
    assert "The calibration has no effect: no weight is rounded on it." in variant.notes
    assert not any("Rounded on" in note for note in variant.notes)


def test_calibration_without_tokens_raises(poet):
    calibration = {"input_ids": rows(0), "attention_mask": np.zeros((16, 32), "int64")}
    before = (poet / "keras_tx.json").read_bytes()
    with pytest.raises(ConfigError, match="calibration has no tokens: its attention_mask is 0 everywhere"):
        quantize(poet, "int4", calibration=calibration)
    assert (poet / "keras_tx.json").read_bytes() == before


def test_calibration_that_does_not_fit_raises(poet, tmp_path):
    with pytest.raises(ConfigError, match="calibration is a list of texts, but .* has no tokenizer"):
        quantize(poet, "int4", calibration=["a text"])
    with pytest.raises(ConfigError, match="calibration is a str, expected a list of texts, an array"):
        quantize(poet, "int4", calibration="a text")
    for texts in ((text for text in ["a text"]), np.array(["a text"]), {"input_ids": ["a text"]}):
        with pytest.raises(ConfigError, match="calibration has a batch of texts, expected a list of texts"):
            quantize(poet, "int4", calibration=texts)
    with pytest.raises(ConfigError, match="examples has a batch of texts, expected arrays by input name"):
        quantize(poet, "int4", examples=["a text"])
    with pytest.raises(ConfigError, match="calibration has no effect for precision int8: int4 of decoders"):
        quantize(poet, "int8", calibration={"input_ids": rows(0)})
    flowers = exported(vit(), tmp_path / "flowers")
    with pytest.raises(ConfigError, match="calibration is a list of texts, which the task"):
        quantize(flowers, "int8", calibration=["a text"])
