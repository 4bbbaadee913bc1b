"""A graph with a shared cache computes the same as the standard graph, without copies."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError, FolderError
from keras_tx.generation import PromptCache
from keras_tx.runtime import TextGenerator, load
from keras_tx.runtime.cached_decoder import CachedDecoder
from keras_tx.runtime.shared_cache import STEP, SharedCache, SharedCacheDecoder, batch_lengths
from keras_tx.runtime.verification import verify_folder
from keras_tx_onnx import export_onnx
from keras_tx_onnx.graph.shared_cache import check_shared, share_cache, write_shared
from keras_tx_onnx.interfaces import decoder
from tests.decoder_architectures import ARCHITECTURES
from tests.drawing import redraw

MODELS = {"pico": ("pico", {}), "llama-tiny": ("llama-tiny", {}), **ARCHITECTURES}
PROMPTS = [[5, 17, 99], [1], [200, 3, 3, 42, 7, 9]]
SHARED = contract.shared_name(contract.MODEL)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    made = {}
    for name, (variant, options) in MODELS.items():
        made[name] = tmp_path_factory.mktemp(name) / "poet"
        model = redraw(keras_tx.gpt(variant, max_length=300, **options))
        report = export_onnx(model, made[name], cache="shared")
        assert any(f"onnx/model_shared.onnx is {contract.MODEL}" in note for note in report.manifest.notes)
    return made


def opened(folder: Path, shared: bool = True) -> TextGenerator:
    model = load(folder, provider="cpu", threads=1)
    assert isinstance(model, TextGenerator)
    assert isinstance(model.decoder, SharedCacheDecoder)
    if not shared:
        from keras_tx.runtime.session import Session

        model.decoder = CachedDecoder(Session(folder / contract.MODEL, "cpu", 1), model.context)
    return model


@pytest.mark.parametrize("variant", MODELS)
def test_tokens_equal_those_of_standard_graph(folders, variant):
    options: list[dict[str, Any]] = [
        {"max_new_tokens": 256},
        {"seed": 4, "top_p": 0.9, "samples": 3, "max_new_tokens": 40, "log_probabilities": True},
        {"max_new_tokens": 40, "stop_tokens": list(range(0, 256, 9)), "seed": 1, "samples": 4},
        {"at_context": "slide", "max_new_tokens": 340},
    ]
    with opened(folders[variant]) as ours, opened(folders[variant], shared=False) as theirs:
        for option in options:
            actual, expected = ours.generate(PROMPTS, **option), theirs.generate(PROMPTS, **option)
            assert ids_of(actual) == ids_of(expected)
            assert ids_of(ours.generate(PROMPTS[2], **option)) == ids_of(expected[2])
        text = np.random.default_rng(0).integers(0, 256, 280)
        np.testing.assert_allclose(
            ours.score(text).log_probabilities, theirs.score(text).log_probabilities, atol=1e-4
        )


def test_prompts_of_similar_length_are_prefilled_together(folders, monkeypatch):
    random = np.random.default_rng(3)
    prompts = [random.integers(0, 256, length).tolist() for length in (8, 9, 10, 9, 3, 3, 20, 1, 2)]
    sizes = []
    run = SharedCache.run

    def watched(self: SharedCache, ids: np.ndarray, *more: Any) -> np.ndarray:
        sizes.append(ids.shape)
        return run(self, ids, *more)

    monkeypatch.setattr(SharedCache, "run", watched)
    options: dict[str, Any] = {"max_new_tokens": 6, "log_probabilities": True}
    with opened(folders["llama-tiny"]) as ours, opened(folders["llama-tiny"], shared=False) as theirs:
        actual, expected = ours.generate(prompts, **options), theirs.generate(prompts, **options)
    assert sizes[:4] == [(1, 20), (4, 10), (3, 3), (1, 1)]  # the longest first
    for one, other in zip(actual, expected, strict=True):
        assert one.ids == other.ids
        np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, atol=1e-4)


@pytest.mark.parametrize("window", [0, 4, 128, 512, 1024])
@pytest.mark.parametrize("vocabulary_size", [50, 128_256, 262_144])
def test_verification_prefills_two_texts_together(window, vocabulary_size):
    decoder = object.__new__(SharedCacheDecoder)
    decoder.vocabulary_size = vocabulary_size
    lengths = np.array(batch_lengths(window + STEP))
    assert decoder._groups(lengths) == [slice(0, 2), slice(2, 3)]
    assert lengths[0] >= window  # the tokens that follow exceed it


def ids_of(made: Any) -> Any:
    return [ids_of(one) for one in made] if isinstance(made, list) else made.ids


def test_prompt_cache_and_interleaved_streams(folders):
    with opened(folders["pico"]) as model:
        memory = PromptCache()
        first = list(model.stream([1, 2, 3], max_new_tokens=4, prompt_cache=memory))
        room = memory.past.room
        prompt = [*memory.ids, 9, 8]
        expected = model.generate(prompt, max_new_tokens=60).ids
        stream = model.stream(prompt, max_new_tokens=60, prompt_cache=memory)
        other = model.stream([7, 7], max_new_tokens=60)
        pairs = [(next(stream), next(other)) for _ in range(50)]
        assert tuple(a for a, _ in pairs) == expected[:50]
        assert tuple(b for _, b in pairs) == model.generate([7, 7], max_new_tokens=50).ids
        stream.close()
        assert memory.past.room > room
        assert [1, 2, 3, *first] == memory.ids[:7]
        again = [*memory.ids, 4]
        assert (
            tuple(model.stream(again, max_new_tokens=9, prompt_cache=memory))
            == model.generate(again, max_new_tokens=9).ids
        )


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("calls", range(1, 5))
def test_interruption_during_run(folders, shared, calls):
    """Before, during or after the run of any decode step, the session and the prompt cache stay usable."""
    with opened(folders["pico"], shared) as model:
        expected = model.generate([1, 2, 3], max_new_tokens=12).ids
        session = model.decoder._session  # type: ignore[attr-defined]
        memory = PromptCache()
        inner = session._session

        class Interrupted:
            left = calls

            def run_with_iobinding(self, binding: Any, options: Any) -> None:
                inner.run_with_iobinding(binding, options)
                self.left -= 1
                if self.left == 0:
                    raise KeyboardInterrupt

            def __getattr__(self, name: str) -> Any:
                return getattr(inner, name)

        session._session = Interrupted()
        made = []
        with pytest.raises(KeyboardInterrupt):
            for token in model.stream([1, 2, 3], max_new_tokens=12, prompt_cache=memory):
                made.append(token)
        session._session = inner
        assert tuple(made) == expected[: calls - 1]
        assert model.generate([1, 2, 3], max_new_tokens=12).ids == expected
        longer = [1, 2, 3, *made, 7]
        again = tuple(model.stream(longer, max_new_tokens=6, prompt_cache=memory))
        assert again == model.generate(longer, max_new_tokens=6).ids


def test_concurrent_generation(folders):
    """Threads generate different texts with one session."""
    with opened(folders["pico"]) as model:
        prompts = [[index, index + 1] for index in range(8)]
        expected = [model.generate(prompt, max_new_tokens=30).ids for prompt in prompts]
        with ThreadPoolExecutor(4) as threads:
            actual = list(threads.map(lambda prompt: model.generate(prompt, max_new_tokens=30).ids, prompts))
        assert actual == expected


def test_decode_step_copies_nothing(folders, monkeypatch):
    """Keys and values stay in the same memory, which has the requested size."""
    with opened(folders["pico"]) as model:
        pasts: list[SharedCache] = []
        run = model.decoder.run

        def watched(*arguments: Any, **options: Any) -> Any:
            logits, past = run(*arguments, **options)
            pasts.append(past)
            return logits, past

        monkeypatch.setattr(model.decoder, "run", watched)
        monkeypatch.setattr(SharedCache, "copy", None)
        model.generate(PROMPTS, max_new_tokens=20)
        assert len(pasts) == 20
        assert len({id(past) for past in pasts}) == 1
        (past,) = {id(past): past for past in pasts}.values()
        assert past.used == 6 + 19
        assert past.room == 6 + 20
        config = keras_tx.gpt("pico").config
        assert past.nbytes == 2 * config.depth * 3 * 26 * config.width * 4
        filled = [
            [bool(array[row].any(axis=(0, 2))[place]) for place in (24, 25)]
            for row in range(3)
            for array in past.arrays[:1]
        ]
        assert filled == [[True, False], [False, False], [False, False]]  # the longest prompt first


def test_reorder():
    from keras_tx.runtime.cached_decoder import DecoderSignature

    spec = contract.TensorSpec("past", "float32", ("b", 1, "p", 1))
    ports = DecoderSignature((spec,), ("present",), spec, True)
    nobody: Any = None
    base = np.arange(4)[:, None] * 10 + np.arange(5)
    for rows, first in (([0, 0, 3, 2], 0), ([3, 2, 1, 0], 2), ([1, 3], 0), ([0, 1, 2, 3], 0)):
        past = SharedCache(ports, nobody, [base.reshape(4, 1, 5, 1).astype("float32")], used=4)
        actual = past.reorder(rows, first).arrays[0][:, 0, :, 0]
        expected = base[rows].copy()
        moved = [i for i, row in enumerate(rows) if i != row]
        expected[moved, :first] = base[moved, :first]  # known to be equal, and not copied
        np.testing.assert_array_equal(actual[:, :4], expected[:, :4])


def test_only_causal_attention_is_replaced(folders):
    path = folders["pico"] / contract.MODEL
    model = ir.load(path)
    assert share_cache(model, 300) == keras_tx.gpt("pico").config.depth
    assert not {"Attention", "Split", "Expand"} & {node.op_type for node in model.graph}
    model = ir.load(path)
    next(n for n in model.graph if n.op_type == "Attention").attributes["is_causal"] = ir.AttrInt64(
        "is_causal", 0
    )
    assert share_cache(model, 300) == 0
    assert sum(node.op_type == "Attention" for node in model.graph) > 0


@pytest.mark.parametrize(
    "variant, sizes",
    [("pico", (60, 5)), ("llama-tiny", (56, 4)), ("llama-tiny", (40, 4))],
)
def test_head_widths_are_padded_to_multiples_of_8(variant, sizes, tmp_path):
    """Widths of 12, 14 and 10 channels, with and without grouped queries and rotary positions."""
    width, heads = sizes
    model = redraw(keras_tx.gpt(variant, width=width, num_heads=heads, max_length=300))
    folder = tmp_path / "poet"
    export_onnx(model, folder, cache="shared")
    shared = onnx.load(folder / SHARED).graph
    past = next(x for x in shared.input if x.name == "past_key_values.0.key")
    assert past.type.tensor_type.shape.dim[3].dim_value == 16
    with opened(folder) as ours, opened(folder, shared=False) as theirs:
        for option in ({"max_new_tokens": 60}, {"num_beams": 3, "max_new_tokens": 20}):
            assert ids_of(ours.generate(PROMPTS, **option)) == ids_of(theirs.generate(PROMPTS, **option))


def test_values_of_another_width_are_not_shared(folders):
    model = ir.load(folders["pico"] / contract.MODEL)
    port = next(x for x in model.graph.inputs if x.name == "past_key_values.0.value")
    port.shape = ir.Shape([*list(port.shape)[:3], 24])
    assert share_cache(model, 300) == 0


def test_wrong_shared_graph_raises(folders, tmp_path):
    path = folders["pico"] / contract.MODEL
    wrong = onnx.load(folders["pico"] / SHARED)
    node = next(n for n in wrong.graph.node if n.op_type == "GroupQueryAttention")
    node.attribute.append(onnx.helper.make_attribute("scale", 0.2))
    onnx.save(wrong, tmp_path / "wrong.onnx")
    with pytest.raises(ExportError, match="shared cache"):
        check_shared(path, tmp_path / "wrong.onnx", 300, exact=True)


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method:UserWarning")
@pytest.mark.parametrize(
    ("mode", "wrong_scale", "tolerance"), [("int4", 0.2, "1e-04"), ("int8", 9.0, "1e-01")]
)
def test_models_that_keras_quantized(tmp_path, monkeypatch, mode, wrong_scale, tolerance):
    """Weights of 4 bits compute in float32: a smaller difference than that of rounding is an error, too."""
    model = redraw(keras_tx.gpt("pico", width=64, vocabulary_size=50, max_length=32))
    model.quantize(mode)
    folder = tmp_path / "poet"
    export_onnx(model, folder, cache="shared")
    check = {check.name: check for check in verify_folder(folder)}["shared cache"]
    assert check.passed and f"(tolerance {tolerance})" in check.detail

    def write_wrong(path: Path, context: int) -> Path:
        shared = write_shared(path, context)
        assert shared is not None
        graph = onnx.load(shared)
        node = next(n for n in graph.graph.node if n.op_type == "GroupQueryAttention")
        node.attribute.append(onnx.helper.make_attribute("scale", wrong_scale))
        onnx.save(graph, shared)
        return shared

    monkeypatch.setattr(decoder, "write_shared", write_wrong)
    with pytest.raises(ExportError, match=rf"shared cache.*\(tolerance {tolerance}\)"):
        export_onnx(model, tmp_path / "wrong", cache="shared")


def test_verify_checks_both_graphs(folders, tmp_path):
    checks = {check.name: check for check in verify_folder(folders["pico"])}
    assert checks["shared cache"].passed
    assert "model_shared.onnx computes the logits of model.onnx" in checks["shared cache"].detail
    folder = tmp_path / "poet"
    shutil.copytree(folders["pico"], folder)
    (folder / SHARED).write_bytes((folder / SHARED).read_bytes()[:-1] + b"\0")
    with pytest.raises(FolderError, match=r"model_shared\.onnx has sha256"):
        load(folder)


def test_shared_graph_is_written_for_large_weights(tmp_path, monkeypatch):
    model = keras_tx.gpt("pico")
    export_onnx(model, tmp_path / "small")
    assert not (tmp_path / "small" / SHARED).exists()
    with pytest.raises(ConfigError, match=r"cache='shared'.*opset=23.*opset=18"):
        export_onnx(model, tmp_path / "old", cache="shared", opset=18)
    with pytest.raises(ConfigError, match="cache='share'"):
        export_onnx(model, tmp_path / "new", cache="share")
    monkeypatch.setattr(contract, "EXTERNAL_DATA_FROM", 1000)
    report = export_onnx(model, tmp_path / "large", verify=False)
    folder = tmp_path / "large"
    assert (folder / SHARED).stat().st_size < 100_000 < (folder / contract.MODEL_DATA).stat().st_size
    assert any("NOT compared with it" in note for note in report.manifest.notes)
    with opened(folder) as poet:
        assert len(poet.generate([1], max_new_tokens=3).ids) == 3


def test_cancelled_generation_stops(folders):
    async def cancel(model: TextGenerator) -> None:
        task = asyncio.create_task(model.call_async([1, 2], max_new_tokens=10**9, at_context="slide"))
        await asyncio.sleep(0.2)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with opened(folders["pico"]) as model:
        expected = model.generate([1, 2], max_new_tokens=9)
        asyncio.run(cancel(model))  # waits for its threads, which end only if generation stops
        assert model.generate([1, 2], max_new_tokens=9) == expected
