"""Language models of keras-hub: text of the exported graphs with a cache equals that of keras-hub."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import keras_hub
import numpy as np
import onnx
import pytest

from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError
from keras_tx.generation import Generator
from keras_tx.processing import TextTransform
from keras_tx.runtime import load, open_folder, shared_cache
from keras_tx.runtime.cached_decoder import CachedDecoder
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.text_generation import TextGenerator
from keras_tx.runtime.verification import Check, verify_folder
from keras_tx.serving import TextEngine
from keras_tx_onnx import export_onnx, quantize
from keras_tx_onnx.graph import mask_distances
from keras_tx_onnx.graph.cache_ports import Cache
from keras_tx_onnx.interfaces import language_model
from keras_tx_onnx.lowerings.nodes import cached_masks
from tests.drawing import redraw
from tests.tolerances import assert_close
from tests.weights.test_keras_hub_tokenizers import byte_pairs, sentence_pieces

models = keras_hub.models
VOCABULARY, NEW_TOKENS, LENGTH = 50, 64, 80
PROMPTS = ([7, 21, 3, 44, 9, 12, 30], [5, 40, 11], [17, 8, 26, 33, 2])
KINDS = ("key", "value")
MOE = {"num_experts": 4, "top_k": 2}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model by the prefix of its classes.

    Attributes:
        name: the prefix.
        sizes: arguments of the backbone beside the common ones.
        generates: whether `generate` of keras-hub works on ids, and as its model does without a cache.
        embeddings: a factor, with which the next tokens vary.
    """

    name: str
    sizes: dict[str, Any]
    generates: bool = True
    embeddings: float = 5.0

    def model(self, vocabulary: int = VOCABULARY, preprocessor: Any = None) -> Any:
        common = {"vocabulary_size": vocabulary, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 24}
        keras.utils.set_random_seed(0)
        backbone = getattr(models, f"{self.name}Backbone")(**{**common, **self.sizes})
        model = redraw(getattr(models, f"{self.name}CausalLM")(backbone=backbone, preprocessor=preprocessor))
        return varied(model, self.embeddings)


def varied(model: Any, factor: float) -> Any:
    """The model with weights of which the next token depends on all tokens, and not on biases alone."""
    for weight in model.trainable_weights:
        if weight.path.endswith(("bias", "beta")):
            weight.assign(weight * 0.1)
        elif weight.path.endswith("embeddings"):
            weight.assign(weight * factor)
    return model


def grouped(**sizes: Any) -> dict[str, Any]:
    return {"num_query_heads": 4, "num_key_value_heads": 2, **sizes}


WINDOW = {"use_sliding_window_attention": True, "sliding_window_size": 4}
GEMMA_2 = {
    **WINDOW,
    "use_post_ffw_norm": True,
    "use_post_attention_norm": True,
    "attention_logit_soft_cap": 5.0,
    "final_logit_soft_cap": 3.0,
}
LLAMA_3_2 = {
    "rope_position_scaling_factor": 1.0,
    "rope_frequency_adjustment_factor": 8.0,
    "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0,
    "rope_pretraining_sequence_length": 16,
    "tie_word_embeddings": True,
}
SMOLLM_3 = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rope_layer_enabled_list": [True, False],
    "layer_types": ["full_attention"] * 2,
    "mlp_bias": False,
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": LENGTH,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 1.0,
}
CASES = {
    "gpt2": Case("GPT2", {"num_heads": 4, "max_sequence_length": LENGTH}),
    "opt": Case("OPT", {"num_heads": 4, "max_sequence_length": LENGTH}),
    "llama": Case("Llama", grouped()),
    "llama 3.2": Case("Llama3", grouped(**LLAMA_3_2)),
    "mistral": Case("Mistral", grouped(sliding_window=None)),
    "mistral, window": Case("Mistral", grouped(sliding_window=4)),
    "mixtral": Case("Mixtral", grouped(sliding_window=4, **MOE)),
    "qwen 2.5": Case("Qwen", grouped()),
    "qwen 2, window": Case("Qwen", grouped(**WINDOW), generates=False),
    "qwen 3": Case("Qwen3", grouped(head_dim=4, sliding_window_size=None)),
    "qwen moe": Case("QwenMoe", grouped(moe_intermediate_dim=8, shared_expert_intermediate_dim=8, **MOE)),
    "qwen 3 moe": Case(
        "Qwen3Moe", grouped(head_dim=4, sliding_window_size=None, moe_intermediate_dim=8, **MOE)
    ),
    "gemma": Case("Gemma", grouped(head_dim=4), embeddings=0.5),
    "gemma 2": Case("Gemma", grouped(head_dim=4, **GEMMA_2), embeddings=0.5),
    "gemma 3": Case(
        "Gemma3",
        grouped(head_dim=4, image_size=16, **WINDOW),
        generates=False,
        embeddings=0.5,
    ),
    "phi 3": Case("Phi3", grouped()),
    "bloom": Case("Bloom", {"num_heads": 4}),
    "falcon": Case("Falcon", {"num_attention_heads": 4}),
    "gpt neox": Case(
        "GPTNeoX",
        {"num_heads": 4, "max_sequence_length": LENGTH, "rotary_percentage": 0.5},
        generates=False,
        embeddings=1.0,
    ),
    "smollm 3": Case("SmolLM3", SMOLLM_3),
}


# GPT-NeoX of keras-hub rotates the query of each new token as that of the first one. Qwen 2 with a window
# fails on TensorFlow, and Gemma 3 for ids without images.
def of_keras_hub(model: Any) -> list[tuple[int, ...]]:
    """The new tokens of `generate`, for prompts of different lengths in one batch."""
    width = max(map(len, PROMPTS)) + NEW_TOKENS
    ids, mask = np.zeros((2, len(PROMPTS), width), "int32")
    for row, prompt in enumerate(PROMPTS):
        ids[row, : len(prompt)], mask[row, : len(prompt)] = prompt, 1
    model.compile(sampler="greedy")
    rows = model.generate({"token_ids": ids, "padding_mask": mask}, stop_token_ids=None)["token_ids"]
    return [
        tuple(np.asarray(row)[len(prompt) :][:NEW_TOKENS].tolist())
        for row, prompt in zip(rows, PROMPTS, strict=True)
    ]


def without_cache(model: Any) -> list[tuple[int, ...]]:
    """The new tokens by calls of the model on the whole texts, padded behind."""
    width = max(map(len, PROMPTS)) + NEW_TOKENS
    ids, mask = np.zeros((2, len(PROMPTS), width), "int32")
    for row, prompt in enumerate(PROMPTS):
        ids[row, : len(prompt)], mask[row, : len(prompt)] = prompt, 1
    for step in range(NEW_TOKENS):
        logits = model({"token_ids": ids, "padding_mask": mask}, training=False)
        tokens = np.argmax(keras.ops.convert_to_numpy(logits), axis=-1)
        for row, prompt in enumerate(PROMPTS):
            place = len(prompt) + step
            ids[row, place], mask[row, place] = tokens[row, place - 1], 1
    return [tuple(row[len(prompt) :][:NEW_TOKENS].tolist()) for row, prompt in zip(ids, PROMPTS, strict=True)]


def opened(folder: Path) -> TextGenerator:
    writer = load(folder)
    assert isinstance(writer, TextGenerator)
    return writer


def plain(folder: Path, context: int) -> Generator:
    """The graph without a shared cache, which accepts padding anywhere."""
    session = Session(folder / contract.MODEL, "cpu")
    return Generator(CachedDecoder(session, context), frozenset(), "plain", None, {})


@pytest.mark.parametrize("name", CASES)
def test_text_equals_that_of_keras_hub(name: str, tmp_path):
    case = CASES[name]
    model = case.model()
    report = export_onnx(model, tmp_path / "out", cache="shared")
    assert report.manifest.parity is not None
    assert any("in chunks" in each for each in report.manifest.parity.cases)
    expected = of_keras_hub(model) if case.generates else without_cache(model)
    assert len({token for text in expected for token in text}) > 4
    writer = opened(tmp_path / "out")
    for generator in (writer, plain(tmp_path / "out", writer.context)):
        batch = generator.generate(list(map(list, PROMPTS)), max_new_tokens=NEW_TOKENS)
        assert [text.ids for text in batch] == expected
        assert generator.generate(list(PROMPTS[1]), max_new_tokens=NEW_TOKENS).ids == expected[1]
    pieces = list(writer.stream(list(PROMPTS[0]), max_new_tokens=5))
    assert len(pieces) == 5


TEXTS = ["The first line", "To be, or", "it is"]


@pytest.mark.parametrize("name", ["gpt2", "gemma"])
def test_prompts_are_tokenized_as_by_keras_hub(name: str, tmp_path):
    case = CASES[name]
    tokenizer = byte_pairs("GPT2Tokenizer") if name == "gpt2" else sentence_pieces("GemmaTokenizer")
    preprocessor = getattr(models, f"{case.name}CausalLMPreprocessor")(tokenizer, sequence_length=LENGTH)
    model = case.model(tokenizer.vocabulary_size(), preprocessor)
    report = export_onnx(model, tmp_path / "out")
    assert not any("token ids" in note for note in report.manifest.notes)
    inputs = preprocessor.generate_preprocess(TEXTS)
    model.preprocessor = None
    model.compile(sampler="greedy")
    expected = model.generate(inputs, stop_token_ids=None)["token_ids"]
    writer, transform = opened(tmp_path / "out"), TextTransform.load(tmp_path / "out")
    assert writer.context == LENGTH and transform.padding_side == "left"
    prompts = [row.ids.tolist() for row in transform.encode(TEXTS)]
    for text, prompt, whole in zip(TEXTS, prompts, expected, strict=True):
        new = writer.generate(text, max_new_tokens=LENGTH - len(prompt), stop_tokens=[])
        assert [*prompt, *new.ids] == np.asarray(whole).tolist()
    config = json.loads((tmp_path / "out" / contract.GENERATION_CONFIG).read_text())
    assert config["eos_token_id"] == tokenizer.end_token_id


def test_tokenizer_with_more_tokens_than_the_model_raises(tmp_path):
    preprocessor = models.GPT2CausalLMPreprocessor(byte_pairs("GPT2Tokenizer"), sequence_length=LENGTH)
    with pytest.raises(ConfigError, match=str(VOCABULARY)):
        export_onnx(CASES["gpt2"].model(VOCABULARY, preprocessor), tmp_path / "out")


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma 2", "bloom"])
def test_opset_without_attention(name: str, tmp_path):
    model = CASES[name].model()
    export_onnx(model, tmp_path / "out", opset=17)
    batch = opened(tmp_path / "out").generate(list(map(list, PROMPTS)), max_new_tokens=NEW_TOKENS)
    assert [text.ids for text in batch] == of_keras_hub(model)


def test_ports_and_files(tmp_path):
    report = export_onnx(CASES["llama"].model(), tmp_path / "out")
    manifest = report.manifest
    assert [spec.name for spec in manifest.inputs[:3]] == ["input_ids", "attention_mask", "position_ids"]
    assert [spec.name for spec in manifest.inputs[3:5]] == [
        "past_key_values.0.key",
        "past_key_values.0.value",
    ]
    assert manifest.inputs[3].shape == ("batch_size", 2, "past_sequence_length", 4)
    assert [spec.name for spec in manifest.outputs[:2]] == ["logits", "present.0.key"]
    assert manifest.task == contract.TEXT_GENERATION
    genai = json.loads((tmp_path / "out" / contract.GENAI_CONFIG).read_text())["model"]
    decoder = genai["decoder"]
    assert (genai["vocab_size"], decoder["hidden_size"], decoder["head_size"]) == (VOCABULARY, 16, 4)
    assert (decoder["num_attention_heads"], decoder["num_key_value_heads"]) == (4, 2)
    graph = onnx.load(tmp_path / "out" / contract.MODEL, load_external_data=False).graph
    counts = Counter(node.op_type for node in graph.node)
    assert counts["Attention"] == 2
    assert not counts["GreaterOrEqual"]  # the causal mask is that of the operator


def test_logits_of_the_last_token_only(tmp_path):
    model = CASES["gpt2"].model()
    export_onnx(model, tmp_path / "out")
    ids = np.array([PROMPTS[0]])
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(7)[None]}
    feed |= {
        f"past_key_values.{i}.{kind}": np.zeros((1, 4, 0, 4), "float32") for i in (0, 1) for kind in KINDS
    }
    with Session(tmp_path / "out" / contract.MODEL, "cpu") as session:
        whole, last = session.run(feed), session.run({**feed, "num_logits_to_keep": np.array(1)})
    assert last["logits"].shape == (1, 1, VOCABULARY)
    assert_close(last["logits"], whole["logits"][:, -1:])
    expected = model({"token_ids": ids, "padding_mask": np.ones_like(ids)}, training=False)
    assert_close(whole["logits"], keras.ops.convert_to_numpy(expected))


def windowed_mistral(window: int, **sizes: int) -> Any:
    return Case("Mistral", grouped(sliding_window=window, **sizes)).model()


@pytest.mark.parametrize(
    ("window", "length"),
    [(24, "batch 1, length 64"), (100, "batch 1, length 132"), (512, "batch 1, length 544")],
)
def test_mask_that_is_wrong_behind_a_past_fails_verification(window, length, tmp_path, monkeypatch):
    """The window of new tokens is that of the first tokens, which shows beyond its size only."""

    full = cached_masks._full

    def wrong(cx, parts, causal):
        ordinary = [part for part in parts if cached_masks._is_causal(part) or cached_masks._is_padding(part)]
        result = full(cx, ordinary, causal)
        for part in (part for part in parts if part not in ordinary):
            mask = cached_masks.of_whole_text(cx, cached_masks.as_bool(cx, part))
            rows = cx.op.Slice(mask, [0], cached_masks._token_count(cx), [cached_masks.QUERIES])
            result = cx.op.And(result, cached_masks._four_axes(cx, rows, cached_masks._rank(part)))
        return result

    right = export_onnx(windowed_mistral(window), tmp_path / "right")
    assert right.manifest.parity is not None
    assert any(case.startswith(length) and "in chunks" in case for case in right.manifest.parity.cases)
    assert not any("Compare the logits" in note for note in right.manifest.notes)
    monkeypatch.setattr(cached_masks, "_full", wrong)
    with pytest.raises(ExportError, match=rf"{length}.*in chunks"):
        export_onnx(windowed_mistral(window), tmp_path / "wrong")


@pytest.mark.parametrize("context", [1024, 8192])
def test_note_about_a_window_that_the_comparison_does_not_pass(context, tmp_path, monkeypatch):
    """No note if the context of the folder is shorter than the window."""
    monkeypatch.setattr(language_model, "_DEFAULT_LENGTH", context)
    report = export_onnx(windowed_mistral(4096), tmp_path / "out")
    notes = [note for note in report.manifest.notes if "4,096" in note and "64 tokens" in note]
    assert len(notes) == (context > 4096)


def test_without_cache_is_a_generic_model(tmp_path):
    report = export_onnx(CASES["gpt2"].model(), tmp_path / "out", cache=False)
    assert {spec.name for spec in report.manifest.inputs} == {"token_ids", "padding_mask"}
    assert any("cache=False" in note for note in report.manifest.notes)


def gpt_oss() -> Any:
    return Case("GptOss", grouped(sliding_window=4, head_dim=4, **MOE)).model()


def test_unknown_attention_raises(tmp_path):
    with pytest.raises(ExportError, match=r"transformer_layer_0.*cache=False"):
        export_onnx(gpt_oss(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    export_onnx(gpt_oss(), tmp_path / "out", cache=False)


def test_unknown_rotary_embedding_raises(tmp_path):
    sizes = {
        "rope_scaling_type": "su",
        "rope_scaling_short_factor": [1.0, 1.5],
        "rope_scaling_long_factor": [2.0, 3.0],
        "max_sequence_length": LENGTH,
        "pretraining_sequence_length": 16,
    }
    with pytest.raises(ExportError, match=r"Phi3SuScaled.*rope_scaling_type='su'.*cache=False"):
        export_onnx(Case("Phi3", grouped(**sizes)).model(), tmp_path / "out")


def of_blocks(block: Callable[[Any, Any], Any], head: Callable[[Any, Any], Any] | None = None) -> Any:
    """A CausalLM of two blocks of a custom family: functions of tokens and padding mask.

    Args:
        block: the function.
        head: computes logits from the table of tokens and the last block's result.
    """
    ids, mask = (keras.Input((None,), dtype="int32", name=name) for name in ("token_ids", "padding_mask"))
    table = keras_hub.layers.ReversibleEmbedding(VOCABULARY, 16)
    x = table(ids)
    for _ in range(2):
        x = block(x, mask)
    backbone = keras.Model({"token_ids": ids, "padding_mask": mask}, x, name="backbone")

    class CustomCausalLM(models.CausalLM):
        def __init__(self):
            self.backbone, self.preprocessor = backbone, None
            if head is None:
                logits = table(backbone(backbone.input), reverse=True)
            else:
                logits = head(table, backbone.output)
            super().__init__(backbone.input, logits)

    backbone.vocabulary_size = VOCABULARY
    return redraw(CustomCausalLM())


def decoder_block() -> Callable[[Any, Any], Any]:
    """A block whose layer is the same one in each call."""
    layer = keras_hub.layers.TransformerDecoder(24, 4)
    return lambda x, mask: layer(x, decoder_padding_mask=mask)


HEADS: dict[str, Callable[[Any, Any], Any]] = {
    "table": lambda table, x: table(x, reverse=True),
    "scale": lambda table, x: table(x, reverse=True) * 0.5,
    "cap": lambda table, x: keras.ops.tanh(table(x, reverse=True) / 30.0) * 30.0,
    "product": lambda table, x: keras.ops.matmul(x, keras.ops.transpose(table.embeddings)) + 1.0,
}


@pytest.mark.parametrize("head", HEADS)
def test_only_the_input_of_the_head_is_cut(head: str, tmp_path):
    """The last block and the table of tokens are called before, too."""
    model = varied(of_blocks(decoder_block(), HEADS[head]), 3.0)
    report = export_onnx(model, tmp_path / "out")
    assert report.manifest.parity is not None
    assert any("last token alone" in case for case in report.manifest.parity.cases)
    genai = json.loads((tmp_path / "out" / contract.GENAI_CONFIG).read_text())["model"]
    assert (genai["vocab_size"], genai["decoder"]["hidden_size"]) == (VOCABULARY, 16)
    batch = opened(tmp_path / "out").generate(list(map(list, PROMPTS)), max_new_tokens=NEW_TOKENS)
    assert [text.ids for text in batch] == without_cache(model)


def test_logits_of_several_tensors_have_no_cache(tmp_path):
    model = of_blocks(decoder_block(), lambda table, x: table(x, reverse=True) + table(x * 2, reverse=True))
    with pytest.raises(ConfigError, match="reads one tensor"):
        export_onnx(model, tmp_path / "out", cache=True)


def test_wrong_logits_of_the_last_token_fail_verification(tmp_path, monkeypatch):
    cut = Cache.after_call

    def uncut(self: Cache, cx: Any, tensors: Any, results: Any) -> Any:
        cut(self, cx, tensors, results)
        return results

    monkeypatch.setattr(Cache, "after_call", uncut)
    with pytest.raises(ExportError, match="last token alone"):
        export_onnx(CASES["gpt2"].model(), tmp_path / "out")


class Scores(keras.layers.Layer):
    """Attention in operations, causal by positions that it counts itself."""

    def call(self, x):
        places = keras.ops.arange(keras.ops.shape(x)[1])
        scores = keras.ops.einsum("bid,bjd->bij", x, x)
        scores = keras.ops.where(places[None, :, None] >= places[None, None], scores, -1e9)
        return x + keras.ops.matmul(keras.ops.softmax(scores), x)


class Numbered(keras.layers.Layer):
    """Adds positions that it counts itself."""

    def build(self, shape):
        self.table = keras_hub.layers.PositionEmbedding(LENGTH)
        self.table.build(shape)

    def call(self, x):
        places = keras.ops.arange(keras.ops.shape(x)[1])[None]
        return x + self.table(x, positions=keras.ops.broadcast_to(places, keras.ops.shape(x)[:2]))


BLOCKS: dict[str, Callable[[Any, Any], Any]] = {
    "operations": lambda x, mask: Scores()(x),
    "not causal": lambda x, mask: keras_hub.layers.TransformerEncoder(24, 4)(x, padding_mask=mask),
    "masked outside": lambda x, mask: (
        keras_hub.layers.TransformerDecoder(24, 4)(x, decoder_padding_mask=mask)
        * keras.ops.cast(mask, "float32")[..., None]
    ),
    "without attention": lambda x, mask: keras.layers.Dense(16)(x),
    "convolution": lambda x, mask: decoder_block()(
        keras.layers.Conv1D(16, 3, padding="causal", data_format="channels_last")(x), mask
    ),
    "recurrent": lambda x, mask: decoder_block()(keras.layers.GRU(16, return_sequences=True)(x), mask),
    "mean": lambda x, mask: decoder_block()(x + keras.ops.mean(x, axis=1, keepdims=True), mask),
    "sum": lambda x, mask: decoder_block()(x + keras.ops.cumsum(x, axis=1), mask),
    "moved": lambda x, mask: decoder_block()(keras.ops.roll(x, 1, axis=1), mask),
    "norm of tokens": lambda x, mask: decoder_block()(keras.layers.GroupNormalization(4)(x), mask),
    "softmax of tokens": lambda x, mask: decoder_block()(x + keras.ops.softmax(x, axis=1), mask),
    "own positions": lambda x, mask: decoder_block()(Numbered()(x), mask),
    "layer of Keras": lambda x, mask: keras.layers.MultiHeadAttention(4, 4)(x, x, use_causal_mask=True),
}


class Masks(keras.layers.Layer):
    """An attention mask: a function of the places of queries and keys.

    Args:
        allowed: the function.
        count: whether places are those among the real tokens, in place of columns.
    """

    def __init__(self, allowed: Callable[[Any, Any], Any], count: bool = False):
        super().__init__()
        self.allowed, self.count = allowed, count

    def call(self, mask):
        columns = keras.ops.arange(keras.ops.shape(mask)[1])[None]
        places = keras.ops.cumsum(mask, axis=1) if self.count else columns
        return self.allowed(places[:, :, None], places[:, None, :])


def masked_by(allowed: Callable[[Any, Any], Any], count: bool = False) -> Callable[[Any, Any], Any]:
    return lambda x, mask: keras_hub.layers.TransformerDecoder(24, 4)(
        x, decoder_padding_mask=mask, decoder_attention_mask=Masks(allowed, count)(mask)
    )


DISTANCES: dict[str, Callable[[Any, Any], Any]] = {
    "window": masked_by(lambda query, key: query - key < 3),
    "compared": masked_by(lambda query, key: query < key + 3),
    "either": masked_by(
        lambda query, key: keras.ops.logical_or(query - key < 2, keras.ops.equal(query - key, 4))
    ),
    "real tokens": masked_by(lambda query, key: query - key < 3, count=True),
}


@pytest.mark.parametrize("block", DISTANCES)
def test_masks_of_distances(block: str, tmp_path):
    model = varied(of_blocks(DISTANCES[block]), 3.0)
    export_onnx(model, tmp_path / "out")
    batch = opened(tmp_path / "out").generate(list(map(list, PROMPTS)), max_new_tokens=NEW_TOKENS)
    assert [text.ids for text in batch] == without_cache(model)


COLUMNS: dict[str, Callable[[Any, Any], Any]] = {
    "chunks": masked_by(lambda query, key: keras.ops.equal(query // 4, key // 4)),
    "first keys": masked_by(lambda query, key: keras.ops.logical_or(query - key < 3, key < 3)),
    "sum": masked_by(lambda query, key: query + key < 20),
}


@pytest.mark.parametrize("block", COLUMNS)
def test_masks_of_columns_raise(block: str, tmp_path):
    with pytest.raises(ExportError, match=r"columns of tokens.*cache=False"):
        export_onnx(of_blocks(COLUMNS[block]), tmp_path / "out", verify=False)


def test_texts_that_padding_changes_fail_verification(tmp_path, monkeypatch):
    monkeypatch.setattr(cached_masks, "check_columns", lambda cx, x, kind: None)
    with pytest.raises(ExportError, match="padded on the left"):
        export_onnx(of_blocks(COLUMNS["first keys"]), tmp_path / "out")


@pytest.mark.parametrize("block", BLOCKS)
def test_unrecognized_blocks_raise(block: str, tmp_path):
    for opset in (17, 23):
        with pytest.raises(ExportError, match="cache=False"):
            export_onnx(of_blocks(BLOCKS[block]), tmp_path / "out", verify=False, opset=opset)


def test_custom_family(tmp_path):
    model = of_blocks(
        lambda x, mask: keras_hub.layers.TransformerDecoder(24, 4)(
            x + keras_hub.layers.PositionEmbedding(LENGTH)(x), decoder_padding_mask=mask
        )
    )
    export_onnx(model, tmp_path / "out")
    batch = opened(tmp_path / "out").generate(list(map(list, PROMPTS)), max_new_tokens=NEW_TOKENS)
    assert [text.ids for text in batch] == without_cache(model)


def test_difference_names_the_layer(tmp_path, monkeypatch):
    monkeypatch.setattr(cached_masks, "_is_padding", lambda mask: True)  # without the window
    with pytest.raises(ExportError, match=r"first layer that differs is .*transformer_layer_0.*cache=False"):
        export_onnx(CASES["mistral, window"].model(), tmp_path / "out")


def test_shared_cache_of_another_mask_raises(tmp_path):
    """Keys between others are excluded, which is no window."""
    with pytest.raises(ExportError, match="cache='shared'.*window"):
        export_onnx(of_blocks(DISTANCES["either"]), tmp_path / "out", cache="shared")


@pytest.mark.parametrize(
    ("name", "attribute"),
    [("mistral, window", "local_window_size"), ("gemma 2", "softcap"), ("bloom", "bias")],
)
def test_shared_cache_uses_the_options_of_the_operator(name: str, attribute: str, tmp_path):
    export_onnx(CASES[name].model(), tmp_path / "out", cache="shared")
    graph = onnx.load(tmp_path / "out" / contract.shared_name(contract.MODEL), load_external_data=False).graph
    nodes = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    assert len(nodes) == 2 and not any(node.op_type in ("Attention", "Softmax") for node in graph.node)
    options = {each.name for node in nodes for each in node.attribute}
    assert attribute in options | ({"bias"} if any(len(node.input) > 7 for node in nodes) else set())


@pytest.mark.parametrize("name", ["mistral, window", "gemma 2", "bloom"])
def test_shared_cache_of_other_precisions_and_of_many_clients(name: str, tmp_path):
    """Rows of the cache have different lengths, and so have windows and biases."""
    case = CASES[name]
    wide = dataclasses.replace(case, sizes={**case.sizes, "hidden_dim": 64, "intermediate_dim": 128})
    folder = tmp_path / "out"
    export_onnx(wide.model(), folder, cache="shared", precision=["fp32", "int8"])
    for precision in ("fp32", "int8"):
        assert (folder / contract.shared_name(contract.PRECISIONS[precision])).exists()
    with load(folder, provider="cpu") as writer:
        assert isinstance(writer, TextGenerator)
        expected = [writer.generate(list(prompt), max_new_tokens=20).ids for prompt in PROMPTS]
        with TextEngine(writer) as engine:
            streams = [engine.submit(list(prompt), max_new_tokens=20) for prompt in PROMPTS]
            assert [stream.result().ids for stream in streams] == expected


@pytest.mark.parametrize("window", [4, 100])
def test_wrong_window_of_a_shared_cache_fails_verification(window, tmp_path, monkeypatch):
    right = mask_distances.window_of
    monkeypatch.setattr(mask_distances, "window_of", lambda row: (right(row) or 0) + 1)
    with pytest.raises(ExportError, match="shared cache differs"):
        export_onnx(windowed_mistral(window), tmp_path / "out", cache="shared")


@pytest.mark.parametrize("window", [64, 100])
def test_wrong_window_of_a_quantized_shared_cache_is_refused(window, tmp_path, monkeypatch):
    folder = tmp_path / "out"
    export_onnx(windowed_mistral(window, hidden_dim=64, intermediate_dim=128), folder, cache="shared")
    shared = folder / contract.shared_name(contract.PRECISIONS["int8"])
    quantize(folder, "int8")
    assert shared.exists()
    right = mask_distances.window_of
    monkeypatch.setattr(mask_distances, "window_of", lambda row: (right(row) or 0) + 7)
    with pytest.raises(ExportError, match=rf"windows .*{window + 7}.*{window}"):
        quantize(folder, "int8")


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_verify_checks_the_window_of_a_shared_cache(precision: str, tmp_path):
    model, folder = windowed_mistral(64, hidden_dim=64, intermediate_dim=128), tmp_path / "out"
    export_onnx(model, folder, cache="shared", precision=list(dict.fromkeys(["fp32", precision])))
    check_name = "shared cache" if precision == "fp32" else precision
    assert check_of(folder, check_name).passed
    name = contract.shared_name(contract.PRECISIONS[precision])
    graph = onnx.load(folder / name)
    for node in graph.graph.node:
        for attribute in node.attribute:
            if attribute.name == "local_window_size":
                attribute.i += 7
    manifest = open_folder(folder).manifest
    onnx.save(graph, folder / name)
    files = {**manifest.files, name: contract.describe_file(folder / name)}
    dataclasses.replace(manifest, files=files).save(folder)
    check = check_of(folder, check_name)
    assert check.passed is False and ("windows" if precision == "int8" else "within") in check.detail


def test_window_that_no_text_exceeds_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_cache, "DISTANT", 50)
    folder, limits = tmp_path / "out", "of it, on texts no longer than its window of 64 tokens"
    report = export_onnx(windowed_mistral(64), folder, cache="shared")
    assert any(limits in note for note in report.manifest.notes)
    check = check_of(folder, "shared cache")
    assert check.passed and "on texts no longer than its window of 64 tokens" in check.detail
    monkeypatch.undo()
    assert "window" not in check_of(folder, "shared cache").detail


def check_of(folder: Path, name: str) -> Check:
    (check,) = (check for check in verify_folder(folder) if check.name == name)
    return check


def test_inputs_beside_texts_raise(tmp_path):
    from tests.benchmarks.tiny_backbones import FAMILIES

    (family,) = (family for family in FAMILIES if family.key == "pali_gemma")
    model = models.PaliGemmaCausalLM(backbone=family.make(1), preprocessor=None)
    with pytest.raises(ConfigError, match=r"inputs images"):
        export_onnx(model, tmp_path / "out", cache=True)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of layers that Keras does not quantize
def test_quantized_by_keras_has_no_cache(tmp_path):
    model = CASES["llama"].model()
    model.quantize("int4")
    with pytest.raises(ConfigError, match="quantized"):
        export_onnx(model, tmp_path / "out", cache=True)
    report = export_onnx(model, tmp_path / "out")
    assert report.manifest.task is None
    assert any("quantized" in note for note in report.manifest.notes)


def test_options_of_other_kinds_raise(tmp_path):
    with pytest.raises(ConfigError, match="labels"):
        export_onnx(CASES["gpt2"].model(), tmp_path / "out", labels=["a", "b"])
    with pytest.raises(ConfigError, match="task='text-generation'|cache=False"):
        export_onnx(CASES["gpt2"].model(), tmp_path / "out", task="text-generation", cache=False)
