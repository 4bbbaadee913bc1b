"""keras-tx train: from a folder or file of data to a verified ONNX folder and a report."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_tx import contract
from keras_tx.commands.arguments import refuse_existing, whole
from keras_tx.commands.framework_logs import import_keras, quiet_start
from keras_tx.errors import ConfigError, KerasTxError

if TYPE_CHECKING:
    from keras_tx.training.training_job import JobResult

SUMMARY = "train a model on images, a table of texts, questions or a text file, and export it"
DESCRIPTION = """\
Start from a checkpoint: keras-tx train reviews.csv --out reviews --from hf://owner/name

Reads DATA, chooses a model, a recipe and a schedule, and trains. Writes FOLDER, a verified ONNX folder, and
FOLDER.html, a report with curves, a confusion matrix and the worst mistakes. DATA is one of
  photos/                     a folder of images with a subfolder per class
  reviews.csv, .tsv, .jsonl   texts with labels: classes, several labels (--separator) or numbers
  squad.json                  questions about documents, in the format of SQuAD 1.1 or 2.0
  poems.txt                   a text, to train a GPT that continues it

Options that are not passed are chosen from the data and --minutes; the command prints each choice with its
reason. After an interruption, by Ctrl-C or a crash, run the same command again to continue the training. The
state is in FOLDER.training, which is removed at the end.
"""
EPILOG = """\
examples:
  keras-tx train reviews.csv --out reviews --from hf://owner/name --minutes 20
  keras-tx train reviews.csv --out reviews --text review --label sentiment
  keras-tx train pairs.tsv --out entailment --from bert-base/ --text premise --pair hypothesis
  keras-tx train topics.csv --out topics --separator "|"        several labels per text
  keras-tx train train-v2.0.json --out reader --from hf://owner/name
  keras-tx train photos/ --out flowers --from hf://owner/vit
  keras-tx train poems.txt --out poet --minutes 30              a GPT from scratch
  keras-tx train reviews.csv --out reviews --model bert:small --epochs 5

exit codes: 0 the folder was written; 2 an error; 130 interrupted, run the same command again to continue.
"""
STATE_SUFFIX = ".training"
COMMAND = "command.json"
PLAN = "plan.json"
OTHER_NAMES = {"source": "from", "share": "validation", "validation_split": "validation"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="source",
        metavar="CHECKPOINT",
        help="start from a checkpoint: hf://owner/name, a Hugging Face folder, a preset of keras-hub, "
        "or a .keras file. Fine-tuning needs less data and time than a new model",
    )
    parser.add_argument("data", metavar="DATA", type=Path, help="images, texts, questions or a text")
    parser.add_argument("--out", metavar="FOLDER", type=Path, required=True, help="the folder to write")
    choice = parser.add_argument_group("model and schedule")
    choice.add_argument("--model", metavar="FAMILY:SIZE", help="a new model, such as bert:small or gpt:124M")
    choice.add_argument(
        "--recipe",
        choices=("finetune", "scratch", "head"),
        help="finetune: all weights of a checkpoint (default with --from); head: only its head; scratch: a "
        "new model (default without --from)",
    )
    choice.add_argument(
        "--minutes", type=_minutes, metavar="N", help="time budget in total (default: 10, unless --epochs)"
    )
    choice.add_argument("--epochs", type=whole, metavar="N", help="maximum number of passes over the data")
    choice.add_argument("--batch-size", type=whole, metavar="N", help="samples per step (default: 16 or 32)")
    choice.add_argument("--learning-rate", type=_rate, metavar="X", help="the peak learning rate")
    choice.add_argument(
        "--max-length", type=whole, metavar="N", help="tokens per text; longer texts are truncated"
    )
    choice.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")
    columns = parser.add_argument_group("data")
    columns.add_argument("--text", metavar="COLUMN", help="the column of the texts (default: text)")
    columns.add_argument("--label", metavar="COLUMN", help="the column of the labels (default: label)")
    columns.add_argument("--pair", metavar="COLUMN", help="the column of the second texts, for pairs")
    columns.add_argument("--labels", metavar="A,B,C", help="the class names, in order (default: sorted)")
    columns.add_argument("--separator", metavar="TEXT", help="separator of several labels, such as |")
    columns.add_argument(
        "--validation", type=_share, default=0.1, metavar="SHARE", help="validation share (default: 0.1)"
    )
    columns.add_argument(
        "--encoding", metavar="NAME", help="encoding of a table, such as cp1252 (default: UTF-8)"
    )
    columns.add_argument(
        "--no-quotes", dest="quotes", action="store_false", help="quotes in a table are ordinary characters"
    )
    columns.add_argument("--skip-broken", action="store_true", help="leave out broken rows and images")
    output = parser.add_argument_group("output")
    output.add_argument("--save", metavar="FILE.keras", type=Path, help="also save the Keras model")
    output.add_argument(
        "--overwrite", action="store_true", help="replace the folder and files of an earlier training"
    )
    output.add_argument(
        "--no-resume", action="store_true", help="start over instead of continuing an interrupted training"
    )


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.atomic_write import check_export_target

    started = time.monotonic()
    folder = arguments.out
    page, state = (folder.with_name(folder.name + suffix) for suffix in (".html", STATE_SUFFIX))
    for path in (folder, page, *([arguments.save] if arguments.save else [])):
        refuse_existing(path, arguments.overwrite)
    check_export_target(folder.absolute(), arguments.overwrite)
    _check_save(arguments.save)
    if not arguments.data.exists():
        raise ConfigError(f"{arguments.data} does not exist. The working directory is {Path.cwd()}.")
    import_keras()
    with quiet_start():
        from keras_tx.training.job_choice import open_job
        from keras_tx.training.training_job import JobOptions, run_job
        from keras_tx.training.training_monitor import Stopped

    labels = None if arguments.labels is None else tuple(name.strip() for name in arguments.labels.split(","))
    names = "source model recipe minutes epochs batch_size learning_rate max_length seed validation".split()
    names += "text label pair separator encoding quotes skip_broken".split()
    with _options_in_messages((*names, "labels")):
        job = open_job(
            arguments.data, JobOptions(**{name: getattr(arguments, name) for name in names}, labels=labels)
        )
    for line in job.describe():
        print(line)
    command = {name: str(getattr(arguments, name)) for name in (*names, "labels")}
    _open_state(state, {"data": _digest(arguments.data), **command}, restart=arguments.no_resume)

    def rehearse(result: JobResult) -> None:
        with tempfile.TemporaryDirectory(dir=state) as place, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the export after the training warns again
            saved = Path(place, "model.keras") if arguments.save else None
            _write(result, job, Path(place, "model"), Path(place, "model.html"), saved, started)

    with _interruptible() as interrupt, _options_in_messages((*names, "labels")):
        try:
            result = run_job(
                job,
                state,
                say=lambda line: print(line, flush=True),
                shown=sys.stderr.isatty(),
                started=started,
                monitor_ready=interrupt,
                rehearse=rehearse,
            )
        except Stopped as stopped:
            print(
                f"\nStopped after {stopped}; the state is in {state}. Run the same command again to "
                "continue, or add --no-resume to start over.",
                file=sys.stderr,
            )
            return 130
        finally:
            if not (state / PLAN).exists():  # it failed before the first step
                shutil.rmtree(state, ignore_errors=True)
    print(f"Result: {result.evaluation.summary}.")
    print(_write(result, job, folder, page, arguments.save, started, overwrite=arguments.overwrite))
    shutil.rmtree(state)
    print(f"\n{_next_steps(folder, page, result.evaluation.prompt)}")
    return 0


@contextlib.contextmanager
def _options_in_messages(names: Sequence[str]) -> Iterator[None]:
    """Replaces names of arguments in messages of errors by options: max_length=8 by --max-length 8."""
    try:
        yield
    except KerasTxError as error:
        text = str(error).replace("skip_broken=True", "--skip-broken").replace("quotes=False", "--no-quotes")
        for name in (*names, *OTHER_NAMES):
            option = "--" + OTHER_NAMES.get(name, name).replace("_", "-")
            text = re.sub(rf"(?<![\w.-]){name}=(?=[\w'\"(\[-])", f"{option} ", text)  # with a value
            text = re.sub(rf"(?<![\w.-]){name}=", option, text)
        raise type(error)(text) from error


def _open_state(state: Path, command: dict[str, str], restart: bool) -> None:
    """Creates the state folder, or checks that the same command created it."""
    file = state / COMMAND
    if state.exists() and not file.exists() and any(state.iterdir()):
        raise ConfigError(
            f"{state} is not the state of a training and was not changed. Move it, or choose another --out."
        )
    if state.exists() and (restart or not (state / PLAN).exists()):  # without a plan nothing was trained
        shutil.rmtree(state)
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        other = next((name for name in command if before.get(name) != command[name]), None)
        if other is not None:
            what = "other data" if other == "data" else f"--{other.replace('_', '-')} {before.get(other)}"
            raise ConfigError(
                f"{state} holds an interrupted training with {what}. Repeat that command to continue it, or "
                "add --no-resume to start over."
            )
        return
    state.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(command, indent=1), encoding="utf-8")


def _digest(path: Path) -> str:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        listed = "\n".join(f"{file.relative_to(path).as_posix()} {file.stat().st_size}" for file in files)
        return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _interruptible() -> Iterator[Any]:
    """Yields a function that registers the monitor: the first Ctrl-C ends the training after its step."""
    before = signal.getsignal(signal.SIGINT)

    def ready(monitor: Any) -> None:
        def stop(number: int, frame: Any) -> None:
            print("\nThe training stops after this step ...", file=sys.stderr, flush=True)
            monitor.stop()
            signal.signal(signal.SIGINT, before)  # a second Ctrl-C interrupts immediately

        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, stop)

    try:
        yield ready
    finally:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, before)


def _write(
    result: JobResult,
    job: Any,
    folder: Path,
    page: Path,
    saved: Path | None,
    started: float,
    *,
    overwrite: bool = False,
) -> Any:
    """Writes the folder, the report and the Keras model, and returns the report of the export."""
    from keras_tx_onnx import export_onnx

    if saved is not None:
        result.model.save(saved, overwrite=True)
    report = export_onnx(result.model, folder, overwrite=overwrite)
    _write_report(result, job, page, time.monotonic() - started)
    return report


def _write_report(result: JobResult, job: Any, page: Path, seconds: float) -> None:
    import keras

    from keras_tx.inspect.html_overlay import embedded_photograph
    from keras_tx.inspect.training_report import ReportedMistake, TrainingReport, write_training_report

    evaluation, plan = result.evaluation, result.plan
    facts = [
        ("data", "; ".join(job.describe())),
        *((reason.partition(": ")[0].lower(), reason.partition(": ")[2]) for reason in plan.reasons),
        ("parameters", f"{result.model.count_params():,}"),
        ("time", f"{seconds / 60:.1f} minutes in all, {keras.backend.backend()} backend"),
    ]
    mistakes = [
        ReportedMistake(
            one.sample.texts,
            one.expected,
            one.predicted,
            one.detail,
            one.sample.place,
            None if one.sample.image is None else embedded_photograph(one.sample.image),
        )
        for one in evaluation.mistakes
    ]
    report = TrainingReport(
        f"Training on {job.path.name}",
        evaluation.summary,
        facts,
        result.steps,
        result.epochs,
        result.best_epoch,
        evaluation.labels,
        evaluation.confusion,
        mistakes,
        evaluation.generated,
    )
    write_training_report(report, page)


def _next_steps(folder: Path, page: Path, prompt: str) -> str:
    from keras_tx.runtime import open_folder

    task = open_folder(str(folder)).manifest.task
    examples = {
        contract.IMAGE_CLASSIFICATION: f"keras-tx run {folder} image.jpg",
        contract.TEXT_GENERATION: f"keras-tx generate {folder} {shlex.quote(prompt)}",
        contract.QUESTION_ANSWERING: f'keras-tx run {folder} article.txt --question "Who ...?"',
    }
    example = examples.get(str(task), f'keras-tx run {folder} "..."')
    return f"Next steps:\n  {example}\n  open {page} in a browser"


def _check_save(path: Path | None) -> None:
    if path is not None and (path.suffix != ".keras" or not path.absolute().parent.is_dir()):
        raise ConfigError(
            f"--save {path} is not a .keras file in an existing folder. Pass a path such as model.keras."
        )


def _share(text: str) -> float:
    return _number(text, lambda value: 0 < value < 1, "a number between 0 and 1")


def _minutes(text: str) -> float:
    return _number(text, lambda value: 0 < value < 1e6, "a number of minutes above 0")


def _rate(text: str) -> float:
    return _number(text, lambda value: 0 < value < 10, "a learning rate such as 5e-5")


def _number(text: str, valid: Any, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not valid(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
    return value
