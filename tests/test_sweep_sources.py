"""Every head from every source: fit, save, load, export, run; the folder answers as Keras does.

The other two sweeps vary sizes and precisions of models that a factory made. This one varies where a model
comes from, since each source makes its variables, its metrics and its processing in a way of its own. Of
the 112 pairs a quick run has the sources QUICK for every head, and every source for one head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.processing import TextTransform
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, redraw, redraw_torch
from tests.tolerances import assert_close
from tests.wordpiece import VOCABULARY, wordpiece

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:.*(newly initialized|unused):"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # keras-hub's
]

TEXTS = ["the cat sat on the [MASK].", "ada lives in [MASK]", "[MASK]!", "we love the very good [MASK]"]
IMAGES = np.random.default_rng(3).integers(0, 256, (4, 8, 8, 3), "uint8")
WIDTH, DEPTH, HEADS, MLP, LENGTH, PATCH = 16, 1, 2, 24, 32, 2
CLASSES = 3
SIZES = {"width": WIDTH, "depth": DEPTH, "num_heads": HEADS, "mlp_dim": MLP}
TEXT_SIZES = {**SIZES, "vocabulary_size": len(VOCABULARY), "max_length": LENGTH}


@dataclasses.dataclass(frozen=True)
class Case:
    """A head of a family; `other` is the head that a checkpoint has when this one is new to it."""

    family: str
    head: Any
    other: Any
    theirs: str  # the class of transformers that writes its folder
    options: tuple[tuple[str, Any], ...] = ()  # of that class's config


MASKED, CLASSIFIER = keras_tx.MaskedLMHead(), keras_tx.ClassifierHead(CLASSES)
LABELS = (("num_labels", CLASSES),)
SEVERAL = (*LABELS, ("problem_type", "multi_label_classification"))
ONE_NUMBER = (("num_labels", 1), ("problem_type", "regression"))
CASES = {
    "bert, classes": Case("bert", CLASSIFIER, MASKED, "BertForSequenceClassification", LABELS),
    "bert, several": Case(
        "bert", keras_tx.MultiLabelHead(CLASSES), MASKED, "BertForSequenceClassification", SEVERAL
    ),
    "bert, number": Case(
        "bert", keras_tx.RegressionHead(), MASKED, "BertForSequenceClassification", ONE_NUMBER
    ),
    "bert, next": Case("bert", keras_tx.NextSentenceHead(), MASKED, "BertForNextSentencePrediction"),
    "bert, tags": Case(
        "bert", keras_tx.TokenClassifierHead(CLASSES), MASKED, "BertForTokenClassification", LABELS
    ),
    "bert, span": Case("bert", keras_tx.SpanHead(), MASKED, "BertForQuestionAnswering"),
    "bert, masked": Case("bert", MASKED, CLASSIFIER, "BertForMaskedLM"),
    "bert, both": Case("bert", keras_tx.PretrainingHead(), CLASSIFIER, "BertForPreTraining"),
    "bert, sentence": Case("bert", keras_tx.SentenceEmbeddingHead(), MASKED, "BertModel"),
    "bert, none": Case("bert", None, CLASSIFIER, "BertModel"),
    "gpt": Case("gpt", keras_tx.CausalLMHead(), None, "GPT2LMHeadModel"),
    "gpt, none": Case("gpt", None, keras_tx.CausalLMHead(), "GPT2Model"),
    "vit, classes": Case("vit", CLASSIFIER, None, "ViTForImageClassification", LABELS),
    "vit, several": Case(
        "vit", keras_tx.MultiLabelHead(CLASSES), CLASSIFIER, "ViTForImageClassification", SEVERAL
    ),
    "vit, none": Case("vit", None, CLASSIFIER, "ViTModel"),
    "deit": Case(
        "deit",
        keras_tx.DistilledClassifierHead(CLASSES),
        None,
        "DeiTForImageClassificationWithTeacher",
        LABELS,
    ),
}


def transform() -> TextTransform:
    return TextTransform.of(wordpiece())


def made(case: Case, head: Any) -> Any:
    """What a factory makes, redrawn."""
    if case.family == "bert":
        return redraw(keras_tx.bert("tiny", head=head, processing=transform(), **TEXT_SIZES))
    if case.family == "gpt":
        return redraw(keras_tx.gpt("pico", head=head, processing=transform(), **TEXT_SIZES))
    deit = {"distillation": True} if case.family == "deit" else {}
    return redraw(keras_tx.vit("Mu/2", head=head, image_size=8, **SIZES, **deit))


def fresh(case: Case, place: Path) -> Any:
    return made(case, case.head)


def own_checkpoint(case: Case, place: Path) -> Any:
    keras_tx.save_checkpoint(made(case, case.head), place / "checkpoint")
    return keras_tx.from_checkpoint(place / "checkpoint", head=case.head, **processed(case))


def other_checkpoint(case: Case, place: Path) -> Any:
    keras_tx.save_checkpoint(made(case, case.other), place / "checkpoint")
    return keras_tx.from_checkpoint(place / "checkpoint", head=case.head, **processed(case))


def keras_file(case: Case, place: Path) -> Any:
    made(case, case.head).save(place / "before.keras")
    return keras_tx.load_model(place / "before.keras")


def weights_of_keras_file(case: Case, place: Path) -> Any:
    made(case, case.other).save(place / "before.keras")
    return keras_tx.from_checkpoint(place / "before.keras", head=case.head)


def hugging_face(case: Case, place: Path) -> Any:
    pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    names = {"bert": "BertConfig", "gpt": "GPT2Config", "vit": "ViTConfig", "deit": "DeiTConfig"}
    sizes: dict[str, Any] = {
        "hidden_size": WIDTH,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "intermediate_size": MLP,
    }
    if case.family == "gpt":
        sizes = {"n_embd": WIDTH, "n_layer": DEPTH, "n_head": HEADS, "n_inner": MLP, "n_positions": LENGTH}
    if case.family in ("vit", "deit"):
        sizes |= {"image_size": 8, "patch_size": PATCH}
    else:
        sizes |= {"vocab_size": len(VOCABULARY)}
    if case.family == "bert":
        sizes |= {"max_position_embeddings": LENGTH}
    config = getattr(transformers, names[case.family])(**sizes, **dict(case.options))
    redraw_torch(getattr(transformers, case.theirs)(config)).save_pretrained(place / "theirs")
    return keras_tx.from_checkpoint(place / "theirs", head=case.head, **processed(case))


def keras_hub(case: Case, place: Path) -> Any:
    hub = pytest.importorskip("keras_hub", reason='pip install "keras-tx[cpu]"')
    sizes = {"num_layers": DEPTH, "num_heads": HEADS, "hidden_dim": WIDTH}
    if case.family in ("vit", "deit"):
        kind, wide = ("ViT", "mlp_dim") if case.family == "vit" else ("DeiT", "intermediate_dim")
        sizes |= {"image_shape": (8, 8, 3), "patch_size": PATCH, wide: MLP}
    else:
        kind = "Bert" if case.family == "bert" else "GPT2"
        sizes |= {
            "vocabulary_size": len(VOCABULARY),
            "intermediate_dim": MLP,
            "max_sequence_length": LENGTH,
        }
    backbone = redraw(getattr(hub.models, f"{kind}Backbone")(**sizes))
    return keras_tx.from_checkpoint(backbone, head=case.head, **processed(case))


SOURCES: dict[str, Callable[[Case, Path], Any]] = {
    "a factory": fresh,
    "its checkpoint": own_checkpoint,
    "the checkpoint of another head": other_checkpoint,
    "a .keras file": keras_file,
    "the weights of a .keras file": weights_of_keras_file,
    "transformers": hugging_face,
    "keras-hub": keras_hub,
}
QUICK = ("the checkpoint of another head", "transformers")
REFUSED = {("deit", "keras-hub"): "head=DistilledClassifierHead has two classifiers"}
PAIRS = [
    pytest.param(name, source, marks=() if source in QUICK or name == "bert, classes" else pytest.mark.slow)
    for name in CASES
    for source in SOURCES
    if (name, source) not in REFUSED
]


def processed(case: Case) -> dict[str, Any]:
    return {"processing": transform()} if case.family in ("bert", "gpt") else {}


def inputs_of(model: Any) -> dict[str, np.ndarray]:
    if isinstance(model, keras_tx.ViT):
        return {"images": model.processing(list(IMAGES))}
    arrays = model.processing(TEXTS)
    return {name: arrays[name] for name in model.input if name in arrays}


def outputs_of(model: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    out = as_numpy(model(inputs.get("images", inputs)))
    return out if isinstance(out, dict) else {"": out}


def labels_of(case: Case, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> Any:
    head, samples = case.head, np.arange(len(TEXTS)) % 2
    if head is None:
        zeros = {name: np.zeros_like(x) for name, x in outputs.items()}
        return zeros.get("", zeros)
    if isinstance(head, keras_tx.SpanHead):
        return {"start_logits": samples, "end_logits": samples + 1}
    if isinstance(head, keras_tx.MultiLabelHead):
        return np.eye(CLASSES, dtype="float32")[samples]
    if isinstance(head, keras_tx.RegressionHead):
        return samples.astype("float32")
    if isinstance(head, keras_tx.PretrainingHead):
        tokens = np.where(inputs["attention_mask"] == 1, inputs["input_ids"], -100)
        return {"prediction_logits": tokens, "seq_relationship_logits": samples}
    if head.token_outputs:
        return np.where(inputs["attention_mask"] == 1, inputs["input_ids"] % CLASSES, -100)
    return samples


def fitted(case: Case, model: Any) -> None:
    inputs = inputs_of(model)
    labels = labels_of(case, inputs, outputs_of(model, inputs))
    if case.head is None:
        model.compile(loss={name: "mse" for name in labels} if isinstance(labels, dict) else "mse")
    else:
        model.compile()
    x = inputs.get("images", inputs)
    history = model.fit(x, labels, batch_size=2, verbose=0, validation_data=(x, labels))
    assert all(np.isfinite(values).all() for values in history.history.values())


def asked(case: Case, runtime: Any) -> Any:
    """The answer of the folder to texts or pictures, in the way of its task."""
    if case.family in ("vit", "deit"):
        return runtime(list(IMAGES))
    if case.family == "gpt":
        return None if case.head is None else runtime.generate(TEXTS, max_new_tokens=3)
    if isinstance(case.head, keras_tx.SpanHead):
        return runtime.answer(TEXTS, TEXTS[::-1])
    return None if isinstance(case.head, keras_tx.PretrainingHead) else runtime(TEXTS)


@pytest.mark.parametrize(("name", "source"), REFUSED)
def test_head_without_weights_in_the_source(name: str, source: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=REFUSED[name, source]):
        SOURCES[source](CASES[name], tmp_path)


@pytest.mark.parametrize(("name", "source"), PAIRS)
def test_load_export_and_run(name: str, source: str, tmp_path: Path):
    case = CASES[name]
    model = SOURCES[source](case, tmp_path)
    assert model.head == case.head
    fitted(case, model)
    inputs = inputs_of(model)
    expected = outputs_of(model, inputs)
    model.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    for key, value in outputs_of(model, inputs).items():
        np.testing.assert_array_equal(value, expected[key])

    report = export_onnx(model, tmp_path / "folder")
    # The hidden states of a decoder are a graph that no task of Hugging Face has.
    assert report.manifest.task == (None if name == "gpt, none" else model.task)
    with load(tmp_path / "folder", provider="cpu") as runtime:
        answers = asked(case, runtime)
        if case.family == "gpt" and case.head is not None:
            mine = keras_tx.generate(model, TEXTS, max_new_tokens=3)
            assert [made.ids for made in answers] == [made.ids for made in mine]
            return
        if "images" in inputs:
            fed = {runtime.session.inputs[0].name: inputs["images"].transpose(0, 3, 1, 2)}
        else:
            fed = {name: x.astype("int64") for name, x in as_numpy(model.complete(inputs)).items()}
        out = runtime.session.run(fed)
        assert answers is None or len(answers) == len(TEXTS)
        if isinstance(case.head, keras_tx.SentenceEmbeddingHead):
            out = {"": answers}  # the graph has the hidden states; the folder pools them
    real = inputs["attention_mask"].astype(bool) if "attention_mask" in inputs else None
    for key, value in expected.items():
        got = out[key] if key else next(iter(out.values()))
        of_tokens = real is not None and value.shape[:2] == real.shape
        assert_close(got[real] if of_tokens else got, value[real] if of_tokens else value)
