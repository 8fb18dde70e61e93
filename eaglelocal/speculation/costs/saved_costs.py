"""Read and check what StepCosts keeps on disk. Pure."""

from __future__ import annotations

import math
from typing import Any

from eaglelocal.core.plan import MAX_SLOTS
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import MAX_DRAFT_TOKENS
from eaglelocal.core.stats import MeasuredCosts, SizeCost
from eaglelocal.speculation.stored_numbers import check_count, check_number

FORMAT = 1
MAX_ROWS = MAX_SLOTS * (1 + MAX_DRAFT_TOKENS)  # larger decodes are prompts
FEW_ROWS = 4  # of a step with drafts for one slot, whose time outside them is shown
UNREADABLE = (TypeError, ValueError, KeyError, AttributeError)  # raised by malformed data
RATIO_RANGE = (1e-3, 1e6)  # wide: the machine may have been suspended during a decode


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCosts:
    """The state of StepCosts: level is the logarithm of the seconds of one row, all else is relative to it."""

    level: float
    slopes: tuple[float, float, float]  # per cell, per row and cell, deviation
    sizes: list[tuple[int, float, float, int]]  # rows, ratio, deviation, samples
    drafters: dict[str, list[tuple[int, float]]]  # name -> rows, median
    overheads: list[float | None]  # plain, drafted: of a step, outside decode and draft steps
    row_overheads: list[float]  # plain, drafted: of each of its rows in addition
    reading: dict[str, float]  # name -> median of a token; empty: not known, as in earlier versions
    noise: float = 0.0  # of single decodes; 0.0: not known, as earlier versions did not keep it

    @classmethod
    def read(cls, state: Any) -> SavedCosts:
        """Parse the result of `StepCosts.state`. Raises one of UNREADABLE if it is malformed."""
        if state["format"] != FORMAT:
            raise ValueError(f"format {state['format']!r}")
        plain, drafted = (None if cost is None else check_number(cost, 0.0, 1e9) for cost in state["overheads"])
        plain_row, drafted_row = (check_number(cost, 0.0, 1e9) for cost in state["row_overheads"])
        per_cell, per_row_cell, deviation = (check_number(slope, 0.0, 1e6) for slope in state["slopes"])
        return cls(
            level=check_number(state["level"], -30.0, 10.0),
            slopes=(per_cell, per_row_cell, deviation),
            sizes=[
                (
                    check_count(n, 1, MAX_ROWS),
                    check_number(ratio, *RATIO_RANGE),
                    check_number(deviation, 0.0, 10.0),
                    check_count(samples, 0),
                )
                for n, ratio, deviation, samples in state["sizes"][:MAX_ROWS]
            ],
            drafters={str(name): _read_steps(steps) for name, steps in state["drafters"].items()},
            overheads=[plain, drafted],
            row_overheads=[plain_row, drafted_row],
            reading={str(name): check_number(cost, 0.0, 1e9) for name, cost in state.get("reading", {}).items()},
            noise=check_number(state.get("noise", 0.0), 0.0, 10.0),
        )

    def measured(self) -> MeasuredCosts:
        """Return the costs over a short context as a restored StepCosts would predict them, without importing numpy."""
        unit_s = math.exp(self.level)
        plain, drafted = (
            None if cost is None else cost + rows * row
            for cost, row, rows in zip(self.overheads, self.row_overheads, (1, FEW_ROWS), strict=True)
        )
        return MeasuredCosts(
            decodes=tuple(
                SizeCost(rows, unit_s * (ratio if rows > 1 else 1.0), samples)
                for rows, ratio, _, samples in sorted(self.sizes)
                if samples
            ),
            draft_steps=tuple(
                (name, SizeCost(rows, unit_s * median, 1))
                for name, steps in sorted(self.drafters.items())
                for rows, median in sorted(steps)
            ),
            noise=self.noise,
            plain_overhead_s=unit_s * ((drafted if plain is None else plain) or 0.0),
            drafted_overhead_s=unit_s * ((plain if drafted is None else drafted) or 0.0),
        )


def _read_steps(steps: Any) -> list[tuple[int, float]]:
    return [(check_count(rows, 1, MAX_ROWS), check_number(cost, 0.0, 1e9)) for rows, cost in steps[:MAX_ROWS]]
