"""Folders of encoder-decoders like T5, Marian and BART, and the targets that our runtime generates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

import keras_tx
from keras_tx import contract
from keras_tx.processing import TextTransform
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.clients import precisions
from tests.clients.decoder_folders import drawn
from tests.clients.text_folders import CORPUS

# Of different lengths, so that a batch has padding.
SOURCES = ["The cat lives in London.", "Ada Lovelace, naïve friends: 50 % (and more)", "good"]
NEW_TOKENS, BEAMS = 12, 4
KIND = "encoder_decoders"
DTYPES = {"tensor(float)": "float32", "tensor(float16)": "float16"}
SEEDS = {"ladder_marian": 8}  # with which the targets are no repetition of one token


def unigram(*special: str, last: str | None = None) -> TextTransform:
    """A Unigram tokenizer as those of SentencePiece, of words and characters; its rows end with </s>."""
    words = sorted({f"▁{word}" for text in CORPUS for word in text.split()})
    characters = sorted({"▁", *"".join(CORPUS)} - {" "})
    scores = {**dict.fromkeys(special, 0.0), **dict.fromkeys(characters, -3.0), **dict.fromkeys(words, -2.0)}
    if last is not None:
        scores[last] = 0.0
    pieces = list(scores)
    tokenizer = Tokenizer(models.Unigram(list(scores.items()), unk_id=pieces.index("<unk>")))
    tokenizer.add_special_tokens(
        [AddedToken(one, special=True) for one in (*special, *([last] if last else []))]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", pieces.index("</s>"))]
    )
    return TextTransform(
        tokenizer.to_str(), segments=False, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


T5_TEXTS = unigram("<pad>", "</s>", "<unk>")
MARIAN_TEXTS = unigram("</s>", "<unk>", last="<pad>")
MARIAN = {
    "positions": "sine-cosine-halves",
    "activation": "silu",
    "logits_bias": True,
    "norm_epsilon": 1e-5,
}
BART = {
    "positions": "learned",
    "scale_embedding": False,
    "embedding_norm": True,
    "activation": "gelu",
    "logits_bias": True,
    "norm_epsilon": 1e-5,
    "start_id": 1,
}

# The factory, the variant's overrides, and the tokenizer.
CASES: dict[str, tuple[Any, dict[str, Any], TextTransform]] = {
    "t5": (keras_tx.t5, {}, T5_TEXTS),
    # Its heads together are not as wide as the model, as in FLAN-T5-small.
    "t5_geglu": (
        keras_tx.t5,
        {"num_heads": 3, "head_dim": 8, "activation": "geglu", "tied": False},
        T5_TEXTS,
    ),
    "t5_opset_17": (keras_tx.t5, {}, T5_TEXTS),
    "t5_large": (keras_tx.t5, {"width": 1024, "num_heads": 16, "head_dim": 64, "mlp_dim": 1024}, T5_TEXTS),
    "marian": (keras_tx.transformer, MARIAN, MARIAN_TEXTS),
    "bart": (keras_tx.transformer, BART, T5_TEXTS),
    "ladder_t5": (keras_tx.t5, {"width": 64, "num_heads": 4}, T5_TEXTS),
    "ladder_marian": (keras_tx.transformer, {**MARIAN, "width": 64, "num_heads": 4}, MARIAN_TEXTS),
}


def make(out: Path, name: str) -> dict[str, dict[str, Any]]:
    """The folder, and the targets of each of its files."""
    factory, options, texts = CASES[name]
    model = drawn(factory("tiny", processing=texts, **options), SEEDS.get(name, 2))
    opset = 17 if name.endswith("opset_17") else contract.DEFAULT_OPSET
    export_onnx(model, out / name, opset=opset, precision=precisions.of(name), overwrite=True)

    def answer(precision: str) -> dict[str, Any]:
        with load(out / name, provider="cpu", precision=precision) as loaded:
            generated = _generated(loaded, model, together=precision == "fp32")
        files = {
            "file": contract.graph_name(precision, contract.DECODER_MODEL),
            "encoder_file": contract.graph_name(precision, contract.ENCODER_MODEL),
        }
        return {**generated, **files, **_first_step(out / name, files, generated)}

    cases = precisions.cases(name, answer)
    for beams, key in ((1, "new_ids"), (BEAMS, "beam_ids")):
        targets = keras_tx.generate(model, SOURCES, max_new_tokens=NEW_TOKENS, num_beams=beams)
        expected = [list(target.ids) for target in targets]
        assert cases[name][key] == expected, f"{name} generates {cases[name][key]}, Keras {expected}"
    return cases


def _generated(loaded: Any, model: Any, together: bool) -> dict[str, Any]:
    """With all sources `together`, or one by one: int8 computes its ranges from the whole batch."""
    ids = [loaded.tokenizer.encode(text).ids for text in SOURCES]
    groups = [SOURCES] if together else [[text] for text in SOURCES]
    greedy = [one for group in groups for one in loaded.generate(group, max_new_tokens=NEW_TOKENS)]
    # Clients keep a beam's padding out of the scores, but not int8 and its ranges.
    beams = [loaded.generate(text, max_new_tokens=NEW_TOKENS, num_beams=BEAMS) for text in SOURCES]
    tokens = {number for one in greedy for number in one.ids}
    assert len(tokens) > 3, f"{loaded.folder.path} repeats itself: proves little"
    return {
        "kind": KIND,
        "task": loaded.folder.manifest.task,
        "texts": SOURCES,
        "together": together,
        "ids": ids,
        "start_id": model.start_id,
        "pad_id": model.config.pad_id,
        "new_tokens": NEW_TOKENS,
        "new_ids": [list(one.ids) for one in greedy],
        "new_texts": [one.text for one in greedy],
        "beams": BEAMS,
        "beam_ids": [list(one.ids) for one in beams],
    }


def _first_step(folder: Path, files: dict[str, str], generated: dict[str, Any]) -> dict[str, Any]:
    """The logits of the first token of the first target, and the shapes of the cache's inputs."""
    encoder, decoder = (
        onnxruntime.InferenceSession(folder / files[name], providers=["CPUExecutionProvider"])
        for name in ("encoder_file", "file")
    )
    ids = np.asarray(generated["ids"][:1])
    mask = np.ones_like(ids)
    (states,) = encoder.run(None, {contract.INPUT_IDS: ids, contract.ATTENTION_MASK: mask})
    ports = [port for port in decoder.get_inputs() if port.name.startswith("past_key_values.")]
    past = {  # a size that is dynamic is not used
        port.name: (port.shape[1], port.shape[3] if isinstance(port.shape[3], int) else 0, DTYPES[port.type])
        for port in ports
    }
    feed = {
        contract.INPUT_IDS: np.array([[generated["start_id"]]]),
        contract.ENCODER_HIDDEN_STATES: states,
        contract.ENCODER_ATTENTION_MASK: mask,
        contract.USE_CACHE_BRANCH: np.array([False]),
        **{name: np.zeros((1, heads, 0, size), dtype) for name, (heads, size, dtype) in past.items()},
    }
    (logits,) = decoder.run([contract.LOGITS], feed)
    return {"past": past, "encoder_outputs": states.tolist(), "logits": logits.tolist()}
