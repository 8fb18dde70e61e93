"""What a client asks, as token ids: chat template, tokenizer, and the checks before a slot is taken."""

from __future__ import annotations

import dataclasses
import functools
import re

from eaglelocal.core.ports import Vocabulary
from eaglelocal.core.request import ChatRequest, Message, Request
from eaglelocal.errors import RequestError
from eaglelocal.text.template import ChatTemplate, chat_template


class Intake:
    """Turns ChatRequests into Requests."""

    def __init__(self, vocabulary: Vocabulary, n_ctx: int) -> None:
        self._vocabulary, self._n_ctx = vocabulary, n_ctx

    @functools.cached_property
    def template(self) -> ChatTemplate:
        """Compiled when first needed: raw prompts need none."""
        return chat_template(self._vocabulary)

    def stops(self, asked: ChatRequest) -> tuple[str, ...]:
        """Stop strings of the request, and those of a stand-in template, whose end no token marks."""
        return (*asked.params.stop, *(self.template.stops if asked.messages else ()))

    def read(self, asked: ChatRequest) -> Request:
        """Raises RequestError for what cannot be served."""
        prompt = self._tokens(asked)
        if not prompt:
            raise RequestError("the prompt is empty")
        self._check_room(len(prompt), asked.params.max_tokens)
        self._checked(tuple(token for token, _ in asked.params.logit_bias))
        params = dataclasses.replace(asked.params, stop=self.stops(asked))
        return Request(id=asked.id, prompt=tuple(prompt), params=params, spec=asked.spec, owner=asked.owner)

    def _tokens(self, asked: ChatRequest) -> list[int]:
        if asked.messages:
            return self._chat_tokens(asked.messages)
        if asked.text is not None:
            return self._vocabulary.tokenize(asked.text, add_special=True, parse_special=False)
        return list(self._checked(asked.tokens))

    def _checked(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        for token in tokens:
            if not 0 <= token < self._vocabulary.n_tokens:
                raise RequestError(f"token {token} is not in the vocabulary of {self._vocabulary.n_tokens}")
        return tokens

    def _chat_tokens(self, messages: tuple[Message, ...]) -> list[int]:
        """Only the template may write control tokens: a message that spells one is put in as plain text."""
        literal = {f"\ue000{i}\ue001": m.content for i, m in enumerate(messages) if self._spells_control(m.content)}
        marks = {content: mark for mark, content in literal.items()}
        shown = tuple(Message(m.role, marks.get(m.content, m.content)) for m in messages)
        text = self.template.render(shown)
        tokens: list[int] = []
        for span in re.split("(\ue000\\d+\ue001)", text):
            tokens += self._vocabulary.tokenize(
                literal.get(span, span),
                add_special=not tokens and not starts_with_bos(text, self._vocabulary),
                parse_special=span not in literal,
            )
        return tokens

    def _spells_control(self, content: str) -> bool:
        as_control = self._vocabulary.tokenize(content, add_special=False, parse_special=True)
        return as_control != self._vocabulary.tokenize(content, add_special=False, parse_special=False)

    def _check_room(self, num_prompt: int, max_tokens: int | None) -> None:
        if num_prompt + (max_tokens or 1) <= self._n_ctx:
            return
        asked = f"{num_prompt} tokens" + (f" and max_tokens {max_tokens}" if max_tokens else "")
        raise RequestError(f"the prompt of {asked} exceeds the context of {self._n_ctx}", hint="a larger --ctx")


def starts_with_bos(text: str, vocabulary: Vocabulary) -> bool:
    """Templates often write the BOS token themselves; a second one would shift every position."""
    return bool(vocabulary.bos_text) and text.startswith(vocabulary.bos_text)
