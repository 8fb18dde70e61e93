"""The arguments of slash commands as menus show them: the present value of each command, and the words it takes.

Pure, except for the lists of conversations and models, which are read from disk. Does not know widgets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.action_context import ListModels
from eaglelocal.conversation.pictures import PICTURE_SUFFIXES
from eaglelocal.conversation.sampling_form import FIELDS, describe_changes
from eaglelocal.conversation.session import Session
from eaglelocal.conversation.slash_commands import COMMANDS, Command, spec_line, thinking_line
from eaglelocal.core.adapters import describe_adapters
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import list_draft_words
from eaglelocal.core.thinking import USUAL_EFFORT
from eaglelocal.core.user_paths import complete_path
from eaglelocal.settings import THEME_NAMES

# They neither change what the running answer belongs to, nor need the model that gives it
IMMEDIATE = frozenset({"/help", "/stats", "/set", "/think", "/system", "/copy", "/save", "/rename", "/export", "/exit"})
GGUF_SUFFIXES = (".gguf",)
SHOWN_AT_ONCE = frozenset({"/spec", "/draft", "/lora", "/model", "/load", "/image"})  # without an argument


def is_immediate(command: Command) -> bool:
    """Return whether a command may run during an answer; any other one waits for its end, as questions do."""
    if command.name not in COMMANDS:
        return True  # it is refused
    return command.name in IMMEDIATE or (command.name in SHOWN_AT_ONCE and not command.argument)


@dataclass(frozen=True, slots=True)
class ArgumentSources:
    """The folder of conversations and the list of models, from which arguments are chosen."""

    conversations: Path
    list_models: ListModels


def describe_value(session: Session, name: str) -> str:
    """Return the present value of a command, such as `medium effort` for `/think`; "" if it has none."""
    describe = _VALUES.get(name)
    return "" if describe is None else describe(session)


def list_choices(sources: ArgumentSources, name: str) -> Sequence[str]:
    """Return the words that a command takes; none unless they are a set. After a blank at the end, more must follow."""
    find = _CHOICES.get(name)
    return () if find is None else find(sources)


def list_paths(name: str, partial: str) -> Sequence[str]:
    """Return the paths that complete a command's partly typed one; of a model only once a folder is typed."""
    suffixes = _SUFFIXES.get(name)
    if suffixes is None or (suffixes == GGUF_SUFFIXES and not ("/" in partial and partial.startswith(("/", ".", "~")))):
        return ()
    return complete_path(partial, suffixes)


def _describe_summary(session: Session) -> str:
    summary = session.conversation.summary
    return "" if summary is None else f"{count_noun(summary.num_turns, 'turn')} summarized"


_SUFFIXES: Mapping[str, Sequence[str]] = MappingProxyType(
    {"/add": (), "/image": PICTURE_SUFFIXES, "/model": GGUF_SUFFIXES, "/draft": GGUF_SUFFIXES}
)
_VALUES: Mapping[str, Callable[[Session], str]] = MappingProxyType(
    {
        "/spec": lambda session: spec_line(session).partition(": ")[2].partition(", ")[0],
        "/set": lambda session: describe_changes(session.conversation.sampling),
        "/think": lambda session: thinking_line(session).partition(": ")[2],
        "/system": lambda session: " ".join(session.conversation.system.split()),
        "/clear": lambda session: count_noun(len(session.conversation.turns), "turn"),
        "/compact": _describe_summary,
        "/image": lambda session: " ".join(picture.label for picture in session.attached),
        "/save": lambda session: session.conversation.name,
        "/model": lambda session: session.model.info.target,
        "/draft": lambda session: session.model.info.draft,
        "/lora": lambda session: describe_adapters(session.shown_adapters),
    }
)
_CHOICES: Mapping[str, Callable[[ArgumentSources], Sequence[str]]] = MappingProxyType(
    {
        "/spec": lambda sources: ("auto", "off", "pid"),
        "/set": lambda sources: [f"{field.name} " for field in FIELDS],
        "/think": lambda sources: ("off", "low", USUAL_EFFORT, "high"),
        "/image": lambda sources: ("none",),
        "/copy": lambda sources: ("code",),
        "/load": lambda sources: conversation_file.list_names(sources.conversations),
        "/delete": lambda sources: conversation_file.list_names(sources.conversations),
        "/model": lambda sources: sources.list_models(),
        "/draft": lambda sources: list_draft_words(),
        "/theme": lambda sources: THEME_NAMES,
    }
)
