"""Admission of requests: a number of them run, others wait, and the rest are refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from keras_tx.errors import BusyError
from keras_tx.serving.http.limits import Limits


class Admission:
    """Lets `max_concurrent` requests run, and `max_queue` wait in the order of their arrival.

    Attributes:
        running: number of requests that run.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._places = asyncio.Semaphore(limits.max_concurrent)
        self.running = 0
        self.waiting = 0

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for a request; raises a BusyError if the queue is full."""
        if self._places.locked() and self.waiting >= self._limits.max_queue:
            raise BusyError(
                f"{self.running} requests run and {self.waiting} wait, which is the limit of this server. "
                "Repeat the request later."
            )
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._places.release()
