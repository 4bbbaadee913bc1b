"""Rematerialization: the backward pass recomputes a layer instead of reading stored intermediates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
from keras import ops

SEEDS_PER_CHUNK = 16  # of a generator; the dropout of a block is called at most three times
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


def rematerialize_in_chunks(
    function: Callable[[Any], Any],
    inputs: Any,
    outputs: Any,
    chunk_size: int,
    weights: Sequence[keras.Variable],
    generators: Sequence[keras.random.SeedGenerator],
) -> Any:
    """Calls a function on one part of the rows after another; the backward pass recomputes each part.

    Intermediates of one chunk are in memory at a time (GradCache: Gao et al., "Scaling Deep Contrastive
    Learning Batch Size under Memory Limited Setup", 2021). Chunks have equal sizes: the last one repeats the
    last row.

    Args:
        function: function of a tree of tensors like `inputs`, whose rows do not depend on each other. It may
            also read weights.
        inputs: tree of tensors (rows, ...).
        outputs: tree of symbolic tensors: the shapes and dtypes of the outputs of the function.
        chunk_size: the largest number of rows in a chunk.
        weights: the trainable weights, which alone the gradient reaches.
        generators: those whose seeds the function draws. Each chunk has seeds of its own.

    Returns:
        The outputs of the function for all rows.
    """
    rows = ops.shape(keras.tree.flatten(inputs)[0])[0]
    count = (rows + chunk_size - 1) // chunk_size
    size = (rows + count - 1) // count
    last = ops.minimum(ops.arange(count * size), rows - 1)
    chunks = keras.tree.map_structure(
        lambda x: ops.reshape(ops.take(x, last, axis=0), (count, size, *ops.shape(x)[1:])), inputs
    )
    first_seeds = [_reserved(generator, count) for generator in generators]

    def of_chunk(arguments: tuple[Any, list[Any]]) -> Any:
        chunk, seeds = arguments
        with _fixed([(g, _following(seed)) for g, seed in zip(generators, seeds, strict=True)]):
            return function(chunk)

    arguments = (chunks, first_seeds)
    if keras.backend.backend() == "tensorflow":
        results = _recomputed_in_tensorflow(of_chunk, arguments, outputs, weights)
    else:
        results = ops.map(lambda x: keras.remat(lambda: of_chunk(x))(), arguments)
    return keras.tree.map_structure(
        lambda x: ops.reshape(x, (count * size, *ops.shape(x)[2:]))[:rows], results
    )


def _recomputed_in_tensorflow(function: Callable[[Any], Any], chunks: Any, outputs: Any, weights: Any) -> Any:
    # The gradient of a TensorFlow loop does not support tf.recompute_grad of a function that reads variables.
    import tensorflow as tf

    trained = {weight._value.ref() for weight in weights}  # `value` is cast in a layer of mixed precision

    @tf.custom_gradient
    def results() -> Any:
        def gradients(*slopes: Any, variables: Sequence[Any] = ()) -> tuple[list[Any], list[Any]]:
            sources = [variable for variable in variables if variable.ref() in trained]

            def add(index: Any, *sums: Any) -> tuple[Any, ...]:
                with tf.GradientTape() as tape:
                    result = function(keras.tree.map_structure(lambda x: x[index], chunks))
                terms = tape.gradient(
                    keras.tree.flatten(result),
                    sources,
                    output_gradients=[slope[index] for slope in slopes],
                    unconnected_gradients=tf.UnconnectedGradients.ZERO,
                )
                return index + 1, *(
                    x + tf.convert_to_tensor(term) for x, term in zip(sums, terms, strict=True)
                )

            count = tf.shape(keras.tree.flatten(chunks)[0])[0]
            start = [tf.zeros_like(source) for source in sources]
            _, *sums = tf.while_loop(lambda i, *_: i < count, add, (0, *start), parallel_iterations=1)
            by_variable = dict(zip((source.ref() for source in sources), sums, strict=True))
            return [], [by_variable.get(x.ref(), tf.zeros_like(x)) for x in variables]

        return keras.tree.flatten(map_sequentially(function, chunks, outputs)), gradients

    return keras.tree.pack_sequence_as(outputs, results())


def _reserved(generator: keras.random.SeedGenerator, count: Any) -> Any:
    """Draws the seeds of `count` chunks, and returns the first one of each (count, 2)."""
    state = generator.state
    counts = ops.convert_to_tensor([0, SEEDS_PER_CHUNK], dtype=state.dtype)
    numbers = ops.cast(ops.arange(count), state.dtype)
    first = state.value + numbers[:, None] * counts
    state.assign(state.value + ops.cast(count, state.dtype) * counts)
    return first


def _following(seed: Any) -> Iterator[Any]:
    """Yields a seed and those after it."""
    for number in range(SEEDS_PER_CHUNK):
        yield seed + ops.convert_to_tensor([0, number], dtype=seed.dtype)


def map_sequentially(function: Callable[[Any], Any], inputs: Any, outputs: Any) -> Any:
    """Calls a function on each element of the first axis, one after another, and stacks the results.

    Args:
        function: function of a tree of tensors like `inputs`.
        inputs: tree of tensors of equal length.
        outputs: tree of symbolic tensors: the shapes and dtypes of the results of one element.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.map(function, inputs)
    import tensorflow as tf

    # The loop of `ops.map` holds the intermediates of several elements in memory.
    signature = keras.tree.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), outputs)
    return tf.map_fn(function, inputs, fn_output_signature=signature, parallel_iterations=1)


@contextmanager
def _fixed(generators: Sequence[tuple[Any, Iterable[Any]]]) -> Iterator[None]:
    """A context in which each generator returns the given seeds, one per call."""
    before = [vars(generator).get("next") for generator, _ in generators]
    for generator, seeds in generators:
        iterator = iter(seeds)
        vars(generator)["next"] = lambda ordered=True, iterator=iterator: next(iterator)
    try:
        yield
    finally:
        for (generator, _), outer in zip(generators, before, strict=True):
            if outer is None:
                del vars(generator)["next"]
            else:
                vars(generator)["next"] = outer
