"""Read an eaglelocal server for a monitor: /v1/snapshot. Missing values are allowed: versions differ."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Mapping

from eaglelocal.client.http_client import make_connection, parse_url, unreachable_error
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
from eaglelocal.core.json_text import read_json
from eaglelocal.core.records import dataclass
from eaglelocal.core.stats import LearningStatus, describe_learning
from eaglelocal.core.terminal_text import join_in_json
from eaglelocal.errors import EagleLocalError, UsageError

KIND = "eaglelocal"
ENGINE_TOTALS = (
    *("prompt_tokens", "generated_tokens", "emitted_tokens"),
    *("draft_s", "verify_s", "host_s", "plain_s", "answer_s"),
)
DRAFT_TOTALS = ("drafts", "draft_tokens", "accepted_tokens")


class EaglelocalServer:
    """A ServerReader for an eaglelocal server."""

    kind = KIND

    def __init__(self, connection: KeepAliveConnection) -> None:
        self._connection = connection

    def read(self) -> ServerReading:
        reply = self._connection.get("/v1/snapshot")
        if not reply.is_good:
            raise refusal(self._connection.url, reply.status, reply.body)
        return parse_snapshot(reply.mapping())


def parse_snapshot(snapshot: Mapping[str, object]) -> ServerReading:
    model, engine = mapping(snapshot.get("model")), mapping(snapshot.get("engine"))
    others = [row for row in objects(snapshot.get("loaded")) if row.get("name") != model.get("name")]
    engines = [engine, *(mapping(other.get("engine")) for other in others)]
    requests, recent = snapshot.get("requests"), snapshot.get("recent")
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
        requests=tuple(map(_row, requests)) if isinstance(requests, list) else None,
        recent=tuple(map(_row, recent)) if isinstance(recent, list) else (),
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


def _row(value: object) -> RequestRow:
    row = mapping(value)
    generated, accepted = number(row, "completion_tokens"), number(row, "accepted_tokens")
    has_begun, stats = row.get("state") not in ("waiting", "reading"), mapping(row.get("speculation"))
    is_counted = bool(number(row, "prompt_tokens"))  # not yet while it is read, and never if it was refused
    was_drafted = bool(accepted or number(stats, "drafts"))
    return RequestRow(
        id=text(row, "id"),
        owner=text(row, "client") or text(row, "owner"),
        model=text(row, "model"),
        state=text(row, "state"),
        drafting=text(row, "drafting"),
        prompt_tokens=whole(row, "prompt_tokens") if is_counted else None,
        cached_tokens=whole(row, "cached_tokens") if is_counted else None,
        generated_tokens=whole(row, "completion_tokens"),
        tok_s=number(row, "tok_s") or None,
        acceptance=number(stats, "acceptance_rate") if number(stats, "drafts") else None,
        share=accepted / generated if generated and accepted is not None and was_drafted else None,
        wait_s=number(row, "ttft_s") if row.get("ttft_s") is not None else None if has_begun else number(row, "age_s"),
        age_s=number(row, "age_s"),
    )


# ---- connection: short requests to a server over one kept-alive connection, for monitors that poll it
#
# Handles sockets and statuses, independent of what is requested. Answers of models go through http_client.py.
TIMEOUT_S = 4.0  # a server that computes on all cores answers slowly
MAX_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class HttpReply:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def is_good(self) -> bool:
        return self.status == http.client.OK

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> object:
        """Return the parsed body; None if it is no JSON."""
        try:
            return join_in_json(read_json(self.body))
        except ValueError:
            return None

    def mapping(self) -> Mapping[str, object]:
        """Return the JSON object; empty for anything else."""
        return mapping(self.json())


class KeepAliveConnection:
    """A keep-alive connection to a server, for one thread."""

    def __init__(self, url: str, *, api_key: str = "", timeout_s: float = TIMEOUT_S) -> None:
        """Parse `url`, which may end in /v1. Raises UsageError for an invalid address."""
        parts = parse_url(url)
        self._path = parts.path.removesuffix("/v1")
        self.url = f"{parts.scheme}://{parts.netloc}{self._path}"
        try:
            self._http = make_connection(parts, timeout_s)
        except (ValueError, http.client.HTTPException) as error:
            raise UsageError(f"{url!r} is not the address of a server", hint="such as http://127.0.0.1:8080") from error
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def get(self, path: str) -> HttpReply:
        """Return the reply, whatever its status. Raises EngineError when nothing answers."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, object]) -> HttpReply:
        """Return the reply. Raises EngineError when nothing answers, and the error of a status that is not 200."""
        reply = self._ask("POST", path, json.dumps(body))
        if not reply.is_good:
            raise refusal(self.url, reply.status, reply.body)
        return reply

    def close(self) -> None:
        self._http.close()

    def _ask(self, method: str, path: str, body: str | None) -> HttpReply:
        """Send a request; retry once if the kept-alive connection failed, as the server may have closed it."""
        was_open = self._http.sock is not None
        try:
            return self._exchange(method, path, body)
        except EagleLocalError:
            if not was_open:
                raise
            return self._exchange(method, path, body)

    def _exchange(self, method: str, path: str, body: str | None) -> HttpReply:
        headers = {"Content-Type": "application/json", **self._headers} if body is not None else self._headers
        try:
            self._http.request(method, self._path + path, body, headers)
            response = self._http.getresponse()
            read = response.read(MAX_BYTES)
        except (OSError, http.client.HTTPException, ValueError) as error:
            with contextlib.suppress(OSError):
                self._http.close()
            raise unreachable_error(self.url, error) from error
        if response.length:  # longer than MAX_BYTES
            self._http.close()
        return HttpReply(response.status, {name.lower(): value for name, value in response.getheaders()}, read)
