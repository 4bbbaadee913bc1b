"""4-bit blocks of a decoder's products, rounded on calibration data, and the products that need 8 bits.

The second moments of the products' inputs are measured inside the fp32 graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError
from keras_tx_onnx.graph.first_call import load_first_call
from keras_tx_onnx.quantizing import gptq, products
from keras_tx_onnx.quantizing.calibration_inputs import Feed
from keras_tx_onnx.quantizing.offset_blocks import Blocks, Calibrated, packed
from keras_tx_onnx.quantizing.probe import Probe
from keras_tx_onnx.quantizing.products import Product

# Numbers of the moments that are measured in one run, 1 GB in float64; those of one input may be more.
# Rounding a kernel needs about four times its moments in addition.
NUMBERS = 2**27
SHARE_IN_8_BITS = 0.2  # of the numbers, at most: makes their blocks larger by a tenth
SMALLEST_LOSS = 1e-4  # of a product in 8 bits, 1 % of its result: weights that had 4 bits before lose nothing
TOKENS = 512  # of a run; a longer row runs alone
FEW_TOKENS = 1024  # the accuracy with fewer was not measured

Names = tuple[str, ...]  # of the inputs of the products with one weight


def calibrated(
    path: Path,
    keep: Sequence[str],
    batches: Sequence[Feed],
    data: str,
    block: int,
    chosen: Callable[[Product], bool],
) -> Calibrated:
    """The blocks of the kernels of chosen products.

    Args:
        path: of the fp32 graph.
        keep: layers that stay in fp32.
        batches: of calibration.
        data: describes them.
        block: numbers that share a scale.
        chosen: whether to round a product.

    Raises:
        ExportError: if the graph computes numbers that are not finite.
    """
    plan = products.plan(load_first_call(path).graph, keep)
    by_weight: dict[str, list[Product]] = {}
    for product in filter(chosen, plan.products):
        by_weight.setdefault(str(product.weight.name), []).append(product)
    # Others have blocks along both axes, and are rounded alone.
    by_weight = {name: uses for name, uses in by_weight.items() if len({x.transposed for x in uses}) == 1}
    by_inputs: dict[Names, dict[str, Product]] = {}
    for name, uses in by_weight.items():
        inputs = tuple(dict.fromkeys(str(product.x.name) for product in uses))
        by_inputs.setdefault(inputs, {})[name] = uses[0]
    blocks: dict[str, Blocks] = {}
    losses: dict[str, float] = {}
    for part in _parts({inputs: next(iter(x.values())).sizes[0] for inputs, x in by_inputs.items()}):
        moments = _moments(path, list(dict.fromkeys(name for inputs in part for name in inputs)), batches)
        for inputs in part:
            moment = sum((moments[name] for name in inputs[1:]), moments[inputs[0]]).shrunk()
            for name, product in by_inputs[inputs].items():
                steps, scales, least = gptq.rounded(product.kernel, moment, block)
                blocks[name] = packed(steps, block), scales, least
                rounded = least[..., None] + scales[..., None] * steps.reshape(*scales.shape, block)
                losses[name] = _loss(product.kernel, rounded.reshape(steps.shape).T, moment)
    sizes = {name: uses[0].kernel.size for name, uses in by_weight.items()}
    return Calibrated(data, blocks, _in_8_bits(losses, sizes))


def _loss(kernel: np.ndarray, rounded: np.ndarray, moments: np.ndarray) -> float:
    """The squared error of a product's results, relative to their square."""
    moments = moments.astype("float32")
    error, result = (float(np.sum(x * (moments @ x))) for x in (rounded - kernel, kernel))
    return error / result if result > 0 else 0.0


def _in_8_bits(losses: dict[str, float], sizes: dict[str, int]) -> frozenset[str]:
    """The weights with the largest loss for each number, up to a share of all numbers."""
    rest, chosen = SHARE_IN_8_BITS * sum(sizes.values()), []
    for name in sorted(losses, key=lambda name: -losses[name] / sizes[name]):
        if losses[name] > SMALLEST_LOSS and sizes[name] <= rest:
            rest -= sizes[name]
            chosen.append(name)
    return frozenset(chosen)


def token_count(batches: Iterable[Feed]) -> int:
    """The number of tokens of calibration, without padding."""
    return sum(int(_mask(batch).sum()) for batch in batches)


def check_tokens(batches: Iterable[Feed]) -> None:
    """Raises a ConfigError for a calibration without tokens."""
    if not token_count(batches):
        raise ConfigError(
            "calibration has no tokens: its attention_mask is 0 everywhere, expected 1 at each token that is "
            "not padding. Pass the mask of the ids, or none."
        )


def _parts(sizes: dict[Names, int]) -> Iterator[list[Names]]:
    """Inputs whose moments fit into memory together."""
    part: list[Names] = []
    numbers = 0
    for inputs, size in sizes.items():
        if part and numbers + size**2 > NUMBERS:
            yield part
            part, numbers = [], 0
        part.append(inputs)
        numbers += size**2
    if part:
        yield part


@dataclasses.dataclass(frozen=True)
class _Moments:
    """The second moments of a value: sums over tokens, and their number."""

    sums: np.ndarray
    tokens: int

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(self.sums + other.sums, self.tokens + other.tokens)

    def shrunk(self) -> np.ndarray:
        """The sums, closer to a diagonal the fewer tokens there are for each input.

        What a few texts have in common is chance, and no error must be spread by it: without this, stories15M
        with 256 tokens is worse than if each block is rounded alone.
        """
        share = self.tokens / (self.tokens + len(self.sums))
        sums = share * self.sums
        np.fill_diagonal(sums, np.diagonal(self.sums))
        return sums


def _moments(path: Path, names: Sequence[str], batches: Iterable[Feed]) -> dict[str, _Moments]:
    """The moments of values over all tokens that are not padding, by name."""
    model = load_first_call(path)
    values = {value.name: value for node in model.graph for value in node.outputs}
    moments: dict[str, _Moments] = {}
    with Probe(model, [values[name] for name in names]) as probe:
        for batch in batches:
            for rows in parts_of(batch):
                for name, x in zip(names, probe.run(rows), strict=True):
                    x = _tokens(x, _mask(rows))
                    own = _Moments((x.T @ x).astype("float64"), len(x))
                    moments[name] = moments[name] + own if name in moments else own
    for name, moment in moments.items():
        if not np.isfinite(moment.sums).all():
            raise ExportError(
                f"The fp32 graph computes NaN or infinity in {name!r} for the calibration data. Remove the "
                "batches for which it does."
            )
    return moments


def parts_of(batch: Feed) -> Iterator[Feed]:
    """A batch of a decoder in parts of TOKENS at most, or of one row."""
    count, length = batch[contract.INPUT_IDS].shape
    step = max(1, TOKENS // length)
    for start in range(0, count, step):
        yield {name: x[start : start + step] for name, x in batch.items()}


def _mask(batch: Feed) -> np.ndarray:
    """Whether each id is a token, and not padding."""
    ids = batch[contract.INPUT_IDS]
    mask = batch.get(contract.ATTENTION_MASK)
    return np.ones(ids.shape, bool) if mask is None else mask[:, -ids.shape[1] :] != 0


def _tokens(x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The rows of a value that are not padding.

    Args:
        x: (batch, sequence, width), or as in mixtures of experts (batch * sequence, width). A sequence may be
            the last tokens only. Other values have no padding.
        mask: (batch, sequence).
    """
    width = x.shape[-1]
    if x.ndim == 3 and len(x) == len(mask):
        mask = mask[:, -x.shape[1] :]
    x = x.reshape(-1, width)
    return x[mask.reshape(-1)] if len(x) == mask.size else x
