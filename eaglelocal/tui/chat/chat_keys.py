"""The keys of the chat screen, with the user's own in place: as the help lists them, and as hints name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.binding import Binding, BindingType

from eaglelocal.tui.chat.chat_access import ChatAccess
from eaglelocal.tui.help_screen import HelpRow
from eaglelocal.tui.key_bindings import CHAT_PURPOSES
from eaglelocal.tui.mapped_keys import make_key_rows, map_keys, name_action, name_key

HINT_NAMES: Mapping[str, str] = {"escape": "esc"}  # hints are short


class ChatKeys:
    """The bindings of the prompt and of the app by key: a key that both have is the prompt's."""

    def __init__(
        self, of_prompt: Mapping[str, Binding], of_app: Sequence[BindingType], keys: Mapping[str, str]
    ) -> None:
        """keys: binding id -> comma-separated keys, in place of the default ones."""
        rest = {
            key: binding for key, binding in map_keys(of_app, keys).items() if binding.priority or key not in of_prompt
        }
        self._bindings = {**of_prompt, **rest}

    def help_rows(self, access: ChatAccess) -> list[HelpRow]:
        """Return a row for the keys of each action that the person may use."""
        blocked = {each.id for each in self._bindings.values() if not access.allows_action(name_action(each))}
        purposes = {each: purpose for each, purpose in CHAT_PURPOSES.items() if each not in blocked}
        return make_key_rows(self._bindings, purposes)

    def hint(self, *names: str) -> str:
        """Return the first key of each action, by the ids of their bindings: `ctrl+d or ctrl+q`."""
        firsts = (next((key for key, each in self._bindings.items() if each.id == name), "") for name in names)
        return " or ".join(HINT_NAMES.get(key, name_key(key)) for key in firsts if key)
