"""Snapshots of the monitor in each state, small and larger.

After a change that is wanted: `pytest tests/tui --snapshot-update`, and look at what has changed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from doubles.monitor_states import EMPTY, GONE, RESTARTING, off
from tui.monitor_app import BUSY, fed, monitor

from eaglelocal.tui.display_options import DisplayOptions
from eaglelocal.tui.glyphs import ASCII

pytestmark = pytest.mark.full

STATES = {
    "empty": [EMPTY],
    "busy": BUSY,
    "off": [*BUSY, off(700)],
    "restarting": [*BUSY, RESTARTING],
    "disconnected": [*BUSY, GONE],
}
Compare = Callable[..., bool]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=["80x24", "120x40", "200x60"])
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
