"""Renders a conversation by a chat template, in a process of its own.

It renders as Hugging Face's tokenizers do: same whitespace rules, same filters and functions, and
`messages`, `tools`, `documents`, `bos_token`, `eos_token`, `add_generation_prompt` as variables.
A template is untrusted and may do anything: its process limits time and memory (chat_template.py), and every failure
is an error with the template's line. Imports no numpy: each process of this kind holds what it imports.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from types import TracebackType

import jinja2

from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, ModelFileError, RequestError
from eaglelocal.text.reasoning.model_families import MAX_TEMPLATE_BYTES, detect_family
from eaglelocal.text.templates import turn_changes
from eaglelocal.text.templates.literal_text import POSITION
from eaglelocal.text.templates.sandbox import MAX_TEXT_CHARS, LimitExceeded, Refused, Sandbox
from eaglelocal.text.templates.template_messages import SYSTEMS, RenderInputs, TemplateSource, Turn

MAX_REASON_CHARS = 500
RESERVED = ("self", "messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")
_TOOLS_IN_MESSAGE = re.compile(r"""\bmessage(\.|\[['"])tools\b""")
Change = Callable[[Sequence[Turn]], list[Turn]]
# some templates recognize a call by a content of None, and some read arguments as text
OBJECT_CHANGES: tuple[tuple[Change, ...], ...] = (
    (),
    (turn_changes.clear_empty_contents,),
    (turn_changes.stringify_arguments,),
    (turn_changes.clear_empty_contents, turn_changes.stringify_arguments),
)
TEXT_CHANGES: tuple[tuple[Change, ...], ...] = ((), (turn_changes.wrap_arguments,))


@dataclass(frozen=True, slots=True)
class Fit:
    """The changes that a template needs: changes of texts beside calls, then changes of calls."""

    texts: tuple[Change, ...] = ()
    calls: tuple[Change, ...] = ()


class Rendering:
    """A compiled template. Use it from one thread.

    Raises ModelFileError for a template that cannot be read.
    """

    def __init__(self, source: TemplateSource) -> None:
        template = source.template
        self.family = detect_family(template)
        self._shows_calls = "tool_calls" in template
        self._finds_tools_in_system = _TOOLS_IN_MESSAGE.search(template) is not None
        self._takes_developers = "developer" in template
        self._begins_answers = "add_generation_prompt" in template
        self._special = {"bos_token": source.bos_text, "eos_token": source.eos_text}
        self._sandbox = Sandbox()
        self._template = _compile(self._sandbox, template)

    def render(self, inputs: RenderInputs) -> str:
        """Return the prompt.

        Raises RequestError if the template refuses the conversation, ModelFileError if it fails.
        """
        turns, tools, values, continues = inputs
        if continues:  # the mark at the end also protects white space before it from trimming
            turns = [*turns[:-1], {**turns[-1], "content": f"{POSITION}{turns[-1]['content']}{POSITION}"}]
        if not self._takes_developers:
            turns = turn_changes.rename_developers(turns)
        turns = turn_changes.join_assistant_turns(turn_changes.order_results(turns))
        if not self._begins_answers and turns[-1]["role"] in SYSTEMS:  # only a question makes the model answer
            turns = [*turns[:-1], *turn_changes.convert_systems_to_users(turns[-1:])]
        turns, tools = self._place_tools(turns, tools)
        self._check_names(values)
        variables = {
            **values,
            **self._special,
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": not continues,
        }
        fit = self._fit if any(map(turn_changes.list_calls, turns)) else Fit()
        text = self._render_first(self._iter_forms(turns, variables, fit), variables, fit)
        return self._cut_after_last_message(text) if continues else text

    def _cut_after_last_message(self, text: str) -> str:
        """Cut the text after the last message. If the template opens reasoning before its content, close that."""
        shown, mark, _ = text.rpartition(POSITION)
        if not mark:
            what = "the model's chat template does not show the last message, so it cannot be continued"
            raise RequestError(what, parameter="messages")
        before, _, content = shown.rpartition(POSITION)
        markers = self.family.reasoning
        if markers is not None and self.family.ends_in_reasoning(before):
            before = before.rstrip() + markers.end
        return before + content

    def _place_tools(self, turns: list[Turn], offered: list[Turn]) -> tuple[list[Turn], list[Turn]]:
        family = self.family
        if not family.takes_tools:
            return turn_changes.convert_to_hermes(turns, offered), []
        if not self._shows_calls:
            turns = turn_changes.write_calls_into_content(turns, family.form)
        elif family.form.is_one_call:
            turns = turn_changes.order_results(turn_changes.split_calls(turns))
        if family.form.has_short_ids:
            turns = turn_changes.shorten_ids(turns)
        if offered and self._finds_tools_in_system:
            turns = turn_changes.add_tools_to_system(turns, offered)
        return turns, offered

    def _iter_forms(self, turns: list[Turn], variables: Mapping[str, object], fit: Fit) -> Iterator[list[Turn]]:
        """Yield the forms of the conversation in order, forms that the template shows completely first."""
        is_sketched = turn_changes.needs_sketch(turns)
        known, incomplete = list[list[Turn]](), list[tuple[int, list[Turn]]]()
        for form, sketch in zip(
            turn_changes.iter_forms(turns), turn_changes.iter_forms(turn_changes.make_sketch(turns)), strict=True
        ):
            if form in known:
                continue
            known.append(form)
            num_lost = self._count_lost(sketch, variables, fit) if is_sketched else 0
            if not num_lost:
                yield form
            else:
                incomplete.append((num_lost, form))
        yield from (form for _, form in sorted(incomplete, key=itemgetter(0)))

    def _count_lost(self, sketch: list[Turn], variables: Mapping[str, object], fit: Fit) -> int:
        """Return how many texts the template loses or moves; more than there are if it refuses the conversation."""
        try:
            return turn_changes.count_lost(sketch, self._show(sketch, variables, fit))
        except EagleLocalError as error:
            if isinstance(error.__cause__, LimitExceeded):  # rendering reports the error then
                return 0
            return sys.maxsize

    def _show(self, turns: list[Turn], variables: Mapping[str, object], fit: Fit) -> str:
        """Render turns of the usual form, fitted to the contents and calls that the template reads."""
        led = _apply(fit.texts, turns)
        fitted = _apply(fit.calls, led)
        text = self._run(turn_changes.split_into_parts(fitted) if self._takes_parts else fitted, variables)
        return turn_changes.place_leads(text, led, self.family.form)

    @functools.cached_property
    def _takes_parts(self) -> bool:
        """True for templates of some vision models, which show a content only if it is a list of parts."""
        probe: list[Turn] = [{"role": "user", "content": POSITION}]
        return not self._shows_content(probe) and self._shows_content(turn_changes.split_into_parts(probe))

    def _shows_content(self, turns: list[Turn]) -> bool:
        with contextlib.suppress(EagleLocalError):
            return POSITION in self._run(turns, self._probe_variables)
        return False

    @property
    def _probe_variables(self) -> dict[str, object]:
        return {**self._special, "tools": None, "documents": None, "add_generation_prompt": True}

    @functools.cached_property
    def _fit(self) -> Fit:
        """The changes that make the template show calls, and texts before them."""
        fit = self._find_fit("", {"at": "x"}, [Fit(calls=calls) for calls in OBJECT_CHANGES])
        fit = self._find_fit("", "x", [replace(fit, calls=(*fit.calls, *calls)) for calls in TEXT_CHANGES])
        form = self.family.form
        if form.headers is not None:  # a text is a message of its own; gpt-oss's template would make it a thought
            return replace(fit, texts=(turn_changes.separate_texts,))
        leads = [turn_changes.mark_leads] if form.opening else []
        texts = [fit, *(replace(fit, texts=(change,)) for change in (*leads, turn_changes.separate_texts))]
        return self._find_fit("x", {"at": "x"}, texts)

    def _find_fit(self, text: str, arguments: object, fits: Sequence[Fit]) -> Fit:
        """Return the first fit for which the template shows all, or otherwise the most, of a call with this text."""
        sketch, num_lost = turn_changes.make_sketch(turn_changes.make_call_probe(text, arguments)), dict[Fit, int]()
        for fit in fits:
            num_lost[fit] = self._count_lost(sketch, self._probe_variables, fit)
            if not num_lost[fit]:
                break
        return min(num_lost, key=lambda fit: num_lost[fit])

    def _render_first(self, forms: Iterator[list[Turn]], variables: Mapping[str, object], fit: Fit) -> str:
        """Render the first form that the template accepts. If it accepts none, raise its first error."""
        first_error: EagleLocalError | None = None
        for turns in forms:
            try:
                return self._show(turns, variables, fit)
            except (ModelFileError, RequestError) as error:
                first_error = first_error or error
                if isinstance(error.__cause__, LimitExceeded):
                    break
        assert first_error is not None
        raise first_error

    def _check_names(self, values: Mapping[str, object]) -> None:
        for name in values:
            if name in RESERVED or name in self._sandbox.globals or not name.isidentifier():
                what = f"{name!r} cannot be set for the chat template"
                raise RequestError(what, parameter="chat_template_kwargs")

    def _run(self, turns: list[Turn], variables: Mapping[str, object]) -> str:
        """Render once, with a copy of the variables: a template may change them."""
        self._sandbox.restart()
        try:
            inputs = pickle.loads(pickle.dumps({**variables, "messages": turns}, pickle.HIGHEST_PROTOCOL))
            return _join(self._template.generate(inputs))
        except MemoryError as error:
            raise MemoryError(_find_line(error.__traceback__)) from None
        except Exception as error:  # a template can fail in any way
            raise _translate_error(error) from error


def open_renderings() -> Callable[..., str | None]:
    """Return the function that the process serves; called with a source alone, it only checks it.

    The last template stays compiled.
    """
    compile_template = functools.lru_cache(maxsize=1)(Rendering)

    def serve(source: TemplateSource, inputs: RenderInputs | None = None) -> str | None:
        rendering = compile_template(source)
        return None if inputs is None else rendering.render(inputs)

    return serve


def _compile(sandbox: Sandbox, source: str) -> jinja2.Template:
    size_bytes = len(source.encode(errors="replace"))
    if size_bytes > MAX_TEMPLATE_BYTES:
        raise ModelFileError(f"the chat template has {size_bytes} bytes, more than {MAX_TEMPLATE_BYTES}")
    try:
        return sandbox.from_string(sandbox.parse_bounded(source))
    except jinja2.TemplateSyntaxError as error:
        raise ModelFileError(f"the chat template cannot be read at line {error.lineno}: {error.message}") from error
    except MemoryError:
        raise
    except Exception as error:  # for example, a template nested too deep for Python's compiler
        raise ModelFileError(f"the chat template cannot be compiled: {_shorten_message(error)}") from error


def _apply(changes: Sequence[Change], turns: list[Turn]) -> list[Turn]:
    return functools.reduce(lambda changed, change: change(changed), changes, turns)


def _join(pieces: Iterator[str]) -> str:
    parts: list[str] = []
    num_chars = 0
    for piece in pieces:
        num_chars += len(piece)
        if num_chars > MAX_TEXT_CHARS:
            raise RequestError(f"the rendered conversation has more than {MAX_TEXT_CHARS} characters")
        parts.append(piece)
    return "".join(parts)


def _translate_error(error: Exception) -> EagleLocalError:
    match error:
        case EagleLocalError():
            return error
        case Refused():
            return RequestError(f"the model's chat template refuses the conversation: {error}")
        case LimitExceeded():
            return ModelFileError(f"the chat template does not end{_find_line(error.__traceback__)}: {error}")
    return ModelFileError(f"the chat template fails{_find_line(error.__traceback__)}: {_shorten_message(error)}")


def _shorten_message(error: Exception) -> str:
    return str(error)[:MAX_REASON_CHARS] or type(error).__name__


def _find_line(trace: TracebackType | None) -> str:
    """Return " at line N", from the innermost frame that jinja2 mapped onto the template; "" if there is none."""
    line: int | None = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" at line {line}"
