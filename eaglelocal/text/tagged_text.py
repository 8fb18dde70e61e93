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

from eaglelocal.core.json_text import MAX_DEPTH, is_deeper, read_json
from eaglelocal.core.tools import CallForm, Tool, ToolCall
from eaglelocal.text.call_forms import IS_TEXT, KEY, NAME, VALUE
from eaglelocal.text.tool_schemas import Schema, kinds_of, parameter_schemas

MAX_PYTHON_CHARS = 64 * 1024
TEXT: Schema = {"type": "string"}
ANYTHING: Schema = {}
_SPACE = re.compile(r"\s*")
_WORDS = {"true": True, "false": False, "null": None, "none": None}


class TaggedText:
    """Reads blocks of one form."""

    def __init__(self, form: CallForm, tools: Mapping[str, Tool]) -> None:
        self._tools = tools
        before, after = form.value.split(VALUE)
        self._pad = "\n" if before.endswith("\n") else ""
        begin, end = (part.strip() for part in form.tags)
        self._is_named = begin != NAME  # else the bare name stands there, and only an offered one is believed
        self._call = _pattern(begin, r"[^<>\"\s]+?" if self._is_named else r"[^<>\"\s]+")
        self._call_end = re.compile(re.escape(end))
        self._before = _pattern(before.strip())
        following = [self._before.pattern, re.escape(end) if end else r"\Z"]
        self._after = re.compile(rf"{re.escape(after.strip())}(?=\s*(?:{'|'.join(following)}))")

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

    def _read_call(self, text: str, at: int) -> tuple[ToolCall, int] | None:
        begun = self._call.match(text, at)
        if begun is None or not (self._is_named or begun["name"] in self._tools):
            return None
        schemas = parameter_schemas(self._tools.get(begun["name"]))
        arguments: dict[str, object] = {}
        at = _behind_space(text, begun.end())
        while (before := self._before.match(text, at)) is not None:
            after = self._after.search(text, before.end())
            if after is None:
                return None
            said = {"true": TEXT, "false": ANYTHING}.get(before.groupdict().get("is_text", ""))
            schema = schemas.get(before["key"], ANYTHING) if said is None else said
            arguments[before["key"]] = value_of(self._unpadded(text[before.end() : after.start()]), schema)
            at = _behind_space(text, after.end())
        ended = self._call_end.match(text, at)
        if ended is None:
            return None
        return ToolCall("", begun["name"], json.dumps(arguments, ensure_ascii=False)), ended.end()

    def _unpadded(self, value: str) -> str:
        return value.removeprefix(self._pad).removesuffix(self._pad) if self._pad else value


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
        return read_json(text)
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
        return json.loads(json.dumps(value, allow_nan=False))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
