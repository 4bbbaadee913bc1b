"""The model and `pretrain_recipe` against nanoGPT's in PyTorch: the same losses, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.data import causal_lm_batches
from keras_tx.processing import TokenWriter
from keras_tx.training import pretrain_recipe
from tests.drawing import as_numpy
from tests.tolerances import FP32

pytestmark = pytest.mark.thorough

torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')

STEPS = 30


def copy(theirs: Any, ours: Any) -> None:
    """The reference's weights put into ours."""
    left = {name: x.detach().numpy() for name, x in theirs.named_parameters()}
    ours.get_layer("token_embedding").table.assign(left.pop("wte.weight"))
    ours.get_layer("positions").table.assign(left.pop("wpe.weight"))
    ours.get_layer("norm").gamma.assign(left.pop("ln_f.weight"))
    for index in range(ours.config.depth):
        block, at = ours.get_layer(f"block_{index}"), f"blocks.{index}"
        attention, wide = block.attention, block.feed_forward
        for layer, rows in zip(
            (attention.query, attention.key, attention.value),
            np.split(left.pop(f"{at}.c_attn.weight"), 3),
            strict=True,
        ):
            layer.kernel.assign(rows.T)
        attention.output_projection.kernel.assign(left.pop(f"{at}.attn_proj.weight").T)
        wide.up.kernel.assign(left.pop(f"{at}.c_fc.weight").T)
        wide.down.kernel.assign(left.pop(f"{at}.mlp_proj.weight").T)
        block.attention_norm.gamma.assign(left.pop(f"{at}.ln_1.weight"))
        block.feed_forward_norm.gamma.assign(left.pop(f"{at}.ln_2.weight"))
    assert not left


def test_training_equals_nanogpt(tmp_path: Path, monkeypatch):
    from tests.training import reference_nanogpt as nanogpt

    random = np.random.default_rng(0)
    with TokenWriter(tmp_path / "a.tokens", vocabulary_size=40) as writer:
        writer.add(np.minimum(random.geometric(0.15, 6000), 39))
    blocks = causal_lm_batches(tmp_path / "a.tokens", 16, 4, steps=STEPS)
    monkeypatch.setattr(nanogpt, "WARMUP", 10)

    torch.manual_seed(0)
    theirs = nanogpt.NanoGPT(40, 16, 2, 2, 32)
    sizes = {"depth": 2, "width": 32, "num_heads": 2, "vocabulary_size": 40, "max_length": 16}
    ours = keras_tx.gpt("char", dropout=0.0, attention_dropout=0.0, **sizes)
    copy(theirs, ours)
    batches = [blocks[index] for index in range(STEPS)]
    expected = nanogpt.train(theirs, batches, STEPS)

    ours.compile(pretrain_recipe(STEPS, learning_rate=1e-3, warmup=10, beta_2=0.99))
    losses = []
    for ids, labels in batches:
        losses.append(float(ours.train_on_batch(ids, labels, return_dict=True)["loss"]))
        ours.reset_metrics()
    # Rounding grows from step to step, since Adam divides by gradients that are nearly 0.
    np.testing.assert_allclose(losses[0], expected[0], rtol=FP32)
    np.testing.assert_allclose(losses, expected, rtol=30 * FP32)
    assert expected[-1] < expected[0] - 0.3
    table = as_numpy(ours.get_layer("token_embedding").table)
    np.testing.assert_allclose(table, theirs.wte.weight.detach().numpy(), atol=1e-3 * STEPS * 0.01)


def test_initial_weights_have_the_distributions_of_nanogpt():
    from tests.training import reference_nanogpt as nanogpt

    theirs = nanogpt.NanoGPT(104, 64, 4, 4, 128)
    sizes = {"depth": 4, "width": 128, "num_heads": 4, "vocabulary_size": 104, "max_length": 64}
    ours, copied = keras_tx.gpt("char", **sizes), keras_tx.gpt("char", **sizes)
    copy(theirs, copied)
    for mine, other in zip(ours.weights, copied.weights, strict=True):
        spread = float(np.std(as_numpy(other)))
        assert float(np.std(as_numpy(mine))) == pytest.approx(spread, rel=0.05, abs=1e-6), mine.path
    assert ours.count_params() == sum(x.numel() for x in theirs.parameters())
