"""TextEngine: generates the texts of many clients together."""

from __future__ import annotations

import collections.abc
import dataclasses
import threading
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any

from keras_tx.errors import BusyError, ConfigError, KerasTxError, true_or_false, whole_number
from keras_tx.runtime.machine_memory import half_of_the_memory
from keras_tx.serving.engine.cache_rows import bytes_per_token
from keras_tx.serving.engine.lane import Lane
from keras_tx.serving.engine.prefix_cache import PrefixCache
from keras_tx.serving.engine.scheduler import Scheduler
from keras_tx.serving.engine.sequence import Sequence
from keras_tx.serving.engine.stream import TextStream

if TYPE_CHECKING:
    from keras_tx.generation.generator import Prompt
    from keras_tx.runtime.tasks.text_generation import TextGenerator

PREFIX_BYTES = 256 * 2**20


@dataclasses.dataclass(frozen=True)
class EngineStats:
    """The state of an engine, and counts since its start.

    Attributes:
        running: streams in the cache.
        waiting: streams in the queue.
        free: streams that may join before the queue begins.
        cache_bytes: memory of keys and values of the running streams, once their texts are complete.
        prefix_bytes: memory of the prefix cache.
        prefix_hits: streams whose prompt began with tokens of the prefix cache.
        requests: streams that were accepted.
        tokens: generated tokens.
        guessed_tokens: tokens that prompt lookup guessed.
        accepted_tokens: guessed tokens that were right.
    """

    running: int
    waiting: int
    free: int
    cache_bytes: int
    prefix_bytes: int
    prefix_hits: int
    requests: int
    tokens: int
    guessed_tokens: int
    accepted_tokens: int


class TextEngine:
    """Generates the texts of many clients: streams join and leave between any two decode steps.

    A text has the tokens that `model.stream` returns for its prompt alone, up to the rounding of a batch:
    like `stream`, the engine has no beam search, even if the model's defaults have one.
    Streams are admitted in the order of their arrival. Long prompts are prefilled in chunks between the
    decode steps of the others. Threads and coroutines may share an engine.

    >>> engine = TextEngine(load("poet"), max_streams=16)  # doctest: +SKIP
    >>> stream = engine.submit("To be", max_new_tokens=64, top_k=40)  # doctest: +SKIP
    >>> for token in stream:  # doctest: +SKIP
    ...     print(token.text, end="")

    Args:
        model: a loaded decoder. The engine does not close it.
        max_streams: maximum number of streams that run together.
        max_queue: maximum number of further streams that wait.
        cache_memory: maximum number of bytes for keys and values; a stream is admitted when the memory for
            its prompt and `max_new_tokens` is free. By default half of the memory of the machine or the
            container, or no limit where its size is unknown (Windows).
        prefix_cache: maximum number of bytes for keys and values of earlier texts, whose tokens are not
            prefilled again at the beginning of a prompt; 0 for none. By default 256 MB where it is supported:
            if streams run in batches.
        prompt_lookup: whether a stream that runs alone guesses tokens that followed the same tokens earlier
            in the text, and verifies them in one run. It has the same tokens. By default where it is
            supported: if streams run in batches.

    Attributes:
        one_by_one: why streams decode one by one instead of in a batch; None if they run in a batch.

    Raises:
        ConfigError: if the model is not a decoder, or an option is out of range.
    """

    def __init__(
        self,
        model: TextGenerator,
        *,
        max_streams: int = 16,
        max_queue: int = 256,
        cache_memory: int | None = None,
        prefix_cache: int | None = None,
        prompt_lookup: bool | None = None,
    ) -> None:
        from keras_tx.runtime import TextGenerator

        if not isinstance(model, TextGenerator):
            raise ConfigError(
                f"model is {model!r:.80}, expected a loaded decoder. Use MicroBatcher for other models."
            )
        self.model = model
        self.max_streams = whole_number("max_streams", max_streams)
        self.max_queue = whole_number("max_queue", max_queue)
        self.cache_memory = (
            half_of_the_memory() if cache_memory is None else whole_number("cache_memory", cache_memory)
        )
        self.one_by_one = _one_by_one(model)
        self._prefixes = self._prefix_cache(prefix_cache)
        self._lookup = self._supported(
            "prompt_lookup",
            None if prompt_lookup is None else true_or_false("prompt_lookup", prompt_lookup),
        )
        self._scheduler = Scheduler(self.max_streams, self.cache_memory, self._open_lane)
        self._generators: dict[str | None, TextGenerator] = {None: model}
        self._arrived: deque[Sequence] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._failure: BaseException | None = None
        self._requests = 0
        self._thread = threading.Thread(target=self._work, name="keras-tx-text-engine", daemon=True)
        self._thread.start()

    def submit(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 128,
        stop: str | collections.abc.Sequence[str] = (),
        stop_tokens: collections.abc.Sequence[int] | None = None,
        deadline: float | None = None,
        regex: str | None = None,
        json_schema: dict[str, Any] | str | None = None,
        logprobs: int | None = None,
        adapter: str | None = None,
        **options: Any,
    ) -> TextStream:
        """Queues a text and returns its stream.

        Args:
            prompt: a text, or token ids.
            deadline: seconds from now after which no new token is started.
            logprobs: number of likeliest tokens whose log probabilities each token has, beside its own; 0 for
                its own only, None for none.
            adapter: name of an adapter of the folder.
            max_new_tokens: and the other options: see `TextGenerator.generate`.

        Raises:
            InputError: if the prompt is not valid or longer than the context.
            ConfigError: if an option is unknown or out of range, or `cache_memory` is too small for the text.
            BusyError: if the queue is full.
            KerasTxError: if the engine is closed.
        """
        generator = self._generator(adapter)
        size = generator.decoder.vocabulary_size
        top = 0 if logprobs is None else whole_number("logprobs", logprobs, least=0)
        if top > size:
            raise ConfigError(f"logprobs is {logprobs}, expected at most {size}, the number of token ids.")
        ids, request = generator.check_stream(
            self.submit,
            prompt,
            max_new_tokens=max_new_tokens,
            stop=stop,
            stop_tokens=stop_tokens,
            deadline=deadline,
            regex=regex,
            json_schema=json_schema,
            options=options,
            log_probabilities=logprobs is not None,
        )
        sequence = Sequence(ids, request, generator, adapter, top)
        self._check_memory(sequence)
        with self._changed:
            if self._closed:
                raise KerasTxError("This TextEngine is closed. Create a new one.") from self._failure
            waiting = self._waiting()
            if waiting >= self.max_queue + self.max_streams - len(self._scheduler.running):
                raise BusyError(f"The queue is full: {waiting} streams wait. Try again later.")
            self._arrived.append(sequence)
            self._requests += 1
            self._changed.notify()
        return TextStream(sequence)

    @property
    def stats(self) -> EngineStats:
        """The number of streams, and counts since the start."""
        scheduler, lanes = self._scheduler, self._scheduler.lanes
        running, waiting = len(scheduler.running), self._waiting()
        return EngineStats(
            running,
            waiting,
            max(0, self.max_streams - running - waiting),
            scheduler.cache_bytes,
            0 if self._prefixes is None else self._prefixes.num_bytes,
            0 if self._prefixes is None else self._prefixes.hits,
            self._requests,
            sum(lane.tokens for lane in lanes),
            sum(lane.guessed for lane in lanes),
            sum(lane.accepted for lane in lanes),
        )

    @property
    def failure(self) -> BaseException | None:
        """The unexpected error after which the engine stopped; None while it runs."""
        return self._failure

    def close(self) -> None:
        """Ends all streams with an error, and stops. Calling it twice is allowed; the model stays open."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> TextEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _waiting(self) -> int:
        return len(self._arrived) + len(self._scheduler.waiting)

    def _generator(self, adapter: str | None) -> TextGenerator:
        if adapter not in self._generators:
            self._generators.setdefault(adapter, self.model.with_adapter(str(adapter)))
        return self._generators[adapter]

    def _open_lane(self, generator: TextGenerator) -> Lane:
        batched = self.one_by_one is None
        return Lane(generator, self.max_streams, batched, self._prefixes, self._lookup)

    def _prefix_cache(self, most_bytes: int | None) -> PrefixCache | None:
        if most_bytes is not None:
            whole_number("prefix_cache", most_bytes, least=0)
        if not self._supported("prefix_cache", most_bytes):
            return None
        return PrefixCache(PREFIX_BYTES if most_bytes is None else most_bytes)

    def _supported(self, name: str, value: bool | int | None) -> bool:
        """Whether an option is on, by default if streams run in batches; a ConfigError if they do not."""
        if value and self.one_by_one is not None:
            raise ConfigError(f"{name}={value} is not supported here: {self.one_by_one}")
        return self.one_by_one is None if value is None else bool(value)

    def _check_memory(self, sequence: Sequence) -> None:
        """Raises a ConfigError for a text that `cache_memory` is too small for."""
        per_token = bytes_per_token(sequence.generator.decoder)
        if self.cache_memory is not None and sequence.reserved * per_token > self.cache_memory:
            raise ConfigError(
                f"A text of {sequence.reserved} tokens needs {sequence.reserved * per_token} bytes, but "
                f"cache_memory is {self.cache_memory}. Pass a smaller max_new_tokens or a shorter prompt."
            )

    def _work(self) -> None:
        error: BaseException = KerasTxError("The TextEngine was closed before the text was complete.")
        try:
            while self._collect():
                self._scheduler.step()
        except BaseException as unexpected:
            self._failure = unexpected
            error = KerasTxError(f"The TextEngine stopped after an error: {unexpected!r:.200}.")
            error.__cause__ = unexpected
            raise
        finally:
            with self._changed:
                self._closed = True
                self._scheduler.waiting.extend(self._arrived)
                self._arrived.clear()
            self._scheduler.end_all(error)

    def _collect(self) -> bool:
        """Waits for streams and queues them; returns False when the engine is closed."""
        with self._changed:
            while not (self._closed or self._arrived or self._scheduler.busy):
                self._changed.wait()
            self._scheduler.waiting.extend(self._arrived)
            self._arrived.clear()
            return not self._closed


def _one_by_one(model: TextGenerator) -> str | None:
    """Why texts of a model cannot run in one batch; None if they can."""
    if model.folder.manifest.depends_on_batch(model.precision):
        return (
            f"precision {model.precision!r} rounds all activations of a run with one range, so that "
            "companions change a text. Use 'int8' or 'int4' for batches."
        )
    if model.session.graph != model.folder.shared:
        return (
            f"{model.session.graph.name} on {model.provider} copies its cache in each step. For batches, "
            "export with cache='shared', and load fp32, int8 or int4 with provider='cpu'."
        )
    return None
