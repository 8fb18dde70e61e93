"""Reads TOML from untrusted sources, and sets single keys. The only reader of TOML in the package."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from eaglelocal.core.json_text import MAX_DEPTH, is_nested_deeper
from eaglelocal.core.own_files import read_regular
from eaglelocal.core.terminal_text import FaultInLine, decode_text, format_place

TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
# Strings and comments are skipped, because brackets in them do not nest. Unterminated strings are skipped too, or each
# quote in one would start another search.
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\(?:.|\Z))*?(?:"{3,5}|\Z)'
    r"|'''.*?(?:'{3,5}|\Z)"
    r'|"(?:[^"\\\n]|\\[^\n]?)*+"?'
    r"|'[^'\n]*+'?|#[^\n]*|[\[\]{}]",
    re.DOTALL,
)


def read_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text. Raises ValueError if it is not TOML, or nested deeper than MAX_DEPTH."""
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise FaultInLine(TOO_DEEP, _deep_line(text)) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        raise ValueError("a number has too many digits" if "digits" in str(error) else str(error)) from None
    if is_nested_deeper(content, MAX_DEPTH):
        line = _deep_line(text)  # 0: dotted keys or tables nest too deep
        key = next(key for key, value in content.items() if is_nested_deeper(value, MAX_DEPTH - 1))
        raise FaultInLine(TOO_DEEP if line else f"{key} is {TOO_DEEP}", line)
    return content


def read_toml_file(path: Path) -> dict[str, Any]:
    """Parse a TOML file. Raises OSError; ValueError whose text begins with the file, and with the line if known."""
    try:
        return read_toml(decode_text(read_regular(path)))
    except FaultInLine as error:
        raise ValueError(f"{format_place(path, error)}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error


TomlValue = str | bool | int | float | tuple[str, ...] | tuple[tuple[str, str], ...]
# a value of one line, up to the comment behind it
_VALUE = r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\[[^\]#\n]*\]|\{[^}#\n]*\}|[^\s#"'\[{]+)"""
_REST_OF_LINE = r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)"


def set_key(content: str, name: str, value: TomlValue | None) -> str:
    """Return a TOML text with a top-level key set to a value; None: without its line. The other lines stay.

    >>> set_key('theme = "dark"  # at night\\n[keys]\\n', "theme", "light")
    'theme = "light"  # at night\\n[keys]\\n'

    Raises ValueError if the key is there in a form that cannot be replaced, or the text is not TOML.
    """
    before, line = read_toml(content), "" if value is None else f"{name} = {write_value(value)}"
    if name in before:
        written = rf"^[ \t]*{re.escape(name)}[ \t]*=[ \t]*{_VALUE}{'' if line else _REST_OF_LINE}"
        changed = re.sub(written, lambda _: line, content, count=1, flags=re.MULTILINE)
    else:
        changed = f"{line}\n{content}" if line else content  # before all tables
    if read_toml(changed) != {key: each for key, each in before.items() if key != name} | read_toml(line):
        raise ValueError(f"{name} is set in a form that cannot be replaced")
    return changed


def write_value(value: TomlValue) -> str:
    """Return a value in TOML: a text, a number, a list of texts, or a table of texts.

    >>> write_value(True), write_value(("a", "b")), write_value((("quit", "q"),))
    ('true', '["a", "b"]', '{ quit = "q" }')
    """
    if isinstance(value, str):
        return write_text_value(value)
    if not isinstance(value, tuple):
        return str(value).lower()
    if value and isinstance(value[0], tuple):
        return "{ " + ", ".join(f"{name} = {write_text_value(str(text))}" for name, text in value) + " }"
    return f"[{', '.join(write_text_value(str(text)) for text in value)}]"


def write_text_value(text: str) -> str:
    r"""Return a text as a string of TOML. Half of a surrogate pair cannot be written: it stays, and is no TOML.

    >>> write_text_value('a "b"\n\U0001f985')
    '"a \\"b\\"\\n\U0001f985"'
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")


def _deep_line(text: str) -> int:
    """Return the line of the bracket that opens one level too many; 0 if dotted keys or tables nest that deep."""
    level = 0
    for token in _TOKEN.finditer(text):
        level += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if level >= MAX_DEPTH:  # the file itself counts as a level
            return text.count("\n", 0, token.start()) + 1
    return 0
