"""The command line: help, version, and one-line errors."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
from pathlib import Path

import pytest

import keras_tx
from keras_tx import cli
from keras_tx.commands import run as run_command
from keras_tx.errors import KerasTxError

ROOT = Path(__file__).parents[2]


def fails_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def execute(arguments: object) -> int:
        raise error

    monkeypatch.setattr(run_command, "execute", execute)


def one_error(ran) -> str:
    """The line of an error, without what every error begins with."""
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.count("\n") == 1, ran.err
    assert ran.err.startswith("keras-tx: error: ")
    return ran.err.removeprefix("keras-tx: error: ").rstrip("\n")


def test_the_version(capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["--version"])
    assert done.value.code == 0
    assert capsys.readouterr().out == f"keras-tx {keras_tx.__version__}\n"


@pytest.mark.parametrize("command", ["", *(module.__name__.rpartition(".")[2] for module in cli.COMMANDS)])
def test_help_describes_and_gives_examples(command, capsys):
    with pytest.raises(SystemExit) as done:
        cli.main([*command.split(), "--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    assert "examples:\n  keras-tx " in text
    if not command:
        assert all(f"\n    {module.__name__.rpartition('.')[2]} " in text for module in cli.COMMANDS)
    written = text[text.index("\n\n") :]  # what argparse wraps by itself, it wraps to the terminal
    assert max(map(len, written.splitlines())) <= 110


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "the following arguments are required: COMMAND. See keras-tx --help."),
        (["rum"], "invalid choice: 'rum'"),
        (["run"], "the following arguments are required: FOLDER, INPUT. See keras-tx run --help."),
        (["run", "a", "b", "--top-k", "0"], "--top-k: '0'"),
        (["run", "a", "b", "--top-k", "many"], "--top-k: 'many'"),
        (["run", "a", "b", "--top", "3"], "unrecognized arguments: --top"),
        (["export", "a.keras", "b", "--opset", "16"], "--opset: invalid choice: 16"),
        (["export", "a.keras", "b", "--labels", "a", "--labels-file", "b"], "not allowed with argument"),
        (["demo", "--epochs", "0"], "--epochs: '0'"),
    ],
)
def test_wrong_command_lines_print_one_line(tx, arguments, expected):
    assert expected in one_error(tx(*arguments))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KerasTxError("It is so.\n  Do that."), "It is so. Do that."),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), "a.txt: No such file or directory. "),
        (OSError("disk on fire"), "disk on fire. Check the path"),
        (ModuleNotFoundError("", name="keras"), "keras is not installed"),
        (ModuleNotFoundError("no ort", name="onnxruntime.capi"), 'pip install "keras-tx[runtime]"'),
        (ModuleNotFoundError("no jax", name="jax"), 'pip install "keras-tx[jax]"'),
        (ModuleNotFoundError("No module 'odd'", name="odd"), "No module 'odd'"),
        (ImportError("libcudart.so.12: no", name="tensorflow"), "libcudart.so.12: no"),
        (ZeroDivisionError("by zero"), "unexpected ZeroDivisionError: by zero"),
        (ValueError(), "unexpected ValueError: no message"),
    ],
)  # fmt: skip
def test_errors_print_one_line(tx, monkeypatch, error, expected):
    fails_with(monkeypatch, error)
    assert expected in one_error(tx("run", "folder", "image"))


@pytest.mark.parametrize("arguments", [["--debug", "run", "a", "b"], ["run", "a", "b", "--debug"]])
def test_debug_adds_the_traceback(tx, monkeypatch, arguments):
    fails_with(monkeypatch, KerasTxError("It is so."))
    ran = tx(*arguments)
    assert ran.code == 2
    assert ran.err.startswith("Traceback (most recent call last)")
    assert ran.err.endswith("keras-tx: error: It is so.\n")


def test_interrupt_prints_nothing(tx, monkeypatch):
    fails_with(monkeypatch, KeyboardInterrupt())
    ran = tx("run", "a", "b")
    assert (ran.code, ran.out, ran.err) == (130, "", "")


def test_closed_pipe_is_no_error(tx, monkeypatch):
    fails_with(monkeypatch, BrokenPipeError())
    ran = tx("run", "a", "b")
    assert (ran.code, ran.err) == (0, "")


def test_warnings_print_one_line(tx, monkeypatch):
    import warnings

    def execute(arguments: object) -> int:
        warnings.simplefilter("always")
        warnings.warn("Running on the CPU.\nSee doctor.", RuntimeWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(run_command, "execute", execute)
    assert tx("run", "a", "b").err == "keras-tx: warning: Running on the CPU. See doctor.\n"


def test_demo_without_keras_names_the_extra(tx, monkeypatch, tmp_path):
    real = builtins.__import__

    def without_keras(name, *rest):
        if name.split(".")[0] == "keras":
            raise ModuleNotFoundError("No module named 'keras'", name="keras")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_keras)
    line = one_error(tx("demo", "--folder", tmp_path / "digits"))
    assert "keras is not installed" in line and 'pip install "keras-tx[cpu]"' in line


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "export")])
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )


GUARD = """
import sys
class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"keras", "tensorflow", "torch", "jax", "onnx"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Guard())
from keras_tx.cli import main
"""


def test_help_loads_nothing_at_all():
    code = GUARD + "try:\n    main(['--help'])\nexcept SystemExit:\n    print('numpy' in sys.modules)"
    done = python("-c", code)
    assert done.stdout.startswith("usage: keras-tx")
    assert done.stdout.endswith("False\n"), done.stderr


def test_run_verify_and_doctor_work_without_keras_and_onnx(exports, picture):
    for arguments in (["run", exports / "flowers", picture], ["verify", exports / "flowers"], ["doctor"]):
        done = python("-c", GUARD + f"sys.exit(main({[str(a) for a in arguments]}))")
        assert done.returncode == 0, done.stdout + done.stderr
    assert "keras-tx" in done.stdout
    assert (
        "skipped: onnx is not installed"
        in python("-c", GUARD + f"main(['verify', {str(exports / 'flowers')!r}])").stdout
    )
