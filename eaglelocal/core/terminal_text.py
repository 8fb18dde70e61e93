"""Clean the text written to a terminal: outside text must not control it, and a simple terminal gets only lines.

Control characters, halves of surrogate pairs, and characters that reorder the text around them (which can disguise
names) are replaced. Letters of every script, emoji and marks of direction stay. Pure.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Mapping
from pathlib import Path

from eaglelocal.core.records import dataclass

# ---- halves of UTF-16 surrogate pairs: JSON can spell them, and Python reads file names with them
#
# Two halves form one character; a single half does not, and cannot be encoded.
HALVES = re.compile("[\ud800-\udfff]")
REPLACED = dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}")  # for str.translate
FIRST_HALF = re.compile("[\ud800-\udbff]$")


def join_surrogates(text: str) -> str:
    """Return the text with pairs of halves joined to characters; a single half becomes U+FFFD."""
    if not HALVES.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def make_printable(text: str) -> str:
    """Return the text as one line: line ends, other control characters and halves of surrogate pairs become U+FFFD.

    >>> make_printable("x\\nevil: yes")
    'x�evil: yes'
    """
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def join_in_json(value: object) -> object:
    """Return a JSON value with `join_surrogates` applied to all its texts, member names too."""
    match value:
        case str():
            return join_surrogates(value)
        case list():
            return [join_in_json(one) for one in value]
        case dict():
            return {join_surrogates(name): join_in_json(one) for name, one in value.items()}
    return value


@dataclass(slots=True)
class SurrogateJoiner:
    """A streaming `join_surrogates`: a first half at the end of a part waits for the next part."""

    _pending: str = ""

    def feed(self, text: str) -> str:
        text = self._pending + text
        at = len(text) - 1 if FIRST_HALF.search(text) else len(text)
        self._pending = text[at:]
        return join_surrogates(text[:at])

    def finish(self) -> str:
        """Return the text that is still waiting for a second half."""
        pending, self._pending = self._pending, ""
        return join_surrogates(pending)


# ---- terminal text
CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
REORDERING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # embeddings, overrides and isolates
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LINE = dict.fromkeys(CONTROLS, REPLACEMENT) | dict.fromkeys(REORDERING, "") | REPLACED
_TEXT = {code: shown for code, shown in _LINE.items() if chr(code) not in "\n\t"} | {ord("\r"): ""}
_CELLS = dict.fromkeys(_LINE, "") | REPLACED
_ESCAPES = {code: f"\\u{code:04x}" for code in _LINE if code >= 0x7F}  # json escapes the others


def clean_line(text: str) -> str:
    """Return a text that stays on its line: each control character and half of a surrogate pair becomes U+FFFD."""
    return text if text.isprintable() else text.translate(_LINE)


def clean_text(text: str) -> str:
    """Return a text of several lines, cleaned as by `clean_line`. Tabs stay; carriage returns are removed."""
    return text if text.isprintable() else text.translate(_TEXT)


def clean_cells(text: str) -> str:
    """Clean a text that is laid out already: characters without a cell, such as all of the above, are removed."""
    return text if text.isprintable() else text.translate(_CELLS)


def escape_in_json(text: str) -> str:
    """Return a JSON text with the characters that a terminal could obey as escapes: the same value."""
    return text.translate(_ESCAPES)


def can_move_cursor(environ: Mapping[str, str]) -> bool:
    """Return whether the terminal, if there is one, can redraw a line and show colours, by the variable TERM."""
    return os.name == "nt" or environ.get("TERM", "") not in ("", "dumb")


# ---- text files from untrusted sources
class FaultInLine(ValueError):
    """An error in a text, with its line; 0 if unknown."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.line = line


def read_text_file(path: Path) -> str:
    """Return the text of a file with newlines normalised to LF and without a byte order mark.

    Raises OSError, and FaultInLine where it is not UTF-8.
    """
    return decode_text(path.read_bytes())  # read once: it may be a pipe


def decode_text(raw: bytes) -> str:
    """Return the text of a file's content as `read_text_file` does. Raises FaultInLine."""
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FaultInLine(f"byte 0x{raw[error.start]:02x} is not UTF-8", line) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def format_place(path: Path, error: Exception) -> str:
    """Return `FILE, line N` for a FaultInLine with a line, else the file alone."""
    return f"{path}, line {error.line}" if isinstance(error, FaultInLine) and error.line else str(path)


# ---- terminals and files that show only ASCII
PYTHON_LC_CTYPES = frozenset({"C.UTF-8", "C.utf8", "UTF-8"})  # values of LC_CTYPE that Python sets by itself (PEP 538)
IN_ASCII = str.maketrans({"█": "#", "░": ".", "━": "=", "─": "-", "·": "-", "…": "..."})  # of the signs that we write


def is_utf8(environ: Mapping[str, str]) -> bool:
    """Return True if the locale is UTF-8, or none is set: most terminals show more than ASCII then."""
    ctype = environ.get("LC_CTYPE", "")
    locale = environ.get("LC_ALL") or (ctype not in PYTHON_LC_CTYPES and ctype) or environ.get("LANG")
    return not locale or "utf8" in locale.lower().replace("-", "")
