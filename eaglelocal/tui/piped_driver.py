"""Textual's driver for screens behind a pipe, as textual-serve runs them, with one thing more: its end is the screen's.

Textual's own goes on for ever when the program at the other end is killed.
"""

from __future__ import annotations

from textual import messages
from textual.drivers.web_driver import WebDriver


class PipedDriver(WebDriver):
    """Named to Textual by TEXTUAL_DRIVER."""

    def run_input_thread(self) -> None:
        super().run_input_thread()
        self._app.post_message(messages.ExitApp())
