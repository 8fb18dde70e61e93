"""Word the hints of errors for a chat: errors name flags, a chat has commands for most of them. Pure."""

from __future__ import annotations

import re

SAMPLING = ("temperature", "top-k", "top-p", "min-p", "seed", "max-tokens")
COMMANDS = {
    "target": "/model",
    "draft": "/draft",
    "spec": "/spec",
    "system": "/system",
    "image": "/image",
    "thinking-budget": "/think",
    **{name: f"/set {name.replace('-', '_')}" for name in SAMPLING},
}
FLAG = re.compile(r"--(?P<name>[a-z][a-z-]*)(?P<value>(?: [^\s,`]+)?)")
OTHER_MODEL = re.compile(r"eaglelocal chat --target (\S+)")


def word_for_chat(hint: str) -> str:
    """Return a hint with the chat's commands in place of flags; a flag without one is one of the next start.

    >>> word_for_chat("--draft auto or --split layer")
    '/draft auto or eaglelocal chat --split layer'
    >>> word_for_chat("eaglelocal chat --target demo")
    '/model demo'
    """
    if (other := OTHER_MODEL.fullmatch(hint)) is not None:
        return f"/model {other[1]}"
    return FLAG.sub(_word_flag, hint) if hint.startswith(("--", "`--")) else hint


def _word_flag(found: re.Match[str]) -> str:
    command = COMMANDS.get(found["name"])
    return f"eaglelocal chat --{found['name']}{found['value']}" if command is None else f"{command}{found['value']}"
