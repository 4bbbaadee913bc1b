"""Figures of attention distances, of deletion and insertion, and of attention at initialization."""

from __future__ import annotations

import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.inspect.faithfulness import FaithfulnessCurve
from keras_tx.inspect.figures.curves import (
    draw_attention_distance,
    draw_attention_statistics,
    draw_faithfulness,
)
from keras_tx.inspect.initialization import AttentionStatistics
from tests.drawing import draw


def test_attention_distance_has_a_dot_for_each_head():
    distances = [np.array([10.0, 20, 60]), np.array([30.0, 50])]
    axes = draw_attention_distance(distances).axes[0]
    dots = axes.collections[0].get_offsets()
    assert np.asarray(dots).tolist() == [[0, 10], [0, 20], [0, 60], [1, 30], [1, 50]]
    assert axes.lines[0].get_ydata().tolist() == [30, 40]
    assert axes.get_ylabel() == "mean attention distance (pixels)"
    assert axes.get_ylim()[0] == 0
    with pytest.raises(ConfigError, match="2 layers"):
        draw_attention_distance(draw(2, 3, 4))


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
