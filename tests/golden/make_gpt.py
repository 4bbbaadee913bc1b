"""Makes gpt.npz: a tiny Hugging Face GPT-2 and Llama with random weights, their inputs and their outputs.

    pip install "keras-tx[parity]"
    python tests/golden/make_gpt.py

The file lets the plain test command compare with the reference implementation without PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

GPT2 = {
    "vocab_size": 40,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 24,
    "n_positions": 12,
    "attn_implementation": "eager",
}
LLAMA = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "rms_norm_eps": 1e-5,
    "attn_implementation": "eager",
}


def reference(
    seed: int, name: str, config: dict[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """State dict, and inputs with the hidden states and the logits, of the model class of that name.

    One row is full, one is padded on the left and one on the right; positions are those of generate().
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
    ids = random.integers(0, settings.vocab_size, (3, 9))
    mask = np.ones_like(ids)
    mask[1, :4] = mask[2, 6:] = 0
    inputs = {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": np.maximum(np.cumsum(mask, axis=1) - 1, 0),
    }
    with torch.no_grad():
        tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
        out = model(**tensors, output_hidden_states=True)
    outputs = {"logits": out.logits.numpy()} if "logits" in out else {}
    # the embeddings, the blocks but the last, and the last after the final norm
    return state, {**inputs, **outputs, "hidden": np.stack([h.numpy() for h in out.hidden_states])}


if __name__ == "__main__":
    arrays = {}
    for name, config in (("GPT2LMHeadModel", GPT2), ("LlamaForCausalLM", LLAMA)):
        state, outputs = reference(0, name, config)
        arrays |= {f"{name}/{key}": value for key, value in outputs.items()}
        arrays |= {f"{name}/state/{key}": value for key, value in state.items()}
    np.savez_compressed(Path(__file__).with_name("gpt.npz"), **arrays)
