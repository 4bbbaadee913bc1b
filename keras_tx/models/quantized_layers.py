"""The layers of a model that Keras quantized: a part of its config, and the blocks that are calibrated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.layers import TransformerBlock

CALIBRATED = ("gptq", "awq")  # modes that need texts, and that Keras's files cannot hold


def quantized_config(model: keras.Model) -> dict[str, Any]:
    """Returns the options of `quantize` of each quantized layer, by its path; empty for a float model."""
    return {
        layer.path: keras.saving.serialize_keras_object(layer.quantization_config)
        for layer in model._flatten_layers()
        if layer.quantization_mode not in (None, *CALIBRATED) and layer.quantization_config is not None
    }


def quantize_from_config(model: keras.Model, config: Mapping[str, Any]) -> None:
    """Quantizes the layers of `quantized_config`, whose weights are then loaded."""
    layers = {layer.path: layer for layer in model._flatten_layers()}
    for path, options in config.items():
        settings = keras.saving.deserialize_keras_object(options)
        layers[path].quantize(settings.mode, config=settings)


def check_saved(model: keras.Model) -> None:
    """Raises a ConfigError for a layer that Keras would save without some of its variables.

    Keras 3.15 leaves out the zero points of GPTQ and AWQ, and the kernel of a layer that is not calibrated.
    """
    for layer in model._flatten_layers():
        if layer.quantization_mode in CALIBRATED:
            raise ConfigError(
                f"Layer {layer.path!r} of model {model.name!r} has "
                f"quantization_mode={layer.quantization_mode!r}, and Keras does not save all its variables. "
                "Save the model before model.quantize, or export it with keras_tx_onnx.export_onnx."
            )


def calibrated_structure(model: Any) -> dict[str, list[Any]]:
    """Returns the blocks of a text model, whose layers GPTQ and AWQ calibrate, and the layers before them."""
    blocks = [layer for layer in model.layers if isinstance(layer, TransformerBlock)]
    first = getattr(model.config, "position_offset", 0)
    embed = keras.Model(model.inputs, keras.tree.flatten(blocks[0].input)[0])

    def embedded(ids: Any) -> Any:
        values = {
            contract.INPUT_IDS: ids,
            contract.ATTENTION_MASK: ops.ones_like(ids),
            contract.TOKEN_TYPE_IDS: ops.zeros_like(ids),
            contract.POSITION_IDS: ops.cumsum(ops.ones_like(ids), axis=1) - 1 + first,
        }
        return embed([values[tensor.name.split(":")[0]] for tensor in model.inputs])

    return {"pre_block_layers": [embedded], "sequential_blocks": blocks}
