"""What a client asks, as token ids: chat template, tokenizer, and the checks before a slot is taken.

Knows which template and which vocabulary; what answers look like is the text room's to know, and what they can be
bound to the backend's.
"""

from __future__ import annotations

import dataclasses
import functools

from eaglelocal.core.constraint import Constraint
from eaglelocal.core.json_text import read_json
from eaglelocal.core.ports import Constraints, Vocabulary
from eaglelocal.core.request import ChatRequest, Request
from eaglelocal.core.tools import Split, ToolUse
from eaglelocal.engine.binding import Binding, Wish
from eaglelocal.errors import RequestError
from eaglelocal.text.families import markers_of
from eaglelocal.text.literals import Literals, Spellings
from eaglelocal.text.template import ChatTemplate, chat_template
from eaglelocal.text.tool_grammar import callable_tools


class NoConstraints:
    """Implements core.ports.Constraints where nothing can bind an answer."""

    def check(self, constraint: Constraint) -> None:
        raise RequestError("this engine cannot bind answers to a format")


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is given, and the text of its end where a template wrote it."""

    tokens: tuple[int, ...]
    rendered: str = ""


class Intake:
    """Turns ChatRequests into Requests."""

    def __init__(self, vocabulary: Vocabulary, n_ctx: int, constraints: Constraints | None = None) -> None:
        self._vocabulary, self._n_ctx = vocabulary, n_ctx
        self._binding = Binding(NoConstraints() if constraints is None else constraints)
        self._spellings = Spellings(vocabulary.control_texts)  # walks the whole vocabulary: no chat must wait for it

    @functools.cached_property
    def template(self) -> ChatTemplate:
        """Compiled when first needed: raw prompts need none."""
        return chat_template(self._vocabulary)

    def stops(self, asked: ChatRequest) -> tuple[str, ...]:
        """Stop strings of the request, and those of a stand-in template, whose end no token marks."""
        return (*asked.params.stop, *(self.template.stops if asked.messages else ()))

    def read(self, asked: ChatRequest) -> Request:
        """Raises RequestError for what cannot be served."""
        prompt = self._prompt(asked)
        if not prompt.tokens:
            raise RequestError("the prompt is empty", parameter="messages" if asked.messages else "prompt")
        self._check_room(len(prompt.tokens), asked.params.max_tokens, is_chat=bool(asked.messages))
        self._checked(tuple(token for token, _ in asked.params.logit_bias))
        split = self._split(asked, prompt.rendered) if asked.messages else None
        return Request(
            id=asked.id,
            prompt=prompt.tokens,
            params=dataclasses.replace(asked.params, stop=self.stops(asked)),
            spec=asked.spec,
            owner=asked.owner,
            constraint=self._constraint(asked, split),
            split=split if asked.is_split and split and markers_of(split) else None,
        )

    # ---- the prompt
    def _prompt(self, asked: ChatRequest) -> Prompt:
        if asked.messages:
            return self._chat_prompt(asked)
        if asked.tools:
            raise RequestError("tools need messages, not a raw prompt", parameter="tools")
        if asked.text is not None:
            return Prompt(tuple(self._vocabulary.tokenize(asked.text, add_special=True, parse_special=False)))
        return Prompt(self._checked(asked.tokens))

    def _checked(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        for token in tokens:
            if not 0 <= token < self._vocabulary.n_tokens:
                raise RequestError(f"token {token} is not in the vocabulary of {self._vocabulary.n_tokens}")
        return tokens

    def _chat_prompt(self, asked: ChatRequest) -> Prompt:
        """Only the template may write control tokens: where a message spells one it is put in as plain text."""
        literals = Literals(self._spellings)
        text = self.template.render(
            asked.messages,
            tools=() if asked.tool_choice.use is ToolUse.NONE else asked.tools,
            values=values_of(asked.template_values),
            literals=literals,
        )
        tokens: list[int] = []
        for span, is_literal in literals.spans(text):
            tokens += self._vocabulary.tokenize(
                span,
                add_special=not tokens and not starts_with_bos(text, self._vocabulary),
                parse_special=not is_literal,
            )
        return Prompt(tuple(tokens), text)

    def _check_room(self, num_prompt: int, max_tokens: int | None, *, is_chat: bool) -> None:
        if num_prompt + (max_tokens or 1) <= self._n_ctx:
            return
        asked = f"{num_prompt} tokens" + (f" and max_tokens {max_tokens}" if max_tokens else "")
        raise RequestError(
            f"the prompt of {asked} exceeds the context of {self._n_ctx}",
            hint="a larger --ctx",
            parameter="messages" if is_chat else "prompt",
            code="context_length_exceeded",
        )

    # ---- the answer
    def _split(self, asked: ChatRequest, rendered: str) -> Split:
        family = self.template.family
        split = dataclasses.replace(
            family.split(),
            in_thought=family.has_begun(rendered),
            tools=callable_tools(asked.tools, asked.tool_choice),
            parallel=asked.tool_choice.parallel,
        )
        tokens = self._marker_tokens(split)
        marks = tuple((token, name) for name, token in tokens.items() if not self._vocabulary.piece(token))
        return dataclasses.replace(split, marks=marks)

    def _marker_tokens(self, split: Split) -> dict[str, int]:
        """Of the markers that are one token each."""
        found = {
            name: self._vocabulary.tokenize(name, add_special=False, parse_special=True) for name in markers_of(split)
        }
        return {name: tokens[0] for name, tokens in found.items() if len(tokens) == 1}

    def _constraint(self, asked: ChatRequest, split: Split | None) -> Constraint | None:
        """What binds the answer, compiled once to see that it can be."""
        if split is None:
            return self._binding.of_text(asked.constraint)
        wish = Wish(
            split=split,
            choice=asked.tool_choice,
            wanted=asked.constraint,
            tokens=self._marker_tokens(split),
            is_split=asked.is_split,
        )
        return self._binding.of_split(wish)


def values_of(pairs: tuple[tuple[str, str], ...]) -> dict[str, object]:
    """Variables for a template, from their JSON."""
    try:
        return {name: read_json(value) for name, value in pairs}
    except ValueError as error:
        what = f"a value for the chat template cannot be read: {error}"
        raise RequestError(what, parameter="chat_template_kwargs") from None


def starts_with_bos(text: str, vocabulary: Vocabulary) -> bool:
    """Templates often write the BOS token themselves; a second one would shift every position."""
    return bool(vocabulary.bos_text) and text.startswith(vocabulary.bos_text)
