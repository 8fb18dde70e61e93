"""Find the binding of each key, with the user's own keys in place, and describe keys as people write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from textual.binding import Binding, BindingType
from textual.keys import REPLACED_KEYS, key_to_character

from eaglelocal.tui.modal_screens import HelpRow

NO_KEY = "(no key)"
KEY_NAMES: Mapping[str, str] = {"pageup": "page up", "pagedown": "page down"}
OF_ONE_TERMINAL = "super+"  # the modifier of keys that few terminals send; the help leaves them out


def map_keys(bindings: Iterable[BindingType], keys: Mapping[str, str]) -> dict[str, Binding]:
    """Return the binding of each key.

    keys: binding id -> comma-separated keys, in place of the default ones. Of several bindings with one key, those that
    the user chose the key for come first, then the later ones.
    """
    found = sorted((each for each in bindings if isinstance(each, Binding)), key=lambda each: each.id in keys)
    return {key.strip(): each for each in found for key in keys.get(each.id or "", each.key).split(",")}


def name_key(key: str) -> str:
    """Return a key as people write it: `ctrl+_` for `ctrl+underscore`, `page up` for `pageup`."""
    modifiers, plus, name = key.strip().rpartition("+")
    char = key_to_character(REPLACED_KEYS.get(name, name)) or ""
    shown = char if char.isprintable() and char.strip() else KEY_NAMES.get(name, name)
    return f"{modifiers}{plus}{shown}"


def make_key_rows(bindings: Mapping[str, Binding], purposes: Mapping[str, str], group: str = "keys") -> list[HelpRow]:
    """Return a row of the help for each purpose, by binding id: its current keys, and the purpose."""
    names: dict[str, list[str]] = {}
    for key, binding in bindings.items():
        if not key.startswith(OF_ONE_TERMINAL):
            names.setdefault(binding.id or "", []).append(name_key(key))
    return [HelpRow(", ".join(names.get(each, [NO_KEY])), purpose, group) for each, purpose in purposes.items()]
