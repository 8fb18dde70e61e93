"""Turn hints into whole commands, one a line, so that each can be pasted as it stands. Pure.

A hint may name flags (`--ctx 4096`), flags to leave out (`leave --split out`), a word that was meant (`did you mean
demo?`), or several of these, joined by "or". What is none of them stays a sentence.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from eaglelocal.core.user_paths import quote_word
from eaglelocal.errors import EagleLocalError
from eaglelocal.settings import PREFIX

FLAG = re.compile(r"--[a-z][a-z-]*")
MAX_COMMAND_CHARS = 200  # a longer one holds a long question, which is not worth showing again
PLACEHOLDER = re.compile(r"[A-Z]{2,}|\.\.\.")  # FILE or URL, which the user has to replace
LEFT_OUT = re.compile(r"(?:no (--[a-z-]+)|leave (--[a-z-]+) out)")
CONDITION = re.compile(r"(--.*), (if .*)")
GUESS = re.compile(r"did you mean (?P<meant>[^?]+)\?")
ALTERNATIVE = re.compile(r",? or |, (?=`?--)")


def complete_hint(hint: str, program: str, arguments: Sequence[str], message: str = "") -> str:
    """Return the hint with the command that was typed, changed as the hint says; several ways are one a line.

    message  of the error: it holds the word that "did you mean" replaces

    >>> complete_hint("`--port 8422`", "eaglelocal", ["serve", "--port=8421", "--no-tui"])
    'eaglelocal serve --no-tui --port 8422'
    >>> complete_hint("did you mean qwen3-8b?", "eaglelocal", ["plan", "qwen3-8x"], "unknown target 'qwen3-8x'")
    'eaglelocal plan qwen3-8b'
    >>> complete_hint("--ctx 4096 or --parallel 1", "eaglelocal", ["serve"])
    'eaglelocal serve --ctx 4096\\neaglelocal serve --parallel 1'
    >>> complete_hint("make the picture smaller", "eaglelocal", ["chat"])
    'make the picture smaller'
    """

    def write(changed: Sequence[str]) -> str:
        command = " ".join(map(quote_word, [program, *changed]))
        return command if len(command) <= MAX_COMMAND_CHARS else ""

    guess = GUESS.match(hint)
    if guess is not None and (place := find_wrong_word(message, arguments)) is not None:
        meant = [word.strip("`") for word in guess["meant"].split(" or ")]
        commands = [write(replace_word(arguments, place, message, word)) for word in meant]
        return "\n".join(filter(None, commands)) or hint
    commands = [complete_flags(part, arguments, write) for part in ALTERNATIVE.split(hint)]
    if not any(commands):
        return _strip_quotes(hint)
    parts = zip(ALTERNATIVE.split(hint), commands, strict=True)
    return "\n".join(command or f"{'or ' * (number > 0)}{part}" for number, (part, command) in enumerate(parts))


def name_origin(error: EagleLocalError, arguments: Sequence[str], origins: Mapping[str, str]) -> None:
    """Let an error about a flag that was not typed say where its value came from, and how to unset it there.

    origins  the place of each setting that was set
    """
    from eaglelocal.cli.flags import translate_flags

    typed = {word.partition("=")[0] for word in translate_flags(arguments)}
    for flag in dict.fromkeys(FLAG.findall(f"{error.message} {error.hint}")):
        name = flag.removeprefix("--").replace("-", "_")
        if name not in origins or flag in typed:
            continue
        place = origins[name]
        error.message += f"; {flag} comes from {place}"
        if (out := LEFT_OUT.fullmatch(error.hint)) is not None and flag in out.groups():
            error.hint = f"unset {place}" if place.startswith(PREFIX) else f"eaglelocal config unset {name}"


def complete_flags(text: str, arguments: Sequence[str], write: Callable[[Sequence[str]], str]) -> str:
    """Return the command with the flags that the text names, or without the flag that it advises against; else ""."""
    text = _strip_quotes(text)
    if (out := LEFT_OUT.fullmatch(text)) is not None:
        kept = remove_flag(arguments, out[1] or out[2], has_value=True)
        return write(kept) if len(kept) < len(arguments) else ""
    condition = CONDITION.fullmatch(text)
    flags = parse_flags(condition[1] if condition else text)
    if not flags:
        return ""
    kept = list(arguments)
    for flag, value in flags.items():
        kept = remove_flag(kept, flag, has_value=value is not None)
    added = [word for flag, value in flags.items() for word in (flag, *([value] if value is not None else []))]
    command = write([*kept, *added])
    return f"{command}  # {condition[2]}" if condition and command else command


def parse_flags(text: str) -> dict[str, str | None]:
    """Return flags with their values, None for a flag without one; empty if the text holds anything else."""
    try:
        words = shlex.split(text) if "$'" not in text else []  # which shlex does not read
    except ValueError:  # a quote is open
        return {}
    found: dict[str, str | None] = {}
    last = ""
    for word in words:
        if FLAG.fullmatch(word):
            last = word
            found[word] = None
        elif last and found[last] is None and not PLACEHOLDER.fullmatch(word) and not word.endswith((",", ":", ";")):
            found[last] = word
        else:
            return {}
    return found


def remove_flag(arguments: Sequence[str], flag: str, *, has_value: bool) -> list[str]:
    """Return the arguments without a flag and its value, before a `--` that ends the flags."""
    kept: list[str] = []
    skips_next = False
    for number, word in enumerate(arguments):
        if word == "--" and not skips_next:
            return [*kept, *arguments[number:]]
        if skips_next:
            skips_next = False
        elif word == flag:
            skips_next = has_value
        elif not word.startswith(f"{flag}="):
            kept.append(word)
    return kept


def find_wrong_word(message: str, arguments: Sequence[str]) -> int | None:
    """Return the place of the argument that the message is about, after the command's name; None if there is none."""
    named = _list_words(message)
    return next(
        (place for place, word in enumerate(arguments) if place and not named.isdisjoint(_split_value(word))), None
    )


def replace_word(arguments: Sequence[str], place: int, message: str, meant: str) -> list[str]:
    """Return the arguments with the word at this place replaced by the one that the message suggests."""
    word, named = arguments[place], _list_words(message)
    wrong = next(part for part in _split_value(word) if part in named)
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    values = [meant if _clean(each) == wrong else each for each in value.split(",")]
    return [*arguments[:place], f"{flag}{equals}{','.join(values)}", *arguments[place + 1 :]]


def _split_value(word: str) -> list[str]:
    """Return what an argument names: the values of a list, without its flag."""
    value = word.partition("=")[2] if word.startswith("--") else word
    return [_clean(each) for each in value.split(",") if each]


def _clean(word: str) -> str:
    """Return a word as messages write it: paths without `./`."""
    word = word.strip()
    return os.path.normpath(word) if "/" in word else word


def _list_words(message: str) -> set[str]:
    """Return the words in quotes; without any, all words."""
    quoted = re.findall(r"'([^']+)'", message)
    return {_clean(word) for word in quoted or (word.strip(":,") for word in message.split())}


def _strip_quotes(hint: str) -> str:
    return hint[1:-1] if re.fullmatch("`[^`]+`", hint) else hint
