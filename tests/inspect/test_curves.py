"""Figures of receptive fields, of deletion and insertion, and of attention at initialization."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.inspect.faithfulness import FaithfulnessCurve
from keras_tx.inspect.figures.curves import draw_attention_statistics, draw_faithfulness
from keras_tx.inspect.figures.receptive_field import draw_receptive_fields
from keras_tx.inspect.initialization import AttentionStatistics


def test_receptive_fields_beside_each_other(tmp_path: Path):
    small, wide = np.zeros((9, 13)), np.full((9, 13), 1e-5)
    small[2:5, 6:9] = 4
    wide[3, 7] = 2
    path = tmp_path / "fields.svg"
    figure = draw_receptive_fields({"CNN": small, "ViT": wide}, share=0.9, path=path)
    left, right, bar = figure.axes
    assert left.get_title() == "CNN\n90% in 3 pixels"
    assert right.get_title() == "ViT\n90% in 1 pixels"
    np.testing.assert_allclose(left.images[0].get_array(), np.maximum(small / 4, 1e-3))
    assert left.images[0].get_clim() == right.images[0].get_clim() == (1e-3, 1)
    outline = left.lines[0].get_xydata()
    np.testing.assert_array_equal(outline.min(axis=0), (5.5, 1.5))  # x, y
    np.testing.assert_array_equal(outline.max(axis=0), (8.5, 4.5))
    assert (left.get_xlabel(), left.get_ylabel(), right.get_ylabel()) == ("pixels", "pixels", "")
    assert "share of the largest" in bar.get_ylabel()
    assert path.read_text("utf-8").startswith("<?xml")
    with pytest.raises(ConfigError, match="0 fields"):
        draw_receptive_fields({})
    with pytest.raises(ConfigError, match="not all 0"):
        draw_receptive_fields({"none": np.zeros((3, 3))})


def test_faithfulness_curves_have_their_area():
    shares = np.array([0, 0.5, 1])
    curves = {
        "relevance": FaithfulnessCurve(shares, np.array([[1.0, 0.0, 0.0], [1.0, 0.5, 0.0]])),
        "random": FaithfulnessCurve(shares, np.array([[1.0, 0.5, 0.0]])),
    }
    figure = draw_faithfulness(curves, labels=("share of deleted pixels", "probability"))
    (axes,) = figure.axes
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["relevance (area 0.375)", "random (area 0.500)"]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [1, 0.25, 0])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("share of deleted pixels", "probability")
    assert axes.lines[0].get_linestyle() != axes.lines[1].get_linestyle()  # without color too
    with pytest.raises(ConfigError, match="curves is empty"):
        draw_faithfulness({})


def test_statistics_of_attention_have_two_panels():
    entropy, mean, median = np.array([3.7, 3.6]), np.array([0.2, 0.1]), np.array([0.1, 1e-4])
    statistics = {
        "scaled": AttentionStatistics([4, 64], entropy, mean, median),
        "without": AttentionStatistics([4, 64], entropy / 2, mean, median / 2),
    }
    figure = draw_attention_statistics(statistics, label="width d of a head")
    left, right = figure.axes
    np.testing.assert_array_equal(left.lines[0].get_ydata(), entropy)
    np.testing.assert_array_equal(right.lines[1].get_ydata(), median / 2)
    assert [label.get_text() for label in left.get_xticklabels()] == ["4", "64"]
    assert left.get_ylabel() == "entropy (nats)"
    assert right.get_yscale() == "log"
    other = AttentionStatistics([4], entropy[:1], mean[:1], median[:1])
    with pytest.raises(ConfigError, match="2 different lists"):
        draw_attention_statistics({**statistics, "other": other})
