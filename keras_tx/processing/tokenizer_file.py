"""A tokenizer as the files of a folder, in the words of Hugging Face, and its special tokens."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.processing.text import TextTransform

# By what a token is for: the names that it has in the vocabularies of BERT and of RoBERTa.
SPECIAL = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


@dataclasses.dataclass(frozen=True)
class TokenizerFile:
    """What stands in a tokenizer.json."""

    content: Mapping[str, Any]
    vocabulary: Mapping[str, int]

    @classmethod
    def of(cls, source: Any) -> TokenizerFile:
        """From a tokenizers.Tokenizer, a TextTransform, or the path of a tokenizer.json or its folder."""
        if isinstance(source, TextTransform):
            return cls.parse(source.tokenizer, "tokenizer")
        if hasattr(source, "to_str"):
            return cls.parse(source.to_str(), "tokenizer")
        if not isinstance(source, str | os.PathLike):
            raise ConfigError(
                f"tokenizer is a {type(source).__name__}, expected a tokenizers.Tokenizer or the path of a "
                f"{contract.TOKENIZER}."
            )
        path = Path(source)
        path = path / contract.TOKENIZER if path.is_dir() else path
        try:
            return cls.parse(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"tokenizer={str(source)!r} cannot be read: {error}.") from error

    @classmethod
    def parse(cls, text: str, name: str) -> TokenizerFile:
        try:
            content = json.loads(text)
            entries = content["model"]["vocab"]
            if isinstance(entries, list):  # Unigram: pairs of token and score
                entries = {token: index for index, (token, _) in enumerate(entries)}
            vocabulary = {str(token): int(index) for token, index in entries.items()}
            vocabulary |= {str(x["content"]): int(x["id"]) for x in content.get("added_tokens") or []}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"{name} is no {contract.TOKENIZER} as the tokenizers package writes it ({error!r}). Give "
                "what Tokenizer.save wrote."
            ) from error
        # Truncation and padding belong to a call, not to the vocabulary.
        return cls({**content, "truncation": None, "padding": None}, vocabulary)

    @property
    def special(self) -> dict[str, str]:
        """The special tokens that the vocabulary has, by what they are for: {"cls_token": "[CLS]", ...}."""
        chosen = max((0, 1), key=lambda i: sum(names[i] in self.vocabulary for names in SPECIAL.values()))
        return {use: names[chosen] for use, names in SPECIAL.items() if names[chosen] in self.vocabulary}

    def check(self, vocabulary: int, pad_id: int | None, needed: Sequence[str]) -> None:
        """Raises where a model with that many ids cannot be fed with what the tokenizer gives."""
        special = self.special
        missing = [use for use in needed if use not in special]
        if missing:
            expected = "; ".join(f"{use} {' or '.join(SPECIAL[use])}" for use in missing)
            raise ConfigError(f"The tokenizer's vocabulary lacks special tokens, expected {expected}.")
        token, largest = max(self.vocabulary.items(), key=lambda entry: entry[1])
        if largest >= vocabulary:
            raise ConfigError(
                f"The tokenizer has the token {token!r} with id {largest}, but the model's vocabulary goes "
                f"from 0 to {vocabulary - 1}. Make the model with vocabulary={largest + 1}."
            )
        padding = special.get("pad_token")
        if padding is not None and pad_id is not None and self.vocabulary[padding] != pad_id:
            raise ConfigError(
                f"The tokenizer's {padding!r} has id {self.vocabulary[padding]}, but the model was made with "
                f"pad_id={pad_id}. Make it with pad_id={self.vocabulary[padding]}."
            )
        if self.content.get("post_processor") is None:
            raise ConfigError(
                "The tokenizer has no post_processor, so it would not put the special tokens around a text. "
                "Give it tokenizers.processors.BertProcessing or TemplateProcessing."
            )

    def files(self, max_length: int, inputs: Sequence[str]) -> dict[str, Any]:
        """What stands in the files of a folder, by name: text, or what becomes JSON."""
        special = self.special
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_length,
            "model_input_names": list(inputs),
            "clean_up_tokenization_spaces": False,
            **special,
        }
        normalizer = self.content.get("normalizer") or {}
        if contract.TOKEN_TYPE_IDS in inputs and self._is_plain_wordpiece():
            # Under this name transformers.js numbers the texts of a pair, and under no general one.
            config |= {
                "tokenizer_class": "BertTokenizer",
                "do_lower_case": normalizer["lowercase"],
                "strip_accents": normalizer["strip_accents"],
                "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
            }
        found: dict[str, Any] = {
            contract.TOKENIZER: json.dumps(self.content, ensure_ascii=False, indent=2) + "\n",
            contract.TOKENIZER_CONFIG: config,
            contract.SPECIAL_TOKENS: special,
        }
        return {**found, **self._vocabulary_files()}

    def _is_plain_wordpiece(self) -> bool:
        model, normalizer = self.content["model"], self.content.get("normalizer") or {}
        return (
            model.get("type") == "WordPiece"
            and model.get("continuing_subword_prefix") == "##"
            and model.get("max_input_chars_per_word") == 100
            and normalizer.get("type") == "BertNormalizer"
            and normalizer.get("clean_text") is True
            and (self.content.get("pre_tokenizer") or {}).get("type") == "BertPreTokenizer"
            and self.special.get("cls_token") == SPECIAL["cls_token"][0]
        )

    def _vocabulary_files(self) -> dict[str, Any]:
        model = self.content["model"]
        if model.get("type") == "BPE":
            pairs = [x if isinstance(x, str) else " ".join(x) for x in model["merges"]]
            return {
                contract.VOCAB_JSON: dict(model["vocab"]),
                contract.MERGES: "\n".join(["#version: 0.2", *pairs]) + "\n",
            }
        tokens = sorted(self.vocabulary, key=self.vocabulary.__getitem__)
        if model.get("type") != "WordPiece" or [self.vocabulary[x] for x in tokens] != list(
            range(len(tokens))
        ):
            return {}  # a vocab.txt is nothing but lines, and could not say it
        return {contract.VOCAB: "\n".join(tokens) + "\n"}
