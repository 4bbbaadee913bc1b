"""keras-tx plan: its table, recommendation, time and errors."""

from __future__ import annotations

import pytest

from keras_tx import cli


def run(text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = cli.main(["plan", *text.split()])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_layouts_recommendation_and_time(capsys):
    text = "--model vit:B/16 --devices 4 --memory 16GB --examples 2121M --peak 61.5 --price 2"
    code, output = run(text, capsys)
    assert code == 0
    assert "86 M parameters" in output.splitlines()[0]
    assert output.count("fits") == 6  # 12 heads: 1, 2 and 4 parts, without and with remat
    assert "Recommended: data parallel on 4 devices." in output
    days = 224e18 / (61.5e12 * 0.4) / 86400
    assert "223.5 exaFLOPs" in output and f"{days:.0f}" in output


def test_other_fields_and_model_parallel(capsys):
    code, output = run(
        "--model gpt:1558M --config num_heads=20 --devices 4 --memory 12GB --tokens 512", capsys
    )
    assert code == 0 and "model_parallel(config, data=1, tensor=4)" in output
    code, output = run("--model gpt:1558M --devices 4 --memory 12GB --tokens 512", capsys)
    assert code == 1 and "25 heads" in output and "No layout fits into 12 GB" in output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--model gpt --devices 4 --memory 1GB", "model='gpt'"),
        ("--model gpt:nowhere --devices 4 --memory 1GB", "nowhere"),
        ("--model gpt:124M --devices 0 --memory 1GB", "--devices: '0'"),
        ("--model gpt:124M --devices 4 --memory 80", "--memory: '80'"),
        ("--model gpt:124M --devices 4 --memory 1GB --config heads", "--config: 'heads'"),
        ("--model gpt:124M --devices 4 --memory 1GB --config heads=3", "'heads'"),
        ("--model gpt:124M --devices 4 --memory 1GB --examples 10", "--examples requires --peak"),
        ("--model gpt:124M --devices 4 --memory 1GB --price 10", "--price requires --examples"),
        ("--model gpt:124M --devices 4 --memory 1GB --utilization 2", "--utilization: '2'"),
    ],
)
def test_invalid_arguments_are_one_line(text, message, capsys):
    code, output = run(text, capsys)
    assert code == 2 and message in output and len(output.splitlines()) == 1
