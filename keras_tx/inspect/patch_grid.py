"""PatchGrid: where the patches of an image are among the tokens."""

from __future__ import annotations

from typing import NamedTuple


class PatchGrid(NamedTuple):
    """The grid of patches of an image.

    Attributes:
        rows: number of rows of patches.
        columns: number of columns of patches.
        prefix: number of tokens before the patches: class token, distillation token and registers.
    """

    rows: int
    columns: int
    prefix: int
