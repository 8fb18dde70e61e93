"""The rights of the person at a chat screen: all, or through a browser only what stays within the chat."""

from __future__ import annotations

from collections.abc import Mapping

from eaglelocal.conversation.slash_commands import COMMANDS, SlashCommand, split_command
from eaglelocal.core.records import dataclass
from eaglelocal.errors import UsageError
from eaglelocal.tui.help_screen import HelpRow

# what reads or writes files, runs programs or loads models on this machine
LOCAL_COMMANDS = frozenset({"/image", "/save", "/load", "/rename", "/delete", "/export", "/model", "/draft"})
LOCAL_ACTIONS = frozenset({"editor", "conversations", "model", "suspend_process"})


@dataclass(frozen=True, slots=True)
class ChatAccess:
    """The rights of a person.

    is_remote  the person is not this machine's user, and may not reach its files
    saves      conversations are saved by themselves
    """

    is_remote: bool = False
    saves: bool = True

    @property
    def commands(self) -> Mapping[str, SlashCommand]:
        hidden = LOCAL_COMMANDS if self.is_remote else frozenset()
        return {name: command for name, command in COMMANDS.items() if name not in hidden}

    def allows_action(self, action: str) -> bool:
        return not (self.is_remote and action in LOCAL_ACTIONS)

    def check_command(self, line: str) -> None:
        """Raise UsageError for a slash command that the person may not run; unknown ones are refused later."""
        name = split_command(line).name
        if self.is_remote and name in LOCAL_COMMANDS:
            raise UsageError(f"{name} is not available in a browser: it would use files of the server")

    def command_rows(self) -> list[HelpRow]:
        """Return a row of the help for each slash command."""
        return [
            HelpRow(f"{name} {each.arguments}".rstrip(), each.purpose, "commands")
            for name, each in self.commands.items()
        ]


FULL_ACCESS = ChatAccess()
