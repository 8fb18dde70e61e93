"""The characters for bars, graphs and large digits, in Unicode or in ASCII.

Pure: numbers in, strings out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from eaglelocal.core.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """A set of characters to draw with."""

    levels: str  # of a cell of a graph, from lowest to highest
    full: str
    parts: str  # of the last cell of a bar, from thin to almost full
    empty: str  # of the rest of a bar, which shows where its end would be
    rule: str
    dot: str  # between figures
    degrees: str
    up: str
    down: str
    digits: dict[str, tuple[str, str, str]] = field(repr=False)  # the font of large figures; empty: none

    def draw_bar(self, share: float, width: int) -> tuple[str, str]:
        """Return a bar of `width` cells in two parts: filled from the left by `share` (0 to 1), and the rest."""
        share = min(max(share, 0.0), 1.0)
        steps = round(share * width * (len(self.parts) + 1))
        whole, part = divmod(steps, len(self.parts) + 1)
        drawn = self.full * whole + (self.parts[part - 1] if part else "")
        return drawn, self.empty * (width - len(drawn))

    def draw_graph(self, values: Sequence[float | None], width: int, height: int, *, top: float) -> list[str]:
        """Return the rows, from above, of a graph of the last `width` values, the newest rightmost.

        `top` is the value that fills all rows. Zero is the lowest level of the lowest row; None is a gap.
        """
        shown = values[-width:] if width > 0 else ()
        steps = [None if value is None else self._count_steps(value, height, top) for value in shown]
        return ["".join(self._draw_cell(step, row) for step in steps).rjust(width) for row in range(height)[::-1]]

    def _count_steps(self, value: float, height: int, top: float) -> int:
        share = min(max(value / top, 0.0), 1.0) if top > 0 else 0.0
        return round(share * height * len(self.levels))

    def _draw_cell(self, steps: int | None, row: int) -> str:
        """Return the character of a value in the row `row`, counted from below."""
        if steps is None:
            return " "
        level = steps - row * len(self.levels)
        if level <= 0:
            return " " if row else self.levels[0]
        return self.levels[min(level, len(self.levels)) - 1]

    def draw_large(self, text: str) -> tuple[str, str, str]:
        """Return the text in large digits, as three rows; other characters as they are, in the last one."""
        rows = zip(*(self.digits.get(char, (" ", " ", char)) for char in text), strict=True)
        joined = [" ".join(row) for row in rows]
        return (joined[0], joined[1], joined[2]) if joined else ("", "", "")


def parse_digits(*rows: str) -> dict[str, tuple[str, str, str]]:
    """Return a font from three rows with ten digits and a dash, each three cells wide with one between; and a dot."""
    marks = {
        char: (rows[0][i : i + 3], rows[1][i : i + 3], rows[2][i : i + 3])
        for i, char in zip(range(0, 44, 4), "0123456789-", strict=True)
    }
    return {**marks, " ": (" ", " ", " "), ".": (" ", " ", "▀")}


UNICODE = Glyphs(
    levels="▁▂▃▄▅▆▇█",
    full="━",  # bars below each other have a gap between them: full blocks would be a wall
    parts="╸",
    empty="─",
    rule="─",
    dot="·",
    degrees="°C",
    up="▲",
    down="▼",
    digits=parse_digits(
        "█▀█ ▄█  ▀▀█ ▀▀█ █ █ █▀▀ █▀▀ ▀▀█ █▀█ █▀█    ",
        "█ █  █  █▀▀ ▀▀█ ▀▀█ ▀▀█ █▀█   █ █▀█ ▀▀█ ▀▀▀",
        "▀▀▀ ▀▀▀ ▀▀▀ ▀▀▀   ▀ ▀▀▀ ▀▀▀   ▀ ▀▀▀ ▀▀▀    ",
    ),
)
ASCII = Glyphs(
    levels="_.-=+*#@",
    full="#",
    parts="",
    empty=".",
    rule="-",
    dot="|",
    degrees="C",
    up="^",
    down="v",
    digits={},  # three rows of ASCII would not make readable digits
)
