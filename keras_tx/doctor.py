"""What fits together on a machine and what does not: judgements on what `keras_tx.environment` gathers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping

# The lowest version that is permitted, and the first that is not, as in pyproject.toml; a test compares.
SUPPORTED: dict[str, tuple[str, str]] = {
    "keras": ("3.15", "3.16"),
    "tensorflow": ("2.20", "2.22"),
    "keras-nlp": ("0.32", "0.33"),
    "onnx": ("1.21", "1.24"),
    "onnx-ir": ("1.1", "2"),
    "tf2onnx": ("1.17", "1.18"),
    "onnxruntime": ("1.28", "2"),
    "onnxruntime-gpu": ("1.24", "2"),  # beside TensorFlow up to 1.26, by itself from 1.28
    "numpy": ("2.0", "3"),
    "pillow": ("11", "14"),
    "tokenizers": ("0.21", "0.24"),
    "scikit-learn": ("1.5.2", "2"),
    "jax": ("0.7", "0.13"),
    "torch": ("2.13", "3"),
}
PYTHON = ("3.11", "3.14")
OPSET_23_FROM = "1.23"  # of onnxruntime
TELEMETRY_FROM = "1.29"  # of onnxruntime's official builds for Linux and macOS
TELEMETRY_OFF = ("1", "true", "yes", "on")  # values of ORT_DISABLE_TELEMETRY that turn it off
CUDA_13_FROM = "1.27"  # of onnxruntime-gpu; before, it was built for CUDA 12
TENSORFLOW_CUDA = 12  # of tensorflow[and-cuda] in the supported range
DRIVER_FOR = {12: "525", 13: "580"}  # the lowest NVIDIA driver for a CUDA major, on Linux

CPU_WHEEL, GPU_WHEEL = "onnxruntime", "onnxruntime-gpu"


@dataclasses.dataclass(frozen=True)
class OnnxRuntime:
    """What onnxruntime says when it is imported."""

    providers: tuple[str, ...] = ()
    starts_cuda: bool | None = None  # None: not tried, it has no CUDA
    said: str = ""  # when CUDA did not start, or the import failed
    imports: bool = True


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What nvidia-smi says."""

    names: tuple[str, ...]
    driver: str = ""
    cuda: str = ""  # the newest that the driver supports


@dataclasses.dataclass(frozen=True)
class Framework:
    """What TensorFlow, JAX or PyTorch says of its devices, when it was asked."""

    gpus: tuple[str, ...] = ()
    said: str = ""  # when it failed


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is installed and what it says of itself."""

    python: str
    system: str  # "Linux x86_64"
    versions: Mapping[str, str]  # of what is installed, by the name of the distribution
    backend: str = "tensorflow"  # which Keras would take
    onnxruntime: OnnxRuntime | None = None  # None: not installed
    gpu: Gpu | None = None  # None: nvidia-smi is not here or does not answer
    frameworks: Mapping[str, Framework] | None = None  # None: not asked
    disable_telemetry: str = "1"  # ORT_DISABLE_TELEMETRY, which keras_tx sets to "1" unless the user did

    @property
    def cuda_majors(self) -> frozenset[int]:
        """Of the CUDA libraries that pip installed: nvidia-...-cu12, and without suffix from 13 on."""
        found = {int(m[1]) for name in self.versions if (m := re.fullmatch(r"nvidia-.+-cu(\d+)", name))}
        if "nvidia-cuda-runtime" in self.versions:
            found.add(release(self.versions["nvidia-cuda-runtime"])[0])
        return frozenset(found)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One judgement: "ok", a "warning", or a "problem" that will break something, with its remedy."""

    level: str
    subject: str
    text: str
    remedy: str = ""


def diagnose(facts: Facts) -> list[Finding]:
    """Everything that is worth saying about the facts, problems first.

    >>> [found.level for found in diagnose(Facts("3.12.1", "Linux x86_64", {"numpy": "2.1"}))]
    ['problem', 'ok', 'ok']
    """
    found = [finding for rule in RULES for finding in rule(facts)]
    return sorted(found, key=lambda finding: ("problem", "warning", "ok").index(finding.level))


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, to compare.

    >>> release("2.13.0rc1+cpu")
    (2, 13, 0)
    """
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else (0,)


def _versions(facts: Facts) -> Iterator[Finding]:
    named = {"Python": (facts.python, PYTHON)}
    named |= {
        name: (facts.versions[name], span) for name, span in SUPPORTED.items() if name in facts.versions
    }
    for name, (version, (low, below)) in named.items():
        if release(low) <= release(version) < release(below):
            continue
        too_old_to_run = name in (CPU_WHEEL, GPU_WHEEL) and release(version) < release(OPSET_23_FROM)
        level = "problem" if too_old_to_run or name == "keras" else "warning"
        why = f"{version} is installed, keras-tx was tried with {low} up to, not including, {below}"
        if too_old_to_run:
            why = f"{version} is installed; it cannot open opset 23, which exports have by default"
        elif name == CPU_WHEEL and release(version) < release(low):
            why += "; before, rows of which every key is padding do not come out as in Keras"
        remedy = f'pip install "{name}>={low},<{below}"'
        if name == "Python":
            remedy = f"a virtual environment with Python {low} or newer, before {below}"
        yield Finding(level, name, why, remedy)


def _wheels(facts: Facts) -> Iterator[Finding]:
    from keras_tx.runtime.providers import WHEELS

    wheels = sorted(WHEELS & facts.versions.keys())
    if len(wheels) > 1:
        yield Finding(
            "problem",
            "onnxruntime",
            f"{' and '.join(wheels)} are both installed: they overwrite each other's files",
            f'pip uninstall -y {" ".join(wheels)} && pip install "keras-tx[{_extra(facts)}]"',
        )
    elif not wheels and facts.onnxruntime is None:
        yield Finding(
            "problem",
            "onnxruntime",
            "not installed: nothing can be run, and no export compared with Keras",
            f'pip install "keras-tx[{_extra(facts)}]"',
        )
    said = facts.onnxruntime
    if said is not None and not said.imports:
        yield Finding(
            "problem",
            "onnxruntime",
            f"is installed but cannot be imported ({said.said})",
            f'pip install --force-reinstall "{_wheel(facts)}"; on Windows also the Visual C++ runtime',
        )
    elif said is not None and said.starts_cuda is False and facts.gpu is not None:
        yield Finding(
            "problem",
            "onnxruntime",
            f"was built with CUDA but cannot start it ({said.said or 'it does not say why'})",
            f'pip install "{_gpu_requirement(facts)}" brings its CUDA libraries; and see the driver',
        )
    elif said is not None and said.starts_cuda is False and len(wheels) < 2:
        yield Finding(
            "warning",
            "onnxruntime",
            f"{_wheel(facts)} is installed, but its CUDA does not start "
            f"({said.said or 'it does not say why'}): models run on the CPU",
            f'with a GPU, pip install "{_gpu_requirement(facts)}" brings its CUDA libraries; without, '
            f'pip uninstall -y {_wheel(facts)} && pip install "keras-tx[{_extra(facts)}]"',
        )
    elif said is not None and len(wheels) == 1:
        yield Finding("ok", "onnxruntime", f"{facts.versions[_wheel(facts)]}, {', '.join(said.providers)}")


def _telemetry(facts: Facts) -> Iterator[Finding]:
    version = facts.versions.get(_wheel(facts))
    if version is None or release(version) < release(TELEMETRY_FROM):
        return
    setting = f"ORT_DISABLE_TELEMETRY is {facts.disable_telemetry!r}"
    if facts.disable_telemetry.strip().lower() in TELEMETRY_OFF:
        yield Finding("ok", "telemetry", f"{setting}: onnxruntime sends no usage events")
    else:
        yield Finding(
            "warning",
            "telemetry",
            f"{setting}: onnxruntime {version} sends usage events to Microsoft",
            "unset ORT_DISABLE_TELEMETRY, or set it to 1",
        )


def _cuda(facts: Facts) -> Iterator[Finding]:
    wanted = _wanted_cuda(facts)
    if (
        wanted is not None
        and "tensorflow" in facts.versions
        and 12 in facts.cuda_majors
        and wanted != TENSORFLOW_CUDA
    ):
        yield Finding(
            "problem",
            "CUDA",
            f"tensorflow {facts.versions['tensorflow']} uses CUDA {TENSORFLOW_CUDA}, but onnxruntime-gpu "
            f"{facts.versions[GPU_WHEEL]} wants CUDA {wanted}: one process cannot have both",
            f'pip install "{_gpu_requirement(facts)}"',
        )
    elif wanted is not None and facts.cuda_majors and wanted not in facts.cuda_majors:
        has = " and ".join(map(str, sorted(facts.cuda_majors)))
        yield Finding(
            "problem",
            "CUDA",
            f"onnxruntime-gpu {facts.versions[GPU_WHEEL]} wants CUDA {wanted}, pip has installed CUDA {has}",
            f'pip install "{_gpu_requirement(facts)}"',
        )
    torch = re.search(r"\+cu(\d\d)\d", facts.versions.get("torch", ""))
    if torch and wanted is not None and int(torch[1]) != wanted:
        yield Finding(
            "warning",
            "CUDA",
            f"torch {facts.versions['torch']} brings CUDA {torch[1]}, onnxruntime-gpu wants {wanted}: "
            "the one that is imported second may find the other's libraries",
            f"a torch for CUDA {wanted} (https://pytorch.org/get-started), or each in a process of its own",
        )
    needed = max(
        (wanted or 0, TENSORFLOW_CUDA if facts.cuda_majors and "tensorflow" in facts.versions else 0)
    )
    if needed and facts.gpu and facts.gpu.cuda and release(facts.gpu.cuda)[0] < needed:
        yield Finding(
            "problem",
            "driver",
            f"the NVIDIA driver {facts.gpu.driver} supports CUDA up to {facts.gpu.cuda}, {needed} is wanted",
            f"a driver of version {DRIVER_FOR.get(needed, 'that supports it')} or newer",
        )


def _gpu(facts: Facts) -> Iterator[Finding]:
    if facts.gpu is None:
        if GPU_WHEEL in facts.versions:
            yield Finding(
                "warning",
                "GPU",
                "onnxruntime-gpu is installed, but nvidia-smi shows no GPU",
                "the NVIDIA driver, and in a container --gpus all; without a GPU: "
                f'pip uninstall -y onnxruntime-gpu && pip install "keras-tx[{_extra(facts)}]"',
            )
        else:
            yield Finding(
                "ok",
                "GPU",
                "no NVIDIA GPU (nvidia-smi is not here or shows none): everything runs on the CPU",
            )
        return
    driver = f"driver {facts.gpu.driver}, CUDA up to {facts.gpu.cuda}"
    yield Finding("ok", "GPU", f"{', '.join(facts.gpu.names)}; {driver}")
    if CPU_WHEEL in facts.versions and GPU_WHEEL not in facts.versions:
        yield Finding(
            "warning",
            "GPU",
            "there is a GPU, but this onnxruntime was built without CUDA",
            f'pip uninstall -y onnxruntime && pip install "keras-tx[{_extra(facts)}]" (Linux)',
        )
    if (
        "tensorflow" in facts.versions
        and facts.backend == "tensorflow"
        and TENSORFLOW_CUDA not in facts.cuda_majors
    ):
        yield Finding(
            "warning",
            "GPU",
            f"there is a GPU, but TensorFlow's CUDA {TENSORFLOW_CUDA} libraries were not installed by pip: "
            "unless the system has them, Keras trains on the CPU (--deep asks)",
            'pip install "keras-tx[gpu]" (Linux)',
        )


def _keras(facts: Facts) -> Iterator[Finding]:
    if "keras" not in facts.versions:
        text = "not installed: this machine runs and verifies folders, it does not train or export"
        yield Finding("ok", "keras", f'{text}; for that, pip install "keras-tx[cpu]"')
        return
    if facts.backend not in facts.versions and not (
        facts.backend == "tensorflow" and "tensorflow-cpu" in facts.versions
    ):
        extra = {"jax": "jax", "torch": "torch"}.get(facts.backend, "cpu")
        yield Finding(
            "problem",
            "backend",
            f"Keras would take {facts.backend} (KERAS_BACKEND or ~/.keras/keras.json), which is not there",
            f'pip install "keras-tx[{extra}]", or set KERAS_BACKEND to what is',
        )
    else:
        yield Finding("ok", "backend", f"keras {facts.versions['keras']} on {facts.backend}")
    nlp, hub = facts.versions.get("keras-nlp"), facts.versions.get("keras-hub")
    if nlp and hub and nlp != hub:
        yield Finding(
            "warning",
            "keras-hub",
            f"keras-hub {hub} and keras-nlp {nlp} differ; the second is an alias of the first",
            f'pip install "keras-hub=={nlp}"',
        )


def _asked(facts: Facts) -> Iterator[Finding]:
    for name, framework in (facts.frameworks or {}).items():
        if framework.said:
            remedy = f"pip install --force-reinstall {name}, and see what it printed"
            yield Finding("problem", name, f"cannot be asked for its devices ({framework.said})", remedy)
        elif framework.gpus:
            yield Finding("ok", name, f"sees {', '.join(framework.gpus)}")
        elif facts.gpu is None:
            yield Finding("ok", name, "sees no GPU, as nvidia-smi does not")
        else:
            level = "problem" if name == facts.backend else "warning"
            remedy = f'a {name} with CUDA; for TensorFlow, pip install "keras-tx[gpu]"'
            yield Finding(
                level, name, "sees no GPU, although nvidia-smi shows one: it would train on the CPU", remedy
            )


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _versions,
    _wheels,
    _telemetry,
    _cuda,
    _gpu,
    _keras,
    _asked,
)


def _wanted_cuda(facts: Facts) -> int | None:
    """The CUDA major that the installed onnxruntime-gpu was built for."""
    version = facts.versions.get(GPU_WHEEL)
    if version is None:
        return None
    return 13 if release(version) >= release(CUDA_13_FROM) else 12


def _wheel(facts: Facts) -> str:
    from keras_tx.runtime.providers import WHEELS

    return next((name for name in WHEELS if name != CPU_WHEEL and name in facts.versions), CPU_WHEEL)


def _extra(facts: Facts) -> str:
    """The extra that this machine should have."""
    if "keras" in facts.versions:
        return "gpu" if facts.gpu else "cpu"
    return "runtime-gpu" if facts.gpu else "runtime"


def _gpu_requirement(facts: Facts) -> str:
    """Beside TensorFlow it has to be one of the same CUDA."""
    beside_tensorflow = "tensorflow" in facts.versions
    return "onnxruntime-gpu[cuda,cudnn]" + (f">=1.24,<{CUDA_13_FROM}" if beside_tensorflow else ">=1.28,<2")
