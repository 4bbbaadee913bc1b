"""LoadedModel, the base class of all tasks, and Task, the record of one."""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import numpy as np

from keras_tx import contract
from keras_tx.errors import FolderError, InputError, nearest, whole_number
from keras_tx.runtime.async_call import call_async
from keras_tx.runtime.folder import Folder, read_adapter
from keras_tx.runtime.session import Session, describe

Method = TypeVar("Method", bound=Callable[..., Any])


def per_adapter(method: Method) -> Method:
    """Adds the argument `adapter` to a method: the name of an adapter of the folder, for this call."""
    signature = inspect.signature(method)
    option = inspect.Parameter(
        "adapter", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None"
    )
    parameters = list(signature.parameters.values())
    before = sum(x.kind is not inspect.Parameter.VAR_KEYWORD for x in parameters)
    parameters.insert(before, option)

    @functools.wraps(method)
    def call(self: LoadedModel, *args: Any, adapter: str | None = None, **options: Any) -> Any:
        return method(self if adapter is None else self.with_adapter(adapter), *args, **options)

    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return cast(Method, call)


class LoadedModel(abc.ABC):
    """A loaded folder. Close it, or use it in a `with` statement, to free its memory.

    Attributes:
        folder: the checked folder.
        session: the graph in onnxruntime.
        task: the record of the task.
    """

    task: Task

    def __init__(self, folder: Folder, session: Session) -> None:
        self.folder = folder
        self.session = session
        self._adapted: dict[
            str, tuple[Session, ...]
        ] = {}  # by the name of the adapter; shared by all of them

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that are stored in the folder."""
        return tuple(self.folder.manifest.adapters)

    def with_adapter(self, name: str) -> Self:
        """Returns this model with an adapter of the folder.

        Both share the weights of the base in memory, and closing one closes both.

        >>> reviews = model.with_adapter("reviews")  # doctest: +SKIP
        >>> reviews("A very good film.") == model("A very good film.", adapter="reviews")  # doctest: +SKIP
        True

        Args:
            name: name of the adapter.

        Raises:
            ConfigError: if the folder has no adapter of this name.
            FolderError: if its file is damaged, or does not fit the graph.
        """
        model = copy.copy(self)
        model.sessions = self._sessions_with(name)
        manifest = self.folder.manifest
        manifest = dataclasses.replace(manifest, labels=manifest.adapters[name].labels)
        model.folder = dataclasses.replace(self.folder, manifest=manifest)
        model.prepare()
        return model

    def _sessions_with(self, name: str) -> tuple[Session, ...]:
        """The sessions with an adapter, which is read when it is first used."""
        if name not in self._adapted:
            values = read_adapter(self.folder, name)
            try:
                pairs = zip(self.sessions, values, strict=True)
                sessions = tuple(session.with_adapter(x) for session, x in pairs)
            except InputError as error:
                raise FolderError(
                    f"{self.folder.path}: adapter {name!r} does not fit the graph. {error} Export again."
                ) from error
            self._adapted.setdefault(name, sessions)  # another thread may have been faster
        return self._adapted[name]

    def prepare(self) -> None:  # noqa: B027  most tasks have nothing to compute
        """Computes what depends on the sessions and on the labels of the folder."""

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the method of the task: `classify`, `embed`, `tag`, `answer`, `fill`, `generate` ..."""

    @property
    def sessions(self) -> tuple[Session, ...]:
        """All graphs of the model in onnxruntime, the main one last; most models have one."""
        return (self.session,)

    @sessions.setter
    def sessions(self, sessions: tuple[Session, ...]) -> None:
        (self.session,) = sessions

    @property
    def provider(self) -> str:
        """The provider that runs the graph: "cpu", "cuda" ..."""
        return self.session.provider

    @property
    def precision(self) -> str:
        """The precision of the graph: "fp32", "fp16", "int8", "int8-blocks", "int8-dynamic" or "int4"."""
        return self.folder.precision

    @property
    def token_counter(self) -> Callable[[Any], int] | None:
        """A function that returns the number of tokens of one input; None for a model without tokens."""
        return None

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Names of the classes, in the order of the logits; None for a model without classes."""
        return self.folder.manifest.labels

    async def call_async(self, *args: Any, **options: Any) -> Any:
        """Calls the model in a thread; cancelling the asyncio task stops the graph at its next node.

        >>> await model.call_async("rose.jpg", top_k=1)  # doctest: +SKIP
        """
        return await call_async(self, *args, **options)

    def warm_up(self, **sizes: int) -> None:
        """Runs the graph once on zeros, so that the first request is as fast as the others.

        >>> model.warm_up(sequence_length=128)  # doctest: +SKIP

        Args:
            sizes: size of each dynamic axis, by its name. By default 1, and 0 for the axis of the past.

        Raises:
            InputError: if the graph has no dynamic axis of that name.
            ConfigError: if a size is not a positive integer.
        """
        axes = {axis for one in self.sessions for spec in one.inputs for axis in spec.shape}
        axes = {axis for axis in axes if isinstance(axis, str)}
        for name in sizes:
            if name not in axes:
                raise InputError(f"{self.folder.path} has no dynamic axis {name!r}. {nearest(name, axes)}")
            whole_number(name, sizes[name])
        sizes = {contract.PAST_AXIS: 0, contract.SOURCE_PAST_AXIS: 0, **sizes}
        sizes.setdefault(contract.TOTAL_AXIS, sizes.get(contract.SEQUENCE_AXIS, 1))
        for session in self.sessions:
            shapes = {
                spec: [n if isinstance(n, int) else sizes.get(n, 1) for n in spec.shape]
                for spec in session.inputs
            }
            session.run({spec.name: np.zeros(shape, spec.dtype) for spec, shape in shapes.items()})

    def close(self) -> None:
        """Frees the memory of the graphs. Calling it twice is allowed."""
        for session in self.sessions:
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        labels = f", {len(self.labels)} labels" if self.labels else ""
        precision = "" if self.precision == "fp32" else f" in {self.precision}"
        return (
            f"<{type(self).__name__} {str(self.folder.path)!r}: {self._summary()} on "
            f"{self.provider}{precision}{labels}>"
        )

    def _summary(self) -> str:
        return ", ".join(describe(spec) for spec in self.session.inputs)


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options of `keras-tx run` and `keras-tx serve` that tasks use."""

    top_k: int = 5
    pair: str | None = None
    question: str | None = None
    choices: tuple[str, ...] | None = None
    generation: Mapping[str, Any] = dataclasses.field(
        default_factory=dict, hash=False
    )  # options of `generate`


Answer = dict[str, Any]  # to one input, as `keras-tx run --json` prints it
DrawBar = Callable[[float], str]  # a score from 0 to 1 as a bar; "" if there is no terminal


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of exported folders: the class that runs it, and how the commands use that class.

    Attributes:
        name: `task` in the manifest; None for graphs without a known task.
        runtime: the class that runs a folder of this task.
        inputs: the kind of one input: "image", "text", "prompt" or "arrays".
        accepts_ids: whether the class runs without a tokenizer, on token ids. Without it, a folder of texts
            that has no tokenizer is a GenericModel.
        outputs: outputs of the graph that distinguish tasks with the same name.
        metric: name of the metric on validation data; None if there is no usual one.
        options: optional RunOptions of the task, besides `top_k`.
        required: RunOptions without which the task cannot run.
        answer: computes the answers of `keras-tx run` to a list of inputs.
        render: yields an answer as lines for a terminal.
        run_example: runs a loaded model on an example and returns a description for `keras-tx verify`.
    """

    name: str | None
    runtime: Callable[[Folder, Session], LoadedModel]
    inputs: str
    accepts_ids: bool = False
    outputs: tuple[str, ...] = ()
    metric: str | None = None
    options: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    answer: Callable[[Any, Sequence[Any], RunOptions], list[Answer]] | None = None
    render: Callable[[Answer, DrawBar], Iterator[str]] | None = None
    run_example: Callable[[Any], str] | None = None

    def open(self, folder: Folder, session: Session) -> LoadedModel:
        """The loaded model; raises a FolderError if the folder does not fit the task."""
        model = self.runtime(folder, session)
        model.task = self
        return model


def check_outputs(folder: Folder, session: Session, names: Sequence[str]) -> None:
    """Raises a FolderError if the graph lacks one of these outputs."""
    outputs = [spec.name for spec in session.outputs]
    if not set(names) <= set(outputs):
        raise FolderError(
            f"{folder.path}: the graph has the outputs {', '.join(outputs)}, but the task "
            f"{folder.manifest.task!r} needs {' and '.join(names)}. Export again."
        )


def check_tensors(
    folder: Folder,
    session: Session,
    inputs: Sequence[contract.TensorSpec],
    outputs: Sequence[contract.TensorSpec],
) -> None:
    """Raises a FolderError if a graph has other inputs or outputs than the manifest."""
    for kind, expected, actual in (
        ("inputs", inputs, session.inputs),
        ("outputs", outputs, session.outputs),
    ):
        if [(spec.name, spec.dtype) for spec in expected] != [(spec.name, spec.dtype) for spec in actual]:
            raise FolderError(
                f"{folder.path}: {contract.MANIFEST} has the {kind} {', '.join(map(describe, expected))}, "
                f"but {session.graph.name} has {', '.join(map(describe, actual))}. Export again."
            )


def embedding_answer(vector: np.ndarray) -> Answer:
    return {"shape": list(vector.shape), "embedding": vector.tolist()}


def render_embedding(answer: Answer, draw_bar: DrawBar) -> Iterator[str]:
    yield f"  embedding of shape {tuple(answer['shape'])}; --json prints its numbers"
