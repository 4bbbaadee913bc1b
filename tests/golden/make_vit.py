"""Makes vit.npz: a tiny Hugging Face ViT with random weights, its input and its outputs.

    pip install "keras-tx[parity]"
    python tests/golden/make_vit.py

The file lets the plain test command compare with the reference implementation without PyTorch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers

CONFIG = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "image_size": 12,
    "patch_size": 4,
    "num_labels": 3,
    "layer_norm_eps": 1e-6,
}


def reference(seed: int, hidden_act: str = "gelu") -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """State dict, and images (NHWC) with the hidden states after each block and the logits."""
    random = np.random.default_rng(seed)
    config = transformers.ViTConfig(**CONFIG, hidden_act=hidden_act, attn_implementation="eager")
    model = transformers.ViTForImageClassification(config).eval()
    state = {}
    for name, tensor in model.state_dict().items():
        # Every weight is drawn anew: biases at 0 and norms at 1 would hide swapped ones.
        state[name] = (random.standard_normal(tuple(tensor.shape)) * 0.3 + 0.1).astype("float32")
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    images = random.standard_normal((2, 12, 12, 3)).astype("float32")
    with torch.no_grad():
        out = model(torch.from_numpy(images.transpose(0, 3, 1, 2)), output_hidden_states=True)
        tokens = model.vit.layernorm(out.hidden_states[-1])
    return state, {
        "images": images,
        "hidden": np.stack([h.numpy() for h in out.hidden_states[1:]]),
        "tokens": tokens.numpy(),
        "logits": out.logits.numpy(),
    }


if __name__ == "__main__":
    state, outputs = reference(seed=0)
    arrays = {f"state/{name}": value for name, value in state.items()} | outputs
    np.savez_compressed(Path(__file__).with_name("vit.npz"), **arrays)
