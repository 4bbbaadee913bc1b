"""MicroBatcher: runs single requests of many clients in batches."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from keras_tx.contract import Manifest
from keras_tx.errors import ConfigError, KerasTxError, nearest, whole_number
from keras_tx.runtime.providers import cores
from keras_tx.runtime.tasks.base import LoadedModel, Task

MAX_TOKENS = 512  # by default; more tokens in a batch hardly raise the throughput of a CPU
MOST_PADDING = 2  # a row is padded to at most this multiple of its length
PATIENCE = 0.1  # of the time of the last batch
WINDOW = 8  # batches among whose requests the next one is selected


@dataclasses.dataclass(eq=False)
class _Job:
    item: Any
    future: Future[Any]
    tokens: int | None = None  # None until they are counted


class MicroBatcher:
    """Runs the model once for requests that arrive while it is busy.

    A request that finds the model idle runs without delay. Requests that arrive while it is busy run
    together, those of similar length first: the oldest one is always in the next batch, and no text is
    padded to more than twice its length. After a batch of several requests, the next one starts when as many
    have arrived, or after a tenth of the time that the last batch took.

    Each request has the answer that it would have alone, up to the rounding of the batch. An error affects
    only the request that causes it. Threads call the batcher; coroutines await `answer`.

    >>> batcher = MicroBatcher(load("reviews"))  # doctest: +SKIP
    >>> batcher("A very good film.")  # doctest: +SKIP
    [{'label': 'positive', 'score': 0.98}, ...]
    >>> await batcher.answer("A very good film.")  # doctest: +SKIP

    Args:
        model: a function from a list to a list of answers in the same order: a loaded model, or one of its
            methods (`model.embed`).
        max_batch: maximum number of requests in a batch.
        max_tokens: maximum number of tokens in a batch, padding included; by default 512. A longer text runs
            alone. Images of a ViT have as many tokens as patches.
        workers: number of batches that run concurrently. By default as many as the cores allow: one for a
            model that uses all cores, and one per core for a model on the CPU with `threads=1`; at least two
            for an encoder-decoder, so that a long text does not delay all others.
        count_tokens: a function of a request that returns its number of tokens. By default that of the loaded
            model; other functions have none, and then only `max_batch` applies.
        group_of: a function of a request; those for which it returns different values never run together. By
            default any requests may.
        options: arguments for every call of the model (`top_k=1`).

    Raises:
        ConfigError: if an option is out of range, or the model does not have it.
    """

    def __init__(
        self,
        model: Callable[..., Sequence[Any]],
        *,
        max_batch: int = 32,
        max_tokens: int | None = None,
        workers: int | None = None,
        count_tokens: Callable[[Any], int] | None = None,
        group_of: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> None:
        _check_options(model, options)
        loaded = getattr(model, "__self__", model)  # of a bound method
        loaded = loaded if isinstance(loaded, LoadedModel) else None
        if count_tokens is None and loaded is not None:
            count_tokens = loaded.token_counter
        if count_tokens is None and max_tokens is not None:
            raise ConfigError(
                f"max_tokens is {max_tokens!r}, but the tokens of a request are unknown. Pass count_tokens, "
                "or omit max_tokens."
            )
        self.max_batch = whole_number("max_batch", max_batch)
        self.max_tokens = whole_number("max_tokens", MAX_TOKENS if max_tokens is None else max_tokens)
        self.workers = whole_number("workers", default_workers(loaded) if workers is None else workers)
        self._model = model
        self._options = options
        self._count_tokens = count_tokens
        self._group_of = group_of
        self._changed = threading.Condition()
        self._pending: list[_Job] = []
        self._closed = False
        self._idle = 0  # workers that wait for requests or gather a batch
        self._gathering = False  # one worker at a time
        self._threads = [
            threading.Thread(target=self._work, name=f"keras-tx-batcher-{number}", daemon=True)
            for number in range(self.workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, item: Any) -> Future[Any]:
        """Queues a request and returns its future, which may be cancelled until its batch runs.

        Raises:
            KerasTxError: if the batcher is closed.
        """
        future: Future[Any] = Future()
        with self._changed:
            if self._closed:
                raise KerasTxError("This MicroBatcher is closed. Create a new one.")
            self._pending.append(_Job(item, future))
            self._changed.notify_all()
        return future

    def __call__(self, item: Any) -> Any:
        """Returns the answer to a request, or raises its error."""
        return self.submit(item).result()

    async def answer(self, item: Any) -> Any:
        """Returns the answer to a request, for asyncio."""
        return await asyncio.wrap_future(self.submit(item))

    def close(self) -> None:
        """Answers all queued requests and stops. Calling it twice is allowed; the model stays open."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> MicroBatcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        expected, until = 1, 0.0
        while (batch := self._next_batch(expected, until)) is not None:
            start = time.monotonic()
            self._run(batch)
            end = time.monotonic()
            # The clients of a batch send their next requests at about the same time, shortly after its end.
            expected, until = len(batch), end + PATIENCE * (end - start)

    def _next_batch(self, expected: int, until: float) -> list[_Job] | None:
        """Removes a batch from the queue; None if the batcher is closed and the queue is empty.

        Args:
            expected: number of requests that are likely to arrive. One is never delayed.
            until: the time until which to wait for them.
        """
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: not self._gathering and (self._pending or self._closed))
            if not self._pending:
                self._idle -= 1
                return None
            self._gathering = True
            self._changed.wait_for(
                lambda: self._closed or len(self._pending) >= expected, until - time.monotonic()
            )
            window = self._pending[: WINDOW * self.max_batch]
        failed = [job for job in window if not self._is_counted(job)]
        with self._changed:
            # Several idle workers share the requests, so that no core is idle.
            limit = min(self.max_batch, -(-len(self._pending) // self._idle))
            batch = self._select([job for job in window if job not in failed], limit)
            removed = {*batch, *failed}
            self._pending = [job for job in self._pending if job not in removed]
            self._gathering = False
            self._idle -= 1
            self._changed.notify_all()
        return [job for job in batch if job.future.set_running_or_notify_cancel()]

    def _is_counted(self, job: _Job) -> bool:
        """Counts the tokens of a request; an error is its answer."""
        if job.tokens is None:
            try:
                job.tokens = 0 if self._count_tokens is None else self._count_tokens(job.item)
            except BaseException as error:  # as in `_run`
                if job.future.set_running_or_notify_cancel():
                    job.future.set_exception(error)
                return False
        return True

    def _select(self, jobs: list[_Job], limit: int) -> list[_Job]:
        """The oldest request and those of similar length, the most similar and then the oldest first."""
        if not jobs:
            return []
        batch, first = jobs[:1], jobs[0].tokens or 0
        others = jobs[1:]
        if self._group_of is not None:
            group = self._group_of(jobs[0].item)
            others = [job for job in others if self._group_of(job.item) == group]
        shortest = longest = first
        for job in sorted(others, key=lambda job: abs((job.tokens or 0) - first)):
            if len(batch) == limit:
                break
            tokens = job.tokens or 0
            least, most = min(shortest, tokens), max(longest, tokens)
            if most <= MOST_PADDING * least and most * (len(batch) + 1) <= self.max_tokens:
                batch.append(job)
                shortest, longest = least, most
        return batch

    def _run(self, batch: list[_Job]) -> None:
        if not batch:
            return
        try:
            answers = list(self._model([job.item for job in batch], **self._options))
            if len(answers) != len(batch):
                raise ConfigError(
                    f"model returned {len(answers)} answers to {len(batch)} requests, expected one for each."
                )
        except BaseException as error:  # SystemExit too, for the caller of the future
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            half = len(batch) // 2  # to find the request that fails
            self._run(batch[:half])
            self._run(batch[half:])
            return
        for job, answer in zip(batch, answers, strict=True):
            job.future.set_result(answer)


def default_workers(model: LoadedModel | None) -> int:
    """As many as have cores of their own; more than one where a long text would delay all others."""
    if model is None:
        return 1
    least = 2 if "generation" in model.task.options else 1
    if model.provider != "cpu" or model.session.threads is None:
        return least
    return max(least, cores() // model.session.threads)


def why_alone(task: Task, manifest: Manifest, precision: str) -> str | None:
    """Why `keras-tx serve` has no MicroBatcher for a folder; None if it has one."""
    if task.answer is None:
        return "A request of arrays is a batch of its own."
    if manifest.depends_on_batch(precision):
        return (
            f"Precision {precision!r} rounds each tensor of a batch with one range, so that companions "
            "change an answer."
        )
    return None


def _check_options(model: Any, options: dict[str, Any]) -> None:
    """Raises a ConfigError for options that the model does not have."""
    if not callable(model):
        raise ConfigError(f"model is {model!r:.60}, expected a loaded model or a function of a list.")
    try:
        parameters = inspect.signature(model).parameters
    except ValueError:  # a function in C may have no signature
        return
    if any(x.kind is inspect.Parameter.VAR_KEYWORD for x in parameters.values()):
        return
    for name in options:
        if name not in parameters:
            raise ConfigError(f"model has no option {name!r}. {nearest(name, [*parameters][1:])}")
