"""Time and memory of the whole command `keras-tx export CHECKPOINT FOLDER`, verified, and of other exporters.

    python -m tests.benchmarks.export_command CHECKPOINT [CHECKPOINT ...]
    python -m tests.benchmarks.export_command CHECKPOINT --exporter keras-tx mobius --python mobius=PATH

Each exporter reads the same Hugging Face folder in a process of its own. The table has seconds, CPU seconds
(user and system, which other work on the machine disturbs less) and the peak of the resident memory, mapped
files included; then nodes and size of the written folder, the time of a run in onnxruntime (8 texts of 16 to
128 tokens, a prompt of 128, or one picture), and the difference from transformers for one text and for texts
of several lengths, in units of the output's scale. Without KERAS_BACKEND, keras-tx selects the backend.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_tx.errors import ConfigError, KerasTxError, nearest
from tests.benchmarks.worker import ROOT


class Exporter(NamedTuple):
    """A command that exports a checkpoint: the arguments of its Python, and variables of its process."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = {}


_PEER = ("-m", "tests.benchmarks.peer_exports")
_OPTIMUM = ("-m", "optimum.commands.optimum_cli", "export", "onnx", "--no-post-process", "--model")
_KERAS_TX = ("-m", "keras_tx.cli", "export")
CHECKPOINT, FOLDER = "{checkpoint}", "{folder}"
EXPORTERS = {
    "keras-tx": Exporter((*_KERAS_TX, CHECKPOINT, FOLDER)),
    "keras-tx unverified": Exporter((*_KERAS_TX, CHECKPOINT, FOLDER, "--no-verify")),
    "mobius": Exporter(("-m", "mobius", "build", "--model", CHECKPOINT, FOLDER)),
    "optimum": Exporter((*_OPTIMUM, CHECKPOINT, "--task", "{task}", FOLDER)),
    "transformers.exporters": Exporter((*_PEER, "transformers", CHECKPOINT, FOLDER)),
    "jax2onnx": Exporter((*_PEER, "keras", CHECKPOINT, FOLDER), {"KERAS_BACKEND": "jax"}),
    "tf2onnx": Exporter((*_PEER, "keras", CHECKPOINT, FOLDER), {"KERAS_BACKEND": "tensorflow"}),
}
RIGHT = 1e-4  # the largest difference of a right graph
EXCEPTION = re.compile(r"[A-Za-z_][\w.]*: ")  # the beginning of its line in a traceback
LIMIT = 900.0  # seconds after which an export is ended
COLUMNS = {
    "seconds": "{:.1f}",
    "CPU seconds": "{:.1f}",
    "peak, MB": "{:,.0f}",
    "nodes": "{:,}",
    "size, MB": "{:,.0f}",
    "ms": "{:.1f}",
    "one text": "{}",
    "padded": "{}",
}


class Measured(NamedTuple):
    seconds: float
    cpu_seconds: float
    megabytes: float


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.export_command",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("checkpoints", nargs="+", type=Path, help="Hugging Face folders")
    names = ", ".join(EXPORTERS)
    parser.add_argument(
        "--exporter", nargs="+", default=["keras-tx"], metavar="NAME", help=f"{names}, or all"
    )
    parser.add_argument(
        "--python", action="append", default=[], metavar="NAME=PATH", help="its Python; repeatable"
    )
    parser.add_argument("--rounds", type=int, default=1, help="runs of each, interleaved; the fastest counts")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    options = parser().parse_args(argv)
    names = list(EXPORTERS) if options.exporter == ["all"] else options.exporter
    pythons = dict(option.partition("=")[::2] for option in options.python)
    for name in (*names, *pythons):
        if name not in EXPORTERS:
            raise ConfigError(f"exporter {name!r} is unknown. {nearest(name, EXPORTERS)}")
    print(f"| checkpoint | exporter | {' | '.join(COLUMNS)} |\n{'| --- ' * (len(COLUMNS) + 2)}|")
    for checkpoint in options.checkpoints:
        figures = _race(checkpoint, names, pythons, options.rounds)
        for name in names:
            print(f"| {checkpoint.name} | {name} | {' | '.join(_cells(figures[name]))} |", flush=True)


def _race(
    checkpoint: Path, names: Sequence[str], pythons: Mapping[str, str], rounds: int
) -> dict[str, dict[str, Any]]:
    """The figures of each exporter."""
    figures: dict[str, dict[str, Any]] = {name: {} for name in names}
    with tempfile.TemporaryDirectory() as place:
        reference = Path(place, "reference.npz")
        _run_module("reference", str(checkpoint), str(reference))
        for _ in range(rounds):
            for name in names:
                print(f"  {checkpoint.name}: {name}", file=sys.stderr, flush=True)
                folder = Path(place, "out")
                command = command_of(name, checkpoint, folder, pythons.get(name, sys.executable))
                figures[name] = _best(figures[name], _figures(name, command, reference, folder))
    return figures


def _cells(figures: Mapping[str, Any]) -> list[str]:
    cells = [pattern.format(figures[name]) if name in figures else "" for name, pattern in COLUMNS.items()]
    return [*cells[:-1], figures["error"]] if "error" in figures else cells


def command_of(name: str, checkpoint: Path, folder: Path, python: str) -> list[str]:
    """The command line of an exporter."""
    from tests.benchmarks.adapters.optimum import TASKS

    (architecture,) = json.loads((checkpoint / "config.json").read_text("utf-8"))["architectures"]
    values = {"checkpoint": checkpoint, "folder": folder, "task": TASKS[architecture][0]}
    return [python, *(argument.format(**values) for argument in EXPORTERS[name].arguments)]


def _best(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The figures of the faster of two runs; an error is kept."""
    runs = [figures for figures in (first, second) if figures]
    return min(runs, key=lambda figures: figures.get("seconds", 0.0))


def _figures(name: str, command: list[str], reference: Path, folder: Path) -> dict[str, Any]:
    """The figures of a run, by column, and an error."""
    try:
        measured = measure(command, EXPORTERS[name].environment)
        inspected = json.loads(_run_module("inspect", str(reference), str(folder)))
    except subprocess.CalledProcessError as error:
        return {"error": _last_error(str(error.stderr or "")) or f"exit code {error.returncode}"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    columns = dict(zip(COLUMNS, measured, strict=False)) | {"size, MB": inspected["megabytes"]}
    names = {"nodes": "nodes", "ms": "milliseconds", "error": "error"}
    columns |= {column: inspected[name] for column, name in names.items() if name in inspected}
    texts = {"one text": "alone", "padded": "padded"}
    return columns | {
        column: _verdict(inspected[name]) for column, name in texts.items() if name in inspected
    }


def _last_error(messages: str) -> str:
    """The line of the last exception in the messages of a process, or their last line; "" without any."""
    lines = messages.strip().splitlines()
    raised = [line for line in lines if EXCEPTION.match(line)]
    return (raised or lines or [""])[-1].replace("|", "/")[:160]


def _verdict(difference: float) -> str:
    return f"{'right' if difference <= RIGHT else 'WRONG'} ({difference:.0e})"


def _run_module(*arguments: str) -> str:
    """Runs tests.benchmarks.exported_graphs in a process of its own, so that this one stays small."""
    command = [sys.executable, "-m", "tests.benchmarks.exported_graphs", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment())
    if done.returncode:
        error = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise KerasTxError(f"{' '.join(command)} failed: {error}")
    return done.stdout.splitlines()[-1] if done.stdout else ""


def _environment() -> dict[str, str]:
    more = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "export"), *([more] if more else [])]),
        "HF_HUB_OFFLINE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_PLATFORMS": "cpu",
    }


def measure(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Measured:
    """Runs a command in a process of its own.

    Raises:
        CalledProcessError: the command failed.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as messages:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=messages,
            env=_environment() | dict(environment or {}),
        )
        timer = threading.Timer(LIMIT, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        messages.seek(0)
        text = messages.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command), stderr=text)
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    return Measured(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 2**20)


if __name__ == "__main__":
    try:
        main()
    except KerasTxError as error:
        sys.exit(f"error: {error}")
