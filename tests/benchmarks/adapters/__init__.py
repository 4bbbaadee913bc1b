"""Adapters: each runs a model of the benchmark with one library.

No module imports a library at module level. An adapter returns NumPy arrays or plain numbers, so that no
computation is pending when its time is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

BATCH = 32  # sources that run together, by default of keras-tx; of similar lengths in every contender
WRONG_NOTE = "WRONG "  # how a note about wrong answers begins


def generate_in_batches(
    ids: np.ndarray, mask: np.ndarray, run: Callable[[np.ndarray, np.ndarray], list[list[int]]]
) -> list[list[int]]:
    """Runs the sources in batches of similar lengths, the longest first; returns targets in their order."""
    order = np.argsort(-mask.sum(axis=1), kind="stable")
    targets: dict[int, list[int]] = {}
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        width = int(mask[rows].sum(axis=1).max())
        made = run(ids[rows, :width], mask[rows, :width])
        targets |= dict(zip(rows.tolist(), made, strict=True))
    return [targets[index] for index in range(len(ids))]


class Adapter:
    """A library with a model of the benchmark; one object per process.

    Subclasses have a method for each kind of case that they run:

        images(pixels)              a forward pass of a ViT; returns the logits
        texts(ids, mask, segments)  a forward pass of a BERT; returns the hidden states
        tokens(ids, count)          an iterator over `count` greedy tokens after `ids`
        generate(ids, mask, count, beams)   a target of `count` tokens for each source
        streams(prompts, count)     `count` greedy tokens after each prompt, generated together; returns
                                    the ids and the seconds to the first token of each
        overhead(ids, count)        seconds per token outside the graph
        step(x, y)                  a training step; returns the loss before it
        export()                    seconds and figures of an export, which is removed again
        multiply()                  `billions` of operations of a matrix product, or of bytes read
        serve()                     seconds per request with concurrent clients

    Args:
        place: the folder with the model in all its formats and with the inputs.
        options: of the contender.
    """

    channels_last = False  # the layout of `images`

    def __init__(self, place: Path, **options: object) -> None:
        self.place = place
        self.options = options

    def prepare(self) -> None:
        """Writes the adapter's own files below `place`, if they are missing."""

    def imports(self) -> None:
        """Imports what `load` would import lazily; timed as an import."""

    def load(self) -> None:
        """Loads the model."""
        raise NotImplementedError
