"""What an export did, to print."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

from keras_tx.contract import Manifest


@dataclasses.dataclass(frozen=True)
class Report:
    """What `export_onnx` gives back. Printed, it is a table."""

    folder: Path
    manifest: Manifest
    nodes: Counter[str]
    parameters: int
    seconds: dict[str, float]  # by step

    def __str__(self) -> str:
        manifest = self.manifest
        tiers = Counter(manifest.tiers.values())
        size = sum(record.size for record in manifest.files.values())
        most = ", ".join(f"{count} {op}" for op, count in self.nodes.most_common(5))
        rows = [
            ("folder", f"{self.folder} ({_bytes(size)}, {len(manifest.files) + 1} files)"),
            ("task", manifest.task or "none (a generic model)"),
            ("inputs", ", ".join(f"{t.name} {t.dtype} {_shape(t.shape)}" for t in manifest.inputs)),
            ("outputs", ", ".join(f"{t.name} {t.dtype} {_shape(t.shape)}" for t in manifest.outputs)),
            ("graph", f"opset {manifest.opset}, {self.nodes.total()} nodes: {most} ..."),
            ("parameters", f"{self.parameters:,}, computed in {self._arithmetic()}"),
            ("layers", ", ".join(f"{count} {tier}" for tier, count in tiers.items()) or "none"),
            ("parity", self._parity()),
            ("seconds", ", ".join(f"{name} {value:.2f}" for name, value in self.seconds.items())),
            *(("note", note) for note in manifest.notes),
        ]
        return "\n".join(f"{name:<11}{value}" for name, value in rows)

    __repr__ = __str__

    def _arithmetic(self) -> str:
        return (
            "int8 where Keras quantized, float32 elsewhere"
            if "int8" in self.manifest.precisions
            else "float32"
        )

    def _parity(self) -> str:
        parity = self.manifest.parity
        if parity is None:
            return "NOT VERIFIED (verify=False)"
        return (
            f"onnxruntime within {parity.max_difference:.1e} of Keras, in units of the output's scale "
            f"({', '.join(self.manifest.precisions)} tolerance {parity.tolerance:.0e}; "
            f"{', '.join(parity.cases)})"
        )


def _shape(shape: tuple[int | str, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _bytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"
