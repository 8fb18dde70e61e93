"""Convert seconds to tokens for one step: a second costs the tokens that the machine makes in it anyway."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from eaglelocal.speculation.costs.step_costs import StepCosts


class TokenCosts:
    """The costs of one step, in tokens; computed when they are asked for, which most plain steps never do.

    rate              returns the tokens that a second is worth
    num_base_rows     rows of the step without drafts
    num_prefill_rows  of these, prompt rows, which take no host time
    """

    def __init__(
        self,
        costs: StepCosts,
        rate: Callable[[], float],
        *,
        num_base_rows: int,
        num_cells: int,
        num_prefill_rows: int = 0,
    ) -> None:
        self._costs, self._estimate_rate, self._num_prefill_rows = costs, rate, num_prefill_rows
        self.num_base_rows, self._num_cells = num_base_rows, num_cells
        self._draft_steps: dict[tuple[str, int], float] = {}

    @cached_property
    def _rate(self) -> float:
        return self._estimate_rate()

    def rows(self, num_rows: int, num_ruled: int = 0) -> list[float]:
        """Return the cost of the decode with 0 .. num_rows drafted rows, and of the host time that they take.

        num_ruled  rows that are sent anyway, besides the base rows
        """
        rate, least, row_s = self._rate, self.num_base_rows + num_ruled, self._costs.drafted_row_s
        seconds = self._costs.optimistic_seconds(least, least + num_rows, self._num_cells)
        return [rate * (each + n * row_s) for n, each in enumerate(seconds)]

    def tokens(self, seconds: float) -> float:
        """Return what these seconds are worth."""
        return self._rate * seconds

    @property
    def drafted(self) -> float:
        """Cost of keeping drafters awake for a step, besides draft steps and rows."""
        rows = self.num_base_rows - self._num_prefill_rows
        return self._rate * max(self._costs.overhead(True, rows) - self._costs.overhead(False, rows), 0.0)

    def draft_step(self, drafter: str, num_rows: int) -> float:
        if not num_rows:
            return 0.0
        cost = self._draft_steps.get((drafter, num_rows))
        if cost is None:
            cost = self._rate * self._costs.draft_seconds(drafter, num_rows)
            self._draft_steps[drafter, num_rows] = cost
        return cost

    def wide_draft_step(self, drafter: str, num_rows: int) -> float:
        """Return the cost of a draft step after so many nodes of trees; optimistic if that number never ran."""
        return self._rate * self._costs.untried_draft_seconds(drafter, num_rows)
