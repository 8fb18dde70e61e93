"""A Textual driver for terminals that fixes Textual's own: its input threads, its handling of bytes, and its output.

A terminal that closes sends SIGCONT, as does `kill -CONT`. Textual's own driver takes each for an `fg` and starts
another reading thread, but ends only the last one. The other threads never end, and spin once the terminal is gone.
It also suspends and resumes inside the signal's handler: if that interrupts a write, both wait for the queue's lock for
good. Here the event loop does both, between two of its calls.

It also ends the app at a byte that is not UTF-8, spins at the end of its input, draws on stderr even if that is a file,
believes COLUMNS rather than the terminal, and takes an Enter that was pressed before the screen was there for a Ctrl+J:
until then the terminal turns carriage returns into line feeds. A terminal that reads nothing, such as one of a stalled
ssh, stops it for good. And where a terminal can report its size in band, it asks for a mouse that reports pixels, and
believes in it: the modes may be known one without the other, on already, or the size of a character 0. Here the mouse
reports cells, and the size comes with SIGWINCH.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import select
import signal
import sys
import termios
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import TextIO

from textual import messages
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from eaglelocal.core.terminal_text import join_surrogates
from eaglelocal.tui.terminal.key_reader import KeyReader

READ_BYTES = 4096
TICK_S = 0.1
END_S = 2.0  # for a terminal to read what restores it
MAX_DISCARDS = 20  # times that the terminal's buffer is emptied for the rest of one frame
MAX_CELLS = 10_000  # columns or rows
NO_PIXELS, NO_SIZES, NO_SYNC, POINTER = "\x1b[?1016l", "\x1b[?2048l", "\x1b[?2026l", "\x1b]22;default\x07"


class TerminalDriver(LinuxDriver):
    """The driver of screens on a terminal."""

    _is_suspended = False
    _is_resuming = False  # about to, after SIGCONT
    _is_behind = False  # output was lost, and some waits
    _restoring: list[str] | None = None  # what is being written to restore the terminal
    _restored_by = ""

    def __init__(
        self, app: App[object], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        if not _is_terminal(self._file) and _is_terminal(sys.__stdout__):
            self._file = sys.__stdout__
        if self._file is not None:  # a file of its own: at exit Python waits for the lock of stderr
            descriptor = os.dup(self._file.fileno())
            self._file = open(descriptor, "w", encoding=self._file.encoding, errors=self._file.errors)  # noqa: SIM115
        self._size = size or self._get_terminal_size()

    def write(self, data: str) -> None:
        """Queue `data`, with half a surrogate pair replaced: it cannot be encoded and would end the drawing thread.

        If the queue is full, because the terminal reads nothing, `data` is lost; see `is_behind`.
        """
        if self._restoring is not None:
            self._restoring.append(data)
            return
        try:
            self._queue.put_nowait(join_surrogates(data))
        except Full:
            self._is_behind = True

    def start_application_mode(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTSTP, self._sigtstp_application)
        loop.add_signal_handler(signal.SIGCONT, self._resume_soon)
        self._is_behind = False
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def _resume_soon(self) -> None:
        """Handle SIGCONT; several that wait are one."""
        if not self._is_resuming:
            self._is_resuming = True
            asyncio.get_running_loop().call_soon(self._resume_now)

    def _resume_now(self) -> None:
        self._is_resuming = False
        self._sigcont_application()

    @property
    def is_behind(self) -> bool:
        """True if output was lost and nothing can be drawn yet. Later the app is asked to draw everything."""
        self._catch_up()
        return self._is_behind

    @property
    def _queue(self) -> Queue[str | None]:
        assert self._writer_thread is not None, "the driver is not in application mode"
        return self._writer_thread._queue

    def _catch_up(self) -> None:
        if self._is_behind and self._queue.empty():
            self._is_behind = False
            self._app.call_later(self._app.refresh, layout=True)

    def _query_in_band_window_resize(self) -> None:
        """Switch off the modes that are not used: a killed program may have left them on."""
        self.write(NO_PIXELS + NO_SIZES)

    def stop_application_mode(self) -> None:
        """Switch off all modes. Frames that wait for the terminal are dropped."""
        self._restoring = [NO_SYNC, POINTER]  # which Textual leaves as they are
        super().stop_application_mode()
        self._restored_by, self._restoring = "".join(self._restoring), None
        with suppress(Empty):
            while True:
                self._queue.get_nowait()
        self.write(self._restored_by)

    def close(self) -> None:
        """Write what is queued. A terminal that reads nothing for END_S loses the rest of its frame."""
        writer = self._writer_thread
        if writer is None or writer.ident is None:
            return
        with suppress(Full):
            self._queue.put_nowait(None)
        writer.join(END_S)
        is_stuck = writer.is_alive()
        signal.signal(signal.SIGWINCH, lambda number, frame: None)  # a signal without handler interrupts no write
        for _ in range(MAX_DISCARDS):
            if writer.is_alive():
                self._discard_output()
                signal.pthread_kill(writer.ident, signal.SIGWINCH)  # it writes on, as there is room again
                writer.join(TICK_S)
        if is_stuck and not writer.is_alive() and self._file is not None:
            self._discard_output()
            self._file.write(self._restored_by)
            self._file.flush()

    def _discard_output(self) -> None:
        with suppress(OSError, termios.error):
            termios.tcflush(self.fileno, termios.TCOFLUSH)

    def suspend_application_mode(self) -> None:
        super().suspend_application_mode()
        self._is_suspended = True

    def resume_application_mode(self) -> None:
        if self._is_reading and os.isatty(self.fileno):  # after a SIGSTOP the shell has changed the terminal
            self.suspend_application_mode()
            self._must_signal_resume = True  # so that everything is redrawn
        if self._is_suspended:
            super().resume_application_mode()
            self._is_suspended = not self._is_reading  # a background process may not read yet

    def run_input_thread(self) -> None:
        """Read keys until the driver stops. A lost terminal ends the app; the end of a file or /dev/null does not."""
        reader, num_early = KeyReader(), count_waiting_bytes(self.fileno)
        while not self.exit_event.is_set():
            if select.select([self.fileno], [], [], TICK_S)[0]:
                data = self._read()
                if not data:
                    if self.input_tty:
                        self._app.post_message(messages.ExitApp())
                    break
                early, num_early = data[:num_early], max(num_early - len(data), 0)
                for event in reader.feed(early.replace(b"\n", b"\r") + data[len(early) :]):
                    self.process_message(event)
            for event in reader.tick():
                self.process_message(event)
            self._catch_up()  # a screen that does not change would not notice
        reader.close()

    def _read(self) -> bytes:
        with suppress(OSError):  # EIO: the terminal is closed
            return os.read(self.fileno, READ_BYTES)
        return b""

    def _get_terminal_size(self) -> tuple[int, int]:
        try:
            width, height = os.get_terminal_size(self._file.fileno() if self._file is not None else self.fileno)
        except (OSError, ValueError):
            width, height = super()._get_terminal_size()
        return min(width or 80, MAX_CELLS), min(height or 24, MAX_CELLS)

    @property
    def _is_reading(self) -> bool:
        return self._key_thread is not None and self._key_thread.is_alive()


def count_waiting_bytes(descriptor: int) -> int:
    """Return how many typed bytes are still unread; 0 if the descriptor is not a terminal."""
    number = array.array("i", [0])
    with suppress(OSError):
        if os.isatty(descriptor):
            fcntl.ioctl(descriptor, termios.FIONREAD, number)
    return number[0]


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()
