"""The user's choices for all screens: theme, glyphs, colors and keys, and the actions that keys may be bound to.

Each screen defines its bindings. Loads no Textual, so an unknown name is reported before a screen opens.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from eaglelocal import locations
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import is_utf8
from eaglelocal.errors import UsageError
from eaglelocal.settings import DEFAULT, Settings, write_setting
from eaglelocal.tui.glyphs import ASCII, UNICODE, Glyphs


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayOptions:
    """The appearance and keys that the user chose.

    theme           dark, light, contrast or terminal (the terminal's own colors)
    has_figures     show a line of figures below each answer
    notifies        notify of a long answer's end while the terminal has not the focus
    keys            (action, comma-separated keys), in place of the default ones
    theme_file      the config file in which a theme chosen on a screen is kept; None: it is not
    theme_variable  the variable that overrides it
    """

    theme: str = "dark"
    glyphs: Glyphs = UNICODE
    has_color: bool = True
    has_figures: bool = True
    notifies: bool = True
    keys: tuple[tuple[str, str], ...] = ()
    theme_file: Path | None = None
    theme_variable: str = ""

    def keep_theme(self, name: str) -> str:
        """Keep a theme for later starts and say how. Raises EagleLocalError if the config file cannot be changed."""
        if self.theme_file is None:
            return "until this screen is left"
        write_setting(self.theme_file, "theme", name)
        return f"kept, but {self.theme_variable} decides at the next start" if self.theme_variable else "kept"


def make_display_options(settings: Settings, environ: Mapping[str, str] = os.environ) -> DisplayOptions:
    config_file, origin = locations.config_file(), settings.origins()["theme"]
    is_unicode = settings.glyphs == "unicode" or (settings.glyphs == "auto" and is_utf8(environ))
    return DisplayOptions(
        theme=settings.theme,
        glyphs=UNICODE if is_unicode else ASCII,
        has_color=settings.colour != "never",
        has_figures=settings.figures,
        notifies=settings.notify,
        keys=settings.keys,
        theme_file=config_file,
        theme_variable="" if origin in (DEFAULT, str(config_file)) else origin,
    )


# ---- keys
CHAT_PURPOSES: Mapping[str, str] = MappingProxyType(  # by the id of a binding, as the help lists them
    {
        "send": "send; after a \\ begin a new line",
        "newline": "begin a new line",
        "stop": "stop the answer, take back questions, or stop a download",
        "stand_up": "stand on the turn or code block above",
        "stand_down": "stand on the turn or code block below",
        "older": "show an earlier question",
        "newer": "show a later question",
        "page_up": "scroll the conversation up",
        "page_down": "scroll the conversation down",
        "top": "go to the start of the conversation",
        "end": "go to the end, and follow it",
        "complete": "take a row of the menu",
        "search": "find an earlier question",
        "retry": "ask the last question again",
        "edit": "change the last question and ask again",
        "new": "begin a new conversation",
        "talks": "open a saved conversation",
        "settings": "change system message and sampling",
        "model": "change model and draft",
        "panel": "show or hide the panel",
        "tint": "mark drafted text",
        "thoughts": "unfold or fold thoughts and long questions",
        "copy_answer": "copy the last answer",
        "interrupt": "copy the selection, stop, or leave",
        "editor": "edit the question in $EDITOR",
        "suspend": "go to the shell (fg returns)",
        "undo": "undo typing",
        "undo_summary": "send the summarized turns again, as /undo does",
        "help": "show this list",
        "delete_or_leave": "delete a character, or leave",
        "leave": "leave",
    }
)
TURN_PURPOSES: Mapping[str, str] = MappingProxyType(  # while one stands on a turn
    {
        "older_turn": "on a turn: go to the one above",
        "newer_turn": "on a turn: go to the one below",
        "copy_turn": "on a turn: copy the question, the answer or the code",
        "edit_turn": "on a turn: change its question and ask again",
        "ask_again": "on a turn: ask again, and keep both answers",
        "branch": "on a turn: begin a new conversation with the turns so far",
        "older_version": "on a turn: show its version before",
        "newer_version": "on a turn: show its next version",
        "leave_turn": "on a turn: go back to the prompt",
    }
)
CHAT_DIALOG_ACTIONS = frozenset({"close", "leave", "rename", "delete", "export", "save"})
CHAT_ACTIONS = frozenset({*CHAT_DIALOG_ACTIONS, *CHAT_PURPOSES, *TURN_PURPOSES})
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
