"""Execution targets of an export: the forms of their graphs, which have kernels there, and the graphs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_tx import contract, kernels
from keras_tx.errors import ConfigError, nearest, whole_number
from keras_tx_onnx.graph.model_file import check_graph, write_beside
from keras_tx_onnx.graph.shared_cache import SHARED_FROM
from keras_tx_onnx.interfaces.base import Interface
from keras_tx_onnx.interfaces.choice import choose_interface
from keras_tx_onnx.interfaces.decoder import SHARED
from keras_tx_onnx.interfaces.model_graph import Exported, graph_of, recorded_options
from keras_tx_onnx.reading.functional_graph import position_count
from keras_tx_onnx.reading.signature import Functional
from keras_tx_onnx.verifying.verification import verify_graphs


@dataclasses.dataclass(frozen=True)
class Form:
    """What an execution target determines of a graph.

    Attributes:
        opset: of the graph. Below 23, attention is written out in older operators.
        unpad: whether per-token layers of an encoder skip padding, if the caller does not choose.
    """

    opset: int
    unpad: bool


@dataclasses.dataclass
class FormGraph:
    """The graph of a form: its interface, its targets, and once it is written, the file and its parity."""

    interface: Interface
    targets: list[str]
    exported: Exported | None = None
    parity: contract.Parity | None = None


class TargetGraphs:
    """The graphs of an export by their targets: a main one, and one for each further form.

    Args:
        functional: the model.
        options: of export_onnx.
        targets: names of the targets, checked; none for the main graph only.
        opset: the option of export_onnx.
        sizes: of dynamic axes, checked.
        unpad: the option of export_onnx.

    Attributes:
        main: the interface of the main graph.
        main_targets: its targets.
        others: the other graphs.

    Raises:
        ConfigError: if an option is not supported for the model or for a target.
    """

    def __init__(
        self,
        functional: Functional,
        options: Mapping[str, Any],
        targets: Sequence[str],
        opset: int | None,
        sizes: Mapping[str, int],
        unpad: bool | None,
    ) -> None:
        options = {**options} if unpad is None else {**options, "unpad": unpad}
        graphs: dict[str, FormGraph] = {}
        for form, names in _targets_by_form(targets, opset, unpad).items():
            if opset is None and names:
                _check_shared_cache(names[0], form.opset, options.get("cache"))
            interface = choose_interface(functional, options, form.opset, form.unpad)
            key = json.dumps([interface.opset, interface.export_options()])
            graphs.setdefault(key, FormGraph(interface, [])).targets.extend(names)
        main, *self.others = graphs.values()
        self.main, self.main_targets = main.interface, main.targets
        _check_sizes(self.main, targets, sizes)
        for graph in graphs.values():
            graph.interface.fix(sizes)

    def check_alone(self, precisions: Sequence[str], adapters: Any) -> None:
        """Raises a ConfigError if there are several graphs and options that require a single one."""
        if self.others and (len(self.main.parts) > 1 or adapters is not None or precisions != ["fp32"]):
            names = [*self.main_targets, *(name for graph in self.others for name in graph.targets)]
            raise ConfigError(
                f"target={names} is not supported for an encoder-decoder, and with adapters or precision: it "
                "writes several graphs. Export a folder for each target, or pass targets of one form."
            )

    def write(self, main: Path) -> list[str]:
        """Writes the other graphs beside the main one; returns the names of those with a data file."""
        external = []
        for graph in self.others:
            path = main.with_name(Path(contract.target_name(graph.targets[0])).name)
            exported = Exported(graph.interface, path, *graph_of(graph.interface, graph.interface.model))
            has_data, shared = write_beside(exported.model, path, main)
            check_graph(path)
            graph.exported = exported
            external += [path.name] if has_data else []
            if shared:
                self.main.notes.append(
                    f"onnx/{path.name} reads {shared / 1e6:,.0f} MB of weights from onnx/{main.name}_data. A "
                    "web page passes this file in session_options.externalData."
                )
        return external

    def verify(self) -> list[str]:
        """Compares the other graphs with Keras; returns notes about what the cases do not test."""
        notes = []
        for graph in self.others:
            assert graph.exported is not None
            verified = verify_graphs(graph.interface, [graph.exported])
            graph.parity = verified.parity
            notes += [f"{contract.target_name(graph.targets[0])}: {note}" for note in verified.notes]
        return notes

    def records(self) -> dict[str, contract.TargetGraph | None]:
        """The entries of the manifest."""
        records: dict[str, contract.TargetGraph | None] = dict.fromkeys(self.main_targets)
        for graph in self.others:
            options, file = recorded_options(graph.interface), contract.target_name(graph.targets[0])
            record = contract.TargetGraph(file, graph.interface.opset, options, graph.parity)
            records |= dict.fromkeys(graph.targets, record)
        return records


def targets_of(names: str | Sequence[str] | None) -> list[str]:
    """The names of targets, checked, each once, in the order that was passed."""
    if names is None:
        return []
    if not isinstance(names, str | Sequence):
        raise ConfigError(
            f"target={names!r} is invalid. Pass a name such as 'cuda', several in a list, or None."
        )
    names = [names] if isinstance(names, str) else list(names)
    expected = ", ".join(kernels.TARGETS)
    for name in names:
        if not isinstance(name, str) or name not in kernels.TARGETS:
            raise ConfigError(
                f"target has {name!r}, expected some of {expected}. {nearest(str(name), kernels.TARGETS)}"
            )
    if not names:
        raise ConfigError(f"target is empty, expected some of {expected}, or None.")
    return list(dict.fromkeys(names))


def sizes_of(sizes: Any) -> dict[str, int]:
    """The sizes of axes, checked, by name."""
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping):
        raise ConfigError(f"sizes={sizes!r} is invalid. Pass a dict such as {{'batch_size': 1}}.")
    return {str(axis): whole_number(f"sizes[{axis!r}]", size) for axis, size in sizes.items()}


def _targets_by_form(targets: Sequence[str], opset: int | None, unpad: bool | None) -> dict[Form, list[str]]:
    """The forms of the graphs of an export, the main one first, with the targets of each."""
    forms: dict[Form, list[str]] = {} if targets else {_form_of(None, opset, unpad): []}
    for target in targets:
        forms.setdefault(_form_of(target, opset, unpad), []).append(target)
    return forms


def _form_of(target: str | None, opset: int | None, unpad: bool | None) -> Form:
    """The form of the graph for a target; without a target, that for onnxruntime on the CPU.

    Args:
        target: name of the target.
        opset: of the graph; None for the newest in which the target has kernels.
        unpad: the option of the caller; None if it was not passed.

    Raises:
        ConfigError: if the target has no kernels for the opset, or does not support `unpad`.
    """
    if target is None:
        return Form(contract.DEFAULT_OPSET if opset is None else opset, True)
    since = kernels.TARGETS[target].since
    newest = kernels.newest_opset(target)
    opset = newest if opset is None else opset
    lacking = kernels.missing(target, opset, since)
    if lacking:
        raise ConfigError(
            f"opset={opset} is not supported for target={target!r}: onnxruntime {since} has no kernel of "
            f"{', '.join(lacking[:3])} there. Pass opset={newest}, or omit it."
        )
    reason = _reason_for_padding(target, opset)
    if unpad and reason:
        raise ConfigError(f"unpad=True is not supported for target={target!r}, which {reason}. Omit unpad.")
    return Form(opset, not reason)


def _check_shared_cache(target: str, opset: int, cache: Any) -> None:
    """Raises a ConfigError for a shared cache on a target without kernels of the opset that it requires."""
    if cache == SHARED and opset < SHARED_FROM:
        raise ConfigError(
            f"cache='shared' requires opset={SHARED_FROM} or higher, but target={target!r} has opset={opset}."
            " Omit cache; or export a folder without this target."
        )


def _reason_for_padding(target: str, opset: int) -> str:
    """Why the graph of an encoder must compute padding; empty if it can skip it."""
    about = kernels.TARGETS[target]
    if about.fixed_sizes:
        return "requires fixed sizes, whereas the number of real tokens varies"
    if not kernels.has_kernel(target, "NonZero", opset, about.since):
        return "has no kernel of NonZero"
    return ""


def _check_sizes(interface: Interface, targets: Sequence[str], sizes: Mapping[str, int]) -> None:
    """Raises a ConfigError if a size is of no dynamic axis, or a target requires a size that is missing."""
    target = next((target for target in targets if kernels.TARGETS[target].fixed_sizes), None)
    if not sizes and target is None:
        return
    name = interface.model.name
    if len(interface.parts) > 1 or interface.context_length:
        what = f"sizes={dict(sizes)}" if target is None else f"target={target!r}"
        remedy = "Pass cache=False" if interface.context_length else "Omit it"
        raise ConfigError(
            f"{what} is not supported for model {name!r}: sizes are fixed, but its cache grows. {remedy}."
        )
    axes = interface.dynamic_axes()
    unknown = [axis for axis in sizes if axis not in axes]
    if unknown:
        raise ConfigError(
            f"sizes has {unknown[0]!r}, but the dynamic axes of model {name!r} are "
            f"{', '.join(axes) or 'none'}."
        )
    _check_positions(interface, sizes)
    if target is not None:
        _check_all_fixed(target, name, axes, sizes)


def _check_positions(interface: Interface, sizes: Mapping[str, int]) -> None:
    """Raises a ConfigError if the only sequence is longer than the position embeddings of the model."""
    count = position_count(interface.model) if interface.sequences and len(interface.axes) == 1 else None
    length = max((sizes[axis] for axis in interface.axes if axis in sizes), default=0)
    if count is not None and length > count:
        raise ConfigError(
            f"sizes={dict(sizes)} is out of range: model {interface.model.name!r} has {count} positions."
        )


def _check_all_fixed(target: str, name: str, axes: Sequence[str], sizes: Mapping[str, int]) -> None:
    dynamic = [axis for axis in axes if axis not in sizes]
    if dynamic:
        example = {axis: 1 if axis == contract.BATCH_AXIS else 128 for axis in axes}
        raise ConfigError(
            f"target={target!r} requires fixed sizes, but model {name!r} has the dynamic axes "
            f"{', '.join(dynamic)}. Pass sizes={example}."
        )
