"""keras-tx plan: memory, communication, time and price of a training on several devices."""

from __future__ import annotations

import argparse
import ast
import re
from typing import TYPE_CHECKING, Any

from keras_tx.commands.arguments import whole
from keras_tx.commands.terminal import table

if TYPE_CHECKING:
    from keras_tx.training.training_plan import Layout, TrainingPlan

SUMMARY = "compute the memory, communication, time and price of a training on several devices"
DESCRIPTION = """\
Computes, for each layout of the devices, the memory of one device (weights, gradients, the state of AdamW and
an estimate of the activations) and the data that it sends per step. Nothing is allocated. A layout divides
the batch into DATA parts and the weights of each block into TENSOR parts, as keras_tx.model_parallel does on
JAX. Layouts with "remat" recompute blocks in the backward pass, as model.compile(remat=True) does.
"""
EPILOG = """\
examples:
  keras-tx plan --model gpt:1558M --devices 64 --memory 80GB
  keras-tx plan --model gpt:124M --devices 8 --memory 16GB --tokens 1024 --batch-size 512
  keras-tx plan --model gpt:124M --config vocabulary_size=32000 --devices 4 --memory 16GB
  keras-tx plan --model vit:B/16 --devices 8 --memory 40GB --examples 384M --peak 312 --price 2.5

exit codes: 0 a layout fits; 1 no layout fits; 2 an error.
"""
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        required=True,
        metavar="FAMILY:VARIANT",
        help="the model, such as gpt:1558M, bert:base or vit:L/16",
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        type=_field,
        metavar="NAME=VALUE",
        help="overrides a field of the config; can be repeated",
    )
    parser.add_argument("--devices", required=True, type=whole, metavar="N", help="number of devices")
    parser.add_argument(
        "--memory",
        required=True,
        type=_memory,
        metavar="SIZE",
        help="memory per device, such as 80GB",
    )
    parser.add_argument(
        "--batch-size",
        type=whole,
        metavar="N",
        help="examples per step on all devices (default: 1 per device)",
    )
    parser.add_argument("--tokens", type=whole, metavar="N", help="tokens per text (default: max_length)")
    parser.add_argument(
        "--precision",
        choices=("mixed_bfloat16", "mixed_float16", "float32"),
        default="mixed_bfloat16",
        help="dtype policy (default: mixed_bfloat16)",
    )
    parser.add_argument(
        "--examples",
        type=_count,
        metavar="N",
        help="number of examples of the whole training, such as 300M",
    )
    parser.add_argument(
        "--peak", type=_number, metavar="TFLOPS", help="peak of a device in TFLOP/s, to compute the time"
    )
    parser.add_argument(
        "--utilization",
        type=_share,
        default=0.4,
        metavar="SHARE",
        help="achieved share of the peak (default: 0.4)",
    )
    parser.add_argument("--price", type=_number, metavar="AMOUNT", help="price of a device per hour")


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.errors import ConfigError

    if (arguments.examples is None) != (arguments.peak is None):
        present, absent = ("examples", "peak") if arguments.peak is None else ("peak", "examples")
        raise ConfigError(f"--{present} requires --{absent}: both determine the time of the training.")
    if arguments.price is not None and arguments.examples is None:
        raise ConfigError("--price requires --examples and --peak, which determine the time of the training.")
    from keras_tx.commands.framework_logs import import_keras

    import_keras()
    from keras_tx.models.families import variant_config
    from keras_tx.training.training_plan import training_plan

    plan = training_plan(
        variant_config(arguments.model, **dict(arguments.config)),
        arguments.devices,
        batch_size=arguments.batch_size,
        tokens=arguments.tokens,
        precision=arguments.precision,
    )
    batch_size = arguments.batch_size or arguments.devices
    print(
        f"{arguments.model}: {plan.params / 1e6:,.0f} M parameters, {batch_size} examples per step, "
        f"{batch_size * plan.example_flops / 1e12:,.1f} TFLOPs per step"
    )
    print()
    print(_layouts(plan, arguments.memory))
    if plan.impossible:
        print(f"\nOther layouts are impossible: {plan.impossible[0]}")
    best = plan.best(arguments.memory)
    print()
    print(_advice(best, arguments.memory))
    if arguments.examples is not None:
        print(_time(plan, best, arguments))
    return 1 if best is None else 0


def _layouts(plan: TrainingPlan, memory: int) -> str:
    titles = "data x tensor|weights|gradients|optimizer|activations|total GB|sent GB per step|"
    rows: list[tuple[str, ...]] = [tuple(titles.split("|"))]
    for layout in plan.layouts:
        sizes = (layout.weights, layout.gradients, layout.optimizer, layout.activations, layout.total)
        rows.append(
            (
                f"{layout.data} x {layout.tensor}{', remat' if layout.remat else ''}",
                *(f"{size / 1e9:,.2f}" for size in sizes),
                f"{layout.communication / 1e9:,.2f}",
                "fits" if layout.total <= memory else "too large",
            )
        )
    return table(rows, right=range(1, 7))


def _advice(best: Layout | None, memory: int) -> str:
    if best is None:
        return (
            f"No layout fits into {memory / 1e9:,.0f} GB. Use more devices, a smaller batch or shorter texts."
        )
    remat = ", with model.compile(remat=True)" if best.remat else ""
    if best.tensor == 1:
        return f"Recommended: data parallel on {best.data} devices{remat}."
    return f"Recommended: model_parallel(config, data={best.data}, tensor={best.tensor}){remat}."


def _time(plan: TrainingPlan, best: Layout | None, arguments: argparse.Namespace) -> str:
    passes = 4 / 3 if best is not None and best.remat else 1.0  # the forward pass is computed twice
    flops = plan.example_flops * arguments.examples
    days = passes * flops / (arguments.peak * 1e12 * arguments.utilization) / 86400
    text = (
        f"{arguments.examples:,} examples: {flops / 1e18:,.4g} exaFLOPs, {days:,.4g} device-days at "
        f"{arguments.utilization:.0%} of {arguments.peak:g} TFLOP/s, {days / arguments.devices:,.1f} days"
    )
    return text + (f", a price of {days * 24 * arguments.price:,.0f}" if arguments.price is not None else "")


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _memory(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT])(i?)B", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, such as 80GB or 16GiB")
    number, unit, binary = match.groups()
    return int(float(number) * (1024 ** ("KMGT".index(unit) + 1) if binary else UNITS[unit]))


def _count(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text)
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of examples, such as 60000 or 300M")
    return int(float(match[1]) * UNITS[match[2]])


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _share(text: str) -> float:
    number = _number(text)
    if number > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0 and up to 1")
    return number
