"""Attention that does not return its weights, with the fused operation of the backend where it exists."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
from keras import ops

from keras_tx.layers.rematerialization import map_sequentially

LOWEST = -1e30  # added to the score of a masked key, whose weight is then exactly 0
MASKED = {"float16": -3e4}  # the same in dtypes that do not represent it
HALF = ("bfloat16", "float16")
LONG = 2048  # keys from which PyTorch's fused attention is faster than scores in half precision on a CPU
BLOCK = 512  # queries whose scores are in memory together

_WRITTEN_OUT: ContextVar[bool] = ContextVar("weights_are_written_out", default=False)


@contextmanager
def writing_out_weights() -> Iterator[None]:
    """A context in which attention layers compute their weights as a tensor, for inspection."""
    token = _WRITTEN_OUT.set(True)
    try:
        yield
    finally:
        _WRITTEN_OUT.reset(token)


def weights_are_written_out() -> bool:
    return _WRITTEN_OUT.get()


def attend(query: Any, key: Any, value: Any, *, factor: float, start: Any, allowed: Any) -> Any:
    """Computes softmax(factor Q K^T) V, with a softmax in float32.

    PyTorch, and JAX on an accelerator, have a fused operation that never holds the scores of all queries and
    keys in memory. From 2,048 tokens on, TensorFlow, and JAX on a CPU, compute scores for 512 queries at
    a time, and again in the backward pass, if the lengths are known when the step is compiled.
    Otherwise the scores are materialized, and also on PyTorch for short sequences in half precision on a CPU,
    where the fused operation is slower.

    Args:
        query, key, value: (batch, heads, tokens, size).
        factor: factor of the scores.
        start: position of the first query if each query attends to the keys up to its position only, else
            None.
        allowed: booleans that broadcast to (batch, heads, queries, keys), or None. Rows without an allowed
            key are zero.

    Returns:
        (batch, heads, queries, size of a value).
    """
    fused = _fused_attention(query, key)
    if fused is None and _is_long(query, key):
        return _in_blocks(query, key, value, factor=factor, start=start, allowed=allowed)
    if fused is not None and allowed is None and (start is None or _is_zero(start)):
        return fused(query, key, value, None, start is not None, factor)
    return _masked(fused or _written_out, query, key, value, factor=factor, start=start, allowed=allowed)


def _masked(
    operation: Any, query: Any, key: Any, value: Any, *, factor: float, start: Any, allowed: Any
) -> Any:
    """Attention by an operation whose result for rows without a key is replaced by zeros."""
    may_be_empty = allowed is not None  # a causal mask alone leaves each row a key
    if start is not None:
        causal = causal_mask(ops.shape(query)[2], ops.shape(key)[2], start)
        allowed = causal if allowed is None else ops.logical_and(causal, allowed)
    any_key = ops.any(allowed, axis=-1, keepdims=True) if may_be_empty else None
    if any_key is not None and operation is not _written_out:
        # The result of such a row depends on the device, so it attends to all keys.
        allowed = ops.logical_or(allowed, ops.logical_not(any_key))
    attended = operation(query, key, value, allowed, False, factor)
    return attended if any_key is None else ops.where(any_key, attended, ops.zeros_like(attended))


def causal_mask(queries: Any, keys: Any, start: Any) -> Any:
    """Booleans (queries, keys), true where a key is not after the query; the first query is at `start`."""
    last = ops.expand_dims(ops.arange(queries) + start, -1)
    return ops.less_equal(ops.expand_dims(ops.arange(keys), 0), last)


def _is_zero(start: Any) -> bool:
    return isinstance(start, int) and start == 0


def _fused_attention(query: Any, key: Any) -> Any:
    """The fused operation of the backend for these tensors, or None."""
    if isinstance(query, keras.KerasTensor):
        return None  # the exporter records the operations on materialized scores
    backend = keras.backend.backend()
    if backend == "torch":
        half = keras.backend.standardize_dtype(query.dtype) in HALF
        return None if half and query.device.type == "cpu" and key.shape[2] < LONG else _fused_in_torch
    return _fused_in_jax if backend == "jax" and _devices()[0].split(":")[0] != "cpu" else None


@functools.cache
def _devices() -> list[str]:
    return keras.distribution.list_devices()


def _fused_in_torch(query: Any, key: Any, value: Any, allowed: Any, causal: bool, factor: float) -> Any:
    from torch.nn.functional import scaled_dot_product_attention

    return scaled_dot_product_attention(query, key, value, allowed, is_causal=causal, scale=factor)


def _fused_in_jax(query: Any, key: Any, value: Any, allowed: Any, causal: bool, factor: float) -> Any:
    # Keras's kernel for TPUs reads the mask of the first sample only.
    flash = False if allowed is not None and _devices()[0].startswith("tpu") else None
    heads_last = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
    attended = ops.dot_product_attention(
        *heads_last, mask=allowed, scale=factor, is_causal=causal, flash_attention=flash
    )
    return ops.transpose(attended, (0, 2, 1, 3))


def _is_long(query: Any, key: Any) -> bool:
    """Whether blocks of queries save much memory."""
    lengths = (query.shape[2], key.shape[2])
    return None not in lengths and min(lengths) >= LONG and not isinstance(query, keras.KerasTensor)


def _in_blocks(query: Any, key: Any, value: Any, *, factor: float, start: Any, allowed: Any) -> Any:
    """Computes the queries of a block after another, and again in the backward pass."""
    queries, heads = query.shape[2], query.shape[1]
    count = -(-queries // BLOCK)
    inputs = {"query": _blocks(query, count)}
    inputs["first"] = ops.arange(count) * BLOCK + (0 if start is None else start)
    if allowed is not None and allowed.shape[-2] != 1:
        inputs["allowed"] = _blocks(allowed[(None,) * (4 - len(allowed.shape))], count)

    def one_block(block: dict[str, Any]) -> Any:
        mask = block.get("allowed", allowed)
        first = None if start is None else block["first"]

        def attended(q: Any, k: Any, v: Any) -> Any:
            return _masked(_written_out, q, k, v, factor=factor, start=first, allowed=mask)

        return keras.remat(attended)(block["query"], key, value)

    result = keras.KerasTensor((None, heads, BLOCK, value.shape[-1]), value.dtype)
    attended = map_sequentially(one_block, inputs, result)
    attended = ops.transpose(attended, (1, 2, 0, 3, 4))  # (b, heads, blocks, block, size of a value)
    attended = ops.reshape(attended, (ops.shape(query)[0], heads, count * BLOCK, value.shape[-1]))
    return attended[:, :, :queries]


def _blocks(x: Any, count: int) -> Any:
    """(b, heads, queries, size) -> (blocks, b, heads, block, size), with zeros after the last query."""
    x = ops.pad(x, ((0, 0), (0, 0), (0, count * BLOCK - x.shape[2]), (0, 0)))
    batch, heads, _, size = ops.shape(x)
    return ops.transpose(ops.reshape(x, (batch, heads, count, BLOCK, size)), (2, 0, 1, 3, 4))


def _written_out(query: Any, key: Any, value: Any, allowed: Any, causal: bool, factor: float) -> Any:
    if factor != 1.0:
        query = ops.multiply(query, ops.cast(factor, query.dtype))
    scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))
    if keras.backend.backend() != "torch":  # PyTorch computes the softmax of half precision in float32
        scores = ops.cast(scores, "float32")
    if allowed is not None:
        masked = MASKED.get(keras.backend.standardize_dtype(scores.dtype), LOWEST)
        added = ops.where(allowed, ops.cast(0.0, scores.dtype), ops.cast(masked, scores.dtype))
        scores = ops.add(scores, added)
    return ops.matmul(ops.cast(softmax(scores), value.dtype), value)


def softmax(scores: Any) -> Any:
    """Softmax over the keys, without Keras's warning about a single one, as in the first step of decoding."""
    return ops.ones_like(scores) if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)
