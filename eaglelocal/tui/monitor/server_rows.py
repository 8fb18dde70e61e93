"""Format several servers as a table with a row for each, and the selected one's reason below it. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from eaglelocal.client.server_reading import DISCONNECTED, ServerReading
from eaglelocal.core.amounts import format_memory
from eaglelocal.tui.monitor.machine_text import MonitorSnapshot, compute_kv_share
from eaglelocal.tui.monitor.monitor_text import HEALTHY_STATES, choose_connection_role, name_models
from eaglelocal.tui.monitor.table_text import Column, find_first_row, fit_columns, format_row, mark_selected
from eaglelocal.tui.panel.feed import Feed, PanelFrame
from eaglelocal.tui.panel.panel_text import UNKNOWN, format_count, format_percent, format_tok_s
from eaglelocal.tui.styled_lines import Line, fit_lines, make_line, plain_text

if TYPE_CHECKING:
    from eaglelocal.client.servers.server_watch import ServerWatch

UNREACHABLE, CONNECTING = "unreachable", "connecting"


def name_state(frame: PanelFrame) -> str:
    """Return the state in a word: unreachable, connecting, or the server's own."""
    return UNREACHABLE if frame.connection == DISCONNECTED else frame.connection or CONNECTING


def is_reachable(frame: PanelFrame) -> bool:
    return name_state(frame) not in (UNREACHABLE, CONNECTING)


def _figure(title: str, rank: int, format_value: Callable[[PanelFrame], str]) -> Column[MonitorSnapshot]:
    """Return the column of a figure; unknown if the server does not answer, because the last one is outdated."""
    return Column(title, lambda each: format_value(each.frame) if is_reachable(each.frame) else UNKNOWN, rank)


def _text(
    title: str, rank: int, format_value: Callable[[ServerReading], str], *, is_text: bool = False, min_width: int = 0
) -> Column[MonitorSnapshot]:
    """Return the column of something in a server's reading."""

    def format_cell(each: MonitorSnapshot) -> str:
        return (format_value(each.frame.reading) if each.frame.reading is not None else "") or UNKNOWN

    return Column(title, format_cell, rank, is_text, min_width)


def _format_slots(reading: ServerReading) -> str:
    """Return running requests of all slots: `2/4`."""
    slots = f"/{reading.num_slots}" if reading.num_slots is not None else ""
    return UNKNOWN if reading.running is None else f"{format_count(reading.running)}{slots}"


COLUMNS: tuple[Column[MonitorSnapshot], ...] = (
    Column("server", lambda server: server.url.removeprefix("http://"), is_text=True, min_width=16),
    Column("state", lambda server: name_state(server.frame), is_text=True),
    _text("kind", 5, lambda reading: reading.kind, is_text=True),
    _figure("tok/s", 0, lambda frame: format_tok_s(frame.tok_s)),
    _figure("acceptance", 1, lambda frame: format_percent(frame.figures.acceptance)),
    _text("running", 2, _format_slots),
    _text("waiting", 3, lambda reading: format_count(reading.waiting)),
    _text("KV cache", 7, lambda reading: format_percent(compute_kv_share(reading))),
    _text("memory", 4, lambda reading: format_memory(reading.memory_bytes) if reading.memory_bytes else ""),
    _text("model", 6, name_models, is_text=True, min_width=20),
)


def format_server_table(
    servers: Sequence[MonitorSnapshot], width: int, height: int, *, selected: int | None
) -> list[Line]:
    """Return titles and a row per server, at most `height` lines; the selected row is among them."""
    columns = fit_columns(COLUMNS, servers, width)
    titles = "".join(column.format_cell(column.title) + " " * column.gap for column in columns)
    num_shown = max(height - 1, 0)
    first = find_first_row(len(servers), selected or 0, num_shown)
    rows = [
        mark_selected(_format_row(server, columns), is_selected=first + i == selected)
        for i, server in enumerate(servers[first : first + num_shown])
    ]
    return fit_lines([make_line((titles, "quiet")), *rows], width, height)


def _format_row(server: MonitorSnapshot, columns: Sequence[Column[MonitorSnapshot]]) -> Line:
    role = choose_connection_role(server.frame.connection)
    return format_row(
        columns, server, {"state": role}, role="quiet" if server.frame.connection == DISCONNECTED else "text"
    )


def describe_server(server: MonitorSnapshot) -> str:
    """Describe one server in a line: its kind, its models, and why it does not answer."""
    reading, state = server.frame.reading, name_state(server.frame)
    if reading is not None and reading.detail and reading.state not in HEALTHY_STATES:
        return f"{state}: {reading.detail}"
    return ", ".join(filter(None, [reading.kind, name_models(reading), reading.draft])) if reading is not None else ""


def format_servers(servers: Sequence[MonitorSnapshot], width: int) -> str:
    """Return the plain text of all servers, with the reason of each that does not answer."""
    lines = format_server_table(servers, width, len(servers) + 1, selected=None)
    reasons = [
        make_line(f"{server.url}: {server.frame.reading.detail}")
        for server in servers
        if server.frame.reading is not None and server.frame.reading.detail
    ]
    return "\n".join(map(plain_text, [*lines, *reasons]))


# ---- watched servers: a feed for each; the watches outlive the screens that show them
OpenPoll = Callable[[str, Callable[[ServerReading], None]], "ServerWatch"]


class WatchedServers:
    """The servers, in the order given; one that does not answer is asked again until it does."""

    def __init__(self, urls: Sequence[str], open_poll: OpenPoll) -> None:
        """Prepare the watches; each address counts once. Raises UsageError for an invalid address."""
        self._servers: dict[str, tuple[ServerWatch, Feed]] = {}  # by address
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

    def _do_for_each(self, action: Callable[[ServerWatch, Feed], None]) -> None:
        with ThreadPoolExecutor(len(self._servers)) as pool:
            list(pool.map(lambda server: action(*server), self._servers.values()))

    def make_snapshots(self, now: float) -> list[MonitorSnapshot]:
        """Return the present figures of each server, without a history and the load of its machine."""
        frames = {url: feed.make_frame(now, seconds=0) for url, (_, feed) in self._servers.items()}
        return [MonitorSnapshot(url=url, frame=frame, is_local=False) for url, frame in frames.items()]


def _add_reading(feed: Feed, reading: ServerReading) -> None:
    feed.add_reading(reading, time.monotonic())
