"""A monitor over a watch that a test feeds by hand; no server, no clock of its own."""

from __future__ import annotations

from collections.abc import Callable

from doubles.monitor_states import MACHINE, ManualWatch

from eaglelocal.client.server_reading import ServerReading
from eaglelocal.tui.display_options import DisplayOptions
from eaglelocal.tui.monitor.log_tail import LogTail
from eaglelocal.tui.monitor.monitor_app import Monitor


def monitor(
    display_options: DisplayOptions | None = None, *, owns_server: bool = False, log: LogTail | None = None
) -> tuple[Monitor, ManualWatch]:
    made: list[ManualWatch] = []

    def open_watch(on_reading: Callable[[ServerReading], None]) -> ManualWatch:
        made.append(ManualWatch(on_reading))
        return made[0]

    app = Monitor(
        display_options or DisplayOptions(), open_watch, read_machine=lambda: MACHINE, owns_server=owns_server, log=log
    )
    return app, made[0]
