"""Optimum's ORTModel classes, with the image processor and tokenizer that transformers finds there."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from comparing import Comparison, main
from optimum.onnxruntime import (
    ORTModelForCausalLM,
    ORTModelForCustomTasks,
    ORTModelForFeatureExtraction,
    ORTModelForImageClassification,
    ORTModelForMaskedLM,
    ORTModelForQuestionAnswering,
    ORTModelForSeq2SeqLM,
    ORTModelForSequenceClassification,
    ORTModelForTokenClassification,
)
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, pipeline

CLASSES = {
    "text-classification": ORTModelForSequenceClassification,
    "token-classification": ORTModelForTokenClassification,
    "question-answering": ORTModelForQuestionAnswering,
    "fill-mask": ORTModelForMaskedLM,
    "feature-extraction": ORTModelForFeatureExtraction,
    None: ORTModelForCustomTasks,  # masked tokens and next sentence together
}


def chosen(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """What names the folder, and another file of it than the fp32 one."""
    if case["precision"] == "fp32":
        return {"model_id": folder}
    return {"model_id": folder, "subfolder": "onnx", "file_name": Path(case["file"]).name}


def pictures(folder: Path, case: dict[str, Any], comparison: Comparison) -> None:
    processor = AutoImageProcessor.from_pretrained(folder, use_fast=False)  # the fast one wants torchvision
    images: list[Any] = [Image.open(folder.parent / picture) for picture in case["pictures"]]
    grey = images[0].mode == "L"
    if grey:  # transformers takes grey pictures only as arrays with a channel axis
        images = [np.asarray(image)[..., None] for image in images]
    inputs = processor(images, return_tensors="np")
    if case["output"] == "image_embeds":  # its class for features wants a last_hidden_state
        values = ORTModelForCustomTasks.from_pretrained(**chosen(folder, case))(**inputs)["image_embeds"]
    elif case["output"] == "last_hidden_state":
        values = ORTModelForFeatureExtraction.from_pretrained(**chosen(folder, case))(
            **inputs
        ).last_hidden_state
    else:
        model = ORTModelForImageClassification.from_pretrained(**chosen(folder, case))
        values = model(**inputs).logits
        if case["precision"] == "fp32" and not grey:  # its pipeline makes every picture colour
            classify = pipeline("image-classification", model=model, image_processor=processor)
            answers = classify(images, top_k=len(case["labels"]))
            for got, expected in zip(answers, case["scores"], strict=True):
                comparison.scores("pipeline", got, expected)
    comparison.close("output", values, case["values"])


def texts(folder: Path, case: dict[str, Any], comparison: Comparison) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(case["texts"], case["pairs"], padding=True, return_tensors="np")
    comparison.same("batch", {name: x.tolist() for name, x in inputs.items()}, case["batch"])
    one, two = case["long"]
    long = {"text": tokenizer(one, truncation=True), "pair": tokenizer(one, two, truncation=True)}
    comparison.same("long texts", {name: x["input_ids"] for name, x in long.items()}, case["long_ids"])
    model = CLASSES[case["task"]].from_pretrained(**chosen(folder, case))
    outputs = model(**inputs)
    for name, expected in case["outputs"].items():
        if name in outputs:
            comparison.close(name, outputs[name], expected)
    known = {"last_hidden_state"} if case["task"] == "feature-extraction" else set(case["outputs"])
    comparison.same("missing outputs", sorted(known - set(outputs)), [])
    if "sentence_embedding" in case["outputs"]:
        every = ORTModelForCustomTasks.from_pretrained(**chosen(folder, case))(**inputs)
        comparison.close(
            "sentence_embedding", every["sentence_embedding"], case["outputs"]["sentence_embedding"]
        )
    # Its pipelines ask one text at a time, which rounded by the range of a batch is another answer.
    if case["precision"] == "fp32" and case["task"] not in ("feature-extraction", None):
        ask = pipeline(case["task"], model=model, tokenizer=tokenizer)
        PIPELINES[case["task"]](ask, case, comparison)


def classified(ask: Any, case: dict[str, Any], comparison: Comparison) -> None:
    texts = case["texts"]
    if case["pairs"]:
        texts = [{"text": a, "text_pair": b} for a, b in zip(texts, case["pairs"], strict=True)]
    for got, expected in zip(ask(texts, top_k=None), case["answers"], strict=True):
        comparison.scores("pipeline", got, expected)


def tagged(ask: Any, case: dict[str, Any], comparison: Comparison) -> None:
    for got, expected in zip(ask(case["texts"], ignore_labels=[]), case["answers"], strict=True):
        comparison.scores("pipeline", [{"label": x["entity"], "score": x["score"]} for x in got], expected)


# Ours answers with tokens, and says so when there is no answer.
OPTIONS = {"max_answer_len": 30, "handle_impossible_answer": True, "align_to_words": False}


def answered(ask: Any, case: dict[str, Any], comparison: Comparison) -> None:
    for question, text, expected in zip(case["texts"], case["pairs"], case["answers"], strict=True):
        got = ask(question=question, context=text, **OPTIONS)
        for name in ("answer", "start", "end"):
            comparison.same(f"pipeline: {name}", got[name], expected[name])
        comparison.close("pipeline: score", got["score"], expected["score"])


def filled(ask: Any, case: dict[str, Any], comparison: Comparison) -> None:
    for text, expected in zip(case["texts"], case["answers"], strict=True):
        got = ask(text, top_k=3)
        comparison.same("pipeline: ids", [x["token"] for x in got], [x["id"] for x in expected])
        comparison.close("pipeline: scores", [x["score"] for x in got], [x["score"] for x in expected])
        comparison.same("pipeline: texts", [x["sequence"] for x in got], [x["text"] for x in expected])


PIPELINES = {
    "text-classification": classified,
    "token-classification": tagged,
    "question-answering": answered,
    "fill-mask": filled,
}


def decoders(folder: Path, case: dict[str, Any], comparison: Comparison) -> None:
    model = ORTModelForCausalLM.from_pretrained(**chosen(folder, case))
    options = {"max_new_tokens": case["new_tokens"], "do_sample": False}
    for ids, expected in zip(case["ids"], case["new_ids"], strict=True):
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=int)}
        if ids == case["ids"][0]:
            comparison.close("logits", model(**inputs).logits.detach().numpy(), case["logits"])
        comparison.same("tokens", model.generate(**inputs, **options)[0, len(ids) :].tolist(), expected)
    if case["prompts"] is None:
        return
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not case["together"]:
        return
    batch = tokenizer(case["prompts"], padding=True, return_tensors="pt")
    ids = [
        row[mask == 1].tolist() for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    comparison.same("ids", ids, case["ids"])
    comparison.same("padding", batch["attention_mask"][0, 0].item(), 0)
    made = model.generate(**batch, **options)[:, batch["input_ids"].shape[1] :]
    for row, expected in zip(made.tolist(), case["new_ids"], strict=True):
        comparison.same("tokens of a batch", row[: len(expected)], expected)
    ask = pipeline("text-generation", model=model, tokenizer=tokenizer)
    answers = ask(case["prompts"], return_full_text=False, **options)
    texts, made = case["new_texts"], [got[0]["generated_text"] for got in answers]
    if case["byte_fallback"]:  # it writes half characters in another way, and may keep a first space
        texts = tokenizer.batch_decode(case["new_ids"], skip_special_tokens=True)
        made, texts = ([text.removeprefix(" ") for text in rows] for rows in (made, texts))
    comparison.same("pipeline", made, texts)


def encoder_decoders(folder: Path, case: dict[str, Any], comparison: Comparison) -> None:
    names: dict[str, Any] = {}
    if case["precision"] != "fp32":
        encoder, decoder = (Path(case[name]).name for name in ("encoder_file", "file"))
        # Without the third name it looks for a file with that name's default.
        names = {
            "subfolder": "onnx",
            "encoder_file_name": encoder,
            "decoder_file_name": decoder,
            "decoder_with_past_file_name": decoder,
        }
    model = ORTModelForSeq2SeqLM.from_pretrained(folder, **names)
    options = {"max_new_tokens": case["new_tokens"], "do_sample": False}
    for ids, greedy, beams in zip(case["ids"], case["new_ids"], case["beam_ids"], strict=True):
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=int)}
        if ids == case["ids"][0]:
            start = torch.tensor([[case["start_id"]]])
            outputs = model(**inputs, decoder_input_ids=start)
            comparison.close("logits", outputs.logits.detach().numpy(), case["logits"])
        comparison.same("tokens", model.generate(**inputs, **options)[0, 1:].tolist(), greedy)
        searched = model.generate(**inputs, num_beams=case["beams"], **options)[0, 1:].tolist()
        comparison.same("tokens of beams", searched, beams)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not case["together"]:
        return
    batch = tokenizer(case["texts"], padding=True, return_tensors="pt")
    batch.pop("token_type_ids", None)
    rows = zip(batch["input_ids"], batch["attention_mask"], strict=True)
    comparison.same("ids", [row[mask == 1].tolist() for row, mask in rows], case["ids"])
    for count, name in ((1, "new_ids"), (case["beams"], "beam_ids")):
        made = model.generate(**batch, num_beams=count, **options)[:, 1:].tolist()
        cut = [row[: len(expected)] for row, expected in zip(made, case[name], strict=True)]
        comparison.same(f"tokens of a batch, {count} beams", cut, case[name])
    for task, key in (("text2text-generation", "generated_text"), ("translation", "translation_text")):
        ask = pipeline(task, model=model, tokenizer=tokenizer)
        answers = ask(case["texts"], num_beams=1, **options)
        comparison.same(task, [got[key] for got in answers], case["new_texts"])


if __name__ == "__main__":
    names = ("optimum-onnx", "transformers", "onnxruntime")
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    asks = {
        "pictures": pictures,
        "texts": texts,
        "decoders": decoders,
        "encoder_decoders": encoder_decoders,
    }
    main("Optimum", f"{version('optimum')} ({packages})", asks)
