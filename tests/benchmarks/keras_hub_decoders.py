"""Exports every decoder of keras-hub with a cache, tiny: which have one, and why others do not."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.tiny_backbones import Family

MARKERS = "<!-- cached:begin -->", "<!-- cached:end -->"
MESSAGE = 300  # characters of an error in the table


@dataclasses.dataclass(frozen=True)
class Decoder:
    """The result of one family; `problem` is the reason why its graph has no cache.

    Attributes:
        reference: what the tests compare the generated tokens with.
    """

    family: Family
    shared: bool = False
    reference: str = ""
    difference: float | None = None
    problem: str | None = None


def task_of(backbone: Any) -> Any:
    """The CausalLM of keras-hub for a backbone; None if it has none, or is an encoder-decoder."""
    import keras_hub

    models = keras_hub.models
    kinds = [
        kind
        for kind in vars(models).values()
        if isinstance(kind, type) and issubclass(kind, models.CausalLM)
        if not issubclass(kind, models.Seq2SeqLM)
    ]
    # A model that drafts tokens for another one has the same backbone, but an `__init__` of its own.
    drafting = "Assistant"
    matching = [
        kind for kind in kinds if kind.backbone_cls is type(backbone) and drafting not in kind.__name__
    ]
    return matching[0](backbone=backbone, preprocessor=None) if matching else None


def reference_of(model: Any) -> str:
    """What tests/export/test_language_models.py compares the tokens of a family with."""
    from tests.export.test_language_models import CASES

    prefix = type(model).__name__.removesuffix("CausalLM")
    generates = [case.generates for case in CASES.values() if case.name == prefix]
    if not generates:
        return ""
    return "`generate`" if any(generates) else "the model without a cache"


def decoders(families: Sequence[Family]) -> list[Decoder]:
    """The results of the families that have a CausalLM."""
    results = []
    for family in families:
        model = task_of(family.make(2))
        if model is not None:
            results.append(exported(family, model))
    return results


def exported(family: Family, model: Any) -> Decoder:
    """Exports a model with a cache, verified against Keras without one."""
    from keras_tx_onnx import export_onnx
    from tests.benchmarks.keras_hub_families import redrawn

    with tempfile.TemporaryDirectory() as folder:
        try:
            report = export_onnx(redrawn(model), Path(folder, "plain"), cache=True)
        except Exception as error:  # of the family's own code
            return Decoder(family, problem=_message(error))
        assert report.manifest.parity is not None
        shared = _is_shared(Path(folder, "plain"))
    return Decoder(family, shared, reference_of(model), report.manifest.parity.max_difference)


def _is_shared(folder: Path) -> bool:
    from keras_tx import contract
    from keras_tx_onnx.graph.shared_cache import write_shared

    context = json.loads((folder / contract.GENAI_CONFIG).read_text())["model"]["context_length"]
    return write_shared(folder / contract.MODEL, context) is not None


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:MESSAGE]}{'...' if len(text) > MESSAGE else ''}"


def table(results: Sequence[Decoder]) -> str:
    """The results as Markdown."""
    works = sum(result.problem is None for result in results)
    lines = [
        f"{works} of {len(results)} families with a cache.",
        "",
        "| family | cache | shared cache | tokens compared with | max difference | problem |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result in results:
        cells = (
            result.family.name,
            "yes" if result.problem is None else "",
            "yes" if result.shared else "",
            result.reference,
            "" if result.difference is None else f"{result.difference:.1e}",
            (result.problem or "").replace("|", "\\|"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
