"""Complete slash commands and the paths of pictures while they are typed. Does not know widgets."""

from __future__ import annotations

import os
from collections.abc import Sequence

from eaglelocal.conversation.action_context import ListModels, list_no_models
from eaglelocal.conversation.pictures import complete_path
from eaglelocal.conversation.slash_commands import COMMANDS
from eaglelocal.core.records import dataclass

IMAGE, MODEL = "/image ", "/model "


@dataclass(frozen=True, slots=True)
class Completion:
    """The text to add at the end, and the names that still fit, if there are several."""

    text: str
    choices: tuple[str, ...] = ()


def matching_commands(typed: str) -> list[str]:
    """Return the commands that begin with a text; none unless it begins with a slash."""
    return [name for name in COMMANDS if name.startswith(typed)] if typed.startswith("/") else []


def describe_command(name: str) -> str:
    return f"{name} {COMMANDS[name].arguments}".rstrip() + f": {COMMANDS[name].purpose}"


def complete_typed(typed: str, list_models: ListModels = list_no_models) -> Completion:
    """Return the completion of a command, of the path in `/image PATH`, or of the reference in `/model REF`."""
    if typed.startswith(MODEL):
        begun = typed.removeprefix(MODEL)
        models = [name for name in list_models() if name.lower().startswith(begun.lower())]
        same_case = [name for name in models if name.startswith(begun)]
        return Completion(_common_prefix(same_case)[len(begun) :], tuple(models) if len(models) > 1 else ())
    if typed.startswith(IMAGE):
        begun = typed.removeprefix(IMAGE)
        paths = complete_path(begun)
        names = tuple(path.removesuffix("/").rpartition("/")[2] for path in paths)
        return Completion(_common_prefix(paths)[len(begun) :], names if len(names) > 1 else ())
    matches = matching_commands(typed)
    if len(matches) == 1:
        return Completion(matches[0][len(typed) :] + (" " if COMMANDS[matches[0]].arguments else ""))
    return Completion(_common_prefix(matches)[len(typed) :])


def _common_prefix(texts: Sequence[str]) -> str:
    return os.path.commonprefix(texts)  # noqa: RUF071 # of characters, not of path components
