"""Text that the graphs of an encoder-decoder generate together, compared with Keras token for token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ExportError
from keras_tx.runtime.example_inputs import Use, draw, first_call, next_call
from keras_tx.runtime.session import Session
from keras_tx_onnx import tolerances
from keras_tx_onnx.interfaces.base import Feed, Interface
from keras_tx_onnx.interfaces.encoder_decoder import SOURCE
from keras_tx_onnx.verifying.cases import run_keras

MASKS = ("all", "right", "left", "holes", "one token")  # of the sources
TOKENS = 8  # of a source and of a generated text


def compare_generation(
    interface: Interface, paths: Sequence[Path], adapters: Sequence[Feed | None]
) -> contract.Parity:
    """Compares a greedy generation of the graphs with Keras's logits for the same tokens.

    Args:
        interface: of the encoder-decoder.
        paths: the graphs of its encoder and its decoder.
        adapters: for each graph, values of optional inputs for every run, or None.

    Raises:
        ExportError: if the logits differ, or if Keras prefers another token by more than the tolerance.
    """
    model, precision, tolerance = interface.model, interface.precision, interface.tolerance
    source = _sources(model.config)
    with _session(paths[0], adapters[0]) as encoder, _session(paths[1], adapters[1]) as decoder:
        tokens, logits = _generate(source, model, encoder, decoder)
    inputs = {
        **{name: x.astype("int32") for name, x in source.items()},
        contract.DECODER_INPUT_IDS: tokens[:, :-1].astype("int32"),
        contract.DECODER_ATTENTION_MASK: np.ones_like(tokens[:, :-1], "int32"),
    }
    (expected,) = run_keras(model, [inputs[tensor.name.split(":")[0]] for tensor in model.inputs])
    difference = tolerances.difference(expected, logits)
    scale = max(float(np.abs(expected).max()), 1e-6)
    chosen = np.take_along_axis(expected, tokens[:, 1:, None], axis=-1)[..., 0]
    lost = float((expected.max(axis=-1) - chosen).max()) / scale
    case = f"{tokens.shape[1] - 1} tokens, batch {len(tokens)}, greedy"
    if difference > tolerance or lost > 2 * tolerance:
        raise ExportError(
            "The encoder's and the decoder's graph equal Keras alone, but not together: the logits of "
            f"generated text differ by {difference:.1e} of their scale, and those of the chosen tokens by "
            f"{lost:.1e} ({precision} tolerance {tolerance:.0e})."
        )
    return contract.Parity(difference, tolerance, (case,))


def _sources(config: Any) -> Feed:
    specs = [
        contract.TensorSpec(name, "int64", SOURCE) for name in (contract.INPUT_IDS, contract.ATTENTION_MASK)
    ]
    sizes = {contract.BATCH_AXIS: len(MASKS), contract.SOURCE_AXIS: min(TOKENS, config.max_length)}
    uses = {contract.INPUT_IDS: Use(config.vocabulary_size)}
    return draw(specs, uses, sizes, MASKS, np.random.default_rng(0))


def _generate(source: Feed, model: Any, encoder: Session, decoder: Session) -> tuple[np.ndarray, np.ndarray]:
    """The tokens (batch, 1 + count) behind the start token, and the logits that chose them."""
    hidden = encoder.run(source)[contract.LAST_HIDDEN_STATE]
    tokens, logits = [np.full((len(hidden), 1), model.start_id, "int64")], []
    feed = first_call(decoder.inputs, tokens[0], source[contract.ATTENTION_MASK], hidden)
    for _ in range(min(TOKENS, model.config.max_length)):
        outputs = decoder.run(feed)
        logits.append(outputs[contract.LOGITS])
        tokens.append(logits[-1].argmax(axis=-1))
        feed = next_call(feed, outputs, tokens[-1])
    return np.concatenate(tokens, axis=1), np.concatenate(logits, axis=1)


@contextmanager
def _session(path: Path, adapter: Feed | None) -> Iterator[Session]:
    with Session(path, provider="cpu") as base:
        yield base if adapter is None else base.with_adapter(adapter)
