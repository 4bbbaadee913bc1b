"""Makes the folders of GPT-2, Llama and other decoders, of the transformers that runs it: *-v4 or *-v5.

    pip install "transformers==4.57.*" torch && python tests/golden/make_gpt.py
    pip install "transformers==5.*" torch && python tests/golden/make_gpt.py

Each is what `save_pretrained` wrote of a tiny model with random weights, and expected.safetensors beside it:
inputs, hidden states, logits, and the greedy continuation. With them the plain test command compares without
PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

GPT2 = {
    "vocab_size": 40,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_inner": 24,
    "n_positions": 20,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
LLAMA = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
MISTRAL = {**LLAMA, "head_dim": 8, "sliding_window": None}
QWEN2 = LLAMA
QWEN3 = {**LLAMA, "head_dim": 8}
GEMMA = {**LLAMA, "head_dim": 8, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
GPT1 = {key: value for key, value in GPT2.items() if key != "n_inner"}
CONFIGS = {
    "GPT2": GPT2,
    "OpenAIGPT": GPT1,
    "Llama": LLAMA,
    "Mistral": MISTRAL,
    "Qwen2": QWEN2,
    "Qwen3": QWEN3,
    "Gemma": GEMMA,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
NEW_TOKENS = 6

# What differs between the versions, and a field or two that the other folder does not have.
FOLDERS = {
    4: {
        "gpt2-v4": ("GPT2LMHeadModel", GPT2),
        "llama-v4": (
            "LlamaForCausalLM",
            {**LLAMA, "rope_theta": 500.0, "rope_scaling": LLAMA3, "tie_word_embeddings": True},
        ),
    },
    5: {
        "gpt2-v5": ("GPT2LMHeadModel", {**GPT2, "tie_word_embeddings": False, "activation_function": "gelu"}),
        "llama-v5": (
            "LlamaForCausalLM",
            {
                **LLAMA,
                "head_dim": 8,
                "attention_bias": True,
                "mlp_bias": True,
                "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
            },
        ),
        "openai-gpt-v5": ("OpenAIGPTLMHeadModel", GPT1),
        "qwen2-v5": ("Qwen2ForCausalLM", QWEN2),
        "qwen3-v5": ("Qwen3ForCausalLM", {**QWEN3, "tie_word_embeddings": True}),
        "gemma-v5": ("GemmaForCausalLM", GEMMA),
    },
}


def config_of(name: str) -> dict[str, Any]:
    """The config of a tiny model of the class of that name."""
    return next(config for kind, config in CONFIGS.items() if name.startswith(kind))


def redrawn(name: str, config: dict[str, Any], seed: int = 0) -> Any:
    """A model of the class of that name, every weight drawn anew."""
    random = np.random.default_rng(seed)
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**config, attn_implementation="eager")).eval()
    # Biases at 0 and norms at 1 would hide swapped ones. Parameters, not the state dict: tied ones are one.
    with torch.no_grad():
        for parameter in model.parameters():
            values = random.standard_normal(tuple(parameter.shape)) * 0.4
            if len(parameter.shape) == 1:
                values += 0.5
            parameter.copy_(torch.from_numpy(values.astype("float32")))
    return model


def outputs(model: Any, seed: int = 1) -> dict[str, np.ndarray]:
    """Inputs with the hidden states, and of a model with a head the logits and the greedy continuation.

    One row is full, one is padded on the left and one on the right; positions are those of generate().
    """
    random = np.random.default_rng(seed)
    ids = random.integers(1, model.config.vocab_size, (3, 9))
    mask = np.ones_like(ids)
    mask[1, :4] = mask[2, 6:] = 0
    inputs = {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": np.maximum(np.cumsum(mask, axis=1) - 1, 0),
    }
    tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
    with torch.no_grad():
        out = model(**tensors, output_hidden_states=True)
    # the embeddings, the blocks but the last, and the last after the final norm, if there is one
    arrays = {**inputs, "hidden": np.stack([h.numpy() for h in out.hidden_states])}
    if "logits" in out:
        settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        greedy = model.generate(
            tensors["input_ids"][:1], attention_mask=tensors["attention_mask"][:1], **settings
        )
        arrays |= {"logits": out.logits.numpy(), "greedy": greedy.numpy()[:, ids.shape[1] :]}
    return arrays


if __name__ == "__main__":
    for folder, (name, config) in FOLDERS[int(transformers.__version__.split(".")[0])].items():
        path = Path(__file__).with_name(folder)
        model = redrawn(name, config)
        model.save_pretrained(path)
        save_file(
            {k: np.ascontiguousarray(v) for k, v in outputs(model).items()}, path / "expected.safetensors"
        )
