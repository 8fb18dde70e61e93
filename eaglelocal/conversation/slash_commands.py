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
class SlashHelp:
    """A line of /help: the arguments of a command, and its purpose."""

    arguments: str
    purpose: str


COMMANDS: dict[str, SlashHelp] = {
    "/help": SlashHelp("", "show this list"),
    "/stats": SlashHelp("", "show statistics of this session and of the engine"),
    "/spec": SlashHelp("[auto|off|pid|N]", "set the draft length: as long as it pays off, none, or N tokens"),
    "/set": SlashHelp("[NAME VALUE]", "set a sampling parameter, or list them all"),
    "/system": SlashHelp("[TEXT]", 'set the system message; "" removes it'),
    "/clear": SlashHelp("", "clear the conversation, but keep the system message"),
    "/retry": SlashHelp("", "ask the last question again"),
    "/image": SlashHelp("[PATH|none]", "attach a picture to the next question"),
    "/copy": SlashHelp("[code]", "copy the last answer, or its last code block"),
    "/save": SlashHelp("[NAME]", "save the conversation"),
    "/load": SlashHelp("[NAME]", "continue a saved conversation, or list them"),
    "/rename": SlashHelp("NAME", "rename the saved conversation"),
    "/delete": SlashHelp("NAME", "delete a saved conversation"),
    "/export": SlashHelp("[FILE]", "write the conversation to a Markdown file"),
    "/model": SlashHelp("[REF]", "show or change the model"),
    "/draft": SlashHelp("[auto|ngram|mtp|none|REF]", "show or change the draft"),
    "/exit": SlashHelp("", "leave the chat, as ctrl-d and /bye do"),
}
OTHER_NAMES: Mapping[str, str] = {  # names of the same commands in other programs
    "/": "/help",
    "/?": "/help",
    "/bye": "/exit",
    "/quit": "/exit",
}

LINE_KEYS: Mapping[str, str] = {
    '"""': "begin and end a text of several lines",
    "alt-enter, \\ at the end": "continue the text on the next line",
    "ctrl-c": "stop the answer; pressed twice, leave the chat",
    "ctrl-d": "leave the chat",
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
        raise UsageError(f"unknown command {name}", hint=f"{near}/help; to send it as text, put a blank in front")
    if argument and not COMMANDS[name].arguments:
        raise UsageError(f"{name} takes no argument, not {argument!r}", hint=name)
    return Command(name, argument)


def help_lines(keys: Mapping[str, str]) -> list[str]:
    """Return the lines of /help: the commands, then the keys of the mode."""
    commands = [f"{name} {slash.arguments}".ljust(HELP_COLUMN) + slash.purpose for name, slash in COMMANDS.items()]
    return [*commands, "", *(key.ljust(HELP_COLUMN) + purpose for key, purpose in keys.items())]
