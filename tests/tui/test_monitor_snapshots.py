"""Snapshots of the monitor in each state, small and larger.

After a change that is wanted: `pytest tests/tui --snapshot-update`, and look at what has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from doubles.monitor_states import EMPTY, GONE, RESTARTING, ManualWatch, busy, off
from textual.pilot import Pilot
from tui.monitor_app import monitor

from eaglelocal.client.server_reading import ServerReading
from eaglelocal.tui.display_options import DisplayOptions
from eaglelocal.tui.glyphs import ASCII
from eaglelocal.tui.monitor.monitor_app import Monitor

BUSY = [busy(200 + 9 * i + (i * i) % 7) for i in range(40)]  # a reading a second
STATES = {
    "empty": [EMPTY],
    "busy": BUSY,
    "off": [*BUSY, off(700)],
    "restarting": [*BUSY, RESTARTING],
    "disconnected": [*BUSY, GONE],
}
NOW = 5000.0
Compare = Callable[..., bool]


def fed(app: Monitor, watch: ManualWatch, readings: list[ServerReading]) -> Callable[[Pilot[object]], object]:
    """The readings, as of a moment that is always the same."""

    async def run(pilot: Pilot[object]) -> None:
        app._redraw_timer.set_paused(True)
        await pilot.pause(0.4)  # the machine's figures are read aside
        for i, reading in enumerate(readings):
            app.feed.add_reading(reading, NOW + i)
        app._snapshot = replace(app._snapshot, frame=app.feed.make_frame(NOW + len(readings)))
        app._draw()
        await pilot.pause()

    return run


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
@pytest.mark.parametrize("state", STATES)
def test_the_monitor_looks_as_it_did(state: str, size: tuple[int, int], snap_compare: Compare) -> None:
    app, watch = monitor()
    assert snap_compare(app, terminal_size=size, run_before=fed(app, watch, STATES[state]))


@pytest.mark.parametrize(
    "display_options",
    [
        DisplayOptions(theme="light"),
        DisplayOptions(theme="contrast"),
        DisplayOptions(theme="terminal"),
        DisplayOptions(glyphs=ASCII, has_color=False),
    ],
    ids=["light", "contrast", "terminal", "ascii"],
)
def test_it_looks_as_it_did_in_other_looks(display_options: DisplayOptions, snap_compare: Compare) -> None:
    app, watch = monitor(display_options)
    assert snap_compare(app, terminal_size=(80, 24), run_before=fed(app, watch, STATES["busy"]))


def test_a_question_looks_as_it_did(snap_compare: Compare) -> None:
    app, watch = monitor(owns_server=True)
    assert snap_compare(app, press=["q"], terminal_size=(80, 24), run_before=fed(app, watch, STATES["busy"]))
