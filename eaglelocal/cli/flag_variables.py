"""Environment variables of flags that are no settings: EAGLELOCAL_NO_TUI for --no-tui, EAGLELOCAL_SAVE=0 for --no-save.

Variables of settings are read by settings.py, together with the config file; it has a list of the other names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eaglelocal.settings import PREFIX, READERS

WITHOUT = ("--help", "--version", "--install-completion", "--show-completion")


def list_flag_variables(command: Any) -> Iterator[tuple[str, Any]]:
    """Yield (variable, option) for each such flag of a command that typer built, and of its subcommands."""
    for below in getattr(command, "commands", {}).values():
        yield from list_flag_variables(below)
    for option in command.params:
        name = max(option.opts, key=len)
        if name.startswith("--") and name not in WITHOUT and option.name not in READERS:
            yield PREFIX + name.removeprefix("--").replace("-", "_").upper(), option


def set_variables(command: Any) -> None:
    """Let each of these flags be set by its variable, without showing it in the help of each flag."""
    for variable, option in list_flag_variables(command):
        option.envvar, option.show_envvar = variable, False
