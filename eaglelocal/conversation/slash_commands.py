"""The slash commands of chat: their names, arguments and purposes.

Pure: parses a line into a command, or raises an error with the nearest name. slash_actions runs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eaglelocal.conversation.spelling import closest_word
from eaglelocal.errors import UsageError

HELP_COLUMN = 31


@dataclass(frozen=True, slots=True)
class Slash:
    """A line of /help: the arguments of a command, and its purpose."""

    takes: str
    purpose: str


COMMANDS: dict[str, Slash] = {
    "/help": Slash("", "this list"),
    "/stats": Slash("", "figures of this session and of the engine"),
    "/spec": Slash("[auto|off|pid|N]", "draft as much as pays, not at all, or N tokens"),
    "/set": Slash("[NAME VALUE]", "sampling (temperature, top_k, seed ...), or what it is"),
    "/system": Slash("[TEXT]", 'set the system message; "" removes it'),
    "/clear": Slash("", "forget the conversation, keep the system message"),
    "/retry": Slash("", "ask the last question again"),
    "/image": Slash("[PATH|none]", "a picture for the next question"),
    "/copy": Slash("[code]", "copy the last answer, or its last code block"),
    "/save": Slash("[NAME]", "write the conversation to disk"),
    "/load": Slash("[NAME]", "go on with a saved conversation, or list them"),
    "/rename": Slash("NAME", "give the saved conversation another name"),
    "/delete": Slash("NAME", "remove a saved conversation for good"),
    "/export": Slash("[FILE]", "write the conversation as Markdown"),
    "/model": Slash("[REF]", "name the model, or change it"),
    "/draft": Slash("[auto|ngram|mtp|none|REF]", "name the draft, or change it"),
    "/exit": Slash("", "leave, as ctrl-d and /bye do"),
}
OTHER_NAMES: Mapping[str, str] = {  # names of the same commands in other programs
    "/": "/help",
    "/?": "/help",
    "/bye": "/exit",
    "/quit": "/exit",
    "/q": "/exit",
    "/new": "/clear",
    "/reset": "/clear",
    "/again": "/retry",
    "/regenerate": "/retry",
}

LINE_KEYS: Mapping[str, str] = {
    '"""': "begins and ends a text of many lines",
    "alt-enter, \\ at the end": "the text goes on in the next line",
    "ctrl-c": "stops the answer; a second one leaves",
    "ctrl-d": "leaves",
}


@dataclass(frozen=True, slots=True)
class Command:
    """A parsed slash command."""

    name: str
    argument: str = ""


def is_command(text: str) -> bool:
    """Return whether a text is a command: it begins with a slash.

    A text of several lines must name a known command; otherwise it may be, say, a comment in C.
    """
    return text.startswith("/") and ("\n" not in text or text.split()[0] in COMMANDS)


def parse_command(line: str) -> Command:
    """Parse `/spec 4` into Command("/spec", "4"). Raises UsageError with the nearest name."""
    typed, argument = (*line.strip().split(maxsplit=1), "", "")[:2]
    name = OTHER_NAMES.get(typed, typed)
    if name not in COMMANDS:
        close = closest_word(name, COMMANDS)
        near = f"{close}, or " if close else ""
        raise UsageError(f"no command {name}", hint=f"{near}/help; to send it as text, begin with a blank")
    if argument and not COMMANDS[name].takes:
        raise UsageError(f"{name} takes nothing, not {argument!r}", hint=name)
    return Command(name, argument)


def help_lines(keys: Mapping[str, str]) -> list[str]:
    """Return the lines of /help: the commands, then the keys of the mode."""
    commands = [f"{name} {slash.takes}".ljust(HELP_COLUMN) + slash.purpose for name, slash in COMMANDS.items()]
    return [*commands, "", *(key.ljust(HELP_COLUMN) + purpose for key, purpose in keys.items())]
