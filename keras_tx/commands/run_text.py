"""What `keras-tx run` does with texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keras_tx import contract
from keras_tx.commands.terminal import printable
from keras_tx.errors import InputError


def takes_text(model: Any) -> bool:
    return hasattr(model, "run_rows")


def check_options(model: Any, pair: str | None, question: str | None, whole: bool) -> None:
    """Raises an InputError for an option that the task does not use, or lacks."""
    if whole and not takes_text(model):
        raise InputError(f"{model.folder.path} accepts no texts. Leave --whole-files out.")
    asks = hasattr(model, "answer")
    if asks and question is None:
        raise InputError(f"{model.folder.path} answers questions: add --question TEXT.")
    if question is not None and not asks:
        raise InputError(f"{model.folder.path} answers no questions. Leave --question out.")
    if pair is not None and not hasattr(model, "classify"):
        raise InputError(f"{model.folder.path} takes no pairs of texts. Leave --pair out.")


def answers(
    model: Any, texts: list[str], top_k: int, pair: str | None, question: str | None
) -> list[dict[str, Any]]:
    """The answers for texts, as --json prints them."""
    second: dict[str, Any] = {}
    if hasattr(model, "classify") and (pair is not None or not hasattr(model, "fill")):
        second = {} if pair is None else {"pair": pair}
        kind = "numbers" if model.folder.problem_type == contract.REGRESSION else "predictions"
        results = model.classify(texts, None if pair is None else [pair] * len(texts), top_k=top_k)
    elif hasattr(model, "tag"):
        kind, results = "entities", model.tag(texts)
    elif hasattr(model, "answer"):
        second, kind = {"question": question}, "answers"
        results = model.answer([question] * len(texts), texts, top_k=top_k)
    elif hasattr(model, "fill"):
        kind, results = "tokens", model.fill(texts, top_k=top_k)
    else:
        vectors = model.embed(texts)
        return [
            {"text": text, "shape": list(vector.shape), "embedding": vector.tolist()}
            for text, vector in zip(texts, vectors, strict=True)
        ]
    return [{"text": text, **second, kind: result} for text, result in zip(texts, results, strict=True)]


def lines(answer: dict[str, Any]) -> Iterator[str]:
    """What texts have and images have not, as lines for a terminal."""
    for found in answer.get("numbers", ()):
        yield f"  {printable(found['label'])}  {found['score']:.4g}"
    if "entities" in answer:
        for found in answer["entities"] or [None]:
            yield (
                "  no entities"
                if found is None
                else (
                    f"  {printable(found['label'])}  {found['score']:6.1%}  {found['start']}-{found['end']}  "
                    f"{printable(found['text'])}"
                )
            )
    for found in answer.get("answers", ()):
        said = printable(found["answer"]) or "(no answer)"
        yield f"  {found['score']:6.1%}  {found['start']}-{found['end']}  {said}"
    masks = answer.get("tokens", [])
    for tokens in masks if masks and isinstance(masks[0], list) else [masks]:
        for found in tokens:
            yield f"  {found['score']:6.1%}  {printable(found['token'])}  {printable(found['text'])}"
