"""Functions that a model may call, as a request offers them and as an answer uses them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the caller can run."""

    name: str
    description: str = ""
    parameters: str = "{}"  # JSON schema of its arguments, as JSON
    is_strict: bool = False  # arguments must fit the schema as tightly as their notation can be bound


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model wants a function run."""

    id: str
    name: str
    arguments: str  # JSON, as the model wrote it


@dataclass(frozen=True, slots=True)
class CallPart:
    """A part of a tool call, told as it is written. The first part of a call has its id and its name."""

    index: int  # of the call in its answer, from 0
    arguments: str  # JSON, to be joined with that of the parts before and behind
    id: str = ""
    name: str = ""


def joined(parts: Iterable[CallPart]) -> list[ToolCall]:
    """The calls that parts make up, in order; one that was cut short has the arguments that were written."""
    calls: dict[int, ToolCall] = {}
    arguments: dict[int, list[str]] = {}
    for part in parts:
        if part.name:
            calls[part.index], arguments[part.index] = ToolCall(part.id, part.name, ""), []
        arguments[part.index].append(part.arguments)
    return [replace(call, arguments="".join(arguments[index])) for index, call in calls.items()]


class ToolUse(Enum):
    """Whether functions are called."""

    AUTO = "auto"  # as the model likes
    NONE = "none"
    REQUIRED = "required"  # at least one


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """What a request says about the tools it offers."""

    use: ToolUse = ToolUse.AUTO
    name: str = ""  # of the only function that may be called (then REQUIRED)
    parallel: bool = True  # several calls in one answer


ANY_TOOL = ToolChoice()


class Notation(Enum):
    """In what an answer's calls are written, and so which parser reads them."""

    JSON = "json"  # an object, or an array of them, with name and arguments; or a name and then the arguments
    TAGS = "tags"  # every argument a text between tags
    PYTHON = "python"  # [look_up(word="owl")]
    GEMMA = "gemma"  # call:look_up{word:<|"|>owl<|"|>}
    BARE = "bare"  # JSON that no marker tells from an answer
    HARMONY = "harmony"  # messages on channels


@dataclass(frozen=True, slots=True)
class Turns:
    """An answer of several messages, each with a header: how those begin that matter, markers and text as they come.

    thought, said  headers of a message that is a thought, and of one to the person
    aside   header of one to the person where calls follow
    onward  what ends a message and begins the next one's header
    ends    further markers that end a message
    """

    thought: str
    said: str
    aside: str
    onward: str
    ends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """How a family of models writes calls.

    label    for people and tests
    call     one call; «name», «index» and «args» stand for what differs
    around   what stands before all calls of an answer, between two, and behind all
    begin    marker that opens what the parser reads as one block, and `end` the one that closes it
    inside   markers within a block
    section  markers around the blocks of an answer; they say nothing
    head     JSON: a regular expression of what stands before the arguments, with groups `name` and perhaps `id`
    tail     JSON: characters between arguments and end marker
    tags     TAGS: how a call begins and ends in its block, with «name»
    value    TAGS: one argument, with «key», «value» and perhaps «is_text»
    quotes   TAGS: what may stand around a value, which then holds anything
    is_one_call   an answer has one call
    has_short_ids  ids of nine letters and digits
    ends_turn  behind its end marker a model would make up results: the answer is over there
    turns    where an answer is several messages
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
    turns: Turns | None = None

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(filter(None, (self.begin, self.end, *self.inside, *self.section))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How an answer's text is taken apart into thought, text and calls."""

    form: CallForm | None = None  # None: no calls can be told
    thought: tuple[str, str] | None = None  # the markers around a thought, where they are not the form's own
    thought_label: str = ""  # a word behind the first of them that is no thought
    in_thought: bool = False  # the prompt has opened one
    in_said: bool = False  # the prompt has begun what is said: no thought comes
    said: tuple[str, str] = ("", "")  # markers around what is said behind it
    marks: tuple[tuple[int, str], ...] = ()  # control tokens among the markers, and how they are spelled
    tools: tuple[Tool, ...] = ()  # that may be called; none: what looks like a call is text
    parallel: bool = True  # go on behind the first call
