"""PatchGrid: where the patches of an image are among the tokens."""

from __future__ import annotations

from typing import NamedTuple


class PatchGrid(NamedTuple):
    """The grid of patches of an image.

    Attributes:
        rows: number of rows of patches.
        columns: number of columns of patches.
        prefix: number of tokens before the patches: class token, distillation token and registers.
        covered: shares of the height and width that the patches cover, from the top left; below 1 if the
            model drops the remainder.
    """

    rows: int
    columns: int
    prefix: int
    covered: tuple[float, float] = (1.0, 1.0)
