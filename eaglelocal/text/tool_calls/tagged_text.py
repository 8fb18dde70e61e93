"""A reader of calls with arguments as text between tags, typed by the tool's schema: Qwen Coder, GLM, MiniMax.

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

from eaglelocal.core.json_text import MAX_DEPTH, is_nested_deeper, read_json
from eaglelocal.core.tools import CallForm, Tool, ToolCall
from eaglelocal.text.tool_calls.call_forms import IS_TEXT, KEY, NAME, VALUE
from eaglelocal.text.tool_calls.schema_parts import Schema
from eaglelocal.text.tool_calls.tool_schemas import has_required, kinds_of, parameter_schemas

MAX_PYTHON_CHARS = 64 * 1024
TEXT: Schema = {"type": "string"}
ANYTHING: Schema = {}
_SPACE = re.compile(r"\s*")
_WORDS = {"true": True, "false": False, "null": None, "none": None}


@dataclass(frozen=True, slots=True)
class Begun:
    """The certain part of a block that goes on.

    calls     each with whether it is complete; the arguments of an incomplete one are JSON without its end
    at        index after the last complete argument
    value_at  where the text of an unfinished argument begins; -1: there is none
    text_at   up to where that text is in the last arguments
    """

    calls: list[tuple[ToolCall, bool]]
    at: int
    value_at: int = -1
    text_at: int = -1


class TaggedText:
    """A reader of blocks of one form."""

    def __init__(self, form: CallForm, tools: Mapping[str, Tool]) -> None:
        self._tools = tools
        before, after = form.value.split(VALUE)
        self._value_end = after.strip()
        self._pad = "\n" if before.endswith("\n") else ""
        self._quotes = form.quotes
        begin, end = (part.strip() for part in form.tags)
        self._is_named = begin != NAME  # else the name has no tag, and must be that of an offered tool
        self._call = _pattern(begin, r"[^<>\"\s]+?" if self._is_named else r"[^<>\"\s]+")
        self._call_end = re.compile(re.escape(end))
        self._before = _pattern(before.strip())
        self._tags = (before.partition(KEY)[0].strip(), end)
        last_tag = "<" + before.rpartition("<")[2]
        beginnings = (last_tag.partition(KEY)[0].strip(), begin.partition(NAME)[0], self._value_end)
        self._telling = tuple(filter(None, beginnings))  # beginnings of tags that can make something certain
        ending, beginning = re.escape(end), rf"\s*{self._call.pattern}"
        self._after = _closing(after, self._before.pattern, ending or r"\Z")
        self._after_surely = _closing(after, self._before.pattern, *([ending + beginning] if end else ()))
        self._surely_ended = re.compile(f"{ending}(?={beginning})")

    def __call__(self, text: str) -> list[ToolCall] | None:
        """Return the calls, without ids; None if the text is none."""
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
        """Return the calls of offered tools in a text that goes on.

        A call is certain when its first argument begins. The end of an argument or call is certain when another part of
        a call follows; else it may be text in a value. What is returned stays so, whatever follows.
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
        """Return the certain text of a value that begins at `at`, where it begins and where the certain part ends.

        Both are -1 if its end may be there.
        """
        end = text.find(self._value_end, at)
        if end >= 0:  # it may be text
            return self._unpadded(text[at:end]), -1, -1
        more, text_at = self.more(text, at, at)
        return more, at, text_at

    def more(self, text: str, value_at: int, text_at: int) -> tuple[str, int]:
        """Return the certain text from `text_at` of a value without any closing tag, and where it ends."""
        if text_at == value_at and text.startswith(self._pad, text_at):
            text_at += len(self._pad)
        endings = (self._pad + self._value_end, self._value_end)
        tail = text[max(text_at, len(text) - len(endings[0])) :]
        sure = len(text) - max(_overlap(tail, ending) for ending in endings)
        return text[text_at:sure], sure

    def has_news(self, text: str, seen: int) -> bool:
        """Return whether a tag that can make something certain ends after the first `seen` characters."""
        if self._quotes[0] and text[seen - 1 : seen] == ">":  # what follows shows whether a value is quoted
            return True
        at = text.find(">", seen)
        while at >= 0:  # a tag ends at the first ">" after its beginning
            begin = text.rfind("<", text.rfind(">", 0, at) + 1, at)
            if begin >= 0 and text.startswith(self._telling, begin):
                return True
            at = text.find(">", at + 1)
        return False

    def lacks_only_its_end(self, text: str) -> bool:
        """Return whether the last call, begun and incomplete, has its required arguments and lacks only its end tag."""
        begun = self.begun(text)
        call, _ = begun.calls[-1]
        has_end = self._tags[1].startswith(text[begun.at :].strip())
        return has_end and has_required(self._tools.get(call.name), call.arguments + "}")

    def may_go_on(self, text: str) -> bool:
        """Return whether arguments, or a call's end, can follow the tag that begins it."""
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
        """Return the complete arguments, and the index where they end or an incomplete one begins."""
        schemas = parameter_schemas(self._tools.get(name))
        arguments: dict[str, object] = {}
        while (before := self._before.match(text, at)) is not None:
            after = closing.search(text, self._unquoted_at(text, before.end()))
            if after is None:
                break
            value = value_of(self._unpadded(text[before.end() : after.start()]), _schema_of(before, schemas))
            arguments.setdefault(before["key"], value)  # what was emitted stays
            at = _behind_space(text, after.end())
        return arguments, at

    def _unquoted_at(self, text: str, at: int) -> int:
        """Return the index from which the value at `at` may end: after its quotes, if it has any."""
        first, last = self._quotes
        if not first or not text.startswith(first, at):
            return at
        end = text.find(last, at)
        return end + len(last) if end >= 0 else len(text)

    def _begun_text(self, text: str, at: int, name: str, arguments: Mapping[str, object]) -> re.Match[str] | None:
        """Return the match of the tag at `at` if the value after it can only be a string; else None."""
        before = self._before.match(text, at)
        if before is None or before["key"] in arguments:
            return None
        schema = _schema_of(before, parameter_schemas(self._tools.get(name)))
        is_plain = not self._quotes[0] or text[before.end() : before.end() + 1] not in ("", self._quotes[0][0])
        return before if is_plain and kinds_of(schema) == {"string"} else None

    def _next_at(self, text: str, at: int) -> int:
        """Return the index after the tag that ends a call, if it is at `at` and another call follows; else 0."""
        ended = self._surely_ended.match(text, at) if self._tags[1] else None
        return ended.end() if ended else 0

    def _unpadded(self, value: str) -> str:
        first, last = self._quotes
        if first and value.startswith(first) and value.endswith(last):
            return value[len(first) : len(value) - len(last)]
        return value.removeprefix(self._pad).removesuffix(self._pad) if self._pad else value


def _overlap(text: str, ending: str) -> int:
    """Return how many characters at the end of the text could begin `ending`."""
    return next(length for length in range(len(ending), -1, -1) if text.endswith(ending[:length]))


def _schema_of(before: re.Match[str], schemas: Mapping[str, Schema]) -> Schema:
    """Return the schema of the argument that this tag begins."""
    said = {"true": TEXT, "false": ANYTHING}.get(before.groupdict().get("is_text", ""))
    return schemas.get(before["key"], ANYTHING) if said is None else said


def _written(arguments: Mapping[str, object]) -> str:
    return json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def _closing(after: str, *following: str) -> re.Pattern[str]:
    """Return a pattern for the tag after a value, where one of these follows."""
    return re.compile(rf"{re.escape(after.strip())}(?=\s*(?:{'|'.join(following)}))")


def _pattern(written: str, name: str = "") -> re.Pattern[str]:
    """Return a pattern for a tag of a form: any white space for white space, groups for fields."""
    fields = {NAME: f"(?P<name>{name})", KEY: r"(?P<key>[^<>\"\n]+?)", IS_TEXT: "(?P<is_text>true|false)"}
    parts = re.split("(«\\w+»|\\s+)", written)
    return re.compile("".join(fields.get(part) or (r"\s*" if part.isspace() else re.escape(part)) for part in parts))


def _behind_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def value_of(text: str, schema: Schema) -> object:
    """Return the value of a text: a string where the schema wants one; else JSON or a Python literal, if it is one."""
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
    """Return a list or a dict as Python prints it; the text itself if it is none."""
    if len(text) > MAX_PYTHON_CHARS:
        return text
    try:
        value = ast.literal_eval(text.strip())
        if is_nested_deeper(value, MAX_DEPTH):
            return text
        return read_json(json.dumps(value, allow_nan=False))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
