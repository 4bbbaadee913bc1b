"""Functions of keras-hub that a trace replaces compute what keras-hub computes, at every size."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import ops
from keras_hub.src.models.depth_anything import depth_anything_layers
from keras_hub.src.models.qwen3_5.qwen3_5_gated_delta_net import Qwen3_5GatedDeltaNet
from keras_hub.src.models.rqvae.rqvae_layers import ResidualVectorQuantizer, VectorQuantizerEMA
from keras_hub.src.models.rwkv7.rwkv7_layer import RWKV7_Block
from keras_hub.src.models.sam3.roi_align import roi_align

from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from keras_tx_onnx.reading.keras_hub_functions import REPLACED
from keras_tx_onnx.reading.keras_patches import patched
from tests.drawing import draw, redraw
from tests.export.exporting import exported, nodes_of, outputs_of, run
from tests.tolerances import assert_close


class Called(keras.layers.Layer):
    """Calls a function, so that it is traced."""

    def __init__(self, function, shape=None):
        super().__init__()
        self.function, self.shape = function, shape

    def call(self, *inputs):
        return self.function(*inputs)

    def compute_output_spec(self, *inputs):
        if self.shape is None:
            return super().compute_output_spec(*inputs)
        return keras.KerasTensor(self.shape, "float32")


class Mixing(keras.layers.Layer):
    """A layer that mixes tokens, whose output shape keras-hub's blocks declare."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        layer.build((None, None, 8))

    def call(self, x, mask):
        return self.layer(x, attention_mask=mask)

    def compute_output_shape(self, shape):
        return shape


def padded(batch: int, length: int) -> np.ndarray:
    """Real tokens of every second text, and padding on the right of the others."""
    return (np.arange(length)[None] < np.where(np.arange(batch) % 2, length, length - 2)[:, None]).astype(
        "int32"
    )


def test_every_replaced_function_exists():
    import importlib

    for replaced in REPLACED:
        owner = importlib.import_module(replaced.module)
        for name in replaced.path.split("."):
            owner = getattr(owner, name)
        with patched():
            replacement = importlib.import_module(replaced.module)
            for name in replaced.path.split("."):
                replacement = getattr(replacement, name)
            assert replacement is not owner and replacement.__wrapped__ is owner


def delta_net(x, mask):
    layer = Qwen3_5GatedDeltaNet(
        hidden_size=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=4,
        linear_value_head_dim=3,
    )
    return Mixing(layer)(x, mask)


def rwkv_blocks(x, mask):
    sizes = {"gate_lora": 4, "mv_lora": 4, "aaa_lora": 4, "decay_lora": 4}
    mask = ops.cast(mask, "float32")
    first = None
    for index in range(2):
        block = RWKV7_Block(8, 4, 12, use_initial_norm=index == 0, **sizes)
        x, first = block(x, first, mask)
    return x


# Lengths around a chunk of 64 tokens: less than one, exactly one, and more.
@pytest.mark.parametrize("make", [delta_net, rwkv_blocks])
def test_recurrence_equals_keras_at_every_length(make, tmp_path):
    x, mask = keras.Input((None, 8), name="x"), keras.Input((None,), dtype="int32", name="padding_mask")
    model = redraw(keras.Model([x, mask], make(x, mask)))
    folder = exported(model, tmp_path / "out")
    assert nodes_of(folder)["Scan"] == (1 if make is delta_net else 2)
    for batch, length in ((1, 3), (3, 64), (2, 71), (4, 130)):
        values = draw(batch, length, 8, seed=length), padded(batch, length)
        (got,) = run(folder, values[0], values[1].astype("int64"))
        assert_close(got, outputs_of(model, *values)[0])


def test_padding_on_the_left_of_a_recurrence(tmp_path):
    x, mask = keras.Input((None, 8), name="x"), keras.Input((None,), dtype="int32", name="padding_mask")
    model = redraw(keras.Model([x, mask], delta_net(x, mask)))
    folder = exported(model, tmp_path / "out")
    values = draw(3, 9, 8), padded(3, 9)[:, ::-1].copy()
    (got,) = run(folder, values[0], values[1].astype("int64"))
    assert_close(got, outputs_of(model, *values)[0])


@pytest.mark.parametrize("size", [(9, 4), (3, 11), (1, 1)])
def test_resize_with_aligned_corners(size, tmp_path):
    x = keras.Input((6, 5, 3), name="x")
    resized = Called(lambda x: depth_anything_layers.interpolate(x, size, "channels_last"))(x)
    model = keras.Model(x, resized)
    folder = exported(model, tmp_path / "out")
    for batch in (1, 3):
        image = draw(batch, 6, 5, 3)
        assert_close(run(folder, image)[0], outputs_of(model, image)[0])


def test_boxes_are_pooled_inside_and_outside_of_the_image(tmp_path):
    maps, boxes = keras.Input((5, 5, 4), name="maps"), keras.Input((5,), name="boxes")

    def pooled(maps, boxes):
        return roi_align(maps, boxes, (3, 3), height=5, width=5, hidden_dim=4)

    model = keras.Model([maps, boxes], Called(pooled, (None, 3, 3, 4))(maps, boxes))
    folder = exported(model, tmp_path / "out")
    for batch, count in ((1, 4), (3, 7)):
        random = np.random.default_rng(count)
        corner, size = random.uniform(-2, 4, (count, 2)), random.uniform(0.1, 6, (count, 2))
        which = random.integers(0, batch, (count, 1))
        values = draw(batch, 5, 5, 4), np.concatenate([which, corner, corner + size], 1).astype("float32")
        assert_close(run(folder, *values)[0], outputs_of(model, *values)[0])


def test_constant_result_of_a_layer(tmp_path):
    """The quantization loss of a layer for training is 0 at inference."""
    x = keras.Input((6,), name="x")
    layer = ResidualVectorQuantizer([VectorQuantizerEMA(7, 6) for _ in range(2)])
    model = redraw(keras.Model(x, layer(x)))
    folder = exported(model, tmp_path / "out")
    for batch in (1, 5):
        value = draw(batch, 6)
        for got, expected in zip(run(folder, value), outputs_of(model, value), strict=True):
            assert_close(got, expected)


def test_constant_that_depends_on_a_size_raises(tmp_path):
    """NumPy reads the size of an array without a method of Python's integers."""
    x = keras.Input((None, 4), name="x")
    counted = Called(lambda x: np.ones(np.broadcast_shapes((x.shape[1], 2)), "float32"), (None, 2))
    with pytest.raises(ExportError, match="size"):
        export_onnx(keras.Model(x, counted(x)), tmp_path / "out", verify=False)


def sam():
    from keras_hub.layers import SAMPromptEncoder

    inputs = {
        "points": keras.Input((None, 2), name="points"),
        "labels": keras.Input((None,), name="labels"),
        "boxes": keras.Input((None, 2, 2), name="boxes"),
        "masks": keras.Input((None, None, None, 1), name="masks"),
    }
    encoder = SAMPromptEncoder(
        hidden_size=8, image_embedding_size=(3, 2), input_image_size=(24, 16), mask_in_channels=16
    )
    return redraw(keras.Model(inputs, encoder(**inputs)))


def prompts(batch: int, points: int, boxes: int, masks: int, size=(12, 8)) -> dict[str, np.ndarray]:
    random = np.random.default_rng(points)
    return {
        "boxes": random.uniform(0, 16, (batch, boxes, 2, 2)).astype("float32"),
        "labels": random.integers(-1, 2, (batch, points)).astype("float32"),
        "masks": random.standard_normal((batch, masks, *size, 1)).astype("float32"),
        "points": random.uniform(0, 16, (batch, points, 2)).astype("float32"),
    }


def test_prompts_with_and_without_masks(tmp_path):
    import onnxruntime

    model = sam()
    folder = exported(model, tmp_path / "out")
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for counts in ((1, 2, 3, 0), (3, 4, 0, 0), (2, 1, 2, 1), (2, 0, 1, 3)):
        feeds = prompts(*counts)
        expected = keras.tree.flatten(model({k: ops.convert_to_tensor(x) for k, x in feeds.items()}))
        for name, got, y in zip(names, session.run(None, feeds), expected, strict=True):
            assert got.shape == tuple(y.shape), name
            assert_close(got, ops.convert_to_numpy(y))


def test_masks_of_another_size_are_out_of_bounds(tmp_path):
    report = export_onnx(sam(), tmp_path / "out", verify=False)
    assert report.manifest.bounds == (
        "labels_sequence_length == points_sequence_length",
        "masks_height == 12",
        "masks_width == 8",
    )


def test_fixed_masks_of_another_size_raise(tmp_path):
    from keras_hub.layers import SAMPromptEncoder

    encoder = SAMPromptEncoder(
        hidden_size=8, image_embedding_size=(3, 2), input_image_size=(24, 16), mask_in_channels=16
    )
    inputs = {
        "points": keras.Input((None, 2), name="points"),
        "labels": keras.Input((None,), name="labels"),
        "boxes": keras.Input((None, 2, 2), name="boxes"),
        "masks": keras.Input((None, 16, 8, 1), name="masks"),
    }
    with pytest.raises(ExportError, match="size 16, expected 12"):
        export_onnx(keras.Model(inputs, encoder(**inputs)), tmp_path / "out", verify=False)
