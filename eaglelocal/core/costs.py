"""What steps cost on this machine, as figures to hand on and to show. Plain data; `speculation` measures it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SizeCost:
    """A target decode of some rows, or a draft step of some nodes, over a short context."""

    num_rows: int
    seconds: float
    num_samples: int  # decodes it was learnt from


@dataclass(frozen=True, slots=True)
class ContextCost:
    """What each cached position adds to a decode: once, and for each row."""

    per_cell_s: float
    per_row_cell_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCosts:
    """Everything that was measured so far; only sizes that really ran, ascending."""

    decodes: tuple[SizeCost, ...] = ()
    draft_steps: tuple[tuple[str, SizeCost], ...] = ()  # (drafter, cost)
    at_once: int = 1  # tokens that a draft step gives
    noise: float = 0.0  # by which single decodes differ: 0.05 is about 5 %
    context: ContextCost | None = None  # None: too little context was seen to tell
    plain_overhead_s: float = 0.0  # of a step that drafts nothing, beside its decode
    drafted_overhead_s: float = 0.0  # of a step that drafts, beside its decode and its draft steps
