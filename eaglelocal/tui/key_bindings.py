"""The actions that users may bind to keys of their own, on any screen, and the chat's keys as /help lists them.

Each screen defines its bindings. Loads no Textual, so an unknown name is reported before a screen opens.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from eaglelocal.tui.display_options import DisplayOptions, check_keys

CHAT_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "enter": "send; alt+enter, shift+enter, ctrl+j or \\ and enter: begin a new line",
        "escape": "stop the answer, or take back waiting questions",
        "up, down": "show earlier questions, on the first and last line",
        "page up, page down": "scroll the conversation; ctrl+end: go to its end",
        "tab": "complete a command",
        "ctrl+r": "find an earlier question",
        "f6, f3": "ask the last question again; edit it first",
        "ctrl+n, ctrl+o": "begin a new conversation; open a saved one",
        "f4, f5": "change system message and sampling; model and draft",
        "f2": "show or hide the panel",
        "f9": "mark drafted text",
        "ctrl+t": "unfold or fold thoughts",
        "f8, ctrl+c": "copy the last answer; the selected text",
        "ctrl+g": "edit the question in $EDITOR",
        "ctrl+z, ctrl+_": "go to the shell (fg returns); undo typing",
        "ctrl+p": "find commands by name",
        "ctrl+q, ctrl+d": "leave",
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
    """Raise UsageError for keys of actions that no screen has; all screens share the config file."""
    check_keys(display_options.keys, CHAT_ACTIONS | MONITOR_ACTIONS)
