"""A request on its way through the application, and the operations that answer requests."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from keras_tx.serving.http.limits import Limits
from keras_tx.serving.http.model_set import ModelSet, ServedModel

if TYPE_CHECKING:
    from keras_tx.serving.http.application import Application


@dataclasses.dataclass
class Call:
    """A request: its application, its id, the time of its arrival, and the name of the model that it uses.

    Attributes:
        resources: what is released when the answer has been sent.
        problem: the error that the answer describes.
        left: whether the client left during a streamed answer.
    """

    application: Application
    request: Request
    id: str
    began: float
    resources: contextlib.AsyncExitStack
    model: str = ""
    problem: BaseException | None = None
    left: bool = False

    @property
    def limits(self) -> Limits:
        return self.application.limits

    @property
    def models(self) -> ModelSet:
        return self.application.models

    def use(self, name: str) -> ServedModel:
        """The model of a name, which stays open until the answer has been sent."""
        served = self.models.get(name)
        self.model = name
        return self.resources.enter_context(served.used())


@dataclasses.dataclass(frozen=True)
class Operation:
    """A method of a path.

    Attributes:
        answer: computes the response.
        summary: a line for /docs.
        public: whether it needs no key.
        computes: whether it runs a model: it is then limited by `max_concurrent`, and refused while draining.
    """

    answer: Callable[[Call], Awaitable[Response]]
    summary: str
    public: bool = False
    computes: bool = False


Operations = Mapping[str, Operation]  # by method
