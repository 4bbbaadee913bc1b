"""Server-sent events: objects that a client receives one by one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import StreamingResponse

from keras_tx.serving.http.call import Call

MEDIA_TYPE = "text/event-stream"


def event_stream(
    call: Call, objects: AsyncIterator[dict[str, Any]], describe: Callable[[Exception], dict[str, Any]]
) -> StreamingResponse:
    """A response with an event for each object and `[DONE]` at the end.

    An error becomes an event too, because the status has already been sent: `describe` returns its object.
    """

    async def events() -> AsyncIterator[bytes]:
        complete = False
        try:
            async for one in objects:
                yield (
                    b"data: " + json.dumps(one, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
                )
            yield b"data: [DONE]\n\n"
            complete = True
        except Exception as error:
            call.problem, complete = error, True
            yield b"data: " + json.dumps(describe(error)).encode() + b"\n\n"
        finally:
            call.left = not complete

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}  # a proxy does not collect events
    return StreamingResponse(events(), media_type=MEDIA_TYPE, headers=headers)
