"""Format several servers as a table with a row for each, and the selected one's reason below it. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Protocol

from eaglelocal.client.server_reading import DISCONNECTED, ServerReading
from eaglelocal.core.records import dataclass
from eaglelocal.tui.monitor.machine_text import compute_kv_share, format_bytes
from eaglelocal.tui.monitor.monitor_text import HEALTHY_STATES, find_first_row
from eaglelocal.tui.panel.feed import Feed, PanelFrame
from eaglelocal.tui.panel.panel_text import UNKNOWN, format_count, format_percent
from eaglelocal.tui.styled_lines import Line, Role, StyledSpan, fit_line, make_line, plain_text

UNREACHABLE, CONNECTING = "unreachable", "connecting"


@dataclass(frozen=True, slots=True)
class ServerColumn:
    """A column; tables of fewer than `min_width` cells leave it out. A column that grows takes the cells left over."""

    title: str
    width: int
    format: Callable[[ServerFrame], str]
    min_width: int = 0
    grows: bool = False
    is_text: bool = False


def name_state(frame: PanelFrame) -> str:
    """Return the state in a word: unreachable, connecting, or the server's own."""
    return UNREACHABLE if frame.connection == DISCONNECTED else frame.connection or CONNECTING


def is_reachable(frame: PanelFrame) -> bool:
    return name_state(frame) not in (UNREACHABLE, CONNECTING)


def _format_live(frame: PanelFrame, text: str) -> str:
    """Return a figure; empty if the server does not answer, because the last one is outdated."""
    return text if is_reachable(frame) else UNKNOWN


def _format_speed(server: ServerFrame) -> str:
    tok_s = server.frame.tok_s
    return _format_live(server.frame, UNKNOWN if tok_s is None else f"{tok_s:.1f}")


def _format_acceptance(server: ServerFrame) -> str:
    return _format_live(server.frame, format_percent(server.frame.figures.acceptance))


def _format_slots(server: ServerFrame) -> str:
    """Return running requests of all slots: `2/4`."""
    reading = server.frame.reading
    if reading is None or reading.running is None:
        return UNKNOWN
    return format_count(reading.running) + (f"/{reading.num_slots}" if reading.num_slots is not None else "")


def _format_queue(server: ServerFrame) -> str:
    reading = server.frame.reading
    return UNKNOWN if reading is None else format_count(reading.waiting)


def _format_memory(server: ServerFrame) -> str:
    reading = server.frame.reading
    return format_bytes(reading.memory_bytes) if reading is not None else UNKNOWN


def _format_cache(server: ServerFrame) -> str:
    reading = server.frame.reading
    return format_percent(compute_kv_share(reading)) if reading is not None else UNKNOWN


def _name_kind(server: ServerFrame) -> str:
    reading = server.frame.reading
    return (reading.kind if reading is not None else "") or UNKNOWN


def _name_model(server: ServerFrame) -> str:
    reading = server.frame.reading
    if reading is None or not reading.model:
        return UNKNOWN
    return reading.model + f" +{len(reading.other_models)}" * bool(reading.other_models)


def shorten_url(url: str) -> str:
    """Return the address without the scheme that most servers have.

    >>> shorten_url("http://127.0.0.1:8421")
    '127.0.0.1:8421'
    """
    return url.removeprefix("http://")


COLUMNS = (
    ServerColumn("server", 16, lambda server: shorten_url(server.url), grows=True, is_text=True),
    ServerColumn("state", 11, lambda server: name_state(server.frame), is_text=True),
    ServerColumn("kind", 12, _name_kind, min_width=86, is_text=True),
    ServerColumn("tok/s", 7, _format_speed),
    ServerColumn("accepted", 8, _format_acceptance, min_width=46),
    ServerColumn("slots", 6, _format_slots, min_width=56),
    ServerColumn("queue", 5, _format_queue, min_width=62),
    ServerColumn("cache", 6, _format_cache, min_width=96),
    ServerColumn("memory", 9, _format_memory, min_width=72),
    ServerColumn("model", 20, _name_model, min_width=110, grows=True, is_text=True),
)


def fit_columns(width: int) -> list[ServerColumn]:
    """Return the columns of a table of this width; those that grow share the cells that are left."""
    shown = [column for column in COLUMNS if width >= column.min_width]
    growing = [column for column in shown if column.grows]
    left = max(width - sum(column.width + 1 for column in shown) + 1, 0)
    extra = left // len(growing)
    return [replace(column, width=column.width + extra) if column.grows else column for column in shown]


def format_server_table(servers: Sequence[ServerFrame], width: int, height: int, *, selected: int | None) -> list[Line]:
    """Return titles and a row per server, at most `height` lines; the selected row is among them."""
    columns = fit_columns(width)
    titles = fit_line(make_line((_join(columns, [column.title for column in columns]), "quiet")), width)
    num_shown = max(height - 1, 0)
    first = find_first_row(len(servers), selected or 0, num_shown)
    rows = [
        _format_row(server, columns, width, is_selected=first + i == selected)
        for i, server in enumerate(servers[first : first + num_shown])
    ]
    return [titles, *rows][:height]


def describe_server(server: ServerFrame) -> Line:
    """Describe one server in a line: its kind, its models, and why it does not answer."""
    reading, state = server.frame.reading, name_state(server.frame)
    detail = reading.detail if reading is not None and reading.state not in HEALTHY_STATES else ""
    texts = [_name_kind(server), _name_model(server), reading.draft if reading is not None else ""]
    known = ", ".join(text for text in texts if text not in ("", UNKNOWN))
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


def _format_row(server: ServerFrame, columns: Sequence[ServerColumn], width: int, *, is_selected: bool) -> Line:
    text = _join(columns, [column.format(server) for column in columns])
    if is_selected:
        return tuple(StyledSpan(span.text, "selected") for span in fit_line((StyledSpan(text),), width))
    state = name_state(server.frame)
    role: Role = "good" if state in HEALTHY_STATES else "bad" if state in (UNREACHABLE, "failed") else "warn"
    begin = columns[0].width + 1
    end = begin + columns[1].width
    parts = (StyledSpan(text[:begin]), StyledSpan(text[begin:end], role), StyledSpan(text[end:]))
    return fit_line(parts, width)


def _join(columns: Sequence[ServerColumn], texts: Sequence[str]) -> str:
    """Return the cells in one text, those of text aligned left and figures right."""
    cells = (
        "".join(span.text for span in fit_line((StyledSpan(_align(text, column)),), column.width))
        for column, text in zip(columns, texts, strict=True)
    )
    return " ".join(cells)


def _align(text: str, column: ServerColumn) -> str:
    return text if column.is_text else text.rjust(column.width)


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


@dataclass(frozen=True, slots=True)
class ServerFrame:
    """A server's figures at one moment."""

    url: str
    frame: PanelFrame


class WatchedServers:
    """The servers, in the order given; one that does not answer is asked again until it does."""

    def __init__(self, urls: Sequence[str], open_poll: OpenPoll) -> None:
        """Prepare the watches; each address counts once. Raises UsageError for an invalid address."""
        self._feeds: list[Feed] = []
        self._polls: list[PolledServer] = []
        for url in urls:
            feed = Feed()
            poll = open_poll(url, partial(_add_reading, feed))
            if poll.url not in [each.url for each in self._polls]:
                self._feeds.append(feed)
                self._polls.append(poll)

    def start(self) -> None:
        for poll in self._polls:
            poll.start()

    def close(self) -> None:
        """Stop polling all servers at once, as one that hangs takes a second."""
        with ThreadPoolExecutor(len(self._polls)) as pool:
            list(pool.map(lambda poll: poll.close(), self._polls))

    def read_all(self) -> None:
        """Read each server once, all at the same time, for a frame without a screen."""
        with ThreadPoolExecutor(len(self._polls)) as pool:
            readings = list(pool.map(lambda poll: poll.read(), self._polls))
        for feed, reading in zip(self._feeds, readings, strict=True):
            _add_reading(feed, reading)

    def make_frames(self, now: float) -> list[ServerFrame]:
        """Return the present figures of each server, without a history."""
        return [
            ServerFrame(poll.url, feed.make_frame(now, seconds=0))
            for poll, feed in zip(self._polls, self._feeds, strict=True)
        ]


def _add_reading(feed: Feed, reading: ServerReading) -> None:
    feed.add_reading(reading, time.monotonic())
