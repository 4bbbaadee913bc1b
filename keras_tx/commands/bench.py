"""keras-tx bench: how fast an exported folder runs, and with which precision, threads and batch size."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_tx import contract
from keras_tx.commands.arguments import whole
from keras_tx.commands.terminal import table
from keras_tx.errors import ConfigError, KerasTxError

if TYPE_CHECKING:
    from keras_tx.contract import Manifest
    from keras_tx.runtime.benchmark import Measurement, Plan, Recommendation
    from keras_tx.serving.client_benchmark import ClientMeasurement, ClientPlan, ClientRecommendation

KEYS = "KERAS_TX_KEYS"  # that of keras-tx serve
SUMMARY = "measure how fast a folder runs, and recommend how to run it"
DESCRIPTION = """\
Measures the latency, throughput and memory of an exported folder for its precisions, for numbers of threads
and for batch sizes, and recommends a setting. Runs the graph on random inputs; reading images and tokenizing
are not included. A text generator is measured with its prefill and its decoding steps. The settings are
interleaved in three rounds, each in a process of its own. Needs neither Keras nor TensorFlow, only
pip install "keras-tx[runtime]".

With --clients, concurrent clients send single requests, each after the answer to its last one, through what
keras-tx serve has: decoders generate the texts of all clients in a TextEngine, and other models answer
through a MicroBatcher, unless each request runs alone there. With --url, the clients send texts, images and
prompts to a running server that has this model. The first key in KERAS_TX_KEYS is sent to a server that
requires one.
"""
EPILOG = """\
columns:
  latency, p90     of a batch, in milliseconds: median, and 90 % of the runs are faster than p90;
                   of a text generator, of a decoding step, and prefill is the time to read the prompt
  MB               the memory of the process at its peak, Python and onnxruntime included
  agreement        of the precision with fp32 on random inputs, as measured when the file was made
with --clients:
  batch, workers   the largest number of requests, or of texts of a decoder, in a batch, and the batches
                   that run concurrently
  p50, p95, p99    of the latency of a request: 50, 95 and 99 % of the requests are not slower
  first token      of a decoder, from a request to its first token: p50 and p95
with --url:
  MB               the memory of the server, as its /metrics have it

examples:
  keras-tx bench flowers
  keras-tx bench flowers --precision int8 --threads 1 2 4 --batch-size 1 8 32 --seconds 60
  keras-tx bench reviews --length 256 --json reviews.json
  keras-tx bench poet --length 64 --new-tokens 128
  keras-tx bench anything --size width=200
  keras-tx bench reviews --clients 1 16 --batch-size 1 8 32 --length 128
  keras-tx bench poet --clients 16 --batch-size 8 16 32
  keras-tx bench poet --url http://127.0.0.1:8000 --clients 1 16
  keras-tx bench exports/gpt --url http://127.0.0.1:8000/models/poet

exit codes: 0 done; 1 some setting did not run.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the exported folder")
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=tuple(contract.PRECISIONS),
        metavar="P",
        help="precisions to measure (default: all of the folder)",
    )
    parser.add_argument(
        "--threads", nargs="+", type=whole, metavar="N", help="numbers of threads (default: 1 and all cores)"
    )
    parser.add_argument(
        "--batch-size", nargs="+", type=whole, metavar="N", help="batch sizes (default: 1 and 8)"
    )
    parser.add_argument(
        "--clients",
        nargs="+",
        type=whole,
        metavar="N",
        help="numbers of concurrent clients; --batch-size then limits a batch of requests (default: 1 32), "
        "or of texts of a decoder (default: 4 16)",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        help="measure a running server: http://HOST:PORT, or http://HOST:PORT/models/NAME for a model whose "
        "name is not that of FOLDER (default for --clients: 1 16)",
    )
    parser.add_argument(
        "--length",
        type=whole,
        metavar="N",
        help="tokens of a text or prompt (default: 128, or as many as the model accepts); with --clients, "
        "texts have from an eighth of it to all of it",
    )
    parser.add_argument(
        "--new-tokens", type=whole, metavar="N", help="tokens that a text generator adds (default: 32)"
    )
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="AXIS=N",
        help="the size of another dynamic axis; repeatable (default: the first size that the graph accepts)",
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, metavar="S", help="the time budget (default: 30)"
    )
    parser.add_argument("--provider", metavar="NAME", help="cpu, cuda and so on (default: auto)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to a new file")


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.runtime import benchmark
    from keras_tx.serving import client_benchmark

    if arguments.url is not None:
        return _execute_url(arguments)
    options = {
        "provider": arguments.provider or "auto",
        "precisions": arguments.precision,
        "threads": arguments.threads,
        "batch_sizes": arguments.batch_size,
        "length": arguments.length,
        "new_tokens": arguments.new_tokens,
        "sizes": _sizes(arguments.size),
        "seconds": arguments.seconds,
    }
    if arguments.clients is None:
        plan = benchmark.plan(arguments.folder, **options)
        settings = len(plan.configurations) * len(plan.batch_sizes)
        return _execute(arguments, plan, benchmark, settings, _table, _advice)
    plan = client_benchmark.plan(arguments.folder, arguments.clients, **options)
    settings = sum(len(plan.cases(precision)) for precision, _ in plan.configurations)
    return _execute(arguments, plan, client_benchmark, settings, _client_table, _client_advice)


def _execute(
    arguments: argparse.Namespace,
    plan: Any,
    module: Any,
    settings: int,
    render: Callable[..., str],
    advise: Callable[..., str],
) -> int:
    """Measures a plan with the module of its kind, and prints the results."""
    from keras_tx.progress_bar import ProgressBar
    from keras_tx.runtime import open_folder
    from keras_tx.runtime.benchmark import ROUNDS

    _check_output(arguments.json, plan.folder)
    manifest = open_folder(plan.folder).manifest
    with ProgressBar(ROUNDS * settings, "measurements", shown=sys.stderr.isatty()) as bar:
        rows = module.run(plan, bar.advance)
    choice = module.recommend(rows, manifest)
    if arguments.json is not None:
        content = module.as_json(plan, rows, choice)
        arguments.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    problems = dict.fromkeys(
        f"{row.precision}, threads={row.threads}: {row.problem}" for row in rows if row.problem
    )
    if choice is None:
        raise KerasTxError(f"{plan.folder}: no setting runs. {' '.join(problems)}")
    print(_heading(plan, rows), render(plan, rows, choice, manifest), advise(plan, choice), sep="\n\n")
    if problems:
        print("\nNot measured:", *(f"  {line}" for line in problems), sep="\n")
    return 1 if problems else 0


def _execute_url(arguments: argparse.Namespace) -> int:
    """Measures a running server, and prints the results."""
    from keras_tx.progress_bar import ProgressBar
    from keras_tx.runtime.benchmark import ROUNDS
    from keras_tx.serving import server_benchmark

    for name in ("precision", "threads", "batch_size", "provider"):
        if getattr(arguments, name) is not None:
            option = name.replace("_", "-")
            raise ConfigError(
                f"--{option} is an option of the server. Pass it to keras-tx serve, or omit --url."
            )
    plan = server_benchmark.plan(
        arguments.folder,
        arguments.url,
        arguments.clients,
        key=os.environ.get(KEYS, "").split(",")[0].strip() or None,
        length=arguments.length,
        new_tokens=arguments.new_tokens,
        sizes=_sizes(arguments.size),
        seconds=arguments.seconds,
    )
    _check_output(arguments.json, plan.folder)
    with ProgressBar(ROUNDS * len(plan.clients), "measurements", shown=sys.stderr.isatty()) as bar:
        rows = server_benchmark.run(plan, bar.advance)
    choice = server_benchmark.recommend(rows)
    if arguments.json is not None:
        content = server_benchmark.as_json(plan, rows)
        arguments.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    model = plan.model
    heading = f"{plan.url}, model {model['name']}: {model['precision']} on {model['provider']}"
    head = ["clients", *_latency_names(rows), plan.unit, "MB"]
    lines = [[str(row.clients), *_latencies(row), f"{row.throughput:,.1f}", _megabytes(row)] for row in rows]
    rest = "" if choice is rows[-1] else " More of them wait longer."
    print(
        f"{heading}{_size_names(plan.sizes)}; times in milliseconds",
        table([head, *lines], right=range(len(head))),
        f"Clients to choose: {choice.clients}, with {choice.throughput:,.1f} {plan.unit} and a p95 of "
        f"{_milliseconds(choice.percentile(95))} ms.{rest}",
        sep="\n\n",
    )
    return 0


def _sizes(options: list[str]) -> dict[str, int]:
    sizes = {}
    for option in options:
        name, _, size = option.partition("=")
        if not (name and size.isdecimal()):
            raise ConfigError(f"--size {option} is not of the form AXIS=N, such as width=200.")
        sizes[name] = int(size)
    return sizes


def _check_output(path: Path | None, folder: Path) -> None:
    if path is None:
        return
    if path.exists():
        raise ConfigError(f"--json {path} exists. Choose another name.")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--json {path}: the directory {path.absolute().parent} does not exist. Create it.")
    if path.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"--json {path} is inside the exported folder. Choose a place outside it.")


def _heading(plan: Plan, rows: Sequence[Measurement | ClientMeasurement]) -> str:
    provider = next(row.provider for row in rows if not row.problem)
    added = f", new_tokens={plan.new_tokens}" if plan.kind == "generation" else ""
    return f"{plan.folder} on {provider}{_size_names(plan.sizes)}{added}; times in milliseconds"


def _size_names(sizes: Mapping[str, int]) -> str:
    derived = (contract.TOTAL_AXIS, contract.LOGITS_AXIS)
    return "".join(f", {name}={size}" for name, size in sizes.items() if name not in derived)


def _table(plan: Plan, rows: list[Measurement], choice: Recommendation, manifest: Manifest) -> str:
    from keras_tx.runtime.benchmark import UNITS

    generates = plan.kind == "generation"
    head = ["", "precision", "threads", "batch", *(["prefill"] if generates else []), "latency", "p90"]
    lines = [[*head, UNITS[plan.kind], "MB", "agreement"]]
    for row in rows:
        if row.problem:
            continue
        chosen = (row.precision, row.threads, row.batch_size) == (
            choice.precision,
            choice.threads,
            choice.batch_size,
        )
        times = [*([statistics.median(row.prefills)] if generates else []), row.median, row.p90]
        variant = manifest.variants.get(row.precision)
        agreement = None if variant is None else variant.agreement
        lines.append(
            [
                "*" if chosen else "",
                row.precision,
                str(row.threads),
                str(row.batch_size),
                *map(_milliseconds, times),
                f"{row.throughput:,.1f}",
                "" if row.memory is None else f"{row.memory / 1e6:.0f}",
                "" if agreement is None else f"{agreement:.1%}",
            ]
        )
    return table(lines, right=range(2, len(lines[0])))


def _milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _advice(plan: Plan, choice: Recommendation) -> str:
    options = f"precision={choice.precision!r}, threads={choice.threads}"
    lines = [f"Recommended (*): load({str(plan.folder)!r}, {options}), batch size {choice.batch_size}"]
    return "\n".join([*lines, *(f"  {reason}" for reason in choice.reasons)])


def _client_table(
    plan: ClientPlan, rows: list[ClientMeasurement], choice: ClientRecommendation, manifest: Manifest
) -> str:
    ran = [row for row in rows if not row.problem]
    head = ["", "precision", "threads", "workers", "batch", "clients", *_latency_names(ran)]
    lines = [[*head, plan.unit, "MB", "agreement"]]
    for row in ran:
        variant = manifest.variants.get(row.precision)
        agreement = None if variant is None else variant.agreement
        lines.append(
            [
                "*" if choice.setting == row.setting else "",
                row.precision,
                *map(str, (row.threads, row.workers, row.batch_size, row.clients)),
                *_latencies(row),
                f"{row.throughput:,.1f}",
                _megabytes(row),
                "" if agreement is None else f"{agreement:.1%}",
            ]
        )
    how = "texts run one by one" if plan.decodes else "each request runs alone"
    notes = dict.fromkeys(f"{row.precision}: {how}. {row.note}" for row in ran if row.note)
    return "\n".join([table(lines, right=range(2, len(lines[0]))), *notes])


def _latency_names(rows: Sequence[ClientMeasurement]) -> list[str]:
    from keras_tx.serving.client_benchmark import PERCENTILES

    streams = any(row.first_tokens for row in rows)
    return [*(f"p{share}" for share in PERCENTILES), *(["first token", "p95"] if streams else [])]


def _latencies(row: ClientMeasurement) -> list[str]:
    from keras_tx.serving.client_benchmark import PERCENTILES

    times = [row.percentile(share) for share in PERCENTILES]
    if row.first_tokens:
        times += [row.first_token(50), row.first_token(95)]
    return [*map(_milliseconds, times)]


def _megabytes(row: ClientMeasurement) -> str:
    return "" if row.memory is None else f"{row.memory / 1e6:.0f}"


def _client_advice(plan: ClientPlan, choice: ClientRecommendation) -> str:
    call = f"load({str(plan.folder)!r}, precision={choice.precision!r}, threads={choice.threads})"
    command = f"keras-tx serve {plan.folder} --precision {choice.precision} --threads {choice.threads}"
    if choice.precision not in plan.alone:
        option, batcher = ("max_streams", "TextEngine") if plan.decodes else ("max_batch", "MicroBatcher")
        call = f"{batcher}({call}, {option}={choice.batch_size})"
        command += f" --{option.replace('_', '-')} {choice.batch_size}"
    lines = [f"Recommended (*) for {choice.clients} clients: {call}", f"  {command}"]
    return "\n".join([*lines, *(f"  {reason}" for reason in choice.reasons)])
