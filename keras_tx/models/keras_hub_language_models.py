"""The files of a folder of a causal language model of keras-hub: its config, special ids and tokenizer."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_tx.processing import TextTransform


@dataclasses.dataclass(frozen=True)
class LanguageModelFiles:
    """What a folder says about a language model.

    Attributes:
        config: the content of config.json.
        special_ids: BOS, EOS and padding ids by their names in generation_config.json, or None.
        transform: the tokenizer, which pads on the left; None if the folder has none.
        notes: for the report.
    """

    config: dict[str, Any]
    special_ids: dict[str, Any]
    transform: TextTransform | None
    notes: list[str]


def language_model_files(model: Any, tokenizer: Any, context: int) -> LanguageModelFiles:
    """The files of a CausalLM of keras-hub.

    Args:
        model: the model; its preprocessor may be None.
        tokenizer: the option of export_onnx, or None.
        context: the maximum number of tokens.
    """
    own = getattr(model.preprocessor, "tokenizer", None)
    names = {"bos_token_id": "start_token_id", "eos_token_id": "end_token_id", "pad_token_id": "pad_token_id"}
    special_ids = {name: getattr(own, attribute, None) for name, attribute in names.items()}
    config = {"vocab_size": int(model.backbone.vocabulary_size), "max_position_embeddings": context}
    transform, notes = None, []
    if tokenizer is not None:
        transform = dataclasses.replace(TextTransform.of(tokenizer), padding_side="left")
    else:
        notes.append(
            "The folder has no tokenizer: prompts are token ids. Pass tokenizer= to generate from texts."
        )
    return LanguageModelFiles(config, special_ids, transform, notes)
