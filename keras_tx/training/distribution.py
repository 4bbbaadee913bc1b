"""The layout of a transformer's weights on several devices, for `keras.distribution`."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from typing import Any

import keras

from keras_tx.errors import ConfigError, whole_number
from keras_tx.layers import MultiHeadAttention
from keras_tx.models.costs import config_model
from keras_tx.models.transformer_model import TransformerModel

DATA, MODEL = "data", "model"  # the axes of the device mesh

# As in Megatron-LM (Shoeybi et al., 2019): a device has some heads of each attention layer and some units of
# each feed-forward layer, and the outputs of the devices are summed once per layer. The other weights are on
# every device. Of two layouts the first is used whose sizes are divisible.
LAYOUTS: dict[str, tuple[tuple[str | None, ...], ...]] = {
    r"attention/(query|key|value)/kernel$": ((None, MODEL),),
    r"attention/(query|key|value)/bias$": ((MODEL,),),
    r"attention/output/kernel$": ((MODEL, None),),
    r"feed_forward/(up|gate)/kernel$": ((None, MODEL),),
    r"feed_forward/(up|gate)/bias$": ((MODEL,),),
    r"feed_forward/down/kernel$": ((MODEL, None),),
    r"token_embedding/table$": ((MODEL, None), (None, MODEL)),
    r"(^|/)logits/kernel$": ((None, MODEL), (MODEL, None)),
}


def model_parallel(
    model: Any, *, tensor: int = 1, data: int | None = None, devices: Sequence[str] | None = None
) -> keras.distribution.Distribution:
    """Returns the distribution of a transformer over several devices.

    Each batch is divided into `data` parts, and the weights of each block into `tensor` parts. Set the
    distribution before the model is created:

        config = keras_tx.GPTConfig.variant("774M")
        keras.distribution.set_distribution(keras_tx.model_parallel(config, tensor=4))
        model = keras_tx.GPT(config)

    The layout is that of Megatron-LM: attention is divided by heads and the feed-forward layer by its units.
    Token embeddings are divided by rows, or by width if the number of rows is not divisible.

    Args:
        model: the config of the model to create, or a model with the same config.
        tensor: number of parts of the weights; with 1, every device has all weights.
        data: number of parts of a batch; by default all devices are used.
        devices: names of the devices; by default those of `keras.distribution.list_devices()`.

    Returns:
        A `keras.distribution.DataParallel` if `tensor` is 1, otherwise a `keras.distribution.ModelParallel`.

    Raises:
        ConfigError: the heads or units of the model cannot be divided into `tensor` parts, the devices do not
            form a mesh of `data` times `tensor`, or `keras.distribution` does not support the backend.

    Example:

    >>> import keras_tx
    >>> config = keras_tx.GPTConfig.variant("774M")
    >>> keras_tx.model_parallel(config, tensor=2)  # doctest: +SKIP
    <ModelParallel device_mesh=<DeviceMesh shape=(4, 2), axis_names=['data', 'model']>, ...>
    """
    tensor = whole_number("tensor", tensor)
    _check_backend()
    names = list(keras.distribution.list_devices()) if devices is None else list(devices)
    if data is None:
        data = max(1, len(names) // tensor)
    if whole_number("data", data) * tensor != len(names):
        raise ConfigError(
            f"data={data} times tensor={tensor} is {data * tensor}, but there are {len(names)} devices. Pass "
            "numbers whose product is the number of devices, or devices=."
        )
    layouts = weight_layouts(model, tensor)
    if tensor == 1:
        return keras.distribution.DataParallel(devices=names)
    mesh = keras.distribution.DeviceMesh((data, tensor), [DATA, MODEL], names)
    layout_map = keras.distribution.LayoutMap(mesh)
    for path, axes in layouts.items():
        layout_map[f"(^|/){re.escape(path)}$"] = keras.distribution.TensorLayout(axes, mesh)
    return keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name=DATA)


def weight_layouts(model: Any, tensor: int) -> dict[str, tuple[str | None, ...]]:
    """Returns the layout of each divided weight, by path: the mesh axis of each of its axes.

    Args:
        model: a config or a model of keras_tx.
        tensor: number of parts of the weights.

    Raises:
        ConfigError: heads or units cannot be divided, or `model` is neither a config nor a model of keras_tx.
    """
    model = weightless_model(model)
    if tensor == 1:
        return {}
    for layer in model._flatten_layers():
        if isinstance(layer, MultiHeadAttention):
            _check_heads(model, layer, tensor)
    layouts = {}
    for variable in model.variables:
        choices = next((axes for path, axes in LAYOUTS.items() if re.search(path, variable.path)), ())
        divisible = [axes for axes in choices if variable.shape[axes.index(MODEL)] % tensor == 0]
        if choices and not divisible:
            sizes = " or ".join(str(variable.shape[axes.index(MODEL)]) for axes in choices)
            raise ConfigError(
                f"tensor={tensor} does not divide {sizes}, a size of {variable.path} in model "
                f"{model.name!r}. Pass a divisor."
            )
        if divisible:
            layouts[variable.path] = divisible[0]
    return layouts


def weightless_model(model: Any) -> TransformerModel:
    """Returns a model unchanged, or the model of a config without allocated weights.

    Raises:
        ConfigError: `model` is neither a config nor a model of keras_tx.
    """
    built = model if isinstance(model, TransformerModel) else config_model(model)
    if built is None:
        raise ConfigError(f"model is a {type(model).__name__}, expected a config or a model of keras_tx.")
    return built


def _check_heads(model: TransformerModel, layer: MultiHeadAttention, tensor: int) -> None:
    for name, heads in (("heads", layer.num_heads), ("key-value heads", layer.kv_heads)):
        if heads % tensor:
            raise ConfigError(
                f"tensor={tensor} does not divide the {heads} {name} of model {model.name!r}. Pass a divisor."
            )


def _check_backend() -> None:
    backend = keras.backend.backend()
    if backend == "tensorflow":
        raise ConfigError(
            "keras.distribution does not support the TensorFlow backend. Create and compile the model in "
            "`with tf.distribute.MirroredStrategy().scope():`, or use JAX (KERAS_BACKEND=jax)."
        )
    if backend == "torch" and importlib.util.find_spec("keras.src.backend.torch.distribution_lib") is None:
        raise ConfigError(
            f"keras.distribution of Keras {keras.__version__} does not support the PyTorch backend; a "
            "version after 3.15 is required. Use JAX (KERAS_BACKEND=jax)."
        )
