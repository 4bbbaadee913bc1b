"""MicroBatcher: runs single requests of many clients in batches."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from keras_tx.errors import ConfigError, KerasTxError, nearest, whole_number

Job = tuple[Any, "Future[Any]"]


class MicroBatcher:
    """Groups requests that arrive within a short time and runs the model once for all of them.

    Each request has the answer that it would have alone, up to the rounding of the batch. An error affects
    only the request that causes it. Threads call the batcher; coroutines await `answer`.

    >>> batcher = MicroBatcher(load("reviews"), max_batch=16, max_wait_ms=5)  # doctest: +SKIP
    >>> batcher("A very good film.")  # doctest: +SKIP
    [{'label': 'positive', 'score': 0.98}, ...]
    >>> await batcher.answer("A very good film.")  # doctest: +SKIP

    Args:
        model: a function from a list to a list of answers in the same order: a loaded model, or one of its
            methods (`model.embed`).
        max_batch: maximum number of requests in a batch.
        max_wait_ms: maximum time that the first request of a batch waits for others.
        workers: number of batches that run concurrently. For a model on the CPU under constant load, as many
            workers as cores, on a model with `threads=1`, have a higher throughput than one worker whose
            batch uses all cores.
        options: arguments for every call of the model (`top_k=1`).

    Raises:
        ConfigError: if an option is out of range, or the model does not have it.
    """

    def __init__(
        self,
        model: Callable[..., Sequence[Any]],
        *,
        max_batch: int = 16,
        max_wait_ms: float = 5.0,
        workers: int = 1,
        **options: Any,
    ) -> None:
        _check_options(model, options)
        self.max_batch = whole_number("max_batch", max_batch)
        if not isinstance(max_wait_ms, int | float) or isinstance(max_wait_ms, bool) or not max_wait_ms >= 0:
            raise ConfigError(f"max_wait_ms is {max_wait_ms!r}, expected a number, 0 or more.")
        self.max_wait = max_wait_ms / 1000
        self._model = model
        self._options = options
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._closed = False
        self._lock = threading.Lock()
        self._gathering = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, name=f"keras-tx-batcher-{number}", daemon=True)
            for number in range(whole_number("workers", workers))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, item: Any) -> Future[Any]:
        """Queues a request and returns its future, which may be cancelled until its batch runs.

        Raises:
            KerasTxError: if the batcher is closed.
        """
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise KerasTxError("This MicroBatcher is closed. Create a new one.")
            self._jobs.put((item, future))
        return future

    def __call__(self, item: Any) -> Any:
        """Returns the answer to a request, or raises its error."""
        return self.submit(item).result()

    async def answer(self, item: Any) -> Any:
        """Returns the answer to a request, for asyncio."""
        return await asyncio.wrap_future(self.submit(item))

    def close(self) -> None:
        """Answers all queued requests and stops. Calling it twice is allowed; the model stays open."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> MicroBatcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self) -> None:
        ended = False
        while not ended:
            with self._gathering:  # one worker at a time, or two would split a batch
                batch, ended = self._gather()
            running = [job for job in batch if job[1].set_running_or_notify_cancel()]
            if running:
                self._run(running)

    def _gather(self) -> tuple[list[Job], bool]:
        """The next batch, and whether the batcher is closed."""
        first = self._jobs.get()
        if first is None:
            self._jobs.put(None)  # for the other workers
            return [], True
        batch, until = [first], time.monotonic() + self.max_wait
        while len(batch) < self.max_batch:
            try:
                job = self._jobs.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if job is None:
                self._jobs.put(None)
                return batch, True
            batch.append(job)
        return batch, False

    def _run(self, batch: list[Job]) -> None:
        try:
            answers = list(self._model([item for item, _ in batch], **self._options))
            if len(answers) != len(batch):
                raise ConfigError(
                    f"model returned {len(answers)} answers to {len(batch)} requests, expected one for each."
                )
        except BaseException as error:  # SystemExit too, for the caller of the future
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            for job in batch:  # one by one, to find the request that fails
                self._run([job])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            future.set_result(answer)


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
