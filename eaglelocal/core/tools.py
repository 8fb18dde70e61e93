"""Functions that a model may call, as a request offers them and as an answer uses them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the caller can run."""

    name: str
    description: str = ""
    parameters: str = "{}"  # JSON schema of its arguments, as JSON


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model wants a function run."""

    id: str
    name: str
    arguments: str  # JSON, as the model wrote it


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


class CallForm(Enum):
    """How a family of models writes calls, and gives its thoughts away where it does so by the same means."""

    HERMES = "hermes"  # <tool_call>{"name", "arguments"}</tool_call>: Hermes, Qwen 2.5, Qwen 3
    CODER = "coder"  # <tool_call><function=name><parameter=key>text: Qwen 3 Coder
    LLAMA = "llama"  # {"name", "parameters"}, with <|python_tag|> before it or not: Llama 3.x
    MISTRAL = "mistral"  # [TOOL_CALLS][{"name", "arguments"}]
    MISTRAL_ARGS = "mistral_args"  # [TOOL_CALLS]name[ARGS]{}
    HARMONY = "harmony"  # messages on channels, one to=functions.name: gpt-oss


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How an answer's text is taken apart into thought, text and calls."""

    form: CallForm | None = None  # None: no calls can be told
    thought: tuple[str, str] | None = None  # the markers around a thought, where they are not the form's own
    in_thought: bool = False  # the prompt has opened one
    marks: tuple[tuple[int, str], ...] = ()  # control tokens among the markers, and how they are spelled
    tools: tuple[Tool, ...] = ()  # that may be called; none: what looks like a call is text
    parallel: bool = True  # go on behind the first call
