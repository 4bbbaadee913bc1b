"""Metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counts requests, errors, batches and tokens of one application.

    Labels are names of routes and models, never what a client sent.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # process_resident_memory_bytes, on Linux
        registry = self.registry
        self.requests = Counter(
            "keras_tx_requests",
            "Requests by route, model and status.",
            ["route", "model", "status"],
            registry=registry,
        )
        self.errors = Counter(
            "keras_tx_errors",
            "Errors by kind, class and model.",
            ["kind", "error", "model"],
            registry=registry,
        )
        self.seconds = Histogram(
            "keras_tx_request_seconds",
            "Time from the headers of a request to the last byte of its answer.",
            ["route", "model"],
            buckets=SECONDS,
            registry=registry,
        )
        self.running = Gauge("keras_tx_requests_running", "Requests that run.", registry=registry)
        self.waiting = Gauge("keras_tx_requests_waiting", "Requests that wait for others.", registry=registry)
        self.batches = Histogram(
            "keras_tx_batch_size",
            "Requests that the graph computes together.",
            ["model"],
            buckets=SIZES,
            registry=registry,
        )
        self.tokens = Counter(
            "keras_tx_tokens", "Tokens of prompts and generated tokens.", ["model", "kind"], registry=registry
        )
        self.first_token = Histogram(
            "keras_tx_time_to_first_token_seconds",
            "Time from a request to its first generated token.",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self.next_token = Histogram(
            "keras_tx_time_per_token_seconds",
            "Time between two tokens of a text.",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self.reloads = Counter(
            "keras_tx_reloads",
            "New exports that were loaded or refused.",
            ["model", "result"],
            registry=registry,
        )

    def observe_admission(self, running: Callable[[], float], waiting: Callable[[], float]) -> None:
        """Reads the numbers of running and waiting requests when they are asked for."""
        self.running.set_function(running)
        self.waiting.set_function(waiting)

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)
