"""Diagnoses an installation: which of the facts that `keras_tx.environment` gathers are in conflict."""

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
    "matplotlib": ("3.10.8", "4"),
    "jax": ("0.7", "0.13"),
    "torch": ("2.13", "3"),
}
PYTHON = ("3.11", "3.14")
ZERO_ROWS_FROM = "1.28"  # attention of a query without keys is zero, as in Keras
OPSET_23_FROM = "1.23"  # of onnxruntime
TELEMETRY_FROM = "1.29"  # of onnxruntime's official builds for Linux and macOS
TELEMETRY_OFF = ("1", "true", "yes", "on")  # values of ORT_DISABLE_TELEMETRY that turn it off
CUDA_13_FROM = "1.27"  # of onnxruntime-gpu; before, it was built for CUDA 12
TENSORFLOW_CUDA = 12  # of tensorflow[and-cuda] in the supported range
DRIVER_FOR = {12: "525", 13: "580"}  # the lowest NVIDIA driver for a CUDA major, on Linux

CPU_WHEEL, GPU_WHEEL = "onnxruntime", "onnxruntime-gpu"


@dataclasses.dataclass(frozen=True)
class OnnxRuntime:
    """The state of the installed onnxruntime."""

    providers: tuple[str, ...] = ()
    starts_cuda: bool | None = None  # None: not tried, it was built without CUDA
    error: str = ""  # of the import, or of the start of CUDA
    imports: bool = True


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What nvidia-smi reports."""

    names: tuple[str, ...]
    driver: str = ""
    cuda: str = ""  # the newest that the driver supports


@dataclasses.dataclass(frozen=True)
class Framework:
    """The devices that TensorFlow, JAX or PyTorch reports."""

    gpus: tuple[str, ...] = ()
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is installed on a machine, and its devices."""

    python: str
    system: str  # "Linux x86_64"
    versions: Mapping[str, str]  # of what is installed, by the name of the distribution
    backend: str = "tensorflow"  # that Keras selects
    onnxruntime: OnnxRuntime | None = None  # None: not installed
    gpu: Gpu | None = None  # None: nvidia-smi is not here or does not answer
    frameworks: Mapping[str, Framework] | None = None  # None: not started
    disable_telemetry: str = "1"  # ORT_DISABLE_TELEMETRY, which keras_tx sets to "1" unless the user did

    @property
    def cuda_majors(self) -> frozenset[int]:
        """Of the CUDA libraries that pip installed: nvidia-...-cu12, and without suffix from 13 on."""
        majors = {int(m[1]) for name in self.versions if (m := re.fullmatch(r"nvidia-.+-cu(\d+)", name))}
        if "nvidia-cuda-runtime" in self.versions:
            majors.add(release(self.versions["nvidia-cuda-runtime"])[0])
        return frozenset(majors)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A finding: "ok", a "warning", or a "problem" that breaks something, with its remedy."""

    level: str
    subject: str
    text: str
    remedy: str = ""


def diagnose(facts: Facts) -> list[Finding]:
    """The findings of all rules, problems first.

    >>> [finding.level for finding in diagnose(Facts("3.12.1", "Linux x86_64", {"numpy": "2.1"}))]
    ['problem', 'ok', 'ok', 'ok']
    """
    findings = [finding for rule in RULES for finding in rule(facts)]
    return sorted(findings, key=lambda finding: ("problem", "warning", "ok").index(finding.level))


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparisons.

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
        text = f"{version} is not supported, expected >={low},<{below}"
        if too_old_to_run:
            text = f"{version} does not support opset 23, the default of exports"
        elif name == CPU_WHEEL and release(version) < release(low):
            text += "; its attention differs from Keras in rows whose keys are all padding"
        remedy = f'pip install "{name}>={low},<{below}"'
        if name == "Python":
            remedy = f"create a virtual environment with Python >={low},<{below}"
        yield Finding(level, name, text, remedy)


def _wheels(facts: Facts) -> Iterator[Finding]:
    from keras_tx.runtime.providers import WHEELS

    wheels = sorted(WHEELS & facts.versions.keys())
    install = f'pip install "keras-tx[{_extra(facts)}]"'
    if len(wheels) > 1:
        text = f"{' and '.join(wheels)} are both installed and overwrite each other's files"
        yield Finding("problem", "onnxruntime", text, f"pip uninstall -y {' '.join(wheels)} && {install}")
    elif not wheels and facts.onnxruntime is None:
        text = "not installed: models do not run, and exports are not verified"
        yield Finding("problem", "onnxruntime", text, install)
    elif len(wheels) == 1 and facts.onnxruntime is not None and not facts.onnxruntime.error:
        version = facts.versions[_wheel(facts)]
        differs = _wheel(facts) == GPU_WHEEL and release(version) < release(ZERO_ROWS_FROM)
        note = (
            f"; before {ZERO_ROWS_FROM}, attention without any key is not zero as in Keras" if differs else ""
        )
        yield Finding("ok", "onnxruntime", f"{version}, {', '.join(facts.onnxruntime.providers)}{note}")


def _onnxruntime(facts: Facts) -> Iterator[Finding]:
    runtime = facts.onnxruntime
    if runtime is None or (runtime.imports and runtime.starts_cuda is not False):
        return
    wheel, cuda = _wheel(facts), f'pip install "{_gpu_requirement(facts)}" installs the CUDA libraries'
    if not runtime.imports:
        yield Finding(
            "problem",
            "onnxruntime",
            f"{wheel} cannot be imported: {runtime.error}",
            f'pip install --force-reinstall "{wheel}"; on Windows also the Visual C++ runtime',
        )
    elif facts.gpu is not None:
        text = f"{wheel} cannot start CUDA: {runtime.error}"
        yield Finding("problem", "onnxruntime", text, f"{cuda}; check the driver")
    elif not (CPU_WHEEL in facts.versions and GPU_WHEEL in facts.versions):
        yield Finding(
            "warning",
            "onnxruntime",
            f"{wheel} cannot start CUDA, models run on the CPU: {runtime.error}",
            f"with a GPU: {cuda}; without: "
            f'pip uninstall -y {wheel} && pip install "keras-tx[{_extra(facts)}]"',
        )


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
    """onnxruntime-gpu and the CUDA libraries beside it."""
    required = _required_cuda(facts)
    if required is None:
        return
    wheel = f"onnxruntime-gpu {facts.versions[GPU_WHEEL]}"
    if "tensorflow" in facts.versions and 12 in facts.cuda_majors and required != TENSORFLOW_CUDA:
        text = (
            f"tensorflow {facts.versions['tensorflow']} requires CUDA {TENSORFLOW_CUDA} and {wheel} requires "
            f"CUDA {required}: one process cannot load both"
        )
    elif facts.cuda_majors and required not in facts.cuda_majors:
        installed = " and ".join(map(str, sorted(facts.cuda_majors)))
        text = f"{wheel} requires CUDA {required}, but pip installed CUDA {installed}"
    else:
        return
    yield Finding("problem", "CUDA", text, f'pip install "{_gpu_requirement(facts)}"')


def _torch_cuda(facts: Facts) -> Iterator[Finding]:
    required = _required_cuda(facts)
    torch = re.search(r"\+cu(\d\d)\d", facts.versions.get("torch", ""))
    if torch and required is not None and int(torch[1]) != required:
        yield Finding(
            "warning",
            "CUDA",
            f"torch {facts.versions['torch']} includes CUDA {torch[1]}, but onnxruntime-gpu requires CUDA "
            f"{required}: in one process, the second import may load the libraries of the first",
            f"install a torch for CUDA {required} (https://pytorch.org/get-started), or use two processes",
        )


def _driver(facts: Facts) -> Iterator[Finding]:
    trains = facts.cuda_majors and "tensorflow" in facts.versions
    required = max(_required_cuda(facts) or 0, TENSORFLOW_CUDA if trains else 0)
    if required and facts.gpu and facts.gpu.cuda and release(facts.gpu.cuda)[0] < required:
        yield Finding(
            "problem",
            "driver",
            f"NVIDIA driver {facts.gpu.driver} supports CUDA up to {facts.gpu.cuda}, but CUDA {required} is "
            "required",
            f"install NVIDIA driver {DRIVER_FOR.get(required, 'with its support')} or newer",
        )


def _gpu(facts: Facts) -> Iterator[Finding]:
    if facts.gpu is None:
        if GPU_WHEEL in facts.versions:
            yield Finding(
                "warning",
                "GPU",
                "onnxruntime-gpu is installed, but nvidia-smi shows no GPU",
                "install the NVIDIA driver, or start the container with --gpus all; without a GPU: "
                f'pip uninstall -y onnxruntime-gpu && pip install "keras-tx[{_extra(facts)}]"',
            )
        else:
            yield Finding(
                "ok",
                "GPU",
                "nvidia-smi shows no GPU: models run on the CPU",
            )
        return
    driver = f"driver {facts.gpu.driver}, CUDA up to {facts.gpu.cuda}"
    yield Finding("ok", "GPU", f"{', '.join(facts.gpu.names)}; {driver}")
    if CPU_WHEEL in facts.versions and GPU_WHEEL not in facts.versions:
        yield Finding(
            "warning",
            "GPU",
            "the GPU is not used: onnxruntime was built without CUDA",
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
            f"TensorFlow's CUDA {TENSORFLOW_CUDA} libraries are not installed by pip: unless the system has "
            "them, Keras trains on the CPU (--deep checks)",
            'pip install "keras-tx[gpu]" (Linux)',
        )


def _keras(facts: Facts) -> Iterator[Finding]:
    if "keras" not in facts.versions:
        text = 'not installed: folders run and verify; to train or export, pip install "keras-tx[cpu]"'
        yield Finding("ok", "keras", text)
        return
    if facts.backend not in facts.versions and not (
        facts.backend == "tensorflow" and "tensorflow-cpu" in facts.versions
    ):
        extra = {"jax": "jax", "torch": "torch"}.get(facts.backend, "cpu")
        yield Finding(
            "problem",
            "backend",
            f"Keras selects {facts.backend} (KERAS_BACKEND or ~/.keras/keras.json), which is not installed",
            f'pip install "keras-tx[{extra}]", or set KERAS_BACKEND to an installed backend',
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


def _matplotlib(facts: Facts) -> Iterator[Finding]:
    if "matplotlib" not in facts.versions:
        text = 'not installed: to draw figures and run keras-tx inspect, pip install "keras-tx[inspect]"'
        yield Finding("ok", "matplotlib", text)


def _frameworks(facts: Facts) -> Iterator[Finding]:
    for name, framework in (facts.frameworks or {}).items():
        if framework.error:
            remedy = f"pip install --force-reinstall {name}"
            yield Finding("problem", name, f"cannot list its devices: {framework.error}", remedy)
        elif framework.gpus:
            yield Finding("ok", name, f"lists {', '.join(framework.gpus)}")
        elif facts.gpu is None:
            yield Finding("ok", name, "lists no GPU, nor does nvidia-smi")
        else:
            level = "problem" if name == facts.backend else "warning"
            remedy = f'install {name} with CUDA; for TensorFlow, pip install "keras-tx[gpu]"'
            yield Finding(level, name, "lists no GPU, but nvidia-smi does: it trains on the CPU", remedy)


RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _versions,
    _wheels,
    _onnxruntime,
    _telemetry,
    _cuda,
    _torch_cuda,
    _driver,
    _gpu,
    _keras,
    _matplotlib,
    _frameworks,
)


def _required_cuda(facts: Facts) -> int | None:
    """The CUDA major that the installed onnxruntime-gpu was built for."""
    version = facts.versions.get(GPU_WHEEL)
    if version is None:
        return None
    return 13 if release(version) >= release(CUDA_13_FROM) else 12


def _wheel(facts: Facts) -> str:
    from keras_tx.runtime.providers import WHEELS

    return next((name for name in WHEELS if name != CPU_WHEEL and name in facts.versions), CPU_WHEEL)


def _extra(facts: Facts) -> str:
    """The extra for this machine."""
    if "keras" in facts.versions:
        return "gpu" if facts.gpu else "cpu"
    return "runtime-gpu" if facts.gpu else "runtime"


def _gpu_requirement(facts: Facts) -> str:
    """With TensorFlow installed, a release for the same CUDA."""
    beside_tensorflow = "tensorflow" in facts.versions
    return "onnxruntime-gpu[cuda,cudnn]" + (f">=1.24,<{CUDA_13_FROM}" if beside_tensorflow else ">=1.28,<2")
