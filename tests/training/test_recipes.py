"""Recipes are compared with PyTorch's AdamW and transformers' schedules; frozen blocks."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.optimizers import AdamW, Lamb, Muon
from keras_tx.training import (
    InverseSquareRoot,
    WarmupCosine,
    WarmupLinear,
    bert_recipe,
    deit3_recipe,
    deit_recipe,
    finetune_recipe,
    muon_recipe,
    pretrain_recipe,
    t5_recipe,
    transformer_recipe,
)

BACKEND = keras.backend.backend()


def model(depth: int = 3, **options) -> keras_tx.Bert:
    head = keras_tx.ClassifierHead(2)
    return keras_tx.bert("tiny", depth=depth, width=64, vocabulary_size=30, head=head, dropout=0.0, **options)


@pytest.mark.parametrize(
    ("schedule", "name"),
    [(WarmupLinear, "get_linear_schedule_with_warmup"), (WarmupCosine, "get_cosine_schedule_with_warmup")],
)
@pytest.mark.parametrize("warmup", [0, 7, 0.25])
def test_schedules_equal_transformers(schedule, name, warmup):
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    ours = schedule(3e-4, steps=40, warmup=warmup)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=3e-4)
    theirs = getattr(transformers, name)(optimizer, ours.warmup_steps, 40)
    for step in range(45):
        expected = optimizer.param_groups[0]["lr"] if step <= 40 else 0.0
        assert float(keras.ops.convert_to_numpy(ours(step))) == pytest.approx(expected, rel=1e-5, abs=1e-10)
        optimizer.step()
        theirs.step()


def test_schedule_is_serializable():
    schedule = WarmupLinear(1e-3, steps=30, warmup=0.5)
    for one in (schedule, InverseSquareRoot(1e-3, 30, constant=True)):
        loaded = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(one))
        assert type(loaded) is type(one) and loaded.get_config() == one.get_config()


def test_inverse_square_root_equals_the_paper_and_transformers():
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    width, warmup = 512, 40
    peak = (width * warmup) ** -0.5
    ours = InverseSquareRoot(peak, warmup)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=peak)
    theirs = transformers.get_inverse_sqrt_schedule(optimizer, warmup)
    for step in range(200):
        mine = float(keras.ops.convert_to_numpy(ours(step)))
        assert mine == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-5)
        if step:  # section 5.3 of Vaswani et al.
            assert mine == pytest.approx(width**-0.5 * min(step**-0.5, step * warmup**-1.5), rel=1e-5)
        optimizer.step()
        theirs.step()


def test_inverse_square_root_of_t5():
    schedule = InverseSquareRoot(0.01, 10_000, constant=True)
    for step in (0, 1, 9_999, 10_000, 10_001, 40_000, 1_000_000):
        assert float(schedule(step)) == pytest.approx(max(step, 10_000) ** -0.5, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "value"), [("warmup", 30), ("warmup", -1), ("warmup", 1.5), ("steps", 0), ("peak", 0)]
)
def test_schedule_argument_out_of_range_raises(name: str, value: float):
    with pytest.raises(ConfigError, match=rf"{name}(=| is ){value}"):
        WarmupLinear(**{"peak": 1e-3, "steps": 30, name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("warmup", 0), ("warmup", 0.1), ("peak", -1), ("constant", "yes")]
)
def test_argument_of_inverse_square_root_out_of_range_raises(name: str, value: float):
    with pytest.raises(ConfigError, match=rf"{name}(=| is ){value!r}"):
        InverseSquareRoot(**{"peak": 1e-3, "warmup": 30, name: value})


def test_step_equals_torch_with_one_group_per_layer():
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    ours = model()
    for index, variable in enumerate(ours.trainable_variables):
        variable.assign(np.random.default_rng(index).normal(1, 0.5, variable.shape))
    before = [keras.ops.convert_to_numpy(variable) for variable in ours.trainable_variables]
    recipe = {"learning_rate": 0.1, "warmup": 2, "weight_decay": 0.3, "layer_decay": 0.5}
    optimizer = finetune_recipe(ours, 6, **recipe, global_clipnorm=None, epsilon=1e-8)
    optimizer.build(ours.trainable_variables)
    groups, theirs = [], []
    for variable, value in zip(ours.trainable_variables, before, strict=True):
        top, name = variable.path.split("/")[0], variable.path.split("/")[-1]
        layer = {"pooler": 4, "logits": 4, "block_2": 3, "block_1": 2, "block_0": 1}.get(top, 0)
        decays = name in ("kernel", "table")
        theirs.append(torch.nn.Parameter(torch.tensor(np.array(value))))
        group = {"params": [theirs[-1]], "lr": 0.1 * 0.5 ** (4 - layer), "weight_decay": 0.3 * decays}
        groups.append({**group, "peak": group["lr"]})
    reference = torch.optim.AdamW(groups, eps=1e-8)
    for step in range(6):
        random = np.random.default_rng(100 + step)
        gradients = [random.normal(0, 1, value.shape).astype("float32") for value in before]
        optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients])
        for group, parameter, gradient in zip(reference.param_groups, theirs, gradients, strict=True):
            group["lr"] = group["peak"] * (step / 2 if step < 2 else (6 - step) / 4)
            parameter.grad = torch.tensor(gradient)
        reference.step()
    for variable, parameter, value in zip(ours.trainable_variables, theirs, before, strict=True):
        after = keras.ops.convert_to_numpy(variable)
        assert np.abs(after - value).max() > 1e-3
        np.testing.assert_allclose(after, parameter.detach().numpy(), atol=2e-5, err_msg=variable.path)


def test_frozen_blocks_keep_their_weights():
    bert = model()
    recipe = finetune_recipe(bert, 8, learning_rate=1e-2, frozen_blocks=2, layer_decay=0.8, warmup=1)
    bert.compile(recipe, run_eagerly=True)  # faster than tracing for a few steps
    before = {w.path: np.array(keras.ops.convert_to_numpy(w)) for w in bert.weights}
    ids = np.random.default_rng(0).integers(1, 30, (16, 5))
    history = bert.fit(ids, ids[:, 1] % 2, batch_size=4, epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    for weight in bert.weights:
        same = np.array_equal(keras.ops.convert_to_numpy(weight), before[weight.path])
        assert same == (weight.path.split("/")[0] not in ("block_2", "pooler", "logits")), weight.path


def test_optimizer_is_saved_with_the_model(tmp_path):
    bert = model(depth=2)
    bert.compile(finetune_recipe(bert, 8, frozen_blocks=1, layer_decay=0.7), run_eagerly=True)
    ids = np.random.default_rng(0).integers(1, 30, (8, 5))
    bert.fit(ids, ids[:, 1] % 2, verbose=0)
    bert.save(tmp_path / "model.keras")
    loaded = keras_tx.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.optimizer, AdamW)
    assert loaded.optimizer.rate_factors == bert.optimizer.rate_factors
    assert loaded.optimizer.without_decay == bert.optimizer.without_decay
    assert loaded.frozen() == bert.frozen()
    # Weights are not compared after another step: Adam amplifies the rounding of gradients near 0.
    for mine, theirs in zip(loaded.optimizer.variables, bert.optimizer.variables, strict=True):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(mine), keras.ops.convert_to_numpy(theirs), err_msg=theirs.path
        )
    loaded.fit(ids, ids[:, 1] % 2, verbose=0)


def test_finetune_recipe_of_other_families_and_invalid_arguments():
    gpt = keras_tx.gpt("pico")
    optimizer = finetune_recipe(gpt, 10, layer_decay=0.5)
    assert optimizer.rate_factors == {
        "token_embedding": 0.125,
        "positions": 0.125,
        "block_0": 0.25,
        "block_1": 0.5,
    }
    vit = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    finetune_recipe(vit, 10, frozen_blocks=1)
    assert "patch_embedding" in vit.frozen()
    with pytest.raises(ConfigError, match="'sequential.*block_0"):
        finetune_recipe(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]), 10)
    with pytest.raises(ConfigError, match="frozen_blocks=3.* 0 to 2"):
        finetune_recipe(gpt, 10, frozen_blocks=3)
    with pytest.raises(ConfigError, match="layer_decay=0"):
        finetune_recipe(gpt, 10, layer_decay=0)


def test_schedule_with_floor():
    """nanoGPT's schedule: linear warmup, then cosine decay to a tenth of the peak."""
    schedule = WarmupCosine(1e-3, 2000, 100, floor=0.1)
    for step in (0, 1, 99, 100, 101, 1050, 1999, 2000, 3000):
        done = min(1.0, (step - 100) / 1900)
        expected = 1e-5 * step if step < 100 else 1e-4 + 0.5 * (1 + np.cos(np.pi * done)) * 9e-4
        assert float(schedule(step)) == pytest.approx(expected, rel=1e-5)
    assert WarmupCosine.from_config(schedule.get_config()).floor == 0.1
    assert float(WarmupLinear(1.0, 10, 0, floor=0.5)(10)) == 0.5
    for floor in (-0.1, 1.5, "low", True):
        with pytest.raises(ConfigError, match=f"floor={floor!r}"):
            WarmupCosine(1.0, 10, 1, floor=floor)


def test_pretrain_recipe():
    gpt = keras_tx.gpt("pico")
    optimizer = pretrain_recipe(100, learning_rate=1e-3, warmup=10, beta_1=0.8)
    gpt.compile(optimizer)
    optimizer.build(gpt.trainable_variables)
    decayed = {v.path.split("/")[-1] for v in gpt.trainable_variables if optimizer._use_weight_decay(v)}
    assert decayed == {"kernel", "table"}
    assert {len(v.shape) for v in gpt.trainable_variables if optimizer._use_weight_decay(v)} == {2}
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon) == (0.8, 0.95, 1e-8)
    assert (optimizer.weight_decay, optimizer.global_clipnorm) == (0.1, 1.0)
    with pytest.raises(ConfigError, match="warmup=100"):
        pretrain_recipe(100, warmup=100)


def rate(optimizer: keras.optimizers.Optimizer, step: int) -> float:
    optimizer.iterations.assign(step)
    return float(keras.ops.convert_to_numpy(optimizer.learning_rate))


def test_transformer_recipe():
    model = keras_tx.transformer("tiny", width=64)
    optimizer = transformer_recipe(model, warmup=400)
    assert isinstance(optimizer, keras.optimizers.Adam)
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon) == (0.9, 0.98, 1e-9)
    assert rate(optimizer, 400) == pytest.approx(64**-0.5 * 400**-0.5)
    assert rate(transformer_recipe(model, learning_rate=1e-3, warmup=100), 400) == pytest.approx(5e-4)
    assert transformer_recipe(model, epsilon=1e-8, global_clipnorm=1.0).global_clipnorm == 1.0
    with pytest.raises(ConfigError, match="warmup is 0"):
        transformer_recipe(model, warmup=0)
    with pytest.raises(ConfigError, match="learning_rate=0"):
        transformer_recipe(model, learning_rate=0)


@pytest.mark.parametrize("constant", [False, True])
def test_t5_recipe_equals_adafactor_of_transformers(constant: bool):
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    optimization = pytest.importorskip("transformers.optimization", reason='pip install "keras-tx[parity]"')
    options = {"learning_rate": 1e-2} if constant else {"warmup": 25}
    optimizer = t5_recipe(**options)
    random = np.random.default_rng(0)
    values = [random.normal(0, 1, shape).astype("float32") for shape in ((6, 4), (5,), (3, 7))]
    mine = [keras.Variable(value) for value in values]
    theirs = [torch.nn.Parameter(torch.tensor(value)) for value in values]
    reference = optimization.Adafactor(theirs, lr=1e-2, relative_step=False, scale_parameter=True)
    optimizer.build(mine)
    for step in range(30):
        gradients = [random.normal(0, 1, value.shape).astype("float32") for value in values]
        optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients])
        for group in reference.param_groups:
            # From the 25th step on, Keras's Adafactor has the rate of the next step.
            group["lr"] = 1e-2 if constant else min(max(step, 25) ** -0.5, (step + 1) ** -0.5)
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = torch.tensor(gradient)
        reference.step()
    for variable, parameter, value in zip(mine, theirs, values, strict=True):
        after = keras.ops.convert_to_numpy(variable)
        assert np.abs(after - value).max() > 1e-2
        np.testing.assert_allclose(after, parameter.detach().numpy(), atol=2e-5)
    with pytest.raises(ConfigError, match="learning_rate=-1"):
        t5_recipe(-1)


def test_finetune_recipe_of_encoder_decoders():
    model = keras_tx.t5("tiny")
    optimizer = finetune_recipe(model, 10, layer_decay=0.5, frozen_blocks=1)
    assert optimizer.rate_factors == {
        "token_embedding": 0.03125,
        "encoder_relative_bias": 0.03125,
        "encoder_block_0": 0.0625,
        "encoder_block_1": 0.125,
        "encoder_norm": 0.125,
        "decoder_relative_bias": 0.125,
        "decoder_block_0": 0.25,
        "decoder_block_1": 0.5,
    }
    frozen = {layer.name for layer in model.layers if layer.weights and not layer.trainable}
    assert frozen == {"token_embedding", "encoder_relative_bias", "encoder_block_0"}
    with pytest.raises(ConfigError, match="frozen_blocks=5.* 0 to 4"):
        finetune_recipe(model, 10, frozen_blocks=5)


def test_muon_updates_the_matrices_of_blocks_alone():
    text = keras_tx.gpt("pico")
    image = keras_tx.vit("Mu/2", image_size=8, num_classes=3, stem="convolutions")
    for network in (text, image, model()):
        optimizer = muon_recipe(10)
        optimizer.build(network.trainable_variables)
        by_muon = {
            variable.path
            for variable, velocity in zip(network.trainable_variables, optimizer.adam_velocities, strict=True)
            if velocity is None
        }
        matrices = {
            variable.path
            for variable in network.trainable_variables
            if "block_" in variable.path and len(variable.shape) == 2
        }
        assert matrices <= by_muon
        assert {path.split("/")[0] for path in by_muon - matrices} <= {"pooler"}


@pytest.mark.parametrize(
    "head",
    [
        keras_tx.ClassifierHead(3),
        keras_tx.TokenClassifierHead(3),
        keras_tx.SpanHead(),
        keras_tx.MultipleChoiceHead(),
        keras_tx.PretrainingHead(),
    ],
    ids=lambda head: type(head).__name__,
)
def test_muon_does_not_update_the_last_layers_of_a_head(head):
    network = keras_tx.bert("tiny", depth=1, vocabulary_size=30, head=head)
    optimizer = muon_recipe(10)
    optimizer.build(network.trainable_variables)
    names = {layer.name for layer in network.head_layers()}
    by_muon = {
        x.path.split("/")[0] for x in network.trainable_variables if not optimizer._should_use_adamw(x)
    }
    assert names and names & by_muon <= {"prediction_dense"}


def test_step_of_muon_equals_torch():
    """Moonlight's Muon (Liu et al., 2025) with the iteration of Jordan et al.; all other variables: Adam."""
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    network = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    optimizer = Muon(0.02, weight_decay=0.1)
    optimizer.build(network.trainable_variables)
    before = [torch.tensor(keras.ops.convert_to_numpy(x).copy()) for x in network.trainable_variables]
    random = np.random.default_rng(0)
    gradients = [  # far from 0, where Adam's epsilon has no effect
        (random.choice((-1, 1), x.shape) * random.uniform(0.5, 1.5, x.shape)).astype("float32")
        for x in before
    ]
    optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients])
    for variable, value, gradient in zip(network.trainable_variables, before, gradients, strict=True):
        gradient = torch.tensor(gradient)
        if variable.path.startswith("block_") and value.ndim == 2:
            nesterov = gradient * 1.95
            wide = nesterov.T if nesterov.shape[0] > nesterov.shape[1] else nesterov
            x = wide / wide.norm()
            for _ in range(5):
                product = x @ x.T
                x = 3.4445 * x + (-4.7750 * product + 2.0315 * product @ product) @ x
            update = x.T if wide is not nesterov else x
            expected = value * (1 - 0.02 * 0.1) - 0.02 * 0.2 * max(value.shape) ** 0.5 * update
        else:
            expected = value - 0.02 * torch.sign(gradient)  # the first step of Adam
        actual = keras.ops.convert_to_numpy(variable)
        assert np.abs(actual - expected.numpy()).max() < 2e-5, variable.path


def test_a_saved_model_keeps_muon(tmp_path):
    network = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    network.compile(Muon(1e-3, exclude_layers=("block_0/feed_forward",)))
    images, labels = np.zeros((4, 8, 8, 3), "float32"), np.array([0, 1, 2, 0])
    network.fit(images, labels, verbose=0)
    network.save(tmp_path / "model.keras")
    loaded = keras_tx.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is Muon
    assert loaded.optimizer.get_config() == network.optimizer.get_config()
    assert [v is None for v in loaded.optimizer.adam_velocities] == [
        v is None for v in network.optimizer.adam_velocities
    ]
    network.fit(images, labels, verbose=0)
    loaded.fit(images, labels, verbose=0)
    for mine, theirs in zip(network.weights, loaded.weights, strict=True):
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(mine), keras.ops.convert_to_numpy(theirs), rtol=1e-5, atol=1e-6
        )


def test_deit_recipe_scales_the_learning_rate_with_the_batch():
    for batch_size, peak in ((1024, 1e-3), (128, 1.25e-4)):  # lr * batch size / 512, of the paper's table 9
        optimizer = deit_recipe(100, batch_size=batch_size, warmup=0)
        assert float(keras.ops.convert_to_numpy(optimizer.learning_rate)) == pytest.approx(peak)
    assert (
        keras_tx.optimizers.AdamW.from_config(optimizer.get_config()).without_decay == optimizer.without_decay
    )


def test_bert_recipe():
    """Section A.2 of Devlin et al.: 1e-4, 10,000 steps of warmup of a million, linear decay."""
    optimizer = bert_recipe()
    for step, expected in ((0, 0.0), (5_000, 5e-5), (10_000, 1e-4), (505_000, 5e-5), (1_000_000, 0.0)):
        assert rate(optimizer, step) == pytest.approx(expected, rel=1e-4, abs=1e-12)
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon) == (0.9, 0.999, 1e-6)
    assert (optimizer.weight_decay, optimizer.global_clipnorm) == (0.01, 1.0)
    network = model()
    optimizer.build(network.trainable_variables)
    decayed = {x.path.split("/")[-1] for x in network.trainable_variables if optimizer._use_weight_decay(x)}
    assert decayed == {"kernel", "table"}
    with pytest.raises(ConfigError, match="warmup=100"):
        bert_recipe(100, warmup=100)


def test_step_of_lamb_equals_the_paper():
    """Algorithm 2 of You et al.; variables without weight decay have no trust ratio."""
    network = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    optimizer = Lamb(0.02, weight_decay=0.1, global_clipnorm=None)
    optimizer.build(network.trainable_variables)
    random = np.random.default_rng(0)
    expected = [random.normal(0, 0.5, x.shape) for x in network.trainable_variables]
    expected[-1] *= 0  # a norm of 0
    for variable, value in zip(network.trainable_variables, expected, strict=True):
        variable.assign(value)
    means, squares = ([0.0] * len(expected) for _ in range(2))
    for step in range(1, 4):
        gradients = [random.normal(0, 1, x.shape) for x in expected]
        optimizer.apply([keras.ops.convert_to_tensor(x.astype("float32")) for x in gradients])
        for index, (variable, gradient) in enumerate(
            zip(network.trainable_variables, gradients, strict=True)
        ):
            means[index] = 0.9 * means[index] + 0.1 * gradient
            squares[index] = 0.999 * squares[index] + 0.001 * gradient**2
            update = means[index] / (1 - 0.9**step) / (np.sqrt(squares[index] / (1 - 0.999**step)) + 1e-6)
            if variable.path.endswith("kernel"):
                update = update + 0.1 * expected[index]
                norm = np.linalg.norm(expected[index])
                update = update * (norm / np.linalg.norm(update) if norm else 1)
            expected[index] = expected[index] - 0.02 * update
    for variable, value in zip(network.trainable_variables, expected, strict=True):
        assert np.abs(keras.ops.convert_to_numpy(variable) - value).max() < 2e-5, variable.path


def test_a_saved_model_keeps_lamb(tmp_path):
    network = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    network.compile(deit3_recipe(10))
    images, labels = np.zeros((4, 8, 8, 3), "float32"), np.array([0, 1, 2, 0])
    network.fit(images, labels, verbose=0)
    network.save(tmp_path / "model.keras")
    loaded = keras_tx.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is Lamb
    assert loaded.optimizer.get_config() == network.optimizer.get_config()
    for one in (network, loaded):
        one.fit(images, labels, verbose=0)
    for mine, theirs in zip(network.weights, loaded.weights, strict=True):
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(mine), keras.ops.convert_to_numpy(theirs), rtol=1e-5, atol=1e-6
        )


@pytest.mark.filterwarnings("ignore:.*Explicitly requested dtype int64")  # JAX, of Keras's MixUp
def test_deit3_recipe_trains_with_binary_crossentropy():
    network = keras_tx.vit("Mu/2", image_size=8, num_classes=3, drop_path=0.1, layer_scale=1e-4)
    optimizer = deit3_recipe(800, learning_rate=3e-3)
    assert [rate(optimizer, step) for step in (0, 5, 800)] == pytest.approx([0, 3e-3, 1e-5], rel=1e-4)
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon) == (0.9, 0.999, 1e-6)
    network.compile(deit3_recipe(20, learning_rate=1e-2), loss="binary_crossentropy", metrics=["accuracy"])
    pixels = np.random.default_rng(0).integers(0, 255, (3, 8, 8, 3)).astype("uint8").repeat(4, 0)
    augment = keras_tx.data.three_augment(3, padding=1, mixup=0.8)
    images, shares = augment(pixels, np.arange(12) // 4, np.random.default_rng(0))
    np.testing.assert_allclose(shares.sum(-1), 1, atol=1e-6)
    assert ((shares > 0) & (shares < 1)).any()
    history = network.fit(network.processing(images.astype("uint8")), shares, epochs=10, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    with pytest.raises(ConfigError, match=r"labels have the shape \(3,\)"):
        network.fit(network.processing(pixels[:3]), np.arange(3))
    with pytest.raises(ConfigError, match="learning_rate=0"):
        deit3_recipe(10, learning_rate=0)
