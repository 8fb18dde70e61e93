"""Reads text files from untrusted sources; an error about a byte that is not UTF-8 names its line."""

from __future__ import annotations

import codecs
from pathlib import Path


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
