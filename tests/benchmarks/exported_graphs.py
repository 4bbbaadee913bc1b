"""An ONNX graph of any exporter against transformers: nodes, size, time, and differences with padding.

    python -m tests.benchmarks.exported_graphs reference CHECKPOINT FILE
    python -m tests.benchmarks.exported_graphs inspect FILE FOLDER

The first command writes inputs and transformers' outputs, the second one prints JSON. Texts of an encoder are
padded on the right. Those of a decoder are padded on the left, or on the right if its graph has no input for
positions.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

LENGTHS = (12, 7, 3)  # of the compared texts
TIMED = (128, 96, 64, 48, 32, 24, 20, 16)  # of the timed texts of an encoder
WARM_UP, RUNS = 2, 10
ALONE, RIGHT, LEFT = "alone", "right", "left"  # one text, and texts that are padded on these sides
NAMES = {
    "ids": ("input_ids", "token_ids"),
    "mask": ("attention_mask", "padding_mask"),
    "segments": ("token_type_ids", "segment_ids"),
    "positions": ("position_ids",),
}
KINDS = {
    "tensor(float)": "float32",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}


def write_reference(checkpoint: Path, file: Path) -> None:
    """Writes inputs, and the outputs of the checkpoint's model in transformers."""
    import torch
    import transformers

    (name,) = json.loads((checkpoint / "config.json").read_text("utf-8"))["architectures"]
    model: Any = getattr(transformers, name).from_pretrained(checkpoint).eval()
    config, random = model.config, np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    with torch.inference_mode():
        if hasattr(config, "image_size"):
            pixels = random.normal(size=(2, config.num_channels, config.image_size, config.image_size))
            arrays["pixels"] = pixels.astype("float32")
            arrays["pictures.output"] = model(pixel_values=torch.from_numpy(arrays["pixels"])).logits.numpy()
        else:
            arrays |= _texts(config.vocab_size, is_decoder=model.can_generate())
            for kind in (ALONE, RIGHT, LEFT):
                inputs = {"input_ids": f"{kind}.ids", "attention_mask": f"{kind}.mask"}
                if model.can_generate():
                    inputs["position_ids"] = f"{kind}.positions"
                outputs = model(**{name: torch.from_numpy(arrays[key]) for name, key in inputs.items()})
                arrays[f"{kind}.output"] = outputs[0].numpy()
    np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]


def _texts(vocabulary: int, is_decoder: bool) -> dict[str, np.ndarray]:
    """Token ids, masks and positions of the compared and of the timed texts, by kind and name."""
    random, texts = np.random.default_rng(0), {}
    timed = TIMED[:1] if is_decoder else TIMED
    for kind, lengths in ((ALONE, LENGTHS[:1]), (RIGHT, LENGTHS), (LEFT, LENGTHS), ("timed", timed)):
        real = np.arange(max(lengths)) < np.reshape(lengths, (-1, 1))
        mask = (real[:, ::-1] if kind == LEFT else real).astype("int64")
        texts[f"{kind}.ids"] = random.integers(3, vocabulary, mask.shape) * mask
        texts[f"{kind}.mask"] = mask
        texts[f"{kind}.positions"] = np.maximum(mask.cumsum(axis=1) - 1, 0)
    return texts


def inspect(file: Path, folder: Path) -> dict[str, Any]:
    """Figures of the largest graph of a folder that accepts the inputs; `error` if none does."""
    import onnx

    files = [path for path in folder.rglob("*") if path.is_file()]
    figures: dict[str, Any] = {"megabytes": sum(path.stat().st_size for path in files) / 1e6}
    graphs = {path: onnx.load(path, load_external_data=False).graph for path in folder.rglob("*.onnx")}
    errors = ["the folder has no graph"] if not graphs else []
    with np.load(file) as stored:
        arrays = dict(stored)
    for path in sorted(graphs, key=lambda path: (len(path.parts), -len(graphs[path].node))):
        try:
            return figures | {"nodes": len(graphs[path].node)} | _compared(path, arrays)
        except Exception as error:  # of onnxruntime, which has no base class, or an unknown input
            errors.append(f"{path.name}: {_one_line(error)}")
    return figures | {"error": errors[-1]}


def _compared(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Differences from transformers and the time of a run of a graph."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(parts: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return session.run(None, {spec.name: _value(spec, parts) for spec in session.get_inputs()})

    if "pixels" in arrays:
        one = {"pixels": arrays["pixels"][:1]}
        alone = _difference(arrays["pictures.output"][:1], run(one))
        both = _difference(arrays["pictures.output"], run({"pixels": arrays["pixels"]}))
        return {"alone": max(alone, both), "milliseconds": _milliseconds(run, one)}
    has_positions = any(spec.name in NAMES["positions"] for spec in session.get_inputs())
    padded = LEFT if has_positions else RIGHT
    parts = {kind: _parts(arrays, kind) for kind in (ALONE, padded, "timed")}
    figures: dict[str, Any] = {"alone": _difference(arrays[f"{ALONE}.output"], run(parts[ALONE]))}
    try:
        outputs = run(parts[padded])
        figures["padded"] = _difference(arrays[f"{padded}.output"], outputs, arrays[f"{padded}.mask"])
        figures["milliseconds"] = _milliseconds(run, parts["timed"])
    except Exception as error:  # of onnxruntime, which has no base class
        figures["error"] = _one_line(error)
    return figures


def _one_line(error: Exception) -> str:
    return " ".join(str(error).replace("|", "/").split())[:160]


def _parts(arrays: Mapping[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    parts = {name: arrays[f"{kind}.{name}"] for name in ("ids", "mask", "positions")}
    return parts | {"segments": np.zeros_like(parts["ids"])}


def _value(spec: Any, parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """The value of an input, by its name; a cache is empty, and images have the layout of the input."""
    name, dtype = spec.name.split(":")[0], KINDS[spec.type]
    part = next((part for part, names in NAMES.items() if name in names), None)
    if part is not None:
        return parts[part].astype(dtype)
    if "pixels" in parts:
        pixels = parts["pixels"]
        return pixels.transpose(0, 2, 3, 1) if spec.shape[-1] == pixels.shape[1] else pixels
    if len(spec.shape) != 4:
        raise ValueError(f"input {name} {spec.shape} is unknown")
    sizes = [size if isinstance(size, int) else 0 for size in spec.shape]
    return np.zeros([len(parts["ids"]), *sizes[1:]], dtype)


def _difference(expected: np.ndarray, outputs: list[np.ndarray], mask: np.ndarray | None = None) -> float:
    """The largest difference of the output with the expected shape at real tokens, in units of its scale."""
    computed = next((x for x in outputs if x.shape == expected.shape), None)
    if computed is None:
        raise ValueError(f"no output has shape {expected.shape}, but {[x.shape for x in outputs[:2]]}")
    real = np.ones(expected.shape[:1], bool) if mask is None else mask == 1
    gaps = np.abs(expected.astype("float64") - computed)[real]
    return float(gaps.max() / np.abs(expected[real]).max())


def _milliseconds(run: Any, parts: Mapping[str, np.ndarray]) -> float:
    seconds = []
    for _ in range(WARM_UP + RUNS):
        start = time.perf_counter()
        run(parts)
        seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds[WARM_UP:])


if __name__ == "__main__":
    order, first, second = sys.argv[1:]
    if order == "reference":
        write_reference(Path(first), Path(second))
    else:
        print(json.dumps(inspect(Path(first), Path(second))))
