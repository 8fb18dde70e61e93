"""Run the monitor of a server at an address, or of several, from settings to the end, on a terminal.

Loads Textual only when it shows something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from functools import partial

from eaglelocal.client.http_connection import parse_url
from eaglelocal.client.servers.server_watch import ServerWatch
from eaglelocal.probe.load_gauges import GaugeWatch
from eaglelocal.settings import Settings
from eaglelocal.tui.display_options import check_display_options, make_display_options

LOCAL = ("127.0.0.1", "localhost", "::1")


def is_local(url: str) -> bool:
    """Return True if the server is on this machine, so that this machine's load is also the server's.

    Raises UsageError for an invalid address.
    """
    return parse_url(url).hostname in LOCAL


def watch_server(url: str, api_key: str, settings: Settings, *, is_listed: bool = False) -> None:
    """Show the monitor until the user leaves, for a list of servers if `is_listed`.

    Raises UsageError for keys of unknown actions or an invalid address.
    """
    from eaglelocal.tui.monitor.monitor_app import Monitor, ServerDetails

    options = make_display_options(settings)
    check_display_options(options)
    with closing(GaugeWatch()) if is_local(url) else nullcontext() as gauges:
        open_watch = partial(ServerWatch, url, api_key=api_key)
        app = ServerDetails if is_listed else Monitor
        app(options, open_watch, read_machine=gauges.latest if gauges is not None else None).show()


def watch_servers(urls: Sequence[str], find_key: Callable[[str], str], settings: Settings) -> None:
    """Show the list of several servers, and each one that the user opens, until the user leaves the list.

    Raises UsageError as `watch_server` does. find_key: returns the API key for an address
    """
    from eaglelocal.tui.monitor.server_rows import WatchedServers
    from eaglelocal.tui.monitor.servers_app import ServersMonitor

    options = make_display_options(settings)
    check_display_options(options)
    servers = WatchedServers(urls, lambda url, on_reading: ServerWatch(url, on_reading, api_key=find_key(url)))
    servers.start()
    chosen: str | None = ""
    with closing(servers):
        while (chosen := ServersMonitor(options, servers, selected_url=chosen or "").show()) is not None:
            watch_server(chosen, find_key(chosen), settings, is_listed=True)
