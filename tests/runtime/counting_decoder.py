"""A decoder with a cache whose next token is a function of the ids of the whole text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save_model

from keras_tx import contract
from keras_tx.contract import Manifest, TensorSpec

VOCABULARY, CONTEXT, END = 31, 40, 30
CONFIG = {"model_type": "gpt2", "n_positions": CONTEXT}


def next_token(text: list[int]) -> int:
    """The token that the graph predicts after a text."""
    return (7 * sum(text) + 3 * (len(text) - 1) + 1) % VOCABULARY


def continued(text: list[int], count: int) -> list[int]:
    ids = list(text)
    for _ in range(count):
        ids.append(next_token(ids))
    return ids[len(text) :]


def make(
    folder: Path,
    *,
    tokenizer: Any = None,
    end: int | None = END,
    config: Any = CONFIG,
    generation: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """The exported folder; the cache holds the ids of earlier tokens as numbers."""
    tokens = (contract.BATCH_AXIS, contract.SEQUENCE_AXIS)
    total = (contract.BATCH_AXIS, contract.TOTAL_AXIS)
    port = (contract.BATCH_AXIS, 1, contract.PAST_AXIS, 1)
    inputs = (
        TensorSpec("input_ids", "int64", tokens),
        TensorSpec("attention_mask", "int64", total),
        TensorSpec("position_ids", "int64", tokens),
        TensorSpec("past_key_values.0.key", "float32", port),
        TensorSpec("past_key_values.0.value", "float32", port),
    )
    outputs = (
        TensorSpec("logits", "float32", (contract.BATCH_AXIS, "num_logits", VOCABULARY)),
        TensorSpec("present.0.key", "float32", (contract.BATCH_AXIS, 1, contract.TOTAL_AXIS, 1)),
        TensorSpec("present.0.value", "float32", (contract.BATCH_AXIS, 1, contract.TOTAL_AXIS, 1)),
    )
    constants = {
        "one": np.array([1, 3]),
        "two": np.array(2),
        "last": np.array([2]),
        "far": np.array([2**62]),
        "zero": np.array([0]),
        "first": np.array([1]),
        "vocabulary_size": np.array(float(VOCABULARY), "float32"),
        "seven": np.array(7.0, "float32"),
        "three": np.array(3.0, "float32"),
        "unit": np.array(1.0, "float32"),
        "all": np.arange(VOCABULARY, dtype="float32"),
        "num_logits_to_keep": np.array(0),
    }
    node = helper.make_node
    nodes = [
        node("Cast", ["input_ids"], ["ids"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["ids", "one"], ["key"]),  # (b, 1, s, 1)
        node("Concat", ["past_key_values.0.key", "key"], ["present.0.key"], axis=2),
        node("Concat", ["past_key_values.0.value", "key"], ["present.0.value"], axis=2),
        node("Cast", ["attention_mask"], ["real"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["real", "one"], ["mask"]),
        node("Mul", ["present.0.key", "mask"], ["seen"]),
        node("CumSum", ["seen", "two"], ["sums"]),
        node("Shape", ["input_ids"], ["length"], start=1, end=2),
        node("Neg", ["length"], ["start"]),
        node("Slice", ["sums", "start", "far", "last"], ["own"]),  # (b, 1, s, 1)
        node("Squeeze", ["own", "first"], ["sum"]),  # (b, s, 1)
        node("Cast", ["position_ids"], ["place"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["place", "last"], ["position"]),
        node("Mul", ["sum", "seven"], ["a"]),
        node("Mul", ["position", "three"], ["b"]),
        node("Add", ["a", "b"], ["ab"]),
        node("Add", ["ab", "unit"], ["c"]),
        node("Mod", ["c", "vocabulary_size"], ["target"], fmod=1),
        node("Sub", ["target", "all"], ["gap"]),
        node("Abs", ["gap"], ["distance"]),
        node("Neg", ["distance"], ["every"]),  # (b, s, vocabulary)
        node("Neg", ["num_logits_to_keep"], ["kept"]),
        node("Unsqueeze", ["kept", "zero"], ["from"]),
        node("Slice", ["every", "from", "far", "first"], ["logits"]),
    ]
    kinds = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
    infos = [
        [helper.make_tensor_value_info(s.name, kinds[s.dtype], s.shape) for s in x] for x in (inputs, outputs)
    ]
    infos[0].append(helper.make_tensor_value_info("num_logits_to_keep", TensorProto.INT64, ()))
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "counting", infos[0], infos[1], tensors)
    (folder / "onnx").mkdir(parents=True)
    opset = helper.make_opsetid("", 23)
    save_model(helper.make_model(graph, opset_imports=[opset], ir_version=11), folder / contract.MODEL)
    files = {contract.CONFIG: config, contract.GENERATION_CONFIG: {"eos_token_id": end, **generation}}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    if tokenizer is not None:
        tokenizer.save(str(folder / contract.TOKENIZER))
    paths = [path for path in folder.rglob("*") if path.is_file()]
    Manifest(
        keras_tx_version="0",
        task=contract.TEXT_GENERATION,
        opset=23,
        precisions={"fp32": contract.MODEL},
        inputs=inputs,
        outputs=outputs,
        tiers={},
        files={path.relative_to(folder).as_posix(): contract.describe_file(path) for path in paths},
    ).save(folder)
    return folder


def byte_tokenizer() -> Any:
    """Ids 0 to 29 are parts of words and single bytes of characters; 30 ends the text."""
    import tokenizers

    words = ["a", "b", "c", "d", "e", "Ġ", "Ã", "©", "â", "Ĥ", "¬", "ab", "Ġb", "!", "?", ".", ","]
    words += list("fghijklmnopqr")[: END - len(words)]
    vocabulary = {word: index for index, word in enumerate([*words, "<|endoftext|>"])}
    model = tokenizers.models.BPE(vocab=vocabulary, merges=[("a", "b"), ("Ġ", "b")])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer
