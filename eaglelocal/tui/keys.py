"""The keys of the chat screen as /help tells them. What they do is bound in chat.py, where users may bind others."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CHAT_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "enter": "sends; shift+enter or ctrl+j begins a new line",
        "escape": "stops the answer, or takes back what waits",
        "up, down": "earlier questions, at the first and last line",
        "page up, page down": "through the conversation; ctrl+end goes to its end",
        "tab": "completes a command",
        "ctrl+r, f3": "asks the last question again; changes it first",
        "ctrl+n, ctrl+o": "a new conversation; the ones on disk",
        "f4, f5": "system message and sampling; model and draft",
        "f2": "the panel of speculation",
        "f9": "marks what was drafted and accepted",
        "ctrl+t": "unfolds and folds thoughts",
        "f8, ctrl+c": "copies the last answer; what the mouse marked",
        "ctrl+g": "opens the question in $EDITOR",
        "ctrl+p": "everything there is, by name",
        "ctrl+q, ctrl+d": "leaves",
    }
)
