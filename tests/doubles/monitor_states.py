"""Servers in every state that a monitor must show, as readings; and a watch that a test feeds by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from eaglelocal.client.server_reading import DISCONNECTED, DraftingState, RequestRow, ServerReading, ServerTotals
from eaglelocal.core.request import Spec
from eaglelocal.errors import EagleLocalError
from eaglelocal.probe.load_gauges import GpuGauge, MachineGauge

URL = "http://127.0.0.1:8421"
GIB = 2**30
MACHINE = MachineGauge(
    cpu_load=0.42,
    used_bytes=20 * GIB,
    total_bytes=64 * GIB,
    temperature_c=61.0,
    gpus=(
        GpuGauge(
            index=0, name="RTX 4090", load=0.87, used_bytes=18 * GIB, total_bytes=24 * GIB, power_w=312.0,
            temperature_c=66.0,
        ),
    ),
)  # fmt: skip


def totals(steps: int) -> ServerTotals:
    """Return totals after so many steps of three drafted tokens, of which 1.8 are accepted."""
    return ServerTotals(
        process="77",
        prompt_tokens=40.0 * steps,
        cached_prompt_tokens=24.0 * steps,
        generated_tokens=2.8 * steps,
        drafts=1.0 * steps,
        draft_tokens=3.0 * steps,
        accepted_tokens=1.8 * steps,
        emitted_tokens=2.8 * steps,
        per_position=(0.9 * steps, 0.6 * steps, 0.3 * steps),
        draft_s=0.01 * steps,
        verify_s=0.04 * steps,
        host_s=0.001 * steps,
        plain_s=0.1 * steps,
        answer_s=0.06 * steps,
    )


ROWS = (
    RequestRow(
        id="r1", owner="anna", model="qwen3-8b", state="running", drafting="on", prompt_tokens=1200, cached_tokens=1100,
        generated_tokens=312, tok_s=41.25, share=0.64, ttft_s=0.21, age_s=8.0,
    ),
    RequestRow(
        id="r2", owner="ben", model="qwen3-8b", state="reading", drafting="on", prompt_tokens=52_000, cached_tokens=0,
        read_tokens=13_000, generated_tokens=0, age_s=3.0,
    ),
    RequestRow(id="r3", owner="anna", model="qwen3-8b", state="waiting", age_s=12.4),
)  # fmt: skip
RECENT = (
    RequestRow(
        id="r0", owner="this machine", model="qwen3-8b", state="stop", drafting="on", prompt_tokens=18,
        cached_tokens=16, generated_tokens=80, tok_s=45.0, acceptance=0.61, share=0.58, ttft_s=0.1, age_s=2.0,
    ),
    RequestRow(id="f0", owner="ben", model="qwen3-8b", state="failed", age_s=1.0),
)  # fmt: skip
EMPTY = ServerReading(
    kind="eaglelocal",
    state="ready",
    model="qwen3-8b (Q4_K_M)",
    draft="EAGLE-3.1 head",
    n_ctx=4096,
    num_slots=4,
    running=0,
    waiting=0,
    answered=0,
    restarts=0,
    uptime_s=75.0,
    cached_tokens=0.0,
    cache_cells=16_384.0,
    memory_bytes=6 * GIB,
    totals=ServerTotals(
        process="77", generated_tokens=0.0, drafts=0.0, draft_tokens=0.0, accepted_tokens=0.0, prompt_tokens=0.0
    ),
    drafting=DraftingState(state="on", setting="auto"),
    requests=(),
    can_control=True,
)


def busy(steps: int = 200) -> ServerReading:
    return replace(
        EMPTY,
        running=2,
        waiting=1,
        answered=37,
        cached_tokens=5200.0,
        totals=totals(steps),
        requests=ROWS,
        recent=RECENT,
    )


def off(steps: int = 200) -> ServerReading:
    drafting = DraftingState(state="asleep", reason="it would be slower (0.94x)", setting="auto")
    return replace(busy(steps), drafting=drafting)


RESTARTING = replace(EMPTY, state="restarting", restarts=1, running=0, waiting=2, requests=ROWS[2:])
GONE = ServerReading(kind="eaglelocal", state=DISCONNECTED, detail="cannot reach http://127.0.0.1:8421: refused")


@dataclass(slots=True)
class ManualWatch:
    """The part of a ServerWatch that a Monitor uses: a test feeds it with readings; it records what is asked of it."""

    on_reading: Callable[[ServerReading], None]
    url: str = URL
    cancelled: list[str] = field(default_factory=list)
    specs: list[Spec] = field(default_factory=list)
    error: EagleLocalError | None = None
    is_open: bool = False

    def start(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        if self.error is not None:
            raise self.error

    def switch(self, spec: Spec) -> None:
        self.specs.append(spec)
