"""Text-to-text generation with an exported encoder-decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError, FolderError, InputError, TextError
from keras_tx.generation import Seq2SeqGenerator
from keras_tx.generation.defaults import read_defaults
from keras_tx.runtime.cached_decoder import context_of
from keras_tx.runtime.encoder_decoder import GraphEncoderDecoder
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.base import Answer, DrawBar, LoadedModel, RunOptions, Task, check_tensors
from keras_tx.runtime.tasks.text_generation import read_checked_tokenizer, run_example, stop_ids


class TextToTextGenerator(LoadedModel, Seq2SeqGenerator):
    """Generates, streams and scores target texts of source texts.

    A source is a string if the folder has a tokenizer, or token ids. It is encoded once, and the keys and
    values that the decoder computes from it stay on the device.

    >>> model = load("t5")  # doctest: +SKIP
    >>> model.generate("translate English to German: Good morning", num_beams=4).text  # doctest: +SKIP
    'Guten Morgen'
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        LoadedModel.__init__(self, folder, session)
        if folder.encoder is None or folder.manifest.encoder is None:
            raise FolderError(
                f"{folder.path / contract.MANIFEST} has no encoder, which the task {folder.manifest.task!r} "
                "needs. Export again."
            )
        specs, path = folder.manifest.encoder, folder.path / contract.GENERATION_CONFIG
        self.encoder_session = Session(folder.encoder, session.provider, session.threads, session.weights)
        try:
            specs, path = folder.manifest.encoder, folder.path / contract.GENERATION_CONFIG
            check_tensors(folder, self.encoder_session, specs.inputs, specs.outputs)
            model = GraphEncoderDecoder(self.encoder_session, session, context_of(folder))
            size = model.vocabulary_size
            tokenizers = (folder.tokenizer, folder.target_tokenizer)
            source, target = (path and read_checked_tokenizer(path, size) for path in tokenizers)
            Seq2SeqGenerator.__init__(
                self,
                model,
                _start_id(folder, size),
                stop_ids(folder, size),
                str(folder.path),
                source,
                target,
                read_defaults(folder.generation or {}, contract.GENERATION_CONFIG),
            )
        except ConfigError as error:
            self.encoder_session.close()
            raise FolderError(f"{path}: {error}") from error
        except Exception:
            self.encoder_session.close()
            raise

    def __call__(self, texts: Any, **options: Any) -> Any:
        """Calls `generate`."""
        return self.generate(texts, **options)

    @property
    def sessions(self) -> tuple[Session, ...]:
        return self.encoder_session, self.session

    @property
    def context(self) -> int:
        """The maximum number of tokens of a source, and of a target."""
        return self.decoder.context

    def texts(self, sources: Any, options: dict[str, Any]) -> Any:
        """The generated texts as strings, of the same structure as the results of `generate`."""
        if self.target_tokenizer is None:
            raise InputError(f"{self.name} has no {contract.TOKENIZER}. Call generate with token ids.")
        return _as_strings(self.generate(sources, **options))

    def _summary(self) -> str:
        return f"{self.decoder.vocabulary_size} tokens, context {self.context},"


def _as_strings(results: Any) -> Any:
    return [_as_strings(x) for x in results] if isinstance(results, list) else results.text


def _start_id(folder: Folder, vocabulary_size: int) -> int:
    """The decoder's first token, by generation_config.json."""
    value = (folder.generation or {}).get("decoder_start_token_id")
    if type(value) is not int or not 0 <= value < vocabulary_size:
        raise FolderError(
            f"{folder.path / contract.GENERATION_CONFIG}: decoder_start_token_id is {value!r}, expected an "
            f"id from 0 to {vocabulary_size - 1}. Export again."
        )
    return value


def answer_with(name: str) -> Any:
    """The `answer` of a task whose texts have this name in `keras-tx run --json`."""

    def answer(model: TextToTextGenerator, texts: Sequence[str], options: RunOptions) -> list[Answer]:
        try:
            return [{name: text} for text in model.texts(list(texts), {})]
        except InputError as error:
            raise TextError(str(error)) from error

    return answer


def render(answer: Answer, draw_bar: DrawBar) -> Iterator[str]:
    yield from (f"  {line}" for line in answer[next(reversed(answer))].splitlines() or [""])


TASK = Task(
    contract.TEXT2TEXT_GENERATION,
    TextToTextGenerator,
    "text",
    accepts_ids=True,
    metric="-log(perplexity)",
    answer=answer_with("generated_text"),
    render=render,
    run_example=run_example,
)
