"""A reader of calls with arguments as text between tags, typed by the tool's schema: Qwen Coder, GLM, MiniMax.

<function=look_up>
<parameter=word>
owl
</parameter>
</function>             -> look_up {"word": "owl"}

A value extends to the first closing tag that is followed by another value or by the end of the call, so that it may
quote tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from eaglelocal.core.json_text import read_json
from eaglelocal.core.records import dataclass
from eaglelocal.core.tools import CallForm, Tool, ToolCall
from eaglelocal.text.tool_calls.call_forms import IS_TEXT, KEY, NAME, VALUE
from eaglelocal.text.tool_calls.json_spans import skip_space
from eaglelocal.text.tool_calls.lenient_literals import Style, UnreadableCall
from eaglelocal.text.tool_calls.lenient_values import read_as_type
from eaglelocal.text.tool_calls.tool_schemas import ANYTHING, Shape, find_tool_name, has_required, name_type

TEXT = Shape({"type": "string"}, {})
OBJECT = Shape({"type": "object"}, {})
_WORDS = {"true": True, "false": False, "null": None, "none": None}


@dataclass(frozen=True, slots=True)
class PartialCalls:
    """The certain part of an unfinished block.

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
        self._call = _compile_tag(begin, r"[^<>\"\s]+?" if self._is_named else r"[^<>\"\s]+")
        self._call_end = re.compile(re.escape(end))
        self._before = _compile_tag(before.strip())
        self._tags = (before.partition(KEY)[0].strip(), end)
        self._call_begin = begin.partition(NAME)[0] or form.begin
        last_tag = "<" + before.rpartition("<")[2]
        beginnings = (last_tag.partition(KEY)[0].strip(), begin.partition(NAME)[0], self._value_end)
        self._tag_starts = tuple(filter(None, beginnings))  # beginnings of tags that can make something certain
        ending, beginning = re.escape(end), rf"\s*{self._call.pattern}"
        self._after = _compile_value_end(after, self._before.pattern, ending or r"\Z")
        self._certain_value_end = _compile_value_end(
            after, self._before.pattern, *([ending + beginning] if end else ())
        )
        self._certain_call_end = re.compile(f"{ending}(?={beginning})")

    def __call__(self, text: str) -> list[ToolCall]:
        """Return the calls of a complete block, without ids. Raises UnreadableCall if it is not a block of calls."""
        calls: list[ToolCall] = []
        at = skip_space(text, 0)
        while at < len(text):
            call, at = self._read_call(text, at)
            calls.append(call)
            at = skip_space(text, at)
        if not calls:
            raise UnreadableCall("")
        return calls

    def read_partial(self, text: str) -> PartialCalls:
        """Return the calls of offered tools in an unfinished text.

        A call is certain when its first argument begins. The end of an argument or call is certain when another part of
        a call follows; else it may be text in a value. Whatever follows, the result stays true.
        """
        found: list[tuple[ToolCall, bool]] = []
        at, value_at, text_at = skip_space(text, 0), -1, -1
        while (opening := self._call.match(text, at)) and (name := self._find_name(opening)) in self._tools:
            at = skip_space(text, opening.end())
            if not self._before.match(text, at) and not self._find_next_call(text, at):
                break
            arguments, at, _ = self._read_arguments(text, at, name, self._certain_value_end)
            end = self._find_next_call(text, at)
            if end:
                found.append((ToolCall("", name, _to_json(arguments)), True))
                at = skip_space(text, end)
                continue
            partial = _to_json(arguments)[:-1]
            if (open_string := self._match_open_string(text, at, name, arguments)) is not None:
                key, begin = open_string
                value, value_at, text_at = self._read_open_string(text, begin)
                partial = _to_json({**arguments, key: value})[:-2]
            found.append((ToolCall("", name, partial), False))
            break
        return PartialCalls(found, at, value_at, text_at)

    def _read_open_string(self, text: str, at: int) -> tuple[str, int, int]:
        """Return the certain text of a value that begins at `at`, where it begins and where the certain part ends.

        Both are -1 if its end may be there.
        """
        end = text.find(self._value_end, at)
        if end >= 0:  # it may be text
            return self._strip_padding(text[at:end]), -1, -1
        more, text_at = self.read_more(text, at, at)
        return more, at, text_at

    def read_more(self, text: str, value_at: int, text_at: int) -> tuple[str, int]:
        """Return the certain text from `text_at` of a value without any closing tag, and where it ends."""
        if text_at == value_at and text.startswith(self._pad, text_at):
            text_at += len(self._pad)
        endings = (self._pad + self._value_end, self._value_end)
        tail = text[max(text_at, len(text) - len(endings[0])) :]
        certain_end = len(text) - max(_overlap(tail, ending) for ending in endings)
        return text[text_at:certain_end], certain_end

    def has_new_tag(self, text: str, num_read: int) -> bool:
        """Return whether a tag ends after the first `num_read` characters that can make something certain."""
        if self._quotes[0] and text[num_read - 1 : num_read] == ">":  # what follows shows whether a value is quoted
            return True
        at = text.find(">", num_read)
        while at >= 0:  # a tag ends at the first ">" after its beginning
            begin = text.rfind("<", text.rfind(">", 0, at) + 1, at)
            if begin >= 0 and text.startswith(self._tag_starts, begin):
                return True
            at = text.find(">", at + 1)
        return False

    def lacks_only_end_tag(self, text: str) -> bool:
        """Return whether the last call, which is incomplete, has its required arguments and lacks only its end tag."""
        partial = self.read_partial(text)
        call, _ = partial.calls[-1]
        has_end = self._tags[1].startswith(text[partial.at :].strip())
        return has_end and has_required(self._tools.get(call.name), call.arguments + "}")

    def may_continue(self, text: str) -> bool:
        """Return whether arguments, or a call's end, can follow the tag that begins it."""
        opening = self._call.match(text)
        rest = text[opening.end() :].lstrip() if opening else ""
        return any(rest.startswith(tag) or tag.startswith(rest) for tag in self._tags)

    def _read_call(self, text: str, at: int) -> tuple[ToolCall, int]:
        opening = self._call.match(text, at)
        name = self._find_name(opening) if opening else ""
        if opening is None or not (self._is_named or name in self._tools):
            raise UnreadableCall("")
        arguments, at, problem = self._read_arguments(text, skip_space(text, opening.end()), name, self._after)
        end = self._call_end.match(text, at)
        if end is None or self._before.match(text, at) or problem:
            raise UnreadableCall(problem or "a tag is missing")
        return ToolCall("", name, _to_json(arguments)), end.end()

    def _find_name(self, opening: re.Match[str]) -> str:
        return find_tool_name(opening["name"], self._tools)

    def _read_arguments(
        self, text: str, at: int, name: str, closing: re.Pattern[str]
    ) -> tuple[dict[str, object], int, str]:
        """Return the complete arguments, where they end or an incomplete one begins, and why they do not count."""
        shape = Shape.of_tool(self._tools.get(name))
        arguments, problem = dict[str, object](), ""
        while (before := self._before.match(text, at)) is not None:
            after = closing.search(text, self._skip_quotes(text, before.end()))
            if after is None:
                break
            key, value = shape.find_key(before["key"], arguments), text[before.end() : after.start()]
            if self._may_end_earlier(value, shape):
                problem = "a tag within a value may be its end"
                break
            arguments.setdefault(
                key, parse_value(self._strip_padding(value), _get_shape(before, key, shape))
            )  # as emitted
            at = skip_space(text, after.end())
        wrapped = next((value for key, value in arguments.items() if shape.is_wrapper(key)), None)
        if isinstance(wrapped, dict) and len(arguments) > 1:
            problem = "arguments stand beside others"
        return wrapped if isinstance(wrapped, dict) else arguments, at, problem

    def _may_end_earlier(self, value: str, shape: Shape) -> bool:
        """Return whether a value contains another argument, closing tag included, or its own closing tag twice.

        The other argument belongs to this tool, or to a call that the value quotes.
        """
        if self._value_end not in value and self._tags[0] not in value:
            return False
        if self._quotes[0] and value.startswith(self._quotes[0]):
            return False
        keys = [found["key"] for found in self._before.finditer(value)]
        has_call = self._call_begin in value
        num_named = sum(1 for key in keys if has_call or key in shape.properties)
        num_ends = value.count(self._value_end)
        return num_named > num_ends or (num_ends > len(keys) and value.rstrip().endswith(self._value_end))

    def _skip_quotes(self, text: str, at: int) -> int:
        """Return the index from which the value at `at` may end: after its quotes, if it has any."""
        first, last = self._quotes
        if not first or not text.startswith(first, at):
            return at
        end = text.find(last, at)
        return end + len(last) if end >= 0 else len(text)

    def _match_open_string(
        self, text: str, at: int, name: str, arguments: Mapping[str, object]
    ) -> tuple[str, int] | None:
        """Return the name and the beginning of the value whose tag is at `at` if it can only be a string; else None."""
        before, shape = self._before.match(text, at), Shape.of_tool(self._tools.get(name))
        if before is None or (key := shape.find_key(before["key"], arguments)) in arguments:
            return None
        is_plain = not self._quotes[0] or text[before.end() : before.end() + 1] not in ("", self._quotes[0][0])
        value = _get_shape(before, key, shape)
        is_open = is_plain and value.types == {"string"} and not value.texts  # enumerated texts lose blanks around them
        return (key, before.end()) if is_open else None

    def _find_next_call(self, text: str, at: int) -> int:
        """Return the index after the tag that ends a call, if it is at `at` and another call follows; else 0."""
        end = self._certain_call_end.match(text, at) if self._tags[1] else None
        return end.end() if end else 0

    def _strip_padding(self, value: str) -> str:
        first, last = self._quotes
        if first and value.startswith(first) and value.endswith(last):
            return value[len(first) : len(value) - len(last)]
        return value.removeprefix(self._pad).removesuffix(self._pad) if self._pad else value


def _overlap(text: str, ending: str) -> int:
    """Return how many characters at the end of the text could begin `ending`."""
    return next(length for length in range(len(ending), -1, -1) if text.endswith(ending[:length]))


def _get_shape(before: re.Match[str], key: str, shape: Shape) -> Shape:
    child, is_text = OBJECT if shape.is_wrapper(key) else shape.child(key), before.groupdict().get("is_text")
    if is_text == "true":
        return TEXT
    return ANYTHING if is_text == "false" and "string" in child.types else child


def _to_json(arguments: Mapping[str, object]) -> str:
    return json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def _compile_value_end(after: str, *following: str) -> re.Pattern[str]:
    """Return a pattern for the tag after a value, where one of these follows."""
    return re.compile(rf"{re.escape(after.strip())}(?=\s*(?:{'|'.join(following)}))")


def _compile_tag(tag: str, name: str = "") -> re.Pattern[str]:
    """Return a pattern for a tag of a form: any white space for white space, groups for fields."""
    quote = "[\"'“”‘’]?"  # models use other fields, or none
    fields = {NAME: f"(?P<name>{name})", KEY: r"(?P<key>[^<>\"\n]+?)"}
    fields = {field: f"{quote}{pattern}{quote}" for field, pattern in fields.items()}
    fields |= {IS_TEXT: "(?P<is_text>true|false)"}
    parts = re.split("(«\\w+»|\\s+)", tag)
    written = (r"\s*" if part.isspace() else re.escape(part).replace('"', quote) for part in parts)
    return re.compile("".join(fields.get(part) or pattern for part, pattern in zip(parts, written, strict=True)))


def parse_value(text: str, shape: Shape) -> object:
    """Convert a text to a value: a string if the schema wants one, else the JSON or Python literal that it spells."""
    types, word = shape.types, text.strip().lower()
    if text.strip() in shape.texts:
        return text.strip()
    if types == {"string"} or (types == {"string", "null"} and _WORDS.get(word, "") is not None):
        return text
    if types and "string" not in types:
        spelled = read_as_type(text, shape, Style.PYTHON)
        if spelled is not None:
            return read_json(spelled)
    try:
        value = read_json(text, is_finite=True)
    except ValueError:
        spelled = read_as_type(text, ANYTHING, Style.PYTHON) if text.lstrip()[:1] in ("{", "[", "(") else None
        value = _WORDS[word] if word in _WORDS else text if spelled is None else read_json(spelled)
    return text if shape.is_text_for(name_type(value)) else value
