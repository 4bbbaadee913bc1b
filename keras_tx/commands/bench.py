"""keras-tx bench: how fast an exported folder runs, and with which precision, threads and batch size."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
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

SUMMARY = "measure how fast a folder runs, and recommend how to run it"
DESCRIPTION = """\
Measures the latency, throughput and memory of an exported folder for its precisions, for numbers of threads
and for batch sizes, and recommends a setting. Runs the graph on random inputs; reading images and tokenizing
are not included. A text generator is measured with its prefill and its decoding steps. The settings are
interleaved in three rounds, each in a process of its own. Needs neither Keras nor TensorFlow, only
pip install "keras-tx[runtime]".

With --clients, concurrent clients send single requests, each after the answer to its last one. Encoders and
image models answer them through a MicroBatcher; each client of a text generator has its own stream.
"""
EPILOG = """\
columns:
  latency, p90     of a batch, in milliseconds: median, and 90 % of the runs are faster than p90;
                   of a text generator, of a decoding step, and prefill is the time to read the prompt
  MB               the memory of the process at its peak, Python and onnxruntime included
  agreement        of the precision with fp32 on random inputs, as measured when the file was made
with --clients:
  batch, workers   the largest number of requests in a batch, and the batches that run concurrently
  p50, p95, p99    of the latency of a request: 50, 95 and 99 % of the requests are not slower
  first token      of a text generator, from a request to its first token: p50 and p95

examples:
  keras-tx bench flowers
  keras-tx bench flowers --precision int8 --threads 1 2 4 --batch-size 1 8 32 --seconds 60
  keras-tx bench reviews --length 256 --json reviews.json
  keras-tx bench poet --length 64 --new-tokens 128
  keras-tx bench anything --size width=200
  keras-tx bench reviews --clients 1 16 --batch-size 1 8 32 --length 128

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
        help="numbers of concurrent clients; --batch-size then limits a batch of requests (default: 1 32)",
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
    parser.add_argument(
        "--provider", metavar="NAME", default="auto", help="cpu, cuda and so on (default: auto)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to a new file")


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.runtime import benchmark
    from keras_tx.serving import client_benchmark

    options = {
        "provider": arguments.provider,
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
        return _execute(arguments, plan, benchmark, len(plan.batch_sizes), _table, _advice)
    plan = client_benchmark.plan(arguments.folder, arguments.clients, **options)
    settings = len(plan.batch_sizes) * len(plan.clients)
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
    total = ROUNDS * len(plan.configurations) * settings
    with ProgressBar(total, "measurements", shown=sys.stderr.isatty()) as bar:
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
    derived = (contract.TOTAL_AXIS, contract.LOGITS_AXIS)
    sizes = "".join(f", {name}={size}" for name, size in plan.sizes.items() if name not in derived)
    added = f", new_tokens={plan.new_tokens}" if plan.kind == "generation" else ""
    return f"{plan.folder} on {provider}{sizes}{added}; times in milliseconds"


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
    from keras_tx.serving.client_benchmark import PERCENTILES

    generates = plan.kind == "generation"
    head = [
        "",
        "precision",
        "threads",
        "workers",
        "batch",
        "clients",
        *(f"p{share}" for share in PERCENTILES),
    ]
    lines = [[*head, *(["first token", "p95"] if generates else []), plan.unit, "MB", "agreement"]]
    for row in rows:
        if row.problem:
            continue
        times = [row.percentile(share) for share in PERCENTILES]
        if generates:
            times += [row.first_token(50), row.first_token(95)]
        variant = manifest.variants.get(row.precision)
        agreement = None if variant is None else variant.agreement
        lines.append(
            [
                "*" if choice.setting == row.setting else "",
                row.precision,
                *map(str, (row.threads, row.workers, row.batch_size, row.clients)),
                *map(_milliseconds, times),
                f"{row.throughput:,.1f}",
                "" if row.memory is None else f"{row.memory / 1e6:.0f}",
                "" if agreement is None else f"{agreement:.1%}",
            ]
        )
    return table(lines, right=range(2, len(lines[0])))


def _client_advice(plan: ClientPlan, choice: ClientRecommendation) -> str:
    options = f"precision={choice.precision!r}, threads={choice.threads}"
    call = f"load({str(plan.folder)!r}, {options})"
    if plan.kind != "generation":
        call = f"MicroBatcher({call}, max_batch={choice.batch_size})"
    lines = [f"Recommended (*) for {choice.clients} clients: {call}"]
    return "\n".join([*lines, *(f"  {reason}" for reason in choice.reasons)])
