"""A report of one input of an exported folder: its prediction and its attention, as one HTML page."""

from __future__ import annotations

import dataclasses
import html
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx.atomic_write import write_file
from keras_tx.errors import ConfigError, InputError
from keras_tx.inspect.attention import PatchGrid, mean_attention_distance, pooled_map, rollout
from keras_tx.inspect.figures.images import overlay_map
from keras_tx.inspect.html_elements import (
    ASSETS,
    Section,
    answers_html,
    distance_chart,
    heat_map,
    html_document,
    text_html,
    tokens_html,
)
from keras_tx.inspect.html_overlay import (
    MAX_WEIGHTS,
    embedded_photograph,
    jpeg,
    overlay_fragment,
    query_maps,
)
from keras_tx.inspect.html_page import attention_fragment, attention_parts, check_page_path
from keras_tx.inspect.inspector import Inspector, inspect
from keras_tx.runtime import TextToTextGenerator, load
from keras_tx.runtime.tasks.base import RunOptions

BODY = """\
<h1>{title}</h1>
<p class="report-faint">{subtitle}</p>
{sections}
<footer>Made by keras-tx {version}. Attention weights show from which tokens a layer collects
information, not how much each of them contributes to the answer.</footer>"""
TOP_K = 10
NEXT = "next tokens"
HEAT_TOKENS = 60  # of a heat map's side


def write_report(
    folder: str | os.PathLike[str],
    input: Any,
    path: str | os.PathLike[str],
    *,
    pair: str | None = None,
    question: str | None = None,
    precision: str | None = None,
) -> Path:
    """Writes a page about one input of an exported folder: its prediction and its attention.

    The page of an image has the scores, an interactive figure of attention over the image, attention rollout
    and attention distance. That of a text has the answer, the tokens and an interactive figure of attention;
    of a GPT also the next tokens, and of an encoder-decoder the generated target and the cross-attention. The
    page is a single file without network requests. It is written atomically.

    Args:
        folder: path of a folder that `export_onnx` wrote.
        input: an image (path, Pillow image or array), or a text.
        path: of the file to write; it ends in .html.
        pair: the second text, for models of text pairs.
        question: the question, for question answering; `input` is the text.
        precision: a precision of the folder, such as "int8"; by default fp32, or the only one.

    Returns:
        The path.

    Raises:
        ConfigError: if the file cannot be written.
        FolderError: if the folder is damaged, or its graph has no attention nodes.
        InputError: if the folder does not accept images or texts, or `pair` or `question` does not fit.
        ImageError, TextError: if the input cannot be read.

    Example:

    >>> from keras_tx.inspect import write_report
    >>> write_report("flowers", "rose.jpg", "rose.html")  # doctest: +SKIP
    """
    check_page_path(path)
    options = {"pair": pair, "question": question}
    page = _page(folder, input, {name: text for name, text in options.items() if text is not None}, precision)
    write_file(Path(path), page.encode("utf-8"), ConfigError)
    return Path(path)


def _page(folder: Any, input: Any, options: dict[str, str], precision: str | None) -> str:
    from keras_tx import __version__

    inspector = inspect(folder, precision=precision)
    with load(folder, provider="cpu", precision=precision) as model:
        task = model.task
        _check_options(str(folder), task, options)
        if task.inputs == "image":
            sections = _image_sections(model, inspector, input)
        elif isinstance(model, TextToTextGenerator):
            sections = _encoder_decoder_sections(model, inspector, input)
        else:
            sections = _text_sections(model, inspector, input, options)
        about = f"{task.name} in {model.precision}, run with onnxruntime"
    name = Path(folder).resolve().name
    shown = f"image {Path(input).name}" if isinstance(input, str | os.PathLike) else "image"
    subject = shown if task.inputs == "image" else f"“{_shortened(str(input), 70)}”"
    title = f"{name}: {subject}"
    body = BODY.format(
        title=html.escape(title),
        subtitle=html.escape(about),
        sections="\n".join(map(str, sections)),
        version=__version__,
    )
    return html_document(title, ASSETS.joinpath("report.css").read_text("utf-8"), body)


def _check_options(folder: str, task: Any, options: Mapping[str, Any]) -> None:
    """Raises an InputError if a report of this task is not supported, or needs other options."""
    if task.inputs == "arrays":
        raise InputError(
            f"{folder} accepts arrays, and a report needs an image or a text. From Python, "
            "keras_tx.inspect.inspect(folder) accepts a dict of arrays."
        )
    if "choices" in task.required:
        raise InputError(
            f"Reports do not support the task {task.name!r} of {folder}, whose texts have several choices. "
            "Use keras_tx.runtime.load."
        )
    for name in ("pair", "question"):
        if name in task.required and name not in options:
            raise InputError(
                f"{folder} has the task {task.name!r}, which needs a {name}. Pass {name} as well."
            )
        if name in options and name not in (*task.options, *task.required):
            raise InputError(f"{folder} does not support {name} for the task {task.name!r}. Omit it.")


def _image_sections(model: Any, inspector: Inspector, image: Any) -> list[Section]:
    grid = inspector.grid(image)  # raises an InputError for a text
    (answers,) = model.task.answer(model, [image], RunOptions(TOP_K))
    layers, means, distances = _attention(inspector, image, grid)
    photograph = embedded_photograph(image)
    diagonal = math.hypot(model.transform.height, model.transform.width)
    sides = f'width="{photograph.shape[1]}" height="{photograph.shape[0]}"'
    overview = (
        f'<div class="report-overview"><img src="{jpeg(photograph)}" alt="the image" {sides}>'
        f"<div>{answers_html(answers)}</div></div>"
    )
    maps = [
        (
            overlay_map(
                photograph, pooled_map(rollout(means, residual=residual)[0], grid), covered=grid.covered
            ),
            "With residual connections: the mean of attention and identity (Abnar and Zuidema, 2020)."
            if residual
            else "Without residual connections: attention only.",
        )
        for residual in (True, False)
    ]
    reached = "the class token" if grid.has_class_token else "the mean of the patches"
    figures = "\n".join(
        f'<figure><img src="{jpeg(overlay)}" alt="{text}" {sides}><figcaption>{text}</figcaption></figure>'
        for overlay, text in maps
    )
    return [
        Section("Prediction", "", overview),
        Section(
            "Attention",
            _about_patches(grid),
            overlay_fragment(photograph, layers, grid),
        ),
        Section(
            "Attention rollout",
            "The product of the attention matrices of all layers. It estimates how much each patch "
            f"contributes to {reached} of the last layer, by attention alone. Each map has its own color "
            "scale, from 0 (dark) to its largest value (bright).",
            f'<div class="report-maps">{figures}</div>',
        ),
        Section(
            "Attention distance",
            "The mean distance between a patch and the patches that it attends to, weighted by attention. "
            "Heads with small distances are local, as convolutions are.",
            distance_chart(distances, diagonal / 2),
        ),
    ]


def _about_patches(grid: PatchGrid) -> str:
    patches = f"{grid.rows} x {grid.columns} patches"
    if grid.covered != (1.0, 1.0):
        patches += ", without the pixels at the right or bottom that do not fill a patch"
    others = ", and so does the class token" if grid.has_class_token else ""
    return f"The image is {patches}. Each patch attends to the others{others}."


def _attention(
    inspector: Inspector, image: Any, grid: PatchGrid
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """The maps, the mean over the heads and the attention distances of all layers, of one layer at a time."""
    count, patch = len(inspector.layer_names()), inspector.reader.patch_size()
    maps, means, distances = [], [], []
    for weights in inspector.attention_layers(image):
        maps.append(query_maps(weights[0], grid, complete=count * weights.size <= MAX_WEIGHTS))
        means.append(weights.mean(axis=1, keepdims=True))
        distances.append(mean_attention_distance(weights, (grid.rows, grid.columns), patch, grid.prefix))
    return maps, means, np.stack(distances)


def _text_sections(model: Any, inspector: Inspector, text: str, options: Mapping[str, str]) -> list[Section]:
    inspector.tokens(text)  # raises an InputError for an image
    if model.task.inputs == "prompt":
        answers = {NEXT: _next_tokens(model, inspector, text)}
    else:
        (answers,) = model.task.answer(
            model, [text], RunOptions(TOP_K, options.get("pair"), options.get("question"))
        )
    (part,) = attention_parts(inspector, _tensors(model, text, options))
    return [
        *_answer_sections({"text": text, **options}, answers),
        Section("Tokens", f"The model reads {len(part.queries)} tokens.", tokens_html(part.queries)),
        Section("Attention", "", attention_fragment(part)),
    ]


def _next_tokens(model: Any, inspector: Inspector, text: str) -> list[dict[str, Any]]:
    """The most probable tokens; a part of a character is shown as its bytes."""
    texts = inspector.reader.adapter.token_texts()
    tokens = [dataclasses.asdict(token) for token in model.next(text, top_k=TOP_K)]
    for token in tokens:
        if "\ufffd" in (token["text"] or ""):
            token["text"] = texts(token["id"])
    return tokens


def _tensors(model: Any, text: str, options: Mapping[str, str]) -> Any:
    """The text itself, or the tensors of two texts."""
    if "question" in options:
        return model.transform([options["question"]], [text])
    return model.transform([text], [options["pair"]]) if "pair" in options else text


def _answer_sections(texts: Mapping[str, str], answers: Mapping[str, Any]) -> list[Section]:
    inputs = "\n".join(text_html(name, text) for name, text in texts.items())
    answers = {name: value for name, value in answers.items() if name not in texts}
    heading = "Next tokens" if NEXT in answers else "Answer"
    return [Section("Input", "", inputs), Section(heading, "", answers_html(answers))]


def _encoder_decoder_sections(model: TextToTextGenerator, inspector: Inspector, source: str) -> list[Section]:
    inspector.tokens(source)  # raises an InputError for an image
    generated = model.generate(source)
    targets = np.array([generated.ids[:-1]], "int64")  # the decoder does not read the last token
    encoder, decoder, cross = attention_parts(inspector, source, targets=targets)
    answers = {"target": generated.text}
    sections = _answer_sections({"source": source}, answers)
    if max(len(cross.queries), len(cross.key_tokens)) <= HEAT_TOKENS:
        about = (
            "The mean over all layers and heads, in percent. Each row is the token from which the decoder "
            "predicts the next one. The columns are the tokens of the source."
        )
        mean = np.mean([layer.mean(axis=0) for layer in cross.attentions], axis=0)
        sections.append(Section("Cross-attention", about, heat_map(mean, cross.queries, cross.key_tokens)))
    figure = attention_fragment([cross, encoder, decoder])
    return [*sections, Section("Attention of each layer and head", "", figure)]


def _shortened(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"
