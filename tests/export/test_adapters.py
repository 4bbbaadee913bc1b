"""Adapters beside the base model: the graph, the files, and every way to select one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnxruntime
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError, FolderError
from keras_tx.generation import PromptCache
from keras_tx.runtime import load, open_folder
from keras_tx.serving import MicroBatcher
from keras_tx_onnx import export_onnx, quantize
from keras_tx_onnx.tolerances import FLOAT32
from tests.drawing import as_numpy, draw, redraw
from tests.export.small_bert import HEADS, tiny
from tests.memory import resident
from tests.models.test_adapters import IDS, MODELS, drawn, inputs_of, outputs_of
from tests.tolerances import assert_close
from tests.wordpiece import wordpiece

PIXELS = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), "uint8")


def trained(base: Any, folder: Path, name: str, seed: int, **options: Any) -> Any:
    """A copy of the base with an adapter and another head, which is also saved as an adapter folder."""
    keras.utils.set_random_seed(seed)
    path = folder / "base.keras"
    if not path.exists():
        base.save(path)
    model = drawn(keras_tx.lora(keras_tx.load_model(path), **{"rank": 2, **options}), seed)
    random = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        if "lora" not in variable.name:
            variable.assign(random.normal(size=variable.shape))
    keras_tx.save_adapter(model, folder / name)
    return model


def in_onnxruntime(folder: Path, feed: dict[str, np.ndarray], adapter: str | None = None) -> np.ndarray:
    """The first output in onnxruntime, with its own interface for adapters."""
    session = onnxruntime.InferenceSession(folder / contract.MODEL, providers=["CPUExecutionProvider"])
    options = onnxruntime.RunOptions()
    if adapter is not None:
        file = onnxruntime.LoraAdapter()
        file.Load(str(folder / contract.ADAPTERS.format(adapter)))
        options.add_active_adapter(file)
    return session.run(None, feed, options)[0]


def feed_of(model: Any, folder: Path) -> dict[str, np.ndarray]:
    """The inputs of the graph for those of `outputs_of`."""
    inputs = inputs_of(model)
    if inputs.ndim == 4:
        return {contract.PIXEL_VALUES: np.ascontiguousarray(inputs.transpose(0, 3, 1, 2), "float32")}
    session = onnxruntime.InferenceSession(folder / contract.MODEL)
    feed = {}
    for spec in session.get_inputs():
        if spec.name.startswith("past"):
            feed[spec.name] = np.zeros((2, spec.shape[1], 0, spec.shape[3]), "float32")
        elif spec.name == contract.POSITION_IDS:
            feed[spec.name] = np.tile(np.arange(4), (2, 1))
        else:
            feed[spec.name] = np.ones_like(inputs) if "mask" in spec.name else inputs.astype("int64")
            feed[spec.name] *= spec.name != contract.TOKEN_TYPE_IDS
    return feed


@pytest.fixture(params=["bert", "gpt", "vit", "keras"])
def base(request: pytest.FixtureRequest) -> Any:
    return redraw(MODELS[request.param]())


def test_onnxruntime_computes_the_base_and_each_adapter(base, tmp_path):
    expected = {None: outputs_of(base)}
    for seed, (name, targets, stabilized) in enumerate(
        [("reviews", "attention", False), ("sport", "dense", True)], 1
    ):
        options = {"rank": seed + 1, "targets": targets, "rank_stabilized": stabilized}
        model = trained(base, tmp_path, name, seed, **options)
        expected[name] = outputs_of(model)
        assert np.abs(expected[name] - expected[None]).max() > 1e-2
    report = export_onnx(
        base, tmp_path / "out", adapters=[tmp_path / "reviews", tmp_path / "sport"], overwrite=True
    )
    assert np.array_equal(outputs_of(base), expected[None])
    for name, outputs in expected.items():
        feed = feed_of(base, tmp_path / "out")
        assert_close(in_onnxruntime(tmp_path / "out", feed, name), outputs, FLOAT32)
    assert 0 < report.manifest.adapters["sport"].parity.max_difference < FLOAT32
    assert "sport, within" in str(report)
    assert open_folder(tmp_path / "out").manifest == report.manifest


def test_merged_and_separate_exports_agree(tmp_path):
    base = redraw(MODELS["bert"]())
    model = trained(base, tmp_path, "reviews", 1, targets="dense")
    export_onnx(base, tmp_path / "separate", adapters={"mine": tmp_path / "reviews"}, verify=False)
    export_onnx(model, tmp_path / "merged", verify=False)
    feed = feed_of(base, tmp_path / "separate")
    merged = in_onnxruntime(tmp_path / "merged", feed)
    assert_close(in_onnxruntime(tmp_path / "separate", feed, "mine"), merged, FLOAT32)
    manifest = open_folder(tmp_path / "separate").manifest
    assert manifest.adapters["mine"].parity is None
    assert "adapters/mine.onnx_adapter" in manifest.files


@pytest.mark.parametrize("cache", [True, "shared"])
def test_a_decoder_generates_with_each_adapter(cache, tmp_path):
    base = redraw(keras_tx.gpt("pico"))
    prompts = [[5, 9, 200, 31], [7], [1, 2, 3]]
    options = {"max_new_tokens": 12, "stop_tokens": [], "do_sample": True, "seed": 0}
    expected = {}
    for seed, name in enumerate(["reviews", "sport"], 1):
        model = trained(base, tmp_path, name, seed, targets="dense")
        export_onnx(model, tmp_path / f"merged-{name}", cache=cache, verify=False)
        with load(tmp_path / f"merged-{name}") as merged:
            expected[name] = [x.ids for x in merged.generate(prompts, **options)]
        assert expected[name] == [x.ids for x in keras_tx.generate(model, prompts, **options)]
    export_onnx(base, tmp_path / "out", cache=cache, adapters=[tmp_path / "reviews", tmp_path / "sport"])
    with load(tmp_path / "out") as model:
        alone = [x.ids for x in model.generate(prompts, **options)]
        assert alone not in expected.values() and expected["reviews"] != expected["sport"]
        for name in ("reviews", "sport", "reviews"):
            assert [x.ids for x in model.generate(prompts, adapter=name, **options)] == expected[name]
            assert [x.ids for x in model(prompts, adapter=name, **options)] == expected[name]
        assert [x.ids for x in model(prompts, **options)] == alone
        streams = {
            name: model.stream(prompts[0], adapter=name, **options) for name in ("reviews", "sport", None)
        }
        interleaved = dict.fromkeys(streams, ())
        for _ in range(12):
            for name, stream in streams.items():
                interleaved[name] += (next(stream),)
        assert interleaved == {**{name: x[0] for name, x in expected.items()}, None: alone[0]}
        beams = model.with_adapter("sport").generate(prompts[0], num_beams=3, max_new_tokens=12)
        with load(tmp_path / "merged-sport") as merged:
            assert beams.ids == merged.generate(prompts[0], num_beams=3, max_new_tokens=12).ids


def test_a_prompt_cache_belongs_to_one_adapter(tmp_path):
    base = redraw(keras_tx.gpt("pico"))
    trained(base, tmp_path, "reviews", 1)
    export_onnx(base, tmp_path / "out", adapters=[tmp_path / "reviews"], verify=False)
    options = {"max_new_tokens": 4, "stop_tokens": []}
    with load(tmp_path / "out") as model:
        cache = PromptCache()
        first = list(model.stream([5, 9], adapter="reviews", prompt_cache=cache, **options))
        for other in (None, "reviews"):
            prompt = [5, 9, *first, 7]
            if other is None:
                with pytest.raises(ConfigError, match="prompt_cache"):
                    model.stream(prompt, prompt_cache=cache, **options)
            else:
                again = list(model.stream(prompt, adapter=other, prompt_cache=cache, **options))
                assert tuple(again) == model.generate(prompt, adapter=other, **options).ids
        copy = load(tmp_path / "out")
        with copy, pytest.raises(ConfigError, match="another model"):
            copy.stream(prompt, adapter="reviews", prompt_cache=cache, **options)


def test_each_adapter_has_its_class_names(tmp_path):
    base = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
    models = {}
    for seed, name in enumerate(["birds", "flowers"], 1):
        models[name] = trained(base, tmp_path, f"{name}-unnamed", seed)
        models[name].head = keras_tx.ClassifierHead(3, labels=[f"{name} {i}" for i in range(3)])
        keras_tx.save_adapter(models[name], tmp_path / name)
    folders = {name: tmp_path / name for name in models}
    export_onnx(base, tmp_path / "out", adapters={**folders, "unnamed": tmp_path / "birds-unnamed"})
    with load(tmp_path / "out") as classifier:
        assert classifier.adapters == ("birds", "flowers", "unnamed")
        for name, model in models.items():
            expected = as_numpy(keras.ops.softmax(model(model.processing(PIXELS[:1]))))[0]
            answer = classifier(PIXELS[0], adapter=name, top_k=3)
            assert {x["label"] for x in answer} == {f"{name} {i}" for i in range(3)}
            scores = [x["score"] for x in sorted(answer, key=lambda x: x["label"])]
            assert_close(np.array(scores), expected, FLOAT32)
        assert classifier.with_adapter("birds").with_adapter("unnamed").labels == classifier.labels
        with MicroBatcher(classifier, adapter="birds", top_k=1) as batcher:
            assert batcher(PIXELS[0])[0]["label"].startswith("birds")


TEXTS = {
    "classifier": ("the cat sat",),
    "tags": ("the cat sat",),
    "sentence": ("the cat sat",),
    "span": ("who sat?", "the cat sat on the mat"),
    "masked": ("the [MASK] sat",),
}


@pytest.mark.parametrize("head", TEXTS)
def test_text_tasks_have_adapters(head, tmp_path):
    base = tiny(HEADS[head], processing=keras_tx.TextTransform.of(wordpiece()))
    model = trained(base, tmp_path, "mine", 1, targets="dense")
    export_onnx(base, tmp_path / "out", adapters=[tmp_path / "mine"])
    export_onnx(model, tmp_path / "merged", verify=False)
    with load(tmp_path / "out") as separate, load(tmp_path / "merged") as merged:
        alone, adapted, expected = (
            numbers(separate(*TEXTS[head])),
            numbers(separate(*TEXTS[head], adapter="mine")),
            numbers(merged(*TEXTS[head])),
        )
    assert_close(adapted, expected, FLOAT32)
    assert alone.shape != expected.shape or np.abs(alone - expected).max() > 1e-3


def numbers(answers: Any) -> np.ndarray:
    """An embedding, or the scores of answers."""
    return answers if isinstance(answers, np.ndarray) else np.array([x["score"] for x in answers])


def test_the_base_is_in_memory_once(tmp_path):
    base = redraw(keras_tx.gpt("pico", width=512, num_heads=8, vocabulary_size=30000))  # 86 MB
    trained(base, tmp_path, "one", 1)
    folders = {f"adapter-{index}": tmp_path / "one" for index in range(8)}
    export_onnx(base, tmp_path / "out", adapters=folders, verify=False)
    size = (tmp_path / "out" / "adapters" / "adapter-0.onnx_adapter").stat().st_size
    with load(tmp_path / "out") as model:
        model.generate([5, 9], max_new_tokens=2, adapter="adapter-0")
        before = resident()
        for name in model.adapters:
            model.generate([5, 9], max_new_tokens=2, adapter=name)
        assert resident() - before < 8 * size + 2**23


def test_unknown_and_damaged_adapters_raise(tmp_path):
    base = redraw(MODELS["keras"]())
    trained(base, tmp_path, "reviews", 1)
    export_onnx(base, tmp_path / "out", adapters=[tmp_path / "reviews"], verify=False)
    with load(tmp_path / "out") as model:
        with pytest.raises(ConfigError, match=r"'review'.*has the adapters reviews"):
            model({"input": IDS}, adapter="review")
        adapted = model.with_adapter("reviews")
        assert adapted.run({"input": IDS})
    with pytest.raises(keras_tx.errors.KerasTxError, match="closed"):
        adapted.run({"input": IDS})
    file = tmp_path / "out" / "adapters" / "reviews.onnx_adapter"
    with load(tmp_path / "out") as model:
        content = bytearray(file.read_bytes())
        content[-8] ^= 1
        file.write_bytes(content)
        with pytest.raises(FolderError, match="reviews"):
            model({"input": IDS}, adapter="reviews")
    manifest = tmp_path / "out" / contract.MANIFEST
    content = json.loads(manifest.read_text())
    content["adapters"]["reviews"]["file"] = "adapters/other.onnx_adapter"
    manifest.write_text(json.dumps(content))
    with pytest.raises(FolderError, match="other"):
        load(tmp_path / "out")


def test_adapters_that_cannot_be_separate_raise(tmp_path):
    base = redraw(MODELS["bert"]())
    model = trained(base, tmp_path, "reviews", 1)
    trained(base, tmp_path, "dora", 1, dora=True)
    out, reviews = tmp_path / "out", tmp_path / "reviews"
    with pytest.raises(ConfigError, match="'dora'.*DoRA"):
        export_onnx(base, out, adapters=[tmp_path / "dora"])
    with pytest.raises(ConfigError, match="has some"):
        export_onnx(model, out, adapters=[reviews])
    with pytest.raises(ConfigError, match="'a/b'"):
        export_onnx(base, out, adapters={"a/b": reviews})
    with pytest.raises(ConfigError, match="two folders"):
        export_onnx(base, out, adapters=[reviews, reviews])
    with pytest.raises(ConfigError, match="expected a list"):
        export_onnx(base, out, adapters=str(reviews))
    with pytest.raises(ConfigError, match="adapter_config"):
        export_onnx(base, out, adapters=[tmp_path])
    assert not out.exists()


def test_a_weight_that_is_used_otherwise_raises(tmp_path):
    def turned() -> keras.Model:
        x = keras.Input((4, 6))
        return redraw(keras.Model(x, keras.layers.EinsumDense("abc,cd->adb", (5, None), name="turned")(x)))

    model = drawn(keras_tx.lora(turned(), 2, targets=["turned"], train_also=()))
    keras_tx.save_adapter(model, tmp_path / "one")
    with pytest.raises(ExportError, match=r"'turned/kernel'.*Einsum"):
        export_onnx(turned(), tmp_path / "out", adapters=[tmp_path / "one"])


def test_a_kernel_with_several_output_axes(tmp_path):
    x = keras.Input((4, 6))
    y = keras.layers.EinsumDense("abc,cde->abde", (None, 3, 5), name="heads")(x)
    base = redraw(keras.Model(x, keras.layers.Reshape((4, 15))(y)))
    base.save(tmp_path / "base.keras")
    model = drawn(
        keras_tx.lora(keras_tx.load_model(tmp_path / "base.keras"), 2, targets=["heads"], train_also=())
    )
    keras_tx.save_adapter(model, tmp_path / "one")
    export_onnx(base, tmp_path / "out", adapters=[tmp_path / "one"])
    inputs = draw(2, 4, 6)
    with load(tmp_path / "out") as graph:
        (output,) = graph(inputs, adapter="one").values()
    assert_close(output, as_numpy(model(inputs)), FLOAT32)


def test_one_weight_of_the_graph_is_replaced_and_has_a_product(tmp_path):
    """Query, key and value are one weight: here query has an adapter, and value is fully trained."""
    base = redraw(MODELS["vit"]())
    model = trained(base, tmp_path, "one", 1, targets=["query"], train_also=["value"])
    trained(base, tmp_path, "other", 2, targets=["key", "output"], train_also=())
    export_onnx(base, tmp_path / "out", adapters=[tmp_path / "one", tmp_path / "other"])
    feed = feed_of(base, tmp_path / "out")
    assert_close(in_onnxruntime(tmp_path / "out", feed, "one"), outputs_of(model), FLOAT32)


def test_an_adapter_that_the_graph_computes_wrongly_raises(tmp_path, monkeypatch):
    base = redraw(MODELS["bert"]())
    trained(base, tmp_path, "reviews", 1)
    from keras_tx_onnx.graph import adapter_ports

    packed = adapter_ports._packed
    monkeypatch.setattr(adapter_ports, "_packed", lambda *x: tuple(y * 1.1 for y in packed(*x)))
    with pytest.raises(ExportError, match="Adapter 'reviews'"):
        export_onnx(base, tmp_path / "out", adapters=[tmp_path / "reviews"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("precision", ["fp16", "int8", "int8-blocks", "int4"])
def test_adapters_of_lower_precisions(precision, tmp_path):
    base = redraw(MODELS["bert"]())
    model = trained(base, tmp_path, "reviews", 1)
    export_onnx(base, tmp_path / "out", adapters=[tmp_path / "reviews"])
    quantize(tmp_path / "out", precision)
    feed = {"input_ids": IDS, "attention_mask": np.ones_like(IDS), "token_type_ids": np.zeros_like(IDS)}
    with load(tmp_path / "out", precision=precision) as quantized, load(tmp_path / "out") as exact:
        noise = exact.folder.manifest.variants[precision].noise
        alone = quantized(feed)["logits"]
        adapted = quantized(feed, adapter="reviews")["logits"]
    assert_close(adapted, outputs_of(model), noise + 0.05)
    assert np.abs(adapted - alone).max() > 0.1
