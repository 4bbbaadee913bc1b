"""Makes bert.npz: a tiny Hugging Face BERT with random weights, its inputs and its outputs.

    pip install "keras-tx[parity]"
    python tests/golden/make_bert.py

The file lets the plain test command compare with the reference implementation without PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

BERT = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "attn_implementation": "eager",
}
ROBERTA = {**BERT, "max_position_embeddings": 14, "type_vocab_size": 1, "pad_token_id": 1}
DISTILBERT = {
    "vocab_size": 40,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 24,
    "max_position_embeddings": 12,
    "attn_implementation": "eager",
}


def reference(
    seed: int, name: str, config: dict[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """State dict, and inputs with the hidden states and all outputs, of the model class of that name.

    One row is full, one is padded; the padded one has padding ids, as a tokenizer gives them.
    """
    random = np.random.default_rng(seed)
    model_class = getattr(transformers, name)
    settings = model_class.config_class(**config)
    model = model_class(settings).eval()
    # Every weight is drawn anew: biases at 0 and norms at 1 would hide swapped ones. Parameters, not the
    # state dict: tied ones are one parameter.
    with torch.no_grad():
        for parameter in model.parameters():
            values = random.standard_normal(tuple(parameter.shape)) * 0.3 + 0.1
            parameter.copy_(torch.from_numpy(values.astype("float32")))
    state = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    padding = settings.pad_token_id or 0
    ids = random.integers(2, settings.vocab_size, (2, 9))
    mask = np.ones_like(ids)
    ids[1, 6:], mask[1, 6:] = padding, 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(settings, "type_vocab_size", 0) == 2:
        inputs["token_type_ids"] = (np.arange(9) > 4).astype("int64") * mask
    with torch.no_grad():
        tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
        out = model(**tensors, output_hidden_states=True)
    outputs = {key: value.numpy() for key, value in out.items() if isinstance(value, torch.Tensor)}
    hidden = np.stack([h.numpy() for h in out.hidden_states[1:]])
    return state, {**inputs, **outputs, "hidden": hidden}


if __name__ == "__main__":
    state, arrays = reference(0, "BertForPreTraining", BERT)
    arrays |= {f"state/{name}": value for name, value in state.items()}
    np.savez_compressed(Path(__file__).with_name("bert.npz"), **arrays)
