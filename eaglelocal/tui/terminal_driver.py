"""Textual's driver for terminals, which reads keys in one thread only.

A terminal that closes sends SIGCONT, as does `kill -CONT`; Textual's own takes each for an `fg` and reads in one thread
more, of which it ends but the last. What is left never ends, and spins once the terminal is gone.
"""

from __future__ import annotations

import os

from textual.drivers.linux_driver import LinuxDriver


class TerminalDriver(LinuxDriver):
    _is_suspended = False

    def suspend_application_mode(self) -> None:
        super().suspend_application_mode()
        self._is_suspended = True

    def resume_application_mode(self) -> None:
        if self._is_reading and os.isatty(self.fileno):  # after a SIGSTOP: the shell has set the terminal meanwhile
            self.suspend_application_mode()
            self._must_signal_resume = True  # and all is drawn anew
        if self._is_suspended:
            super().resume_application_mode()
            self._is_suspended = not self._is_reading  # in the background it may not read yet

    @property
    def _is_reading(self) -> bool:
        return self._key_thread is not None and self._key_thread.is_alive()
