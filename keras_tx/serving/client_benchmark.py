"""Measures latency, throughput and memory of a folder with concurrent clients, and recommends a setting.

Each client sends its next request after the answer to the last, through what `keras-tx serve` has: decoders a
TextEngine, and other models a MicroBatcher, unless each request runs alone. As in
`keras_tx.runtime.benchmark`, each precision and number of threads is measured in a process of its own, in
several rounds.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, whole_number
from keras_tx.runtime import benchmark
from keras_tx.runtime.benchmark import NEGLIGIBLE, ROUNDS, Plan
from keras_tx.runtime.folder import open_folder
from keras_tx.runtime.loading import task_of
from keras_tx.serving.engine.text_engine import TextEngine
from keras_tx.serving.micro_batcher import MicroBatcher, default_workers, why_alone

LEAST = 3  # requests of a client in a round, regardless of their duration
MAX_BATCHES = (1, 32)
MAX_STREAMS = (4, 16)  # texts that a decoder generates together
MOST_CLIENTS = 1024
PERCENTILES = (50, 95, 99)
MULTIPLE = 16  # texts are padded to a multiple of it, as in the text tasks
SHORTEST = 8  # texts have from an eighth of the longest to all of its tokens
TEXTS = 64  # different texts


@dataclasses.dataclass(frozen=True)
class ClientPlan(Plan):
    """A plan with the numbers of clients, in ascending order.

    Attributes:
        decodes: whether the folder is a decoder, whose batches are streams of a TextEngine.
        alone: the precisions in which each request runs alone, and why.
    """

    clients: tuple[int, ...]
    decodes: bool
    alone: Mapping[str, str]

    def cases(self, precision: str) -> list[tuple[int, int]]:
        """The batch size and the number of clients of each measurement of a precision."""
        sizes = (1,) if precision in self.alone else self.batch_sizes
        return [(size, count) for size in sizes for count in self.clients]

    @property
    def unit(self) -> str:
        return "tokens/s" if self.kind == "generation" else "requests/s"


@dataclasses.dataclass
class ClientMeasurement:
    """One setting, over all rounds. Times are in seconds.

    Args:
        batch_size: the largest number of requests, or of streams, in a batch.
        workers: number of batches that run concurrently.
        latencies: of each request.
        first_tokens: of a decoder, from each request to its first token.
        rates: of each round: requests a second; of generation, tokens a second of all clients together.
        memory: the largest resident memory of the process in bytes; None where the system does not report it.
        note: why requests do not run in batches, if they do not.
        problem: the error message, if the setting does not run.
    """

    precision: str
    threads: int
    batch_size: int
    clients: int
    provider: str = ""
    workers: int = 0
    latencies: list[float] = dataclasses.field(default_factory=list)
    first_tokens: list[float] = dataclasses.field(default_factory=list)
    rates: list[float] = dataclasses.field(default_factory=list)
    memory: int | None = None
    note: str = ""
    problem: str = ""

    @property
    def setting(self) -> tuple[str, int, int, int]:
        return self.precision, self.threads, self.batch_size, self.clients

    @property
    def throughput(self) -> float:
        return statistics.median(self.rates)

    def percentile(self, share: int) -> float:
        """The latency that `share` percent of the requests do not exceed."""
        return float(np.percentile(self.latencies, share))

    def first_token(self, share: int) -> float:
        """The time to the first token that `share` percent of the requests do not exceed."""
        return float(np.percentile(self.first_tokens, share))

    def as_json(self) -> dict[str, Any]:
        """All numbers, as JSON values."""
        fields = dataclasses.asdict(self)
        if self.problem:
            return fields
        percentiles = {f"p{share}": self.percentile(share) for share in PERCENTILES}
        return {**fields, "throughput": self.throughput, **percentiles}


@dataclasses.dataclass(frozen=True)
class ClientRecommendation:
    """A setting for the largest number of clients, and the reasons for it as sentences."""

    precision: str
    threads: int
    batch_size: int
    clients: int
    reasons: tuple[str, ...]

    @property
    def setting(self) -> tuple[str, int, int, int]:
        return self.precision, self.threads, self.batch_size, self.clients


def plan(
    folder: str | os.PathLike[str],
    clients: Sequence[int],
    *,
    batch_sizes: Sequence[int] | None = None,
    **options: Any,
) -> ClientPlan:
    """Checks the options against the folder.

    Args:
        folder: the exported folder.
        clients: the numbers of clients.
        batch_sizes: the largest numbers of requests in a batch, by default 1 and 32; of a decoder, of streams
            that run together, by default 4 and 16.
        options: as for `keras_tx.runtime.benchmark.plan`. Texts have from an eighth of `length` to `length`
            tokens, and prompts have `length`.

    Raises:
        ConfigError: for an option that does not fit the folder.
    """
    counts = numbers_of_clients(clients)
    checked = benchmark.plan(folder, batch_sizes=batch_sizes, **options)
    sizes = checked.batch_sizes
    opened = open_folder(folder)
    dynamic = any(contract.BATCH_AXIS in spec.shape for spec in opened.inputs)
    decodes = checked.kind == "generation" and opened.encoder is None
    if not dynamic and sizes != (1,):
        raise ConfigError(f"{checked.folder} has a batch size of {sizes[0]}: it cannot run single requests.")
    if dynamic and batch_sizes is None:
        sizes = MAX_STREAMS if decodes else MAX_BATCHES
    reasons = {
        precision: None if decodes else why_alone(task_of(opened), opened.manifest, precision)
        for precision in checked.precisions
    }
    alone = {precision: reason for precision, reason in reasons.items() if reason is not None}
    fields = {field.name: getattr(checked, field.name) for field in dataclasses.fields(Plan)}
    return ClientPlan(
        **fields | {"batch_sizes": sizes, "clients": counts, "decodes": decodes, "alone": alone}
    )


def numbers_of_clients(clients: Sequence[int]) -> tuple[int, ...]:
    """Numbers of clients in ascending order; raises a ConfigError if they are out of range."""
    counts = tuple(sorted({whole_number("clients", count) for count in clients}))
    if not counts:
        raise ConfigError("clients is empty, expected numbers of clients such as [16].")
    if max(counts) > MOST_CLIENTS:
        raise ConfigError(f"clients={max(counts)} is out of range. Pass at most {MOST_CLIENTS}.")
    return counts


def run(plan: ClientPlan, advance: Callable[[int], None] = lambda count: None) -> list[ClientMeasurement]:
    """Measures all settings of a plan.

    Args:
        plan: what to measure.
        advance: is called with the number of measured settings.

    Returns:
        A measurement for each setting. Settings that do not run have a `problem`.
    """
    rows = {
        (*configuration, *case): ClientMeasurement(*configuration, *case)
        for configuration in plan.configurations
        for case in plan.cases(configuration[0])
    }
    end = time.monotonic() + plan.seconds
    failed = set[tuple[str, int]]()
    for index in range(ROUNDS):
        for configuration in plan.configurations:
            cases = plan.cases(configuration[0])
            if configuration not in failed and (index == 0 or time.monotonic() < end):
                settings = [rows[*configuration, *case] for case in cases]
                if not _measure(plan, settings):
                    failed.add(configuration)
            advance(len(cases))
    return list(rows.values())


def recommend(rows: Sequence[ClientMeasurement], manifest: contract.Manifest) -> ClientRecommendation | None:
    """The fastest precision that agrees with fp32, then the threads and batch size, for the most clients.

    Settings whose throughput is within 5 % of the best one count as equal: of these, the one with the lowest
    95th percentile of the latency is recommended. Returns None if nothing ran.
    """
    ran = [row for row in rows if not row.problem]
    if not ran:
        return None
    most = max(row.clients for row in ran)
    ran = [row for row in ran if row.clients == most]
    by_precision = benchmark.best_throughput(ran, "precision")
    precision = benchmark.choose_precision(by_precision, manifest)
    ran = [row for row in ran if row.precision == precision]
    enough = max(row.throughput for row in ran) * (1 - NEGLIGIBLE)
    choice = min((row for row in ran if row.throughput >= enough), key=lambda row: row.percentile(95))
    reasons = [
        *benchmark.precision_reasons(precision, by_precision, manifest),
        *(_reason(choice, row) for row in ran if row is not choice),
    ]
    return ClientRecommendation(*choice.setting, tuple(reasons))


def _reason(choice: ClientMeasurement, other: ClientMeasurement) -> str:
    return (
        f"{choice.throughput / other.throughput:.2f}x the throughput of threads={other.threads}, batch "
        f"{other.batch_size}; p95 is {choice.percentile(95) * 1e3:.3g} ms instead of "
        f"{other.percentile(95) * 1e3:.3g} ms."
    )


def as_json(
    plan: ClientPlan, rows: Sequence[ClientMeasurement], choice: ClientRecommendation | None
) -> dict[str, Any]:
    """The results with all their numbers, as JSON values."""
    return {
        **benchmark.versions(),
        "plan": {**dataclasses.asdict(plan), "folder": str(plan.folder)},
        "unit": plan.unit,
        "measurements": [row.as_json() for row in rows],
        "recommendation": None if choice is None else dataclasses.asdict(choice),
    }


def _measure(plan: ClientPlan, settings: Sequence[ClientMeasurement]) -> bool:
    """Adds a round to the measurements of one precision and number of threads; False if it does not run."""
    first = settings[0]
    seconds = plan.seconds / (ROUNDS * len(plan.configurations) * len(settings))
    result = benchmark.run_process(
        __name__,
        benchmark.order_of(plan, first.precision, first.threads, seconds)
        | {"cases": plan.cases(first.precision), "alone": plan.alone.get(first.precision, "")},
    )
    if "error" in result:
        for row in settings:
            row.problem = row.problem or result["error"]
        return False
    for row, case in zip(settings, result["cases"], strict=True):
        row.provider, row.workers, row.note = result["provider"], case["workers"], case["note"]
        row.latencies += case["latencies"]
        row.first_tokens += case["first_tokens"]
        row.rates.append(case["rate"])
        row.memory = max(filter(None, (row.memory, case["memory"])), default=None)
    return True


# --- The process that measures one precision and number of threads ---


def _worker(order: Mapping[str, Any]) -> dict[str, Any]:
    from keras_tx.generation.generator import BaseGenerator
    from keras_tx.runtime import TextGenerator, load

    options = {name: order[name] for name in ("provider", "threads", "precision")}
    with load(order["folder"], **options) as model:
        measure = _requests
        if isinstance(model, BaseGenerator):
            measure = _streams if isinstance(model, TextGenerator) else _texts
        cases = [
            measure(model, size, clients, order) | {"memory": benchmark.peak_memory()}
            for size, clients in order["cases"]
        ]
        return {"provider": model.provider, "cases": cases}


def _alone(
    answer: Callable[[Any], Any],
    content_of: Callable[[int], Any],
    clients: int,
    order: Mapping[str, Any],
    units: int = 1,
) -> dict[str, Any]:
    """Latencies and throughput of clients that call the model; `units` is the work of a request."""
    latencies, seconds = measure_clients(answer, clients, order["seconds"], content_of)
    return _case(latencies, len(latencies) * units / seconds, clients, note=order["alone"])


def _requests(model: Any, max_batch: int, clients: int, order: Mapping[str, Any]) -> dict[str, Any]:
    """Latencies and throughput of clients of a MicroBatcher, or of the model."""
    rows = _rows(model, order)
    workers = default_workers(model)
    longest = order["sizes"].get(contract.SEQUENCE_AXIS, 0)
    answer = _batched(model.session, longest)
    if order["alone"]:
        return _alone(lambda row: answer([row]), lambda number: rows[number % len(rows)], clients, order)
    with MicroBatcher(
        answer,
        max_batch=max_batch,
        workers=workers,
        count_tokens=_token_counter(model, rows, longest),
    ) as batcher:
        latencies, seconds = measure_clients(
            batcher, clients, order["seconds"], lambda number: rows[number % len(rows)]
        )
    return _case(latencies, len(latencies) / seconds, workers)


def _case(
    latencies: list[float], rate: float, workers: int, first_tokens: Sequence[float] = (), note: str = ""
) -> dict[str, Any]:
    """The result of one setting."""
    return {
        "latencies": latencies,
        "rate": rate,
        "workers": workers,
        "first_tokens": list(first_tokens),
        "note": note,
    }


def _rows(model: Any, order: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
    """Random inputs of single requests; texts have different lengths."""
    inputs = benchmark.graph_inputs(model, 1, order)
    longest = order["sizes"].get(contract.SEQUENCE_AXIS)
    if longest is None:
        return [{name: array[0] for name, array in inputs.items()}]
    is_text = {spec.name: spec.shape[1:] == (contract.SEQUENCE_AXIS,) for spec in model.session.inputs}
    return [
        {name: array[0, :length] if is_text[name] else array[0] for name, array in inputs.items()}
        for length in random_lengths(longest, np.random.default_rng(0))
    ]


def random_lengths(longest: int, random: np.random.Generator) -> list[int]:
    """The numbers of tokens of the different texts, from an eighth of the longest to all of its tokens."""
    return random.integers(-(-longest // SHORTEST), longest + 1, TEXTS).tolist()


def _token_counter(
    model: Any, rows: Sequence[Mapping[str, np.ndarray]], longest: int
) -> Callable[[Any], int] | None:
    if contract.INPUT_IDS in rows[0]:
        return lambda row: _padded(len(row[contract.INPUT_IDS]), longest)
    count = model.token_counter
    return None if count is None else lambda row: count(None)  # all images have the same number of patches


def _padded(length: int, longest: int) -> int:
    return min(-(-length // MULTIPLE) * MULTIPLE, longest)


def _batched(session: Any, longest: int) -> Callable[[Sequence[Mapping[str, np.ndarray]]], list[Any]]:
    """The graph as a function of several requests, whose texts are padded to the longest one."""

    def answer(rows: Sequence[Mapping[str, np.ndarray]]) -> list[Any]:
        batch = {}
        for spec in session.inputs:
            arrays = [row[spec.name] for row in rows]
            if spec.shape[1:] == (contract.SEQUENCE_AXIS,):
                length = _padded(max(map(len, arrays)), longest)
                arrays = [np.pad(array, (0, length - len(array))) for array in arrays]
            batch[spec.name] = np.stack(arrays)
        outputs = session.run(batch)
        return list(outputs[session.outputs[0].name])

    return answer


def _streams(model: Any, max_streams: int, clients: int, order: Mapping[str, Any]) -> dict[str, Any]:
    """Latencies and throughput of clients of a TextEngine."""
    first_tokens: list[float] = []
    with TextEngine(model, max_streams=max_streams, max_queue=clients) as engine:

        def request(prompt: list[int]) -> None:
            start = time.perf_counter()
            stream = engine.submit(prompt, max_new_tokens=order["new_tokens"], stop_tokens=[])
            for index, _ in enumerate(stream):
                if index == 0:
                    first_tokens.append(time.perf_counter() - start)

        latencies, seconds = measure_clients(request, clients, order["seconds"], _prompts(model, order))
        note = engine.one_by_one or ""
    rate = len(latencies) * order["new_tokens"] / seconds
    return _case(latencies, rate, 1, first_tokens[1 + clients :], note)  # the first ones are not counted


def _texts(model: Any, max_batch: int, clients: int, order: Mapping[str, Any]) -> dict[str, Any]:
    """Latencies and throughput of clients of an encoder-decoder."""
    options = {"max_new_tokens": order["new_tokens"], "stop_tokens": []}
    if order["alone"]:
        generate = functools.partial(model.generate, **options)
        return _alone(generate, _prompts(model, order), clients, order, order["new_tokens"])
    with MicroBatcher(model.generate, max_batch=max_batch, **options) as batcher:
        latencies, seconds = measure_clients(batcher, clients, order["seconds"], _prompts(model, order))
        workers = batcher.workers
    return _case(latencies, len(latencies) * order["new_tokens"] / seconds, workers)


def _prompts(model: Any, order: Mapping[str, Any]) -> Callable[[int], list[int]]:
    """The random ids of each request: another prompt for each, of which none begins as an earlier one."""
    length = order["sizes"].get(contract.SOURCE_AXIS) or order["sizes"][contract.SEQUENCE_AXIS]
    size = model.decoder.vocabulary_size
    return lambda number: np.random.default_rng(number).integers(0, size, length).tolist()


def measure_clients(
    request: Callable[[Any], Any],
    clients: int,
    seconds: float,
    content_of: Callable[[int], Any] = lambda number: number,
) -> tuple[list[float], float]:
    """The latency of each request, and the duration of all; the first of each client is not counted.

    `content_of` makes what `request` sends, by the number of the request; its time is not in the latencies.
    """
    request(content_of(0))  # an error stops here, where no other client waits
    ready = threading.Barrier(clients)

    def client(number: int) -> tuple[list[float], float, float]:
        try:
            request(content_of(number))
        except BaseException:
            ready.abort()  # the others do not wait for this client
            raise
        ready.wait()
        start = end = time.perf_counter()
        latencies: list[float] = []
        while len(latencies) < LEAST or end < start + seconds:
            content = content_of(number + clients * (len(latencies) + 1))
            began = time.perf_counter()
            request(content)
            end = time.perf_counter()
            latencies.append(end - began)
        return latencies, start, end

    with ThreadPoolExecutor(clients) as pool:
        futures = [pool.submit(client, number) for number in range(clients)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):  # which another client caused
            raise error
    results = [future.result() for future in futures]
    latencies = [latency for one, _, _ in results for latency in one]
    return latencies, max(end for *_, end in results) - min(start for _, start, _ in results)


if __name__ == "__main__":
    benchmark.print_result(_worker)
