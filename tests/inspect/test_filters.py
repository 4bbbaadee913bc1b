"""Principal components of patch embeddings equal those of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.inspect.embeddings import patch_kernel, principal_filters
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import assert_close


@pytest.mark.parametrize("shape", [(4, 3, 2, 40), (4, 4, 3, 9)])  # more filters than pixels, and fewer
def test_components_equal_those_of_scikit_learn(shape):
    decomposition = pytest.importorskip("sklearn.decomposition")
    kernel = draw(*shape) + draw(*shape[:-1], 1, seed=1)  # the mean filter is not 0
    components, shares = principal_filters(kernel, 6)
    theirs = decomposition.PCA(6, svd_solver="full").fit(kernel.reshape(-1, shape[-1]).T.astype("float64"))
    assert_close(shares, theirs.explained_variance_ratio_)
    flat = components.reshape(6, -1)
    signs = np.sign((flat * theirs.components_).sum(axis=1, keepdims=True))
    assert_close(flat, signs * theirs.components_)
    assert (flat[range(6), np.abs(flat).argmax(axis=1)] > 0).all()


def test_count_is_limited_by_pixels_and_filters():
    assert len(principal_filters(draw(2, 2, 3, 40))[0]) == 12
    assert len(principal_filters(draw(4, 4, 3, 10))[0]) == 9
    components, shares = principal_filters(draw(16, 16, 3, 64))
    assert components.shape == (28, 16, 16, 3)
    assert (np.diff(shares) < 0).all()


def test_kernel_of_a_model():
    model = redraw(keras_tx.vit("Mu/2", image_size=8))
    kernel = patch_kernel(model)
    assert kernel.shape == (2, 2, 3, 32)
    assert_close(kernel, as_numpy(model.get_layer("patch_embedding").kernel))
    assert_close(patch_kernel(model, "patch_embedding"), kernel)


def test_errors_contain_the_layer():
    model = keras_tx.vit("Mu/2", image_size=8)
    with pytest.raises(ConfigError, match="layer='block_0'.*'patch_embedding'"):
        patch_kernel(model, "block_0")
    with pytest.raises(ConfigError, match="'gpt' has no PatchEmbedding"):
        patch_kernel(keras_tx.gpt("pico", vocabulary_size=30))


@pytest.mark.parametrize(
    "kernel, count, text",
    [
        (draw(4, 3, 8), 2, r"shape \(4, 3, 8\)"),
        (np.full((2, 2, 3, 8), np.nan), 2, "finite"),
        (np.ones((2, 2, 3, 8)), 2, "All 8 filters"),
        (draw(2, 2, 3, 8), 0, "count=0"),
    ],
)
def test_other_kernels_raise(kernel, count, text):
    with pytest.raises(ConfigError, match=text):
        principal_filters(kernel, count)
