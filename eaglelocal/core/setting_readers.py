"""Readers of the values of settings, wherever they come from; the text of a ValueError says what the value must be."""

from __future__ import annotations

from collections.abc import Callable

from eaglelocal.core.run_options import parse_kv_type, parse_rpc_hosts, parse_split
from eaglelocal.core.tensor_overrides import parse_overrides
from eaglelocal.core.terminal_text import join_surrogates
from eaglelocal.core.thinking import LIMITS as THINKING_LIMITS
from eaglelocal.core.thinking import MAX_MESSAGE_CHARS, parse_thinking
from eaglelocal.errors import UsageError

Reader = Callable[[object], object]


def read_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("text")
    return value


def read_prose(value: object) -> str:
    """Read a text for the model. Surrogates are joined to characters here; texts that name files keep them."""
    return join_surrogates(read_text(value))


def read_list(value: object) -> tuple[str, ...]:
    """Read a list of texts, or one text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("a list of texts, or one text with commas")
    return tuple(part.strip() for part in parts if part.strip())


def read_paths(value: object) -> tuple[str, ...]:
    """Read a list of paths. An empty one, such as that of an unset variable, is an error: it names no file."""
    if isinstance(value, list | tuple) and "" in value:
        raise ValueError("the path of a file")
    return read_list(value)


def read_boolean(value: object) -> bool:
    known = {"true": True, "false": False, True: True, False: False}
    if not isinstance(value, str | bool) or value not in known:
        raise ValueError("true or false")
    return known[value]


def read_keys(value: object) -> tuple[tuple[str, str], ...]:
    """Read a table of texts, or `action=key,key action=key`."""
    if isinstance(value, str):
        value = {action: keys for action, _, keys in (part.partition("=") for part in value.split())}
    if not isinstance(value, dict) or not all(isinstance(keys, str) and keys for keys in value.values()):
        raise ValueError('a table of actions and keys, such as quit = "q,ctrl+q"')
    return tuple(value.items())


def one_of(*names: str) -> Reader:
    def read(value: object) -> str:
        if value not in names:
            raise ValueError("one of " + ", ".join(names))
        return str(value)

    return read


def read_thinking_limit(value: object) -> str:
    try:
        parse_thinking(str(value) if _as_int(value) is not None else read_text(value))
    except UsageError:
        raise ValueError(THINKING_LIMITS) from None
    return str(value)


def read_closing_words(value: object) -> str:
    if len(text := read_prose(value)) > MAX_MESSAGE_CHARS:
        raise ValueError(f"a text of at most {MAX_MESSAGE_CHARS} characters")
    return text


def read_split(value: object) -> str:
    text = read_text(value).replace(" ", "")
    parse_split(text)
    return text


def read_kv_type(value: object) -> str:
    return parse_kv_type(read_text(value))


def read_overrides(value: object) -> tuple[str, ...]:
    parts = (value,) if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError("a list of texts, or one text with commas")
    return tuple(str(each) for part in parts for each in parse_overrides(part))


def read_rpc_hosts(value: object) -> tuple[str, ...]:
    return parse_rpc_hosts(",".join(map(str, value)) if isinstance(value, list | tuple) else read_text(value))


def whole(low: float, high: float | None = None) -> Reader:
    what = f"a whole number of at least {low:.0f}" if high is None else f"a whole number from {low:.0f} to {high:.0f}"

    def read(value: object) -> int:
        number = _as_int(value)
        if number is None or number < low or (high is not None and number > high):
            raise ValueError(what)
        return number

    return read


def number_within(low: float, high: float) -> Reader:
    def read(value: object) -> float:
        number = _as_float(value)
        if number is None or not low <= number <= high:  # NaN fails too
            raise ValueError(f"a number from {low:g} to {high:g}")
        return number

    return read


def word_or(word: str, meaning: object, reader: Reader) -> Reader:
    """Return a reader that returns `meaning` for the word, and passes other values to `reader`."""

    def read(value: object) -> object:
        if value == word:
            return meaning
        try:
            return reader(value)
        except ValueError as error:
            raise ValueError(f"{word} or {error}") from None

    return read


def _as_int(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value)
    except ValueError:
        return None


def _as_float(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
