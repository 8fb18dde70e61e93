"""A monitor over a watch that a test feeds by hand; no server, no clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from doubles.monitor_states import MACHINE, ManualWatch, busy
from textual.pilot import Pilot

from eaglelocal.client.server_reading import ServerReading
from eaglelocal.tui.display_options import DisplayOptions
from eaglelocal.tui.monitor.log_tail import LogTail
from eaglelocal.tui.monitor.machine_text import RecentLoads
from eaglelocal.tui.monitor.monitor_app import Monitor

BUSY = [busy(200 + 9 * i + (i * i) % 7) for i in range(40)]  # a reading a second
NOW = 5000.0


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


def fed(app: Monitor, watch: ManualWatch, readings: list[ServerReading]) -> Callable[[Pilot[object]], object]:
    """The readings, as of a moment that is always the same."""

    async def run(pilot: Pilot[object]) -> None:
        app._redraw_timer.set_paused(True)
        await pilot.pause(0.4)  # the machine's figures are read aside
        for i, reading in enumerate(readings):
            app.feed.add_reading(reading, NOW + i)
        loads = RecentLoads(label="GPU", shares=tuple(0.5 + i % 7 / 20 for i in range(90)))
        app._snapshot = replace(app._snapshot, frame=app.feed.make_frame(NOW + len(readings)), loads=loads)
        app._draw()
        await pilot.pause()

    return run
