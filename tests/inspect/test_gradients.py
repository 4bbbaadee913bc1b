"""Gradients of scores, on each backend: against differences, PyTorch's autograd, captum and transformers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.inspect.attribution import integrated_gradients
from keras_tx.inspect.gradients import find_layer, gradients, inner_gradients
from keras_tx.inspect.relevance import (
    attention_gradients,
    encoder_decoder_relevance,
    gradient_rollout,
    self_attention_relevance,
)
from keras_tx.layers import MultiHeadAttention
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import HALF, assert_close
from tests.weights.small_models import bert, load_in_transformers

IMAGES = draw(2, 8, 8, 3)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
IDS = np.where(MASK, np.random.default_rng(3).integers(4, 30, MASK.shape), 0)


@pytest.fixture(scope="module")
def vit() -> Any:
    return redraw(keras_tx.vit("Mu/2", image_size=8, depth=2, num_classes=3))


def of_autograd(score: Any, attentions: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Attention weights and gradients, by autograd."""
    import torch

    computed = torch.autograd.grad(score, attentions, retain_graph=True)
    return [(a.detach().numpy(), g.numpy()) for a, g in zip(attentions, computed, strict=True)]


def test_gradients_of_inputs_equal_differences(vit):
    scores, (gradient,) = gradients(lambda x: vit(x)[:, 1], [IMAGES])
    assert_close(scores, as_numpy(vit(IMAGES))[:, 1])
    rng = np.random.default_rng(0)
    for _ in range(3):
        direction = rng.standard_normal(IMAGES.shape).astype("float32")
        after, before = (as_numpy(vit(IMAGES + sign * 1e-2 * direction))[:, 1] for sign in (1, -1))
        expected = (gradient * direction).sum(axis=(1, 2, 3))
        assert_close((after - before) / 2e-2, expected, 0.02)  # of the third derivative


def test_two_arguments_and_one_without_effect():
    x, y, z = draw(3, 4), draw(3, 4, seed=1), draw(3, 2)
    _, (of_x, of_y, of_z) = gradients(lambda x, y, z: ops.sum(x * y, axis=1), [x, y, z])
    assert_close(of_x, y)
    assert_close(of_y, x)
    assert not of_z.any()


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX does not report unconnected tensors")
def test_scores_without_gradient_raise():
    with pytest.raises(ConfigError, match="do not depend"):
        gradients(lambda x: ops.cast(ops.argmax(x, axis=1), "float32"), [draw(3, 4)])


def test_inner_tensors_are_those_of_the_output(vit):
    layer = find_layer(vit, "block_1/attention")
    before = as_numpy(vit(IMAGES))
    attributes = set(vars(layer))
    scores, (tensor,) = inner_gradients(lambda: vit(IMAGES)[:, 0], [(layer, "_weights")])
    assert_close(scores, before[:, 0])
    assert_close(tensor.value, as_numpy(vit.with_outputs(attentions=True)(IMAGES))["attentions"][1])
    assert tensor.gradient.shape == (2, 2, 17, 17)
    assert set(vars(layer)) == attributes
    np.testing.assert_array_equal(as_numpy(vit(IMAGES)), before)


def test_shared_layers_have_a_tensor_for_each_call():
    layer = keras.layers.Dense(4, name="shared")
    tokens = keras.Input((4,))
    model = redraw(keras.Model(tokens, keras.layers.Dense(1)(ops.tanh(layer(ops.tanh(layer(tokens)))))))
    x = draw(3, 4)
    _, (first, second) = inner_gradients(lambda: model(x)[:, 0], [(layer, "call")])
    assert_close(second.value, as_numpy(layer(ops.tanh(first.value))))
    kernel = as_numpy(layer.kernel)
    expected = (second.gradient @ kernel.T) * (1 - np.tanh(first.value) ** 2)
    assert_close(first.gradient, expected)


def test_names_of_layers(vit):
    assert find_layer(vit, "block_0") is vit.layers[4]
    assert isinstance(find_layer(vit, "block_0/feed_forward"), keras.layers.Layer)
    with pytest.raises(ConfigError, match="no layer 'block_9'. Did you mean 'block_"):
        find_layer(vit, "block_9")
    with pytest.raises(ConfigError, match="2 layers named 'feed_forward'"):
        find_layer(vit, "feed_forward")


def test_relevance_of_a_vit_equals_autograd(vit, tmp_path):
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    theirs = load_in_transformers(vit, tmp_path / "folder")
    pixels = torch.from_numpy(IMAGES.transpose(0, 3, 1, 2))
    outputs = theirs(pixel_values=pixels, output_attentions=True)
    expected = torch.eye(17).expand(2, 17, 17)
    for attention in outputs.attentions:
        (gradient,) = torch.autograd.grad(outputs.logits[:, 2].sum(), attention, retain_graph=True)
        step = (gradient * attention).clamp(min=0).mean(dim=1)
        expected = expected + step @ expected
    computed = attention_gradients(vit, IMAGES, target=2)
    assert_close(self_attention_relevance(computed.layers[""]), expected.detach().numpy())
    assert_close(computed.scores, outputs.logits[:, 2].detach().numpy())
    for mine, other in zip(
        computed.layers[""], of_autograd(outputs.logits[:, 2].sum(), outputs.attentions), strict=True
    ):
        assert_close(mine[0], other[0])
        assert_close(mine[1], other[1])
    np.testing.assert_array_equal(computed.is_read.nonzero()[1], [0, 0])  # the class token


def test_relevance_of_a_bert_equals_autograd(tmp_path):
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    model = redraw(bert(keras_tx.ClassifierHead(3), depth=2))
    theirs = load_in_transformers(model, tmp_path / "folder")
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    outputs = theirs(
        **{name: torch.from_numpy(value) for name, value in inputs.items()}, output_attentions=True
    )
    best = outputs.logits.argmax(dim=1)
    expected = of_autograd(outputs.logits.gather(1, best[:, None]).sum(), outputs.attentions)
    relevance = self_attention_relevance(expected)[:, 0]
    computed = attention_gradients(model, inputs)
    mine = computed.of_tokens(self_attention_relevance(computed.layers[""]))
    assert_close(mine, relevance)
    assert not mine[1, 3:].any()  # padding


def test_relevance_of_a_t5_equals_the_rules_of_the_paper(tmp_path):
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    model = redraw(keras_tx.t5("tiny", depth=2))
    for weight in model.weights:
        if "query/" in weight.path:  # T5 does not scale the scores, and one key would have the whole weight
            weight.assign(0.1 * weight)
    theirs = load_in_transformers(model, tmp_path / "folder")
    target = np.array([[0, 5, 6, 8, 7], [0, 9, 4, 6, 6]])
    inputs = {"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": target}
    outputs = theirs(
        **{name: torch.from_numpy(value) for name, value in inputs.items()}, output_attentions=True
    )
    parts = (outputs.encoder_attentions, outputs.decoder_attentions, outputs.cross_attentions)
    score = outputs.logits[:, 3, 7].sum()
    steps = [
        [
            (a * torch.autograd.grad(score, a, retain_graph=True)[0]).clamp(min=0).double().mean(1)
            for a in part
        ]
        for part in parts
    ]

    def normalized(x: Any) -> Any:  # equations 8 and 9
        identity = torch.eye(x.shape[-1], dtype=torch.double)
        rest = x - identity
        return torch.nan_to_num(rest / rest.sum(-1, keepdim=True)) + identity

    source = queries = torch.eye(5, dtype=torch.double).expand(2, 5, 5)
    between = torch.zeros_like(source)
    for step in steps[0]:
        source = source + step @ source  # equation 6
    for step, cross in zip(steps[1], steps[2], strict=True):
        queries, between = queries + step @ queries, between + step @ between  # equations 6 and 7
        between = between + normalized(queries).transpose(1, 2) @ cross @ normalized(source)  # equation 10
    computed = attention_gradients(model, inputs, target=7, position=3)
    mine = encoder_decoder_relevance(*(computed.layers[part] for part in ("encoder", "decoder", "cross")))
    for array, expected in (
        (mine.encoder, source),
        (mine.decoder, queries),
        (mine.cross, between),
    ):
        assert_close(array, expected.detach().numpy())
    np.testing.assert_array_equal(computed.is_read, [[False, False, False, True, False]] * 2)


def test_relevance_with_attention_layers_of_keras():
    """The same weights in Keras's layer, which hides its attention weights, and in ours."""
    tokens = keras.Input((6, 8))
    theirs = keras.layers.MultiHeadAttention(2, 4, name="attention")
    ours = MultiHeadAttention(2, name="attention")
    head = keras.layers.Dense(3)
    models = [
        keras.Model(tokens, head(keras.layers.GlobalAveragePooling1D()(tokens + attended)))
        for attended in (theirs(tokens, tokens), ours(tokens))
    ]
    redraw(models[1])
    for mine, other in zip(ours.weights, theirs.weights, strict=True):
        other.assign(ops.reshape(mine, other.shape))
    x = draw(2, 6, 8)
    expected, computed = (attention_gradients(model, x, target=1) for model in models)
    assert_close(computed.scores, expected.scores)
    for mine, other in zip(computed.layers[""], expected.layers[""], strict=True):
        assert_close(mine[0], other[0])
        assert_close(mine[1], other[1])
    assert computed.is_read.all()


def test_models_without_known_attention_raise():
    tokens = keras.Input((6, 8))
    with pytest.raises(ConfigError, match="'flat' has no attention layers"):
        attention_gradients(keras.Model(tokens, keras.layers.Flatten()(tokens), name="flat"), draw(2, 6, 8))
    grouped = keras.layers.GroupQueryAttention(4, 2, 1, name="grouped")
    with pytest.raises(ConfigError, match="'grouped' is a Group.*QueryAttention"):
        attention_gradients(keras.Model(tokens, grouped(tokens, tokens)), draw(2, 6, 8))
    cross = MultiHeadAttention(2)
    model = keras.Model(tokens, cross(tokens, keras.layers.Dense(8)(tokens)), name="two")
    with pytest.raises(ConfigError, match="'two' has cross-attention outside"):
        attention_gradients(model, draw(2, 6, 8))


def test_gradient_rollout_is_a_product_of_rows_that_sum_to_1(vit):
    layers = attention_gradients(vit, IMAGES, target=0).layers[""]
    rollout = gradient_rollout(layers)
    assert_close(rollout.sum(axis=-1), np.ones((2, 17)))
    assert_close(gradient_rollout([(a, 100 * g) for a, g in layers]), rollout)
    expected = np.eye(17)
    for attention, gradient in layers:
        step = np.maximum(attention[0] * gradient[0], 0).mean(axis=0)
        step /= step.sum(axis=-1, keepdims=True).clip(1e-30)
        step += np.eye(17)
        expected = (step / step.sum(axis=-1, keepdims=True)) @ expected
    assert_close(rollout[0], expected)
    for function in (gradient_rollout, self_attention_relevance):
        with pytest.raises(ConfigError, match=r"\(1, .*4, 4\)"):
            function([(np.ones((1, 2, 3, 3)),) * 2, (np.ones((1, 2, 4, 4)),) * 2])
        with pytest.raises(ConfigError, match="layers"):
            function([])


def test_without_gradient_nothing_but_the_token_itself_is_relevant():
    layers = [(np.full((1, 2, 3, 3), 1 / 3), np.zeros((1, 2, 3, 3)))]
    for function in (self_attention_relevance, gradient_rollout):
        np.testing.assert_array_equal(function(layers), np.eye(3)[None])


def captum() -> Any:
    return pytest.importorskip("captum.attr", reason='pip install "keras-tx[parity]"')


def small_cnn(torch: Any) -> tuple[Any, Any]:
    """A CNN in Keras and in PyTorch with the same weights."""
    model = redraw(
        keras.Sequential(
            [
                keras.Input((9, 8, 3)),
                keras.layers.Conv2D(4, 3, activation="gelu"),
                keras.layers.Flatten(),
                keras.layers.Dense(3),
            ]
        )
    )
    kernel, bias, dense, dense_bias = (torch.from_numpy(np.array(as_numpy(x))) for x in model.weights)
    convolution, linear = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(168, 3)
    with torch.no_grad():
        convolution.weight.copy_(kernel.permute(3, 2, 0, 1))
        convolution.bias.copy_(bias)
        linear.weight.copy_(dense.T)
        linear.bias.copy_(dense_bias)

    def forward(x: Any) -> Any:
        return linear(torch.nn.functional.gelu(convolution(x)).permute(0, 2, 3, 1).flatten(1))

    return model, forward


def test_integrated_gradients_of_a_cnn_equal_captum():
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    model, forward = small_cnn(torch)
    x = draw(2, 9, 8, 3)
    computed = integrated_gradients(model, x, [1, 2], baseline=0.3, steps=20, batch_size=7)
    expected = (
        captum()
        .IntegratedGradients(forward)
        .attribute(torch.from_numpy(x.transpose(0, 3, 1, 2)), 0.3, target=torch.tensor([1, 2]), n_steps=20)
    )
    assert_close(computed.values, expected.numpy().transpose(0, 2, 3, 1))


def test_integrated_gradients_of_a_bert_equal_captum(tmp_path):
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    attr = captum()
    model = redraw(bert(keras_tx.ClassifierHead(3), depth=1))
    theirs = load_in_transformers(model, tmp_path / "folder")
    ids, mask = torch.from_numpy(IDS), torch.from_numpy(MASK)
    layer = theirs.bert.embeddings.word_embeddings
    expected = attr.LayerIntegratedGradients(
        lambda ids, mask: theirs(input_ids=ids, attention_mask=mask).logits, layer
    ).attribute(ids, torch.zeros_like(ids), target=1, n_steps=10, additional_forward_args=(mask,))
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    padding = as_numpy(model.get_layer("token_embedding").table)[0]
    computed = integrated_gradients(model, inputs, 1, baseline=padding, steps=10)
    assert_close(computed.values, expected.detach().numpy())


def test_integrated_gradients_are_complete(vit):
    computed = integrated_gradients(vit, IMAGES, steps=40)
    logits, zero = as_numpy(vit(IMAGES)), as_numpy(vit(np.zeros_like(IMAGES)))
    best = logits.argmax(axis=1)
    rows = np.arange(2)
    assert_close(computed.scores, logits[rows, best])
    assert_close(computed.baseline_scores, zero[rows, best])
    difference = logits[rows, best] - zero[rows, best]
    assert_close(computed.values.sum(axis=(1, 2, 3)), difference)
    with pytest.warns(UserWarning, match="of example 1 sum to -0.346, but the scores differ by -0.3"):
        rough = integrated_gradients(vit, IMAGES, steps=1)
    assert_close(rough.error, rough.values.sum(axis=(1, 2, 3)) - difference)
    assert abs(rough.error).min() > 1000 * abs(computed.error).max()


def test_chunks_do_not_change_integrated_gradients(vit):
    whole, chunked = (
        integrated_gradients(vit, IMAGES, 0, steps=5, batch_size=size).values for size in (100, 3)
    )
    assert_close(chunked, whole)


def test_inputs_of_which_the_model_does_not_depend_have_no_attribution():
    """Sensitivity and implementation invariance: two networks of one function have the same attributions."""
    tokens = keras.Input((4,))
    first = keras.Model(tokens, ops.square(tokens[:, :1]) + tokens[:, 1:2])
    second = keras.Model(tokens, ops.exp(ops.log(ops.square(tokens[:, :1]) + 1e-12)) + tokens[:, 1:2])
    x = np.abs(draw(3, 4)) + 0.5
    one, two = (integrated_gradients(model, x, baseline=0.1) for model in (first, second))
    assert not one.values[:, 2:].any()
    assert_close(one.values[:, 1], x[:, 1] - 0.1)
    assert_close(one.values[:, 0], x[:, 0] ** 2 - 0.01)
    assert_close(two.values, one.values)


def test_float_inputs_beside_integers_are_attributed():
    image, index = keras.Input((4,), name="image"), keras.Input((), dtype="int32", name="index")
    embedded = keras.layers.Embedding(5, 4)(index)
    model = keras.Model({"image": image, "index": index}, keras.layers.Dense(2)(image * embedded))
    redraw(model)
    inputs = {"image": draw(3, 4), "index": np.array([1, 4, 2])}
    computed = integrated_gradients(model, inputs, 1, steps=2, batch_size=4)
    table, kernel = (as_numpy(weight) for weight in model.weights[:2])
    assert_close(computed.values, inputs["image"] * table[inputs["index"]] * kernel[:, 1])


def test_wrong_arguments_raise(vit):
    cases: dict[str, dict[str, Any]] = {
        r"target=3 is out of range.*0 to 2": {"target": 3},
        r"target is \[0\]": {"target": [0]},
        r"position=1 requires an output": {"position": 1},
        r"output='logit'": {"output": "logit"},
        r"no layer 'block'": {"layer": "block"},
        r"baseline has the shape \(3, 2\).*\(2, 8, 8, 3\)": {"baseline": np.ones((3, 2))},
        r"steps is 0": {"steps": 0},
        r"baseline has 2 arrays, but 1": {"baseline": [0.0, 0.0]},
    }
    for message, options in cases.items():
        with pytest.raises(ConfigError, match=message):
            integrated_gradients(vit, IMAGES, **options)
    two = bert(None, width=16, depth=1)
    with pytest.raises(ConfigError, match="several outputs.*last_hidden_state"):
        integrated_gradients(two, {"input_ids": IDS})
    outputs = [vit.outputs[0], -vit.outputs[0]]
    for function in (integrated_gradients, attention_gradients):
        with pytest.raises(ConfigError, match="2 outputs without names"):
            function(keras.Model(vit.input, outputs), IMAGES[:1], 0)
    only = integrated_gradients(keras.Model(vit.input, outputs[:1]), IMAGES, 0, steps=5)
    assert_close(only.values, integrated_gradients(vit, IMAGES, 0, steps=5).values)
    flat = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(ConfigError, match=r"integers.*inputs\.astype\('float32'\)"):
        integrated_gradients(flat, np.ones((1, 4), "uint8"))


def test_mixed_precision():
    """The gradients are those of float32, up to the rounding of the layers."""
    full = redraw(keras_tx.vit("Mu/2", image_size=8, depth=2, num_classes=3))
    half = redraw(keras_tx.vit("Mu/2", image_size=8, depth=2, num_classes=3, dtype="mixed_bfloat16"))
    expected, computed = (attention_gradients(model, IMAGES, target=1).layers[""] for model in (full, half))
    for (_, mine), (_, theirs) in zip(computed, expected, strict=True):
        assert mine.dtype == "float32"
        assert_close(mine, theirs, 4 * HALF["mixed_bfloat16"])  # forward and backward through two blocks
    mine, theirs = (integrated_gradients(model, IMAGES, 1, steps=4).values for model in (half, full))
    assert_close(mine, theirs, 4 * HALF["mixed_bfloat16"])
