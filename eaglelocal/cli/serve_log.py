"""The stderr output of a server in the foreground: its log, a status line below it, and readiness for systemd."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from eaglelocal.cli.json_output import JsonOutput, time_fields
from eaglelocal.cli.output import Output, StatusLine
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.events import EngineSnapshot
from eaglelocal.core.records import dataclass
from eaglelocal.core.stats import ACTIVE_STATES
from eaglelocal.server.access_log import ANSWER_FIELDS, GONE
from eaglelocal.server.listening_socket import find_lan_address
from eaglelocal.server.loaded_models import LoadedModel
from eaglelocal.server.run_server import notify_service_manager
from eaglelocal.server.server_state import ServerState

STATUS_GAP_S = 1.0
REPEAT_S = 10.0
MAX_REPEATS = 3  # warnings of one place in the code that are shown within REPEAT_S
LOGGERS = ("eaglelocal", "uvicorn.error", "asyncio")
FIELDS = (
    *("request_id", "method", "path", "status", "owner", "client", "user_agent", "seconds"),
    *("reason", "param", "code", "warnings", "unread_calls", *ANSWER_FIELDS),
)
MAX_REASON_CHARS = 300
QUIET_PATHS = frozenset(
    {
        *("/", "/health", "/metrics", "/v1/models", "/v1/snapshot", "/v1/events"),
        *("/api/tags", "/api/version", "/api/ps"),
    }
)


class LineHandler(logging.Handler):
    """A handler that shows log records as messages, or writes them as records of a JsonOutput."""

    def __init__(self, output: Output, status: StatusLine | None) -> None:
        super().__init__(logging.INFO)
        self._output, self._status = output, status
        self._day = ""  # of the last line
        self.addFilter(RepeatFilter())
        self.addFilter(lambda record: not is_cut_off(record))

    def emit(self, record: logging.LogRecord) -> None:
        is_well = getattr(record, "status", 0) in (200, GONE, 503)
        if is_well and getattr(record, "path", "") in QUIET_PATHS:  # polled by monitors
            return
        if self._status is not None:
            self._status.show()
        if isinstance(self._output, JsonOutput):
            self._output.record(make_record(record))
        else:
            self._show_day(record.created)
            self._output.message(format_line(record))
            for line in format_traceback(record).splitlines():
                self._output.message(line)

    def _show_day(self, at: float) -> None:
        """Show the date before the first line of a new day; the day on which the log begins needs none."""
        day = time.strftime("%Y-%m-%d", time.localtime(at))
        if self._day not in ("", day):
            self._output.message(day)
        self._day = day


class RepeatFilter:
    """A filter that passes the first MAX_REPEATS equal warnings, then one each REPEAT_S that counts the others.

    Warnings of one place in the code are equal, whatever their values: an attack must not fill a disk with log
    lines. Records of requests and crashes have levels and places of their own, and all pass.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, int], Repeats] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING and record.name.startswith("eaglelocal"):
            return True
        now = self._clock()
        repeats = self._seen.setdefault((record.pathname, record.lineno), Repeats(now))
        if now - repeats.since_s >= REPEAT_S:
            if repeats.num_left_out:
                record.msg = f"{record.getMessage()} ({repeats.num_left_out} more like this in {REPEAT_S:g} s)"
                record.args = None
            self._seen[record.pathname, record.lineno] = Repeats(now, num_shown=1)
            return True
        repeats.num_shown += 1
        if repeats.num_shown <= MAX_REPEATS:
            return True
        repeats.num_left_out += 1
        return False


@dataclass(slots=True)
class Repeats:
    """The counts of warnings of one place in the code since `since_s`."""

    since_s: float
    num_shown: int = 0
    num_left_out: int = 0


def is_cut_off(record: logging.LogRecord) -> bool:
    """Return whether uvicorn reports a task that it cancelled at the end of the server, with its traceback."""
    return record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)


def format_line(record: logging.LogRecord) -> str:
    at, message = time.strftime("%H:%M:%S", time.localtime(record.created)), record.getMessage()
    fields = record.__dict__
    if reason := fields.get("reason"):  # first: a narrow screen cuts the end off
        message += f"  {' '.join(reason.split())[:MAX_REASON_CHARS]}"  # one line, whatever the request named
    for warning in fields.get("warnings", ()):
        message += f"  {warning}"
    for problem in fields.get("unread_calls", ()):
        message += f"  a call was not read: {problem}"
    if hasattr(record, "seconds"):
        message += f"  {fields['owner']}  {fields['seconds']:.2f} s{describe_answer(fields)}"
    return f"{at}  {message}"


def format_traceback(record: logging.LogRecord) -> str:
    """Return the traceback of a log record, "" if it has none."""
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def describe_answer(fields: Mapping[str, object]) -> str:
    """Return the figures of an answer for a line of text; "" if the request had none."""
    formats = {
        "completion_tokens": "{} tokens",
        "tok_s": "{:.1f} tok/s",
        "acceptance_rate": "acceptance {:.0%}",
        "model": "{}",  # last, for a narrow screen cuts the line
    }
    known = ((text, fields.get(name)) for name, text in formats.items())
    parts = [text.format(value) for text, value in known if value is not None]
    return f"  {', '.join(parts)}" if parts else ""


def make_record(record: logging.LogRecord) -> dict[str, object]:
    """Return a log record as an object for JSON."""
    entry = {**time_fields(record.created), "level": record.levelname.lower(), "message": record.getMessage()}
    entry |= {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}
    if trace := format_traceback(record):
        entry["traceback"] = trace
    return entry


def log_to(output: Output, status: StatusLine | None) -> None:
    handler = LineHandler(output, status)
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if name == "eaglelocal" else logging.WARNING)


class ServerLog:
    """The messages about a server's life: loading, listening, its status line, its end."""

    def __init__(
        self,
        output: Output,
        serving: ServerState,
        status: StatusLine | None,
        *,
        address: tuple[str, int],
        scheme: str = "http",
    ) -> None:
        self._output, self._serving, self._status = output, serving, status
        self.url, self._lan_url = make_url(*address, scheme), find_lan_url(*address, scheme)

    def show_loading(self, target: str, *, keys: Sequence[str]) -> None:
        """Say where requests will be answered, and with which keys; until then only /health is."""
        key_names = f", keys: {', '.join(keys)}" if keys else ""
        self._output.message(f"starting {target} on {self.url}{key_names}")

    def show_ready(self, loaded: LoadedModel) -> None:
        num_slots = loaded.info.num_slots
        in_lan = f", in your network on {self._lan_url}" if self._lan_url else ""
        self._output.message(f"listening on {self.url}{in_lan}")
        self._output.message(f"ready: {self.url}/v1, {count_noun(num_slots, 'answer')} at once")
        self._output.message(f"chat in a browser: {self.url}")
        notify_service_manager(f"READY=1\nSTATUS=serving {loaded.name}")

    async def watch(self) -> None:
        """Update the status line every STATUS_GAP_S, until cancelled."""
        last: list[EngineSnapshot] = []
        while self._status is not None and self._status.is_shown:
            await asyncio.sleep(STATUS_GAP_S)
            clients = [one.client for one in self._serving.models.loaded]
            snapshots = [await asyncio.to_thread(client.snapshot) for client in clients]
            self._status.show(status_text(self._serving, snapshots, last) if snapshots else self._serving.state)
            last = snapshots

    def close(self) -> None:
        if self._status is not None:
            self._status.show()


def status_text(serving: ServerState, snapshots: Sequence[EngineSnapshot], last: Sequence[EngineSnapshot]) -> str:
    """Return the status of all models: `ready · 2 running, 1 waiting · 41.2 tok/s · acceptance length 3.12 · ...`."""
    running, waiting = serving.count_active()
    parts = [serving.state, f"{running} running, {waiting} waiting"]
    before = {snapshot.engine_pid: snapshot.generated_tokens for snapshot in last}
    num_new = sum(one.generated_tokens - before[one.engine_pid] for one in snapshots if one.engine_pid in before)
    if num_new > 0:  # without tokens there is no speed
        parts.append(f"{num_new / STATUS_GAP_S:.1f} tok/s")
    stats = [snapshot.speculation for snapshot in snapshots]
    if num_drafts := sum(one.drafts for one in stats):
        parts.append(f"acceptance length {sum(one.emitted_tokens for one in stats) / num_drafts:.2f}")
    if (learning := serving.read_learning().state) in ACTIVE_STATES:
        parts.append(learning)
    if len(snapshots) > 1:
        parts.append(f"{len(snapshots)} models")
    unanswered = (serving.num_refused, "refused"), (serving.num_failed, "failed")
    counts = [f"{serving.num_answered} answered", *(f"{number} {what}" for number, what in unanswered if number)]
    return " · ".join([*parts, ", ".join(counts)])


def make_url(host: str, port: int, scheme: str = "http") -> str:
    """Return a URL of the address that can be opened from this machine."""
    return _format_url({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port, scheme)


def find_lan_url(host: str, port: int, scheme: str = "http") -> str:
    """Return the URL for other machines, if every address of this one is listened on; else ""."""
    address = find_lan_address() if host in ("0.0.0.0", "::") else ""
    return _format_url(address, port, scheme) if address else ""


def _format_url(host: str, port: int, scheme: str) -> str:
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
