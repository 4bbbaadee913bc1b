"""The inputs and outputs of a decoder's graph, by the contract's names."""

from __future__ import annotations

import dataclasses

from keras_tx import contract
from keras_tx.contract import TensorSpec
from keras_tx.errors import FolderError
from keras_tx.runtime.session import Session, describe


@dataclasses.dataclass(frozen=True)
class Ports:
    """What takes and gives keys and values, in the order of the layers, and the logits.

    `short` says whether the graph can leave out the logits of all tokens but the last ones.
    """

    pasts: tuple[TensorSpec, ...]
    presents: tuple[str, ...]
    logits: TensorSpec
    short: bool

    @property
    def vocabulary_size(self) -> int:
        return int(self.logits.shape[-1])

    @classmethod
    def of(cls, session: Session) -> Ports:
        names = {spec.name for spec in session.inputs}
        pasts = tuple(spec for spec in session.inputs if spec.name.startswith("past_key_values."))
        # in the order of the ports, as the exporter writes them
        presents = tuple(spec.name for spec in session.outputs if spec.name.startswith("present."))
        logits = next((spec for spec in session.outputs if spec.name == contract.LOGITS), None)
        needed = {contract.INPUT_IDS, contract.ATTENTION_MASK, contract.POSITION_IDS}
        if not pasts or len(pasts) != len(presents) or logits is None or needed - names:
            raise FolderError(
                f"{session.graph.parent.parent}: the graph takes {', '.join(map(describe, session.inputs))}, "
                f"expected {', '.join(sorted(needed))} and a cache. Export it again, with cache=True."
            )
        short = contract.NUM_LOGITS_TO_KEEP in {spec.name for spec in session.optional}
        return cls(pasts, presents, logits, short)
