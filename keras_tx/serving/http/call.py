"""A request on its way through the application, and the operations that answer requests."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from keras_tx.errors import KerasTxError
from keras_tx.serving.http.json_schema import Schema
from keras_tx.serving.http.limits import Limits
from keras_tx.serving.http.model_set import ModelSet, ServedModel
from keras_tx.serving.http.request_errors import status_of

if TYPE_CHECKING:
    from keras_tx.serving.http.application import Application

Content = Mapping[str, Schema]  # the schema of each media type


@dataclasses.dataclass
class Call:
    """A request: its application, its id, the time of its arrival, and the name of the model that it uses.

    Attributes:
        content: the body, of an operation that computes.
        resources: what is released when the answer has been sent.
        problem: the error that the answer describes.
        left: whether the client left during a streamed answer.
    """

    application: Application
    request: Request
    id: str
    began: float
    resources: contextlib.AsyncExitStack
    content: bytes = b""
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

    def describe_error(self, error: Exception) -> dict[str, Any]:
        """An error as OpenAI's clients read it, without paths of the server and internal messages."""
        _, kind = status_of(error)
        message, code = str(error), type(error).__name__
        if not isinstance(error, KerasTxError):
            message = f"Internal error in request {self.id}. The log of the server has more."
            code = "InternalError"
        folder = self.models.folders.get(self.model)
        if folder is not None:
            message = message.replace(str(folder), self.model)
        return {"message": message, "type": kind, "param": None, "code": code}


@dataclasses.dataclass(frozen=True)
class Operation:
    """A method of a path.

    Attributes:
        answer: computes the response.
        summary: a line for /docs.
        public: whether it needs no key.
        computes: whether it runs a model: it is then limited by `max_concurrent`, and refused while draining.
        body: describes the body for the model in the path, by media type; None for a model that has none.
        serves: whether the field `model` of the body may name a model.
        returns: describes the answer, by media type.
    """

    answer: Callable[[Call], Awaitable[Response]]
    summary: str
    public: bool = False
    computes: bool = False
    body: Callable[[Any, Limits], Content | None] | None = None
    serves: Callable[[ServedModel], bool] | None = None
    returns: Content = dataclasses.field(default_factory=lambda: {"application/json": {"type": "object"}})


Operations = Mapping[str, Operation]  # by method
