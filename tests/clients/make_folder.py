"""Exports the folders that the clients open, and writes down what our runtime says about them.

    python -m tests.clients.make_folder OUT

gives OUT/<name>/ for each case of the modules below, and OUT/reference.json with what was asked and answered,
about each file of a folder that has several precisions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.clients import (
    decoder_folders,
    documented,
    encoder_decoder_folders,
    execution_targets,
    keras_hub_folders,
    picture_folders,
    text_folders,
)
from tests.tolerances import FP32


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    cases = {
        name: case
        for kind in (
            picture_folders,
            text_folders,
            decoder_folders,
            encoder_decoder_folders,
            keras_hub_folders,
        )
        for folder in kind.CASES
        for name, case in kind.make(out, folder).items()
    }
    for name, case in cases.items():
        case["target"] = execution_targets.of(name)
        if case["target"] is not None:
            case |= execution_targets.placement(out / name / case["file"], case["target"])
        if name.endswith("large"):
            data = out / name / f"{case['file']}_data"
            assert data.exists(), (
                f"{data} is missing: the large model no longer has its weights outside the graph"
            )
    reference = {"tolerance": FP32, "cases": cases, "documented": documented.make(out)}
    (out / "reference.json").write_text(json.dumps(reference), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
