"""Calls for asyncio: they run in a thread, and stop when they are cancelled."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

_RUNNING: contextvars.ContextVar[Any] = contextvars.ContextVar("_RUNNING", default=None)


def run_options() -> Any:
    """onnxruntime's RunOptions of the current asyncio call; None outside of one."""
    return _RUNNING.get()


def quiet_options() -> Any:
    """RunOptions that print nothing, because errors are raised."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    # The default; where it is not set, each run of onnxruntime 1.31 raises and catches an exception.
    options.add_run_config_entry("gpu_graph_id", "0")
    return options


async def call_async(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Runs `function(*args, **options)` in a thread.

    If the asyncio task is cancelled, the graph stops at its next node, and the session can be used again.
    """
    import asyncio  # takes 15 ms

    stop = quiet_options()
    context = contextvars.copy_context()
    context.run(_RUNNING.set, stop)
    loop = asyncio.get_running_loop()
    future = loop.run_in_executor(None, lambda: context.run(function, *args, **options))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop.terminate = True
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # marks it as read
        raise
