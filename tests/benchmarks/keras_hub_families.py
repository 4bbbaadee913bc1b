"""Exports every family of keras-hub: its tiers, and its difference from Keras.

    python -m tests.benchmarks.keras_hub_families [--families bert,gpt2] [--markdown docs/families.md]

Each backbone is tiny with random weights. onnxruntime is compared with Keras at two batch sizes and, if the
axis is dynamic, two text lengths or two image sizes.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_tx import contract
from tests.benchmarks import keras_hub_decoders
from tests.benchmarks.page_tables import write_table
from tests.benchmarks.tiny_backbones import FAMILIES, Family

TOLERANCE = 1e-4
MESSAGE = 700  # characters of an error in the table
# Batch size, text length, image size, length of a second sequence
CASES = ((2, 7, 64, 11), (3, 12, 96, 5))


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of one family."""

    family: Family
    tiers: tuple[str, ...] = ()
    nodes: int | None = None
    nodes_of_a_block: int | None = None
    difference: float | None = None
    problem: str | None = None

    @property
    def works(self) -> bool:
        return self.problem is None and "tf2onnx" not in self.tiers


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Export every family of keras-hub, tiny, and compare.")
    parser.add_argument("--families", help="only these, separated by commas (default: all)")
    parser.add_argument("--markdown", type=Path, help="write the table into this file, between its markers")
    parser.add_argument("--traceback", action="store_true", help="show where a family fails")
    options = parser.parse_args(arguments)
    rows = [tried(family, options.traceback) for family in chosen(options.families)]
    text = table(rows)
    print(text)
    results = keras_hub_decoders.decoders(chosen(options.families))
    cached = keras_hub_decoders.table(results)
    print(cached)
    if options.markdown is not None:
        write_table(options.markdown, text)
        write_table(options.markdown, cached, keras_hub_decoders.MARKERS)


def chosen(names: str | None) -> list[Family]:
    """The families with these keys."""
    if names is None:
        return list(FAMILIES)
    known = {family.key: family for family in FAMILIES}
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise SystemExit(f"Unknown families: {', '.join(unknown)}. Known: {', '.join(known)}.")
    return [known[name] for name in names.split(",")]


def folder_of(family: Family) -> str:
    """The folder of a family in keras-hub's models."""
    return family.folder or family.key


def tried(family: Family, show: bool = False) -> Row:
    """Builds, exports and compares one family; an error is part of the row."""
    try:
        return measured(family)
    except Exception as error:  # of the family's own code
        if show:
            traceback.print_exc()
        message = " ".join(line.strip() for line in str(error).splitlines())
        dots = "..." if len(message) > MESSAGE else ""
        return Row(family, problem=f"{type(error).__name__}: {message[:MESSAGE]}{dots}")


def measured(family: Family, opset: int = contract.DEFAULT_OPSET) -> Row:
    """Exports two blocks and compares them with Keras; exports three for the nodes per block."""
    import keras

    from keras_tx_onnx import export_onnx

    keras.utils.set_random_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        model = redrawn(family.make(2))
        report = export_onnx(model, Path(folder, "two"), verify=False, opset=opset)
        difference, unvarying = compared(family, model, Path(folder, "two"))
        nodes, block = report.nodes.total(), None
        if family.blocks:
            keras.backend.clear_session()
            more = export_onnx(family.make(3), Path(folder, "three"), verify=False, opset=opset)
            block = more.nodes.total() - nodes
    problem = None
    if difference > TOLERANCE:
        problem = f"differs from Keras by {difference:.1e} of the scale"
    elif unvarying:
        problem = f"proves nothing: {', '.join(unvarying)} hardly varies over the rows"
    return Row(family, tuple(sorted(set(report.manifest.tiers.values()))), nodes, block, difference, problem)


def compared(family: Family, model: Any, folder: Path) -> tuple[float, list[str]]:
    """The largest difference from Keras, and the outputs that hardly vary over the rows of the batch."""
    from keras_tx_onnx import tolerances
    from keras_tx_onnx.verifying.comparison import Variation

    largest = 0.0
    variations: dict[str, Variation] = {}
    without_rows = set()  # such as a table of positions
    for case in CASES:
        for name, (expected, got) in both_sides(family, model, folder, case).items():
            largest = max(largest, tolerances.difference(expected, got))
            variations.setdefault(name, Variation()).add(expected, got)
            if expected.shape[:1] != case[:1]:
                without_rows.add(name)
    return largest, [
        name
        for name, variation in variations.items()
        if name not in without_rows and not variation.proves(TOLERANCE)
    ]


def redrawn(model: Any) -> Any:
    """Redraws every weight: zeros and ones would hide mistakes."""
    import numpy as np

    rng = np.random.default_rng(1)
    for weight in model.weights:
        shape = weight.shape
        if "seed" in weight.name or not str(weight.dtype).startswith(("float", "bfloat")):
            continue
        if weight.name == "embeddings" and "quantizer" in weight.path:  # a codebook, of the size of its input
            weight.assign(rng.standard_normal(shape))
            continue
        if not weight.trainable and "variance" not in weight.name and "mean" not in weight.name:
            continue  # a table that the layer computed
        if len(shape) <= 1 or "variance" in weight.name:
            sign = 1 if "variance" in weight.name else rng.choice((-1, 1), shape)
            weight.assign(rng.uniform(0.5, 1.5, shape) * sign)
        else:
            weight.assign(rng.standard_normal(shape) / np.sqrt(np.prod(shape[:-1])))
    return model


def both_sides(family: Family, model: Any, folder: Path, case: tuple[int, ...]) -> dict[str, tuple[Any, Any]]:
    """Each output of Keras beside that of onnxruntime, by its name in the graph."""
    import keras
    import onnxruntime

    arrays = drawn(family, model, case)
    tensors = keras.tree.flatten(model.input)
    inputs = keras.tree.pack_sequence_as(model.input, [arrays[tensor.name] for tensor in tensors])
    expected = [keras.ops.convert_to_numpy(y) for y in keras.tree.flatten(model(inputs, training=False))]
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    wide = {"tensor(int64)": "int64", "tensor(float)": "float32", "tensor(bool)": "bool"}
    named = zip(session.get_inputs(), tensors, strict=True)  # an unnamed input has another name in the file
    feeds = {x.name: arrays[tensor.name].astype(wide[x.type]) for x, tensor in named}
    names = [output.name for output in session.get_outputs()]
    pairs = zip(expected, session.run(None, feeds), strict=True)
    return dict(zip(names, pairs, strict=True))


def drawn(family: Family, model: Any, case: tuple[int, ...]) -> dict[str, Any]:
    """Inputs by name; every second text ends with padding."""
    import keras
    import numpy as np

    batch, length, side, other = case
    rng = np.random.default_rng(7)
    arrays = {}
    for tensor in keras.tree.flatten(model.input):
        name = tensor.name
        here = family.fixed_length.get(name, other if name in family.other_length else length)
        open_axis = side if len(tensor.shape) == 4 else here
        shape = [batch, *(open_axis if n is None else n for n in tensor.shape[1:])]
        if name in family.special:
            arrays[name] = family.special[name](shape, rng)
        elif name.endswith("padding_mask"):
            padded = (
                np.arange(shape[1])[None] < np.where(np.arange(batch) % 2, shape[1], shape[1] - 2)[:, None]
            )
            arrays[name] = padded.astype(tensor.dtype)
        elif name.endswith("token_ids"):
            arrays[name] = rng.integers(3, family.vocabulary, shape).astype(tensor.dtype)
        elif keras.backend.is_float_dtype(tensor.dtype):
            arrays[name] = rng.standard_normal(shape, "float32")
        else:
            arrays[name] = rng.integers(0, 2, shape).astype(tensor.dtype)
    return arrays


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    import keras
    import keras_hub

    good = sum(row.works for row in rows)
    lines = [
        f"keras-hub {keras_hub.__version__}, Keras {keras.__version__} on {keras.backend.backend()}, "
        f"{datetime.date.today()}: {good} of {len(rows)} families without tf2onnx "
        f"and equal within {TOLERANCE:.0e}.",
        "",
        "| family | tiers | nodes | per block | max difference | problem |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = (
            row.family.name,
            " ".join(row.tiers),
            "" if row.nodes is None else str(row.nodes),
            "" if row.nodes_of_a_block is None else str(row.nodes_of_a_block),
            "" if row.difference is None else f"{row.difference:.1e}",
            (row.problem or "").replace("|", "\\|"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
