"""An exported DeBERTa equals Keras's, at lengths below and above the buckets, and with skipped padding."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import onnx
import pytest

import keras_tx
from keras_tx.processing import TextTransform
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, redraw
from tests.export.small_bert import run
from tests.export.test_unpadding import MASKS
from tests.tolerances import ANOTHER_BRANCH, FP32, HALF, assert_close
from tests.wordpiece import VOCABULARY, wordpiece

TINY = {
    "width": 16,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 24,
    "vocabulary_size": len(VOCABULARY),
    "max_length": 70,
    "buckets": 8,
    "max_distance": 24,
}
HEADS = {
    "none": None,
    "masked": keras_tx.MaskedLMHead(),
    "classifier": keras_tx.ClassifierHead(3),
    "average": keras_tx.ClassifierHead(3, pooling="average"),
    "tags": keras_tx.TokenClassifierHead(4),
    "span": keras_tx.SpanHead(),
    "sentence": keras_tx.SentenceEmbeddingHead(),
}
ROWS = [
    pytest.param(
        head, opset, marks=() if (head, opset) in (("classifier", 23), ("none", 17)) else pytest.mark.thorough
    )
    for head in HEADS
    for opset in (17, 23)
]


def tiny(head: Any = None, **options: Any) -> Any:
    return redraw(keras_tx.deberta("tiny", head=head, **{**TINY, **options}))


@pytest.mark.parametrize(("head", "opset"), ROWS)
def test_every_kind_of_mask(head: str, opset: int, tmp_path):
    model = tiny(HEADS[head])
    export_onnx(model, tmp_path / "x", opset=opset)
    mask = np.repeat(np.array(list(MASKS.values())), 2, axis=1)  # of twelve tokens
    ids = np.random.default_rng(0).integers(2, TINY["vocabulary_size"], mask.shape)
    inputs = {"attention_mask": mask, "input_ids": ids}
    outputs, expected = run(tmp_path / "x", inputs), model(inputs)
    expected = expected if isinstance(expected, dict) else {model.output_names[0]: expected}
    for name, tensor in expected.items():
        value = as_numpy(tensor)
        value = np.where(mask[..., None] == 1, value, 0) if value.ndim == 3 else value
        for row in range(len(MASKS)):
            assert_close(outputs[name][row], value[row])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shared_projections": False, "normalize_positions": False},
        pytest.param({"content_to_position": False, "max_distance": 6}, marks=pytest.mark.thorough),
        pytest.param({"position_to_content": False, "buckets": None}, marks=pytest.mark.thorough),
    ],
    ids=",".join,
)
@pytest.mark.parametrize("opset", [17, 23])
def test_one_graph_for_all_sizes(options: dict[str, Any], opset: int, tmp_path):
    model = tiny(**options)
    export_onnx(model, tmp_path / "x", opset=opset)
    random = np.random.default_rng(0)
    for batch, length in ((1, 1), (3, 2), (2, 7), (1, 8), (4, 33), (1, 70)):
        ids = random.integers(2, TINY["vocabulary_size"], (batch, length))
        mask = np.ones_like(ids)
        mask[-1, (length + 1) // 2 :] = 0
        inputs = {"attention_mask": mask, "input_ids": ids}
        expected = as_numpy(model(inputs))["last_hidden_state"]
        assert_close(run(tmp_path / "x", inputs)["last_hidden_state"][mask == 1], expected[mask == 1])


def test_positions_are_projected_before_the_graph_runs(tmp_path):
    export_onnx(tiny(HEADS["tags"], depth=3), tmp_path / "x")
    graph = onnx.load(tmp_path / "x/onnx/model.onnx").graph
    counts = collections.Counter(node.op_type for node in graph.node)
    # Of each block: query, key and value; two terms; output; two of the feed-forward. And the tags.
    assert (counts["Attention"], counts["MatMul"]) == (3, 3 * 6 + 1)
    assert counts["LayerNormalization"] == 1 + 3 * 2
    assert counts["Clip"] == 2  # the places of both terms, which all blocks share
    names = [tensor.name for tensor in graph.initializer]
    assert sum(name.endswith("_positions") for name in names) == 6
    assert not any(name.startswith("positions/") for name in names)


def test_skipped_padding_and_padded_graph_are_equal(tmp_path):
    model = tiny(HEADS["tags"])
    mask = np.array([[1] * 9, [0, 0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0, 0, 0, 0]])
    inputs = {"input_ids": np.arange(27).reshape(3, 9) + 1, "attention_mask": mask}
    for unpad in (True, False):
        export_onnx(model, tmp_path / str(unpad), unpad=unpad)
    skipped, padded = (run(tmp_path / str(unpad), inputs)["logits"] for unpad in (True, False))
    assert_close(skipped[mask == 1], padded[mask == 1])
    assert not skipped[mask == 0].any()


def test_precisions_and_texts(tmp_path):
    transform = TextTransform.of(wordpiece())
    sizes = {"width": 64, "mlp_dim": 96}  # smaller kernels are not quantized
    model = tiny(HEADS["classifier"], processing=transform, **sizes)
    export_onnx(model, tmp_path / "x", precision=["fp32", "fp16", "int8", "int4"])
    texts = ["the cat sat.", "ada lives in london, and we love the very good film"]
    batch = transform(texts)
    logits = as_numpy(model({name: batch[name] for name in model.input}))
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    tolerances = {"fp32": FP32, "fp16": HALF["mixed_float16"], "int8": ANOTHER_BRANCH, "int4": ANOTHER_BRANCH}
    for precision, tolerance in tolerances.items():
        with load(tmp_path / "x", precision=precision) as runtime:
            for row, answer in zip(expected, runtime(texts), strict=True):
                scores = {entry["label"]: entry["score"] for entry in answer}
                assert_close(np.array([scores[f"LABEL_{i}"] for i in range(3)]), row, tolerance)


def test_positions_computed_by_the_graph(tmp_path):
    """DisentangledAttention also accepts positions that are not weights."""
    import keras

    from keras_tx.layers.disentangled_attention import DisentangledAttention
    from keras_tx.layers.relative_embeddings import RelativeEmbeddings

    x = keras.Input((None, 16), name="x")
    positions = keras.layers.Dense(16)(RelativeEmbeddings(8, 16)(x))
    y = DisentangledAttention(2, 9, buckets=4)(x, positions=positions)
    model = redraw(keras.Model(x, y))
    export_onnx(model, tmp_path / "x")
    values = np.random.default_rng(0).standard_normal((2, 13, 16)).astype("float32")
    session = load(tmp_path / "x")
    result = session({"x": values})
    assert_close(np.asarray(next(iter(result.values()))), as_numpy(model(values)))
