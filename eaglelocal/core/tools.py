"""Tools: functions that a model may call, as a request offers them and as an answer calls them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum

from eaglelocal.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the caller can run."""

    name: str
    description: str = ""
    parameters: str = "{}"  # the JSON schema of its arguments
    is_strict: bool = False  # constrain arguments to the schema as tightly as the notation allows


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool by the model."""

    id: str
    name: str
    arguments: str  # JSON, as the model wrote it


@dataclass(frozen=True, slots=True)
class CallPart:
    """A part of a tool call, emitted while the model writes it. The first part of a call has its id and name."""

    index: int  # of the call in its answer, from 0
    arguments: str  # a piece of the arguments' JSON, in order
    id: str = ""
    name: str = ""


def join_calls(parts: Iterable[CallPart]) -> list[ToolCall]:
    """Join the parts to calls, in order. A call that was cut short has the arguments written so far."""
    calls: dict[int, ToolCall] = {}
    arguments: dict[int, list[str]] = {}
    for part in parts:
        if part.name:
            calls[part.index], arguments[part.index] = ToolCall(part.id, part.name, ""), []
        arguments[part.index].append(part.arguments)
    return [replace(call, arguments="".join(arguments[index])) for index, call in calls.items()]


class ToolUse(Enum):
    """The setting that allows, forbids or requires tool calls."""

    AUTO = "auto"  # the model decides
    NONE = "none"
    REQUIRED = "required"  # at least one


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """The request's settings for the tools it offers."""

    use: ToolUse = ToolUse.AUTO
    name: str = ""  # of the only function that may be called (then REQUIRED)
    parallel: bool = True  # several calls in one answer


ANY_TOOL = ToolChoice()


class Notation(Enum):
    """The syntax in which a model writes calls; it decides which parser reads them."""

    JSON = "json"  # an object, or an array of them, with name and arguments; or a name and then the arguments
    TAGS = "tags"  # each argument is text between tags
    PYTHON = "python"  # [look_up(word="owl")]
    GEMMA = "gemma"  # call:look_up{word:<|"|>owl<|"|>}
    BARE = "bare"  # JSON without a marker that distinguishes it from an answer
    HARMONY = "harmony"  # messages on channels


@dataclass(frozen=True, slots=True)
class MessageHeaders:
    """The headers of an answer that consists of several messages: markers and text, literally.

    reasoning    header of a message with reasoning
    text         header of a message to the user
    preamble     header of a message to the user that is followed by calls
    next_header  ends a message and begins the next one's header
    ends         further markers that end a message
    """

    reasoning: str
    text: str
    preamble: str
    next_header: str
    ends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """The syntax in which a family of models writes calls.

    label          for people and tests
    call           template of one call, with «name», «index» and «args»
    around         text before all calls of an answer, between two, and after all
    begin          marker that opens a block for the parser; `end` is the one that closes it
    inside         markers inside a block
    section        markers around the blocks of an answer, without meaning
    head           JSON: regular expression of the text before the arguments, with groups `name` and perhaps `id`
    tail           JSON: characters between arguments and end marker
    tags           TAGS: begin and end of a call inside its block, with «name»
    value          TAGS: template of one argument, with «key», «value» and perhaps «is_text»
    quotes         TAGS: optional quotes around a value, which may then contain anything
    is_one_call    an answer has only one call
    has_short_ids  ids are nine letters and digits
    ends_turn      the answer ends at this call's end marker, because the model would go on to invent results
    headers        of messages, if an answer consists of several
    """

    label: str
    notation: Notation
    call: str
    around: tuple[str, str, str] = ("", "", "")
    begin: str = ""
    end: str = ""
    inside: tuple[str, ...] = ()
    section: tuple[str, ...] = ()
    head: str = ""
    tail: str = ""
    tags: tuple[str, str] = ("", "")
    value: str = ""
    quotes: tuple[str, str] = ("", "")
    is_one_call: bool = False
    has_short_ids: bool = False
    ends_turn: bool = False
    headers: MessageHeaders | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(filter(None, (self.begin, self.end, *self.inside, *self.section))))

    @property
    def opening(self) -> str:
        """Return the marker that an answer's calls begin with; "" if there is none."""
        first = self.around[0] or self.call
        return max((marker for marker in self.markers if first.startswith(marker)), key=len, default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The markers by which an answer's text is split into reasoning, text and calls."""

    form: CallForm | None = None  # None: calls cannot be recognized
    reasoning_markers: tuple[str, str] | None = None  # around reasoning, unless `form` has headers for it
    reasoning_label: str = ""  # a word after the first of them that is not part of the reasoning
    in_reasoning: bool = False  # the prompt ends inside the reasoning
    in_text: bool = False  # the prompt ends inside the answer's text: no reasoning follows
    after_reasoning: bool = False  # the prompt has closed the reasoning: a constraint holds from the first token
    text_markers: tuple[str, str] = ("", "")  # around the text after the reasoning
    control_tokens: tuple[tuple[int, str], ...] = ()  # those among the markers, with their texts
    tools: tuple[Tool, ...] = ()  # that may be called; empty: calls are treated as text
    parallel: bool = True  # the answer may have several calls
