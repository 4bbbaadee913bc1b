"""The comparison of image loaders: each contender reads all images, and the table has their ratios."""

from __future__ import annotations

import pytest

from tests.benchmarks import image_loading
from tests.benchmarks.image_loading import SERVING, TORCHVISION, TRAINING


@pytest.mark.parametrize("kind", [TRAINING, SERVING])
def test_loaders_read_all_images(tmp_path, kind):
    image_loading.draw_photographs(tmp_path, 3, (60, 48))
    for reduced in (False, True):
        epochs = {"ours": image_loading.batches(tmp_path, kind, 2, reduced=reduced)}
        rates = image_loading.measure(epochs, 3, rounds=2)
        assert len(rates["ours"]) == 2
        assert min(rates["ours"]) > 0
    data = image_loading.ReaderDataset(tmp_path, kind)
    assert [label for _, label in (data[row] for row in range(len(data)))] == [0, 1, 2]


def test_missing_images_are_noticed():
    with pytest.raises(AssertionError, match="2 of 3"):
        image_loading.measure({"ours": lambda: [(None, [0, 1])]}, 3, rounds=1)


def test_the_table_has_ratios():
    rates = {
        TRAINING: {TORCHVISION: [10.0, 30.0, 20.0], "keras-tx": [30.0, 31.0, 29.0]},
        SERVING: {"keras-tx": [5.0]},
    }
    lines = image_loading.table(rates, 2).splitlines()
    assert f"| {TRAINING} | keras-tx | 30 | 1.50 |" in lines
    assert f"| {SERVING} | keras-tx | 5 | not installed |" in lines
