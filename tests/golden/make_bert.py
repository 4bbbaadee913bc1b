"""Makes golden/bert/: tiny folders that transformers' save_pretrained wrote, with inputs and outputs.

    pip install "keras-tx[parity]"                      # and again with transformers<5
    PYTHONPATH=. python tests/golden/make_bert.py

Each version writes folders of its own, 4-... and 5-..., those of 5 first: where the tensors are equal, 4
has a config alone. With them the plain test command compares with the reference implementation without
PyTorch. "old" has the names of the first checkpoints, which both versions still read: gamma and beta,
buffers, the tied table and bias once more.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

from tests.golden.folders import remove_equal_tensors

HERE = Path(__file__).parent / "bert"
BERT = {
    "vocab_size": 24,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 12,
}
ROBERTA = {**BERT, "max_position_embeddings": 14, "type_vocab_size": 1, "pad_token_id": 1}
DISTILBERT = {
    "vocab_size": 24,
    "dim": 8,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 12,
    "max_position_embeddings": 12,
}
GOLDEN = {
    "BertForPreTraining": {},
    "BertForSequenceClassification": {"id2label": {0: "bad", 1: "so so", 2: "good"}},
    "RobertaForMaskedLM": {"layer_norm_eps": 1e-5},
    "RobertaForSequenceClassification": {"num_labels": 1, "hidden_act": "gelu_new"},
    "DistilBertForMaskedLM": {},
    "DistilBertForQuestionAnswering": {"activation": "relu"},
    "XLMRobertaForTokenClassification": {"num_labels": 3},
}


def config_of(name: str) -> dict[str, Any]:
    return DISTILBERT if name.startswith("Distil") else ROBERTA if "Roberta" in name else BERT


def redrawn(name: str, seed: int = 0, **options: Any) -> Any:
    """A model of that class, every weight drawn anew: biases at 0 and norms at 1 would hide swapped ones."""
    model_class = getattr(transformers, name)
    settings = model_class.config_class(**{**config_of(name), "attn_implementation": "eager", **options})
    model = model_class(settings).eval()
    random = np.random.default_rng(seed)
    with torch.no_grad():  # parameters, not the state dict: tied ones are one parameter
        for parameter in model.parameters():
            values = random.standard_normal(tuple(parameter.shape)) * 0.3 + 0.1
            parameter.copy_(torch.from_numpy(values.astype("float32")))
    return model


def answers(model: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs and outputs: one row is full, one is padded, with padding ids, as a tokenizer gives them."""
    settings = model.config
    random = np.random.default_rng(seed)
    padding = settings.pad_token_id or 0
    ids = random.integers(2, settings.vocab_size, (2, 9))
    mask = np.ones_like(ids)
    ids[1, 6:], mask[1, 6:] = padding, 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(settings, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = (np.arange(9) > 4).astype("int64") * mask
    with torch.no_grad():
        tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
        out = model(**tensors, output_hidden_states=True)
    outputs = {key: value.numpy() for key, value in out.items() if isinstance(value, torch.Tensor)}
    hidden = np.stack([h.numpy() for h in out.hidden_states])
    return {**inputs, **outputs, "hidden": hidden}


def rename_as_of_old(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): x for name, x in tensors.items()}
    old = {name.replace("LayerNorm.bias", "LayerNorm.beta"): x for name, x in old.items()}
    old["bert.embeddings.position_ids"] = np.arange(BERT["max_position_embeddings"])[None]
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].copy()
    old["cls.predictions.decoder.bias"] = old["cls.predictions.bias"].copy()
    save_file(old, folder / "model.safetensors", {"format": "pt"})


def main() -> None:
    major = transformers.__version__.split(".")[0]
    for seed, (name, options) in enumerate(GOLDEN.items()):
        folder = HERE / f"{major}-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        model = redrawn(name, seed, **options)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        save_file(answers(model), folder / "answers.safetensors")
        remove_equal_tensors(folder)
    old = HERE / "old-BertForPreTraining"
    if major == "5":
        shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(HERE / "5-BertForPreTraining", old)
        rename_as_of_old(old)
        config = json.loads((old / "config.json").read_text())
        for name in (
            "dtype",
            "tie_word_embeddings",
            "classifier_dropout",
            "is_decoder",
            "add_cross_attention",
        ):
            config.pop(name, None)  # which were not yet known
        (old / "config.json").write_text(json.dumps({**config, "pruned_heads": {}}, indent=2) + "\n")


if __name__ == "__main__":
    main()
