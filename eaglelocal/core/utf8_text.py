"""Reading text files that anyone may have written: a byte that is no UTF-8 is told with its line."""

from __future__ import annotations

import codecs
from pathlib import Path


class FaultInLine(ValueError):
    """What is wrong with a text, and the line where it is; 0 where that is not known."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.line = line


def read_text_file(path: Path) -> str:
    """The text of a file, its lines ended by newlines; a byte order mark in front is dropped.

    Raises OSError, and FaultInLine where it is not UTF-8.
    """
    raw = path.read_bytes().removeprefix(codecs.BOM_UTF8)  # read once: it may be a pipe
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FaultInLine(f"byte 0x{raw[error.start]:02x} is not UTF-8", line) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def place_of(path: Path, error: Exception) -> str:
    """`FILE, line N` of a FaultInLine; else the file alone."""
    return f"{path}, line {error.line}" if isinstance(error, FaultInLine) and error.line else str(path)
