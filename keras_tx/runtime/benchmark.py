"""Measures latency, throughput and memory of an exported folder, and recommends a setting.

Each precision and number of threads is measured in a separate process, so that its memory is known. The
processes run one after the other, in several rounds: a disturbance of the machine affects all settings.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, InputError, KerasTxError, nearest, whole_number
from keras_tx.generation.decoding_loop import Limits, decode
from keras_tx.generation.sampling import Sampling
from keras_tx.runtime.axis_bounds import axes_of, violated_bound
from keras_tx.runtime.example_inputs import SIZES, Use, draw
from keras_tx.runtime.folder import Folder, open_folder
from keras_tx.runtime.providers import check_name, cores
from keras_tx.runtime.session import MOST_THREADS

ROUNDS = 3
LEAST = 3  # runs of a setting in a round, regardless of their duration
MOST = 2000
BATCH_SIZES = (1, 8)
LENGTH = 128  # tokens of a text or prompt
NEW_TOKENS = 32
AGREEMENT = 0.95  # of a precision that is recommended, with fp32 on random inputs
NEGLIGIBLE = 0.05  # relative gain below which the simpler setting is recommended
_LENGTH_AXES = (contract.SEQUENCE_AXIS, contract.SOURCE_AXIS, contract.LOGITS_AXIS, contract.TOTAL_AXIS)
UNITS = {"image": "images/s", "text": "texts/s", "generation": "tokens/s", "generic": "rows/s"}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to measure. `plan` makes one whose values fit the folder."""

    folder: Path
    kind: str  # image, text, generation or generic
    provider: str
    precisions: tuple[str, ...]
    threads: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    sizes: Mapping[str, int]  # of dynamic axes other than the batch
    new_tokens: int
    seconds: float

    @property
    def configurations(self) -> list[tuple[str, int]]:
        return [(precision, threads) for precision in self.precisions for threads in self.threads]


@dataclasses.dataclass
class Measurement:
    """One setting, over all rounds. Times are in seconds.

    Args:
        latencies: of each run of a batch; of generation, of each decoding step.
        prefills: of generation, of each prompt.
        memory: the largest resident memory of the process in bytes; None where the system does not report it.
        problem: the error message, if the setting does not run.
    """

    precision: str
    threads: int
    batch_size: int
    provider: str = ""
    latencies: list[list[float]] = dataclasses.field(default_factory=list)  # by round
    prefills: list[float] = dataclasses.field(default_factory=list)
    load_times: list[float] = dataclasses.field(default_factory=list)
    memory: int | None = None
    problem: str = ""

    @property
    def median(self) -> float:
        return statistics.median(statistics.median(samples) for samples in self.latencies)

    @property
    def p90(self) -> float:
        return float(np.percentile(np.concatenate(self.latencies), 90))

    @property
    def throughput(self) -> float:
        """Rows a second; of generation, tokens a second after the prompt."""
        return self.batch_size / self.median


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """A setting, and the reasons for it as sentences."""

    precision: str
    threads: int
    batch_size: int
    reasons: tuple[str, ...]


def plan(
    folder: str | os.PathLike[str],
    *,
    provider: str = "auto",
    precisions: Sequence[str] | None = None,
    threads: Sequence[int] | None = None,
    batch_sizes: Sequence[int] | None = None,
    length: int | None = None,
    new_tokens: int | None = None,
    sizes: Mapping[str, int] | None = None,
    seconds: float = 30.0,
) -> Plan:
    """Checks the options against the folder.

    Args:
        folder: the exported folder.
        provider: as in `load`.
        precisions: those to measure; by default all that the folder has.
        threads: by default 1 and the number of cores.
        batch_sizes: by default 1 and 8.
        length: tokens of a text or prompt; by default 128, or as many as the model accepts.
        new_tokens: generated tokens; by default 32.
        sizes: of the dynamic axes of a generic model, by name.
        seconds: the time budget. Each setting is measured at least once, even if that takes longer.

    Raises:
        ConfigError: for an option that does not fit the folder.
    """
    opened = open_folder(folder)
    check_name(provider)
    kind = _kind_of(opened)
    for precision in precisions or ():
        open_folder(folder, precision)
    selected = set(precisions or opened.manifest.precisions)
    precisions = tuple(name for name in opened.manifest.precisions if name in selected)
    threads = tuple(sorted({whole_number("threads", n) for n in threads or (1, cores())}))
    if threads[-1] > MOST_THREADS:
        raise ConfigError(f"threads={threads[-1]} is out of range. Pass at most {MOST_THREADS}.")
    if not seconds > 0:
        raise ConfigError(f"seconds={seconds!r} is out of range. Pass a number above 0.")
    if kind != "generation" and new_tokens is not None:
        raise ConfigError(f"new_tokens={new_tokens} requires a model that generates text. Omit it.")
    new_tokens = whole_number("new_tokens", NEW_TOKENS if new_tokens is None else new_tokens)
    checked = _Sizes(opened, kind).checked(length, new_tokens, sizes or {})
    batches = _batch_sizes(opened, batch_sizes)
    for size in batches:
        _check_bounds(opened, {**checked, contract.BATCH_AXIS: size})
    return Plan(
        opened.path, kind, provider, precisions, threads, batches, checked, new_tokens, float(seconds)
    )


def run(plan: Plan, advance: Callable[[int], None] = lambda count: None) -> list[Measurement]:
    """Measures all settings of a plan.

    Args:
        plan: what to measure.
        advance: is called with the number of measured settings.

    Returns:
        A measurement for each setting. Settings that do not run have a `problem`.
    """
    rows = {
        (precision, threads, size): Measurement(precision, threads, size)
        for precision, threads in plan.configurations
        for size in plan.batch_sizes
    }
    end = time.monotonic() + plan.seconds
    failed = set[tuple[str, int]]()
    for index in range(ROUNDS):
        for precision, threads in plan.configurations:
            if (precision, threads) not in failed and (index == 0 or time.monotonic() < end):
                settings = [rows[precision, threads, size] for size in plan.batch_sizes]
                if not _measure(plan, settings):
                    failed.add((precision, threads))
            advance(len(plan.batch_sizes))
    return list(rows.values())


def recommend(rows: Sequence[Measurement], manifest: contract.Manifest) -> Recommendation | None:
    """The fastest precision that agrees with fp32, then the fewest threads and the smallest batch size.

    Settings whose throughput is within 5 % of the best one count as equal. Returns None if nothing ran.
    """
    ran = [row for row in rows if not row.problem]
    if not ran:
        return None
    by_precision = best_throughput(ran, "precision")
    precision = choose_precision(by_precision, manifest)
    ran = _where(ran, "precision", precision)
    by_threads = best_throughput(ran, "threads")
    threads = _simplest(by_threads)
    ran = _where(ran, "threads", threads)
    by_batch = best_throughput(ran, "batch_size")
    batch_size = _simplest(by_batch)
    reasons = [
        *precision_reasons(precision, by_precision, manifest),
        *_thread_reasons(threads, by_threads),
        *_batch_reasons(batch_size, by_batch, ran),
    ]
    return Recommendation(precision, threads, batch_size, tuple(reasons))


def choose_precision(speed: Mapping[str, float], manifest: contract.Manifest) -> str:
    """The first precision that is negligibly slower than the fastest of those that agree with fp32."""
    accurate = {name: value for name, value in speed.items() if is_accurate(manifest, name)}
    return _simplest(accurate or speed)


def is_accurate(manifest: contract.Manifest, precision: str) -> bool:
    """Whether a precision is fp32, or agreed with it when it was made."""
    variant = manifest.variants.get(precision)
    if variant is None:
        return True
    if variant.agreement is None:
        return variant.noise <= contract.ROUNDED
    return variant.agreement >= AGREEMENT


def as_json(plan: Plan, rows: Sequence[Measurement], choice: Recommendation | None) -> dict[str, Any]:
    """The results with all their numbers, as JSON values."""
    return {
        **versions(),
        "plan": {**dataclasses.asdict(plan), "folder": str(plan.folder)},
        "unit": UNITS[plan.kind],
        "measurements": [
            dataclasses.asdict(row)
            | ({} if row.problem else {"median": row.median, "p90": row.p90, "throughput": row.throughput})
            for row in rows
        ],
        "recommendation": None if choice is None else dataclasses.asdict(choice),
    }


def versions() -> dict[str, Any]:
    """The versions of the packages that run, and the number of cores."""
    import onnxruntime

    import keras_tx

    return {
        "keras_tx": keras_tx.__version__,
        "onnxruntime": onnxruntime.__version__,
        "cores": cores(),
    }


def peak_memory() -> int | None:
    """The largest resident memory of this process in bytes; None where the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        pass
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None


def _kind_of(folder: Folder) -> str:
    if folder.manifest.task == contract.TEXT_GENERATION or folder.encoder is not None:
        return "generation"
    names = {spec.name for spec in folder.inputs}
    if names & {contract.PIXEL_VALUES, contract.PIXELS}:
        return "image"
    return "text" if contract.INPUT_IDS in names else "generic"


def _batch_sizes(folder: Folder, requested: Sequence[int] | None) -> tuple[int, ...]:
    sizes = sorted({whole_number("batch_size", n) for n in requested or BATCH_SIZES})
    axes = {spec.shape[0] for spec in folder.inputs if spec.shape}
    if contract.BATCH_AXIS in axes:
        return tuple(sizes)
    fixed = min((axis for axis in axes if isinstance(axis, int)), default=1)
    if requested is not None and sizes != [fixed]:
        raise ConfigError(f"batch_size={sizes[0]} does not fit {folder.path}: its batch size is {fixed}.")
    return (fixed,)


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """The sizes of a folder's dynamic axes."""

    folder: Folder
    kind: str

    def checked(self, length: int | None, new_tokens: int, sizes: Mapping[str, int]) -> dict[str, int]:
        if self.folder.encoder is not None:
            axes = {contract.SOURCE_AXIS}
        else:
            axes = {axis for spec in self.folder.inputs for axis in spec.shape if isinstance(axis, str)}
            axes -= {contract.BATCH_AXIS, contract.PAST_AXIS}
        for name, size in sizes.items():
            if name not in axes:
                raise ConfigError(f"{self.folder.path} has no dynamic axis {name!r}. {nearest(name, axes)}")
            whole_number(name, size)
        axis = next(iter(axes & {contract.SEQUENCE_AXIS, contract.SOURCE_AXIS}), None)
        if axis is None:
            if length is not None:
                raise ConfigError(f"length={length} requires the dynamic axis {contract.SEQUENCE_AXIS}.")
            return dict(sizes)
        length = sizes.get(axis, length)
        most = self.longest() - (new_tokens if self.kind == "generation" else 0)
        if most < 1:
            raise ConfigError(f"new_tokens={new_tokens} is out of range: the context is {self.longest()}.")
        if axis == contract.SOURCE_AXIS:  # new tokens have a context of their own
            most = self.longest()
        if length is not None and whole_number("length", length) > most:
            raise ConfigError(f"length={length} is out of range. {self.folder.path} accepts at most {most}.")
        return {**dict.fromkeys(axes & {*_LENGTH_AXES}, length or min(LENGTH, most)), **sizes}

    def longest(self) -> int:
        """Tokens that the model accepts."""
        if self.kind == "generation":
            from keras_tx.runtime.cached_decoder import context_of

            return context_of(self.folder)
        from keras_tx.processing import TextTransform

        config = self.folder.config or {}
        limits = [config.get(name) for name in ("n_positions", "max_position_embeddings")]
        if self.folder.tokenizer is not None:
            limits.append(TextTransform.load(self.folder.path).max_length)
        return min([limit for limit in limits if limit] or [LENGTH])


def _check_bounds(folder: Folder, sizes: Mapping[str, int]) -> None:
    bounds = [bound for bound in folder.manifest.bounds if {*axes_of(bound)} <= {*sizes}]
    broken = violated_bound(bounds, sizes)
    if broken is not None:
        values = ", ".join(f"{name}={sizes[name]}" for name in axes_of(broken))
        raise InputError(f"{values} does not fit {folder.path}, expected {broken}. Choose another size.")


def _measure(plan: Plan, settings: Sequence[Measurement]) -> bool:
    """Adds a round to the measurements of one precision and number of threads; False if it does not run."""
    first = settings[0]
    seconds = plan.seconds / (ROUNDS * len(plan.configurations) * len(plan.batch_sizes))
    result = run_process(
        __name__, order_of(plan, first.precision, first.threads, seconds) | {"batch_sizes": plan.batch_sizes}
    )
    if "error" in result:
        for row in settings:
            row.problem = row.problem or result["error"]
        return False
    for row, case in zip(settings, result["cases"], strict=True):
        row.provider = result["provider"]
        row.load_times.append(result["load_time"])
        row.latencies.append(case["latencies"])
        row.prefills += case["prefills"]
        row.memory = max(filter(None, (row.memory, case["memory"])), default=None)
    return True


def order_of(plan: Plan, precision: str, threads: int, seconds: float) -> dict[str, Any]:
    """What the process of a precision and number of threads measures, with the seconds of each setting."""
    return {
        "folder": str(plan.folder.absolute()),
        "provider": plan.provider,
        "precision": precision,
        "threads": threads,
        "sizes": dict(plan.sizes),
        "new_tokens": plan.new_tokens,
        "seconds": seconds,
    }


def run_process(module: str, order: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a module that calls `print_result`, in a process of its own, or {"error": message}."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", module, json.dumps(order)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    return _result(done)


def print_result(measure: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
    """Prints the result of an order, which is the argument of this process."""
    try:
        answer = measure(json.loads(sys.argv[1]))
    except (KerasTxError, ImportError) as error:
        answer = {"error": " ".join(str(error).split())}
    print(json.dumps(answer))


def _result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return json.loads(lines[-1])
    if done.returncode == -9:
        return {"error": "the process was killed, probably because memory ran out"}
    messages = done.stderr.strip().splitlines() or ["no message"]
    return {"error": f"the process ended with code {done.returncode}: {messages[-1]}"}


def _simplest(speed: Mapping[Any, float]) -> Any:
    """The first key whose speed is negligibly below the best."""
    enough = max(speed.values()) * (1 - NEGLIGIBLE)
    return next(key for key, value in speed.items() if value >= enough)


def _where(rows: Sequence[Any], field: str, value: Any) -> list[Any]:
    return [row for row in rows if getattr(row, field) == value]


def best_throughput(rows: Sequence[Any], field: str) -> dict[Any, float]:
    """The highest throughput by the value of a field."""
    values = dict.fromkeys(getattr(row, field) for row in rows)
    return {value: max(row.throughput for row in _where(rows, field, value)) for value in values}


def precision_reasons(
    precision: str, speed: Mapping[str, float], manifest: contract.Manifest
) -> Iterator[str]:
    first = next(iter(speed))
    if precision != first:
        ratio = speed[precision] / speed[first]
        yield f"{precision}: {ratio:.1f}x the throughput of {first}; {_agreement(manifest, precision)}."
    elif len(speed) > 1:
        yield f"{precision}: no other precision that agrees with it is more than {NEGLIGIBLE:.0%} faster."
    for name, value in speed.items():
        if value > speed[precision] * (1 + NEGLIGIBLE) and not is_accurate(manifest, name):
            yield (
                f"{name} is {value / speed[precision]:.1f}x faster, but {_agreement(manifest, name)}. "
                "Evaluate it on your data before you use it."
            )


def _agreement(manifest: contract.Manifest, precision: str) -> str:
    variant = manifest.variants.get(precision)
    if variant is None:
        return "its agreement with fp32 was not measured"
    if variant.agreement is None:
        return f"its outputs differ from fp32 by up to {variant.noise:.1%} of their scale"
    return f"its agreement with fp32 on random inputs is {variant.agreement:.1%}"


def _thread_reasons(threads: int, speed: Mapping[int, float]) -> Iterator[str]:
    if len(speed) > 1:
        fewest = min(speed)
        if threads == fewest:
            yield f"threads={threads}: more threads are at most {NEGLIGIBLE:.0%} faster."
        else:
            ratio = speed[threads] / speed[fewest]
            yield f"threads={threads}: {ratio:.1f}x the throughput of threads={fewest}."


def _batch_reasons(batch_size: int, speed: Mapping[int, float], rows: Sequence[Measurement]) -> Iterator[str]:
    smallest = min(speed)
    if len(speed) == 1:
        return
    if batch_size == smallest:
        yield f"batch size {batch_size}: larger batches are at most {NEGLIGIBLE:.0%} faster."
        return
    latency = next(row.median for row in rows if row.batch_size == smallest)
    yield (
        f"batch size {batch_size}: {speed[batch_size] / speed[smallest]:.1f}x the throughput of batch size "
        f"{smallest}. For single requests, batch size {smallest} has a latency of {latency * 1e3:.3g} ms."
    )


# --- The process that measures one precision and number of threads ---


def _worker(order: Mapping[str, Any]) -> dict[str, Any]:
    from keras_tx.generation.generator import BaseGenerator
    from keras_tx.runtime import load

    options = {name: order[name] for name in ("provider", "threads", "precision")}
    start = time.perf_counter()
    with load(order["folder"], **options) as model:
        load_time = time.perf_counter() - start
        cases = []
        for size in order["batch_sizes"]:
            if isinstance(model, BaseGenerator):
                prefills, latencies = _generation(model, size, order)
            else:
                inputs = graph_inputs(model, size, order)
                prefills = []
                latencies = _repeated(lambda inputs=inputs: model.session.run(inputs), order["seconds"])
            cases.append({"latencies": latencies, "prefills": prefills, "memory": peak_memory()})
        return {"provider": model.provider, "load_time": load_time, "cases": cases}


def graph_inputs(model: Any, batch_size: int, order: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Random inputs of a graph; unknown axes get the first size that the graph accepts."""
    config = model.folder.config or {}
    axes = {axis for spec in model.session.inputs for axis in spec.shape if isinstance(axis, str)}
    uses = {
        contract.INPUT_IDS: Use(config.get("vocab_size") or 2),
        contract.TOKEN_TYPE_IDS: Use(config.get("type_vocab_size") or 1),
        contract.POSITION_IDS: Use(order["sizes"].get(contract.SEQUENCE_AXIS, 1)),
    }
    unknown = axes - {contract.BATCH_AXIS, *order["sizes"]}
    problem: Exception | None = None
    for size in SIZES if unknown else SIZES[:1]:
        sizes = {**dict.fromkeys(unknown, size), **order["sizes"], contract.BATCH_AXIS: batch_size}
        inputs = draw(model.session.inputs, uses, sizes, ("all",), np.random.default_rng(0))
        try:
            model.session.run(inputs)
        except KerasTxError as error:
            problem = problem or error
            continue
        return inputs
    assert problem is not None
    raise problem


def _repeated(call: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of each call, after one that is not counted."""
    call()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < LEAST or (time.perf_counter() < end and len(samples) < MOST):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return samples


def _generation(model: Any, batch_size: int, order: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Seconds of each prefill, and of each decoding step."""
    random = np.random.default_rng(0)
    sizes = order["sizes"]
    length = sizes.get(contract.SOURCE_AXIS) or sizes[contract.SEQUENCE_AXIS]
    prompts = random.integers(0, model.decoder.vocabulary_size, (batch_size, length)).tolist()
    limits = Limits(max_new_tokens=1 + order["new_tokens"])
    prefills: list[float] = []
    steps: list[float] = []

    def generate() -> None:
        last = time.perf_counter()
        decoder, beginnings = model.condition(prompts)
        for index, _ in enumerate(decode(decoder, beginnings, Sampling(), limits)):
            now = time.perf_counter()
            (steps if index else prefills).append(now - last)
            last = now

    end = time.perf_counter() + order["seconds"]
    generate()
    prefills.clear()
    steps.clear()
    while len(prefills) < LEAST or time.perf_counter() < end:
        generate()
    return prefills, steps


if __name__ == "__main__":
    print_result(_worker)
