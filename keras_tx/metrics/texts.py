"""Metrics of generated texts. BLEU and chrF are computed by sacrebleu (pip install "keras-tx[metrics]")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_tx.errors import ConfigError, TextError, install_remedy, nearest

Reference = str | Sequence[str]


def exact_match(predictions: Sequence[str], references: Sequence[Reference]) -> float:
    """Computes the fraction of texts that equal their reference, apart from spaces at both ends.

    Args:
        predictions: the generated texts.
        references: for each of them, the expected text, or a list of several.

    Returns:
        A number from 0 to 1.

    Raises:
        TextError: the lists are empty, differ in length, or contain something else than texts.

    Example:

    >>> exact_match(["I eat it", "he sleeps"], ["I eat it", ["she sleeps", "she is asleep"]])
    0.5
    """
    expected = _references(predictions, references)
    matches = [
        text.strip() in [reference.strip() for reference in several]
        for text, several in zip(predictions, expected, strict=True)
    ]
    return sum(matches) / len(matches)


def bleu(predictions: Sequence[str], references: Sequence[Reference], *, tokenize: str = "13a") -> float:
    """Computes BLEU (Papineni et al., 2002) of a corpus, as sacrebleu does.

    It counts n-grams of up to four words, so it is 0 if all texts have fewer words; see `chrf`.

    Args:
        predictions: the generated texts, detokenized.
        references: for each of them, the expected text, or a list of several.
        tokenize: sacrebleu's tokenization: "13a", or "zh", "ja-mecab" or "char" for languages without spaces.

    Returns:
        A number from 0 to 100.

    Raises:
        ConfigError: `tokenize` is unknown.
        ModuleNotFoundError: sacrebleu is not installed.
        TextError: as for `exact_match`.

    Example:

    >>> round(bleu(["the cat sat on the mat"], ["the cat sat on a mat"]), 2)
    53.73
    """
    expected = _references(predictions, references)
    metric = import_sacrebleu().BLEU
    if tokenize not in metric.TOKENIZERS:
        raise ConfigError(f"tokenize={tokenize!r} is unknown. {nearest(str(tokenize), metric.TOKENIZERS)}")
    return metric(tokenize=tokenize).corpus_score(list(predictions), _streams(expected)).score


def chrf(predictions: Sequence[str], references: Sequence[Reference]) -> float:
    """Computes chrF (Popović, 2015) of a corpus, the F-score of character n-grams, as sacrebleu does.

    Unlike BLEU, it does not depend on a tokenization, and it is meaningful for short texts.

    Args:
        predictions: the generated texts, detokenized.
        references: for each of them, the expected text, or a list of several.

    Returns:
        A number from 0 to 100.

    Raises:
        ModuleNotFoundError: sacrebleu is not installed.
        TextError: as for `exact_match`.

    Example:

    >>> round(chrf(["the cat sat on the mat"], ["the cat sat on a mat"]), 2)
    72.08
    """
    expected = _references(predictions, references)
    return import_sacrebleu().CHRF().corpus_score(list(predictions), _streams(expected)).score


def import_sacrebleu() -> Any:
    """Returns the module sacrebleu; raises a ModuleNotFoundError with the command that installs it."""
    try:
        import sacrebleu
    except ModuleNotFoundError as error:
        message = f"BLEU and chrF need {error.name}, which is not installed. {install_remedy(error)}"
        raise ModuleNotFoundError(message, name=error.name) from error
    return sacrebleu


def _references(predictions: Sequence[str], references: Sequence[Reference]) -> list[list[str]]:
    """The references of each text, as lists."""
    if isinstance(predictions, str) or isinstance(references, str):
        raise TextError("predictions or references is a text, expected lists of texts.")
    if not len(predictions) == len(references) > 0:
        raise TextError(
            f"There are {len(predictions)} predictions and {len(references)} references, expected as many of "
            "each, at least one."
        )
    several = [[item] if isinstance(item, str) else list(item) for item in references]
    for index, (text, expected) in enumerate(zip(predictions, several, strict=True)):
        if not isinstance(text, str):
            raise TextError(f"predictions[{index}] is {text!r:.60}, expected a text.")
        if not expected or not all(isinstance(item, str) for item in expected):
            raise TextError(f"references[{index}] is {references[index]!r:.60}, expected a text or several.")
    return several


def _streams(references: list[list[str]]) -> list[list[str | None]]:
    """The first reference of each text, the second ones, and so on; None where a text has fewer."""
    count = max(map(len, references))
    return [[item[place] if place < len(item) else None for item in references] for place in range(count)]
