"""LoadedModel: what every exported folder has in common once it runs."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import Any, Self

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
        """Where it really runs: "cpu" or "cuda"."""
        return self.session.provider

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the classes, in the order of the logits; None where there are none."""
        return self.folder.manifest.labels

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
        return f"<{type(self).__name__} {str(self.folder.path)!r}: {inputs} on {self.provider}{labels}>"
