"""Errors of requests: the class of an error determines its HTTP status."""

from __future__ import annotations

from keras_tx.errors import (
    BusyError,
    ConfigError,
    FolderError,
    ImageError,
    InputError,
    KerasTxError,
    ProviderError,
    RunError,
    TextError,
)

RETRY_AFTER = 1  # seconds after which a client may repeat a request that has the status 429 or 503
CLIENT, TOO_LARGE, BUSY, OURS = "invalid_request_error", "too_large_error", "busy_error", "server_error"


class RequestError(KerasTxError):
    """A request that the server does not answer. Subclasses have a status and the kind of error."""

    status = 400
    kind = CLIENT


class MalformedRequestError(RequestError):
    """The body is not in the format of its Content-Type: 400."""


class UnauthorizedError(RequestError):
    """The key is missing or wrong: 401."""

    status = 401


class ForbiddenError(RequestError):
    """A page of another origin sent the request: 403."""

    status = 403


class UnknownPathError(RequestError):
    """The path, the model or its version does not exist: 404."""

    status = 404


class MethodError(RequestError):
    """The path does not have this method: 405."""

    status = 405

    def __init__(self, message: str, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allowed = allowed


class SlowRequestError(RequestError):
    """The body did not arrive in time: 408."""

    status = 408


class TooLargeError(RequestError):
    """The body or an image is too large: 413."""

    status = 413
    kind = TOO_LARGE


class MediaTypeError(RequestError):
    """The Content-Type or Content-Encoding is not supported: 415."""

    status = 415


class UnavailableError(RequestError):
    """The model is being loaded or stopped after an error, or the server stops: 503, with Retry-After."""

    status = 503
    kind = BUSY


# Errors that the values of a request cause are the client's, with the status 422. A full queue has 429. All
# others are ours.
STATUS: dict[type[KerasTxError], tuple[int, str]] = {
    BusyError: (429, BUSY),
    ConfigError: (422, CLIENT),
    ImageError: (422, CLIENT),
    InputError: (422, CLIENT),
    TextError: (422, CLIENT),
    FolderError: (500, OURS),
    ProviderError: (500, OURS),
    RunError: (500, OURS),
}


def status_of(error: BaseException) -> tuple[int, str]:
    """The HTTP status and the kind of an error: the client's, too large, busy, or the server's own.

    >>> status_of(InputError("top_k is 0"))
    (422, 'invalid_request_error')
    """
    if isinstance(error, RequestError):
        return error.status, error.kind
    kinds = (STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    return next(kinds, (500, OURS))
