"""The flags of Ollama and llama-server, and ours that do the same. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

FLAGS: Mapping[str, str] = {
    "-m": "--target",
    "--model": "--target",
    "-c": "--ctx",
    "--ctx-size": "--ctx",
    "--num-ctx": "--ctx",
    "-ngl": "--gpu-layers",
    "--n-gpu-layers": "--gpu-layers",
    "-np": "--parallel",
    "-t": "--threads",
    "-md": "--draft",
    "--model-draft": "--draft",
    "-fa": "--flash-attn",
    "-ctk": "--kv-type",
    "--cache-type-k": "--kv-type",
    "-n": "--max-tokens",
    "--n-predict": "--max-tokens",
    "--temp": "--temperature",
    "-s": "--seed",
    "-sys": "--system",
    "--system-prompt": "--system",
    "--no-webui": "--no-tui",
}
OF_OTHER_COMMANDS: Mapping[str, Mapping[str, str]] = {  # flags that have another name in these of our commands
    "chat": {"--no-tui": "--plain", "--no-webui": "--plain"},
    "serve": {"--plain": "--no-tui"},
}
SHORT_FLAG = re.compile(r"(-[a-z]+)([0-9]\S*)?")  # `-c 4096` and `-c4096`


def translate_flags(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command, its name first, with flags of others replaced, before a `--` that ends them.

    >>> translate_flags(["serve", "-m", "x.gguf", "-c4096"])
    ['serve', '--target', 'x.gguf', '--ctx', '4096']
    """
    flags = {**FLAGS, **OF_OTHER_COMMANDS.get(next(iter(arguments), ""), {})}
    translated: list[str] = []
    for number, word in enumerate(arguments):
        if word == "--":
            return [*translated, *arguments[number:]]
        flag, equals, value = word.partition("=")
        short = SHORT_FLAG.fullmatch(word)
        if flag in flags:
            translated.append(f"{flags[flag]}{equals}{value}")
        elif short is not None and short[2] and short[1] in flags:
            translated += [flags[short[1]], short[2]]
        else:
            translated.append(word)
    return translated


def find_familiar_flag(arguments: Sequence[str]) -> str:
    """Return the first flag of another program or command in the arguments; "" if there is none."""
    command = arguments[:1]
    return next((word for word in arguments[1:] if translate_flags([*command, word]) != [*command, word]), "")
