"""Text-to-text generation with an exported encoder-decoder."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError, FolderError, InputError, TextError, nearest
from keras_tx.generation import Seq2SeqGenerator
from keras_tx.generation.defaults import effective_options, read_task
from keras_tx.generation.generator import is_one
from keras_tx.generation.seq2seq import empty_source
from keras_tx.runtime.cached_decoder import context_of
from keras_tx.runtime.encoder_decoder import GraphEncoderDecoder, Seq2SeqSignature
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.base import (
    Answer,
    DrawBar,
    LoadedModel,
    RunOptions,
    Task,
    check_tensors,
    per_adapter,
)
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
        weights = session.weights
        if weights is not None:
            size = Seq2SeqSignature.of(session).vocabulary_size
            weights = weights.with_tables(folder.encoder, size)
        self.encoder_session = Session(folder.encoder, session.provider, session.threads, weights)
        try:
            specs, path = folder.manifest.encoder, folder.path / contract.GENERATION_CONFIG
            check_tensors(folder, self.encoder_session, specs.inputs, specs.outputs)
            self.prepare()
            size = self.model.vocabulary_size
            tokenizers = (folder.tokenizer, folder.target_tokenizer)
            source, target = (path and read_checked_tokenizer(path, size) for path in tokenizers)
            Seq2SeqGenerator.__init__(
                self,
                self.model,
                _start_id(folder, size),
                stop_ids(folder, size),
                str(folder.path),
                source,
                target,
                effective_options(folder.generation or {}),
            )
            path = folder.path / contract.CONFIG
            for name in self._tasks:
                self.of_task(name)
        except ConfigError as error:
            self.encoder_session.close()
            raise FolderError(f"{path}: {error}") from error
        except Exception:
            self.encoder_session.close()
            raise

    def prepare(self) -> None:
        self.model = GraphEncoderDecoder(self.encoder_session, self.session, context_of(self.folder))
        self.decoder = self.model

    generate = per_adapter(Seq2SeqGenerator.generate)
    stream = per_adapter(Seq2SeqGenerator.stream)
    next = per_adapter(Seq2SeqGenerator.next)
    score = per_adapter(Seq2SeqGenerator.score)

    def __call__(self, texts: Any, **options: Any) -> Any:
        """Calls `generate`."""
        return self.generate(texts, **options)

    @property
    def sessions(self) -> tuple[Session, ...]:
        return self.encoder_session, self.session

    @sessions.setter
    def sessions(self, sessions: tuple[Session, ...]) -> None:
        self.encoder_session, self.session = sessions

    @property
    def context(self) -> int:
        """The maximum number of tokens of a source, and of a target."""
        return self.decoder.context

    def texts(self, sources: Any, options: dict[str, Any], task: str | None = None) -> Any:
        """The generated texts as strings, of the same structure as the results of `generate`.

        The prefix and the options of a task are those of task_specific_params in config.json. Without `task`,
        they are those of the folder's own task, if config.json has it.
        """
        if self.target_tokenizer is None:
            raise InputError(f"{self.name} has no {contract.TOKENIZER}. Call generate with token ids.")
        prefix, defaults, longest = self.of_task(task)
        generator = copy.copy(self)
        generator.defaults = defaults
        options = options if longest is None else {"max_new_tokens": longest, **options}
        return _as_strings(generator.generate(_with_prefix(prefix, sources), **options))

    @property
    def _tasks(self) -> Mapping[str, Mapping[str, Any]]:
        return (self.folder.config or {}).get("task_specific_params") or {}

    def of_task(self, task: str | None = None) -> tuple[str, Mapping[str, Any], int | None]:
        """The prefix of the sources of a task, its default options, and its max_new_tokens."""
        tasks = self._tasks
        if task is not None and task not in tasks:
            raise ConfigError(
                f"task={task!r} is not in task_specific_params of {self.folder.path / contract.CONFIG}. "
                + (nearest(str(task), tasks) if tasks else "Omit task=.")
            )
        name = self.folder.manifest.task if task is None else task
        if name is None or name not in tasks:
            return "", self.defaults, None
        return read_task(tasks[name], self.defaults, f"task_specific_params of {name!r}")

    def _summary(self) -> str:
        return f"{self.decoder.vocabulary_size} tokens, context {self.context},"


def _with_prefix(prefix: str, sources: Any) -> Any:
    """Sources with a prefix; raises an InputError for empty ones, and for token ids, which cannot have it."""
    if not prefix:
        return sources
    single = is_one(sources)
    texts = [sources] if single else list(sources)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(
                f"source {index} is {text!r:.60}, but the task has the prefix {prefix!r}, which is added to "
                "text. Pass text, or call generate with the ids of the prefix and the text."
            )
        if not text.strip():
            raise empty_source(f"source {index}")
    texts = [prefix + text for text in texts]
    return texts[0] if single else texts


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
            return [{name: text} for text in model.texts(list(texts), dict(options.generation))]
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
    options=("generation",),
    metric="-log(perplexity)",
    answer=answer_with("generated_text"),
    render=render,
    run_example=run_example,
)
