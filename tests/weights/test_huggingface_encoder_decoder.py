"""T5, mT5, Marian, BART and mBART of transformers, in and out: equal outputs, tensors bit for bit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_tx
from keras_tx.errors import ConfigError
from tests.drawing import as_numpy
from tests.tolerances import assert_close

transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
torch = pytest.importorskip("torch")

T5 = {"vocab_size": 60, "d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 2}
PAIR = {
    "vocab_size": 60,
    "d_model": 16,
    **{
        f"{part}_{name}": n
        for part in ("encoder", "decoder")
        for name, n in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 24))
    },
    "max_position_embeddings": 40,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5ForConditionalGeneration", {**T5, "num_decoder_layers": 1}),
    "t5-v1.1": (
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mt5": ("MT5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu"}),
    "t5-body": ("T5Model", T5),
    "marian": (
        "MarianMTModel",
        {
            **PAIR,
            "decoder_layers": 1,
            "pad_token_id": 59,
            "decoder_start_token_id": 59,
            "activation_function": "swish",
            "scale_embedding": True,
        },
    ),
    "marian-body": ("MarianModel", {**PAIR, "pad_token_id": 59, "decoder_start_token_id": 59}),
    "bart": ("BartForConditionalGeneration", PAIR),
    "mbart": (
        "MBartForConditionalGeneration",
        {**PAIR, "scale_embedding": True, "decoder_start_token_id": 5},
    ),
}
UNTIED = ("t5-v1.1", "mt5")


def redraw(model: Any) -> None:
    """Draws every weight and buffer that a checkpoint stores, norms and biases too.

    T5's queries are drawn smaller, as in training, because its scores are not scaled.
    """
    generator = torch.Generator().manual_seed(0)
    for name, x in model.state_dict().items():
        if "embed_positions" in name and "marian" in model.config.model_type:
            continue  # a constant
        scale = 0.1 if name.endswith("Attention.q.weight") else 0.4
        mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        with torch.no_grad():
            x.copy_(torch.randn(x.shape, generator=generator) * scale + mean)


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory) -> tuple[Any, Path, str]:
    """A random model of transformers and its folder."""
    architecture, fields = MODELS[request.param]
    kind = getattr(transformers, architecture)
    config = kind.config_class(**fields)
    model = kind(config).eval()
    if request.param in UNTIED:
        model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    redraw(model)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return model, folder, request.param


def inputs(pad: int, side: str, length: int = 9) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    source, target = (random.integers(3, 50, (4, n)) for n in (length, 7))
    mask = np.ones_like(source)
    for row, count in enumerate((0, 2, length - 1, 5)):
        mask[row, length - count :] = 0
    mask = mask if side == "right" else mask[:, ::-1].copy()
    target_mask = np.ones_like(target)
    target_mask[1, 4:] = 0
    source[mask == 0] = pad
    return {
        "input_ids": source,
        "attention_mask": mask,
        "decoder_input_ids": target,
        "decoder_attention_mask": target_mask,
    }


@pytest.mark.parametrize("side", ["right", "left"])
def test_outputs_equal_transformers(pair: tuple[Any, Path, str], side: str):
    theirs, folder, _ = pair
    model = keras_tx.from_checkpoint(folder)
    x = inputs(model.config.pad_id, side, 30)
    with torch.no_grad():
        expected = theirs(**{key: torch.tensor(value) for key, value in x.items()})
    real = x["attention_mask"].astype(bool)
    encoded = model.encoder()({key: x[key].astype("int32") for key in ("input_ids", "attention_mask")})
    assert_close(
        as_numpy(encoded["last_hidden_state"])[real], expected.encoder_last_hidden_state.numpy()[real]
    )
    reference = expected[0].numpy()
    real = x["decoder_attention_mask"].astype(bool)
    assert_close(as_numpy(model(x))[real], reference[real])


INNER = {
    "encoder_hidden_states": "input_ids",
    "decoder_hidden_states": "decoder_input_ids",
    "encoder_attentions": "input_ids",
    "decoder_attentions": "decoder_input_ids",
    "cross_attentions": "decoder_input_ids",
}


def test_hidden_states_and_attentions_equal_transformers(pair: tuple[Any, Path, str]):
    theirs, folder, _ = pair
    model = keras_tx.from_checkpoint(folder)
    theirs = type(theirs).from_pretrained(folder, attn_implementation="eager").eval()
    x = inputs(model.config.pad_id, "right")
    with torch.no_grad():
        expected = theirs(
            **{key: torch.tensor(value) for key, value in x.items()},
            output_hidden_states=True,
            output_attentions=True,
        )
    outputs = model.with_outputs(hidden_states=True, attentions=True)(model.complete(x))
    assert set(outputs) == {model.output_name, *INNER}
    for name, of in INNER.items():
        real = x[of.replace("input_ids", "attention_mask")].astype(bool)
        assert len(outputs[name]) == len(expected[name])
        for mine, reference in zip(outputs[name], expected[name], strict=True):
            mine, reference = as_numpy(mine), reference.numpy()
            if mine.ndim == 4:  # (batch, heads, queries, keys)
                mine, reference = (np.moveaxis(y, 1, 2) for y in (mine, reference))
            assert_close(mine[real], reference[real])


def test_in_and_out_again(pair: tuple[Any, Path, str], tmp_path: Path):
    theirs, folder, _ = pair
    model = keras_tx.from_checkpoint(folder)
    copy = keras_tx.save_checkpoint(model, tmp_path / "copy")
    before, after = (load_file(x / "model.safetensors") for x in (folder, copy))
    if getattr(model.config, "positions", None) == "sine-cosine-halves":
        before = {key: value for key, value in before.items() if "embed_positions" not in key}
    assert set(before) == set(after)
    for key, value in before.items():
        # BART and mBART have two rows of positions that no token has.
        rows = slice(2, None) if "embed_positions" in key else slice(None)
        np.testing.assert_array_equal(after[key][rows], value[rows], err_msg=key)
    assert keras_tx.from_checkpoint(copy).config == model.config
    again = type(theirs).from_pretrained(copy).eval()
    x = {key: torch.tensor(value) for key, value in inputs(model.config.pad_id, "right").items()}
    with torch.no_grad():
        np.testing.assert_array_equal(again(**x)[0], theirs(**x)[0])


@pytest.mark.parametrize(
    ("name", "fields", "pattern"),
    [
        ("t5", {"feed_forward_proj": "gated-silu"}, "feed_forward_proj='gated-silu'"),
        ("t5", {"architectures": ["T5EncoderModel"]}, r"architectures=\['T5EncoderModel'\]"),
        ("t5", {"model_type": "umt5"}, "umt5"),
        ("t5", {"is_encoder_decoder": False}, "is_encoder_decoder=False"),
        ("marian", {"decoder_ffn_dim": 99}, "decoder_ffn_dim=99.*encoder_ffn_dim=24"),
        ("marian", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings=False"),
        ("marian", {"decoder_vocab_size": 61}, "decoder_vocab_size=61"),
        ("bart", {"normalize_before": True}, "normalize_before=True"),
        ("mbart", {"decoder_start_token_id": None}, "decoder_start_token_id=None"),
        ("bart", {"encoder_layerdrop": 0.1}, "encoder_layerdrop=0.1"),
    ],
)
def test_unsupported_fields_raise(name: str, fields: dict[str, Any], pattern: str, tmp_path: Path):
    architecture, own = MODELS[name]
    kind = getattr(transformers, architecture).config_class
    config = {**kind(**own).to_dict(), "architectures": [architecture], **fields}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"shared.weight": np.zeros((60, 16), "float32")}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=pattern):
        keras_tx.from_checkpoint(tmp_path)


def test_stored_positions_of_marian_are_checked(tmp_path: Path):
    kind = transformers.MarianMTModel
    kind(kind.config_class(**MODELS["marian"][1])).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.encoder.embed_positions.weight"] = np.ones((40, 16), "float32")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"model.encoder.embed_positions.weight"):
        keras_tx.from_checkpoint(tmp_path)


def test_generation_defaults(tmp_path: Path):
    kind = transformers.BartForConditionalGeneration
    model = kind(kind.config_class(**PAIR))
    model.generation_config.update(
        num_beams=3, no_repeat_ngram_size=2, forced_bos_token_id=7, bad_words_ids=[[1]], length_penalty=2.0
    )
    model.save_pretrained(tmp_path / "bart")
    loaded = keras_tx.from_checkpoint(tmp_path / "bart")
    assert loaded.config.generation == {
        "forced_bos_token_id": 7,
        "forced_eos_token_id": 2,
        "bad_words_ids": [[1]],
        "no_repeat_ngram_size": 2,
        "num_beams": 3,
        "length_penalty": 2.0,
    }
    copy = keras_tx.save_checkpoint(loaded, tmp_path / "copy")
    written = transformers.GenerationConfig.from_pretrained(copy)
    for name in ("num_beams", "no_repeat_ngram_size", "forced_bos_token_id", "bad_words_ids", "eos_token_id"):
        assert getattr(written, name) == getattr(model.generation_config, name)


def test_unsupported_options_warn(tmp_path: Path, recwarn: pytest.WarningsRecorder):
    kind = transformers.T5ForConditionalGeneration
    model = kind(kind.config_class(d_model=16, d_ff=8, d_kv=8, num_heads=2, num_layers=1, vocab_size=20))
    model.save_pretrained(tmp_path / "t5")
    path = tmp_path / "t5" / "generation_config.json"
    content = json.loads(path.read_text())
    for neutral in ({}, {"renormalize_logits": False, "guidance_scale": 1.0, "stop_strings": None}):
        path.write_text(json.dumps(content | neutral))
        keras_tx.from_checkpoint(tmp_path / "t5")
    assert not [warning for warning in recwarn if "generate()" in str(warning.message)]
    for name, value in {"sequence_bias": [[[1], 2.0]], "guidance_scale": 1.5}.items():
        path.write_text(json.dumps(content | {name: value}))
        with pytest.warns(UserWarning, match=rf"'{name}': .*which generate\(\) does not support"):
            keras_tx.from_checkpoint(tmp_path / "t5")


def test_task_options(tmp_path: Path):
    """Those of T5's published checkpoints."""
    tasks = {
        "summarization": {
            "early_stopping": True,
            "length_penalty": 2.0,
            "max_length": 200,
            "min_length": 30,
            "no_repeat_ngram_size": 3,
            "num_beams": 4,
            "prefix": "summarize: ",
        },
        "translation_en_to_de": {"num_beams": 4, "prefix": "translate English to German: "},
    }
    kind = transformers.T5ForConditionalGeneration
    model = kind(kind.config_class(d_model=16, d_ff=8, d_kv=8, num_heads=2, num_layers=1, vocab_size=20))
    model.save_pretrained(tmp_path / "t5")
    path = tmp_path / "t5" / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"task_specific_params": tasks}))
    loaded = keras_tx.from_checkpoint(tmp_path / "t5")
    assert loaded.config.task_options == tasks
    copy = keras_tx.save_checkpoint(loaded, tmp_path / "copy")
    assert json.loads((copy / "config.json").read_text())["task_specific_params"] == tasks
    for wrong, message in (([1], "task_specific_params"), ({"a": {"prefix": 1}}, r"\['a'\]: prefix is 1")):
        path.write_text(json.dumps(content | {"task_specific_params": wrong}))
        with pytest.raises(ConfigError, match=message):
            keras_tx.from_checkpoint(tmp_path / "t5")
    others = {"max_new_tokens": 9, "do_sample": False, "encoder_repetition_penalty": 1.0}
    summarization = {"summarization": tasks["summarization"] | others}
    path.write_text(json.dumps(content | {"task_specific_params": summarization}))
    with pytest.warns(UserWarning, match=r"summarization has \{'max_new_tokens': 9\}, which"):
        loaded = keras_tx.from_checkpoint(tmp_path / "t5")
    assert loaded.config.task_options == {"summarization": tasks["summarization"]}
    with pytest.raises(ConfigError, match=r"task_options\['summarization'\] has the option 'max_new_tokens'"):
        dataclasses.replace(loaded.config, task_options=summarization)


@pytest.mark.parametrize(
    ("variant", "architecture", "fields"),
    [
        ("small", "T5", {}),
        ("3B", "T5", {"d_model": 1024, "d_kv": 128, "d_ff": 16384, "num_layers": 24, "num_heads": 32}),
        ("bart-large", "Bart", {}),
    ],
)
def test_parameter_counts_equal_transformers(variant: str, architecture: str, fields: dict[str, Any]):
    kind = getattr(transformers, f"{architecture}ForConditionalGeneration")
    with torch.device("meta"):
        model = kind(kind.config_class(**fields))
    config = keras_tx.T5Config if architecture == "T5" else keras_tx.TransformerConfig
    bias = 50265 - 2 * 2 * 1024 if architecture == "Bart" else 0  # a buffer there; rows that no token has
    assert keras_tx.cost(config.variant(variant)).params == model.num_parameters() + bias
