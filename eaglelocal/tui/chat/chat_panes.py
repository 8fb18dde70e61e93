"""The middle of the chat screen: the transcript, and the speculation panel beside or below it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container
from textual.geometry import Size

from eaglelocal.tui.panel.speculation_panel import SpeculationPanel
from eaglelocal.tui.transcript.transcript import Transcript

MIN_SIDE_PANEL_COLUMNS = 100  # from this width on the panel is right of the transcript, else below it
MIN_SHOWN_COLUMNS = 140  # from this width on the panel is there unless the user hides it, else if they ask for it


class ChatPanes(Container):
    """A container of the transcript and the panel, arranged for the size of the screen."""

    DEFAULT_CSS = """
    ChatPanes {
        height: 1fr; layout: horizontal;
        &.stacked { layout: vertical; }
        & #panel { width: 46; padding: 0 1; border-left: solid $secondary; }
        &.stacked #panel { width: 100%; height: 9; border-left: none; border-top: solid $secondary; }
    }
    """

    def __init__(self, transcript: Transcript, panel: SpeculationPanel, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._transcript, self._panel = transcript, panel
        self._wants_panel: bool | None = None  # the user's choice; None: it depends on the screen's size

    def compose(self) -> ComposeResult:
        yield self._transcript
        yield self._panel

    def adapt_to(self, screen_size: Size) -> None:
        has_room_beside = screen_size.width >= MIN_SIDE_PANEL_COLUMNS
        self.set_class(not has_room_beside, "stacked")
        is_wide = screen_size.width >= MIN_SHOWN_COLUMNS
        self._panel.display = is_wide if self._wants_panel is None else self._wants_panel

    def toggle_panel(self) -> None:
        self._panel.display = self._wants_panel = not self._panel.display
