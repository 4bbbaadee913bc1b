"""Models of NVIDIA Triton: a folder's graph, with config.pbtxt for Triton's ONNX Runtime backend."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.atomic_write import atomic_directory, check_target
from keras_tx.errors import ConfigError, FolderError, nearest, user_stacklevel, whole_number
from keras_tx.runtime.external_data import external_locations
from keras_tx.runtime.folder import Folder, open_folder

CONFIG = "config.pbtxt"
LABELS = "labels.txt"
VERSION = "1"
MARK = "# Written by keras-tx triton."
DEVICES = {"cpu": "KIND_CPU", "gpu": "KIND_GPU"}
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
TYPES = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "uint16": "TYPE_UINT16",
    "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64",
    "int8": "TYPE_INT8",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
}


@dataclasses.dataclass(frozen=True)
class TritonOptions:
    """Options of a model in Triton.

    Args:
        max_batch: largest number of rows in a batch that Triton assembles of concurrent requests; 1 for none.
        max_wait_ms: milliseconds that a request may wait for others; 0 batches those that wait anyway.
        instances: number of copies of the model that run concurrently.
        device: "cpu" or "gpu".
        threads: threads of each instance on the CPU; None for all cores.

    Raises:
        ConfigError: if a value is out of range.
    """

    max_batch: int = 32
    max_wait_ms: float = 0.0
    instances: int = 1
    device: str = "cpu"
    threads: int | None = None

    def __post_init__(self) -> None:
        whole_number("max_batch", self.max_batch)
        whole_number("instances", self.instances)
        wait = self.max_wait_ms
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < 1e9:
            raise ConfigError(f"max_wait_ms is {wait!r}, expected milliseconds, 0 or more.")
        if self.device not in DEVICES:
            raise ConfigError(f"device={self.device!r} is unknown. {nearest(str(self.device), DEVICES)}")
        if self.threads is not None:
            whole_number("threads", self.threads)
            if self.device != "cpu":
                raise ConfigError(f"threads={self.threads} requires device='cpu'. Omit it.")


DEFAULTS = TritonOptions()


def write_model(
    folder: str | os.PathLike[str],
    repository: str | os.PathLike[str],
    *,
    name: str | None = None,
    precision: str | None = None,
    options: TritonOptions = DEFAULTS,
    overwrite: bool = False,
) -> Path:
    """Writes a folder as a model of a Triton repository.

    Args:
        folder: a folder that `export_onnx` wrote.
        repository: the model repository; it is created if it is missing.
        name: the model's name in Triton; by default that of the folder.
        precision: precision of the graph; by default fp32.
        options: options of the model in Triton.
        overwrite: whether to replace a model that this function wrote.

    Returns:
        The path of the model in the repository.

    Raises:
        FolderError: if the folder is damaged, or the model cannot be written.
        ConfigError: if Triton cannot serve the folder, or an argument is not valid.
    """
    source = open_folder(folder, precision)
    name = source.path.resolve().name if name is None else name
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(f"name is {name!r}, expected letters, digits, '_', '-' and '.'. Pass another name.")
    _check_stateless(source)
    config = model_config(source, name, options)
    target = Path(repository) / name
    check_target(target, overwrite, FolderError, _written)
    for limit in _limits(source, options):
        warnings.warn(limit, stacklevel=user_stacklevel())
    with atomic_directory(target, FolderError) as partial:
        graphs = partial / VERSION
        graphs.mkdir()
        for file in (source.graph.name, *external_locations(source.graph)):
            _copy(source, file, graphs / file)
        if _field("label_filename", LABELS) in config:
            text = "".join(f"{label}\n" for label in source.manifest.labels or ())
            (partial / LABELS).write_text(text, encoding="utf-8")
        (partial / CONFIG).write_text(config, encoding="utf-8")
    return target


def model_config(source: Folder, name: str, options: TritonOptions = DEFAULTS) -> str:
    """Returns the config.pbtxt of a folder.

    Raises:
        ConfigError: for a tensor of a type that Triton does not have.
    """
    batched = options.max_batch > 1 and _has_batch_axis([*source.inputs, *source.outputs])
    labels = source.manifest.labels
    lines = [
        f"{MARK} keras-tx {source.manifest.keras_tx_version} exported the graph in {source.precision}.",
        _field("name", name),
        _field("backend", "onnxruntime"),
        _field("default_model_filename", source.graph.name),
        f"max_batch_size: {options.max_batch if batched else 0}",
    ]
    for tensor in source.inputs:
        lines += ["input {", *_indented(_tensor(tensor, batched)), "}"]
    for tensor in source.outputs:
        rows = _tensor(tensor, batched)
        if labels is not None and tensor.shape[1:] == (len(labels),) and _is_line_file(labels):
            rows.append(_field("label_filename", LABELS))
        lines += ["output {", *_indented(rows), "}"]
    if batched:
        delay = round(options.max_wait_ms * 1000)
        lines += ["dynamic_batching {", *_indented([f"max_queue_delay_microseconds: {delay}"]), "}"]
    group = [f"count: {options.instances}", f"kind: {DEVICES[options.device]}"]
    lines += ["instance_group {", *_indented(group), "}"]
    if options.threads is not None:
        rows = [
            _field("key", "intra_op_thread_count"),
            "value {",
            *_indented([_string(options.threads)]),
            "}",
        ]
        lines += ["parameters {", *_indented(rows), "}"]
    return "".join(f"{line}\n" for line in lines)


def _check_stateless(source: Folder) -> None:
    """Raises a ConfigError for a graph whose caller keeps a cache between calls."""
    manifest = source.manifest
    cached = any(spec.name.startswith("past_key_values.") for spec in manifest.inputs)
    if manifest.encoder is None and not cached:
        return
    remedy = ", or export it with cache=False for its logits" if manifest.encoder is None else ""
    raise ConfigError(
        f"{source.path} has the task {manifest.task!r}: its graph returns the keys and values of all tokens "
        "for the next call, and Triton's ONNX Runtime backend keeps nothing between calls. Serve the folder "
        f"with keras-tx serve{remedy}."
    )


def _limits(source: Folder, options: TritonOptions) -> Iterator[str]:
    """What the folder's own runtime checks or serves, and Triton does not."""
    manifest = source.manifest
    if manifest.bounds:
        yield (
            f"Triton does not check {', '.join(manifest.bounds)}, beyond which the graph is not correct. "
            "Check it in the client."
        )
    if manifest.adapters:
        yield f"Triton serves the base model, without the adapters {', '.join(manifest.adapters)}."
    if manifest.depends_on_batch(source.precision) and options.max_batch > 1:
        yield (
            "The ranges of int8 are computed over a batch, so that outputs depend on the requests in it. "
            "Pass max_batch=1, or quantize with calibration, or to int8-blocks."
        )


def _has_batch_axis(tensors: Sequence[contract.TensorSpec]) -> bool:
    """Whether the first axis of all tensors is the same dynamic one."""
    return len({tensor.shape[:1] for tensor in tensors}) == 1 and all(
        tensor.shape and isinstance(tensor.shape[0], str) for tensor in tensors
    )


def _tensor(tensor: contract.TensorSpec, batched: bool) -> list[str]:
    """The fields of an input or output, whose batch axis is not among its dims."""
    if tensor.dtype not in TYPES:
        raise ConfigError(f"{tensor.name} is {tensor.dtype}, expected one of {', '.join(TYPES)} for Triton.")
    axes = tensor.shape[1:] if batched else tensor.shape
    rows = [_field("name", tensor.name), f"data_type: {TYPES[tensor.dtype]}"]
    dims = [axis if isinstance(axis, int) else -1 for axis in axes]
    if dims:
        return [*rows, *(f"dims: {size}" for size in dims)]
    return [*rows, "dims: 1", "reshape {", "}"]  # Triton's form of a scalar


def _copy(source: Folder, file: str, target: Path) -> None:
    """Copies a file of the graph; raises a FolderError if it is not the one of the manifest."""
    graph = source.graph.parent / file
    record = source.manifest.files[graph.relative_to(source.path).as_posix()]
    shutil.copyfile(graph, target)
    if contract.describe_file(target) != record:
        raise FolderError(f"{graph} is damaged, or was replaced while it was read. Run keras-tx verify.")


def _written(model: Path) -> Collection[str]:
    """The files of a model that `write_model` wrote."""
    try:
        own = (model / CONFIG).read_text(encoding="utf-8").startswith(MARK)
    except (OSError, ValueError):
        own = False
    if not own:
        raise FolderError(
            f"{model} has no {CONFIG} of keras-tx, and is not overwritten. Choose another name."
        )
    graphs = {f"{VERSION}/{path.name}" for path in (model / VERSION).glob("*.onnx*")}
    return {CONFIG, LABELS, *graphs}


def _is_line_file(labels: Sequence[str]) -> bool:
    """Whether a file of one label per line can hold them."""
    return all(label.splitlines() == [label] for label in labels)


def _field(name: str, value: str) -> str:
    return f"{name}: {_quoted(value)}"


def _string(value: Any) -> str:
    return f"string_value: {_quoted(str(value))}"


def _quoted(text: str) -> str:
    """A string of protobuf's text format, which reads the escapes of JSON that ASCII needs."""
    return json.dumps(text, ensure_ascii=False)


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
