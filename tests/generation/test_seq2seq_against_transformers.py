"""Encoder-decoders in Keras generate the tokens of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.models.generation import generate, stream
from tests.drawing import as_numpy, redraw
from tests.tolerances import FP32, difference

SOURCES = [
    [*np.random.default_rng(index).integers(2, 40, 1 + 7 * index % 13).tolist(), 1] for index in range(34)
]
PAD = 0
STOPS = [1, 7, 22, 31]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_beams": 4, "length_penalty": 0.7},
    {"num_beams": 3, "length_penalty": -0.5, "early_stopping": True, "samples": 2},
    {"num_beams": 3, "length_penalty": 0.6, "early_stopping": "never", "no_repeat_ngram_size": 2},
    {"repetition_penalty": 1.4, "min_new_tokens": 4},
    {"num_beams": 2, "forced_first_id": 9, "forced_last_id": 1, "repetition_penalty": 1.2},
]
NAMES = {  # ours -> transformers'
    "samples": "num_return_sequences",
    "forced_first_id": "forced_bos_token_id",
    "forced_last_id": "forced_eos_token_id",
}
FAMILIES = {
    "t5": {"tied": True, "activation": "relu"},
    "t5-v1.1": {"tied": False, "activation": "geglu", "decoder_depth": 1},
    "marian": {"positions": "sine-cosine-halves", "activation": "silu", "logits_bias": True},
}


@pytest.fixture(scope="module", params=FAMILIES)
def both(request) -> tuple[Any, Any]:
    """A model of transformers and one in Keras with the same weights."""
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import torch

    torch.set_num_threads(1)
    factory = keras_tx.t5 if request.param.startswith("t5") else keras_tx.transformer
    ours: Any = factory(
        "tiny", vocabulary_size=40, pad_id=PAD, stop_ids=STOPS, dropout=0.0, **FAMILIES[request.param]
    )
    redraw(ours)
    matrix = 1.6 if factory is keras_tx.t5 else 2.5  # so that texts differ from source to source
    for weight in ours.weights:
        vector = 0.2 if weight.path.endswith(("bias", "beta")) else 1.0
        weight.assign(weight * (matrix if len(weight.shape) == 2 else vector))
    return (_t5(ours) if factory is keras_tx.t5 else _marian(ours)), ours


def _t5(ours: Any) -> Any:
    import torch
    import transformers

    config = ours.config
    theirs = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=config.vocabulary_size,
            d_model=config.width,
            d_kv=config.head_dim,
            d_ff=config.mlp_dim,
            num_layers=config.depth,
            num_decoder_layers=config.decoder_depth or config.depth,
            num_heads=config.num_heads,
            feed_forward_proj="relu" if config.activation == "relu" else "gated-gelu",
            tie_word_embeddings=config.tied,
            decoder_start_token_id=PAD,
        )
    ).eval()
    depths = {"encoder": config.depth, "decoder": config.decoder_depth or config.depth}
    if not config.tied:
        theirs.lm_head.weight = torch.nn.Parameter(torch.zeros_like(theirs.lm_head.weight))
    attention = {"query": "q", "key": "k", "value": "v", "output": "o"}
    shared = ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head")
    names = dict.fromkeys(shared, "token_embedding/table")
    if not config.tied:
        names["lm_head"] = "logits/kernel"
    for part in ("encoder", "decoder"):
        names[f"{part}.final_layer_norm"] = f"{part}_norm/scale"
        bias = f"{part}.block.0.layer.0.SelfAttention.relative_attention_bias"
        names[bias] = f"{part}_relative_bias/table"
        for index in range(depths[part]):
            block, path = f"{part}.block.{index}.layer", f"{part}_block_{index}"
            kinds = [("attention", "SelfAttention")]
            kinds += [("cross_attention", "EncDecAttention")] if part == "decoder" else []
            for place, (own, other) in enumerate(kinds):
                for layer, letter in attention.items():
                    names[f"{block}.{place}.{other}.{letter}"] = f"{path}/{own}/{layer}/kernel"
                names[f"{block}.{place}.layer_norm"] = f"{path}/{own}_norm/scale"
            last = f"{block}.{len(kinds)}"
            names[f"{last}.layer_norm"] = f"{path}/feed_forward_norm/scale"
            up = {"wi": "up"} if config.activation == "relu" else {"wi_0": "gate", "wi_1": "up"}
            for other, own in {**up, "wo": "down"}.items():
                names[f"{last}.DenseReluDense.{other}"] = f"{path}/feed_forward/{own}/kernel"
    return _filled(theirs, ours, {f"{name}.weight": path for name, path in names.items()})


def _marian(ours: Any) -> Any:
    import torch
    import transformers

    config = ours.config
    theirs = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=config.vocabulary_size,
            d_model=config.width,
            max_position_embeddings=config.max_length,
            **{
                f"{part}_{name}": value
                for part in ("encoder", "decoder")
                for name, value in (
                    ("layers", config.depth),
                    ("attention_heads", config.num_heads),
                    ("ffn_dim", config.mlp_dim),
                )
            },
            activation_function="swish",
            scale_embedding=True,
            pad_token_id=PAD,
            eos_token_id=1,
            forced_eos_token_id=None,
            decoder_start_token_id=PAD,
        )
    ).eval()
    attention = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    kinds = {"weight": "kernel", "bias": "bias"}
    names = {
        f"{name}.weight": "token_embedding/table"
        for name in ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    }
    for part in ("encoder", "decoder"):
        for index in range(config.depth):
            block, path = f"model.{part}.layers.{index}", f"{part}_block_{index}"
            layers = {"fc1": "feed_forward/up", "fc2": "feed_forward/down"}
            norms = {"self_attn_layer_norm": "attention", "final_layer_norm": "feed_forward"}
            attentions = {"self_attn": "attention"}
            if part == "decoder":
                attentions["encoder_attn"] = "cross_attention"
                norms["encoder_attn_layer_norm"] = "cross_attention"
            for other, own in attentions.items():
                layers |= {f"{other}.{b}": f"{own}/{a}" for a, b in attention.items()}
            for other, own in layers.items():
                names |= {f"{block}.{other}.{a}": f"{path}/{own}/{b}" for a, b in kinds.items()}
            for other, own in norms.items():
                names[f"{block}.{other}.weight"] = f"{path}/{own}_norm/gamma"
                names[f"{block}.{other}.bias"] = f"{path}/{own}_norm/beta"
    theirs.final_logits_bias = torch.from_numpy(as_numpy(ours.get_layer("logits").bias).copy()[None])
    return _filled(theirs, ours, names)


def _filled(theirs: Any, ours: Any, names: dict[str, str]) -> Any:
    """Assigns the weights of the Keras model to the parameters of the other."""
    import torch

    weights = {weight.path: as_numpy(weight) for weight in ours.weights}
    with torch.no_grad():
        for name, parameter in theirs.named_parameters(remove_duplicate=False):
            if "embed_positions" in name:
                continue
            value = weights[names[name]]
            is_kernel = value.ndim == 2 and not names[name].endswith("table")
            parameter.copy_(torch.from_numpy((value.T if is_kernel else value).copy()))
    return theirs


def of_transformers(
    model: Any, options: dict[str, Any], count: int
) -> tuple[list[list[int]], list[float] | None]:
    """The tokens without padding after the stop token, and the scores of beams."""
    import torch

    longest = max(map(len, SOURCES))
    ids = torch.tensor([source + [PAD] * (longest - len(source)) for source in SOURCES])
    mask = torch.tensor([[1] * len(source) + [0] * (longest - len(source)) for source in SOURCES])
    with torch.no_grad():
        made = model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=STOPS,
            pad_token_id=PAD,
            bad_words_ids=[[PAD]],
            return_dict_in_generate=True,
            output_scores=True,
            **{NAMES.get(name, name): value for name, value in options.items()},
        )
    rows = []
    for row in made.sequences[:, 1:].tolist():
        ends = [place for place, token in enumerate(row) if token in STOPS]
        assert set(row[ends[0] + 1 :] if ends else []) <= {PAD, STOPS[0]}
        rows.append(row[: ends[0] + 1] if ends else row)
    return rows, made.sequences_scores.tolist() if "num_beams" in options else None


def test_logits_equal_transformers(both):
    import torch

    theirs, ours = both
    source, target = np.array([SOURCES[5]]), np.array([[PAD, 9, 3, 30, 12]])
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor(source), decoder_input_ids=torch.tensor(target)).logits
    actual = as_numpy(ours({"input_ids": source, "decoder_input_ids": target}))
    assert difference(actual, expected.numpy()) < FP32


@pytest.mark.parametrize(
    "options",
    [*OPTIONS[:2], *(pytest.param(x, marks=pytest.mark.thorough) for x in OPTIONS[2:])],
    ids=str,
)
def test_tokens_equal_transformers(both, options):
    theirs, ours = both
    expected, scores = of_transformers(theirs, options, 16)
    made = generate(ours, SOURCES, max_new_tokens=16, **options)
    texts = made if "samples" not in options else [text for group in made for text in group]
    assert [list(text.ids) for text in texts] == expected
    if scores is not None:
        np.testing.assert_allclose([text.score for text in texts], scores, rtol=1e-4, atol=1e-4)
    assert len({text.ids for text in texts}) > 8
    assert len({len(text.ids) for text in texts}) > 1


def test_stream_yields_the_tokens_of_generate(both):
    _, ours = both
    (made,) = generate(ours, SOURCES[:1], max_new_tokens=12)
    assert tuple(stream(ours, SOURCES[0], max_new_tokens=12)) == made.ids
