import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keras_tx import contract
from keras_tx.contract import TensorSpec
from keras_tx.errors import ConfigError, FolderError, ImageError, InputError, KerasTxError
from keras_tx.processing import ImageTransform
from keras_tx.runtime import GenericModel, ImageClassifier, ImageEmbedder, load
from keras_tx.runtime.tasks.scores import sigmoid, softmax

WEIGHTS = np.array([[2.0, 0.0, -1.0, 0.5], [0.0, 3.0, 1.0, -0.5], [-2.0, 1.0, 0.0, 4.0]], "float32")
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (5, 4, 6, 3), "uint8")
LABELS = ("rose", "tulip", "daisy", "iris")


def logits_of(images: np.ndarray) -> np.ndarray:
    return (images / 127.5 - 1).mean(axis=(1, 2)) @ WEIGHTS


def best_of(image: np.ndarray) -> list[tuple[str, float]]:
    logits = logits_of(image[None])[0].astype("float64")
    scores = np.exp(logits) / np.exp(logits).sum()
    return sorted(zip(LABELS, scores, strict=True), key=lambda pair: -pair[1])


def assert_best(got: list[dict[str, Any]], image: np.ndarray) -> None:
    expected = best_of(image)
    assert [row["label"] for row in got] == [label for label, _ in expected]
    np.testing.assert_allclose([row["score"] for row in got], [score for _, score in expected], rtol=1e-5)


@pytest.mark.parametrize("external", [False, True])
def test_classify_one_image(external: bool, make_image_folder):
    with load(make_image_folder(external=external).path) as model:
        assert isinstance(model, ImageClassifier)
        got = model(IMAGES[0])
        assert_best(got, IMAGES[0])
        assert sum(row["score"] for row in got) == pytest.approx(1)
        assert type(got[0]["score"]) is float


def test_multi_label_scores(make_image_folder):
    model = load(make_image_folder(config={"problem_type": "multi_label_classification"}).path)
    softmaxed = load(make_image_folder().path)
    for several, one in zip(model(IMAGES), softmaxed(IMAGES), strict=True):
        assert [row["label"] for row in several] == [row["label"] for row in one]
        # Odds are exponentials of logits, so their ratios equal those of the softmax.
        odds = np.array([row["score"] / (1 - row["score"]) for row in several])
        np.testing.assert_allclose(odds / odds.sum(), [row["score"] for row in one], rtol=1e-6)


def test_classify_several_images(make_image_folder, tmp_path: Path):
    model = load(make_image_folder().path)
    for several in (list(IMAGES), tuple(IMAGES), IMAGES):
        got = model(several, batch_size=2)
        assert len(got) == 5
        for row, image in zip(got, IMAGES, strict=True):
            assert_best(row, image)
    assert model([IMAGES[0]]) == [model(IMAGES[0])]
    assert model(IMAGES[:1]) == [model(IMAGES[0])]
    assert model([]) == []
    assert model(IMAGES[:0]) == []


def test_image_types(make_image_folder, tmp_path: Path):
    model = load(make_image_folder().path)
    file = tmp_path / "a.png"
    Image.fromarray(IMAGES[0]).save(file)
    stream = io.BytesIO()
    Image.fromarray(np.dstack([IMAGES[0], np.zeros((4, 6), "uint8")])).save(stream, "PNG")
    sources = [file, str(file), file.read_bytes(), stream.getvalue(), Image.open(file), IMAGES[0] / 255.0]
    for source in sources:
        assert_best(model(source), IMAGES[0])
    big = Image.fromarray(IMAGES[0]).resize((60, 40))
    assert_best(model(big), np.asarray(big.resize((6, 4), Image.Resampling.BILINEAR)))


def test_raw_pixels(make_image_folder):
    # the graph of this folder does not normalize, so its logits are those of the bare pixels
    built = make_image_folder(raw_pixels=True, task=contract.IMAGE_FEATURES, output=contract.IMAGE_EMBEDS)
    model = load(built.path)
    np.testing.assert_allclose(
        model(list(IMAGES)), IMAGES.mean(axis=(1, 2), dtype="float64") @ WEIGHTS, rtol=1e-5, atol=1e-3
    )


def test_top_k_and_batch_size(make_image_folder):
    model = load(make_image_folder().path)
    assert len(model(IMAGES[0], top_k=1)) == 1
    assert model(IMAGES[0], top_k=2) == model(IMAGES[0])[:2]
    assert len(model(IMAGES[0], top_k=99)) == 4
    for name in ("top_k", "batch_size"):
        for value in (0, -1, 2.0, True, None):
            with pytest.raises(ConfigError, match=f"{name} is {value!r}"):
                model(IMAGES[0], **{name: value})


def test_batch_size_limits_batches(make_image_folder, monkeypatch: pytest.MonkeyPatch):
    model = load(make_image_folder().path)
    sizes, run = [], model.session.run
    monkeypatch.setattr(
        model.session, "run", lambda feed: sizes.append(len(feed[contract.PIXEL_VALUES])) or run(feed)
    )
    model(IMAGES, batch_size=2)
    assert sizes == [2, 2, 1]


def test_error_names_index_of_image(make_image_folder):
    with pytest.raises(ImageError, match=r"^images\[3\] 'missing\.jpg'"):
        load(make_image_folder().path)([*IMAGES[:3], "missing.jpg"], batch_size=2)


def test_default_labels(make_image_folder):
    model = load(make_image_folder(labels=None).path)
    assert model.labels == ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3")
    assert model(IMAGES[0], top_k=1)[0]["label"] == f"LABEL_{LABELS.index(best_of(IMAGES[0])[0][0])}"


@pytest.mark.parametrize("output", [contract.IMAGE_EMBEDS, contract.LAST_HIDDEN_STATE])
def test_embeddings(output: str, make_image_folder):
    model = load(make_image_folder(task=contract.IMAGE_FEATURES, output=output, labels=None).path)
    assert isinstance(model, ImageEmbedder)
    np.testing.assert_allclose(
        model.embed(list(IMAGES), batch_size=2), logits_of(IMAGES), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(model(IMAGES[0]), logits_of(IMAGES)[0], rtol=1e-4, atol=1e-5)
    assert model([]).shape == (0, 4)
    assert model.labels is None


def test_generic_models(generic_folder, make_image_folder):
    a = np.ones((2, 3), "float32")
    with load(generic_folder.path) as model:
        assert isinstance(model, GenericModel)
        assert set(model({"a": a, "b": a})) == {"sum", "product"}
        with pytest.raises(InputError, match=r"inputs is a single array.* a float32 \(n, 3\), b float32"):
            model(a)
        with pytest.raises(InputError, match="inputs is a list.* a float32"):
            model([1, 2])  # pyright: ignore[reportArgumentType]
    single = load(make_image_folder(task=None).path)
    assert single(np.zeros((1, 3, 4, 6), "float32"))["logits"].shape == (1, 4)


def test_repr(make_image_folder, generic_folder):
    built = make_image_folder()
    model = load(built.path, provider="cpu", threads=1)
    assert model.provider == "cpu"
    assert model.labels == LABELS
    assert repr(model) == (
        f"<ImageClassifier {str(built.path)!r}: pixel_values float32 (batch_size, 3, 4, 6) on cpu, 4 labels>"
    )
    assert repr(load(generic_folder.path)).endswith("a float32 (n, 3), b float32 (n, 3) on cpu>")


def test_closed_model_raises(make_image_folder):
    with load(make_image_folder().path) as model:
        model(IMAGES[0])
    with pytest.raises(KerasTxError, match="is closed"):
        model(IMAGES[0])


def test_scores_of_large_logits_are_finite():
    np.testing.assert_allclose(softmax(np.array([1e4, 1e4, -1e4], "float32")), [0.5, 0.5, 0])
    np.testing.assert_allclose(softmax(np.array([60000, 0], "float16")), [1, 0])
    np.testing.assert_allclose(sigmoid(np.array([1e4, 0, -1e4], "float32")), [1, 0.5, 0])


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            ImageTransform((6, 4)),
            r"pixel_values float32 \(batch_size, 3, 4, 6\).* preprocessor_config\.json .*"
            r"float32 \(batch, 3, 6, 4\)",
        ),
        (ImageTransform((4, 6), channels=1), r"float32 \(batch, 1, 4, 6\)"),
    ],
)
def test_transform_of_another_shape_raises(transform: ImageTransform, message: str, make_image_folder):
    with pytest.raises(FolderError, match=message):
        load(make_image_folder(transform=transform).path)


def test_raw_pixels_of_another_shape_raise(make_image_folder):
    with pytest.raises(FolderError, match=r"pixels uint8 \(batch_size, 4, 6, 3\).*uint8 \(batch, 4, 4, 3\)"):
        load(make_image_folder(raw_pixels=True, transform=ImageTransform(4)).path)


def test_folders_of_another_task_raise(make_image_folder, generic_folder):
    built = make_image_folder()
    built.seal(labels=("rose", "tulip"))
    with pytest.raises(FolderError, match=r"logits float32 \(batch_size, 4\), expected \(batch, 2\)"):
        load(built.path)
    built.seal(labels=LABELS, task="image-clasification")
    with pytest.raises(FolderError, match="'image-clasification'.* 'image-classification'"):
        load(built.path)
    built.seal(task=contract.IMAGE_FEATURES)
    with pytest.raises(FolderError, match="outputs logits, .*image_embeds"):
        load(built.path)
    (built.path / contract.PREPROCESSOR).unlink()
    built.seal(task=contract.IMAGE_CLASSIFICATION)
    with pytest.raises(FolderError, match=r"no preprocessor_config\.json.* 'image-classification'"):
        load(built.path)
    (generic_folder.path / contract.PREPROCESSOR).write_text("{}")
    generic_folder.seal(task=contract.IMAGE_FEATURES)
    with pytest.raises(FolderError, match=r"inputs a float32 \(n, 3\), b float32 \(n, 3\)"):
        load(generic_folder.path)


def test_manifest_of_another_graph_raises(make_image_folder):
    built = make_image_folder()
    built.seal(inputs=(TensorSpec(contract.PIXEL_VALUES, "float16", ("batch_size", 3, 4, 6)),))
    with pytest.raises(FolderError, match="inputs pixel_values float16 .*pixel_values float32"):
        load(built.path)
    built.seal(inputs=built.manifest.inputs[:0])
    with pytest.raises(FolderError, match="inputs"):
        load(built.path)
