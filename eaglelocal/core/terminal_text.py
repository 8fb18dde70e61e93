"""Cleans texts for a terminal: no text from outside may control it, and a simple one gets only lines.

Replaced are control characters, halves of surrogate pairs, and characters that change the order of the text around
them, with which a name can be shown as another one. Letters of every script, emoji and marks of direction stay. Pure.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from eaglelocal.core.surrogates import REPLACED

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
    """Return a text that is laid out already: what takes no cell, as all of the above, is removed."""
    return text if text.isprintable() else text.translate(_CELLS)


def escape_in_json(text: str) -> str:
    """Return a JSON text with the characters that a terminal could obey as escapes: the same value."""
    return text.translate(_ESCAPES)


def can_move_cursor(environ: Mapping[str, str]) -> bool:
    """Return whether the terminal, if there is one, can redraw a line and show colours, by the variable TERM."""
    return os.name == "nt" or environ.get("TERM", "") not in ("", "dumb")
