"""Makes golden/modernbert/ and golden/debertav2/: tiny folders of transformers, with inputs and outputs.

    pip install "keras-tx[parity]"                      # and again with transformers<5
    PYTHONPATH=. python tests/golden/make_encoders.py

Each version writes separate folders, 4-... and 5-... (DeBERTa only 5-...), those of 5 first: where the
tensors are equal, 4 has a config alone. With them the plain test command compares with the reference
implementation without PyTorch.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

from tests.drawing import redraw_torch
from tests.golden.folders import remove_equal_tensors

HERE = Path(__file__).parent
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
SIZES: dict[str, dict[str, Any]] = {
    "ModernBert": {
        "vocab_size": 24,
        "hidden_size": 8,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 40,
        "local_attention": 4,
        **SPECIAL,
    },
    "DebertaV2": {
        "vocab_size": 24,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 40,
        "relative_attention": True,
        "position_biased_input": False,
        "position_buckets": 4,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": "p2c|c2p",
        "pad_token_id": 0,
    },
}
GOLDEN: dict[str, dict[str, Any]] = {
    "ModernBertForMaskedLM": {},
    "ModernBertForSequenceClassification": {
        "id2label": {0: "bad", 1: "so so", 2: "good"},
        "classifier_pooling": "mean",
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 5000.0,
        "local_rope_theta": 100.0,
        "attention_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
        "classifier_bias": True,
    },
    "DebertaV2ForMaskedLM": {"legacy": False},
    "DebertaV2ForSequenceClassification": {
        "id2label": {0: "bad", 1: "so so", 2: "good"},
        "share_att_key": False,
        "position_buckets": -1,
        "max_relative_positions": 6,
        "norm_rel_ebd": "none",
    },
}


def family_of(name: str) -> str:
    return next(family for family in SIZES if name.startswith(family))


def redrawn(name: str, seed: int = 0, **options: Any) -> Any:
    """A model of that class, every weight drawn anew: biases at 0 and norms at 1 would hide swapped ones."""
    model_class = getattr(transformers, name)
    settings = {**SIZES[family_of(name)], "attn_implementation": "eager", **options}
    return redraw_torch(model_class(model_class.config_class(**settings)).eval(), seed)


def inputs(settings: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """One row is full, one is padded on the right and one on the left."""
    ids = np.random.default_rng(seed).integers(3, settings.vocab_size, (3, 9))
    mask = np.ones_like(ids)
    mask[1, 6:] = mask[2, :3] = 0
    return {"input_ids": np.where(mask == 1, ids, settings.pad_token_id or 0), "attention_mask": mask}


def answers(model: Any, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs and outputs, with all hidden states and attentions."""
    with torch.no_grad():
        tensors = {key: torch.from_numpy(value) for key, value in feed.items()}
        out = model(**tensors, output_hidden_states=True, output_attentions=True)
        if transformers.__version__ < "5" and isinstance(model, transformers.ModernBertPreTrainedModel):
            # Before the last norm; transformers 5 returns it after the norm.
            norm = model.base_model.final_norm
            out.hidden_states = (*out.hidden_states[:-1], norm(out.hidden_states[-1]))
    outputs = {key: value.numpy() for key, value in out.items() if isinstance(value, torch.Tensor)}
    inner = {key: np.stack([x.numpy() for x in out[key]]) for key in ("hidden_states", "attentions")}
    return {**feed, **outputs, **inner}


def main() -> None:
    major = transformers.__version__.split(".")[0]
    for seed, (name, options) in enumerate(GOLDEN.items()):
        if major == "4" and name.startswith("DebertaV2"):
            continue  # legacy=False raises an error there
        folder = HERE / family_of(name).lower() / f"{major}-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        model = redrawn(name, seed, **options)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        save_file(answers(model, inputs(model.config)), folder / "answers.safetensors")
        remove_equal_tensors(folder)


if __name__ == "__main__":
    main()
