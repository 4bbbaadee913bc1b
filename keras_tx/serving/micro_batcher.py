"""MicroBatcher: single requests of many clients, run together."""

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
    """Groups requests that arrive within a moment, so that the model runs once for several of them.

    Each gets the answer that it would get alone, to the rounding of the batch; a request that is refused
    spoils nobody else's. Threads call it, and coroutines await `answer`.

    >>> batcher = MicroBatcher(load("reviews"), max_batch=16, max_wait_ms=5)  # doctest: +SKIP
    >>> batcher("A very good film.")  # doctest: +SKIP
    [{'label': 'positive', 'score': 0.98}, ...]
    >>> await batcher.answer("A very good film.")  # doctest: +SKIP

    Args:
        model: a function of a list that gives a list of answers, in order: what `load` gives, or one of
            its methods (`model.embed`).
        max_batch: as soon as so many wait, they run.
        max_wait_ms: the longest that the first of them waits for others.
        workers: batches that run at the same time. Where the model computes on the CPU and there are always
            requests, as many workers as cores on a model with `threads=1` answer more of them in all than
            one worker whose batch is shared by all cores, since no core waits for another.
        options: arguments for every call of the model (`top_k=1`).
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
            raise ConfigError(f"max_wait_ms is {max_wait_ms!r}, expected milliseconds, 0 or more.")
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
        """The answer to come; cancelled before its batch begins, it is left out of it."""
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise KerasTxError("The batcher is closed, expected an open one; make it again.")
            self._jobs.put((item, future))
        return future

    def __call__(self, item: Any) -> Any:
        """Waits for the answer."""
        return self.submit(item).result()

    async def answer(self, item: Any) -> Any:
        """The same, awaited."""
        return await asyncio.wrap_future(self.submit(item))

    def close(self) -> None:
        """Answers what waits, and ends; a second time does nothing. The model stays open."""
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
            with self._gathering:  # one at a time: two would share what makes one batch
                batch, ended = self._gather()
            running = [job for job in batch if job[1].set_running_or_notify_cancel()]
            if running:
                self._run(running)

    def _gather(self) -> tuple[list[Job], bool]:
        """The next job and those that came in time, and whether the end came with them."""
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
                    f"The model gave {len(answers)} answers to {len(batch)} requests, expected one for each."
                )
        except BaseException as error:  # SystemExit too: who waits for the future shall hear of it
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            for job in batch:  # whose fault it is shows one by one
                self._run([job])
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            future.set_result(answer)


def _check_options(model: Any, options: dict[str, Any]) -> None:
    """Raises a ConfigError for options that the model would refuse in every request."""
    if not callable(model):
        raise ConfigError(f"model is {model!r:.60}, expected a model from `load`, or a function of a list.")
    try:
        parameters = inspect.signature(model).parameters
    except ValueError:  # a function in C may have no signature
        return
    if any(x.kind is inspect.Parameter.VAR_KEYWORD for x in parameters.values()):
        return
    for name in options:
        if name not in parameters:
            raise ConfigError(f"The model has no option {name!r}. {nearest(name, [*parameters][1:])}")
