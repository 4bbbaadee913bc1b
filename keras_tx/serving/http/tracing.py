"""A span of OpenTelemetry for each request, if the package is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

try:
    from opentelemetry import propagate, trace
except ImportError:  # optional: without it, nothing is recorded
    propagate = trace = None


@contextlib.contextmanager
def span(name: str, headers: Mapping[str, str]) -> Iterator[Any]:
    """A span of a request, below that of the client's `traceparent`; None without OpenTelemetry."""
    if trace is None or propagate is None:
        yield None
        return
    tracer = trace.get_tracer("keras_tx.serving")
    parent = propagate.extract(headers)
    with tracer.start_as_current_span(name, context=parent, kind=trace.SpanKind.SERVER) as one:
        yield one
