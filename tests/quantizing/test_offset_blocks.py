"""int4 of decoders: 4-bit blocks with offsets, and 8 bits for tokens and logits."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from keras_tx.errors import ExportError
from keras_tx.runtime import open_folder
from keras_tx_onnx import quantize
from keras_tx_onnx.quantizing import offset_blocks
from tests.drawing import draw
from tests.quantizing.folders import exported, gpt, loaded, session

BLOCK = 32


def floats_of(steps: np.ndarray, scales: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Rows, from bytes with two steps each, the first in the lower half."""
    whole = np.stack([steps & 15, steps >> 4], axis=-1).reshape(*steps.shape[:2], -1)
    return (least[..., None] + scales[..., None] * whole).reshape(len(steps), -1)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # deprecated
def test_rounding_is_that_of_pytorch():
    torch = pytest.importorskip("torch")
    rows = draw(24, 64)
    steps, scales, least = offset_blocks.offset_blocks(rows, BLOCK)
    blocks = torch.tensor(rows.reshape(-1, BLOCK))
    # Its float zero points are multiples of the scale, as in embedding_bag of 4 bits.
    theirs = torch.quantize_per_channel(
        blocks,
        torch.tensor(scales.ravel()),
        torch.tensor(-least.ravel() / scales.ravel()),
        axis=0,
        dtype=torch.quint4x2,
    )
    expected = theirs.dequantize().numpy().reshape(rows.shape)
    np.testing.assert_allclose(floats_of(steps, scales, least), expected, atol=1e-5)


def test_blocks_that_were_rounded_before_keep_their_values():
    random = np.random.default_rng(0)
    steps = random.integers(0, 16, (48, 2, BLOCK))
    steps[..., 0], steps[..., -1] = 0, 15
    least, scale = -(draw(48, 2) ** 2) - 1, draw(48, 2, seed=2) ** 2 + 0.1
    rows = (least[..., None] + scale[..., None] * steps).reshape(48, -1).astype("float32")
    np.testing.assert_allclose(floats_of(*offset_blocks.offset_blocks(rows, BLOCK)), rows, atol=1e-5)


def test_constant_blocks():
    rows = np.full((3, BLOCK), 0.7, "float32")
    rows[0] = 0
    np.testing.assert_array_equal(floats_of(*offset_blocks.offset_blocks(rows, BLOCK)), rows)


@pytest.fixture(scope="module")
def feed() -> dict[str, np.ndarray]:
    ids = np.random.default_rng(0).integers(0, 300, (2, 16))
    past = {
        f"past_key_values.{layer}.{kind}": np.zeros((2, 4, 0, 16), "float32")
        for layer in range(2)
        for kind in ("key", "value")
    }
    positions = np.tile(np.arange(16), (2, 1))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": positions, **past}


def test_graph_computes_the_numbers_of_its_blocks(tmp_path, feed):
    """It is closer to fp32 with these numbers as weights than to fp32; activations are rounded, too."""
    folder = exported(gpt(), tmp_path / "poet", precision=["fp32", "int4"])
    graph = loaded(folder, "model_q4.onnx").graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    model = loaded(folder, "model.onnx")
    rounded = set()
    for tensor in model.graph.initializer:
        name, scales = tensor.name, stored.get(f"{tensor.name}_scale")
        if scales is None:
            continue
        if f"{name}_q8" in stored:
            assert name == "token_embedding/table"
            numbers = (scales[..., None] * (stored[f"{name}_q8"] - 128.0)).reshape(300, -1)
        else:
            least = stored[f"{name}_offset"].T - 8 * scales
            numbers = floats_of(stored[f"{name}_q4"], scales, least).T
        rounded.add(name)
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(numbers, "float32"), name))
    assert len(rounded) == 9
    onnx.save(model, folder / "onnx/rounded.onnx")
    exact, of_blocks, computed = (
        session(folder, name).run(["logits"], feed)[0]
        for name in ("model.onnx", "rounded.onnx", "model_q4.onnx")
    )
    assert np.abs(computed - of_blocks).max() < 0.25 * np.abs(computed - exact).max()
    assert sum(node.op_type == "ReduceSum" for node in graph.node) == 8  # one for each input


def test_offsets_reduce_the_error(tmp_path, feed, monkeypatch):
    """With weights that are not symmetric, as in trained models."""
    model = gpt()
    for variable in model.trainable_variables:
        if variable.path.endswith("kernel"):
            variable.assign(np.abs(np.asarray(variable)))
    folder = exported(model, tmp_path / "poet")
    (expected,) = session(folder).run(["logits"], feed)
    errors = []
    for with_offsets in (True, False):
        if not with_offsets:
            monkeypatch.setattr(offset_blocks, "offset_blocks", symmetric)
        quantize(folder, "int4")
        (computed,) = session(folder, "model_q4.onnx").run(["logits"], feed)
        errors.append(np.abs(computed - expected).mean())
    assert errors[0] < 0.8 * errors[1], errors


def symmetric(rows: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from keras_tx_onnx.quantizing.weight_blocks import rounded_blocks

    steps, scales = rounded_blocks(rows, 4, block)
    return steps, scales, -8 * scales


def test_partial_blocks_have_eight_bits(tmp_path):
    folder = exported(gpt(width=72, mlp_dim=128), tmp_path / "poet", precision=["fp32", "int4"])
    products = [x for x in loaded(folder, "model_q4.onnx").graph.node if x.op_type == "MatMulNBits"]
    sizes = {(x.input[1].rpartition("/")[0], x.input[1][-2:]) for x in products}
    assert ("block_0/feed_forward/up", "q8") in sizes and ("block_0/feed_forward/down", "q4") in sizes
    notes = open_folder(folder).manifest.variants["int4"].notes
    (note,) = [
        note for note in notes if note.startswith("In 8-bit blocks, because the last block is partial: ")
    ]
    assert "block_0/feed_forward/up" in note and "block_0/feed_forward/down" not in note


def test_inputs_of_unknown_shape_have_eight_bits(tmp_path, monkeypatch):
    quantize_product = offset_blocks._OffsetQuantizer.quantize_product

    def without_shape(self, product):
        if product.layer == "block_0/feed_forward/up":
            product.x.shape = None
        quantize_product(self, product)

    monkeypatch.setattr(offset_blocks._OffsetQuantizer, "quantize_product", without_shape)
    folder = exported(gpt(), tmp_path / "poet", precision=["fp32", "int4"])
    notes = open_folder(folder).manifest.variants["int4"].notes
    assert "In 8-bit blocks, because the shape of the input is unknown: block_0/feed_forward/up." in notes


@pytest.mark.parametrize("fault", ["offset", "scale"])
def test_wrong_offset_raises_with_layer(tmp_path, monkeypatch, fault):
    right = offset_blocks.offset_blocks

    def wrong(rows, block):
        steps, scales, least = right(rows, block)
        return (steps, scales, 0.5 * least) if fault == "offset" else (steps, 1.3 * scales, least)

    folder = exported(gpt(), tmp_path / "poet")
    monkeypatch.setattr(offset_blocks, "offset_blocks", wrong)
    with pytest.raises(ExportError, match=r"'block_0/attention/qkv' .*int4"):
        quantize(folder, "int4")
