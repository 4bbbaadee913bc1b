"""Figures of texts contain the weights, tokens and scores of their arrays."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from keras_tx.errors import ConfigError
from keras_tx.inspect.figures import draw_token_attention, draw_token_scores

TOKENS = ["[CLS]", " it", "$x$", "\n", " "]
SHOWN = ["[CLS]", " it", "$x$", "\u21b5", "\u2423"]
SOURCE = ["Io", "$la$", "sto"]
WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(3), (4, 5)).astype("float32")  # heads, queries, keys


def maps(figure: Any) -> list[np.ndarray]:
    return [axes.images[0].get_array().data for axes in figure.axes if axes.images]


def labels(ticks: Any) -> list[str]:
    return [label.get_text() for label in ticks]


def ticks_of(axes: Any) -> list[Any]:
    return [*axes.get_xticklabels(), *axes.get_yticklabels()]


def test_grid_has_all_heads_with_one_color_bar(tmp_path: Path):
    figure = draw_token_attention(WEIGHTS[:3], TOKENS, SOURCE, path=tmp_path / "heads.png")
    *heads, bar = figure.axes
    np.testing.assert_array_equal(maps(figure), WEIGHTS[:3])
    assert [axes.get_title() for axes in heads] == ["head 0", "head 1", "head 2", ""]
    assert {axes.images[0].get_clim() for axes in heads[:3]} == {(0, float(WEIGHTS[:3].max()))}
    assert labels(heads[0].get_yticklabels()) == SHOWN
    assert labels(heads[2].get_xticklabels()) == SOURCE
    assert bar.get_ylabel() == "attention weight"
    assert (figure.get_supylabel(), figure.get_supxlabel()) == ("query", "key")
    assert not any(label.get_parse_math() for label in [*ticks_of(heads[1]), *ticks_of(heads[2])])
    # below head 1 is no other map, so it has labels too
    visible = [axes.xaxis.get_tick_params()["labelbottom"] for axes in heads[:3]]
    assert visible == [False, True, True]
    assert (tmp_path / "heads.png").stat().st_size > 1000


def test_one_head_and_the_mean():
    (one,) = maps(draw_token_attention(WEIGHTS, TOKENS, SOURCE, head=2))
    np.testing.assert_array_equal(one, WEIGHTS[2])
    figure = draw_token_attention(WEIGHTS, TOKENS, SOURCE, head="mean", labels=("target", "source"))
    np.testing.assert_allclose(maps(figure)[0], WEIGHTS.mean(axis=0))
    assert figure.axes[0].get_title() == "mean of heads"
    assert figure.get_supxlabel() == "source"


def test_long_text_has_some_labels():
    tokens = [f"t{index}" for index in range(200)]
    figure = draw_token_attention(np.eye(200)[None], tokens)
    assert labels(figure.axes[0].get_xticklabels()) == tokens[::4]


@pytest.mark.parametrize("head", [4, -1, "max", True, 1.0])
def test_head_that_does_not_exist_raises(head: Any):
    with pytest.raises(ConfigError, match=f"head is {head!r}, .* 3 or 'mean'"):
        draw_token_attention(WEIGHTS, TOKENS, SOURCE, head=head)


def test_shapes_that_do_not_agree_raise(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"\(4, 5, 3\), expected .*\(heads, 5, 5\)"):
        draw_token_attention(WEIGHTS, TOKENS, path=tmp_path / "a.png")
    with pytest.raises(ConfigError, match=r"shape \(5, 3\)"):
        draw_token_attention(WEIGHTS[0], TOKENS, SOURCE)
    with pytest.raises(ConfigError, match=r"a\.txt"):
        draw_token_attention(WEIGHTS, TOKENS, SOURCE, path=tmp_path / "a.txt")
    with pytest.raises(ConfigError, match=r"scores has the shape \(2,\), but there are 5 tokens"):
        draw_token_scores(TOKENS, [1, 2], path=tmp_path / "a.png")
    with pytest.raises(ConfigError, match="NaN"):
        draw_token_scores(SOURCE, [1, np.nan, 0])
    assert list(tmp_path.iterdir()) == []


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for draw in (
        lambda: draw_token_scores(SOURCE, [0, 1, 2]),
        lambda: draw_token_attention(WEIGHTS, TOKENS, SOURCE),
    ):
        with pytest.raises(ModuleNotFoundError, match=r"keras-tx\[inspect\]"):
            draw()


def boxes(figure: Any) -> list[tuple[float, float, float]]:
    return [to_rgb(patch.get_facecolor()) for patch in figure.axes[0].patches]


def test_scores_are_colors_of_tokens(tmp_path: Path):
    figure = draw_token_scores(TOKENS, [0, 1, -2, 2, 0], label="attribution", path=tmp_path / "a.svg")
    assert [text.get_text() for text in figure.axes[0].texts] == SHOWN
    zero, positive, least, most, _ = boxes(figure)
    assert min(zero) > 0.95  # white
    assert positive[0] > positive[2] and most[0] > most[2] and least[2] > least[0]  # red, and blue
    assert [text.get_color() for text in figure.axes[0].texts][2:4] == ["white", "white"]
    bar = figure.axes[1]
    assert bar.get_title(loc="left") == "attribution" and bar.get_xlim() == (-2, 2)
    assert "<svg" in (tmp_path / "a.svg").read_text("utf-8")


def test_scores_without_negative_ones_begin_at_0():
    figure = draw_token_scores(SOURCE, [0.0, 0.25, 0.5])
    lightness = [sum(color) for color in boxes(figure)]
    assert lightness[0] > 2.8 and lightness == sorted(lightness, reverse=True)
    assert figure.axes[1].get_xlim() == (0, 0.5)
    assert min(map(min, boxes(draw_token_scores(SOURCE, np.zeros(3))))) > 0.9


def test_lines_break_before_a_token_that_does_not_fit():
    tokens = ["word"] * 40
    texts = draw_token_scores(tokens, np.arange(40)).axes[0].texts
    places = [text.get_position() for text in texts]
    assert {place[1] for place in places} == {0.5, 1.5, 2.5}
    assert max(place[0] for place in places) <= 88
