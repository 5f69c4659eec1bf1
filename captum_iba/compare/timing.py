"""How long a comparison will still take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from captum_iba.compare.runner import Step


class TimeLeft:
    """An estimate from the steps so far: each run goes on at its own pace, in seconds per token.

    Args:
        runs (iterable of str): The names of all runs.
        tokens (int): How many tokens each of them has to go through.
    """

    def __init__(self, runs: Iterable[str], tokens: int) -> None:
        self._left = dict.fromkeys(runs, tokens)
        self._tokens: defaultdict[str, int] = defaultdict(int)
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def add(self, step: Step) -> None:
        """Take a step into account."""
        self._left[step.run] -= step.tokens
        if step.seconds is not None:
            self._tokens[step.run] += step.tokens
            self._seconds[step.run] += step.seconds

    def seconds(self) -> float | None:
        """Seconds left; None before anything is known. A run without a step yet counts like the mean of the others."""
        paces = {run: self._seconds[run] / tokens for run, tokens in self._tokens.items() if tokens}
        if not paces:
            return 0.0 if not any(self._left.values()) else None
        usual = sum(paces.values()) / len(paces)
        return sum(left * paces.get(run, usual) for run, left in self._left.items())
