"""The state of a server at one moment, in fields that fit every kind of server.

Plain data. Whatever a server does not report is None, never zero, so that a screen can show the difference.
Totals are counters since the process started; a rate is the difference of two readings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from itertools import zip_longest

from eaglelocal.core.events import EngineSnapshot, Finished
from eaglelocal.core.records import dataclass
from eaglelocal.core.stats import SpeculationStats

DISCONNECTED, DRAINING = "disconnected", "draining"
AWAY_TEXTS = {DRAINING: "the server takes no new questions", DISCONNECTED: "the server no longer answers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTotals:
    """Counters of one engine process. A different `process` means that they restarted at zero."""

    process: str = ""
    prompt_tokens: float | None = None
    cached_prompt_tokens: float | None = None  # those served from the prompt cache
    generated_tokens: float | None = None
    drafts: float | None = None  # verifications that had a draft
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    emitted_tokens: float | None = None  # by verifications that had a draft, bonus tokens included
    per_position: tuple[float, ...] | None = None  # [depth]: how often the draft token at depth i + 1 was accepted
    draft_s: float | None = None
    verify_s: float | None = None
    host_s: float | None = None  # outside llama.cpp
    plain_s: float | None = None  # estimated time of the answers' tokens without drafts
    answer_s: float | None = None  # their actual time
    tok_s: float | None = None  # the server's own average, if it does not count tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingState:
    """The server's drafting. state: on, asleep or off; "" if unknown."""

    state: str = ""
    reason: str = ""
    setting: str = ""  # auto, off, pid or a number of draft tokens; "" if it cannot be changed


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """A request: its figures and its owner, never its content."""

    id: str
    owner: str = ""
    model: str = ""
    state: str = ""  # waiting, reading, running, or how it ended
    drafting: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    read_tokens: int | None = None  # of the prompt so far, with the cached ones
    generated_tokens: int | None = None
    tok_s: float | None = None
    acceptance: float | None = None  # accepted / drafted, when known; accepted / generated is in `share`
    share: float | None = None  # of the answer's tokens that came from drafts
    ttft_s: float | None = None  # from the request to its first token
    age_s: float | None = None

    @property
    def is_active(self) -> bool:
        return self.state in ("waiting", "reading", "running")

    @property
    def read_share(self) -> float | None:
        """Return the share of the prompt that has been read; None unless it is being read, and that is reported."""
        if self.state != "reading" or self.read_tokens is None or not self.prompt_tokens:
            return None
        return min(self.read_tokens / self.prompt_tokens, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReading:
    """A server at one moment."""

    kind: str  # eaglelocal, llama-server, vLLM
    state: str  # ready, loading, restarting, failed, idle, draining, or DISCONNECTED
    detail: str = ""
    model: str = ""
    other_models: tuple[str, ...] = ()  # other loaded models
    draft: str = ""
    adapters: str = ""  # LoRA adapters with their scales, in words
    n_ctx: int | None = None  # tokens of a request
    num_slots: int | None = None
    running: int | None = None
    waiting: int | None = None
    answered: int | None = None
    refused: int | None = None  # requests that were wrong, had no valid key, or came while the queue was full
    failed: int | None = None  # requests that the server failed to answer
    restarts: int | None = None
    uptime_s: float | None = None
    cached_tokens: float | None = None  # in the KV cache
    cache_cells: float | None = None  # size of the KV cache in tokens
    cache_share: float | None = None  # share of the KV cache in use, 0 to 1
    memory_bytes: int | None = None
    swapped_bytes: float | None = None  # of conversations swapped out to RAM
    stored_bytes: float | None = None  # of conversations kept on disk
    store_problem: str = ""  # why none are written anymore
    totals: ServerTotals = ServerTotals()
    drafting: DraftingState = DraftingState()
    requests: tuple[RequestRow, ...] | None = None
    recent: tuple[RequestRow, ...] = ()
    missing: tuple[str, ...] = ()  # flags that would make the server report more
    can_control: bool = False  # the caller may cancel requests and switch drafting
    learning: str = ""  # what learning from answers does; "" if it is off
    drift: tuple[str, ...] = ()  # kinds of text whose drafts are accepted less than they were, in words

    @property
    def models(self) -> tuple[str, ...]:
        """Return all loaded models."""
        return (self.model, *self.other_models) if self.model else self.other_models


def add_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values, None if all are unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def add_totals(each: Sequence[ServerTotals]) -> ServerTotals:
    """Return the sum over several engines; it starts anew when one comes or goes."""
    counters = {
        field.name: add_known(getattr(one, field.name) for one in each)
        for field in fields(ServerTotals)
        if field.name not in ("process", "per_position")
    }
    depths = zip_longest(*(one.per_position for one in each if one.per_position is not None), fillvalue=0.0)
    return ServerTotals(
        process="+".join(one.process for one in each if one.process),
        per_position=tuple(map(sum, depths)) if any(one.per_position is not None for one in each) else None,
        **counters,
    )


def count_drafts(stats: SpeculationStats) -> ServerTotals:
    """Return statistics of drafting as totals, without totals of the engine."""
    return ServerTotals(
        drafts=stats.drafts,
        draft_tokens=stats.draft_tokens,
        accepted_tokens=stats.accepted_tokens,
        emitted_tokens=stats.emitted_tokens,
        per_position=tuple(map(float, stats.accepted_per_position)) or None,
    )


def count_answer(finished: Finished) -> ServerTotals:
    """Return the figures of one answer as totals; what its server does not report is unknown."""
    timings, gain = finished.timings, finished.speculation.speedup_estimate
    return replace(
        count_drafts(finished.speculation),
        generated_tokens=finished.completion_tokens,
        draft_s=timings.draft_s or None,
        verify_s=timings.verify_s or None,
        host_s=timings.host_s or None,
        plain_s=None if gain is None else gain * timings.decode_s,
        answer_s=None if gain is None else timings.decode_s,
    )


def read_totals(snapshot: EngineSnapshot) -> ServerTotals:
    """Return the totals of an engine's own snapshot."""
    return replace(
        count_drafts(snapshot.speculation),
        process=str(snapshot.engine_pid),
        prompt_tokens=snapshot.prompt_tokens,
        generated_tokens=snapshot.generated_tokens,
        draft_s=snapshot.draft_s,
        verify_s=snapshot.verify_s,
        host_s=snapshot.host_s,
        plain_s=snapshot.plain_s,
        answer_s=snapshot.answer_s,
    )


def make_reading(snapshot: EngineSnapshot, *, state: str = "ready", n_ctx: int | None = None) -> ServerReading:
    """Return the reading of an engine's own snapshot. Without a process id its values are unknown."""
    known = ServerReading(
        kind="eaglelocal", state=state, n_ctx=n_ctx, running=snapshot.running, waiting=snapshot.waiting
    )
    stats = snapshot.speculation
    if snapshot.engine_pid <= 0:
        return known
    return replace(
        known,
        cached_tokens=snapshot.cached_tokens,
        cache_cells=snapshot.cache_cells or None,
        totals=read_totals(snapshot),
        drafting=DraftingState(state=stats.state, reason=stats.reason, setting=snapshot.spec),
    )
