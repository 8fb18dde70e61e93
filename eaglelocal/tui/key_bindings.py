"""The actions that users may bind to keys of their own, on any screen, and the chat's keys as /help lists them.

Each screen defines its bindings. Loads no Textual, so that a wrong name is reported before a screen opens.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from eaglelocal.tui.display_options import DisplayOptions, check_keys

CHAT_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "enter": "sends; alt+enter, shift+enter, ctrl+j or \\ before it: a new line",
        "escape": "stops the answer, or takes back what waits",
        "up, down": "earlier questions, at the first and last line",
        "page up, page down": "through the conversation; ctrl+end goes to its end",
        "tab": "completes a command",
        "ctrl+r": "looks for an earlier question by its words",
        "f6, f3": "asks the last question again; changes it first",
        "ctrl+n, ctrl+o": "a new conversation; the ones on disk",
        "f4, f5": "system message and sampling; model and draft",
        "f2": "the panel of speculation",
        "f9": "marks what was drafted and accepted",
        "ctrl+t": "unfolds and folds thoughts",
        "f8, ctrl+c": "copies the last answer; what the mouse marked",
        "ctrl+g": "opens the question in $EDITOR",
        "ctrl+z, ctrl+_": "back to the shell (fg returns); takes back what was typed",
        "ctrl+p": "everything there is, by name",
        "ctrl+q, ctrl+d": "leaves",
    }
)

CHAT_ACTIONS = frozenset(
    {
        "send", "newline", "suspend", "undo", "complete", "older", "newer", "delete_or_leave", "interrupt", "page_up",
        "page_down", "top", "end", "help", "stop", "panel", "retry", "search", "edit", "new", "talks", "settings",
        "model", "copy_answer", "tint", "thoughts", "editor", "leave", "close", "rename", "delete", "export",
        "save",
    }
)  # fmt: skip
MONITOR_ACTIONS = frozenset(
    {
        "quit", "pause", "sort", "reverse", "filter", "cancel", "drafting", "log", "clear", "up", "down",
        "first", "last",
    }
)  # fmt: skip


def check_display_options(display_options: DisplayOptions) -> None:
    """Raise UsageError for keys of actions that no screen has; the config file is common to all screens."""
    check_keys(display_options.keys, CHAT_ACTIONS | MONITOR_ACTIONS)
