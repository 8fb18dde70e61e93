"""The characters for bars, sparklines and large digits, in Unicode or in ASCII.

Pure: numbers in, strings out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """A set of characters to draw with."""

    levels: str  # of a sparkline, from lowest to highest
    full: str
    parts: str  # of the last cell of a bar, from thin to almost full
    empty: str
    rule: str
    times: str
    dot: str  # between figures
    degrees: str
    up: str
    down: str
    digits: dict[str, tuple[str, str, str]] = field(repr=False)

    def draw_bar(self, share: float, width: int) -> str:
        """Return a bar of `width` cells, filled from the left by `share` (0 to 1)."""
        share = min(max(share, 0.0), 1.0)
        steps = round(share * width * (len(self.parts) + 1))
        whole, part = divmod(steps, len(self.parts) + 1)
        drawn = self.full * whole + (self.parts[part - 1] if part else "")
        return drawn + self.empty * (width - len(drawn))

    def draw_sparkline(self, values: Sequence[float | None], width: int, *, top: float) -> str:
        """Return a sparkline of the last `width` values, newest rightmost, `top` the highest level; None is a gap."""
        shown = values[-width:] if width > 0 else ()
        return "".join(self._level(value, top) for value in shown).rjust(width)

    def _level(self, value: float | None, top: float) -> str:
        if value is None:
            return " "
        share = min(max(value / top, 0.0), 1.0) if top > 0 else 0.0
        return self.levels[round(share * (len(self.levels) - 1))]

    def draw_large(self, text: str) -> tuple[str, str, str]:
        """Return the text in large digits, as three rows."""
        rows = zip(*(self.digits.get(char, (" ", " ", char)) for char in text), strict=True)
        joined = [" ".join(row) for row in rows]
        return (joined[0], joined[1], joined[2]) if joined else ("", "", "")


def parse_digits(*rows: str) -> dict[str, tuple[str, str, str]]:
    """Return a font from three rows with ten digits and a dash, each three cells wide with one between."""
    marks = {
        char: (rows[0][i : i + 3], rows[1][i : i + 3], rows[2][i : i + 3])
        for i, char in zip(range(0, 44, 4), "0123456789-", strict=True)
    }
    return {**marks, " ": (" ", " ", " ")}


UNICODE = Glyphs(
    levels="▁▂▃▄▅▆▇█",
    full="█",
    parts="▏▎▍▌▋▊▉",
    empty=" ",
    rule="─",
    times="×",
    dot="·",
    degrees="°C",
    up="▲",
    down="▼",
    digits=parse_digits(
        "┏━┓  ╻  ╺━┓ ╺━┓ ╻ ╻ ┏━╸ ┏━╸ ╺━┓ ┏━┓ ┏━┓    ",
        "┃ ┃  ┃  ┏━┛  ━┫ ┗━┫ ┗━┓ ┣━┓   ┃ ┣━┫ ┗━┫ ╺━╸",
        "┗━┛  ╹  ┗━╸ ╺━┛   ╹ ╺━┛ ┗━┛   ╹ ┗━┛ ╺━┛    ",
    ),
)
ASCII = Glyphs(
    levels="_.-=+*#@",
    full="#",
    parts="",
    empty=".",
    rule="-",
    times="x",
    dot="|",
    degrees="C",
    up="^",
    down="v",
    digits=parse_digits(
        " _       _   _       _   _   _   _   _     ",
        "| |   |  _|  _| |_| |_  |_    | |_| |_|  _ ",
        "|_|   | |_   _|   |  _| |_|   | |_|  _|    ",
    ),
)
