"""Counters of one request or of the whole engine; the words are those of ARCHITECTURE.md.

drafted            nodes sent to the target, siblings included
accepted           drafted tokens that the target kept
acceptance length  tokens emitted by verifications that had a draft / number of those; the bonus token counts, unless
                   the answer ended on an accepted token before it
tok/s              from the first to the last token, prefill excluded
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import zip_longest

from eaglelocal.core.amounts import count_noun, format_disk
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import MAX_DRAFT_TOKENS

FIGURES = (
    *("state", "reason", "drafts", "draft_tokens", "accepted_tokens", "acceptance_rate", "acceptance_length"),
    *("accepted_per_position", "speedup_estimate"),
)


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """The speculation statistics of one answer or of the engine. `reason` explains `state` to people."""

    state: str = "off"  # on, off, asleep
    reason: str = ""
    drafts: int = 0  # verifications that had a draft
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()  # [depth], how often depth i + 1 was accepted
    speedup_estimate: float | None = None  # token rate / estimated rate without drafts; None: no draft, or unknown
    emitted_tokens: int = 0  # by verifications that had a draft, bonus tokens included

    @property
    def acceptance_rate(self) -> float:
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def acceptance_length(self) -> float:
        return self.emitted_tokens / self.drafts if self.drafts else 1.0


def sum_stats(every: Sequence[SpeculationStats]) -> SpeculationStats:
    """Return the sums of the counts; state, reason and speedup are unset."""
    columns = zip_longest(*(stats.accepted_per_position for stats in every), fillvalue=0)
    return SpeculationStats(
        drafts=sum(stats.drafts for stats in every),
        draft_tokens=sum(stats.draft_tokens for stats in every),
        accepted_tokens=sum(stats.accepted_tokens for stats in every),
        emitted_tokens=sum(stats.emitted_tokens for stats in every),
        accepted_per_position=tuple(map(sum, columns)),
    )


def encode_stats(stats: SpeculationStats) -> dict[str, object]:
    """Return the statistics as the JSON object `speculation` of `chat --json` and of the server's replies."""
    figures = {name: getattr(stats, name) for name in FIGURES}
    return {**figures, "accepted_per_position": list(stats.accepted_per_position)}


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations of one answer, in seconds. Steps shared with other slots are counted in full for each."""

    ttft_s: float = 0.0  # from submission to the first token
    prefill_s: float = 0.0
    decode_s: float = 0.0  # from the first to the last token
    draft_s: float = 0.0
    verify_s: float = 0.0
    host_s: float = 0.0  # of decode_s: outside llama.cpp
    decode_tok_s: float = 0.0  # (tokens - 1) / decode_s; 0: unknown


@dataclass(slots=True)
class SpeculationCounter:
    """The mutable counter that SpeculationStats are made from."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    emitted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)

    def add(self, num_drafted: int, num_accepted: int, num_emitted: int) -> None:
        if num_drafted == 0:
            return
        self.drafts += 1
        self.draft_tokens += num_drafted
        self.accepted_tokens += num_accepted
        self.emitted_tokens += num_emitted
        per_position = self.accepted_per_position
        per_position.extend([0] * (num_accepted - len(per_position)))
        for depth in range(num_accepted):
            per_position[depth] += 1

    def stats(self, *, state: str, reason: str, speedup_estimate: float | None) -> SpeculationStats:
        """Return the statistics. Where nothing was drafted there is no gain, whatever the times suggest."""
        return SpeculationStats(
            state=state,
            reason=reason,
            drafts=self.drafts,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
            emitted_tokens=self.emitted_tokens,
            accepted_per_position=tuple(self.accepted_per_position),
            speedup_estimate=speedup_estimate if self.drafts else None,
        )


# ---- learning from answers, as screens, snapshots and metrics show it
ACTIVE_STATES = ("learning", "judging")
STATES = ("idle", *ACTIVE_STATES, "paused")


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningStatus:
    """The state of learning; `on` False: nothing is kept.

    state    one of STATES; if it is paused, `note` gives the reason
    version  the learned version that drafts; 0: the base head
    """

    on: bool = True
    kept_answers: int = 0
    kept_bytes: int = 0
    state: str = "idle"
    version: int = 0
    note: str = ""


LEARNING_OFF = LearningStatus(on=False)


def describe_learning(status: LearningStatus) -> str:
    """Return a few words; "" if learning is off.

    >>> describe_learning(LearningStatus(kept_answers=12, kept_bytes=40_000, state="learning", version=3))
    'learning, 12 answers kept (40 kB), version 3'
    """
    if not status.on:
        return ""
    state = {"idle": "learns when idle", "paused": f"learning paused: {status.note}"}.get(status.state, status.state)
    version = f", version {status.version}" if status.version else ""
    answers = count_noun(status.kept_answers, "answer")
    return f"{state}, {answers} kept ({format_disk(status.kept_bytes)}){version}"


# ---- costs of steps on this machine; `speculation` measures them
NOISY = 0.2  # above this the measured costs say little about single decodes


@dataclass(frozen=True, slots=True)
class SizeCost:
    """The cost of a target decode by its rows, or of a draft step by its nodes, over a short context."""

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
    plain_overhead_s: float = 0.0  # of a step of one row without drafts, besides its decode
    drafted_overhead_s: float = 0.0  # of a step of four rows with drafts, besides its decode and its draft steps

    @property
    def is_noisy(self) -> bool:
        """Return whether equal decodes took such different times that another program must have been running."""
        return self.noise >= NOISY
