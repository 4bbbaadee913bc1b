"""Measures latency, throughput and memory of a folder with concurrent clients, and recommends a setting.

Each client sends its next request after the answer to the last. Encoders, image models and arrays run through
a MicroBatcher; a text generator has one stream per client. As in `keras_tx.runtime.benchmark`, each precision
and number of threads is measured in a process of its own, in several rounds.
"""

from __future__ import annotations

import dataclasses
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
from keras_tx.generation.decoding_loop import Limits, decode
from keras_tx.generation.sampling import Sampling
from keras_tx.runtime import benchmark
from keras_tx.runtime.benchmark import NEGLIGIBLE, ROUNDS, Plan
from keras_tx.runtime.folder import open_folder
from keras_tx.serving.micro_batcher import MicroBatcher, default_workers

LEAST = 3  # requests of a client in a round, regardless of their duration
MAX_BATCHES = (1, 32)
MOST_CLIENTS = 1024
PERCENTILES = (50, 95, 99)
MULTIPLE = 16  # texts are padded to a multiple of it, as in the text tasks
SHORTEST = 8  # texts have from an eighth of the longest to all of its tokens
TEXTS = 64  # different texts


@dataclasses.dataclass(frozen=True)
class ClientPlan(Plan):
    """A plan with the numbers of clients, in ascending order."""

    clients: tuple[int, ...]

    @property
    def unit(self) -> str:
        return "tokens/s" if self.kind == "generation" else "requests/s"


@dataclasses.dataclass
class ClientMeasurement:
    """One setting, over all rounds. Times are in seconds.

    Args:
        batch_size: the largest number of requests in a batch.
        workers: number of batches, or of streams, that run concurrently.
        latencies: of each request.
        first_tokens: of generation, from each request to its first token.
        rates: of each round: requests a second; of generation, tokens a second of all clients together.
        memory: the largest resident memory of the process in bytes; None where the system does not report it.
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
        batch_sizes: the largest numbers of requests in a batch; by default 1 and 32.
        options: as for `keras_tx.runtime.benchmark.plan`. Texts have from an eighth of `length` to `length`
            tokens, and prompts have `length`.

    Raises:
        ConfigError: for an option that does not fit the folder.
    """
    counts = tuple(sorted({whole_number("clients", count) for count in clients}))
    if not counts:
        raise ConfigError("clients is empty, expected numbers of clients such as [16].")
    if max(counts) > MOST_CLIENTS:
        raise ConfigError(f"clients={max(counts)} is out of range. Pass at most {MOST_CLIENTS}.")
    checked = benchmark.plan(folder, batch_sizes=batch_sizes, **options)
    sizes = checked.batch_sizes
    dynamic = any(contract.BATCH_AXIS in spec.shape for spec in open_folder(folder).inputs)
    if not dynamic and sizes != (1,):
        raise ConfigError(f"{checked.folder} has a batch size of {sizes[0]}: it cannot run single requests.")
    if checked.kind == "generation":
        if batch_sizes is not None and sizes != (1,):
            raise ConfigError(
                f"batch_size={max(sizes)} does not fit {checked.folder}: each client of a text generator has "
                "a stream of its own. Omit it."
            )
        sizes = (1,)
    elif dynamic and batch_sizes is None:
        sizes = MAX_BATCHES
    fields = {field.name: getattr(checked, field.name) for field in dataclasses.fields(Plan)}
    return ClientPlan(**fields | {"batch_sizes": sizes, "clients": counts})


def run(plan: ClientPlan, advance: Callable[[int], None] = lambda count: None) -> list[ClientMeasurement]:
    """Measures all settings of a plan.

    Args:
        plan: what to measure.
        advance: is called with the number of measured settings.

    Returns:
        A measurement for each setting. Settings that do not run have a `problem`.
    """
    cases = [(size, count) for size in plan.batch_sizes for count in plan.clients]
    rows = {
        (*configuration, *case): ClientMeasurement(*configuration, *case)
        for configuration in plan.configurations
        for case in cases
    }
    end = time.monotonic() + plan.seconds
    failed = set[tuple[str, int]]()
    for index in range(ROUNDS):
        for configuration in plan.configurations:
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
    measurements = []
    for row in rows:
        measurements.append(dataclasses.asdict(row))
        if not row.problem:
            measurements[-1]["throughput"] = row.throughput
            measurements[-1] |= {f"p{share}": row.percentile(share) for share in PERCENTILES}
    return {
        **benchmark.versions(),
        "plan": {**dataclasses.asdict(plan), "folder": str(plan.folder)},
        "unit": plan.unit,
        "measurements": measurements,
        "recommendation": None if choice is None else dataclasses.asdict(choice),
    }


def _measure(plan: ClientPlan, settings: Sequence[ClientMeasurement]) -> bool:
    """Adds a round to the measurements of one precision and number of threads; False if it does not run."""
    first = settings[0]
    seconds = plan.seconds / (ROUNDS * len(plan.configurations) * len(settings))
    result = benchmark.run_process(
        __name__,
        benchmark.order_of(plan, first.precision, first.threads, seconds)
        | {"cases": [(row.batch_size, row.clients) for row in settings]},
    )
    if "error" in result:
        for row in settings:
            row.problem = row.problem or result["error"]
        return False
    for row, case in zip(settings, result["cases"], strict=True):
        row.provider, row.workers = result["provider"], case["workers"]
        row.latencies += case["latencies"]
        row.first_tokens += case["first_tokens"]
        row.rates.append(case["rate"])
        row.memory = max(filter(None, (row.memory, case["memory"])), default=None)
    return True


# --- The process that measures one precision and number of threads ---


def _worker(order: Mapping[str, Any]) -> dict[str, Any]:
    from keras_tx.generation.generator import BaseGenerator
    from keras_tx.runtime import load

    options = {name: order[name] for name in ("provider", "threads", "precision")}
    with load(order["folder"], **options) as model:
        generates = isinstance(model, BaseGenerator)
        measure = _streams if generates else _requests
        cases = [
            measure(model, size, clients, order) | {"memory": benchmark.peak_memory()}
            for size, clients in order["cases"]
        ]
        return {"provider": model.provider, "cases": cases}


def _requests(model: Any, max_batch: int, clients: int, order: Mapping[str, Any]) -> dict[str, Any]:
    """Latencies and throughput of clients of a MicroBatcher."""
    rows = _rows(model, order)
    workers = default_workers(model)
    longest = order["sizes"].get(contract.SEQUENCE_AXIS, 0)
    with MicroBatcher(
        _batched(model.session, longest),
        max_batch=max_batch,
        workers=workers,
        count_tokens=_token_counter(model, rows, longest),
    ) as batcher:

        def request(number: int) -> None:
            batcher(rows[number % len(rows)])

        latencies, seconds = _serve(request, clients, order["seconds"])
    rate = len(latencies) / seconds
    return {"latencies": latencies, "first_tokens": [], "rate": rate, "workers": workers}


def _rows(model: Any, order: Mapping[str, Any]) -> list[dict[str, np.ndarray]]:
    """Random inputs of single requests; texts have different lengths."""
    inputs = benchmark.graph_inputs(model, 1, order)
    longest = order["sizes"].get(contract.SEQUENCE_AXIS)
    if longest is None:
        return [{name: array[0] for name, array in inputs.items()}]
    random = np.random.default_rng(0)
    lengths = random.integers(-(-longest // SHORTEST), longest + 1, TEXTS)
    is_text = {spec.name: spec.shape[1:] == (contract.SEQUENCE_AXIS,) for spec in model.session.inputs}
    return [
        {name: array[0, :length] if is_text[name] else array[0] for name, array in inputs.items()}
        for length in lengths
    ]


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


def _streams(model: Any, max_batch: int, clients: int, order: Mapping[str, Any]) -> dict[str, Any]:
    """Latencies and throughput of clients that generate texts."""
    sizes = order["sizes"]
    length = sizes.get(contract.SOURCE_AXIS) or sizes[contract.SEQUENCE_AXIS]
    shape = (clients, length)
    prompts = np.random.default_rng(0).integers(0, model.decoder.vocabulary_size, shape).tolist()
    limits = Limits(max_new_tokens=order["new_tokens"])
    first_tokens: list[float] = []

    def request(number: int) -> None:
        start = time.perf_counter()
        decoder, beginnings = model.condition([prompts[number % clients]])
        for index, _ in enumerate(decode(decoder, beginnings, Sampling(), limits)):
            if index == 0:
                first_tokens.append(time.perf_counter() - start)

    latencies, seconds = _serve(request, clients, order["seconds"])
    rate = len(latencies) * order["new_tokens"] / seconds
    first_tokens = first_tokens[1 + clients :]  # without those that are not counted
    return {"latencies": latencies, "first_tokens": first_tokens, "rate": rate, "workers": clients}


def _serve(request: Callable[[int], None], clients: int, seconds: float) -> tuple[list[float], float]:
    """The latency of each request, and the duration of all; the first of each client is not counted."""
    request(0)  # an error stops here, where no other client waits
    ready = threading.Barrier(clients)

    def client(number: int) -> tuple[list[float], float, float]:
        try:
            request(number)
        except BaseException:
            ready.abort()  # the others do not wait for this client
            raise
        ready.wait()
        start = time.perf_counter()
        latencies: list[float] = []
        last = start
        while len(latencies) < LEAST or last < start + seconds:
            request(number + clients * (len(latencies) + 1))
            now = time.perf_counter()
            latencies.append(now - last)
            last = now
        return latencies, start, last

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
