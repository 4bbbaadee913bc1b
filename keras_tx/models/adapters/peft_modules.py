"""The modules of Hugging Face's classes that correspond to the layers of a model, in the names of PEFT."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from keras_tx.errors import ConfigError
from keras_tx.models.adapters.layer_selection import adaptable_layers
from keras_tx.models.families import Family, family_of
from keras_tx.weights.tensor_map import AS_IT_IS, TRANSPOSED, Entry, Form, Plan
from keras_tx.weights.weightless import build_weightless


@dataclasses.dataclass(frozen=True)
class Module:
    """A module with a kernel, which contains the kernel of one layer or of several, side by side.

    Args:
        name: name in the class of transformers, or the path of the layer with dots.
        layers: the paths of the layers whose outputs the module concatenates.
        factors: the kernel of each layer is that of the module times its factor.
        transposed: whether the kernel of the module has the axes (in, out).
    """

    name: str
    layers: tuple[str, ...]
    factors: tuple[float, ...]
    transposed: bool = False


class ModuleNames:
    """The modules of a model: those of Hugging Face's class, or one for each layer, named after its path.

    Args:
        model: a Keras model.
    """

    def __init__(self, model: Any):
        self.model = model
        family = family_of(model)
        self._plan = None if family is None else _plan_of(model, family)
        self._converter = None
        if self._plan is not None and family is not None and family.huggingface is not None:
            self._converter = family.huggingface()
        self.modules = self._modules()
        self.by_layer = {path: module for module in self.modules.values() for path in module.layers}

    @property
    def named_by_class(self) -> bool:
        """Whether the names are those of a class of transformers."""
        return self._plan is not None

    def _canonical(self, name: str) -> str:
        return name if self._plan is None else self._plan.canonical(name)

    def _modules(self) -> dict[str, Module]:
        modules: dict[str, Module] = {}
        for entry in () if self._plan is None else self._plan.entries:
            module = self._module_of(entry)
            if module is not None:
                modules[self._canonical(entry.name)] = module
        if self._plan is None:
            for path in adaptable_layers(self.model):
                name = path.replace("/", ".")
                modules[f"{name}.weight"] = Module(name, (path,), (1.0,), transposed=True)
        return modules

    def of(self, name: str) -> Module | None:
        """Returns the module with this name in a file of PEFT, or None."""
        return self.modules.get(self._canonical(f"{name}.weight"))

    def of_layer(self, path: str) -> Module:
        """Returns the module that contains a layer.

        Raises:
            ConfigError: no module of the class does.
        """
        module = self.by_layer.get(path)
        if module is None:
            raise ConfigError(
                f"Layer {path!r} of model {self.model.name!r} has no module of its own in the class of "
                "transformers, so PEFT has no name for its adapter. Save the model with model.save."
            )
        return module

    def entry_of(self, name: str) -> Entry | None:
        """Returns the entry of a whole tensor with this name in a file, or None."""
        canonical = self._canonical(name)
        if self._plan is None:
            paths = {x.path.replace("/", "."): x.path for x in self.model.weights}
            return Entry(name, (paths[name],)) if name in paths else None
        entries = {self._canonical(x.name): x for x in self._plan.entries}
        return entries.get(canonical)

    def entries_of(self, paths: set[str]) -> list[Entry]:
        """Returns the entries of whole variables, named as in the class of transformers.

        Raises:
            ConfigError: a tensor contains other variables too.
        """
        if self._plan is None:
            return [Entry(path.replace("/", "."), (path,)) for path in sorted(paths)]
        selected = [x for x in self._plan.entries if paths.intersection(x.paths)]
        mixed = [x for x in selected if not paths.issuperset(x.paths)]
        missing = paths - {path for x in selected for path in x.paths}
        if mixed or missing:
            path = sorted(missing)[0] if missing else mixed[0].paths[0]
            raise ConfigError(
                f"Weight {path!r} of model {self.model.name!r} has no tensor of its own in the class of "
                "transformers, so it cannot be saved with the adapters. Freeze its layer before training."
            )
        return [
            dataclasses.replace(x, name=f"{self._spelled(stem) or stem}.{end}")
            for x in selected
            for stem, _, end in [x.name.rpartition(".")]
        ]

    def _spelled(self, name: str) -> str | None:
        return name if self._converter is None else self._converter.module_name(self.model, name)

    def _module_of(self, entry: Entry) -> Module | None:
        """The module of a kernel with an ordinary layout; None for other tensors."""
        if not entry.name.endswith(".weight") or not all(path.endswith("/kernel") for path in entry.paths):
            return None
        name = self._spelled(entry.name.removesuffix(".weight"))
        form = dataclasses.replace(entry.form, factors=None) if type(entry.form) is Form else entry.form
        layers = tuple(path.removesuffix("/kernel") for path in entry.paths)
        if name is None or not layers or form not in (TRANSPOSED, Form(join=1) if layers[1:] else AS_IT_IS):
            return None
        return Module(name, layers, entry.form.factors or (1.0,) * len(layers), form != TRANSPOSED)


def _plan_of(model: Any, family: Family) -> Plan | None:
    """The plan of a family's tensors; None if no class of transformers corresponds to the model."""
    if family.huggingface is None:
        return None
    config = {**model.get_config(), "dtype": keras.dtype_policies.serialize(keras.DTypePolicy("float32"))}
    config.pop("adapters", None)
    # Quantized layers have variables that checkpoints do not have.
    plain = build_weightless(type(model).from_config, {**config, "frozen": []})
    try:
        return family.huggingface().plan(plain, None)
    except ConfigError:
        return None
