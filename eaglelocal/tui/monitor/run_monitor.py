"""Run the monitor of a server at an address, from settings to the end, on a terminal or in a browser.

Loads Textual only when it shows something.
"""

from __future__ import annotations

from eaglelocal.client.http_client import parse_url
from eaglelocal.client.servers.server_watch import ServerWatch
from eaglelocal.probe.load_gauges import GaugeWatch
from eaglelocal.settings import Settings
from eaglelocal.tui.display_options import make_display_options
from eaglelocal.tui.key_bindings import check_display_options

LOCAL = ("127.0.0.1", "localhost", "::1")


def is_local(url: str) -> bool:
    """Return True if the server is on this machine, so that this machine's load is also the server's.

    Raises UsageError for an invalid address.
    """
    return parse_url(url).hostname in LOCAL


def watch_server(url: str, api_key: str, settings: Settings, *, keeps_theme: bool = True) -> None:
    """Show the monitor until the user leaves. Raises UsageError for keys of unknown actions or an invalid address.

    keeps_theme: as in `make_display_options`
    """
    from eaglelocal.tui.monitor.monitor_app import Monitor, ReadMachine

    options = make_display_options(settings, keeps_theme=keeps_theme)
    check_display_options(options)
    gauges = GaugeWatch() if is_local(url) else None
    read_machine: ReadMachine | None = gauges.latest if gauges is not None else None
    try:
        Monitor(
            options, lambda on_reading: ServerWatch(url, on_reading, api_key=api_key), read_machine=read_machine
        ).show()
    finally:
        if gauges is not None:
            gauges.close()
