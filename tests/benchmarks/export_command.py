"""Time and memory of the whole command `keras-tx export CHECKPOINT FOLDER`, verified.

    python -m tests.benchmarks.export_command CHECKPOINT [CHECKPOINT ...]

It prints seconds, CPU seconds (user and system, which other work on the machine disturbs less) and the peak
of the resident memory, mapped files included. Without KERAS_BACKEND, the command selects the backend.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple


class Measured(NamedTuple):
    seconds: float
    cpu_seconds: float
    megabytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the whole command keras-tx export.")
    parser.add_argument("checkpoints", nargs="+", type=Path, help="Hugging Face folders")
    options = parser.parse_args()
    print("| checkpoint | seconds | CPU seconds | peak, MB |\n| --- | --- | --- | --- |")
    for checkpoint in options.checkpoints:
        measured = measure(checkpoint)
        print(
            f"| {checkpoint.name} | {measured.seconds:.1f} | {measured.cpu_seconds:.1f} | "
            f"{measured.megabytes:,.0f} |",
            flush=True,
        )


def measure(checkpoint: Path) -> Measured:
    """Runs the command in a process of its own.

    Raises:
        CalledProcessError: the command failed.
    """
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "keras_tx.cli", "export", str(checkpoint), str(Path(place, "out"))]
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    return Measured(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 2**20)


if __name__ == "__main__":
    main()
