"""Rendering of a conversation by a chat template, in a process of its own.

Renders as Hugging Face's tokenizers do: same whitespace rules, same filters and functions, and
`messages`, `tools`, `documents`, `bos_token`, `eos_token`, `add_generation_prompt` as variables.
A template is untrusted and may do anything: its process limits time and memory (render_process.py), and every failure
is an error with the template's line. Imports no numpy: each process of this kind holds what it imports.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType

import jinja2

from eaglelocal.errors import EagleLocalError, ModelFileError, RequestError
from eaglelocal.text.reasoning.model_families import MAX_TEMPLATE_BYTES, family_of
from eaglelocal.text.templates.literal_text import HERE
from eaglelocal.text.templates.message_forms import sketch_of, ways_of
from eaglelocal.text.templates.sandbox import MAX_TEXT_CHARS, LimitExceeded, Refused, Sandbox
from eaglelocal.text.templates.template_messages import (
    Turn,
    in_hermes_form,
    in_parts,
    with_short_ids,
    with_single_calls,
    with_system_for_developer,
    with_tools_in_system,
    with_written_calls,
)

MAX_REASON_CHARS = 500
Source = tuple[str, str, str]  # a template, and the texts of bos and eos
RESERVED = ("self", "messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")
_CONTENT_IS_NONE = re.compile(r"\bcontent(?:['\"]\])? is none")
_TOOLS_IN_MESSAGE = re.compile(r"""\bmessage(\.|\[['"])tools\b""")


class Rendering:
    """A compiled template. Use it from one thread.

    Raises ModelFileError for a template that cannot be read.
    """

    def __init__(self, source: str, bos_text: str = "", eos_text: str = "") -> None:
        self.family = family_of(source)
        self._wants_none = _CONTENT_IS_NONE.search(source) is not None
        self._shows_calls = "tool_calls" in source
        self._looks_in_system = _TOOLS_IN_MESSAGE.search(source) is not None
        self._knows_developers = "developer" in source
        self._special = {"bos_token": bos_text, "eos_token": eos_text}
        self._sandbox = Sandbox()
        self._template = _compile(self._sandbox, source)

    def render(self, turns: list[Turn], tools: list[Turn], values: Mapping[str, object], continues: bool) -> str:
        """Return the prompt. RequestError when the template refuses the conversation, ModelFileError when it fails.

        values    more variables, such as enable_thinking
        continues  the prompt ends after the text of the last message, which the answer continues
        """
        if continues:  # the mark at the end also protects white space before it from trimming
            turns = [*turns[:-1], {**turns[-1], "content": f"{HERE}{turns[-1]['content']}{HERE}"}]
        if not self._knows_developers:
            turns = with_system_for_developer(turns)
        turns, tools = self._with_tools(turns, tools)
        self._check_names(values)
        variables = {
            **values,
            **self._special,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": not continues,
        }
        text = self._first_of(self._ways(turns, variables), variables)
        return self._up_to_here(text) if continues else text

    def _up_to_here(self, text: str) -> str:
        """Cut the text after the last message. If the template opens a thought before its content, close that."""
        shown, mark, _ = text.rpartition(HERE)
        if not mark:
            what = "the model's chat template does not show the last message, so it cannot be continued"
            raise RequestError(what, parameter="messages")
        before, _, said = shown.rpartition(HERE)
        thoughts = self.family.thoughts
        if thoughts is not None and self.family.has_begun(before):
            before = before.rstrip() + thoughts.end
        return before + said

    def _with_tools(self, turns: list[Turn], offered: list[Turn]) -> tuple[list[Turn], list[Turn]]:
        """Put tools, calls and results where this template looks for them."""
        family = self.family
        if not family.takes_tools:
            return in_hermes_form(turns, offered), []
        if not self._shows_calls:
            turns = with_written_calls(turns, family.form)
        elif family.form.is_one_call:
            turns = with_single_calls(turns)
        if family.form.has_short_ids:
            turns = with_short_ids(turns)
        if offered and self._looks_in_system:
            turns = with_tools_in_system(turns, offered)
        return turns, offered

    def _ways(self, turns: list[Turn], variables: Mapping[str, object]) -> Iterator[list[Turn]]:
        """Yield the forms of the conversation in order, first those in which the template shows all system messages."""
        sketch, marks = sketch_of(turns)
        known, poor = list[list[Turn]](), list[list[Turn]]()
        ways, sketches = (ways_of(same, wants_none=self._wants_none) for same in (turns, sketch))
        for way, sketched in zip(ways, sketches, strict=True):
            if way in known:
                continue
            known.append(way)
            if not marks or self._shows(marks, sketched, variables):
                yield way
            else:
                poor.append(way)
        yield from poor

    def _as_taken(self, turns: list[Turn]) -> list[Turn]:
        return in_parts(turns) if self._takes_parts else turns

    @functools.cached_property
    def _takes_parts(self) -> bool:
        """True for templates of some vision models, which show a content only if it is a list of parts."""
        asked: list[Turn] = [{"role": "user", "content": HERE}]
        return not self._is_shown(asked) and self._is_shown(in_parts(asked))

    def _is_shown(self, turns: list[Turn]) -> bool:
        variables = {**self._special, "tools": None, "documents": None, "add_generation_prompt": True}
        with contextlib.suppress(EagleLocalError):
            return HERE in self._generate(turns, variables)
        return False

    def _shows(self, marks: list[str], sketched: list[Turn], variables: Mapping[str, object]) -> bool:
        try:
            text = self._generate(self._as_taken(sketched), variables)
        except EagleLocalError as error:
            return isinstance(error.__cause__, LimitExceeded)  # then rendering reports it
        return all(mark in text for mark in marks)

    def _first_of(self, ways: Iterator[list[Turn]], variables: Mapping[str, object]) -> str:
        """Render the first form that the template accepts. If it accepts none, raise its first error."""
        objection: EagleLocalError | None = None
        for turns in ways:
            try:
                return self._generate(self._as_taken(turns), variables)
            except (ModelFileError, RequestError) as error:
                objection = objection or error
                if isinstance(error.__cause__, LimitExceeded):
                    break
        assert objection is not None
        raise objection

    def _check_names(self, values: Mapping[str, object]) -> None:
        for name in values:
            if name in RESERVED or name in self._sandbox.globals or not name.isidentifier():
                what = f"{name!r} cannot be set for the chat template"
                raise RequestError(what, parameter="chat_template_kwargs")

    def _generate(self, turns: list[Turn], variables: Mapping[str, object]) -> str:
        """Render once. A template may change its variables, so it gets a copy, and later forms are unaffected."""
        self._sandbox.restart()
        try:
            given = pickle.loads(pickle.dumps({**variables, "messages": turns}, pickle.HIGHEST_PROTOCOL))
            return _join(self._template.generate(given))
        except MemoryError as error:
            raise MemoryError(_place(error.__traceback__)) from None
        except Exception as error:  # a template can fail in any way
            raise _rendering_error(error) from error


class Renderings:
    """A renderer for any template; the last one stays compiled."""

    def __init__(self) -> None:
        self._last: tuple[Source, Rendering] | None = None

    def check(self, source: Source) -> None:
        """Compile a template. Raises ModelFileError if it cannot be read."""
        self._rendering(source)

    def render(
        self,
        source: Source,
        turns: list[Turn],
        tools: list[Turn],
        values: Mapping[str, object],
        continues: bool,
    ) -> str:
        return self._rendering(source).render(turns, tools, values, continues)

    def _rendering(self, source: Source) -> Rendering:
        if self._last is None or self._last[0] != source:
            self._last = source, Rendering(*source)
        return self._last[1]


def open_renderings() -> Callable[..., str | None]:
    """Return the function that a RenderProcess serves; called with a source alone, it only checks it."""
    made = Renderings()
    return lambda source, *asked: made.render(source, *asked) if asked else made.check(source)


def _compile(sandbox: Sandbox, source: str) -> jinja2.Template:
    size_bytes = len(source.encode(errors="replace"))
    if size_bytes > MAX_TEMPLATE_BYTES:
        raise ModelFileError(f"the chat template has {size_bytes} bytes, more than {MAX_TEMPLATE_BYTES}")
    try:
        return sandbox.from_string(sandbox.bounded(source))
    except jinja2.TemplateSyntaxError as error:
        raise ModelFileError(f"the chat template cannot be read at line {error.lineno}: {error.message}") from error
    except MemoryError:
        raise
    except Exception as error:  # too deep for Python's compiler, and whatever else a file can hold
        raise ModelFileError(f"the chat template cannot be compiled: {_reason(error)}") from error


def _join(pieces: Iterator[str]) -> str:
    kept: list[str] = []
    num_chars = 0
    for piece in pieces:
        num_chars += len(piece)
        if num_chars > MAX_TEXT_CHARS:
            raise RequestError(f"the rendered conversation has more than {MAX_TEXT_CHARS} characters")
        kept.append(piece)
    return "".join(kept)


def _rendering_error(error: Exception) -> EagleLocalError:
    match error:
        case EagleLocalError():
            return error
        case Refused():
            return RequestError(f"the model's chat template refuses the conversation: {error}")
        case LimitExceeded():
            return ModelFileError(f"the chat template does not end{_place(error.__traceback__)}: {error}")
    return ModelFileError(f"the chat template fails{_place(error.__traceback__)}: {_reason(error)}")


def _reason(error: Exception) -> str:
    return str(error)[:MAX_REASON_CHARS] or type(error).__name__


def _place(trace: TracebackType | None) -> str:
    """Return " at line N", from the innermost frame that jinja2 mapped back onto the template, or nothing."""
    line: int | None = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" at line {line}"
