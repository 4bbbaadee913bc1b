"""The models of a server: loaded, used by requests, replaced, and closed when no request uses them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError, FolderError, InputError, nearest
from keras_tx.runtime import LoadedModel, TextGenerator, load, verify_hashes
from keras_tx.runtime.async_call import call_async
from keras_tx.runtime.folder import read_manifest
from keras_tx.runtime.machine_memory import half_of_the_memory
from keras_tx.runtime.tasks.base import Answer, RunOptions
from keras_tx.serving.engine.text_engine import TextEngine
from keras_tx.serving.http.chat_template import ChatTemplate
from keras_tx.serving.http.json_schema import Schema
from keras_tx.serving.http.request_errors import UnavailableError, UnknownPathError
from keras_tx.serving.micro_batcher import MicroBatcher, default_workers, why_alone

ENGINE = ("max_streams", "max_queue", "cache_memory", "prefix_cache", "prompt_lookup")


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """How models are loaded and batched.

    Args:
        provider, threads, precision: as for `load`.
        truncate: whether texts longer than a model's maximum are truncated; otherwise they are refused.
        max_batch: number of requests that a graph computes together.
        max_streams, max_queue, cache_memory, prefix_cache, prompt_lookup: of a decoder, as for `TextEngine`.
            The decoders of a server share the default of `cache_memory` equally.
    """

    provider: str = "auto"
    threads: int | None = None
    precision: str | None = None
    truncate: bool = False
    max_batch: int = 32
    max_streams: int = 16
    max_queue: int = 256
    cache_memory: int | None = None
    prefix_cache: int | None = None
    prompt_lookup: bool | None = None


@dataclasses.dataclass(eq=False)
class _Job:
    """An input with its options and its adapter.

    Attributes:
        left: whether its client has left.
    """

    value: Any
    options: RunOptions
    adapter: str | None
    left: bool = False


class ServedModel:
    """A loaded model, and the number of requests that use it.

    Attributes:
        name: the name in paths.
        model: the loaded model.
        generates: whether the task generates texts.
        most_rows: number of texts and beams of a batch outside of the engine.
        engine: generates the texts of a decoder; None for other models.
        chat_template: the template of a decoder's chats, if its tokenizer has one.
        fingerprint: changes with the graph and its precision.
        loaded: when the model was loaded, in seconds since 1970.
        schemas: descriptions of requests, by name, which are computed once.
    """

    def __init__(
        self, name: str, model: LoadedModel, options: ModelOptions, observe_batch: Callable[[int], None]
    ) -> None:
        self.name = name
        self.model = model
        self.task = model.task
        self.generates = model.task.inputs == "prompt" or "generation" in model.task.options
        self.most_rows = options.max_streams if model.task.inputs == "prompt" else options.max_batch
        folder = model.folder
        graph = folder.manifest.files[folder.graph.relative_to(folder.path).as_posix()]
        self.fingerprint = f"{model.precision}-{graph.sha256[:12]}"
        self.loaded = time.time()
        self.schemas: dict[str, Schema] = {}
        self.engine: TextEngine | None = None
        self.chat_template: ChatTemplate | None = None
        if isinstance(model, TextGenerator):
            self.chat_template = None if folder.tokenizer is None else ChatTemplate.of(folder)
            self.engine = TextEngine(model, **{name: getattr(options, name) for name in ENGINE})
        self._observe_batch = observe_batch
        self._uses = 0
        self._retired = False
        self._batcher = None
        self._why_alone = why_alone(model.task, folder.manifest, model.precision)
        if self._why_alone is None:
            counted = self.generates or model.token_counter is not None
            self._batcher = MicroBatcher(
                self._run_jobs,
                max_batch=options.max_batch,
                max_tokens=options.max_batch if self.generates else None,
                workers=default_workers(model),
                count_tokens=self._count_tokens if counted else None,
                group_of=lambda job: (job.options, job.adapter),
            )

    @property
    def batching(self) -> str:
        """How requests of several clients run, as a sentence."""
        if self.engine is not None:
            reason, most = self.engine.one_by_one, self.engine.max_streams
            if reason is not None:
                return f"Texts decode one by one: {reason}"
            return f"Up to {most} texts decode in one batch, which they join and leave between any two steps."
        if self._batcher is None:
            return f"Each request runs alone. {self._why_alone}"
        if self.generates:
            return (
                f"Requests with the same options generate together, up to {self.most_rows} texts and beams. "
                "They are answered when the last text of their batch has ended."
            )
        return f"Up to {self._batcher.max_batch} requests with the same options run in one batch."

    def check_engine(self) -> None:
        """Raises an UnavailableError if the engine stopped after an unexpected error."""
        if self.engine is not None and self.engine.failure is not None:
            raise UnavailableError(
                f"{self.name} stopped after an error, which the log of the server has. Restart the server."
            )

    async def answers(self, values: Sequence[Any], options: RunOptions, adapter: str | None) -> list[Answer]:
        """The answers of the task to inputs; a single one runs in a batch with those of other requests."""
        if self._batcher is None or len(values) != 1 or "deadline" in options.generation:
            return await call_async(self._run, values, options, adapter)
        job = _Job(values[0], options, adapter)
        try:
            return [await self._batcher.answer(job)]
        finally:
            job.left = True

    def adapted(self, adapter: str | None) -> LoadedModel:
        """The model with an adapter."""
        return self.model if adapter is None else self.model.with_adapter(adapter)

    def _run(self, values: Sequence[Any], options: RunOptions, adapter: str | None) -> list[Answer]:
        assert self.task.answer is not None
        self._observe_batch(len(values))
        return self.task.answer(self.adapted(adapter), values, options)

    def _count_tokens(self, job: _Job) -> int:
        """The tokens of an input and of the other texts of its options; of generated texts, their beams."""
        options = job.options
        if self.generates:
            return self.most_rows // options.generation["batch_size"]
        count = self.model.token_counter
        assert count is not None
        others = (options.pair, options.question, *(options.choices or ()))
        return count(job.value) + sum(count(text) for text in others if text)

    def _run_jobs(self, jobs: list[_Job]) -> list[Answer]:
        """The answers to requests with the same options and adapter; a text ends when its client has left."""
        options = jobs[0].options
        if self.generates:
            ends = {"cancelled": [functools.partial(getattr, job, "left") for job in jobs]}
            options = dataclasses.replace(options, generation={**options.generation, **ends})
        return self._run([job.value for job in jobs], options, jobs[0].adapter)

    @contextlib.contextmanager
    def used(self) -> Iterator[ServedModel]:
        """Keeps the model open during a request."""
        self._uses += 1
        try:
            yield self
        finally:
            self._uses -= 1
            if self._retired and not self._uses:
                self._close()

    def retire(self) -> None:
        """Closes the model when the last request that uses it has ended."""
        self._retired = True
        if not self._uses:
            self._close()

    def _close(self) -> None:
        """Closes the model in a thread: a batch whose clients have left may still run."""
        threading.Thread(target=self._close_parts, name=f"keras-tx-close-{self.name}").start()

    def _close_parts(self) -> None:
        if self._batcher is not None:
            self._batcher.close()
        if self.engine is not None:
            self.engine.close()
        self.model.close()


class ModelSet:
    """The models of a server by name.

    Args:
        folders: the exported folder of each name.
        options: how models are loaded and batched.
        observe_batch: is called with the name of a model and the size of each batch.
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        options: ModelOptions | None = None,
        observe_batch: Callable[[str, int], None] = lambda name, size: None,
    ) -> None:
        self.folders = dict(folders)
        self._options = options or ModelOptions()
        self._observe_batch = observe_batch
        self._models: dict[str, ServedModel] = {}

    @property
    def ready(self) -> bool:
        """Whether all models are loaded."""
        return len(self._models) == len(self.folders)

    @property
    def loaded(self) -> list[ServedModel]:
        """The loaded models, in the order of the folders."""
        return [self._models[name] for name in self.folders if name in self._models]

    def get(self, name: str) -> ServedModel:
        """The model of a name; raises an UnknownPathError, or an UnavailableError while it is loaded."""
        if name in self._models:
            return self._models[name]
        if name in self.folders:
            raise UnavailableError(f"Model {name!r} is being loaded. Repeat the request later.")
        raise UnknownPathError(f"This server has no model {name!r:.60}. {nearest(name[:60], self.folders)}")

    async def load(self) -> None:
        """Loads all models; raises the error of the first that cannot be loaded."""
        for name in self.folders:
            await self.replace(name)

    async def replace(self, name: str, *, verify: bool = False) -> None:
        """Loads the folder of a name; requests that run continue with the model that it replaces.

        Args:
            name: the name of a model.
            verify: whether to compare the hash of every file first.

        Raises:
            FolderError: if the folder is damaged. The model of this name remains.
        """
        served = await asyncio.to_thread(self._open, name, verify)
        previous = self._models.get(name)
        self._models[name] = served
        if previous is not None:
            previous.retire()

    def _open(self, name: str, verify: bool) -> ServedModel:
        options = self._options
        model = load(
            self.folders[name],
            provider=options.provider,
            threads=options.threads,
            precision=options.precision,
        )
        try:
            if verify:
                verify_hashes(model.folder)
            _refuse_long_texts(model, options.truncate)
            for adapter in model.adapters:  # now, because the folder may be replaced later
                model.with_adapter(adapter)
            options = dataclasses.replace(options, cache_memory=self._cache_memory())
            return ServedModel(name, model, options, lambda size: self._observe_batch(name, size))
        except BaseException:
            model.close()
            raise

    def _cache_memory(self) -> int | None:
        """The maximum number of bytes for keys and values of each decoder."""
        memory = half_of_the_memory()
        if self._options.cache_memory is not None or memory is None:
            return self._options.cache_memory
        return memory // max(1, sum(map(_may_be_a_decoder, self.folders.values())))

    def close(self) -> None:
        """Closes all models."""
        for served in self._models.values():
            served.retire()
        self._models.clear()


def _may_be_a_decoder(folder: Path) -> bool:
    try:
        return read_manifest(folder).task == contract.TEXT_GENERATION
    except FolderError:  # it may be replaced by a decoder later
        return True


def _refuse_long_texts(model: LoadedModel, truncate: bool) -> None:
    """Makes a text model raise an error for texts that are too long, where it would warn the server only."""
    transform: Any = getattr(model, "transform", None)
    if hasattr(transform, "too_long"):
        too_long = "cut" if truncate else "raise"
        model.transform = dataclasses.replace(transform, too_long=too_long)  # type: ignore[attr-defined]


def named_folders(arguments: Sequence[str]) -> dict[str, Path]:
    """The folder of each name: FOLDER has its own name, NAME=FOLDER another.

    >>> named_folders(["models/reviews", "poet=exports/gpt"])
    {'reviews': PosixPath('models/reviews'), 'poet': PosixPath('exports/gpt')}

    Raises:
        ConfigError: if a name occurs twice, or cannot be part of a path.
        InputError: if there is no folder.
    """
    folders: dict[str, Path] = {}
    for argument in arguments:
        name, separator, rest = argument.partition("=")
        if not separator or Path(argument).exists():
            name, rest = Path(argument).resolve().name, argument
        if (
            not name
            or not all((c.isalnum() and c.isascii()) or c in "._-" for c in name)
            or name.strip(".") == ""
        ):
            raise ConfigError(
                f"{argument!r}: the name {name!r} cannot be part of an address. Pass NAME=FOLDER with "
                "letters, digits, '.', '_' and '-'."
            )
        if name in folders:
            raise ConfigError(
                f"{argument!r}: the name {name!r} occurs twice. Pass NAME=FOLDER to give one of them another."
            )
        folders[name] = Path(rest)
    if not folders:
        raise InputError("folders is empty, expected at least one exported folder.")
    return folders
