"""Folders of language models of keras-hub, with the texts that keras_tx.runtime generates."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.clients import precisions
from tests.clients.decoder_folders import continued
from tests.drawing import redraw
from tests.export import test_language_models as language_models
from tests.export.test_language_model_configs import SIZES
from tests.weights.test_keras_hub_tokenizers import BYTE_PAIRS, byte_pairs, sentence_pieces

LENGTH = 96
LENGTHS = ("max_sequence_length", "max_position_embeddings")

# The models by the names of these folders.
CASES = {
    f"keras_hub_{name.replace(', ', '_').replace(' ', '_').replace('.', '_')}": name
    for name in language_models.CASES
}

# The seed of the weights and the factor of embeddings with which the tokens vary, if not the usual ones.
DRAWS = {
    "qwen 2.5": (1, 10.0),
    "qwen 3 moe": (1, 20.0),
    "gemma": (1, 0.25),
    "bloom": (2, 5.0),
    "falcon": (1, 10.0),
    "gpt neox": (2, 1.0),
}

# What the errors of clients say that do not run these models, as in docs/clients.md.
HEADS = {"Optimum": "Got invalid dimensions for input: past_key_values"}
REFUSED = {
    "mixtral": {**HEADS, "transformers.js": "Unsupported model type"},
    "qwen moe": HEADS,
    "gemma 2": HEADS,
    "phi 3": HEADS,
}
# The window or bias of these models counts padding between tokens, which onnxruntime-genai has in a batch.
DISTANCES = ("window", "mixtral", "gemma 2", "gemma 3", "bloom")


def make(out: Path, name: str) -> dict[str, dict[str, Any]]:
    """The folder, and the texts that it generates."""
    family = language_models.CASES[CASES[name]].name
    export_onnx(_model(CASES[name]), out / name, overwrite=True)

    def answer(precision: str) -> dict[str, Any]:
        with load(out / name, provider="cpu", precision=precision) as loaded:
            answers = continued(loaded, contract.TEXT_GENERATION, together=True)
        return {
            **answers,
            "new_ids_of_adapters": {},
            "refused_by": REFUSED.get(CASES[name], {}),
            "byte_fallback": f"{family}Tokenizer" not in BYTE_PAIRS,
            "distances": CASES[name].endswith(DISTANCES),
        }

    return precisions.cases(name, answer)


def _model(name: str) -> Any:
    """A model with a tokenizer of its family."""
    case = language_models.CASES[name]
    lengths = {option: LENGTH for option in LENGTHS if option in case.sizes}
    case = dataclasses.replace(case, sizes={**case.sizes, **SIZES.get(name, {}), **lengths})
    kind = f"{case.name}Tokenizer"
    tokenizer = byte_pairs(kind) if kind in BYTE_PAIRS else sentence_pieces(kind)
    make_preprocessor = getattr(language_models.models, f"{case.name}CausalLMPreprocessor")
    model = case.model(tokenizer.vocabulary_size(), make_preprocessor(tokenizer, sequence_length=LENGTH))
    seed, factor = DRAWS.get(name, (1, case.embeddings))
    return language_models.varied(redraw(model, seed), factor)
