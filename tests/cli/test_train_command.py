"""keras-tx train: tables of texts, questions and a text file, with a folder and a report at the end."""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import keras_tx
from keras_tx.errors import ExportError
from keras_tx.processing import train_unigram, train_wordpiece
from keras_tx.runtime import load
from keras_tx.training import training_job, training_monitor
from keras_tx.training.text_jobs import QuestionJob
from keras_tx.training.training_job import JobOptions

SMALL = ("--model", "bert:L-2_H-128", "--max-length", "16", "--batch-size", "8")
WORDS = {"good": ["lovely", "great", "superb"], "bad": ["awful", "boring", "poor"]}


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    path = tmp_path / "reviews.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for index in range(120):
            label = ("good", "bad")[index % 2]
            writer.writerow([f"Film {index} was {random.choice(WORDS[label])}.", label])
    return path


def test_table_of_texts_becomes_a_folder_and_a_report(tx, tmp_path, reviews):
    out = tmp_path / "out"
    saved = tmp_path / "model.keras"
    ran = tx(
        "train", reviews, "--out", out, *SMALL, "--epochs", 8, "--learning-rate", "2e-3", "--save", saved
    )
    assert ran.code == 0, ran.err
    assert "120 texts, classification" in ran.out and "108 rows for training, 12 for validation" in ran.out
    assert "Model: a new bert:L-2_H-128" in ran.out and "Schedule: 8 epochs of 14 steps" in ran.out
    assert "epoch 8 of 8: " in ran.out and "validation accuracy 100.0% (12 of 12)" in ran.out
    answers = load(out)(["Film 3 was superb.", "Film 3 was awful."], top_k=1)
    assert [answer[0]["label"] for answer in answers] == ["good", "bad"]
    page = (tmp_path / "out.html").read_text("utf-8")
    assert "Confusion matrix" in page and "validation accuracy 100.0%" in page
    assert not (tmp_path / "out.training").exists()
    assert keras_tx.load_model(saved).head.labels == ("bad", "good")
    again = tx("train", reviews, "--out", out, *SMALL, "--epochs", 1)
    assert again.code == 2 and "exists. Add --overwrite" in again.err


@pytest.mark.thorough
def test_interrupted_training_continues_to_the_same_model(tx, tmp_path, reviews, monkeypatch):
    options = (*SMALL, "--epochs", 2)
    assert tx("train", reviews, "--out", tmp_path / "whole", *options).code == 0
    interrupt_at(monkeypatch, 17)  # within the second epoch
    out = tmp_path / "out"
    ran = tx("train", reviews, "--out", out, *options)
    assert ran.code == 130 and not out.exists()
    assert "Stopped after step 18 of 28" in ran.err and "Run the same command again" in ran.err
    monkeypatch.undo()
    other = tx("train", reviews, "--out", out, *SMALL, "--epochs", 3)
    assert other.code == 2 and "interrupted training with --epochs 2" in other.err
    ran = tx("train", reviews, "--out", out, *options)
    assert ran.code == 0, ran.err
    assert "continues from its last saved step" in ran.out
    assert "epoch 1 of 2" not in ran.out and "epoch 2 of 2" in ran.out
    texts = ["Film 3 was superb.", "Film 3 was awful."]
    assert load(tmp_path / "whole")(texts, top_k=2) == load(tmp_path / "out")(texts, top_k=2)


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Ctrl-C before the end of a step."""
    original = training_monitor.TrainingMonitor.on_train_batch_end

    def interrupted(self, batch, logs=None):
        if self._first + batch == step:
            signal.raise_signal(signal.SIGINT)
        original(self, batch, logs)

    monkeypatch.setattr(training_monitor.TrainingMonitor, "on_train_batch_end", interrupted)


@pytest.mark.thorough
def test_training_with_texts_that_were_shortened_to_fit_the_time_continues(tx, tmp_path, monkeypatch):
    path = tmp_path / "long.csv"
    rows = [f"{'a long text ' * 40}{WORDS[label][0]},{label}" for label in ("good", "bad") for _ in range(20)]
    path.write_text("\n".join(["text,label", *(f"{i} {row}" for i, row in enumerate(rows))]))
    options = ("--out", tmp_path / "out", "--model", "bert:L-2_H-128", "--batch-size", 8, "--minutes", 1)
    with monkeypatch.context() as patched:
        patched.setattr(training_job, "measure_step", lambda *arguments: 100.0)
        interrupt_at(patched, 0)
        ran = tx("train", path, *options)
    assert ran.code == 130 and "the model reads 64; " in ran.out, ran.err
    assert "A larger length would exceed the time" in ran.out
    ran = tx("train", path, *options)
    assert ran.code == 0, ran.err
    assert "continues from its last saved step" in ran.out
    assert load(tmp_path / "out").labels == ("bad", "good")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*newly initialized:UserWarning")
def test_checkpoint_is_fine_tuned_and_minutes_bound_the_steps(tx, tmp_path, reviews):
    texts = keras_tx.text_table(reviews).texts
    body = keras_tx.bert("tiny", depth=1, processing=train_wordpiece(texts, 120), max_length=32)
    keras_tx.save_checkpoint(body, tmp_path / "weights")
    out = tmp_path / "out"
    ran = tx("train", reviews, "--out", out, "--from", tmp_path / "weights", "--minutes", 0.6)
    assert ran.code == 0, ran.err
    assert "Recipe: finetune" in ran.out and "0.6 minutes" in ran.out
    assert load(out).labels == ("bad", "good")


@pytest.mark.thorough
def test_text_file_trains_a_gpt(tx, tmp_path):
    path = tmp_path / "poem.txt"
    path.write_text("".join(f"line {i % 7} of a poem\n" for i in range(300)), encoding="utf-8")
    ran = tx(
        "train", path, "--out", tmp_path / "poet", "--epochs", 2, "--max-length", 32, "--model", "gpt:pico"
    )
    assert ran.code == 0, ran.err
    assert "bits per byte" in ran.out and "part 10 of 10" in ran.out
    assert load(tmp_path / "poet").generate("line 1", max_new_tokens=4).text
    assert "Generated texts" in (tmp_path / "poet.html").read_text("utf-8")


@pytest.mark.thorough
@pytest.mark.parametrize("length", [8, 32])
def test_text_without_spaces_and_line_breaks_trains_a_gpt(tx, tmp_path, length):
    """Its first word has more tokens than the model has positions."""
    path = tmp_path / "poem.txt"
    path.write_text("".join(np.random.default_rng(0).choice(list("的一是在不了有和人这"), 3000)), "utf-8")
    options = ("--epochs", 1, "--max-length", length, "--model", "gpt:pico", "--batch-size", 8)
    ran = tx("train", path, "--out", tmp_path / "poet", *options)
    assert ran.code == 0, ran.err
    assert "keras-tx generate" in ran.out and "Once upon" not in ran.out
    prompt = path.read_text("utf-8")[:3]
    assert load(tmp_path / "poet").generate(prompt, max_new_tokens=2).text


def test_what_fails_after_the_training_is_tried_before_it(tx, tmp_path, reviews, monkeypatch):
    def fails(*arguments, **options):
        raise ExportError("The disk is full.")

    monkeypatch.setattr("keras_tx_onnx.export_onnx", fails)
    ran = tx("train", reviews, "--out", tmp_path / "out", *SMALL, "--epochs", 1)
    assert ran.code == 2 and "The disk is full" in ran.err and "epoch 1" not in ran.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reviews.csv"]


@pytest.mark.thorough
def test_folder_of_images_becomes_a_classifier(tx, tmp_path):
    random = np.random.default_rng(0)
    for name, channel in (("red", 0), ("green", 1), ("blue", 2)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(14):
            pixels = random.integers(0, 60, (20, 24, 3), "uint8")
            pixels[..., channel] += 150
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.png")
    ran = tx("train", tmp_path / "photos", "--out", tmp_path / "out", "--epochs", 6, "--batch-size", 8)
    assert ran.code == 0, ran.err
    assert "42 images of 3 classes" in ran.out and "with a convolutional stem" in ran.out
    assert "validation accuracy 100.0%" in ran.out
    answer = load(tmp_path / "out")(tmp_path / "photos" / "green" / "0.png", top_k=1)
    assert answer[0]["label"] == "green"
    refused = tx("train", tmp_path / "photos", "--out", tmp_path / "b", "--text", "body")
    assert refused.code == 2 and "--text 'body' is not an option for a folder of images" in refused.err


@pytest.mark.thorough
def test_questions_train_a_reader(tx, tmp_path):
    paragraphs = []
    for index in range(12):
        text = f"Person {index} lives in town {index % 5}."
        answer = {"text": f"town {index % 5}", "answer_start": text.index("town")}
        question = {"id": str(index), "question": f"Where is person {index}?", "answers": [answer]}
        paragraphs.append({"context": text, "qas": [question]})
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}), encoding="utf-8")
    options = ("--model", "bert:L-2_H-128", "--max-length", "32", "--epochs", 1, "--batch-size", 4)
    ran = tx("train", path, "--out", tmp_path / "reader", *options)
    assert ran.code == 0, ran.err
    assert "11 questions for training, 1 for validation" in ran.out and "span_f1" in ran.out
    assert "keras-tx run" in ran.out and "--question" in ran.out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--from", "a", "--model", "bert:mini"), "a) and a model (bert:mini) were both passed"),
        (("--recipe", "finetune"), "--recipe 'finetune' starts from a checkpoint"),
        (("--recipe", "best"), "invalid choice: 'best'"),
        (("--minutes", "0"), "'0' is not a number of minutes above 0"),
        (("--validation", "1"), "'1' is not a number between 0 and 1"),
        (("--epochs", "none"), "'none' is not a whole number"),
        (("--model", "bert:tinny"), "tinny"),
        (("--model", "vit:S/16"), "--model 'vit:S/16' is not for this data. Pass a variant of bert"),
        (("--model", "bert"), "--model 'bert' is unknown. Pass a family and a variant, such as bert:"),
        (
            ("--text", "body"),
            "has no column 'body'; its columns are 'text', 'label'. Pass --text with one of them",
        ),
        (("--labels", "good,,bad"), "--labels ['good', '', 'bad'], expected two or more different names"),
        (("--max-length", "2"), "--max-length 2 is too small for 2 special tokens"),
        (("--encoding", "cp12520"), "--encoding 'cp12520' is unknown"),
        (("--seed", "-1"), "--seed -1 is out of range"),
        (("--labels", "good,great"), "column 'label': 'bad' is not a label"),
        (("--save", "model.h5"), "--save model.h5 is not a .keras file"),
    ],
)
def test_wrong_options_are_refused_before_any_work(tx, tmp_path, reviews, options, expected):
    ran = tx("train", reviews, "--out", tmp_path / "out", *options)
    assert ran.code == 2 and expected in ran.err, ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reviews.csv"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("none.csv", "does not exist"), ("a.xlsx", "is not data for training"), ("photos", "photos")],
)
def test_other_data_is_refused(tx, tmp_path, name, expected):
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    (tmp_path / "photos").mkdir()
    ran = tx("train", tmp_path / name, "--out", tmp_path / "out")
    assert ran.code == 2 and expected in ran.err
    assert not (tmp_path / "out.training").exists()


@pytest.mark.parametrize(
    ("name", "content", "options", "expected"),
    [
        ("a.csv", "text,label\nA.,a\n" + "B.,b\n" * 9, (), "--validation 0.1 leaves no rows for validation"),
        ("a.csv", "text,label\nCafé.,a\nB.,b\n", (), "is not UTF-8; pass --encoding with"),
        ("a.csv", 'text,label\n"A.,a\nB.,b\n', (), "is opened and not closed. Close it, or pass --no-quotes"),
        ("a.csv", "text,label\n,a\nB.,b\n", (), "the text is empty. Correct the file, or pass --skip-broken"),
        ("a.txt", "   \n\n" * 99, (), "a.txt contains only white space"),
        ("a.txt", "a\0b\n" * 99, (), "a.txt contains NUL characters"),
        (
            "a.txt",
            "hello",
            (),
            "fewer than a batch of 1 block of 128. Decrease --max-length or --batch-size,",
        ),
        ("a.txt", "hello\n" * 99, ("--max-length", "3"), "--max-length 3 is too small to learn from"),
        ("a.txt", "hello\n" * 99, ("--skip-broken",), "--skip-broken is not an option for a text file"),
        (
            "a.json",
            json.dumps({"data": []}),
            ("--label", "x"),
            "--label 'x' is not an option for a file of ques",
        ),
    ],
)
def test_wrong_data_is_refused_before_the_training(tx, tmp_path, name, content, options, expected):
    (tmp_path / name).write_bytes(content.encode("cp1252"))
    ran = tx("train", tmp_path / name, "--out", tmp_path / "out", "--epochs", 1, *options)
    assert ran.code == 2 and expected in ran.err, ran.err
    assert [path.name for path in tmp_path.iterdir()] == [name]


def write_questions(path: Path, question: str, document: str, answer: str | None) -> Path:
    """A file of a question about each of four documents; without an answer, it is impossible."""
    paragraphs = []
    for number in range(4):
        context = f"{number}. {document}"
        entry: dict[str, object] = {"id": f"q{number}", "question": question, "is_impossible": answer is None}
        if answer is not None:
            entry["answers"] = [{"text": answer, "answer_start": context.index(answer)}]
        paragraphs.append({"context": context, "qas": [entry]})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return path


@pytest.mark.parametrize(
    ("question", "answer", "options", "expected"),
    [
        ("Where ?" * 300, "town", (), "Question 'q0' has 600 tokens; with a part of its document it needs"),
        ("Where ?" * 9, "town", ("--max-length", 16), "or more, but --max-length 16. Shorten the question"),
        ("Where?", None, (), "has no answer in the 3 questions for training"),
    ],
)
def test_questions_that_cannot_be_learned_are_refused_before_the_training(
    tx, tmp_path, question, answer, options, expected
):
    path = write_questions(tmp_path / "a.json", question, "A lives in a town.", answer)
    ran = tx("train", path, "--out", tmp_path / "out", "--epochs", 1, *options)
    assert ran.code == 2 and expected in ran.err, ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_parts_of_documents_have_room_for_long_questions_and_contain_long_answers(tmp_path):
    """Also where the length is reduced to fit the time."""
    document = "It is far away. " * 9 + "one two three four five six seven " * 12 + "It is far away. " * 9
    path = write_questions(tmp_path / "a.json", "Where ?" * 40, document, document[144:-144].strip())
    job = QuestionJob(path, JobOptions(model="bert:L-2_H-128", epochs=1))
    plan = job.choose(tmp_path)
    least = job.smaller(dataclasses.replace(plan, max_length=512), 0.01)
    assert least is not None and 80 + 84 < least.max_length < plan.max_length <= 512
    train, validation = job.batches(job.build(least, tmp_path), least)
    for batches in (train, validation):
        labels = np.concatenate([batches[index][1]["end_logits"] for index in range(len(batches))])
        assert labels.any()


def test_checkpoints_of_other_models_are_refused_before_the_training(tx, tmp_path, reviews):
    words = train_unigram(["good and bad films"] * 9, 40, sentinels=2, max_length=16)
    t5 = keras_tx.t5("tiny", processing=words)
    checkpoints = {
        "t5": (t5, "is a T5 that does not support a ClassifierHead. Pass a checkpoint of a BERT"),
        "vit": (keras_tx.vit("Mu/2", image_size=8, num_classes=2), "is a ViT that has no tokenizer"),
    }
    for name, (model, expected) in checkpoints.items():
        folder = keras_tx.save_checkpoint(model, tmp_path / name)
        ran = tx("train", reviews, "--out", tmp_path / "out", "--from", folder)
        assert ran.code == 2 and expected in ran.err, ran.err
        assert "newly initialized" not in ran.err


def test_truncated_images_and_a_single_class_are_refused_before_the_training(tx, tmp_path):
    folder = tmp_path / "photos"
    for name in ("red", "green"):
        (folder / name).mkdir(parents=True)
        for index in range(4):
            pixels = np.random.default_rng(index).integers(0, 256, (40, 40, 3), "uint8")
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    whole = (folder / "red" / "1.png").read_bytes()
    (folder / "red" / "1.png").write_bytes(whole[: len(whole) // 2])
    ran = tx("train", folder, "--out", tmp_path / "out", "--epochs", 1)
    assert ran.code == 2 and "truncated" in ran.err and "epoch 1" not in ran.out
    assert "pass --skip-broken to leave them out" in ran.err
    shutil.rmtree(folder / "green")
    ran = tx("train", folder, "--out", tmp_path / "out", "--epochs", 1)
    assert ran.code == 2 and "are of one class. Add a subfolder" in ran.err


def test_folders_of_others_are_kept_and_failed_starts_are_forgotten(tx, tmp_path, reviews):
    state = tmp_path / "out.training"
    state.mkdir()
    (state / "notes.txt").write_text("mine")
    ran = tx("train", reviews, "--out", tmp_path / "out", *SMALL)
    assert ran.code == 2 and "out.training is not the state of a training" in ran.err
    assert (state / "notes.txt").read_text() == "mine"
    (state / "notes.txt").unlink()
    for checkpoint in ("none1", "none2"):
        ran = tx("train", reviews, "--out", tmp_path / "out", "--from", tmp_path / checkpoint)
        assert ran.code == 2 and checkpoint in ran.err


def test_starting_from_a_checkpoint_is_the_first_thing_of_the_help(tx, capsys):
    with pytest.raises(SystemExit):
        tx("train", "--help")
    text = capsys.readouterr().out
    body = text[text.index("\n\n") :].strip()
    assert body.startswith("Start from a checkpoint: ")
