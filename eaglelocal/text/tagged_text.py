"""Calls whose arguments are texts between tags, with types that the tool's schema knows: Qwen Coder, GLM, MiniMax.

<function=look_up>
<parameter=word>
owl
</parameter>
</function>             -> look_up {"word": "owl"}

A value goes on to the first closing tag that is followed by another value or by the end of the call, so that it may
quote tags.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from eaglelocal.core.json_text import MAX_DEPTH, is_deeper, read_json
from eaglelocal.core.tools import CallForm, Tool, ToolCall
from eaglelocal.text.call_forms import IS_TEXT, KEY, NAME, VALUE
from eaglelocal.text.schema_parts import Schema
from eaglelocal.text.tool_schemas import has_required, kinds_of, parameter_schemas

MAX_PYTHON_CHARS = 64 * 1024
TEXT: Schema = {"type": "string"}
ANYTHING: Schema = {}
_SPACE = re.compile(r"\s*")
_WORDS = {"true": True, "false": False, "null": None, "none": None}


@dataclass(frozen=True, slots=True)
class Begun:
    """What is sure of a block that goes on.

    calls     and whether each is whole; the arguments of one that is not are JSON without its end
    at        behind the last argument that is whole
    value_at  there begins the text of an argument that goes on up to the next tag; -1: none does
    text_at   up to there it is among the last arguments
    """

    calls: list[tuple[ToolCall, bool]]
    at: int
    value_at: int = -1
    text_at: int = -1


class TaggedText:
    """Reads blocks of one form."""

    def __init__(self, form: CallForm, tools: Mapping[str, Tool]) -> None:
        self._tools = tools
        before, after = form.value.split(VALUE)
        self._value_end = after.strip()
        self._pad = "\n" if before.endswith("\n") else ""
        self._quotes = form.quotes
        begin, end = (part.strip() for part in form.tags)
        self._is_named = begin != NAME  # else the bare name stands there, and only an offered one is believed
        self._call = _pattern(begin, r"[^<>\"\s]+?" if self._is_named else r"[^<>\"\s]+")
        self._call_end = re.compile(re.escape(end))
        self._before = _pattern(before.strip())
        self._tags = (before.partition(KEY)[0].strip(), end)
        last_tag = "<" + before.rpartition("<")[2]
        beginnings = (last_tag.partition(KEY)[0].strip(), begin.partition(NAME)[0], self._value_end)
        self._telling = tuple(filter(None, beginnings))  # how tags begin that can make something sure
        ending, beginning = re.escape(end), rf"\s*{self._call.pattern}"
        self._after = _closing(after, self._before.pattern, ending or r"\Z")
        self._after_surely = _closing(after, self._before.pattern, *([ending + beginning] if end else ()))
        self._surely_ended = re.compile(f"{ending}(?={beginning})")

    def __call__(self, text: str) -> list[ToolCall] | None:
        """The calls, without ids; None if the text is none."""
        calls: list[ToolCall] = []
        at = _behind_space(text, 0)
        while at < len(text):
            found = self._read_call(text, at)
            if found is None:
                return None
            call, at = found
            calls.append(call)
            at = _behind_space(text, at)
        return calls or None

    def begun(self, text: str) -> Begun:
        """Calls of offered tools in a text that goes on.

        One is sure when its first argument begins, the end of an argument or of a call where more follows that is part
        of one: else it may be a text in a value. What is found stays so, whatever follows.
        """
        found: list[tuple[ToolCall, bool]] = []
        at, value_at, text_at = _behind_space(text, 0), -1, -1
        while (begun := self._call.match(text, at)) is not None and begun["name"] in self._tools:
            at = _behind_space(text, begun.end())
            if not self._before.match(text, at) and not self._next_at(text, at):
                break
            arguments, at = self._arguments(text, at, begun["name"], self._after_surely)
            end = self._next_at(text, at)
            if end:
                found.append((ToolCall("", begun["name"], _written(arguments)), True))
                at = _behind_space(text, end)
                continue
            written = _written(arguments)[:-1]
            if (before := self._begun_text(text, at, begun["name"], arguments)) is not None:
                value, value_at, text_at = self._open_text(text, before.end())
                written = _written({**arguments, before["key"]: value})[:-2]
            found.append((ToolCall("", begun["name"], written), False))
            break
        return Begun(found, at, value_at, text_at)

    def _open_text(self, text: str, at: int) -> tuple[str, int, int]:
        """What is sure of a value that begins there, where it begins, if it goes on, and up to where it is sure."""
        end = text.find(self._value_end, at)
        if end >= 0:  # which may be text
            return self._unpadded(text[at:end]), -1, -1
        more, text_at = self.more(text, at, at)
        return more, at, text_at

    def more(self, text: str, value_at: int, text_at: int) -> tuple[str, int]:
        """Of a value in which no tag has its end: what is sure from `text_at`, and up to where."""
        if text_at == value_at and text.startswith(self._pad, text_at):
            text_at += len(self._pad)
        endings = (self._pad + self._value_end, self._value_end)
        tail = text[max(text_at, len(text) - len(endings[0])) :]
        sure = len(text) - max(_overlap(tail, ending) for ending in endings)
        return text[text_at:sure], sure

    def has_news(self, text: str, seen: int) -> bool:
        """Behind what was seen, does a tag end that can make something sure?"""
        if self._quotes[0] and text[seen - 1 : seen] == ">":  # what follows tells whether a value stands in quotes
            return True
        at = text.find(">", seen)
        while at >= 0:  # a tag ends with the first of them behind its beginning
            begin = text.rfind("<", text.rfind(">", 0, at) + 1, at)
            if begin >= 0 and text.startswith(self._telling, begin):
                return True
            at = text.find(">", at + 1)
        return False

    def lacks_only_its_end(self, text: str) -> bool:
        """Of a text whose last call is begun and not whole: has it what it must have, and all of that its end?"""
        begun = self.begun(text)
        call, _ = begun.calls[-1]
        has_end = self._tags[1].startswith(text[begun.at :].strip())
        return has_end and has_required(self._tools.get(call.name), call.arguments + "}")

    def may_go_on(self, text: str) -> bool:
        """Behind the tag that begins a call, are there arguments, or its end?"""
        begun = self._call.match(text)
        rest = text[begun.end() :].lstrip() if begun else ""
        return any(rest.startswith(tag) or tag.startswith(rest) for tag in self._tags)

    def _read_call(self, text: str, at: int) -> tuple[ToolCall, int] | None:
        begun = self._call.match(text, at)
        if begun is None or not (self._is_named or begun["name"] in self._tools):
            return None
        arguments, at = self._arguments(text, _behind_space(text, begun.end()), begun["name"], self._after)
        ended = self._call_end.match(text, at)
        if ended is None or self._before.match(text, at):
            return None
        return ToolCall("", begun["name"], _written(arguments)), ended.end()

    def _arguments(self, text: str, at: int, name: str, closing: re.Pattern[str]) -> tuple[dict[str, object], int]:
        """Those that are whole, and where the next begins, which is not, or where they end."""
        schemas = parameter_schemas(self._tools.get(name))
        arguments: dict[str, object] = {}
        while (before := self._before.match(text, at)) is not None:
            after = closing.search(text, self._unquoted_at(text, before.end()))
            if after is None:
                break
            value = value_of(self._unpadded(text[before.end() : after.start()]), _schema_of(before, schemas))
            arguments.setdefault(before["key"], value)  # what is told once stays told
            at = _behind_space(text, after.end())
        return arguments, at

    def _unquoted_at(self, text: str, at: int) -> int:
        """From where a value that begins there may have its end: behind its quotes, if it has some."""
        first, last = self._quotes
        if not first or not text.startswith(first, at):
            return at
        end = text.find(last, at)
        return end + len(last) if end >= 0 else len(text)

    def _begun_text(self, text: str, at: int, name: str, arguments: Mapping[str, object]) -> re.Match[str] | None:
        """The tag that stands here, if the value behind it can only be a text."""
        before = self._before.match(text, at)
        if before is None or before["key"] in arguments:
            return None
        schema = _schema_of(before, parameter_schemas(self._tools.get(name)))
        is_plain = not self._quotes[0] or text[before.end() : before.end() + 1] not in ("", self._quotes[0][0])
        return before if is_plain and kinds_of(schema) == {"string"} else None

    def _next_at(self, text: str, at: int) -> int:
        """Behind the tag that ends a call, if it stands here and another call follows; else 0."""
        ended = self._surely_ended.match(text, at) if self._tags[1] else None
        return ended.end() if ended else 0

    def _unpadded(self, value: str) -> str:
        first, last = self._quotes
        if first and value.startswith(first) and value.endswith(last):
            return value[len(first) : len(value) - len(last)]
        return value.removeprefix(self._pad).removesuffix(self._pad) if self._pad else value


def _overlap(text: str, ending: str) -> int:
    """How many characters at the end of the text could begin this."""
    return next(length for length in range(len(ending), -1, -1) if text.endswith(ending[:length]))


def _schema_of(before: re.Match[str], schemas: Mapping[str, Schema]) -> Schema:
    """Of the argument that this tag begins."""
    said = {"true": TEXT, "false": ANYTHING}.get(before.groupdict().get("is_text", ""))
    return schemas.get(before["key"], ANYTHING) if said is None else said


def _written(arguments: Mapping[str, object]) -> str:
    return json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def _closing(after: str, *following: str) -> re.Pattern[str]:
    """The tag behind a value, where one of these follows."""
    return re.compile(rf"{re.escape(after.strip())}(?=\s*(?:{'|'.join(following)}))")


def _pattern(written: str, name: str = "") -> re.Pattern[str]:
    """Of a tag as it is written: any white space for white space, groups for fields."""
    fields = {NAME: f"(?P<name>{name})", KEY: r"(?P<key>[^<>\"\n]+?)", IS_TEXT: "(?P<is_text>true|false)"}
    parts = re.split("(«\\w+»|\\s+)", written)
    return re.compile("".join(fields.get(part) or (r"\s*" if part.isspace() else re.escape(part)) for part in parts))


def _behind_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def value_of(text: str, schema: Schema) -> object:
    """A text stays one where a string is asked for; elsewhere it is JSON, or what Python prints, if it can be."""
    kinds, word = kinds_of(schema), text.strip().lower()
    if kinds == {"string"} or (kinds == {"string", "null"} and _WORDS.get(word, "") is not None):
        return text
    try:
        return read_json(text, is_finite=True)
    except ValueError:
        pass
    if word in _WORDS:
        return _WORDS[word]
    return python_value(text) if text.lstrip()[:1] in ("{", "[", "(") else text


def python_value(text: str) -> object:
    """A list or a dict as Python prints it; the text itself if it is none."""
    if len(text) > MAX_PYTHON_CHARS:
        return text
    try:
        value = ast.literal_eval(text.strip())
        if is_deeper(value, MAX_DEPTH):
            return text
        return read_json(json.dumps(value, allow_nan=False))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
