"""Read an eaglelocal server for a monitor: /v1/snapshot. Missing values are allowed: versions differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping

from eaglelocal.client.http_connection import KeepAliveConnection
from eaglelocal.client.http_server import read_adapters
from eaglelocal.client.http_stream import mapping, number, numbers, objects, refusal, text, to_int, whole
from eaglelocal.client.server_reading import (
    DraftingState,
    RequestRow,
    ServerReading,
    ServerTotals,
    add_known,
    add_totals,
)
from eaglelocal.core.adapters import describe_adapters
from eaglelocal.core.stats import LearningStatus, describe_learning

KIND = "eaglelocal"
ENGINE_TOTALS = (
    *("prompt_tokens", "generated_tokens", "emitted_tokens"),
    *("draft_s", "verify_s", "host_s", "plain_s", "answer_s"),
)
DRAFT_TOTALS = ("drafts", "draft_tokens", "accepted_tokens")


class ServerReader(ABC):
    """A reader for one kind of server."""

    kind = ""

    def __init__(self, connection: KeepAliveConnection) -> None:
        self._connection = connection

    @abstractmethod
    def read(self) -> ServerReading:
        """Return the server's state. Raises EagleLocalError when it does not answer."""


class EaglelocalServer(ServerReader):
    kind = KIND

    def read(self) -> ServerReading:
        reply = self._connection.get("/v1/snapshot")
        if not reply.is_good:
            raise refusal(self._connection.url, reply.status, reply.body)
        return parse_snapshot(reply.mapping())


def parse_snapshot(snapshot: Mapping[str, object]) -> ServerReading:
    model, engine = mapping(snapshot.get("model")), mapping(snapshot.get("engine"))
    others = [row for row in objects(snapshot.get("loaded")) if row.get("name") != model.get("name")]
    engines = [engine, *(mapping(other.get("engine")) for other in others)]
    requests, recent = objects(snapshot.get("requests")), objects(snapshot.get("recent"))
    numbered = {_client(row) for row in (*requests, *recent) if (whole(row, "client_number") or 1) > 1}
    return ServerReading(
        kind=KIND,
        state=text(snapshot, "state") or "ready",
        detail=text(snapshot, "detail"),
        model=text(model, "target") or text(model, "name"),
        other_models=tuple(text(other, "target") or text(other, "name") for other in others),
        draft=text(model, "draft"),
        adapters=describe_adapters(read_adapters(model)),
        n_ctx=whole(model, "n_ctx"),
        num_slots=whole(model, "num_slots"),
        running=whole(snapshot, "running"),
        waiting=whole(snapshot, "waiting"),
        answered=whole(snapshot, "answered"),
        refused=whole(snapshot, "refused"),
        failed=whole(snapshot, "failed"),
        restarts=whole(snapshot, "restarts"),
        uptime_s=number(snapshot, "uptime_s"),
        cached_tokens=add_known(number(one, "cached_tokens") for one in engines),
        cache_cells=add_known(number(one, "cache_cells") for one in engines) or None,
        memory_bytes=to_int(add_known(number(one, "peak_rss_bytes") for one in engines)),
        swapped_bytes=add_known(number(one, "swapped_bytes") for one in engines),
        stored_bytes=add_known(number(one, "stored_bytes") for one in engines),
        store_problem=next((problem for one in engines if (problem := text(one, "store_problem"))), ""),
        totals=add_totals([_totals(one) for one in engines]),
        drafting=_drafting(engine),
        requests=tuple(_row(row, numbered) for row in requests) if "requests" in snapshot else None,
        recent=tuple(_row(row, numbered) for row in recent),
        can_control=snapshot.get("is_operator") is True,
        learning=_learning(mapping(snapshot.get("learning"))),
        drift=tuple(line for one in objects(snapshot.get("drift")) if (line := text(one, "text"))),
    )


def _learning(status: Mapping[str, object]) -> str:
    return describe_learning(
        LearningStatus(
            on=status.get("on") is True,
            kept_answers=whole(status, "kept_answers") or 0,
            kept_bytes=whole(status, "kept_bytes") or 0,
            state=text(status, "state"),
            version=whole(status, "version") or 0,
            note=text(status, "note"),
        )
    )


def _totals(engine: Mapping[str, object]) -> ServerTotals:
    stats = mapping(engine.get("speculation"))
    return ServerTotals(
        process=str(engine.get("pid", "")),
        cached_prompt_tokens=number(engine, "reused_tokens"),
        per_position=numbers(stats, "accepted_per_position"),
        **{name: number(engine, name) for name in ENGINE_TOTALS},
        **{name: number(stats, name) for name in DRAFT_TOTALS},
    )


def _drafting(engine: Mapping[str, object]) -> DraftingState:
    stats = mapping(engine.get("speculation"))
    return DraftingState(state=text(stats, "state"), reason=text(stats, "reason"), setting=text(engine, "spec"))


def _client(row: Mapping[str, object]) -> str:
    """Return the sender of a request: the program, where one is known and there are no keys, else the key's name."""
    return text(row, "client") or text(row, "owner")


def _row(row: Mapping[str, object], numbered: Container[str]) -> RequestRow:
    """numbered: names that several clients have"""
    client = _client(row)
    generated, accepted = number(row, "completion_tokens"), number(row, "accepted_tokens")
    stats = mapping(row.get("speculation"))
    is_counted = bool(number(row, "prompt_tokens"))  # not yet while it is read, and never if it was refused
    was_drafted = bool(accepted or number(stats, "drafts"))
    return RequestRow(
        id=text(row, "id"),
        owner=f"{client} {whole(row, 'client_number') or 1}" if client in numbered else client,
        model=text(row, "model"),
        state=text(row, "state"),
        drafting=text(row, "drafting"),
        prompt_tokens=whole(row, "prompt_tokens") if is_counted else None,
        cached_tokens=whole(row, "cached_tokens") if is_counted else None,
        read_tokens=whole(row, "read_tokens") if is_counted else None,
        generated_tokens=whole(row, "completion_tokens"),
        tok_s=number(row, "tok_s") or None,
        acceptance=number(stats, "acceptance_rate") if number(stats, "drafts") else None,
        share=accepted / generated if generated and accepted is not None and was_drafted else None,
        ttft_s=number(row, "ttft_s"),
        age_s=number(row, "age_s"),
    )
