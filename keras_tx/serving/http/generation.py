"""Generated texts: streams of the engine, with the log probabilities and counts that clients ask for."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from keras_tx.serving.engine.stream import StreamToken, TextStream
from keras_tx.serving.http.call import Call
from keras_tx.serving.http.model_set import ServedModel

SHORT = 2000  # characters that are tokenized in less time than a thread needs to start


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a text: a token with its text, or the end of a text.

    Attributes:
        index: the number of the text.
        text: what the piece adds to the text.
        token: the token; None for characters that the end of a text adds.
        finish: why the text ended, in its last piece.
    """

    index: int
    text: str
    token: StreamToken | None
    finish: str | None = None


async def submit(
    call: Call, served: ServedModel, prompts: Sequence[Any], count: int, options: dict[str, Any]
) -> list[TextStream]:
    """Queues `count` texts for each prompt, which are cancelled when the call ends.

    The texts of a prompt have different seeds: the first one has that of the request.
    """
    streams: list[TextStream] = []
    engine = served.engine
    assert engine is not None
    for prompt in prompts:
        for number in range(count):
            one = dict(options)
            if one.get("seed") is not None:
                one["seed"] += number
            slow = "regex" in one or "json_schema" in one  # a grammar may have to be compiled
            if slow or (isinstance(prompt, str) and len(prompt) > SHORT):
                stream = await asyncio.to_thread(engine.submit, prompt, **one)
            else:
                stream = engine.submit(prompt, **one)
            call.resources.callback(stream.cancel)
            streams.append(stream)
    metrics = call.application.metrics.tokens
    metrics.labels(served.name, "prompt").inc(sum(stream.prompt_tokens for stream in streams[::count]))
    return streams


async def pieces(call: Call, served: ServedModel, index: int, stream: TextStream) -> AsyncIterator[Piece]:
    """The pieces of a text, while it is generated."""
    metrics = call.application.metrics
    first, following = metrics.first_token.labels(served.name), metrics.next_token.labels(served.name)
    generated = metrics.tokens.labels(served.name, "generated")
    last, length = 0.0, 0
    async for token in stream:
        now = time.perf_counter()
        if last:
            following.observe(now - last)
        else:
            first.observe(now - call.began)
        last = now
        generated.inc()
        length += len(token.text)
        yield Piece(index, token.text, token)
    yield Piece(index, (stream.text or "")[length:], None, stream.finish)


async def merged(call: Call, served: ServedModel, streams: Sequence[TextStream]) -> AsyncIterator[Piece]:
    """The pieces of several texts in the order in which they are generated."""
    if len(streams) == 1:
        async for piece in pieces(call, served, 0, streams[0]):
            yield piece
        return
    queue: asyncio.Queue[Piece | BaseException] = asyncio.Queue()

    async def read(index: int, stream: TextStream) -> None:
        try:
            async for piece in pieces(call, served, index, stream):
                queue.put_nowait(piece)
        except Exception as error:
            queue.put_nowait(error)

    tasks = [asyncio.create_task(read(index, stream)) for index, stream in enumerate(streams)]
    ended = 0
    try:
        while ended < len(streams):
            piece = await queue.get()
            if isinstance(piece, BaseException):
                raise piece
            ended += piece.finish is not None
            yield piece
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


async def texts(call: Call, served: ServedModel, streams: Sequence[TextStream]) -> list[list[Piece]]:
    """The pieces of each text, when all texts are complete."""
    collected: list[list[Piece]] = [[] for _ in streams]
    async for piece in merged(call, served, streams):
        collected[piece.index].append(piece)
    return collected
