"""Watch several servers at once, with a feed for each; the watches outlive the screens that show them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from eaglelocal.client.server_reading import ServerReading
from eaglelocal.core.records import dataclass
from eaglelocal.tui.panel.feed import Feed, PanelFrame


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
