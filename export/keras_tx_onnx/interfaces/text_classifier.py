"""The exported graph of a text classifier of keras-hub, with its preprocessor's tokenizer and its labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx_onnx.interfaces.class_scores import ClassScores
from keras_tx_onnx.interfaces.keras_hub_encoder import KerasHubEncoderInterface
from keras_tx_onnx.interfaces.keras_hub_texts import REMEDY
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.signature import Functional


@dataclasses.dataclass(frozen=True)
class TextClassifierOptions:
    """Options of a text classifier; see export_onnx."""

    labels: Sequence[str] | None = None


class TextClassifierInterface(KerasHubEncoderInterface):
    """`input_ids`, `attention_mask` and perhaps `token_type_ids` to `logits`."""

    kind = "a text classifier of keras-hub"
    Options = TextClassifierOptions
    task = contract.TEXT_CLASSIFICATION

    def __init__(self, functional: Functional, options: TextClassifierOptions, opset: int):
        model = functional.model
        function = functional_graph.function_of(model)
        outputs = function.outputs
        if len(outputs) != 1 or len(outputs[0].shape) != 2 or outputs[0].shape[1] is None:
            raise ConfigError(
                f"Model {model.name!r} ({type(model).__name__}) has the outputs "
                f"{', '.join(str(tuple(tensor.shape)) for tensor in outputs)}, expected one vector (batch, "
                f"classes). {REMEDY}"
            )
        super().__init__(functional, options, opset, model)
        self.scores = ClassScores(model, function, options.labels)
        self.labels = self.scores.labels
        self.outputs = [contract.LOGITS]
        self.passes += self.scores.passes
        self.add_files(self.scores.config)

    def expected(self, outputs: list[np.ndarray], inputs: list[np.ndarray]) -> list[np.ndarray]:
        return self.scores.expected(outputs, inputs)
