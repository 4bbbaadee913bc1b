"""State dicts in memory as checkpoints."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import keras_tx
from keras_tx.models.gpt import huggingface
from keras_tx.models.gpt.model import GPT
from keras_tx.weights.assignment import Filled, fill
from keras_tx.weights.tensor_source import Tensors

State = Mapping[str, np.ndarray]


def state_of(theirs: Any) -> dict[str, np.ndarray]:
    """The weights of a PyTorch module; tied ones once, as save_pretrained writes them."""
    tied = getattr(theirs, "_tied_weights_keys", None) or () if theirs.config.tie_word_embeddings else ()
    return {name: x.detach().numpy() for name, x in theirs.state_dict().items() if name not in tied}


def put(model: GPT, state: State) -> Filled:
    """Assigns the tensors of a state to a model."""
    shapes = {name: x.shape for name, x in state.items()}
    tensors = Tensors("the state", shapes, state.__getitem__)
    return fill(model, huggingface.plan(model, tensors), tensors)


def write(folder: Path, state: State, config: dict[str, Any]) -> None:
    save_file({name: np.ascontiguousarray(x) for name, x in state.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def loaded(state: State, config: dict[str, Any], **options: Any) -> Any:
    """The model that a config.json says, with the weights of a state."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), state, config)
        return keras_tx.from_checkpoint(folder, **options)


def quietly_opened(model_class: Any, folder: Path) -> tuple[Any, dict[str, Any]]:
    """What from_pretrained gives and says of a folder; it may log nothing."""
    import transformers

    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    transformers.utils.logging.add_handler(handler)
    try:
        opened = model_class.from_pretrained(folder, output_loading_info=True)
    finally:
        transformers.utils.logging.remove_handler(handler)
    assert not messages, messages
    return opened
