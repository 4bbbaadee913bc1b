"""Principal components of the filters of a patch embedding."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_tx.errors import ConfigError


def principal_filters(kernel: Any, count: int = 28) -> tuple[np.ndarray, np.ndarray]:
    """Computes the principal components of the filters of a patch embedding.

    These are the filters in the left part of figure 7 of Dosovitskiy et al. Each filter is one observation.
    The mean filter is subtracted. A component has norm 1; its sign is the one for which its value of largest
    magnitude is positive.

    Args:
        kernel: the kernel of the patch embedding, (height, width, channels, filters).
        count: largest number of components. A kernel has at most height * width * channels components, and
            at most filters - 1.

    Returns:
        The components (count, height, width, channels), by decreasing variance, and the share of the
        variance of each, (count,).

    Raises:
        ConfigError: if the kernel does not have four axes, is not finite, or has equal filters only.

    Example:

    >>> kernel = np.random.default_rng(0).standard_normal((16, 16, 3, 768))
    >>> components, shares = principal_filters(kernel)
    >>> components.shape, shares.shape
    ((28, 16, 16, 3), (28,))
    """
    kernel = np.asarray(kernel, "float64")
    if kernel.ndim != 4 or not np.isfinite(kernel).all():
        raise ConfigError(
            f"kernel has the shape {kernel.shape}, expected finite values of shape (height, width, channels, "
            "filters)."
        )
    if count < 1:
        raise ConfigError(f"count={count}, expected 1 or more components.")
    filters = kernel.reshape(-1, kernel.shape[-1]).T  # (filters, height * width * channels)
    _, singular, components = np.linalg.svd(filters - filters.mean(axis=0), full_matrices=False)
    if not singular.any():
        raise ConfigError(f"All {len(filters)} filters of the kernel are equal, so they have no components.")
    count = min(count, filters.shape[1], len(filters) - 1)
    components = components[:count]
    largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
    shares = singular[:count] ** 2 / (singular**2).sum()
    return (components * np.sign(largest)).reshape(count, *kernel.shape[:-1]), shares


def patch_kernel(model: Any, layer: str | None = None) -> np.ndarray:
    """Returns the kernel of the patch embedding of a Keras model.

    Args:
        model: a Keras model.
        layer: the name of the PatchEmbedding; by default the only one.

    Returns:
        An array (height, width, channels, filters).

    Raises:
        ConfigError: if the model has no such PatchEmbedding, or it is not one for images.

    Example:

    >>> import keras_tx
    >>> patch_kernel(keras_tx.vit("Mu/2", image_size=8)).shape
    (2, 2, 3, 32)
    """
    import keras

    from keras_tx.inspect.keras_layers import layer_of_class
    from keras_tx.layers import PatchEmbedding

    embedding = layer_of_class(model, PatchEmbedding, layer)
    kernel = keras.ops.convert_to_numpy(embedding.kernel)
    if kernel.ndim != 4:
        raise ConfigError(
            f"Layer {embedding.name!r} has a kernel of shape {kernel.shape}, expected (height, width, "
            "channels, filters) of a patch embedding for images."
        )
    return kernel
