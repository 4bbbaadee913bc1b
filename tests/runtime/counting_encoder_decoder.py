"""An encoder-decoder whose next token is a function of the ids of the source and of the target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save_model

from keras_tx import contract
from keras_tx.contract import EncoderGraphs, Manifest, TensorSpec

VOCABULARY, CONTEXT, START, END, PAD = 31, 20, 0, 30, 0
CONFIG = {"model_type": "t5", "n_positions": CONTEXT, "vocab_size": VOCABULARY}
GENERATION = {"decoder_start_token_id": START, "eos_token_id": END, "pad_token_id": PAD}
KINDS = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}


def next_token(source: list[int], target: list[int]) -> int:
    """The token that the graphs predict; the source's second half counts double."""
    weighted = sum(token * (place + 1) for place, token in enumerate(source))
    return (7 * sum(target) + 3 * len(target) + weighted + 1) % VOCABULARY


def continued(source: list[int], count: int) -> list[int]:
    ids = [START]
    for _ in range(count):
        ids.append(next_token(source, ids))
    return ids[1:]


def make(
    folder: Path,
    *,
    task: str = contract.TEXT2TEXT_GENERATION,
    tokenizer: Any = None,
    tasks: Any = None,
    **generation: Any,
) -> Path:
    """The exported folder. The cache holds the ids of the target, and the hidden states of the source."""
    batch, source, target = contract.BATCH_AXIS, contract.SOURCE_AXIS, contract.TARGET_AXIS
    past = [contract.PAST_AXIS, contract.PAST_AXIS, contract.SOURCE_PAST_AXIS, contract.SOURCE_PAST_AXIS]
    encoder_inputs = tuple(
        TensorSpec(name, "int64", (batch, source)) for name in (contract.INPUT_IDS, contract.ATTENTION_MASK)
    )
    encoder_outputs = (TensorSpec(contract.LAST_HIDDEN_STATE, "float32", (batch, source, 1)),)
    inputs = (
        TensorSpec(contract.ENCODER_ATTENTION_MASK, "int64", (batch, source)),
        TensorSpec(contract.INPUT_IDS, "int64", (batch, target)),
        TensorSpec(contract.ENCODER_HIDDEN_STATES, "float32", (batch, source, 1)),
        *(
            TensorSpec(name.format(0), "float32", (batch, 1, axis, 1))
            for name, axis in zip(contract.SEQ2SEQ_PAST, past, strict=True)
        ),
        TensorSpec(contract.USE_CACHE_BRANCH, "bool", (1,)),
    )
    present = [contract.TOTAL_AXIS, contract.TOTAL_AXIS]
    present += [contract.SOURCE_PRESENT_AXIS, contract.SOURCE_PRESENT_AXIS]
    outputs = (
        TensorSpec(contract.LOGITS, "float32", (batch, target, VOCABULARY)),
        *(
            TensorSpec(name.format(0), "float32", (batch, 1, axis, 1))
            for name, axis in zip(contract.SEQ2SEQ_PRESENT, present, strict=True)
        ),
    )
    node = helper.make_node
    encoder = [
        node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT),
        node("Shape", ["input_ids"], ["length"], start=1, end=2),
        node("Squeeze", ["length"], ["count"]),
        node("Add", ["count", "one"], ["after"]),
        node("Range", ["one", "after", "one"], ["places"]),
        node("Cast", ["places"], ["factors"], to=TensorProto.FLOAT),
        node("Mul", ["ids", "factors"], ["weighted"]),
        node("Unsqueeze", ["weighted", "last"], ["last_hidden_state"]),
    ]
    branches = {
        "then_branch": [
            node("Identity", ["past_key_values.0.encoder.key"], ["cached"]),
            node("Slice", ["past_key_values.0.encoder.key", "from", "from", "axis"], ["cached_key"]),
            node("Slice", ["past_key_values.0.encoder.value", "from", "from", "axis"], ["cached_value"]),
        ],
        "else_branch": [
            node("Unsqueeze", ["encoder_hidden_states", "heads"], ["new"]),
            node("Identity", ["new"], ["new_key"]),
            node("Identity", ["new"], ["new_value"]),
        ],
    }
    names = {"then_branch": ["cached", "cached_key", "cached_value"]}
    names["else_branch"] = ["new", "new_key", "new_value"]
    graphs = {
        branch: helper.make_graph(
            nodes,
            branch,
            [],
            [helper.make_tensor_value_info(x, TensorProto.FLOAT, None) for x in names[branch]],
        )
        for branch, nodes in branches.items()
    }
    decoder = [
        node(
            "If",
            ["use_cache_branch"],
            ["source", "present.0.encoder.key", "present.0.encoder.value"],
            **graphs,
        ),
        node("Cast", ["encoder_attention_mask"], ["real"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["real", "outer"], ["mask"]),  # (b, 1, s, 1)
        node("Mul", ["source", "mask"], ["seen"]),
        node("ReduceSum", ["seen", "axis"], ["of_source"]),  # (b, 1, 1, 1)
        node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["ids", "outer"], ["key"]),  # (b, 1, t, 1)
        node("Concat", ["past_key_values.0.decoder.key", "key"], ["present.0.decoder.key"], axis=2),
        node("Concat", ["past_key_values.0.decoder.value", "key"], ["present.0.decoder.value"], axis=2),
        node("CumSum", ["present.0.decoder.key", "two"], ["sums"]),
        node("Mul", ["present.0.decoder.key", "zero"], ["zeros"]),
        node("Add", ["zeros", "unit"], ["units"]),
        node("CumSum", ["units", "two"], ["lengths"]),
        node("Mul", ["sums", "seven"], ["a"]),
        node("Mul", ["lengths", "three"], ["b"]),
        node("Add", ["a", "b"], ["ab"]),
        node("Add", ["ab", "of_source"], ["abc"]),
        node("Add", ["abc", "unit"], ["all_tokens"]),
        node("Shape", ["input_ids"], ["length"], start=1, end=2),
        node("Neg", ["length"], ["start"]),
        node("Slice", ["all_tokens", "start", "far", "axis"], ["own"]),  # (b, 1, t, 1)
        node("Squeeze", ["own", "heads"], ["number"]),  # (b, t, 1)
        node("Mod", ["number", "vocabulary_size"], ["next"], fmod=1),
        node("Sub", ["next", "every"], ["gap"]),
        node("Abs", ["gap"], ["distance"]),
        node("Neg", ["distance"], ["logits"]),
    ]
    constants: dict[str, Any] = {
        "one": np.array(1),
        "two": np.array(2),
        "axis": np.array([2]),
        "last": np.array([2]),
        "heads": np.array([1]),
        "outer": np.array([1, 3]),
        "from": np.array([0]),
        "far": np.array([2**62]),
        "zero": np.array(0.0, "float32"),
        "unit": np.array(1.0, "float32"),
        "three": np.array(3.0, "float32"),
        "seven": np.array(7.0, "float32"),
        "vocabulary_size": np.array(float(VOCABULARY), "float32"),
        "every": np.arange(VOCABULARY, dtype="float32"),
    }
    (folder / "onnx").mkdir(parents=True)
    _save(folder / contract.ENCODER_MODEL, encoder, encoder_inputs, encoder_outputs, constants)
    _save(folder / contract.DECODER_MODEL, decoder, inputs, outputs, constants)
    config = CONFIG if tasks is None else {**CONFIG, "task_specific_params": tasks}
    files = {contract.CONFIG: config, contract.GENERATION_CONFIG: {**GENERATION, **generation}}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    if tokenizer is not None:
        tokenizer.save(str(folder / contract.TOKENIZER))
    paths = [path for path in folder.rglob("*") if path.is_file()]
    Manifest(
        keras_tx_version="0",
        task=task,
        opset=23,
        precisions={"fp32": contract.DECODER_MODEL},
        inputs=inputs,
        outputs=outputs,
        tiers={},
        files={path.relative_to(folder).as_posix(): contract.describe_file(path) for path in paths},
        encoder=EncoderGraphs({"fp32": contract.ENCODER_MODEL}, encoder_inputs, encoder_outputs),
    ).save(folder)
    return folder


def _save(path: Path, nodes: list[Any], inputs: Any, outputs: Any, constants: dict[str, Any]) -> None:
    infos = [
        [helper.make_tensor_value_info(s.name, KINDS[s.dtype], s.shape) for s in x] for x in (inputs, outputs)
    ]
    used = {name for node in nodes for name in node.input} | {"from", "axis", "heads"}
    tensors = [numpy_helper.from_array(x, name) for name, x in constants.items() if name in used]
    graph = helper.make_graph(nodes, "counting", infos[0], infos[1], tensors)
    opset = helper.make_opsetid("", 23)
    save_model(helper.make_model(graph, opset_imports=[opset], ir_version=11), path)
