"""Models that read one token compute only that one in the last block, with the outputs of Keras."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from keras import ops

import keras_tx
from keras_tx import contract, layers
from keras_tx_onnx import export_onnx
from keras_tx_onnx.graph.token_selection import select_tokens
from tests.drawing import draw, redraw
from tests.export.exporting import exported, outputs_of, run
from tests.tolerances import assert_close

WIDTH, TOKENS = 16, 7


def checked(call, folder: Path, opset: int = 23, batches: tuple[int, ...] = (1, 3)) -> onnx.ModelProto:
    """The graph of a model of tokens, whose outputs are compared with Keras."""
    x = keras.Input((TOKENS, WIDTH), name="x")
    model = redraw(keras.Model(x, call(x)))
    folder = exported(model, folder / "out", opset=opset)
    for batch in batches:
        tokens = draw(batch, TOKENS, WIDTH)
        for got, expected in zip(run(folder, tokens), outputs_of(model, tokens), strict=True):
            assert got.shape == expected.shape
            assert_close(got, expected)
    return onnx.load(folder / contract.MODEL)


def counts(model: onnx.ModelProto) -> dict[str, int]:
    """By node with (batch, tokens, width) as result, the number of tokens."""
    known = {value.name: value for value in model.graph.value_info}
    results = {}
    for node in model.graph.node:
        value = known.get(node.output[0])
        if value is not None and len(value.type.tensor_type.shape.dim) == 3:
            results[node.name] = value.type.tensor_type.shape.dim[1].dim_value
    return results


def block(name: str = "block", **options):
    return layers.TransformerBlock(2, 24, name=name, **options)


@pytest.mark.parametrize("place", [0, 2, -1, -3])
def test_last_block_computes_selected_token(place: int, tmp_path):
    model = checked(lambda x: block("last")(block("first")(x))[:, place], tmp_path)
    sizes = counts(model)
    last = [name for name in sizes if name.startswith("last/") and "/norm" not in name]
    whole = {"last/attention_norm/LayerNormalization", "last/attention/MatMul", "last/attention/Add"}
    assert {name for name in last if sizes[name] == TOKENS} <= whole | {"last/attention/Split"}
    assert {sizes[f"last/{name}"] for name in ("attention/Attention", "feed_forward/up/MatMul")} == {1}
    assert {n for name, n in sizes.items() if name.startswith("first/") and "selected" not in name} == {
        TOKENS
    }
    weights = {weight.name: tuple(weight.dims) for weight in model.graph.initializer}
    assert weights["last/attention/query/kernel"] == (WIDTH, WIDTH)
    assert weights["last/attention/key_value/kernel"] == (WIDTH, 2 * WIDTH)
    assert "last/attention/qkv/kernel" not in weights


@pytest.mark.parametrize("opset", [17, 21])
def test_decomposed_attention_keeps_all_tokens(opset: int, tmp_path):
    sizes = counts(checked(lambda x: block()(x)[:, 0], tmp_path, opset))
    assert sizes["block/feed_forward/up/MatMul"] == sizes["block/attention/MatMul_3"] == 1


def test_causal_attention_keeps_all_tokens(tmp_path):
    sizes = counts(checked(lambda x: block(causal=True)(x)[:, -1], tmp_path))
    assert sizes["block/attention/Attention"] == TOKENS
    assert sizes["block/feed_forward/up/MatMul"] == 1


def test_separate_keys_and_values_keep_all_tokens(tmp_path):
    attention = layers.MultiHeadAttention(2, name="attention")
    sizes = counts(checked(lambda x: attention(x, 2 * x)[:, 0], tmp_path))
    assert sorted(n for name, n in sizes.items() if "attention/MatMul" in name) == [1, 1, TOKENS, TOKENS]


def test_grouped_heads_and_gate_with_two_uses(tmp_path):
    def call(x):
        x = layers.MultiHeadAttention(4, kv_heads=2, name="attention")(x)
        gate = keras.layers.Dense(8, name="gate")(x)
        return (gate * keras.ops.sigmoid(gate))[:, 0]

    sizes = counts(checked(call, tmp_path))
    assert sizes["attention/Attention"] == sizes["gate/MatMul"] == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda x: [x[:, 0], x[:, 1]],
        lambda x: [x[:, 0], x],
        lambda x: keras.ops.mean(x, axis=1),
        lambda x: x[:, 1:4],
    ],
    ids=["two", "also all", "mean", "several"],
)
def test_other_reads_keep_all_tokens(call, tmp_path):
    sizes = counts(checked(lambda x: call(block()(x)), tmp_path))
    assert {n for name, n in sizes.items() if name.startswith("block/")} == {TOKENS}


def test_position_table_ends_the_selection(tmp_path):
    def call(x):
        x = block()(x)
        return layers.PositionalEmbedding((TOKENS,), name="positions")(x)[:, 2]

    sizes = counts(checked(call, tmp_path))
    assert sizes["block/feed_forward/up/MatMul"] == TOKENS


class Table(keras.layers.Layer):
    """Adds a weight, one row for each token or one for all."""

    def __init__(self, size=None, **options):
        super().__init__(**options)
        self.size = size

    def build(self, shape):
        self.table = self.add_weight(shape=self.size or shape[1:], name="table")

    def call(self, x):
        return x + self.table


def dense(name: str, width: int = WIDTH, **options):
    return keras.layers.Dense(width, name=name, **options)


def split(x, sizes=3, axis: int = -1, **options):
    return ops.split(dense("product", 3 * WIDTH, **options)(x), sizes, axis)


def split_tokens(x):
    return dense("one")(ops.split(dense("product")(x), [2, 5], axis=1)[0])[:, 0]


def with_table(x):
    a, b, c = ops.split(Table(name="table")(dense("product", 3 * WIDTH, use_bias=False)(x)), 3, axis=-1)
    return dense("one")(a)[:, 2] + ops.mean(b * c, axis=1)


def with_broadcast_bias(x):
    product = dense("product", 3 * WIDTH, use_bias=False)(x)
    a, b, c = ops.split(Table((1,), name="table")(product), 3, axis=-1)
    return dense("one")(a)[:, 2] + ops.mean(b * c, axis=1)


def with_unequal_sizes(x):
    a, b, c = split(x, [8, 24])
    return dense("one")(a)[:, -2] + ops.mean(b * dense("c")(c), axis=1)


def with_output(part: int):
    def call(x):
        parts = split(x)
        return [dense("one")(parts[0])[:, 0], parts[1] * parts[2], parts[part]]

    return call


def with_two_uses(x):
    a, b, c = split(x)
    return dense("one")(a)[:, 0] + ops.mean(ops.softmax(a @ ops.transpose(b, (0, 2, 1))) @ c, axis=1)


def two_attentions(x):
    a, b, c = (ops.reshape(part, (-1, TOKENS, 2, WIDTH // 2)) for part in split(x))
    first = ops.dot_product_attention(a, b, c)
    second = ops.dot_product_attention(a, c, b)
    first, second = (ops.reshape(part, (-1, TOKENS, WIDTH)) for part in (first, second))
    return dense("one")(first)[:, 0] + dense("other")(second)[:, 1]


def two_tokens(x):
    a, b, c = split(x)
    return dense("one")(a)[:, 0] + dense("other")(b)[:, 1] + ops.mean(c, axis=1)


def two_selections(x):
    a, b, c = split(x)
    return dense("one")(a * b)[:, 0] + dense("other")(c)[:, 0]


def first_part_only(x):
    return dense("one")(split(x)[0])[:, 0]


def shared_product(x):
    layer = dense("product", 3 * WIDTH)
    (a, b, c), (d, e, f) = ops.split(layer(x), 3, axis=-1), ops.split(layer(x + 1), 3, axis=-1)
    return dense("one")(a)[:, 0] + ops.mean(b * c * d * e * f, axis=1)


def with_loop(x):
    a, b, c = split(x)
    read = keras.layers.LSTM(WIDTH, name="read")(b * c)
    return dense("one")(a)[:, 0] + read


def with_masked_attention(x):
    mask = ops.sum(x, axis=-1) > -1
    mask = ops.logical_and(mask[:, None, :], mask[:, :, None])
    attention = keras.layers.MultiHeadAttention(2, 8, name="attention")
    return dense("one")(attention(x, x, attention_mask=mask))[:, 2]


STATIC_CALLS = {"table": with_table, "two attentions": two_attentions}
CALLS = {
    "split tokens": split_tokens,
    "broadcast bias": with_broadcast_bias,
    "unequal sizes": with_unequal_sizes,
    "first is an output": with_output(0),
    "second is an output": with_output(1),
    "two uses": with_two_uses,
    "two tokens": two_tokens,
    "two selections": two_selections,
    "first part only": first_part_only,
    "shared product": shared_product,
    "loop": with_loop,
    "mask": with_masked_attention,
}
SPLITS = [(name, TOKENS) for name in (*STATIC_CALLS, *CALLS)] + [(name, None) for name in CALLS]


@pytest.mark.parametrize(("name", "tokens"), SPLITS)
def test_splits_of_other_products(name: str, tokens: int | None, tmp_path):
    call = {**STATIC_CALLS, **CALLS}[name]
    x = keras.Input((tokens, WIDTH), name="x")
    model = redraw(keras.Model(x, call(x)))
    folder = export_onnx(model, tmp_path / "out").folder
    inputs = draw(3, TOKENS, WIDTH)
    for got, expected in zip(run(folder, inputs), outputs_of(model, inputs), strict=True):
        assert_close(got, expected)


def test_split_with_num_outputs():
    """Other exporters write a Split without sizes."""
    from onnx import helper

    kernel = draw(WIDTH, 3 * WIDTH)
    nodes = [
        helper.make_node("MatMul", ["x", "kernel"], ["qkv"], "product/MatMul"),
        helper.make_node("Split", ["qkv"], ["a", "b", "c"], "split", axis=-1, num_outputs=3),
        helper.make_node("MatMul", ["a", "weight"], ["y"], "one/MatMul"),
        helper.make_node("Gather", ["y", "place"], ["first"], "gather", axis=1),
        helper.make_node("Add", ["b", "c"], ["others"], "others"),
    ]
    stored = {"kernel": kernel, "weight": draw(WIDTH, WIDTH), "place": np.asarray(2, "int64")}
    shapes = {"x": ("n", 6, WIDTH), "first": ("n", WIDTH), "others": ("n", 6, WIDTH)}
    values = {name: helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()}
    graph = helper.make_graph(
        nodes,
        "graph",
        [values["x"]],
        [values["first"], values["others"]],
        [onnx.numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    changed = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    assert select_tokens(changed) == 1
    inputs = {"x": draw(2, 6, WIDTH)}
    results = [
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, inputs
        )
        for m in (model, ir.to_proto(changed))
    ]
    for expected, got in zip(*results, strict=True):
        assert_close(got, expected)


def test_vit_with_class_token(tmp_path):
    model = redraw(keras_tx.vit("Mu/2", image_size=8, depth=2, num_classes=3))
    folder = export_onnx(model, tmp_path / "out").folder
    sizes = counts(onnx.load(folder / contract.MODEL))
    assert sizes["block_0/feed_forward/up/MatMul"] == 17
    assert sizes["block_1/feed_forward/up/MatMul"] == sizes["block_1/attention/Attention"] == 1


def test_bert_classifier(tmp_path):
    head = keras_tx.ClassifierHead(3)
    model = redraw(keras_tx.bert("tiny", vocabulary_size=50, width=16, depth=2, num_heads=2, head=head))
    for unpad in (True, False):
        folder = export_onnx(model, tmp_path / str(unpad), unpad=unpad).folder
        sizes = counts(onnx.load(folder / contract.MODEL))
        assert sizes["block_1/feed_forward/up/MatMul"] == sizes["block_1/attention/Attention"] == 1
