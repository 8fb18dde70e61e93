"""Format several servers as a table with a row for each, and the selected one's reason below it. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from eaglelocal.client.server_reading import DISCONNECTED, ServerReading
from eaglelocal.core.records import dataclass
from eaglelocal.tui.monitor.machine_text import compute_kv_share, format_bytes
from eaglelocal.tui.monitor.monitor_text import HEALTHY_STATES, name_models
from eaglelocal.tui.monitor.table_text import (
    Column,
    find_first_row,
    fit_columns,
    format_figure,
    format_row,
    mark_selected,
)
from eaglelocal.tui.panel.feed import Feed, PanelFrame
from eaglelocal.tui.panel.panel_text import UNKNOWN, format_count, format_percent
from eaglelocal.tui.styled_lines import Line, Role, fit_line, make_line, plain_text

UNREACHABLE, CONNECTING = "unreachable", "connecting"


@dataclass(frozen=True, slots=True)
class ServerFrame:
    """A server's figures at one moment."""

    url: str
    frame: PanelFrame


def name_state(frame: PanelFrame) -> str:
    """Return the state in a word: unreachable, connecting, or the server's own."""
    return UNREACHABLE if frame.connection == DISCONNECTED else frame.connection or CONNECTING


def is_reachable(frame: PanelFrame) -> bool:
    return name_state(frame) not in (UNREACHABLE, CONNECTING)


def _format_speed(server: ServerFrame) -> str:
    """Return tok/s; empty if the server does not answer, because the last figure is outdated."""
    return format_figure(server.frame.tok_s) if is_reachable(server.frame) else UNKNOWN


def _format_acceptance(server: ServerFrame) -> str:
    return format_percent(server.frame.figures.acceptance) if is_reachable(server.frame) else UNKNOWN


def _read(format_value: Callable[[ServerReading], str]) -> Callable[[ServerFrame], str]:
    """Return the format of a column that shows something of a server's reading."""

    def format_server(server: ServerFrame) -> str:
        return UNKNOWN if server.frame.reading is None else format_value(server.frame.reading) or UNKNOWN

    return format_server


def _format_slots(reading: ServerReading) -> str:
    """Return running requests of all slots: `2/4`."""
    slots = f"/{reading.num_slots}" if reading.num_slots is not None else ""
    return UNKNOWN if reading.running is None else f"{format_count(reading.running)}{slots}"


def shorten_url(url: str) -> str:
    """Return the address without the scheme that most servers have.

    >>> shorten_url("http://127.0.0.1:8421")
    '127.0.0.1:8421'
    """
    return url.removeprefix("http://")


COLUMNS: tuple[Column[ServerFrame], ...] = (
    Column("server", lambda server: shorten_url(server.url), is_text=True, min_width=16),
    Column("state", lambda server: name_state(server.frame), is_text=True),
    Column("kind", _read(lambda reading: reading.kind), 5, is_text=True),
    Column("tok/s", _format_speed),
    Column("acceptance", _format_acceptance, 1),
    Column("running", _read(_format_slots), 2),
    Column("waiting", _read(lambda reading: format_count(reading.waiting)), 3),
    Column("KV cache", _read(lambda reading: format_percent(compute_kv_share(reading))), 7),
    Column("memory", _read(lambda reading: format_bytes(reading.memory_bytes)), 4),
    Column("model", _read(name_models), 6, is_text=True, min_width=20),
)


def format_server_table(servers: Sequence[ServerFrame], width: int, height: int, *, selected: int | None) -> list[Line]:
    """Return titles and a row per server, at most `height` lines; the selected row is among them."""
    columns = fit_columns(COLUMNS, servers, width)
    titles = "".join(column.format_cell(column.title) + " " * column.gap for column in columns)
    num_shown = max(height - 1, 0)
    first = find_first_row(len(servers), selected or 0, num_shown)
    rows = [
        mark_selected(_format_row(server, columns), is_selected=first + i == selected)
        for i, server in enumerate(servers[first : first + num_shown])
    ]
    return [fit_line(line, width) for line in [make_line((titles, "quiet")), *rows][:height]]


def _format_row(server: ServerFrame, columns: Sequence[Column[ServerFrame]]) -> Line:
    state = name_state(server.frame)
    role: Role = "good" if state in HEALTHY_STATES else "bad" if state in (UNREACHABLE, "failed") else "warn"
    return format_row(columns, server, {"state": role})


def describe_server(server: ServerFrame) -> Line:
    """Describe one server in a line: its kind, its models, and why it does not answer."""
    reading, state = server.frame.reading, name_state(server.frame)
    detail = reading.detail if reading is not None and reading.state not in HEALTHY_STATES else ""
    texts = [reading.kind, name_models(reading), reading.draft] if reading is not None else []
    known = ", ".join(filter(None, texts))
    return make_line((": ".join(filter(None, [state if detail else "", detail])) or known, "quiet"))


def format_servers(servers: Sequence[ServerFrame], width: int) -> str:
    """Return the plain text of all servers, with the reason of each that does not answer."""
    lines = format_server_table(servers, width, len(servers) + 1, selected=None)
    reasons = [
        make_line(f"{server.url}: {server.frame.reading.detail}")
        for server in servers
        if server.frame.reading is not None and server.frame.reading.detail
    ]
    return "\n".join(map(plain_text, [*lines, *reasons]))


# ---- watched servers: watch several servers at once, with a feed for each; the watches outlive the screens that show
# them
class PolledServer(Protocol):
    """A server that is read on a thread of its own."""

    @property
    def url(self) -> str: ...

    def start(self) -> None: ...

    def read(self) -> ServerReading: ...

    def close(self) -> None: ...


OpenPoll = Callable[[str, Callable[[ServerReading], None]], PolledServer]


class WatchedServers:
    """The servers, in the order given; one that does not answer is asked again until it does."""

    def __init__(self, urls: Sequence[str], open_poll: OpenPoll) -> None:
        """Prepare the watches; each address counts once. Raises UsageError for an invalid address."""
        self._servers: dict[str, tuple[PolledServer, Feed]] = {}  # by address
        for url in urls:
            feed = Feed()
            poll = open_poll(url, partial(_add_reading, feed))
            self._servers.setdefault(poll.url, (poll, feed))

    def start(self) -> None:
        for poll, _ in self._servers.values():
            poll.start()

    def close(self) -> None:
        """Stop polling all servers at once, as one that hangs takes a second."""
        self._do_for_each(lambda poll, feed: poll.close())

    def read_all(self) -> None:
        """Read each server once, all at the same time, for a frame without a screen."""
        self._do_for_each(lambda poll, feed: _add_reading(feed, poll.read()))

    def _do_for_each(self, action: Callable[[PolledServer, Feed], None]) -> None:
        with ThreadPoolExecutor(len(self._servers)) as pool:
            list(pool.map(lambda server: action(*server), self._servers.values()))

    def make_frames(self, now: float) -> list[ServerFrame]:
        """Return the present figures of each server, without a history."""
        return [ServerFrame(url, feed.make_frame(now, seconds=0)) for url, (_, feed) in self._servers.items()]


def _add_reading(feed: Feed, reading: ServerReading) -> None:
    feed.add_reading(reading, time.monotonic())
