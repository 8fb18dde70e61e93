"""The actions that users may bind to keys of their own, on any screen, and what the chat's are for.

Each screen defines its bindings. Loads no Textual, so an unknown name is reported before a screen opens.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from eaglelocal.errors import UsageError
from eaglelocal.tui.display_options import DisplayOptions

CHAT_PURPOSES: Mapping[str, str] = MappingProxyType(  # by the id of a binding, as the help lists them
    {
        "send": "send; after a \\ begin a new line",
        "newline": "begin a new line",
        "stop": "stop the answer, take back questions",
        "older": "show an earlier question",
        "newer": "show a later question",
        "page_up": "scroll the conversation up",
        "page_down": "scroll the conversation down",
        "top": "go to the start of the conversation",
        "end": "go to the end, and follow it",
        "complete": "complete a command",
        "search": "find an earlier question",
        "retry": "ask the last question again",
        "edit": "change the last question and ask again",
        "new": "begin a new conversation",
        "talks": "open a saved conversation",
        "settings": "change system message and sampling",
        "model": "change model and draft",
        "panel": "show or hide the panel",
        "tint": "mark drafted text",
        "thoughts": "unfold or fold thoughts",
        "copy_answer": "copy the last answer",
        "interrupt": "copy the selection, stop, or leave",
        "editor": "edit the question in $EDITOR",
        "suspend": "go to the shell (fg returns)",
        "undo": "undo typing",
        "help": "show this list",
        "delete_or_leave": "delete a character, or leave",
        "leave": "leave",
    }
)
CHAT_DIALOG_ACTIONS = frozenset({"close", "leave", "rename", "delete", "export", "save"})
CHAT_ACTIONS = frozenset({*CHAT_DIALOG_ACTIONS, *CHAT_PURPOSES})
MONITOR_ACTIONS = frozenset(
    {
        "quit", "pause", "sort", "reverse", "filter", "cancel", "drafting", "log", "clear", "up", "down",
        "first", "last", "help", "open",
    }
)  # fmt: skip


def check_display_options(display_options: DisplayOptions) -> None:
    """Raise UsageError for keys of actions that no screen has; all screens share the config file."""
    known = sorted(CHAT_ACTIONS | MONITOR_ACTIONS)
    for action, _ in display_options.keys:
        if action not in known:
            near = difflib.get_close_matches(action, known, n=1)
            suggestion = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"keys: unknown action {action!r}", hint=f"{suggestion}actions: {', '.join(known)}")
