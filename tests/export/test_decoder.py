"""The graph of a decoder: prefill, chunks, decode steps and padding, against Keras without a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError
from keras_tx.runtime.session import Session
from keras_tx_onnx import export_onnx
from keras_tx_onnx.graph import cache_ports
from keras_tx_onnx.interfaces import decoder
from keras_tx_onnx.lowerings import keras_tx as keras_tx_layers
from keras_tx_onnx.verifying import cases
from tests.decoder_architectures import ARCHITECTURES
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close

SMALL = {"max_length": 24, "vocabulary_size": 50}
CASES = [
    (variant, opset, options)
    for variant, options in (
        ("pico", {}),
        ("llama-tiny", {}),
        ("pico", {"use_bias": False, "tied": False}),
        *ARCHITECTURES.values(),
    )
    for opset in (17, 23)
]


def gpt(variant: str = "pico", **options: Any) -> Any:
    return redraw(keras_tx.gpt(variant, **{**SMALL, **options}))


def feed_of(model: Any, rows: list[int], length: int) -> dict[str, np.ndarray]:
    """Texts with these numbers of tokens, padded on the left, and an empty past."""
    config = model.config
    mask = (np.arange(length) >= length - np.reshape(rows, (-1, 1))).astype("int64")
    ids = np.random.default_rng(3).integers(0, config.vocabulary_size, mask.shape)
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    _, heads, size = model.cache_shape
    past = {
        port.format(i): np.zeros((len(rows), heads, 0, size), "float32")
        for i in range(config.depth)
        for port in contract.PAST
    }
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions, **past}


@pytest.mark.parametrize(("variant", "opset", "options"), CASES, ids=str)
def test_chunks_and_steps_equal_keras(variant, opset, options, tmp_path):
    model = gpt(variant, **options)
    export_onnx(model, tmp_path / "poet", opset=opset)
    inputs = feed_of(model, [12, 5, 1], 12)
    expected = as_numpy(model({name: inputs[name] for name in list(inputs)[:3]}, training=False))
    with Session(tmp_path / "poet" / contract.MODEL, provider="cpu") as session:
        for chunks in ([12], [7, 5], [3, 1, 4, 1, 1, 2], [1] * 12):
            got = decoder.run_in_chunks(session, inputs, chunks)[contract.LOGITS]
            assert_close(got, expected, 3e-5)


def test_names_and_shapes_follow_the_contract(tmp_path):
    report = export_onnx(gpt("llama-tiny"), tmp_path / "poet")
    ports = [
        (f"past_key_values.{i}.{kind}", "float32", ("batch_size", 2, "past_sequence_length", 16))
        for i in range(2)
        for kind in ("key", "value")
    ]
    tokens = ("batch_size", "sequence_length")
    assert [(t.name, t.dtype, t.shape) for t in report.manifest.inputs] == [
        ("input_ids", "int64", tokens),
        ("attention_mask", "int64", ("batch_size", "total_sequence_length")),
        ("position_ids", "int64", tokens),
        *ports,
    ]
    assert [t.name for t in report.manifest.outputs] == [
        "logits",
        *(name.replace("past_key_values", "present") for name, *_ in ports),
    ]
    assert report.manifest.task == "text-generation"
    assert report.manifest.parity is not None
    assert report.manifest.parity.cases == (
        "batch 1, length 16",
        "batch 1, length 16, in chunks",
        "batch 1, length 16, padded on the left",
        "batch 6, length 8, every mask",
        "batch 6, length 8, every mask, padded on the left, in chunks",
        "batch 2, length 4, masks right left",
        "batch 2, length 4, masks right left, in chunks",
        "batch 2, length 4, masks right left, padded on the left",
        "batch 2, length 4, masks right left, last token alone",
        "batch 1, length 1",
        "batch 1, length 24",
    )
    graph = onnx.load(tmp_path / "poet" / contract.MODEL).graph
    assert {node.domain for node in graph.node} == {""}
    assert report.nodes["Attention"] == 2


def test_num_logits_to_keep(tmp_path):
    model = gpt()
    export_onnx(model, tmp_path / "poet")
    inputs = feed_of(model, [9, 4], 9)
    with Session(tmp_path / "poet" / contract.MODEL, provider="cpu") as session:
        every = session.run(inputs)["logits"]
        for count in (1, 3, 20):
            some = session.run({**inputs, "num_logits_to_keep": np.array(count)})["logits"]
            assert_close(some, every[:, -count:])


def test_without_a_cache(tmp_path):
    report = export_onnx(gpt(), tmp_path / "graph", cache=False)
    assert [t.name for t in report.manifest.inputs] == ["input_ids", "attention_mask", "position_ids"]
    assert report.manifest.task is None
    assert "cache=False" in report.manifest.notes[0]
    assert report.manifest.export_options == {"cache": False}
    hidden = export_onnx(gpt(head=None), tmp_path / "hidden")
    assert [t.name for t in hidden.manifest.outputs] == ["last_hidden_state"]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: gpt(head=None), {"cache": True}, "cache=True.*'gpt'.*head=None"),
        (lambda: keras_tx.vit("Mu/2", image_size=8), {"cache": True}, "cache=True.*'vit'.*raw_pixels"),
        (lambda: keras_tx.vit("Mu/2", image_size=8), {"tokenizer": "x"}, "tokenizer='x'.*'vit'.*labels"),
        (gpt, {"labels": ["a"]}, r"labels=\['a'\].*'gpt'.*cache, tokenizer"),
        (gpt, {"unpad": False}, r"unpad=False.*'gpt'"),
        (gpt, {"cache": "disk"}, "cache='disk'"),
        (gpt, {"cache": "shared", "opset": 22}, "cache='shared'.*opset=23.*opset=22"),
        (gpt, {"tokenizer": "gpt2"}, "gpt2"),
    ],
)
def test_unsupported_options_raise(make, options, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        export_onnx(make(), tmp_path / "poet", **options)
    assert not (tmp_path / "poet").exists()


@pytest.mark.parametrize(
    ("variant", "options"), [("pico", {"causal": False}), ("llama-tiny", {"causal": False})], ids=str
)
def test_non_causal_attention_with_a_cache_raises(variant, options, tmp_path):
    model = gpt(variant)
    model.get_layer("block_1").attention.causal = options["causal"]
    with pytest.raises(ExportError, match="'block_1/attention'.*cache"):
        export_onnx(model, tmp_path / "poet")


def test_wrong_cache_fails_verification(tmp_path, monkeypatch):
    """Keys and values are swapped, which prefill alone does not show."""
    keep = cache_ports.Cache.keep

    def swapped(self, present):
        keep(self, (present[1], present[0]))

    monkeypatch.setattr(cache_ports.Cache, "keep", swapped)
    with pytest.raises(ExportError, match="in chunks"):
        export_onnx(gpt(), tmp_path / "poet")
    assert not (tmp_path / "poet").exists()


@pytest.mark.parametrize("cached", [True, False])
def test_verification_ignores_padding(cached, tmp_path, monkeypatch):
    run, off = cases.run_keras, {0: 1.0, 1: 0.0}

    def changed(model: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
        mask = next(x for x in inputs if set(np.unique(x)) <= {0, 1})
        change = np.where(mask == 0, off[0], off[1])[..., None].astype("float32")
        return [x + change for x in run(model, inputs)]

    monkeypatch.setattr(cases, "run_keras", changed)
    export_onnx(gpt(), tmp_path / "poet", cache=cached)
    off[1] = 0.1
    with pytest.raises(ExportError, match="Output 'logits' differs"):
        export_onnx(gpt(), tmp_path / "other", cache=cached)


def test_error_names_the_first_layer_that_differs(tmp_path, monkeypatch):
    attend = keras_tx_layers.attend
    monkeypatch.setattr(keras_tx_layers, "attend", lambda *a, causal, **k: attend(*a, causal=False, **k))
    with pytest.raises(ExportError, match=r"'batch 1, length 16'.*'block_0'"):
        export_onnx(gpt(), tmp_path / "poet")


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_computes_in_float32(policy, tmp_path):
    report = export_onnx(gpt(dtype=policy), tmp_path / "poet")
    assert report.manifest.parity and report.manifest.parity.max_difference < 1e-5


def read(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / name).read_text())


def test_defaults_of_the_model(tmp_path):
    defaults = {"repetition_penalty": 1.5, "num_beams": 2, "bad_words_ids": [[3]]}
    report = export_onnx(gpt(generation=defaults), tmp_path / "poet", verify=False)
    assert defaults.items() <= read(tmp_path / "poet", "generation_config.json").items()
    search = read(tmp_path / "poet", "genai_config.json")["search"]
    assert search["repetition_penalty"] == 1.5 and "num_beams" not in search
    (note,) = (note for note in report.manifest.notes if "onnxruntime-genai" in note)
    assert "defaults num_beams, bad_words_ids:" in note
    report = export_onnx(gpt(), tmp_path / "plain", verify=False)
    assert not [note for note in report.manifest.notes if "onnxruntime-genai" in note]


def test_files_for_clients(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"<|endoftext|>": 0, "to": 1, "be": 2}, unk_token="<|endoftext|>")
    export_onnx(gpt(), tmp_path / "poet", tokenizer=tokenizers.Tokenizer(words))
    config = read(tmp_path / "poet", "config.json")
    assert config["model_type"] == "gpt2"
    assert (config["eos_token_id"], config["pad_token_id"]) == (0, None)
    assert read(tmp_path / "poet", "generation_config.json") == {"bos_token_id": 0, "eos_token_id": 0}
    genai = read(tmp_path / "poet", "genai_config.json")
    assert genai["model"]["type"] == "decoder"
    assert genai["model"]["decoder"]["filename"] == contract.MODEL
    assert genai["search"]["past_present_share_buffer"] is False
    assert read(tmp_path / "poet", "tokenizer_config.json")["eos_token"] == "<|endoftext|>"
    again = tokenizers.Tokenizer.from_file(str(tmp_path / "poet" / "tokenizer.json"))
    assert again.token_to_id("be") == 2
    small = gpt(vocabulary_size=2)
    with pytest.raises(ConfigError, match="tokenizer.* 3 .* 2 "):
        export_onnx(small, tmp_path / "small", tokenizer=again)


def test_processing_of_the_model_is_the_default_tokenizer(tmp_path):
    transform = keras_tx.processing.train_byte_bpe(["to be or not to be"], 270, too_long="raise")
    export_onnx(gpt(vocabulary_size=270, processing=transform), tmp_path / "poet", verify=False)
    assert read(tmp_path / "poet", "generation_config.json") == {"bos_token_id": 0, "eos_token_id": 0}
    config = read(tmp_path / "poet", "tokenizer_config.json")
    assert (config["pad_token"], config["padding_side"]) == ("<|endoftext|>", "left")
    again = keras_tx.TextTransform.load(tmp_path / "poet")
    assert (again.pad_token, again.padding_side, again.too_long) == (None, "left", "raise")
    assert again.vocabulary == transform.vocabulary


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["<s>", "</s>", "<unk>"], {"bos_token_id": 0, "eos_token_id": 1}),
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]"], {"bos_token_id": 2, "eos_token_id": 3}),
        (["a"], {}),
    ],
)
def test_special_ids_in_the_configs(tokens, expected, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=tokens[-1])
    export_onnx(gpt(), tmp_path / "poet", tokenizer=tokenizers.Tokenizer(words), verify=False)
    assert read(tmp_path / "poet", "generation_config.json") == expected
    genai = read(tmp_path / "poet", "genai_config.json")["model"]
    assert genai["eos_token_id"] == expected.get("eos_token_id", [])  # not 0, which is a token like others
    assert genai["pad_token_id"] == expected.get("eos_token_id", 0)


def test_unsupported_config_has_no_model_type(tmp_path):
    report = export_onnx(gpt(use_bias=False), tmp_path / "poet")
    assert "model_type" not in read(tmp_path / "poet", "config.json")
    assert "use_bias=False with learned positions" in report.manifest.notes[0]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_config_has_the_type_of_the_architecture(name, tmp_path):
    variant, options = ARCHITECTURES[name]
    report = export_onnx(gpt(variant, **options), tmp_path / "poet")
    config = read(tmp_path / "poet", "config.json")
    assert config["model_type"] == name
    assert not any("model_type" in note for note in report.manifest.notes)
    genai = read(tmp_path / "poet", "genai_config.json")["model"]["decoder"]
    if name != "openai-gpt":
        assert genai["head_size"] == config["head_dim"] == options.get("head_dim", 16)


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("pico", {"activation": "gelu"}),
        ("pico", {"norm_epsilon": 0.01, "tied": False}),
        ("llama-tiny", {"rotary_base": 100.0, "tied": True}),
        ("llama-tiny", {"kv_heads": 1, "norm_epsilon": 0.01}),
        *ARCHITECTURES.values(),
    ],
    ids=str,
)
def test_transformers_computes_the_same_logits(variant, options, tmp_path):
    """A model that transformers builds from config.json returns our logits with our weights."""
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import torch
    import transformers

    from tests.weights.states import put

    model = gpt(variant, **options)
    export_onnx(model, tmp_path / "poet")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "poet")
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    put(model, {name: x.detach().numpy() for name, x in theirs.state_dict().items()})
    ids = np.random.default_rng(0).integers(0, 50, (2, 9))
    with torch.no_grad():
        expected = theirs(torch.as_tensor(ids)).logits.numpy()
    assert_close(as_numpy(model(ids)), expected)
