"""What `keras-tx run` does with texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keras_tx import contract
from keras_tx.commands.terminal import printable
from keras_tx.errors import InputError


def takes_text(model: Any) -> bool:
    return hasattr(model, "run_rows")


def check_options(model: Any, pair: str | None, question: str | None) -> None:
    """Refuses an option that the task has no use for."""
    asks = hasattr(model, "answer")
    if asks and question is None:
        raise InputError(f"{model.folder.path} answers questions: add --question TEXT.")
    if question is not None and not asks:
        raise InputError(f"{model.folder.path} answers no questions. Leave --question out.")
    if pair is not None and not hasattr(model, "classify"):
        raise InputError(f"{model.folder.path} takes no pairs of texts. Leave --pair out.")


def answer(model: Any, text: str, top_k: int, pair: str | None, question: str | None) -> dict[str, Any]:
    """The answer for one text, as --json prints it."""
    if hasattr(model, "classify"):
        found = {"text": text} if pair is None else {"text": text, "pair": pair}
        kind = "numbers" if model.folder.problem_type == contract.REGRESSION else "predictions"
        return {**found, kind: model.classify(text, pair, top_k=top_k)}
    if hasattr(model, "tag"):
        return {"text": text, "entities": model.tag(text)}
    if hasattr(model, "answer"):
        return {"text": text, "question": question, "answers": model.answer(question, text, top_k=top_k)}
    if hasattr(model, "fill"):
        return {"text": text, "tokens": model.fill(text, top_k=top_k)}
    embedding = model.embed(text)
    return {"text": text, "shape": list(embedding.shape), "embedding": embedding.tolist()}


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
