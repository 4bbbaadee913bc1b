"""Products, attention, normalizations, images and Fourier transforms: cases beyond their examples."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from tests.drawing import draw
from tests.export.comparing import equals_keras
from tests.export.exporting import nodes_of

OPSETS = pytest.mark.parametrize("opset", [17, 23])
Q, K, V = draw(2, 4, 6, 8), draw(2, 5, 6, 8, seed=1), draw(2, 5, 6, 8, seed=2)
KEYS = np.array([[True, True, False, True, False], [False] * 5])
PICTURE = draw(2, 7, 6, 4)


@OPSETS
@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (lambda x, y: ops.matmul(x, y), [(2, 4, 3), (2, 3, 5)]),
        (lambda x, y: ops.matmul(x, y), [(2, 6, 4, 3), (2, 1, 3, 5)]),
        (lambda x: ops.matmul(x, np.ones(3, "float32")), [(2, 4, 3)]),
        (lambda x: ops.matmul(ops.cast(x * 3, "int32"), np.ones((3, 2), "int32")), [(2, 4, 3)]),
        (lambda x, y: ops.einsum("bqd,bkd->bqk", x, y), [(2, 4, 3), (2, 5, 3)]),
        (lambda x, y: ops.einsum("aecd,abcd->acbe", x, y), [(2, 4, 3, 6), (2, 5, 3, 6)]),
        (lambda x, y: ops.einsum("acbe,aecd->abcd", x, y), [(2, 3, 5, 4), (2, 4, 3, 6)]),
        (lambda x, y: ops.einsum("bi,bj->bij", x, y), [(2, 4), (2, 5)]),
        (lambda x, y: ops.einsum("bti,bi->bt", x, y), [(2, 4, 3), (2, 3)]),
        (lambda x: ops.einsum("bij->bji", x), [(2, 4, 3)]),
        (lambda x: ops.einsum("b...i,ij->b...j", x, np.ones((3, 2), "float32")), [(2, 4, 3)]),
        (lambda x: ops.einsum("bti,ihk->bthk", x, draw(3, 2, 5)), [(2, 4, 3)]),
        (lambda x: ops.einsum("bthk,hkd->btd", x, draw(3, 2, 5)), [(2, 4, 3, 2)]),
        (lambda x, y: ops.tensordot(x, y, 1), [(2, 4, 3), (3, 5)]),
        (lambda x: ops.dot(x, draw(5, 3, 2)), [(2, 4, 3)]),
        (lambda x: ops.inner(x, draw(5, 3)), [(2, 4, 3)]),
        (lambda x, y: [ops.outer(x, y), ops.vdot(x, x)], [(2, 4), (2, 3)]),
    ],
)
def test_products(call, shapes, opset: int, tmp_path):
    equals_keras(call, tmp_path, *(draw(*shape, seed=i) for i, shape in enumerate(shapes)), opset=opset)


@pytest.mark.parametrize(
    ("equation", "shapes", "nodes"),
    [
        ("bqd,bkd->bqk", [(2, 4, 3), (2, 5, 3)], {"Transpose": 1, "MatMul": 1}),
        ("bqk,bkd->bqd", [(2, 4, 3), (2, 3, 5)], {"MatMul": 1}),
        ("bi,bj->bij", [(2, 4), (2, 5)], {"Einsum": 1}),
    ],
)
def test_einsum_becomes_matmul(equation, shapes, nodes, tmp_path):
    arrays = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
    assert nodes_of(equals_keras(lambda x, y: ops.einsum(equation, x, y), tmp_path, *arrays)) == nodes


@OPSETS
@pytest.mark.parametrize(
    "call",
    [
        lambda q, k, v, m: ops.dot_product_attention(q, k, v),
        lambda q, k, v, m: ops.dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v, m: ops.dot_product_attention(q, k, v, scale=0.3),
        lambda q, k, v, m: ops.dot_product_attention(q, k, v, mask=m[:, None, None, :]),
        lambda q, k, v, m: ops.dot_product_attention(q, k, v, mask=m[:, None, None, :], is_causal=True),
        lambda q, k, v, m: ops.dot_product_attention(q, k, v, bias=draw(1, 6, 4, 5)),
        lambda q, k, v, m: ops.dot_product_attention(
            q, k, v, bias=draw(1, 1, 1, 5), mask=m[:, None, None, :], is_causal=True
        ),
        lambda q, k, v, m: ops.dot_product_attention(q, k[:, :, :2], v[:, :, :2]),
    ],
)
def test_attention(call, opset: int, tmp_path):
    """The second row of the mask hides every key, where Keras computes the mean of all values."""
    equals_keras(call, tmp_path, Q, K, V, KEYS, opset=opset)


@OPSETS
def test_attention_at_two_lengths(opset: int, tmp_path):
    def call(q, k, v):
        return ops.dot_product_attention(
            q, k, v, is_causal=True, mask=ops.ones_like(q[:, None, :1, 0, :1]) > 0
        )

    again = [draw(3, n, 6, d) for n, d in ((9, 8), (2, 8), (2, 8))]
    equals_keras(call, tmp_path, Q, K, V, again=again, dynamic=[1], opset=opset)


@OPSETS
@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.layer_normalization(x, gamma=draw(4), beta=draw(4, seed=1)),
        lambda x: ops.layer_normalization(x, gamma=draw(4), epsilon=0.1),
        lambda x: ops.layer_normalization(x),
        lambda x: ops.layer_normalization(x, axis=1, gamma=draw(7), beta=draw(7, seed=1)),
        lambda x: ops.layer_normalization(x, axis=(2, 3), gamma=draw(6, 4), beta=draw(6, 4, seed=1)),
        lambda x: ops.rms_normalization(x, scale=draw(4)),
        lambda x: ops.rms_normalization(x, epsilon=0.5),
        lambda x: ops.rms_normalization(x, axis=1),
        lambda x: ops.batch_normalization(x, draw(4), draw(4) ** 2, -1, draw(4, seed=1), draw(4, seed=2)),
        lambda x: ops.batch_normalization(x, draw(7), draw(7) ** 2, 1, draw(7, seed=1), draw(7, seed=2)),
        lambda x: [ops.normalize(x), ops.normalize(x, axis=1, order=3), ops.normalize(x * 0)],
        lambda x: ops.normalize(x, axis=(1, 2)),
        lambda x: [ops.softmax(x, axis=1), ops.softmax(x, axis=None), ops.log_softmax(x, axis=-2)],
        lambda x: [ops.gelu(x), ops.gelu(x, approximate=False), ops.elu(x, 0.5), ops.celu(x, 0.5)],
        lambda x: [ops.leaky_relu(x, 0.1), ops.threshold(x, 0.5, -2), ops.glu(x, 2), ops.squareplus(x, 2)],
        lambda x: [ops.soft_shrink(x, 0.1), ops.hard_shrink(x, 0.1), ops.sparsemax(x)],
        lambda x: [ops.log_sigmoid(50 * x), ops.softplus(50 * x), ops.hard_silu(5 * x), ops.selu(x)],
        lambda x: ops.relu(ops.cast(x * 5, "int32")),
    ],
)
def test_normalizations_and_activations(call, opset: int, tmp_path):
    equals_keras(call, tmp_path, PICTURE, opset=opset)


@OPSETS
@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.conv(x, draw(3, 3, 4, 5), padding="same"),
        lambda x: ops.conv(x, draw(3, 2, 4, 6), strides=(2, 1)),
        lambda x: ops.conv(x, draw(3, 2, 7, 6), data_format="channels_first"),
        lambda x: ops.conv(x, draw(2, 2, 4, 5), dilation_rate=2, padding="same"),
        lambda x: ops.conv(x[:, 0], draw(3, 4, 5), strides=2, padding="same"),
        lambda x: ops.depthwise_conv(x, draw(3, 3, 4, 1), strides=2, padding="same"),
        lambda x: ops.separable_conv(x, draw(3, 3, 4, 2), draw(1, 1, 8, 5)),
        lambda x: [ops.max_pool(x, 2), ops.max_pool(x, 3, 1, "same"), ops.max_pool(x[:, 0], 2)],
        lambda x: [ops.average_pool(x, 2), ops.average_pool(x, (3, 2), 2, "same")],
        lambda x: ops.depth_to_space(x, 2),
        lambda x: ops.space_to_depth(x[:, :6], 3),
        lambda x: ops.image.extract_patches(x, 3),
        lambda x: ops.image.extract_patches(x[:, :6], (2, 3)),
        lambda x: ops.image.extract_patches(x, 2, strides=1, padding="same"),
        lambda x: ops.image.extract_patches(x[:, :6], 2, data_format="channels_first"),
        lambda x: ops.image.extract_patches(x[:, :, 0][..., None], (2, 2)),
        lambda x: [ops.image.resize(x, (3, 4)), ops.image.resize(x, (14, 13))],
        lambda x: [ops.image.resize(x, s, "nearest") for s in ((3, 4), (14, 13), (7, 5))],
        lambda x: ops.image.resize(x, (3, 4), data_format="channels_first"),
        lambda x: [ops.image.resize(x, size, "bicubic") for size in ((3, 4), (14, 13))],
        lambda x: [ops.image.resize(x[0], size, antialias=True) for size in ((3, 4), (14, 13))],
        lambda x: ops.image.resize(x, (3, 9), "bicubic", antialias=True, data_format="channels_first"),
        lambda x: ops.image.pad_images(x, 1, 2, 3, 0),
        lambda x: ops.image.pad_images(x, bottom_padding=1, right_padding=0, target_height=9, target_width=9),
        lambda x: ops.image.crop_images(x, 1, 2, 3, 0),
        lambda x: ops.image.rgb_to_grayscale(x[..., :3]),
        lambda x: ops.image.rgb_to_grayscale(x[..., :1]),
    ],
)
def test_images(call, opset: int, tmp_path):
    equals_keras(call, tmp_path, PICTURE, opset=opset)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ops.conv(x, draw(3, 3, 4, 5), padding="same"),
        lambda x: ops.image.resize(x, (5, 9)),
        lambda x: ops.image.resize(x, (5, 9), "nearest"),
        lambda x: ops.max_pool(x, 2),
        lambda x: ops.image.pad_images(x, 1, 2, 3, 0),
    ],
)
def test_images_of_every_size(call, tmp_path):
    equals_keras(call, tmp_path, PICTURE, again=[draw(3, 4, 11, 4)], dynamic=[1, 2])


@OPSETS
@pytest.mark.parametrize(
    "call",
    [
        lambda x: [*ops.fft((x, 2 * x + 1))],
        lambda x: [*ops.fft2((x, ops.zeros_like(x)))],
        lambda x: [*ops.fft2((x, 2 * x + 1))],
        lambda x: [*ops.ifft2((x, 2 * x + 1))],
        lambda x: [*ops.rfft(x)],
        lambda x: [*ops.rfft(x[..., :5])],
    ],
)
def test_fourier(call, opset: int, tmp_path):
    equals_keras(call, tmp_path, draw(2, 5, 6), opset=opset)


class Mixing(layers.Layer):
    """FNet's: the real part of the transform over tokens and channels."""

    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        return ops.fft2((x, ops.zeros_like(x)))[0]


class OwnKernel(layers.Layer):
    """Convolutions as people write them, with kernels that are computed."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(3, 3, shape[-1], 5), name="kernel")
        self.depth = self.add_weight(shape=(2, 2, 5, 1), name="depth")

    def call(self, x):
        x = ops.conv(x, self.kernel / ops.max(ops.abs(self.kernel)), padding="same")
        return ops.conv_transpose(ops.depthwise_conv(x, self.depth), self.kernel * 2, strides=2)


@OPSETS
def test_fourier_at_every_length(opset: int, tmp_path):
    equals_keras(
        Mixing(), tmp_path, draw(2, 5, 6), again=[draw(3, 130, 6)], dynamic=[1], opset=opset, tolerance=3e-5
    )


def test_computed_kernels(tmp_path):
    equals_keras(OwnKernel(), tmp_path, PICTURE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.image.resize(x, (4, 4), crop_to_aspect_ratio=True), "crop_to_aspect_ratio=True"),
        (lambda x: ops.image.resize(ops.cast(x, "uint8"), (4, 4)), "dtype='uint8'"),
        (lambda x: ops.rfft(x, fft_length=3)[0], "fft_length=3"),
        (lambda x: ops.dot_product_attention(x, x, x[..., :2]), "value of width=2"),
        (lambda x: ops.linalg.svd(x)[1], "SVD"),
    ],
)
def test_unsupported_operations_raise(call, message: str, tmp_path):
    x = keras.Input((7, 6, 4), name="x")
    with pytest.raises(ExportError, match=message):
        export_onnx(keras.Model(x, call(x)), tmp_path / "out", verify=False)
