"""Report: the result of an export."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import keras

from keras_tx.contract import Adapter, Manifest, TargetGraph, TensorSpec, Variant

# By the precision of a model that Keras quantized.
_ARITHMETIC = {
    "int8": "int8 in quantized layers, else float32",
    "float8": "float32, with inputs and kernels of quantized layers rounded to float8",
    "int4": "float32, with 4-bit weights in quantized layers",
    "int8-blocks": "float32, with 8-bit weights in quantized layers",
}


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of `export_onnx`. Printed, it is a table.

    Attributes:
        folder: the exported folder.
        manifest: the content of its keras_tx.json.
        nodes: the number of nodes of each operator in the graph.
        parameters: the number of parameters of the model.
        seconds: the duration of each step.
        rounds_inputs: whether layers that Keras quantized round their inputs to int8.
        backend: on which Keras computed the comparison.
    """

    folder: Path
    manifest: Manifest
    nodes: Counter[str]
    parameters: int
    seconds: dict[str, float]
    rounds_inputs: bool = False
    backend: str = dataclasses.field(default_factory=keras.backend.backend)

    def __str__(self) -> str:
        manifest = self.manifest
        tiers = Counter(manifest.tiers.values())
        size = sum(record.size for record in manifest.files.values())
        most = ", ".join(f"{count} {op}" for op, count in self.nodes.most_common(5))
        rows = [
            ("folder", f"{self.folder} ({_bytes(size)}, {len(manifest.files) + 1} files)"),
            ("task", manifest.task or "none (a generic model)"),
            ("inputs", _tensors(manifest.inputs)),
            ("outputs", _tensors(manifest.outputs)),
            ("graph", f"opset {manifest.opset}, {self.nodes.total()} nodes: {most} ..."),
            *(("target", _target(name, graph)) for name, graph in manifest.targets.items()),
            ("parameters", f"{self.parameters:,}, computed in {self._arithmetic()}"),
            ("layers", ", ".join(f"{count} {tier}" for tier, count in tiers.items()) or "none"),
            *self._encoder(),
            *(("valid for", bound) for bound in manifest.bounds),
            ("parity", self._parity()),
            *(("adapter", _adapter(name, x)) for name, x in manifest.adapters.items()),
            *self._precisions(),
            ("seconds", ", ".join(f"{name} {value:.2f}" for name, value in self.seconds.items())),
            *(("note", note) for note in manifest.notes),
        ]
        return "\n".join(f"{name:<11}{value}" for name, value in rows)

    __repr__ = __str__

    def _precisions(self) -> list[tuple[str, str]]:
        lines = precision_rows(self.manifest) if self.manifest.variants else []
        return [("" if index else "precisions", line) for index, line in enumerate(lines)]

    def _encoder(self) -> list[tuple[str, str]]:
        encoder = self.manifest.encoder
        if encoder is None:
            return []
        return [("encoder", f"{_tensors(encoder.inputs)} -> {_tensors(encoder.outputs)}")]

    def _arithmetic(self) -> str:
        if self._precision == "int4" and self.rounds_inputs:
            return "float32, with 4-bit weights and inputs rounded to int8 in quantized layers"
        if self._precision == "int8" and not self.rounds_inputs:
            return _ARITHMETIC["int8-blocks"]
        return _ARITHMETIC.get(self._precision, "float32")

    @property
    def _precision(self) -> str:
        """The precision of the graph that was compared with Keras; not fp32 if Keras quantized the model."""
        manifest = self.manifest
        return next((name for name in manifest.precisions if name not in manifest.variants), "fp32")

    def _parity(self) -> str:
        parity = self.manifest.parity
        if parity is None:
            return "NOT VERIFIED (verify=False)"
        return (
            f"onnxruntime within {parity.max_difference:.1e} of Keras, in units of the output's scale "
            f"({self._precision} tolerance {parity.tolerance:.0e}; {', '.join(parity.cases)}; "
            f"Keras on its {self.backend} backend)"
        )


def _target(name: str, graph: TargetGraph | None) -> str:
    if graph is None:
        return f"{name}, the graph above"
    parity = "NOT VERIFIED (verify=False)"
    if graph.parity is not None:
        parity = f"within {graph.parity.max_difference:.1e} of Keras"
    return f"{name}, {graph.file}, opset {graph.opset}, {parity}"


def _adapter(name: str, adapter: Adapter) -> str:
    if adapter.parity is None:
        return f"{name}, NOT VERIFIED (verify=False)"
    return f"{name}, within {adapter.parity.max_difference:.1e} of Keras"


def _tensors(specs: Sequence[TensorSpec]) -> str:
    """Names, dtypes and shapes; the tensors of all layers in one entry, such as `present.0-11.key`."""
    layers: dict[tuple[str, ...], list[str]] = {}
    for spec in specs:
        name, _, rest = spec.name.partition(".")
        number, _, last = rest.partition(".")
        key = (name, last) if number.isdigit() else (spec.name, "")
        layers.setdefault((*key, f"{spec.dtype} {_shape(spec.shape)}"), []).append(number)
    texts = []
    for (name, last, kind), numbers in layers.items():
        if last:
            number = numbers[0] if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
            name = f"{name}.{number}.{last}"
        texts.append(f"{name} {kind}")
    return ", ".join(texts)


def _shape(shape: tuple[int | str, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _bytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"


def precision_rows(manifest: Manifest) -> list[str]:
    """A line for each precision of a folder, with its notes."""
    lines = []
    for precision, name in manifest.precisions.items():
        encoder = manifest.encoder
        graphs = [name] if encoder is None else [encoder.precisions[precision], name]
        files = {file for graph in graphs for file in (graph, f"{graph}_data")}
        size = sum(record.size for file, record in manifest.files.items() if file in files)
        variant = manifest.variants.get(precision)
        line = f"{precision:<13}{size / 1e6:9,.1f} MB"
        if variant is None:
            lines.append(line)
            continue
        lines.append(f"{line}  {variant.recipe}: {_difference(variant)}")
        lines += [f"{'':<13}{note}" for note in _notes(variant)]
        if encoder is not None:
            of_encoder = encoder.variants[precision]
            notes = [_difference(of_encoder), *_notes(of_encoder)]
            lines += [f"{'':<13}encoder: {note}" for note in notes]
    return lines


def _notes(variant: Variant) -> list[str]:
    keep_notes = [f"In fp32 because of keep: {', '.join(variant.kept)}."] if variant.kept else []
    return [*variant.notes, *keep_notes]


def _difference(variant: Variant) -> str:
    text = f"within {variant.noise:.1e} of fp32, in units of the output's scale"
    if variant.agreement is None:
        return text
    return f"{text}, the same largest output in {variant.agreement:.1%} of rows"
