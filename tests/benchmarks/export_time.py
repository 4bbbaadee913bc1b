"""How long ViT-B/16 takes to export, verified, at full size.

    python -m tests.benchmarks.export_time [--variant B/16] [--runs 3] [--readme README.md]

The goal is 5 seconds on two cores. Keras's own `model.export(format="onnx")` of a ViT-B/16 took 58 seconds on
such a machine, and onnxruntime refused its file.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.page_tables import write_table


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the verified export of a ViT.")
    parser.add_argument("--variant", default="B/16", help="size as keras_tx.vit() names it (default: B/16)")
    parser.add_argument("--runs", type=int, default=3, help="exports to time (default: 3)")
    parser.add_argument("--readme", type=Path, help="write the table into this file, between its markers")
    options = parser.parse_args()
    table = measure(options.variant, options.runs)
    print(table)
    if options.readme is not None:
        write_table(options.readme, table)


def measure(variant: str, runs: int) -> str:
    """A Markdown table of what the exports took."""
    import keras

    import keras_tx
    from keras_tx_onnx import export_onnx

    model = keras_tx.vit(variant, num_classes=1000)
    seconds, reports = [], []
    with tempfile.TemporaryDirectory() as folder:
        for run in range(runs):
            start = time.perf_counter()
            reports.append(export_onnx(model, Path(folder, "model"), overwrite=run > 0))
            seconds.append(time.perf_counter() - start)
    report: Any = reports[-1]
    size = sum(record.size for record in report.manifest.files.values())
    rows = [
        ("export, the first, verified", f"{seconds[0]:.2f} s"),
        (f"export, median of {runs}, verified", f"{statistics.median(seconds):.2f} s"),
        ("  of it the parity run", f"{report.seconds['verify']:.2f} s"),
        ("nodes", f"{report.nodes.total()}"),
        ("size", f"{size / 1e6:.0f} MB"),
        ("difference from Keras, of the output's scale", f"{report.manifest.parity.max_difference:.1e}"),
    ]
    where = f"{os.cpu_count()} cores, {platform.machine()}"
    keras_version = f"Keras {keras.__version__} on {keras.backend.backend()}"
    lines = [
        f"ViT-{variant}, {where}, {keras_version}, {datetime.date.today()}:",
        "",
        "| | |",
        "| --- | --- |",
    ]
    return "\n".join(lines + [f"| {name} | {value} |" for name, value in rows])


if __name__ == "__main__":
    main()
