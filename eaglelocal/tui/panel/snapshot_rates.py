"""Compute rates and shares of the work between two readings of an engine's totals. Pure."""

from __future__ import annotations

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


def compute_rates(before: ServerTotals, now: ServerTotals) -> SnapshotRates:
    """Return the figures of the work between two totals of the same process, `before` the older one."""
    drafts = _growth(before.drafts, now.drafts)
    drafted = _growth(before.draft_tokens, now.draft_tokens)
    draft_s, verify_s = _growth(before.draft_s, now.draft_s), _growth(before.verify_s, now.verify_s)
    step_s = None if draft_s is None or verify_s is None else draft_s + verify_s
    return SnapshotRates(
        acceptance=_ratio(_growth(before.accepted_tokens, now.accepted_tokens), drafted),
        acceptance_length=_acceptance_length(before, now, drafts),
        draft_length=_ratio(drafted, drafts),
        per_position=_acceptance_per_position(before, now, drafts),
        gain=_gain(before, now) if drafts else None,
        draft_share=_ratio(draft_s, step_s),
        verify_share=_ratio(verify_s, step_s),
        host_share=_ratio(_growth(before.host_s, now.host_s), step_s),
    )


def count_tokens(before: ServerTotals, now: ServerTotals) -> float | None:
    """Return the tokens that were generated between two totals of the same process; None if they are not counted."""
    return _growth(before.generated_tokens, now.generated_tokens)


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


def _acceptance_length(before: ServerTotals, now: ServerTotals, drafts: float | None) -> float | None:
    """Return the acceptance length. If emitted tokens are not reported, assume one bonus token per draft.

    That holds except at the ends of answers.
    """
    emitted = _ratio(_growth(before.emitted_tokens, now.emitted_tokens), drafts)
    if emitted is not None:
        return emitted
    accepted = _ratio(_growth(before.accepted_tokens, now.accepted_tokens), drafts)
    return None if accepted is None else 1.0 + accepted


def _acceptance_per_position(before: ServerTotals, now: ServerTotals, drafts: float | None) -> tuple[float, ...] | None:
    if now.per_position is None or not drafts:
        return None
    old = before.per_position or ()
    counts = [count - (old[i] if i < len(old) else 0.0) for i, count in enumerate(now.per_position)]
    return tuple(max(count, 0.0) / drafts for count in counts)


def _gain(before: ServerTotals, now: ServerTotals) -> float | None:
    return _ratio(_growth(before.plain_s, now.plain_s), _growth(before.answer_s, now.answer_s)) or None


def _growth(before: float | None, now: float | None) -> float | None:
    return None if now is None else max(now - (before or 0.0), 0.0)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
