"""A reader of arguments as models write them: nearly JSON, nearly Python, or nearly Gemma's notation.

    {s:'a, b: c', on:True, n:007}     -> {"s": "a, b: c", "on": true, "n": 7}

The schema's types decide how a word is read. Text with several readings, or none, raises UnreadableCall: a wrong
argument is worse than no call. Quotes that close where a value may end are trusted. A string with bare quotes in it, or
without quotes, may end in several places: all readings are compared, and only a single one counts. The result is JSON
text, in which parts that were JSON stay as written.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import TypeVar

from eaglelocal.core.json_text import MAX_DEPTH, read_json
from eaglelocal.core.tools import Tool
from eaglelocal.text.tool_calls.json_spans import JsonReader, is_json, skip_space
from eaglelocal.text.tool_calls.lenient_literals import (
    Style,
    UnreadableCall,
    dump_json,
    find_kind,
    is_code,
    read_word,
    unescape,
)
from eaglelocal.text.tool_calls.tool_schemas import ANYTHING, Shape, has_required

Read = TypeVar("Read")
FindShape = Callable[[str, Mapping[str, str]], Shape]  # of a member, by its key and the members before it
GEMMA_QUOTE = '<|"|>'
MAX_CHARS = 256 * 1024
MAX_DOUBTFUL_CHARS = 16 * 1024  # of a text whose readings are compared
MAX_READINGS, MAX_CHOICES = 64, 4096  # that are compared; string ends that are chosen for them
MAX_ASSIGNMENTS = 400  # of arguments without names to parameters
CLOSERS = "}])"
_QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”", "”": "”", "‘": "’", "’": "’"}
_AFTER_VALUE = r"(?=\s*(?:[,:=\]})]|\Z))"
_WORD = re.compile(rf"[^\s,:=\[\]{{}}()\"'`“”‘’<]++{_AFTER_VALUE}")
_KEY = re.compile(r"[^:=\[\]{}(),\"'`“”‘’<]++")
_PYTHON_KEY = re.compile(r"[^\W\d][\w.-]*+")
_SEPARATOR = re.compile(r"[:=](?!=)")
_BARE_END = re.compile(r"[,\]})]|\Z")
_BARE_START = re.compile(r"[^\[\]{}(),:=\"'`“”‘’<]")
_PYTHON_STRING = re.compile(
    r"(?P<raw>[rR]?)[uU]?(?P<quote>\"{3}|'{3}|(?<=[rRuU])[\"'])(?P<text>(?:\\.|(?!(?P=quote))[^\\])*+)(?P=quote)",
    re.DOTALL,
)
_FIRST_QUOTES = {
    close: re.compile(rf"(?:[^\\{close}]|\\.)*+{close}", re.DOTALL) for close in sorted({*_QUOTES.values()})
}
_END_QUOTES = {close: re.compile(rf"(?<!\\)(?:\\\\)*+({close}){_AFTER_VALUE}") for close in _FIRST_QUOTES}
_CONTINUED_LINE = re.compile(r"(?<!\\)(?:\\\\)*\\\n")
_NEXT_STRING = re.compile(r"\s*[rRuU]?[\"']")
FENCE = re.compile(r"\s*+(?:```\w*+\s*+)?")
_CODE = re.compile(r"[()\[\]{}\"'\\]")


def read_only_meaning(text: str, style: Style, parse: Callable[[LenientText], Read]) -> Read:
    """Return the result of `parse` for a text. Raises UnreadableCall if there is no reading, or several differ."""
    if len(text) > MAX_CHARS:
        raise UnreadableCall("it is too long")
    first = LenientText(text, style)
    try:
        meaning = parse(first)
    except UnreadableCall:
        if not first.is_doubtful:
            raise
    else:
        if not first.is_doubtful:
            return meaning
    if len(text) > MAX_DOUBTFUL_CHARS:
        raise UnreadableCall("a string in a long text may end in several places")
    return _compare_readings(text, style, parse)


def _compare_readings(text: str, style: Style, parse: Callable[[LenientText], Read]) -> Read:
    found: list[tuple[Read, str]] = []
    choices: list[int] | None = []
    num_choices = 0
    for _ in range(MAX_READINGS):
        attempt = LenientText(text, style, choices)
        try:
            meaning = parse(attempt)
        except UnreadableCall:
            pass
        else:
            found += [(meaning, attempt.flaw)] if all(meaning != other for other, _ in found) else []
            if len(found) > 1:
                raise UnreadableCall("a string may end in several places")
        choices = attempt.find_next_choices()
        num_choices += attempt.num_choices
        if choices is None or num_choices > MAX_CHOICES:
            break
    if choices is not None:
        raise UnreadableCall("it has too many readings to compare")
    if not found:
        raise UnreadableCall("a string has no certain end")
    if found[0][1]:
        raise UnreadableCall(found[0][1])
    return found[0][0]


class LenientText:
    """An attempt at a text. Its methods take an index, and return what they read there and the index after it.

    In the first attempt a string ends at its first quote, and brackets may be missing or doubled at the end of the
    text. In others `choices` says which end each string has, counted from the first possible one, and brackets must
    be right.
    """

    def __init__(self, text: str, style: Style, choices: Sequence[int] | None = None) -> None:
        self.text, self.style = text, style
        self.is_doubtful = False  # a string may end elsewhere
        self.is_json = False  # it is JSON: every literal ends where it seems to
        self.flaw = ""  # why the reading does not count, even if it is the only one
        self.num_missing = 0  # closing brackets
        self._choices, self._num_ends = choices, list[int]()
        self._tail_at = len(text.rstrip(CLOSERS + "` \t\r\n"))
        self._is_tail_doubtful = False  # a bracket may be missing before the last part of an object in an argument
        self._ends: dict[str, list[int]] = {}

    @property
    def num_choices(self) -> int:
        return len(self._num_ends)

    def find_next_choices(self) -> list[int] | None:
        """Return the choices for the next attempt; None if there are no more."""
        given = list(self._choices or ())
        given += [0] * (len(self._num_ends) - len(given))
        while given and given[-1] + 1 >= self._num_ends[len(given) - 1]:
            given.pop()
        if not given:
            return None
        given[-1] += 1
        return given

    def finish(self, at: int) -> None:
        """Check that nothing follows but closing brackets and the end of a code fence."""
        rest = self.text[at:].strip("` \t\r\n")
        if rest and (self._choices is not None or rest.strip(CLOSERS + " \t\r\n")):
            raise UnreadableCall("text follows the arguments")
        if self.num_missing and self._is_tail_doubtful:
            raise UnreadableCall("a closing bracket is missing, and it is not certain where")

    # ---- arguments
    def read_arguments(self, at: int, tool: Tool | None, close: str = "}") -> tuple[str, int]:
        """Read the arguments of a call up to `close`, after the opening bracket."""
        shape = Shape.of_tool(tool)
        text, found, at = self._read_members(at, shape, close, 0)
        wrapped = [key for key, value in found.items() if shape.is_wrapper(key) and value.startswith("{")]
        if wrapped and len(found) > 1:
            raise UnreadableCall("arguments stand beside others")
        text = found[wrapped[0]] if wrapped else text
        if (self._choices is not None or self.num_missing) and not (tool and has_required(tool, text)):
            raise UnreadableCall("an argument that is required is missing")
        return text, at

    def read_calls(self, shape: Shape, find_shape: FindShape) -> tuple[str, int]:
        """Read calls as JSON: an object of this shape, or an array of them. `find_shape` gives those of members."""

        def read_call(at: int) -> tuple[str, int]:
            if not self.text.startswith("{", at):
                raise UnreadableCall("a call is no object")
            text, _, at = self._read_members(at + 1, shape, "}", -1, find_shape)
            return text, at

        at = skip_space(self.text, 0)
        return self._read_items(at + 1, "]", -2, read_call) if self.text.startswith("[", at) else read_call(at)

    # ---- objects and arrays
    def _read_members(
        self, at: int, shape: Shape, close: str, depth: int, find_shape: FindShape | None = None
    ) -> tuple[str, dict[str, str], int]:
        """Return the object as JSON, its members, and the index after it. `depth`: 0 for the arguments themselves."""
        parts, found, unnamed = ["{"], dict[str, str](), list[str]()
        while True:
            at, is_end = self._find_part(at, parts, close, len(found) + len(unnamed), depth)
            if is_end:
                break
            key = self._read_key(at)
            if key is None:
                if depth or close != ")" or found:
                    raise UnreadableCall("an argument has no name")
                value, at = self.read_value(at, ANYTHING)
                unnamed.append(value)
                continue
            name, at = key
            name = shape.find_key(name, found)
            if name in found or (self._choices is not None and shape.is_closed and name not in shape.properties):
                raise UnreadableCall("an argument is named twice, or is unknown")
            parts.append(dump_json(name))
            at = self._skip_separator(at, parts)
            child = shape if depth == 0 and shape.is_wrapper(name) else shape.child(name)
            value, at = self.read_value(at, find_shape(name, found) if find_shape else child, depth + 1)
            parts.append(value)
            found[name] = value
        if unnamed:
            found = {**_assign(unnamed, shape, found), **found}
            parts = ["{" + ", ".join(f"{dump_json(name)}: {value}" for name, value in found.items())]
        return "".join(parts) + "}", found, at

    def _read_items(
        self, at: int, close: str, depth: int, read_item: Callable[[int], tuple[str, int]]
    ) -> tuple[str, int]:
        parts, size = ["["], 0
        while True:
            at, is_end = self._find_part(at, parts, close, size, depth)
            if is_end:
                return "".join(parts) + "]", at
            item, at = read_item(at)
            parts.append(item)
            size += 1

    def _find_part(self, at: int, parts: list[str], close: str, size: int, depth: int) -> tuple[int, bool]:
        """Return the index of the next part of an object or array that has `size` parts, or the index after its end."""
        end = skip_space(self.text, at)
        if self.style is Style.JSON:
            parts.append(self.text[at:end])
        if (after := self._find_end(end, close, size, depth)) is not None:
            return after, True
        if not size:
            return end, False
        if not self.text.startswith(",", end):
            raise UnreadableCall("there is no comma between two parts")
        at, end = end, skip_space(self.text, end + 1)
        if (after := self._find_end(end, close, size, depth)) is not None:
            return after, True
        parts.append(self.text[at:end] if self.style is Style.JSON else ", ")
        return end, False

    def _find_end(self, at: int, close: str, size: int, depth: int) -> int | None:
        """Return the index after an object or array that ends at `at`; None if it does not end there."""
        is_here = self.text.startswith(close, at)
        if not is_here and at < len(self.text) and self.text[at] not in CLOSERS:
            return None
        if not is_here and (self._choices is not None or at < self._tail_at):
            raise UnreadableCall("a closing bracket is missing")
        self.num_missing += not is_here
        self._is_tail_doubtful |= depth > 0 and size > 1 and at >= self._tail_at
        return at + is_here

    def skip_end(self, at: int, close: str) -> int:
        """Return the index after the bracket that ends the whole text. The bracket may be missing."""
        rest = self.text[at:].strip("` \t\r\n")
        if self._choices is None and close in rest and not rest.strip(CLOSERS + " \t\r\n"):
            return len(self.text)  # perhaps with others that are doubled
        end = self._find_end(at, close, 0, 0)
        if end is None:
            raise UnreadableCall("text follows the arguments")
        return end

    def _skip_separator(self, at: int, parts: list[str]) -> int:
        separator = _SEPARATOR.match(self.text, skip_space(self.text, at))
        if separator is None:
            raise UnreadableCall("an argument has no value")
        end = skip_space(self.text, separator.end())
        parts.append(self.text[at:end].replace("=", ":") if self.style is Style.JSON else ": ")
        return end

    def _read_key(self, at: int) -> tuple[str, int] | None:
        """Return a key; None if no key with a separator after it stands here."""
        try:
            if self._starts_string(at):
                key, _, end = self._read_quoted(at)
            else:
                pattern = _PYTHON_KEY if self.style is Style.PYTHON else _KEY
                if (word := pattern.match(self.text, at)) is None:
                    return None
                key, end = word[0].strip(), word.end()
        except UnreadableCall:
            return None
        return (key, end) if key and _SEPARATOR.match(self.text, skip_space(self.text, end)) else None

    # ---- values
    def read_value(self, at: int, shape: Shape, depth: int = 1) -> tuple[str, int]:
        at = skip_space(self.text, at)
        if depth > MAX_DEPTH:
            raise UnreadableCall("it is nested too deep")
        opening = self.text[at : at + 1]
        if opening == "{":
            text, _, at = self._read_members(at + 1, shape, "}", depth)
            return text, at
        if opening == "[":
            return self._read_items(at + 1, "]", depth, lambda at: self.read_value(at, shape.items, depth + 1))
        if opening == "(" and self.style is Style.PYTHON:
            return self._read_parentheses(at + 1, shape, depth)
        if self._starts_string(at):
            value, text, at = self._read_quoted(at)
            if not shape.types or "string" in shape.types:
                return text, at
            return read_as_type(value, shape, Style.JSON) or text, at  # models quote too much
        word = _WORD.match(self.text, at)
        if word is not None and self.is_json:
            return dump_json(word[0]) if shape.is_text_for(find_kind(word[0])) else word[0], word.end()
        if word is not None and (literal := read_word(word[0], shape, self.style)) is not None:
            return literal, word.end()
        return self._read_bare(at, shape)

    def _read_parentheses(self, at: int, shape: Shape, depth: int) -> tuple[str, int]:
        """Read a tuple, or the only value between parentheses."""
        is_list, values = not shape.types or "array" in shape.types, list[str]()

        def read_item(at: int) -> tuple[str, int]:
            value, at = self.read_value(at, shape.items if is_list else shape, depth + 1)
            values.append(value)
            return value, at

        text, end = self._read_items(at, ")", depth, read_item)
        if len(values) != 1 or self.text[at:end].removesuffix(")").rstrip().endswith(","):
            return text, end
        if shape.types and is_list:
            raise UnreadableCall("a value in parentheses may be the only item of a list")
        return values[0], end

    def _read_bare(self, at: int, shape: Shape) -> tuple[str, int]:
        is_text = "string" in shape.types if shape.types else self.style is Style.GEMMA
        if not is_text or _BARE_START.match(self.text, at) is None:
            raise UnreadableCall("a value is neither quoted nor a literal")
        self.is_doubtful = True
        ends = [end.start() for end in _BARE_END.finditer(self.text, at) if self._may_be_bare(at, end.start(), shape)]
        end = self._choose(ends)
        value = self.text[at:end].strip()
        if self.style is not Style.GEMMA and _CODE.search(value):
            self.flaw = "a value may be code, or a string without quotes"
        return dump_json(value), end

    def _may_be_bare(self, at: int, end: int, shape: Shape) -> bool:
        value = self.text[at:end].strip()
        return value in shape.texts if shape.texts else bool(value) and GEMMA_QUOTE not in value

    # ---- quoted strings
    def _starts_string(self, at: int) -> bool:
        if self.style is Style.GEMMA and self.text.startswith(GEMMA_QUOTE, at):
            return True
        if self.style is Style.PYTHON and _NEXT_STRING.match(self.text, at):
            return True
        return self.text[at : at + 1] in _QUOTES and at < len(self.text)

    def _read_quoted(self, at: int) -> tuple[str, str, int]:
        if self.style is Style.GEMMA and self.text.startswith(GEMMA_QUOTE, at):
            end = self.text.find(GEMMA_QUOTE, at + len(GEMMA_QUOTE))
            if end < 0:
                raise UnreadableCall("a string has no end")
            value = self.text[at + len(GEMMA_QUOTE) : end]
            return value, dump_json(value), end + len(GEMMA_QUOTE)
        if self.style is Style.PYTHON and (python := self._read_python_string(at)) is not None:
            return python
        quote = self.text[at : at + 1]
        if quote not in _QUOTES:
            raise UnreadableCall("a string has no end")
        end = self._find_string_end(at + 1, _QUOTES[quote])
        return *self._decode(quote, self.text[at + 1 : end]), end + 1

    def _find_string_end(self, at: int, close: str) -> int:
        first = _FIRST_QUOTES[close].match(self.text, at)
        ends = self._list_ends(close)
        nearest = bisect.bisect_left(ends, at)
        if first is None or nearest == len(ends) or ends[nearest] != first.end() - 1:
            self.is_doubtful = True
        end = self._choose(ends, nearest)
        if first is not None and first.end() <= end and is_code(self.text[at - 1 : end + 1]):
            self.flaw = "a value may be code, or a string with quotes in it"
        return end

    def _list_ends(self, close: str) -> list[int]:
        """Return the places of all unescaped quotes after which a value may end."""
        if close not in self._ends:
            self._ends[close] = [found.start(1) for found in _END_QUOTES[close].finditer(self.text)]
        return self._ends[close]

    def _choose(self, ends: Sequence[int], nearest: int = 0) -> int:
        """Return one of these places, from the nearest one on."""
        if nearest == len(ends):
            raise UnreadableCall("a string has no end")
        index = len(self._num_ends)
        self._num_ends.append(len(ends) - nearest)
        return ends[nearest + (self._choices[index] if self._choices and index < len(self._choices) else 0)]

    def _read_python_string(self, at: int) -> tuple[str, str, int] | None:
        """Read a string in three quotes, or with a letter before its quotes; None if there is none."""
        found = _PYTHON_STRING.match(self.text, at)
        if found is None:
            return None
        if not found["raw"] and _CONTINUED_LINE.search(found["text"]):
            raise UnreadableCall("a backslash may continue its line, or be text")
        value = found["text"] if found["raw"] else unescape(found["text"], "", Style.PYTHON)
        return value, dump_json(value), found.end()

    def _decode(self, quote: str, text: str) -> tuple[str, str]:
        if self.style is Style.GEMMA:
            if "\\" in text:
                raise UnreadableCall("a backslash may be an escape, or text")
            return text, dump_json(text)
        if self.style is Style.JSON and quote == '"':
            written = "".join(part or "" for part in JsonReader().push(f'"{text}"'))
            if is_json(written):
                return str(read_json(written)), written
        value = unescape(text, quote + _QUOTES[quote], self.style)
        return value, dump_json(value)


def read_as_type(text: str, shape: Shape, style: Style) -> str | None:
    """Return the JSON value that a text spells, where the schema wants no string; None if it spells no such value."""

    def parse(reader: LenientText) -> str:
        value, at = reader.read_value(0, shape)
        reader.finish(at)
        return value

    try:
        value = read_only_meaning(text, style, parse)
    except UnreadableCall:
        return None
    return value if shape.admits(find_kind(value)) else None


def _assign(values: Sequence[str], shape: Shape, found: Mapping[str, str]) -> dict[str, str]:
    """Assign the unnamed arguments to the names that their types leave open."""
    free = [name for name in shape.properties if name not in found]
    if len(free) ** len(values) > MAX_ASSIGNMENTS or len(values) > len(free):
        raise UnreadableCall("arguments have no names")
    kinds = [find_kind(value) for value in values]
    fitting = [
        names
        for names in permutations(free, len(values))
        if all(shape.child(name).admits(kind) for name, kind in zip(names, kinds, strict=True))
        and shape.required <= {*found, *names}
    ]
    if len(fitting) != 1:
        raise UnreadableCall("arguments have no names")
    return dict(zip(fitting[0], values, strict=True))
