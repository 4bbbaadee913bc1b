"""Rematerialization: the backward pass recomputes a layer instead of reading stored intermediates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

Draws = Sequence[tuple[keras.layers.Dropout, int]]


def rematerialize(function: Callable[..., Any], tensors: Sequence[Any], draws: Draws) -> Any:
    """Calls a function whose intermediates are recomputed in the backward pass.

    Args:
        function: function of the tensors. It may also read weights, and tensors that need no gradient.
        tensors: arguments of the function; the gradient reaches only these and weights.
        draws: the active dropout layers that the function calls, with the number of calls. Their seeds are
            drawn once, so that both computations drop the same elements, those of an ordinary call.

    Returns:
        The result of the function.
    """
    generators = [
        (layer.seed_generator, [layer.seed_generator.next() for _ in range(n)]) for layer, n in draws
    ]

    def with_seeds(*arguments: Any) -> Any:
        with _fixed(generators):
            return function(*arguments)

    return keras.remat(with_seeds)(*tensors)


@contextmanager
def _fixed(generators: Sequence[tuple[Any, list[Any]]]) -> Iterator[None]:
    """A context in which each generator returns the given seeds, one per call."""
    for generator, seeds in generators:
        iterator = iter(seeds)
        vars(generator)["next"] = lambda ordered=True, iterator=iterator: next(iterator)
    try:
        yield
    finally:
        for generator, _ in generators:
            del vars(generator)["next"]
