"""Folder: an exported folder, whose files are checked before onnxruntime opens them."""

from __future__ import annotations

import dataclasses
import json
import os
import posixpath
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.consistent_read import read_consistently
from keras_tx.errors import ConfigError, FolderError, nearest
from keras_tx.processing import ImageTransform
from keras_tx.runtime.adapter_file import read_adapter_file
from keras_tx.runtime.external_data import external_locations

_GRAPHS = posixpath.dirname(contract.MODEL)
_MAX_JSON = 64 * 2**20  # bytes; a manifest lists files and layers, not weights
# Separators, drives, characters that Windows does not allow, and the asterisk, which has a meaning in
# onnxruntime's locations.
_FORBIDDEN = frozenset('\\:*?"<>|')
FileState = tuple[int, ...]  # device, inode, size, and the times of the last changes of content and inode
_REMEDY = "Copy the whole folder again, or export again."
QUANTIZED_BY_KERAS = "Keras quantized the model: omit precision, or export the float model."
_SIZES = "vocab_size type_vocab_size max_position_embeddings n_positions num_channels".split()
_CONFIG_KEYS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(_SIZES, ("a whole number, 1 or more", lambda value: _is_size(value))),
    "image_size": ("a size or a pair of them", lambda value: _is_size(value) or _is_pair(value)),
    "pad_token_id": ("an id", lambda value: type(value) is int and value >= 0),
    "id2label": ("an object", lambda value: isinstance(value, dict)),
    "model_type": ("a string", lambda value: isinstance(value, str)),
    "task_specific_params": (
        "an object for each task",
        lambda value: isinstance(value, dict) and all(isinstance(x, dict) for x in value.values()),
    ),
    "problem_type": (
        f"one of {', '.join(contract.PROBLEM_TYPES)}",
        lambda value: value in contract.PROBLEM_TYPES,
    ),
}


@dataclasses.dataclass(frozen=True)
class Folder:
    """An exported folder that has passed the checks of `open_folder`.

    Attributes:
        path: the folder.
        manifest: the content of keras_tx.json.
        graph: the .onnx file of `precision`.
        config: the content of config.json.
        transform: the image transform of preprocessor_config.json.
        generation: the content of generation_config.json.
        tokenizer: the tokenizer.json file.
        target_tokenizer: the tokenizer of the targets of an encoder-decoder, if it differs.
        shared: the version of the graph whose cache is written in place.
        encoder: the encoder's .onnx file of an encoder-decoder, whose `graph` is its decoder.
        precision: precision of the graphs.
        states: state of each file when it was checked.
    """

    path: Path
    manifest: contract.Manifest
    graph: Path
    config: Mapping[str, Any] | None
    transform: ImageTransform | None
    generation: Mapping[str, Any] | None = None
    tokenizer: Path | None = None
    target_tokenizer: Path | None = None
    shared: Path | None = None
    encoder: Path | None = None
    precision: str = "fp32"
    states: Mapping[str, FileState] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def problem_type(self) -> str | None:
        """The meaning of the logits of a classifier, by config.json; None if it has none."""
        return (self.config or {}).get("problem_type")

    @property
    def target_graphs(self) -> list[contract.TargetGraph]:
        """The graphs of execution targets beside the main one, each once."""
        graphs = [graph for graph in self.manifest.targets.values() if graph is not None]
        return [graph for index, graph in enumerate(graphs) if graph not in graphs[:index]]

    def with_graph_of(self, target: contract.TargetGraph) -> Folder:
        """This folder with the graph of an execution target as its graph."""
        manifest = dataclasses.replace(
            self.manifest, opset=target.opset, export_options=target.export_options, parity=target.parity
        )
        return dataclasses.replace(self, manifest=manifest, graph=self.path / target.file, shared=None)

    @property
    def inputs(self) -> tuple[contract.TensorSpec, ...]:
        """Inputs of the graph of this precision, by the manifest."""
        variant = self.manifest.variants.get(self.precision)
        return self.manifest.inputs if variant is None or variant.inputs is None else variant.inputs

    @property
    def outputs(self) -> tuple[contract.TensorSpec, ...]:
        """Outputs of the graph of this precision, by the manifest."""
        variant = self.manifest.variants.get(self.precision)
        return self.manifest.outputs if variant is None or variant.outputs is None else variant.outputs


def open_folder(
    path: str | os.PathLike[str], precision: str | None = None, *, default: str = "fp32"
) -> Folder:
    """Checks a folder: everything except the hashes of large files, which `verify_hashes` checks.

    The manifest is valid. Every file that it lists is a regular file inside the folder, is not a link, and
    has its size. The graph has its hash and refers to no data outside the folder.

    >>> open_folder("flowers").manifest.task  # doctest: +SKIP
    'image-classification'

    Args:
        path: a folder that `export_onnx` wrote.
        precision: precision of the graph to open.
        default: precision to open if `precision` is None; if the folder does not have it, fp32, or the first.

    Raises:
        FolderError: if a check fails.
        ConfigError: if the folder does not have the precision.
    """
    root = folder_path(path)
    return read_consistently(root, lambda: checked_folder(root, precision, default), FolderError)


def folder_path(path: str | os.PathLike[str]) -> Path:
    """Converts to a Path; raises a FolderError for a value that is not a path."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise FolderError(f"folder is {_short(path)}, expected a string or a pathlib.Path.")
    return Path(path)


def checked_folder(root: Path, precision: str | None, default: str, target: str | None = None) -> Folder:
    """`open_folder` without `read_consistently`, for callers that open files by path too.

    `target` selects the graph of an execution target, if the folder has one of its own; else it is the main
    one.
    """
    _check_is_folder(root)
    manifest = read_manifest(root)
    states = {name: _check_file(root, name, record) for name, record in manifest.files.items()}
    precision = _precision(root, manifest, precision, default)
    graph = _graph(root, manifest.precisions, manifest, precision)
    encoder = None
    if manifest.encoder is not None:
        _check_encoders(root, manifest)
        encoder = _graph(root, manifest.encoder.precisions, manifest, precision)
    _check_adapters(root, manifest)
    config = _optional_json(root, contract.CONFIG, manifest)
    preprocessor = _optional_json(root, contract.PREPROCESSOR, manifest)
    transform = None if preprocessor is None else _transform(root, preprocessor)
    if config is not None:
        _check_config(root / contract.CONFIG, config)
        _check_agreement(root, manifest, config, transform)
    generation = _optional_json(root, contract.GENERATION_CONFIG, manifest)
    tokenizer, target_tokenizer = (
        root / name if name in manifest.files else None
        for name in (contract.TOKENIZER, contract.TARGET_TOKENIZER)
    )
    beside = contract.shared_name(graph.relative_to(root).as_posix())
    shared = _checked_graph(root, manifest, beside) if beside in manifest.files else None
    folder = Folder(
        root,
        manifest,
        graph,
        config,
        transform,
        generation,
        tokenizer,
        target_tokenizer,
        shared,
        encoder,
        precision,
        states,
    )
    return _with_target(folder, target)


def _check_is_folder(root: Path) -> None:
    if not root.exists():
        raise FolderError(f"{root} does not exist. Pass a folder that export_onnx wrote.")
    if not root.is_dir():
        raise FolderError(f"{root} is a file, expected a folder that export_onnx wrote.")


def _with_target(folder: Folder, target: str | None) -> Folder:
    """The folder with the graph of a target, if it has one; checks those of all targets."""
    for graph in folder.target_graphs:
        _graph(folder.path, {folder.precision: graph.file}, folder.manifest, folder.precision)
    graph = folder.manifest.targets.get(target or "")
    return (
        folder
        if graph is None or folder.precision in folder.manifest.variants
        else folder.with_graph_of(graph)
    )


def check_unchanged(folder: Folder) -> None:
    """Raises a FolderError if a file has changed since the folder was opened.

    `export_onnx` replaces whole folders, but other programs may overwrite single files.
    """
    for name, state in folder.states.items():
        if _state(_regular_file(folder.path, name)) != state:
            raise FolderError(
                f"{folder.path / name} was changed or replaced while the folder was opened. Open the folder "
                "again when it is complete."
            )


def read_adapter(folder: Folder, name: str) -> list[dict[str, np.ndarray]]:
    """The values of an adapter for each graph, the main one last, by the names of optional inputs.

    Raises:
        ConfigError: if the folder has no adapter of this name.
        FolderError: if a file is damaged or was changed.
    """
    adapters = folder.manifest.adapters
    if name not in adapters:
        names = f"has the adapters {', '.join(adapters)}" if adapters else "has no adapters"
        raise ConfigError(f"adapter is {name!r}, but {folder.path} {names}.")
    encoder = folder.manifest.encoder
    files = [*([] if encoder is None else [encoder.adapters[name]]), adapters[name].file]
    for file in files:
        if contract.describe_file(folder.path / file) != folder.manifest.files[file]:
            raise FolderError(f"{folder.path / file} differs from {contract.MANIFEST}. {_REMEDY}")
    values = [read_adapter_file(folder.path / file) for file in files]
    check_unchanged(folder)
    return values


def verify_hashes(folder: Folder) -> None:
    """Compares the sha256 of every file with the manifest; `load` checks only that of the graph.

    Raises:
        FolderError: if a file differs, or the folder was replaced.
    """
    read_consistently(folder.path, lambda: _verify_hashes(folder), FolderError)


def _verify_hashes(folder: Folder) -> None:
    if read_manifest(folder.path) != folder.manifest:
        raise FolderError(f"{folder.path} was replaced after it was opened. Open it again.")
    changed = [
        name
        for name, record in folder.manifest.files.items()
        if contract.describe_file(folder.path / name).sha256 != record.sha256
    ]
    if changed:
        raise FolderError(
            f"{folder.path}: the sha256 of {', '.join(changed)} differs from {contract.MANIFEST}. {_REMEDY}"
        )


def read_manifest(root: Path) -> contract.Manifest:
    """The content of keras_tx.json; raises a FolderError if there is none that is valid."""
    path = root / contract.MANIFEST
    if not os.path.lexists(path):
        raise FolderError(
            f"{root} has no {contract.MANIFEST}, expected a folder that export_onnx wrote. {_REMEDY}"
        )
    size = _regular_file(root, contract.MANIFEST).st_size
    if size > _MAX_JSON:
        raise FolderError(f"{path} has {size} bytes, expected at most {_MAX_JSON}. {_REMEDY}")
    try:
        return contract.Manifest.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FolderError(f"{path} is not a valid manifest: {error}. {_REMEDY}") from error


def _check_file(root: Path, name: str, record: contract.FileRecord) -> FileState:
    if not _is_plain(name):
        raise FolderError(
            f"{root / contract.MANIFEST} lists {name!r}, expected relative paths inside the folder, with '/' "
            "and without '..'. Do not trust the folder; export again."
        )
    info = _regular_file(root, name)
    if info.st_size != record.size:
        raise FolderError(f"{root / name} has {info.st_size} bytes, expected {record.size}. {_REMEDY}")
    return _state(info)


def _state(info: os.stat_result) -> FileState:
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _is_plain(name: str) -> bool:
    parts = name.split("/")
    return all(
        part not in ("", ".", "..") and part.isprintable() and not _FORBIDDEN.intersection(part)
        for part in parts
    )


def _regular_file(root: Path, name: str) -> os.stat_result:
    """The lstat of a file; raises a FolderError for a link, also in its path, and for a special file."""
    *directories, _ = steps = [root.joinpath(*name.split("/")[: i + 1]) for i in range(name.count("/") + 1)]
    try:
        for directory in directories:
            _refuse_link(directory, os.lstat(directory))
        info = os.lstat(steps[-1])
    except FileNotFoundError:
        raise FolderError(f"{root / name} is missing, but {contract.MANIFEST} lists it. {_REMEDY}") from None
    except OSError as error:
        raise FolderError(f"{root / name} cannot be read: {error.strerror}. {_REMEDY}") from error
    _refuse_link(steps[-1], info)
    if not stat.S_ISREG(info.st_mode):
        raise FolderError(f"{root / name} is not a regular file. {_REMEDY}")
    if info.st_nlink > 1:
        raise FolderError(
            f"{root / name} is a hard link, which could lead outside the folder. Copy the folder with cp -rL."
        )
    return info


def _refuse_link(path: Path, info: os.stat_result) -> None:
    if stat.S_ISLNK(info.st_mode):
        raise FolderError(
            f"{path} is a symbolic link, which could lead outside the folder. Copy the folder with cp -rL."
        )


def _precision(root: Path, manifest: contract.Manifest, requested: str | None, default: str) -> str:
    """The precision to open: the requested one, the default, fp32, or the first."""
    graphs = manifest.precisions
    if not graphs:
        raise FolderError(f"{root / contract.MANIFEST}: precisions is empty. {_REMEDY}")
    if requested is None:
        return next(name for name in (default, "fp32", *graphs) if name in graphs)
    if not isinstance(requested, str):
        raise ConfigError(f"precision is {requested!r}, expected one of {', '.join(map(repr, graphs))}.")
    if requested in graphs:
        return requested
    problem = f"precision is {requested!r}, but {root} has {', '.join(graphs)}."
    if requested not in contract.PRECISIONS:
        raise ConfigError(f"{problem} {nearest(requested, contract.PRECISIONS)}")
    check_precision(requested, manifest.task)
    if "fp32" in graphs:
        raise ConfigError(f"{problem} Run keras-tx quantize {root} --precision {requested}")
    if not graphs.keys() & manifest.variants.keys():
        raise ConfigError(f"{problem} {QUANTIZED_BY_KERAS}")
    raise ConfigError(f"{problem} Export again with precision={[*graphs, requested]}.")


def _check_adapters(root: Path, manifest: contract.Manifest) -> None:
    """Raises a FolderError unless each adapter has a listed file for each graph."""
    files = {"": {name: adapter.file for name, adapter in manifest.adapters.items()}}
    if manifest.encoder is not None:
        files["encoder."] = manifest.encoder.adapters
    for place, by_name in files.items():
        if by_name.keys() != manifest.adapters.keys():
            raise FolderError(
                f"{root / contract.MANIFEST}: {place}adapters has {sorted(by_name)}, but adapters has "
                f"{sorted(manifest.adapters)}. {_REMEDY}"
            )
        for name, file in by_name.items():
            if file not in manifest.files:
                raise FolderError(
                    f"{root / contract.MANIFEST}: {place}adapters has the file {file!r} for {name!r}, which "
                    f"is not listed under files. {_REMEDY}"
                )


def check_precision(name: str, task: str | None) -> None:
    """Raises a ConfigError for a name of int8 that models of this task do not have."""
    if name in contract.precisions_of(task):
        return
    kind, method = "this model", "one range for the input of a layer"
    if contract.method_of("int8", task) == "int8-blocks":
        kind, method = "a decoder", "weights in blocks"
    raise ConfigError(
        f"precision={name!r} is not supported for {kind}: its 'int8' already has {method}. Pass 'int8'."
    )


def _check_encoders(root: Path, manifest: contract.Manifest) -> None:
    """Raises a FolderError unless each decoder graph has an encoder graph."""
    assert manifest.encoder is not None
    encoders, decoders = (sorted(x.precisions) for x in (manifest.encoder, manifest))
    if encoders != decoders:
        raise FolderError(
            f"{root / contract.MANIFEST}: encoder.precisions has {encoders}, but precisions has {decoders}. "
            f"{_REMEDY}"
        )


def _graph(root: Path, graphs: Mapping[str, str], manifest: contract.Manifest, precision: str) -> Path:
    """The checked path of the graph of a precision, of the names in `graphs`."""
    name = graphs[precision]
    if name not in manifest.files or posixpath.dirname(name) != _GRAPHS or not name.endswith(".onnx"):
        raise FolderError(
            f"{root / contract.MANIFEST}: precisions has {name!r} as {precision}, expected a file "
            f"{_GRAPHS}/*.onnx that is listed under files. {_REMEDY}"
        )
    return _checked_graph(root, manifest, name)


def _checked_graph(root: Path, manifest: contract.Manifest, name: str) -> Path:
    """The path of a graph that has its hash, and refers only to data that the manifest lists."""
    actual, expected = contract.describe_file(root / name).sha256, manifest.files[name].sha256
    if actual != expected:
        raise FolderError(f"{root / name} has sha256 {actual}, expected {expected}. {_REMEDY}")
    for location in external_locations(root / name):
        # Listed names are plain, so this also refuses ".." and absolute paths.
        if f"{_GRAPHS}/{location}" not in manifest.files:
            raise FolderError(
                f"{root / name} refers to {location!r}, expected a file in {_GRAPHS}/ that "
                f"{contract.MANIFEST} lists. Do not trust the folder; export again."
            )
    return root / name


def _optional_json(root: Path, name: str, manifest: contract.Manifest) -> dict[str, Any] | None:
    """The content of a JSON file that the manifest lists; None for others, which are not read."""
    return read_json(root, name, manifest) if name in manifest.files else None


def read_json(root: Path, name: str, manifest: contract.Manifest) -> dict[str, Any]:
    """The JSON object of a listed file."""
    if manifest.files[name].size > _MAX_JSON:
        raise FolderError(
            f"{root / name} has {manifest.files[name].size} bytes, expected at most {_MAX_JSON}. {_REMEDY}"
        )
    try:
        content = json.loads((root / name).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{root / name} is not JSON ({error}). {_REMEDY}") from error
    if not isinstance(content, dict):
        raise FolderError(f"{root / name} holds a {type(content).__name__}, expected an object. {_REMEDY}")
    return content


def _transform(root: Path, preprocessor: Mapping[str, Any]) -> ImageTransform:
    try:
        return ImageTransform.from_preprocessor_config(preprocessor)
    except ConfigError as error:
        raise FolderError(f"{root / contract.PREPROCESSOR}: {error}") from error


def _check_config(path: Path, config: Mapping[str, Any]) -> None:
    """Raises a FolderError for a key of a wrong type that the runtime reads; null counts as missing."""
    for key, (expected, fits) in _CONFIG_KEYS.items():
        if config.get(key) is not None and not fits(config[key]):
            raise FolderError(f"{path}: {key} is {_short(config[key])}, expected {expected}. {_REMEDY}")
    if config.get("model_type") == "roberta" and config.get("pad_token_id") is None:
        raise FolderError(f"{path}: pad_token_id is missing, which RoBERTa's positions need. {_REMEDY}")


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_size, value))


def _check_agreement(
    root: Path, manifest: contract.Manifest, config: Mapping[str, Any], transform: ImageTransform | None
) -> None:
    """Raises a FolderError if config.json, which other clients read, contradicts the manifest."""
    names = config.get("id2label")
    if manifest.labels is not None and names is not None:
        expected = {str(i): label for i, label in enumerate(manifest.labels)}
        if names != expected:
            raise FolderError(
                f"{root / contract.CONFIG}: id2label is {_short(names)}, but {contract.MANIFEST} has "
                f"the labels {_short(expected)}. Export again."
            )
    if transform is None:
        return
    size = config.get("image_size")
    pair = tuple(size) if isinstance(size, list) else (size, size)
    if size is not None and pair != transform.size:
        raise FolderError(
            f"{root / contract.CONFIG}: image_size is {size!r}, but {contract.PREPROCESSOR} resizes to "
            f"{transform.size}. Export again."
        )
    channels = config.get("num_channels", transform.channels)
    if channels != transform.channels:
        raise FolderError(
            f"{root / contract.CONFIG}: num_channels is {channels!r}, but {contract.PREPROCESSOR} has "
            f"{transform.channels}. Export again."
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
