"""Compute rates and shares of the work between two readings of an engine's totals. Pure."""

from __future__ import annotations

from dataclasses import fields
from itertools import zip_longest

from eaglelocal.client.server_reading import ServerTotals
from eaglelocal.core.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRates:
    """The statistics of a stretch of work. None: not reported, or nothing of the kind has happened."""

    acceptance: float | None = None  # accepted / drafted
    acceptance_length: float | None = None  # with the bonus token
    draft_length: float | None = None  # drafted tokens per draft
    per_position: tuple[float, ...] | None = None  # [depth], share of drafts whose token i + 1 was accepted
    gain: float | None = None  # over plain decoding, estimated; None without drafts
    draft_share: float | None = None  # of drafting plus verification time
    verify_share: float | None = None
    host_share: float | None = None  # time outside llama.cpp, relative to the same sum

    @property
    def time_shares(self) -> tuple[float, float, float] | None:
        """Return the shares of drafting, of the model and of overhead, whose sum is 1; None if they are not reported.

        Overhead is the time outside llama.cpp. It lies before and after the model's decode, where drafting is counted.
        """
        if self.draft_share is None or self.verify_share is None or self.host_share is None:
            return None
        drafting = max(self.draft_share - self.host_share, 0.0)
        model = max(1.0 - drafting - self.host_share, 0.0)
        return drafting, model, 1.0 - drafting - model


def subtract_totals(now: ServerTotals, before: ServerTotals) -> ServerTotals:
    """Return the work between two totals of the same process, `before` the older one."""
    counters = (field.name for field in fields(ServerTotals) if field.name not in ("process", "per_position"))
    grown = {name: _subtract(getattr(now, name), getattr(before, name)) for name in counters}
    depths = zip_longest(now.per_position or (), before.per_position or (), fillvalue=0.0)
    per_position = None if now.per_position is None else tuple(max(new - old, 0.0) for new, old in depths)
    return ServerTotals(process=now.process, per_position=per_position, **grown)


def compute_rates(work: ServerTotals) -> SnapshotRates:
    """Return the figures of a stretch of work.

    If emitted tokens are not reported, one bonus token per draft is assumed: true except at the ends of answers.
    """
    drafts, per_position = work.drafts, work.per_position
    step_s = None if work.draft_s is None or work.verify_s is None else work.draft_s + work.verify_s
    emitted, accepted = _divide(work.emitted_tokens, drafts), _divide(work.accepted_tokens, drafts)
    return SnapshotRates(
        acceptance=_divide(work.accepted_tokens, work.draft_tokens),
        acceptance_length=1.0 + accepted if emitted is None and accepted is not None else emitted,
        draft_length=_divide(work.draft_tokens, drafts),
        per_position=tuple(count / drafts for count in per_position) if per_position is not None and drafts else None,
        gain=_divide(work.plain_s, work.answer_s) or None if drafts else None,
        draft_share=_divide(work.draft_s, step_s),
        verify_share=_divide(work.verify_s, step_s),
        host_share=_divide(work.host_s, step_s),
    )


def has_restarted(before: ServerTotals, now: ServerTotals) -> bool:
    """Return True if two totals cannot be compared: another process, or a counter that has fallen."""
    if before.process != now.process:
        return True
    pairs = (
        (before.generated_tokens, now.generated_tokens),
        (before.drafts, now.drafts),
        (before.prompt_tokens, now.prompt_tokens),
    )
    return any(a is not None and b is not None and b < a for a, b in pairs)


def _subtract(now: float | None, before: float | None) -> float | None:
    return None if now is None else max(now - (before or 0.0), 0.0)


def _divide(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
