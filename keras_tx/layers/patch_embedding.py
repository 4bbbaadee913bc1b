"""PatchEmbedding: an image, a signal or a video as a sequence of projected patches."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_tx.arguments import Shape, Size, checked
from keras_tx.errors import ConfigError


@keras.saving.register_keras_serializable("keras_tx")
class PatchEmbedding(keras.layers.Layer):
    """Splits an image, a signal or a video into patches without overlap, and projects each patch to `width`.

    The input is (batch, height, width, channels), (batch, length, channels) or (batch, time, height, width,
    channels). The output is (batch, patches, width), with the patches row by row, those of a video image by
    image. As in checkpoints, the projection is a convolution whose stride is its kernel size.

    >>> import numpy as np
    >>> tuple(PatchEmbedding(768, patch_size=16)(np.zeros((2, 224, 224, 3), "float32")).shape)
    (2, 196, 768)
    >>> tuple(PatchEmbedding(96, patch_size=(2, 8, 8))(np.zeros((1, 4, 16, 16, 3), "float32")).shape)
    (1, 8, 96)

    Args:
        width: width of the embedding.
        patch_size: side of a square or cubic patch, (height, width), (time, height, width), or the length of
            a patch of a signal.
        use_bias: whether the projection has a bias.
        drop_remainder: whether pixels at the bottom and right (and the end of a signal or video) that do not
            fill a patch are dropped, as a convolution does. By default they raise an error.
    """

    @checked
    def __init__(
        self,
        width: Size,
        patch_size: Size | tuple[Size, ...],
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        drop_remainder: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.width = width
        self.patch_size = patch_size
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.drop_remainder = drop_remainder

    def build(self, input_shape: Shape) -> None:
        self._grid(input_shape)
        self.kernel = self.add_weight(
            shape=(*self.patch(len(input_shape) - 2), input_shape[-1], self.width),
            initializer=self.kernel_initializer.clone(),
            name="kernel",
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(shape=(self.width,), initializer="zeros", name="bias")

    def call(self, inputs: Any) -> Any:
        patches = ops.conv(
            inputs,
            self.kernel,
            strides=self.patch(len(inputs.shape) - 2),
            padding="valid",
            data_format="channels_last",
        )
        if self.bias is not None:
            patches = ops.add(patches, self.bias)
        count = self.compute_output_shape(inputs.shape)[1]
        if count is None:
            return ops.reshape(patches, (ops.shape(patches)[0], -1, self.width))
        return ops.reshape(patches, (-1, count, self.width))  # (b, [t,] [h,] w, d) -> (b, t*h*w, d)

    def patch(self, rank: int) -> tuple[int, ...]:
        """The patch as one size for each of `rank` axes."""
        if isinstance(self.patch_size, int):
            return (self.patch_size,) * rank
        if len(self.patch_size) != rank:
            raise ConfigError(
                f"Layer {self.name!r}: patch_size={self.patch_size} has {len(self.patch_size)} axes, "
                f"but the input has {rank} spatial axes."
            )
        return self.patch_size

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        grid = self._grid(input_shape)
        count = None if None in grid else math.prod(side for side in grid if side is not None)
        return (input_shape[0], count, self.width)

    def _grid(self, input_shape: Shape) -> list[int | None]:
        if len(input_shape) not in (3, 4, 5) or input_shape[-1] is None:
            raise ConfigError(
                f"Layer {self.name!r}: the input has the shape {tuple(input_shape)}, expected (batch, "
                "height, width, channels), (batch, length, channels) or (batch, time, height, width, "
                "channels), with known channels."
            )
        spatial = input_shape[1:-1]
        patch = self.patch(len(spatial))
        known = [(side, p) for side, p in zip(spatial, patch, strict=True) if side is not None]
        sizes = f"{' x '.join(map(str, spatial))}", f"patch_size={' x '.join(map(str, patch))}"
        if not self.drop_remainder and any(side < p or side % p for side, p in known):
            raise ConfigError(
                f"Layer {self.name!r}: the input size {sizes[0]} is not divisible by {sizes[1]}. Resize the "
                "input, choose another patch_size, or pass drop_remainder=True."
            )
        if any(side < p for side, p in known):
            raise ConfigError(
                f"Layer {self.name!r}: the input size {sizes[0]} is smaller than {sizes[1]}. Resize the "
                "input, or choose another patch_size."
            )
        return [None if side is None else side // p for side, p in zip(spatial, patch, strict=True)]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "width": self.width,
            "patch_size": self.patch_size,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "drop_remainder": self.drop_remainder,
        }
