"""Figures of matrices contain the values, names and units of their arrays."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keras_tx.errors import ConfigError
from keras_tx.inspect.figures.matrices import (
    draw_filters,
    draw_layer_similarity,
    draw_position_similarity,
    draw_receptive_fields,
)
from keras_tx.inspect.similarity import LayerSimilarity
from tests.drawing import draw


def test_layer_similarity_has_names_values_and_a_color_bar(tmp_path: Path):
    matrix = np.array([[1, 0.5, -0.01], [0.5, np.nan, 0]])
    result = LayerSimilarity(matrix, ("block_0", "block_1"), ("conv1", "conv2", "pool"))
    path = tmp_path / "cka.png"
    figure = draw_layer_similarity(result, labels=("ViT", "ResNet"), path=path)
    axes, bar = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["block_0", "block_1"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["conv1", "conv2", "pool"]
    assert (axes.get_ylabel(), axes.get_xlabel(), bar.get_ylabel()) == ("ViT", "ResNet", "linear CKA")
    np.testing.assert_array_equal(axes.images[0].get_array().filled(np.nan), matrix)
    assert axes.images[0].get_clim() == (0, 1)
    assert axes.get_ylim()[0] < axes.get_ylim()[1]  # the first layer is at the bottom
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    assert (pixels == 204).all(axis=1).any()  # the value that is not defined is gray


def test_many_layers_have_some_names():
    names = tuple(f"layer_{index}" for index in range(100))
    figure = draw_layer_similarity(LayerSimilarity(np.ones((100, 4)), names, names[:4]))
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(names[::2])
    assert [label.get_text() for label in axes.get_xticklabels()] == list(names[:4])
    figure.draw_without_rendering()
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        boxes = [label.get_window_extent() for label in labels]
        assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))


def test_position_similarity_draws_each_map_at_its_position():
    similarity = draw(2, 3, 2, 3)
    axes, bar = draw_position_similarity(similarity).axes
    drawn = axes.images[0].get_array()
    assert drawn.shape == (2 * 3 - 1, 3 * 4 - 1)
    np.testing.assert_array_equal(drawn[3:5, 8:11], similarity[1, 2])
    assert drawn.mask[2].all() and drawn.mask[:, 3].all()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "3"]
    assert axes.get_xticks().tolist() == [1, 5, 9]  # the middle of each map
    assert bar.get_ylabel() == "cosine similarity"


def test_position_similarity_of_a_sequence():
    axes = draw_position_similarity(np.eye(5)).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), np.eye(5))


def test_filters_are_scaled_with_gray_as_zero():
    filters = np.zeros((3, 4, 4, 3))
    filters[0, 0, 0, 0] = -2
    filters[1, 1, 1, 1] = 5
    axes = draw_filters(filters, columns=2).axes
    first, second, third = (a.images[0].get_array() for a in axes[:3])
    assert first[0, 0].tolist() == [0, 0.5, 0.5]
    assert second[1, 1].tolist() == [0.5, 1, 0.5]
    assert (third == 0.5).all()
    assert len(axes) == 4 and not axes[3].images
    assert draw_filters(draw(1, 4, 4, 1)).axes[0].images[0].get_array().shape == (4, 4)


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


def test_other_arrays_raise(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"shape \(2, 4, 4, 2\)"):
        draw_filters(draw(2, 4, 4, 2))
    with pytest.raises(ConfigError, match="columns=0"):
        draw_filters(draw(2, 4, 4, 3), columns=0)
    with pytest.raises(ConfigError, match=r"shape \(2, 3, 3, 2\)"):
        draw_position_similarity(draw(2, 3, 3, 2))
    with pytest.raises(ConfigError, match=r"x\.gif"):
        draw_filters(draw(2, 4, 4, 3), path=tmp_path / "x.gif")
