"""Read llama-server for a monitor: /metrics (with --metrics), /slots, /props, /health, /lora-adapters.

Its counters rise when an answer ends; running requests are in /slots. Prompts, which old versions include, are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from eaglelocal.client.http_connection import HttpReply, KeepAliveConnection
from eaglelocal.client.http_stream import mapping, number, objects, text, whole
from eaglelocal.client.server_reading import RequestRow, ServerReading, add_known
from eaglelocal.client.servers.eaglelocal_server import ServerReader
from eaglelocal.client.servers.vllm_server import Samples
from eaglelocal.core.adapters import AdapterFile, describe_adapters

N = TypeVar("N", int, float)

KIND = "llama-server"
PREFIX = "llamacpp:"
STARTED = "process-start-time-unix"


class LlamaServer(ServerReader):
    kind = KIND

    def __init__(self, connection: KeepAliveConnection) -> None:
        super().__init__(connection)
        self._count = TokenCount()
        self._props: Mapping[str, object] = {}
        self._has_adapters = False

    def read(self) -> ServerReading:
        health = self._connection.get("/health")
        if not health.is_good:
            return ServerReading(kind=KIND, state=read_state(health))
        if not self._props:
            self._props = self._connection.get("/props").mapping()
            self._has_adapters = bool(self._read_adapters())
        slots, metrics = self._connection.get("/slots"), self._connection.get("/metrics")
        samples = Samples(metrics.text) if metrics.is_good else None
        rows = objects(slots.json()) if slots.is_good else None
        reading = parse_llama_server(samples, rows, self._props, self._count, process=metrics.headers.get(STARTED, ""))
        return replace(reading, adapters=self._read_adapters() if self._has_adapters else "")

    def _read_adapters(self) -> str:
        """Return the LoRA adapters with the scales of requests that choose none, in words."""
        reply = self._connection.get("/lora-adapters")
        rows = objects(reply.json()) if reply.is_good else []
        return describe_adapters([AdapterFile(Path(text(row, "path")), number(row, "scale") or 0.0) for row in rows])


def read_state(health: HttpReply) -> str:
    """Return the state from /health: 503 means that the model is loading."""
    return "loading" if health.status == 503 else f"answers {health.status}"


def parse_llama_server(
    samples: Samples | None,
    slots: Sequence[Mapping[str, object]] | None,
    props: Mapping[str, object],
    count: TokenCount,
    *,
    process: str = "",
) -> ServerReading:
    """Return the reading. `samples`: None without --metrics; `slots`: None with --no-slots."""
    found, model = samples or Samples(""), _name(text(props, "model_alias") or text(props, "model_path"))
    missing = [flag for flag, there in (("--metrics", samples), ("--slots", slots)) if there is None]
    busy = None if slots is None else [slot for slot in slots if slot.get("is_processing") is True]
    return ServerReading(
        kind=KIND,
        state="idle" if props.get("is_sleeping") is True else "ready",
        model=model,
        n_ctx=whole(mapping(props.get("default_generation_settings")), "n_ctx"),
        num_slots=len(slots) if slots is not None else whole(props, "total_slots"),
        running=_first(found.whole(PREFIX + "requests_processing"), None if busy is None else len(busy)),
        waiting=found.whole(PREFIX + "requests_deferred"),
        cached_tokens=_first(
            found.total(PREFIX + "kv_cache_tokens"), add_known(number(slot, "n_prompt_tokens") for slot in slots or ())
        ),
        cache_cells=add_known(number(slot, "n_ctx") for slot in slots or ()),
        cache_share=found.total(PREFIX + "kv_cache_usage_ratio"),
        totals=found.read_totals(
            PREFIX,
            process=process,
            cached=found.total(PREFIX + "prompt_tokens_cached_total"),
            generated=count.take(found.total(PREFIX + "tokens_predicted_total"), busy),
        ),
        requests=None if busy is None else tuple(_row(slot, model) for slot in busy),
        missing=tuple(missing),
    )


class TokenCount:
    """The number of generated tokens: of ended answers, which the server counts, plus of running answers.

    Without /metrics: the tokens seen in /slots. Never falls unless the server's own counter does.
    """

    def __init__(self) -> None:
        self._counted: float | None = None
        self._shown = 0.0
        self._seen: dict[tuple[str, str], float] = {}  # tokens by (slot id, task id)

    def take(self, counted: float | None, busy: Sequence[Mapping[str, object]] | None) -> float | None:
        if counted is None and busy is None:
            return None
        now = {(str(slot.get("id")), str(slot.get("id_task"))): _generated(slot) or 0.0 for slot in busy or ()}
        if counted is None:
            self._shown += sum(max(count - self._seen.get(key, count), 0.0) for key, count in now.items())
        else:
            has_restarted = self._counted is not None and counted < self._counted
            self._shown = max(counted + sum(now.values()), 0.0 if has_restarted else self._shown)
        self._counted, self._seen = counted, now
        return self._shown


def _name(model: str) -> str:
    """Return an alias, or the file's name: without an alias, newer versions report the whole path."""
    return model.rpartition("/")[2] if model.endswith(".gguf") else model


def _row(slot: Mapping[str, object], model: str) -> RequestRow:
    generated, cached = _generated(slot), whole(slot, "n_prompt_tokens_cache")
    processed = whole(slot, "n_prompt_tokens_processed")
    return RequestRow(
        id=f"{slot.get('id_task', '')}",
        owner=f"slot {slot.get('id', '')}",
        model=model,
        state="running" if generated else "reading",
        drafting="on" if slot.get("speculative") is True else "",
        prompt_tokens=None if processed is None else processed + (cached or 0),
        cached_tokens=cached,
        generated_tokens=generated,
    )


def _generated(slot: Mapping[str, object]) -> int | None:
    """Return the generated tokens of a slot; `next_token` is an object in old versions, a list of one in new ones."""
    value = slot.get("next_token")
    first = value[0] if isinstance(value, list) and value else value
    return whole(mapping(first), "n_decoded")


def _first(a: N | None, b: N | None) -> N | None:
    return b if a is None else a
