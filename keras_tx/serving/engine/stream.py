"""TextStream: the tokens of a request, for the thread or coroutine of its client."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import queue
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_tx.generation import Generation
    from keras_tx.serving.engine.sequence import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class StreamToken:
    """A token of a stream.

    Attributes:
        id: the token id.
        text: whole characters that the token adds to the text, without a part of a stop string; "" while a
            character is incomplete, and without a tokenizer.
        logprob: its log probability by the model, before penalty and temperature, if requested.
        top_logprobs: id and log probability of the likeliest tokens, likeliest first, if requested.
    """

    id: int
    text: str
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] | None = None


class Outbox:
    """The tokens that the client has not read, and the result."""

    def __init__(self) -> None:
        self._tokens: queue.SimpleQueue[StreamToken | None] = queue.SimpleQueue()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self.result: Future[Generation] = Future()

    def put(self, token: StreamToken | None) -> None:
        """Appends a token; None is the end."""
        self._tokens.put(token)
        if self._waiter is not None:
            loop, event = self._waiter
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(event.set)

    def end(self, outcome: Generation | BaseException) -> None:
        """Sets the result, or the error."""
        if isinstance(outcome, BaseException):
            self.result.set_exception(outcome)
        else:
            self.result.set_result(outcome)
        self.put(None)

    def get(self) -> StreamToken | None:
        """Waits for the next token; None at the end."""
        return self._after(self._tokens.get())

    async def get_async(self) -> StreamToken | None:
        """Waits for the next token; None at the end."""
        event = asyncio.Event()
        self._waiter = asyncio.get_running_loop(), event
        while True:
            try:
                return self._after(self._tokens.get_nowait())
            except queue.Empty:
                event.clear()  # tokens that arrive from here on set it again, in this loop
                await event.wait()

    def _after(self, token: StreamToken | None) -> StreamToken | None:
        if token is None:
            self._tokens.put(None)  # for the next reader
            if (error := self.result.exception()) is not None:
                raise error
        return token


class TextStream:
    """A text that is being generated; an iterator over its tokens, and an asynchronous one.

    Its iterators raise the stream's error. The text ends within one step as "cancelled" if an iterator is
    closed before the end, for example by `break`, or if the stream is deleted.

    >>> for token in engine.submit("To be", max_new_tokens=64):  # doctest: +SKIP
    ...     print(token.text, end="")
    """

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._outbox = sequence.outbox

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of the prompt."""
        return self._sequence.prompt_length

    @property
    def cached_tokens(self) -> int:
        """The number of tokens of the prompt that the prefix cache had."""
        return self._sequence.restored

    @property
    def ids(self) -> tuple[int, ...]:
        """The new tokens so far."""
        return tuple(self._sequence.ids[self.prompt_tokens :])

    @property
    def text(self) -> str | None:
        """The text so far; None without a tokenizer."""
        result = self._outbox.result
        ended = result.done() and not result.exception()
        return result.result().text if ended else self._sequence.text

    @property
    def finish(self) -> str | None:
        """Why the text ended: "stop", "length", "context", "deadline" or "cancelled"; None before."""
        result = self._outbox.result
        return result.result().finish if result.done() and not result.exception() else None

    def cancel(self) -> None:
        """Ends the text within one step, as "cancelled"."""
        self._sequence.cancelled = True

    def result(self, timeout: float | None = None) -> Generation:
        """Waits for the end, and returns the generated text.

        Raises:
            TimeoutError: if it does not end within `timeout` seconds.
        """
        return self._outbox.result.result(timeout)

    async def answer(self) -> Generation:
        """Waits for the end, and returns the generated text; if the task is cancelled, so is the text."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake(_: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.set)

        self._outbox.result.add_done_callback(wake)
        try:
            await ended.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self._outbox.result.result()

    def __iter__(self) -> Iterator[StreamToken]:
        try:
            while (token := self._outbox.get()) is not None:
                yield token
        finally:
            self.cancel()

    async def __aiter__(self) -> AsyncIterator[StreamToken]:
        try:
            while (token := await self._outbox.get_async()) is not None:
                yield token
        finally:
            self.cancel()

    def __del__(self) -> None:
        self.cancel()
