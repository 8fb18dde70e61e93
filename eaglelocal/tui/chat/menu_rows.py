"""The rows of the menu over the prompt, for what is typed: commands, their arguments, and the paths of files. Pure.

What the rows are chosen from (models, conversations, folders) is read by the functions of `MenuSources`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from eaglelocal.conversation.added_file import find_mention, write_mention
from eaglelocal.conversation.slash_commands import OTHER_NAMES, SlashCommand
from eaglelocal.core.records import dataclass
from eaglelocal.core.spelling import has_words


@dataclass(frozen=True, slots=True)
class MenuRow:
    """A row. `text`: what replaces the typed part; after a blank or a slash at its end, more is to be typed."""

    text: str
    name: str
    about: str = ""
    value: str = ""  # the present one
    usage: str = ""  # with its arguments
    path: str = ""  # of a file that is added when the row is chosen

    @property
    def is_complete(self) -> bool:
        return not self.text.endswith((" ", "/"))


@dataclass(frozen=True, slots=True)
class Menu:
    """The rows for a typed text.

    begin  index of the part that a chosen row replaces
    first  index of the row that Enter takes at first; None: Enter sends what is typed
    usage  what may be typed where there is no row to choose
    """

    begin: int
    rows: tuple[MenuRow, ...] = ()
    first: int | None = None
    usage: str = ""


@dataclass(frozen=True, slots=True)
class MenuSources:
    """The functions that a menu is made with.

    commands       by name, in order
    describe       the present value of a command, by name
    list_choices   the words that a command takes, by name
    list_paths     the paths that complete a partly typed one, by a command's name
    """

    commands: Mapping[str, SlashCommand]
    describe: Callable[[str], str] = lambda name: ""
    list_choices: Callable[[str], Sequence[str]] = lambda name: ()
    list_paths: Callable[[str, str], Sequence[str]] = lambda name, partial: ()


def make_menu(typed: str, sources: MenuSources) -> Menu | None:
    """Return the menu for the text before the cursor, or None."""
    if typed.startswith("/") and "\n" not in typed:
        name, blank, argument = typed.partition(" ")
        return _list_arguments(name, argument, sources) if blank else _list_commands(typed, sources)
    mention = find_mention(typed)
    return None if mention is None else _list_files(*mention, sources)


def _list_commands(typed: str, sources: MenuSources) -> Menu | None:
    """Return the commands that begin with a text, or whose name in other programs does."""
    others = [OTHER_NAMES[other] for other in OTHER_NAMES if other.startswith(typed) and other != "/"]
    begun = [name for name in sources.commands if name.startswith(typed)]
    named = dict.fromkeys([*sorted(begun, key=lambda name: name != typed), *others])
    rows = [_make_command_row(name, sources) for name in named if name in sources.commands]
    return Menu(0, tuple(rows), first=0) if rows else None


def _make_command_row(name: str, sources: MenuSources) -> MenuRow:
    command = sources.commands[name]
    text = f"{name} " if command.arguments else name
    usage = f"{name} {command.arguments}".rstrip()
    return MenuRow(text, name, command.purpose, sources.describe(name), usage)


def _list_arguments(name: str, argument: str, sources: MenuSources) -> Menu | None:
    """Return the words that may follow a command; for a list with commas, those that continue it."""
    command = sources.commands.get(OTHER_NAMES.get(name, name))
    if command is None or not command.arguments:
        return None
    chosen = argument.rpartition(",")[0] if command.arguments.endswith(",...") else ""
    begin = len(name) + 1 + (len(chosen) + 1 if chosen else 0)
    rest = argument[len(chosen) + 1 :] if chosen else argument
    paths = (path for path in sources.list_paths(name, rest) if path != rest)  # a whole one is to be sent
    words = [*_match(sources.list_choices(name), rest), *paths]
    return Menu(begin, tuple(MenuRow(word, word) for word in words), usage=f"{command.arguments}: {command.purpose}")


def _match(words: Iterable[str], typed: str) -> list[str]:
    """Return the words that begin with a text, whatever their case, then those that contain all its words.

    The text itself is left out.
    """
    found = [word for word in words if word != typed and has_words(word, typed)]
    return sorted(found, key=lambda word: not word.casefold().startswith(typed.casefold()))


def _list_files(begin: int, partial: str, sources: MenuSources) -> Menu | None:
    """Return the files and folders that complete a path after `@`; Enter takes the first if anything is typed."""
    paths = sources.list_paths("/add", partial)
    if not paths:
        return None
    rows = tuple(MenuRow(write_mention(path), name_path(path), path=path) for path in paths)
    return Menu(begin, rows, first=0 if partial else None)


def name_path(path: str) -> str:
    """Return the last part of a path, with the slash of a folder."""
    return path[path.removesuffix("/").rfind("/") + 1 :]
