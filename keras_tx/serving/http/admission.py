"""Admission of requests: a number of them run, others wait, and the rest are refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from starlette.requests import Request

from keras_tx.errors import BusyError
from keras_tx.serving.http.disconnection import while_connected
from keras_tx.serving.http.limits import Limits


class Admission:
    """Lets `max_concurrent` requests run, and `max_queue` wait in the order of their arrival.

    A body is read before its request takes a place, so that a client that sends slowly delays no other.

    Attributes:
        running: number of requests that run.
        waiting: number of requests that wait.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._places = asyncio.Semaphore(limits.max_concurrent)
        self._reading = 0
        self.running = 0
        self.waiting = 0

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """A body is read meanwhile; raises a BusyError if the queue is full or too many bodies are read."""
        self._check_queue()
        if self._reading >= self._limits.max_concurrent + self._limits.max_queue:
            raise BusyError(
                f"The server receives the bodies of {self._reading} requests, which is its limit. Repeat the "
                "request later."
            )
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1

    @contextlib.asynccontextmanager
    async def place(self, request: Request) -> AsyncIterator[None]:
        """A place for a request whose body has been read.

        Raises:
            BusyError: if the queue is full.
            ClientDisconnect: if the client leaves before there is a place.
        """
        self._check_queue()
        if self._places.locked():
            await self._wait(request)
        else:
            await self._places.acquire()
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._places.release()

    def _check_queue(self) -> None:
        if self._places.locked() and self.waiting >= self._limits.max_queue:
            raise BusyError(
                f"{self.running} requests run and {self.waiting} wait, which is the limit of this server. "
                "Repeat the request later."
            )

    async def _wait(self, request: Request) -> None:
        """Takes a place as soon as there is one."""
        acquiring = asyncio.ensure_future(self._places.acquire())
        self.waiting += 1
        try:
            await while_connected(request, acquiring)
        except BaseException:
            if acquiring.done() and not acquiring.cancelled():
                self._places.release()
            raise
        finally:
            self.waiting -= 1
