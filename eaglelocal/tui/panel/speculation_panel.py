"""The speculation panel as a widget, which formats frames for its own width and height."""

from __future__ import annotations

from eaglelocal.tui.glyphs import UNICODE, Glyphs
from eaglelocal.tui.lines_widget import LinesWidget
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.panel.panel_text import format_panel


class SpeculationPanel(LinesWidget):
    """A panel with the state of drafting and what it gains.

    panel = SpeculationPanel(id="panel")
    panel.show(feed.make_frame(now))           # as often as you like; only lines that differ are drawn
    """

    DEFAULT_CSS = "SpeculationPanel { height: 100%; width: 100%; }"

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._glyphs = glyphs
        self._frame = PanelFrame()

    def show(self, frame: PanelFrame) -> None:
        self._frame = frame
        width, height = self.content_size
        self.show_lines(format_panel(frame, width, height, self._glyphs))

    def on_resize(self) -> None:
        self.show(self._frame)
