"""Text generation with an exported decoder and its cache of keys and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError, FolderError
from keras_tx.generation import Generator
from keras_tx.generation.defaults import effective_options
from keras_tx.processing import TextTransform
from keras_tx.processing.detokenizer import read_tokenizer
from keras_tx.runtime.cached_decoder import CachedDecoder, context_of
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session
from keras_tx.runtime.shared_cache import SharedCacheDecoder
from keras_tx.runtime.tasks.base import LoadedModel, Task, per_adapter
from keras_tx.runtime.tasks.text_task import EXAMPLE_TOKENS


class TextGenerator(LoadedModel, Generator):
    """Generates, streams and scores texts.

    A prompt is a string if the folder has a tokenizer, or token ids. An empty prompt starts from the
    end-of-text token.

    >>> poet = load("poet")  # doctest: +SKIP
    >>> for piece in poet.stream("To be", max_new_tokens=64, top_k=40, seed=0):  # doctest: +SKIP
    ...     print(piece, end="")
    >>> poet.generate(["To be", "Or not"], stop="\\n")[1].text  # doctest: +SKIP
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        LoadedModel.__init__(self, folder, session)
        self.prepare()
        size = self.decoder.vocabulary_size
        tokenizer = None if folder.tokenizer is None else read_checked_tokenizer(folder.tokenizer, size)
        stops, name = stop_ids(folder, size), str(folder.path)
        try:
            defaults = effective_options(folder.generation or {})
            Generator.__init__(self, self.decoder, stops, name, tokenizer, defaults)
        except ConfigError as error:
            raise FolderError(f"{folder.path / contract.GENERATION_CONFIG}: {error}") from error

    def prepare(self) -> None:
        kind = SharedCacheDecoder if self.session.graph == self.folder.shared else CachedDecoder
        self.decoder = kind(self.session, context_of(self.folder))

    generate = per_adapter(Generator.generate)
    stream = per_adapter(Generator.stream)
    next = per_adapter(Generator.next)
    score = per_adapter(Generator.score)

    def __call__(self, prompts: Any, **options: Any) -> Any:
        """Calls `generate`."""
        return self.generate(prompts, **options)

    @property
    def context(self) -> int:
        """The maximum number of tokens, prompt included."""
        return self.decoder.context

    def _summary(self) -> str:
        return f"{self.decoder.vocabulary_size} tokens, context {self.context},"


def read_checked_tokenizer(path: Path, vocabulary_size: int) -> Any:
    """The tokenizer of a folder; raises a FolderError if it is damaged or has more ids than the graph."""
    try:
        tokenizer = read_tokenizer(path)
    except ImportError:
        raise
    except Exception as error:  # tokenizers raises plain exceptions
        raise FolderError(f"{path} is not a valid tokenizer ({error}). Export again.") from error
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > vocabulary_size:
        raise FolderError(f"{path} has {size} tokens, but the graph {vocabulary_size} logits. Export again.")
    return tokenizer


def stop_ids(folder: Folder, vocabulary_size: int) -> frozenset[int]:
    """The end-of-text tokens of generation_config.json: one id, or a list."""
    value = (folder.generation or {}).get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(i) is int and 0 <= i < vocabulary_size for i in ids):
        raise FolderError(
            f"{folder.path / contract.GENERATION_CONFIG}: eos_token_id {value!r} is out of range: the "
            f"vocabulary has {vocabulary_size} tokens. Export again."
        )
    return frozenset(ids)


def run_example(model: TextGenerator) -> str:
    """Generates a token after a text of the model's own vocabulary."""
    if model.folder.tokenizer is None:
        return ""
    transform = TextTransform.load(model.folder.path)
    ids = sorted(transform.vocabulary.values())
    text = transform.decode(ids[len(ids) // 2 :][:EXAMPLE_TOKENS])
    model.generate(text, max_new_tokens=1)
    (row,) = transform.encode([text])
    return f"answers a text of {len(row)} tokens"


TASK = Task(
    contract.TEXT_GENERATION, TextGenerator, "prompt", metric="-log(perplexity)", run_example=run_example
)
