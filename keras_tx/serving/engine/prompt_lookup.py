"""PromptLookup: guesses the next tokens of a text from the text itself."""

from __future__ import annotations

NGRAM = 3  # last tokens whose earlier occurrence is continued
SHORTEST, LONGEST = 3, 16  # tokens of a guess
# In decode steps: what failed guesses may cost at first, and after a pause; and what is saved at most.
CREDIT, CREDIT_AFTER_PAUSE, MOST_CREDIT = 0.5, 0.25, 2.0
PAUSE = 64  # tokens; each pause is twice as long as the one before


class PromptLookup:
    """The tokens that followed the last occurrence of the text's last tokens.

    One run verifies a guess, and takes longer than a decode step. Guesses pause while this costs more time
    than the accepted tokens save.

    Args:
        ids: the text, to which tokens are appended.
    """

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids
        self._ends: dict[tuple[int, ...], int] = {}  # of the last occurrence of each n-gram but the last one
        self._indexed = NGRAM
        self._length = SHORTEST
        self._credit = CREDIT
        self._pause, self._until = PAUSE, 0

    def guess(self, most: int) -> list[int]:
        """The next tokens, at most so many; [] if they are not known, or guesses pause."""
        ids = self._ids
        if len(ids) < self._until:
            return []
        for end in range(self._indexed, len(ids)):
            self._ends[tuple(ids[end - NGRAM : end])] = end
        self._indexed = max(self._indexed, len(ids))
        start = self._ends.get(tuple(ids[-NGRAM:]), len(ids))
        return ids[start : start + min(self._length, most)]

    def record(self, guessed: int, accepted: int, cost: float) -> None:
        """Adapts to a run that verified a guess.

        Args:
            guessed: number of tokens of the guess.
            accepted: how many of them were right.
            cost: time of the run, in decode steps.
        """
        self._length = min(LONGEST, 2 * self._length) if accepted == guessed else max(SHORTEST, accepted)
        self._credit = min(MOST_CREDIT, self._credit + accepted + 1 - cost)
        if self._credit < 0:
            self._until = len(self._ids) + self._pause
            self._pause *= 2
            self._credit = CREDIT_AFTER_PAUSE
