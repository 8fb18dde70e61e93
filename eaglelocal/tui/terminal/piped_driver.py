"""A Textual driver for screens behind a pipe, as textual-serve runs them. The screen ends with the pipe, and only then.

Textual's own runs on for ever when the program at the other end is killed, and ends at a byte that is not UTF-8. It
also begins without focus, so the names of keys are missing until the user clicks.
"""

from __future__ import annotations

from textual import events, messages
from textual.drivers._byte_stream import ByteStream
from textual.drivers.web_driver import WebDriver, _ExitInput

from eaglelocal.core.terminal_text import join_surrogates
from eaglelocal.tui.terminal.key_reader import KeyReader


class PipedDriver(WebDriver):
    """The driver of a screen behind a pipe. The variable TEXTUAL_DRIVER names it to Textual."""

    def write(self, data: str) -> None:
        """Write `data`, with half a surrogate pair replaced, since it cannot be encoded."""
        super().write(join_surrogates(data))

    def start_application_mode(self) -> None:
        super().start_application_mode()
        self._app.call_later(self._app.post_message, events.AppFocus())

    def on_meta(self, packet_type: str, payload: dict[str, object]) -> None:
        """Process the page's messages, except that it lost the focus: its keys are shown all the time."""
        if packet_type != "blur":
            super().on_meta(packet_type, payload)

    def run_input_thread(self) -> None:
        try:
            self._read_packets()
        except _ExitInput:
            pass
        except Exception as problem:
            self._app.call_later(self._app._handle_exception, problem)
        finally:
            self._input_reader.close()
            self._app.post_message(messages.ExitApp())

    def _read_packets(self) -> None:
        """Process packets until the pipe ends. Empty data is a tick."""
        packets, reader = ByteStream(), KeyReader()
        for data in self._input_reader:
            for kind, payload in packets.feed(data) if data else ():
                if kind == "D":
                    for event in reader.feed(payload):
                        self.process_message(event)
                else:
                    self._on_meta(kind, payload)
            for event in reader.tick():
                self.process_message(event)
        reader.close()
