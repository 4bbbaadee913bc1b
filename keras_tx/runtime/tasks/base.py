"""LoadedModel: what every exported folder has in common once it runs."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Any, Self

import numpy as np

from keras_tx import contract
from keras_tx.errors import InputError, nearest, whole_number
from keras_tx.runtime.async_call import call_async
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session, describe


class LoadedModel(abc.ABC):
    """What `load` gives; close it, or use it in a with statement, to give the memory back."""

    def __init__(self, folder: Folder, session: Session) -> None:
        self.folder = folder
        self.session = session

    @abc.abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    @property
    def provider(self) -> str:
        """Where it really runs: "cpu", "cuda" ..."""
        return self.session.provider

    @property
    def precision(self) -> str:
        """Which file of the folder runs: "fp32", "fp16", "int8", "int8-blocks" or "int4"."""
        return self.folder.precision

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the classes, in the order of the logits; None where there are none."""
        return self.folder.manifest.labels

    async def call_async(self, *args: Any, **options: Any) -> Any:
        """The same as a call, in a thread: `await model.call_async("rose.jpg", top_k=1)`.

        Where the task that waits is cancelled, the graph stops at its next node.
        """
        return await call_async(self, *args, **options)

    def warm_up(self, **sizes: int) -> None:
        """Runs the graph once on zeros, so that the first request is not the slow one.

        >>> model.warm_up(sequence_length=128)  # doctest: +SKIP

        Args:
            sizes: of dynamic axes, by their names; 1 for those that are not named, and 0 for the past.
        """
        axes = {axis for spec in self.session.inputs for axis in spec.shape if isinstance(axis, str)}
        for name in sizes:
            if name not in axes:
                raise InputError(f"{self.folder.path} has no dynamic axis {name!r}. {nearest(name, axes)}")
            whole_number(name, sizes[name])
        given = {contract.PAST_AXIS: 0, **sizes}
        given.setdefault(contract.TOTAL_AXIS, given.get(contract.SEQUENCE_AXIS, 1))
        self.session.run(
            {
                spec.name: np.zeros(
                    [n if isinstance(n, int) else given.get(n, 1) for n in spec.shape], spec.dtype
                )
                for spec in self.session.inputs
            }
        )

    def close(self) -> None:
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        inputs = ", ".join(describe(spec) for spec in self.session.inputs)
        labels = f", {len(self.labels)} labels" if self.labels else ""
        return f"<{type(self).__name__} {str(self.folder.path)!r}: {inputs} on {self._place()}{labels}>"

    def _place(self) -> str:
        return self.provider if self.precision == "fp32" else f"{self.provider} in {self.precision}"
