"""The plan of a training: operations of published ones, bytes per device, impossible layouts."""

from __future__ import annotations

import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.training.training_plan import training_plan

JFT = 303e6  # images


@pytest.mark.parametrize(
    ("variant", "epochs", "exaflops"),  # Dosovitskiy et al. (2021), Table 6
    [
        ("B/32", 7, 55),
        ("B/16", 7, 224),
        ("L/32", 7, 196),
        ("L/16", 7, 783),
        ("L/16", 14, 1567),
        ("H/14", 14, 4262),
    ],
)
def test_operations_of_the_vit_paper(variant, epochs, exaflops):
    plan = training_plan(keras_tx.ViTConfig.variant(variant), devices=1)
    assert plan.example_flops * JFT * epochs / 1e18 == pytest.approx(exaflops, rel=0.03)


def test_operations_of_gpt_3():
    # Brown et al. (2020), Table D.1, counts 6 operations per parameter and token, without attention scores.
    plan = training_plan(keras_tx.GPTConfig.variant("175B"), devices=1)
    assert plan.example_flops / 2048 * 300e9 == pytest.approx(3.14e23, rel=0.05)


def test_bytes_of_data_and_tensor_parallel():
    config = keras_tx.BertConfig.variant("large")
    params = keras_tx.cost(config).params
    plan = training_plan(config, devices=8, batch_size=64, tokens=512)
    layouts = {(layout.tensor, layout.remat): layout for layout in plan.layouts}
    assert len(layouts) == len(plan.layouts) == 8 and not plan.impossible
    one = layouts[1, False]
    assert (one.weights, one.optimizer) == pytest.approx((4 * params, 8 * params), rel=1e-4)
    assert one.communication == pytest.approx(2 * 7 / 8 * 4 * params)
    # Korthikanti et al. (2022): s * b * h * (34 + 5 * a * s / h) bytes per block, in 16 bits
    published = 24 * 512 * 8 * 1024 * (34 + 5 * 16 * 512 / 1024)
    assert one.activations == pytest.approx(published, rel=1e-6)
    eight = layouts[8, False]
    assert eight.weights < 0.15 * one.weights
    assert eight.activations == pytest.approx(24 * 512 * 64 * 1024 * (10 + (24 + 5 * 16 * 512 / 1024) / 8))
    assert layouts[1, True].activations < 0.1 * one.activations


def test_best_prefers_stored_activations_and_whole_weights():
    plan = training_plan(keras_tx.BertConfig.variant("base"), devices=4, tokens=128)
    best = plan.best(10**12)
    assert best is not None and (best.data, best.tensor, best.remat) == (4, 1, False)
    totals = [layout.total for layout in plan.layouts]
    assert plan.best(min(totals)) == plan.layouts[totals.index(min(totals))]
    assert plan.best(min(totals) - 1) is None


def test_layouts_that_are_not_possible_are_named():
    plan = training_plan(keras_tx.GPTConfig.variant("1558M"), devices=2)
    assert {layout.tensor for layout in plan.layouts} == {1}
    assert len(plan.impossible) == 1 and "25 heads" in plan.impossible[0]
    with pytest.raises(ConfigError, match="batch_size=3 is not divisible by 2"):
        training_plan(keras_tx.GPTConfig.variant("1558M"), devices=2, batch_size=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": 0}, "devices is 0"),
        ({"devices": 2, "batch_size": 0}, "batch_size is 0"),
        ({"devices": 2, "precision": "bf16"}, "precision='bf16'"),
    ],
)
def test_invalid_arguments_raise(arguments, message):
    with pytest.raises(ConfigError, match=message):
        training_plan(keras_tx.ViTConfig.variant("Mu/2", image_size=8), **arguments)
