"""Reads and writes the pooling and text settings of sentence-transformers folders."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.heads import Head, SentenceEmbeddingHead
from keras_tx.models.checkpoint_tokenizer import read_tokenizer
from keras_tx.processing import TextTransform
from keras_tx.weights.checkpoint import inside, read_json

SETTINGS = "config_sentence_transformers.json"
MODES = {"mean": "mean", "cls": "class"}
OLD_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "class"}


def head_of(folder: Path | None) -> SentenceEmbeddingHead | ConfigError | None:
    """Returns the head of a folder: None without modules.json, an error for unsupported modules."""
    if folder is None or not (folder / contract.MODULES).is_file():
        return None
    modules = read_json(folder, contract.MODULES, list)
    if not all(isinstance(module, dict) for module in modules):
        raise ConfigError(f"{folder / contract.MODULES} is not a list of modules.")
    kinds = [str(module.get("type")).rsplit(".", 1)[-1] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        return ConfigError(
            f"{folder / contract.MODULES} has the modules {', '.join(kinds)}. Only Transformer, Pooling and "
            "an optional Normalize are supported; pass head=None to load the encoder alone."
        )
    settings = _read(folder, SETTINGS)
    if settings.get("default_prompt_name"):
        return ConfigError(
            f"{folder / SETTINGS} has default_prompt_name={settings['default_prompt_name']!r}. Default "
            "prompts are not supported: pass head=keras_tx.SentenceEmbeddingHead(...), and prepend the "
            "prompt to each text."
        )
    pooling = _pooling(inside(folder, str(modules[1].get("path"))))
    if isinstance(pooling, ConfigError):
        return pooling
    return SentenceEmbeddingHead(pooling, normalize=len(kinds) == 3)


def _pooling(folder: Path) -> str | ConfigError:
    path = folder / contract.CONFIG
    config = _read(folder, contract.CONFIG)
    mode = config.get("pooling_mode")
    if mode is not None:
        modes = [mode] if isinstance(mode, str) else [str(x) for x in mode]
        known: list[str | None] = [MODES.get(x) for x in modes]
    else:
        modes = [name for name, on in config.items() if name.startswith("pooling_mode_") and on]
        known = [OLD_MODES.get(x) for x in modes]
    if len(known) != 1 or known[0] is None:
        return ConfigError(
            f"{path} has the pooling modes {', '.join(modes) or '(none)'}. Only one of mean and cls is "
            "supported; pass head=None to load the encoder alone."
        )
    return known[0]


def text_transform(folder: Path | None) -> TextTransform | None:
    """Returns the tokenizer of a folder; sentence_bert_config.json may truncate and lowercase texts."""
    transform = read_tokenizer(folder)
    if folder is None or transform is None:
        return None
    config = _read(folder, contract.SENTENCE_BERT)
    longest = config.get("max_seq_length")
    if longest is not None:
        if type(longest) is not int or longest < 1:
            name = folder / contract.SENTENCE_BERT
            raise ConfigError(f"{name} has max_seq_length={longest!r}, expected a whole number above 0.")
        transform = dataclasses.replace(transform, max_length=min(longest, transform.max_length or longest))
    return _lowercased(transform) if config.get("do_lower_case") else transform


def _lowercased(transform: TextTransform) -> TextTransform:
    tokenizer = json.loads(transform.tokenizer)
    old = tokenizer["normalizer"]
    lowercase = {"type": "Lowercase"}
    tokenizer["normalizer"] = (
        lowercase if old is None else {"type": "Sequence", "normalizers": [lowercase, old]}
    )
    return dataclasses.replace(transform, tokenizer=json.dumps(tokenizer))


def sentence_files(head: Head | None, width: int, max_length: int) -> dict[str, Any]:
    """Returns the files of a folder by name; empty for other heads.

    Without them sentence-transformers pools by the mean and does not normalize.
    """
    if not isinstance(head, SentenceEmbeddingHead):
        return {}
    steps = [("", "Transformer"), ("1_Pooling", "Pooling")]
    files: dict[str, Any] = {
        contract.SENTENCE_BERT: {"max_seq_length": max_length, "do_lower_case": False},
        contract.POOLING: {
            "word_embedding_dimension": width,
            "pooling_mode_cls_token": head.pooling == "class",
            "pooling_mode_mean_tokens": head.pooling == "mean",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    }
    if head.normalize:
        steps.append(("2_Normalize", "Normalize"))
        files[contract.NORMALIZE] = {}
    files[contract.MODULES] = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(steps)
    ]
    return files


def _read(folder: Path, name: str) -> dict[str, Any]:
    """Returns the content of a JSON file; empty if it is missing."""
    return read_json(folder, name) if (folder / name).is_file() else {}
