"""Measured costs of steps on this machine, as plain data; `speculation` measures them."""

from __future__ import annotations

from eaglelocal.core.records import dataclass
from eaglelocal.core.request import MAX_DRAFT_TOKENS

NOISY = 0.2  # above this the measured costs say little about single decodes


@dataclass(frozen=True, slots=True)
class SizeCost:
    """The cost of a target decode of so many rows, or of a draft step of so many nodes, over a short context."""

    num_rows: int
    seconds: float
    num_samples: int  # decodes that were measured


@dataclass(frozen=True, slots=True)
class ContextCost:
    """The cost that each cached position adds to a decode: once, and per row."""

    per_cell_s: float
    per_row_cell_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCosts:
    """The costs measured so far; only of sizes that ran, ascending."""

    decodes: tuple[SizeCost, ...] = ()
    draft_steps: tuple[tuple[str, SizeCost], ...] = ()  # (drafter, cost)
    block_size: int = 1  # tokens per draft step
    max_depth: int = MAX_DRAFT_TOKENS  # tokens that the draft model can draft after a root
    noise: float = 0.0  # relative spread of single decodes: 0.05 is about 5 %; 0.0: not known
    context: ContextCost | None = None  # None: only short contexts have been measured
    plain_overhead_s: float = 0.0  # of a step without drafts, besides its decode
    drafted_overhead_s: float = 0.0  # of a step with drafts, besides its decode and its draft steps

    @property
    def is_noisy(self) -> bool:
        """Return whether equal decodes took so different times that something else must have been running."""
        return self.noise >= NOISY
