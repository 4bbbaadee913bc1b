"""A decoder's graph once more, with a cache that is written in place: an extra file over the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from keras_tx import contract
from keras_tx.errors import ExportError
from keras_tx.runtime.shared_cache import shared_cache_difference

DOMAIN = "com.microsoft"
SHARED_FROM = 23  # the first opset with an Attention of its own
CHANNELS = 8  # GroupQueryAttention accepts heads whose width is a multiple of this


def share_cache(model: ir.Model) -> int:
    """Turns each Attention with a past into onnxruntime's GroupQueryAttention; gives how many there were.

    That one takes a past and gives a present of one size, which may be the same memory: it then writes the
    keys and values of new tokens behind those of earlier ones, and copies nothing. Where they go is counted
    from attention_mask, so padding must be on the right; the standard graph takes it anywhere. Nothing but
    attention changes, whatever the precision of the weights. Heads of another width than the kernel accepts
    are padded with zeros, also in the cache. A graph with an Attention that has no such counterpart is left
    unchanged, and returns 0.
    """
    found = [node for node in model.graph if node.op_type == "Attention" and len(node.inputs) > 4]
    found = [node for node in found if node.inputs[4] is not None]
    if not found or not all(map(_has_counterpart, found)):
        return 0
    lengths, total = _counts(model.graph)
    for node in found:
        _replace(model.graph, node, lengths, total)
    model.graph.opset_imports[DOMAIN] = 1
    RemoveUnusedNodesPass()(model)
    return len(found)


def write_shared(path: Path) -> Path | None:
    """Writes the graph with a shared cache beside one that was written; None where there is none."""
    model = ir.load(path)
    if not share_cache(model):
        return None
    beside = path.with_name(contract.shared_name(path.name))
    ir.save(model, beside)  # weights that are in a data file stay there
    return beside


def check_shared(path: Path, beside: Path, context: int, precision: str) -> float:
    """How far the logits of the two graphs lie apart; raises where that is more than the tolerance."""
    found, tolerance = shared_cache_difference(path, beside, context, exact=precision == "fp32")
    if found > tolerance:
        raise ExportError(
            f"The graph with a shared cache differs from the one without by {found:.1e} of the logits' scale "
            f"({precision} tolerance {tolerance:.0e}). No folder was left."
        )
    return found


def no_shared(name: str, insist: bool) -> str:
    """Why there is none, as an error or as a note."""
    reason = (
        f"model {name!r} has attention that onnxruntime's GroupQueryAttention cannot compute: only causal "
        "attention without a bias and with value heads as wide as key heads is supported"
    )
    if insist:
        raise ExportError(f"cache='shared' is not possible: {reason}. Leave it out.")
    return f"No graph with a cache that is written in place: {reason}."


def note_of(beside: Path, path: Path, found: float | None) -> str:
    compared = "NOT compared with it" if found is None else f"within {found:.1e} of it"
    return (
        f"onnx/{beside.name} is onnx/{path.name} with a cache that is written in place, {compared}; "
        "keras_tx.runtime takes it on the CPU."
    )


def _has_counterpart(node: ir.Node) -> bool:
    """Causal attention whose mask says only which tokens are real, with keys as wide as values."""
    mask = node.inputs[3]
    key, value = node.inputs[4], node.inputs[5]
    assert key is not None and value is not None and key.shape is not None and value.shape is not None
    return (
        node.attributes.get_int("is_causal", 0) == 1
        and "q_num_heads" in node.attributes
        and not node.attributes.get_float("softcap", 0.0)
        and (mask is None or mask.dtype == ir.DataType.BOOL)
        and key.shape[3] == value.shape[3]
        and isinstance(key.shape[3], int)
    )


def _counts(graph: ir.Graph) -> tuple[ir.Value, ir.Value]:
    """Of each row the place of its last token, and the length of the longest: what the node asks for."""
    mask = next(x for x in graph.inputs if x.name == contract.ATTENTION_MASK)
    one = _constant(graph, "shared_cache/one", np.array([1], "int64"))
    first = graph[0]

    def add(op_type: str, inputs: list[ir.Value], dtype: ir.DataType, shape: list[int | str], **more: int):
        name = f"shared_cache/{op_type}{len(names)}"
        names.append(name)
        result = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        graph.insert_before(first, ir.node(op_type, inputs, more, name=name, outputs=[result]))
        return result

    names: list[str] = []
    int32, int64 = ir.DataType.INT32, ir.DataType.INT64
    batch = contract.BATCH_AXIS
    real = add("ReduceSum", [mask, one], int64, [batch], keepdims=0)
    last = add("Cast", [add("Sub", [real, one], int64, [batch])], int32, [batch], to=int32.value)
    length = add("Shape", [mask], int64, [1], start=1, end=2)
    scalar = add("Squeeze", [length], int64, [])
    return last, add("Cast", [scalar], int32, [], to=int32.value)


def _replace(graph: ir.Graph, node: ir.Node, lengths: ir.Value, total: ir.Value) -> None:
    query, key, value, _, past_key, past_value = node.inputs[:6]
    assert past_key is not None and past_value is not None
    assert past_key.shape is not None and past_value.shape is not None
    size = past_key.shape[3]
    assert isinstance(size, int)
    missing = -size % CHANNELS
    attributes: dict[str, int | float] = {
        "num_heads": node.attributes["q_num_heads"].as_int(),
        "kv_num_heads": node.attributes["kv_num_heads"].as_int(),
    }
    if "scale" in node.attributes:
        attributes["scale"] = node.attributes["scale"].as_float()
    packed = None if missing else _packed(node)
    inputs = [query, key, value] if packed is None else [packed, None, None]
    if missing:
        attributes.setdefault("scale", size**-0.5)  # that of the heads as they were
        heads = (attributes["num_heads"], attributes["kv_num_heads"], attributes["kv_num_heads"])
        inputs = [
            _with_heads(graph, node, x, int(count), size, missing)
            for x, count in zip(inputs, heads, strict=True)
        ]
        wider = ir.Shape([*list(past_key.shape)[:3], size + missing])
        past_key.shape = past_value.shape = wider
    inputs += [past_key, past_value, lengths, total]
    for output, past in zip(node.outputs[1:3], (past_key, past_value), strict=True):
        output.shape = past.shape
    outputs = list(node.outputs)
    replacements = [ir.Value(name=None, type=x.type, shape=x.shape) for x in outputs]
    if missing:
        assert outputs[0].shape is not None
        replacements[0].shape = ir.Shape(
            [*list(outputs[0].shape)[:2], int(attributes["num_heads"]) * (size + missing)]
        )
    name = f"{(node.name or '').removesuffix('Attention')}GroupQueryAttention"
    new = ir.node("GroupQueryAttention", inputs, attributes, domain=DOMAIN, name=name, outputs=replacements)
    graph.insert_before(node, new)
    if missing:
        replacements[0].name = f"{new.name}.padded"
        narrow = _with_heads(
            graph, node, replacements[0], int(attributes["num_heads"]), size + missing, -missing
        )
        replacements[0] = narrow
    for old, replacement in zip(outputs, replacements, strict=True):
        old.replace_all_uses_with(replacement, replace_graph_outputs=True)
        replacement.name, old.name = old.name, None
    graph.remove(node, safe=True)


def _with_heads(
    graph: ir.Graph, before: ir.Node, x: ir.Value | None, heads: int, size: int, more: int
) -> ir.Value:
    """(batch, tokens, heads * size) with so many more channels in each head, zeros, or fewer."""
    assert x is not None and x.shape is not None

    def add(op_type: str, x: ir.Value, numbers: list[int], *shape: int) -> ir.Value:
        name = f"shared_cache/{before.name}/{x.name}/{op_type}_{len(shape)}"
        constant = _constant(graph, f"{name}/numbers", np.array(numbers, "int64"))
        assert x.shape is not None
        result = ir.Value(name=name, type=x.type, shape=ir.Shape([*list(x.shape)[:2], *shape]))
        graph.insert_before(before, ir.node(op_type, [x, constant], name=name, outputs=[result]))
        return result

    split = add("Reshape", x, [0, 0, heads, size], heads, size)
    padded = add("Pad", split, [0, 0, 0, 0, 0, 0, 0, more], heads, size + more)  # a negative pad cuts
    return add("Reshape", padded, [0, 0, heads * (size + more)], heads * (size + more))


def _packed(node: ir.Node) -> ir.Value | None:
    """What query, key and value are split from, in this order; the node takes it whole."""
    producers = {x.producer() if x is not None else None for x in node.inputs[:3]}
    split = producers.pop()
    if producers or split is None or split.op_type != "Split":
        return None
    return split.inputs[0] if list(split.outputs) == list(node.inputs[:3]) else None


def _constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
    value.const_value = tensor
    graph.register_initializer(value)
    return value
