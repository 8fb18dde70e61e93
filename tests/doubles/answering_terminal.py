"""A program on a pty whose terminal answers as a modern one does: it keeps modes, reports them, and sends clicks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from doubles.pty_program import PtyProgram

SWITCH = re.compile(rb"\x1b\[\?([\d;]+)(h|l|\$p)|\x1b\[(>\d+|<\d*)u|\x1b\]22;(\w+)\x07")
CURSOR, ALTERNATE, SYNC, RESIZE, PIXELS = 25, 1049, 2026, 2048, 1016
AT_FIRST = {7: True, CURSOR: True}  # modes that a terminal has on
CELL = (8, 16)  # pixels


class AnsweringTerminal(PtyProgram):
    """A terminal that knows the modes of `knows` and those that need no answer; it begins with those of `on_before`.

    cell  size of a character in its reports; (0, 0): it does not know it
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        size: tuple[int, int] = (80, 24),
        knows: Sequence[int] = (SYNC, RESIZE, PIXELS),
        on_before: Sequence[int] = (),
        cell: tuple[int, int] = CELL,
    ) -> None:
        self._size, self._knows, self._cell = size, frozenset(knows), cell
        self.modes = AT_FIRST | dict.fromkeys(on_before, True)
        self.pointer = "default"
        self.num_keyboards = 0  # of the kitty protocol, pushed and not popped
        self._read_to = 0
        super().__init__(command, environ, size=size)

    def read(self, wait_s: float = 0.2) -> bool:
        has_read = super().read(wait_s)
        for found in SWITCH.finditer(self.raw, self._read_to):
            self._read_to = found.end()
            self._obey(found)
        return has_read

    @property
    def left_on(self) -> dict[str, object]:
        """What is not as it was in a fresh terminal."""
        changed: dict[str, object] = {
            str(mode): is_on for mode, is_on in self.modes.items() if is_on != AT_FIRST.get(mode, False)
        }
        others = {"keyboards": self.num_keyboards, "pointer": self.pointer != "default", "tty": not self.is_mended}
        return changed | {name: value for name, value in others.items() if value}

    def click(self, column: int, row: int) -> None:
        """Press and release the mouse button in a cell, counted from 0."""
        self._send_mouse(0, column, row, "Mm")

    def point(self, column: int, row: int) -> None:
        """Move the mouse to a cell."""
        self._send_mouse(35, column, row, "M")

    def _send_mouse(self, button: int, column: int, row: int, ends: str) -> None:
        if self.modes.get(PIXELS):
            width, height = (size or real for size, real in zip(self._cell, CELL, strict=True))
            column, row = column * width + width // 2, row * height + height // 2
        for end in ends:
            self.type(f"\x1b[<{button};{column + 1};{row + 1}{end}".encode())

    def _obey(self, found: re.Match[bytes]) -> None:
        numbers, what, keyboard, pointer = found.groups()
        self.pointer = pointer.decode() if pointer else self.pointer
        if keyboard:
            self.num_keyboards += 1 if keyboard.startswith(b">") else -1
            return
        for mode in map(int, numbers.split(b";") if numbers else ()):
            if what == b"$p":
                state = (1 if self.modes.get(mode) else 2) if mode in self._knows else 0
                self.type(f"\x1b[?{mode};{state}$y".encode())
            elif mode not in (RESIZE, PIXELS) or mode in self._knows:
                self._switch(mode, is_on=what == b"h")

    def _switch(self, mode: int, *, is_on: bool) -> None:
        was_on, self.modes[mode] = self.modes.get(mode, False), is_on
        if mode == RESIZE and is_on and not was_on:
            (width, height), (cell_width, cell_height) = self._size, self._cell
            self.type(f"\x1b[48;{height};{width};{height * cell_height};{width * cell_width}t".encode())
