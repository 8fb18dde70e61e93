"""Converts client requests to token ids: chat template, tokenizer, and the checks before a slot is taken.

Knows the template and the vocabulary. The format of answers belongs to `text`, compiling constraints to `backend`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from eaglelocal.core.constraint import Constraint
from eaglelocal.core.json_text import read_json
from eaglelocal.core.ports import Constraints, ImageReader, TextPart, Vocabulary
from eaglelocal.core.request import ChatRequest, Image, Mixed, Request
from eaglelocal.core.sampling import SamplingParams, fill_recommended
from eaglelocal.core.tools import Split, ToolUse
from eaglelocal.engine.answer_constraint import AnswerConstraint, ConstraintSpec
from eaglelocal.engine.input_size import SURE_TOKEN_BYTES, PromptCache, num_raw_chars
from eaglelocal.engine.prompt_tokens import PromptTokens, infill_prompt, mixed_tokens, placed, starts_with_bos
from eaglelocal.errors import NOT_SUPPORTED, RequestError
from eaglelocal.text.reasoning.model_families import list_markers
from eaglelocal.text.templates.chat_template import ChatTemplate, chat_template
from eaglelocal.text.templates.literal_text import HiddenSpellings, Span, Spellings
from eaglelocal.text.templates.prefilled_answer import PrefilledAnswer, read_prefill, reopen_reasoning
from eaglelocal.text.tool_calls.tool_grammar import list_callable_tools

IMAGE_TEXT = "<__media__>"  # stands for an image in a prompt's text, as in llama-server


ReadRequest = tuple[PromptTokens, Request | None]


class NoConstraints:
    """The core.ports.Constraints of an engine that cannot constrain answers."""

    def check(self, constraint: Constraint) -> None:
        raise RequestError("this engine cannot bind answers to a format")

    def hold(self, constraint: Constraint) -> object:
        raise AssertionError("nothing passes `check`")


class InputProcessor:
    """The input processor: converts ChatRequests to Requests."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        n_ctx: int,
        constraints: Constraints | None = None,
        *,
        image_reader: ImageReader | None = None,
        trained_ctx: int = 0,
        sampling: Mapping[str, float] | None = None,
        template: ChatTemplate | None = None,
    ) -> None:
        """Take ownership of the template, by default the vocabulary's.

        sampling  values that the model's makers recommend
        """
        self.template = chat_template(vocabulary) if template is None else template
        self._vocabulary, self._n_ctx, self._sampling = vocabulary, n_ctx, sampling or {}
        self._image_reader = image_reader
        self._can_grow = not 0 < trained_ctx <= n_ctx
        self._prompts = PromptCache(self.prompt)
        self._constraints = NoConstraints() if constraints is None else constraints
        self._binding = AnswerConstraint(self._constraints)
        self._spellings = Spellings(vocabulary.control_texts)  # walks the whole vocabulary: done before any request

    def close(self) -> None:
        self.template.close()

    def stops(self, asked: ChatRequest) -> tuple[str, ...]:
        """Return the request's stop strings, and those of a fallback template, whose answers have no end token."""
        return (*asked.params.stop, *(self.template.stops if asked.messages else ()))

    def read_asked(self, asked: ChatRequest) -> ReadRequest:
        """Return the prompt, and the Request unless only the prompt's tokens are counted. Raises RequestError.

        Safe from any thread.
        """
        prompt = self._prompts.prompt(asked)
        return prompt, None if asked.is_counted else self.read(asked, prompt)

    def read(self, asked: ChatRequest, prompt: PromptTokens | None = None) -> Request:
        """Return the Request, with `prompt` if it was made already. Raises RequestError if it cannot be served."""
        prompt = self.prompt(asked) if prompt is None else prompt
        if not prompt.tokens:
            raise RequestError("the prompt is empty", parameter="messages" if asked.messages else "prompt")
        self._check_room(prompt.num_rows, is_chat=bool(asked.messages))
        self._checked(tuple(token for token, _ in asked.params.logit_bias))
        split = self._split(asked, prompt) if asked.messages else None
        constraint = self._constraint(asked, split)
        return Request(
            id=asked.id,
            prompt=prompt.tokens,
            images=prompt.images,
            params=self._params(asked, prompt.num_rows),
            spec=asked.spec,
            owner=asked.owner,
            constraint=constraint,
            compiled=None if constraint is None else self._constraints.hold(constraint),
            split=split if asked.is_split and split and list_markers(split) else None,
            reuses_cache=asked.reuses_cache,
            line_limit_s=asked.line_limit_s,
        )

    def _params(self, asked: ChatRequest, num_prompt: int) -> SamplingParams:
        """Return the sampling parameters, with recommended values filled in and token counts limited to the context."""
        params = fill_recommended(asked.params, self._sampling)
        max_tokens = None if params.max_tokens is None else min(params.max_tokens, self._n_ctx - num_prompt)
        looked_at = min(params.repeat_last_n, self._n_ctx)
        return dataclasses.replace(params, stop=self.stops(asked), max_tokens=max_tokens, repeat_last_n=looked_at)

    # ---- the prompt
    def prompt(self, asked: ChatRequest) -> PromptTokens:
        """Make the prompt, without checking that it fits the context. Raises RequestError."""
        if asked.messages:
            return self._chat_prompt(asked)
        if asked.tools:
            raise RequestError("tools need messages, not a raw prompt", parameter="tools")
        if not asked.is_counted:
            self._check_length(num_raw_chars(asked), is_chat=False)
        if asked.infill is not None:
            return PromptTokens(self._checked(infill_prompt(asked.infill, self._vocabulary, self._n_ctx)))
        if asked.mixed is not None:
            return PromptTokens(self._checked(mixed_tokens(asked.mixed, self._vocabulary)))
        if asked.suffix:
            return PromptTokens(self._fill_prompt(asked))
        if asked.text is not None:  # raw prompts may spell control tokens
            return PromptTokens(mixed_tokens(Mixed((asked.text,)), self._vocabulary))
        return PromptTokens(self._checked(asked.tokens))

    def _fill_prompt(self, asked: ChatRequest) -> tuple[int, ...]:
        """Return a fill-in-the-middle prompt. Control tokens in the texts around the gap are plain text."""
        marks = self._vocabulary.fill_tokens
        if marks is None:
            what = "this model has no tokens for a suffix: it cannot fill in the middle"
            raise RequestError(what, parameter="suffix", code="unsupported_parameter")
        begin = self._vocabulary.tokenize("", add_special=True, parse_special=False)
        before = self._checked(asked.tokens) if asked.text is None else self._plain_tokens(asked.text)
        return (*begin, marks.prefix, *before, marks.suffix, *self._plain_tokens(asked.suffix), marks.middle)

    def _plain_tokens(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text, add_special=False, parse_special=False)

    def _checked(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        for token in tokens:
            if not 0 <= token < self._vocabulary.n_tokens:
                raise RequestError(f"token {token} is not in the vocabulary of {self._vocabulary.n_tokens}")
        return tokens

    def _chat_prompt(self, asked: ChatRequest) -> PromptTokens:
        """Render the messages and tokenize them.

        Only the template may write control tokens: those that a message spells become plain text.
        """
        literals, beginning = HiddenSpellings(self._spellings), self._beginning(asked)
        text = self.template.render(
            beginning.messages,
            tools=() if asked.tool_choice.use is ToolUse.NONE else asked.tools,
            values=values_of(asked.template_values),
            literals=literals,
            continues=beginning.has_text,
        )
        if beginning.reasoning:
            text = reopen_reasoning(self.template.family, text) + literals.hide(beginning.reasoning)
        in_reasoning = bool(beginning.reasoning) or (
            not beginning.has_text and self.template.family.ends_in_reasoning(text)
        )
        if not asked.is_counted:
            self._check_length(len(text), is_chat=True)
        prompt = self._read(list(literals.pieces(text)))
        rendered = rendered_text(literals.pieces(text)) if asked.tells_prompt else ""
        return dataclasses.replace(prompt, in_reasoning=in_reasoning, in_text=beginning.has_text, rendered=rendered)

    def _beginning(self, asked: ChatRequest) -> PrefilledAnswer:
        """Return the messages, and the answer's beginning if the last message is to be continued.

        A constrained answer always starts new: its constraint holds for the whole of it.
        """
        last = asked.messages[-1]
        is_bound = asked.constraint is not None or asked.tool_choice.use is ToolUse.REQUIRED
        if not asked.continues_last or is_bound or last.role != "assistant" or last.tool_calls:
            return PrefilledAnswer(asked.messages)
        return read_prefill(asked.messages, self.template.family)

    def _read(self, pieces: Sequence[Span | Image]) -> PromptTokens:
        add_special = not starts_with_bos(first_text(pieces), self._vocabulary)
        if any(isinstance(piece, Image) for piece in pieces):
            return self._read_images(pieces, add_special=add_special)
        tokens: list[int] = []
        for piece in pieces:
            assert not isinstance(piece, Image)
            text, is_literal = piece
            tokens += self._vocabulary.tokenize(
                text, add_special=not tokens and add_special, parse_special=not is_literal
            )
        return PromptTokens(tuple(tokens))

    def _read_images(self, pieces: Sequence[Span | Image], *, add_special: bool) -> PromptTokens:
        if self._image_reader is None:
            what = "this model reads no images: no projector is loaded for it"
            hint = "--mmproj FILE, where there is one for this model"
            raise RequestError(what, hint=hint, parameter="messages", code=NOT_SUPPORTED)
        parts = [piece.data if isinstance(piece, Image) else TextPart(piece[0], not piece[1]) for piece in pieces]
        prompt = placed(self._image_reader.tokenize(parts, add_special=add_special))
        if prompt.images and prompt.images[-1].end == len(prompt.tokens):
            raise RequestError("the prompt ends with an image: nothing can be answered to that", parameter="messages")
        return prompt

    def _check_length(self, num_chars: int, *, is_chat: bool) -> None:
        """Refuse a text that cannot fit, before it is tokenized: that takes seconds for millions of characters."""
        if num_chars < self._n_ctx * SURE_TOKEN_BYTES:
            return
        max_bytes = self._vocabulary.max_token_bytes  # walks the vocabulary, once
        if max_bytes is not None and num_chars >= self._n_ctx * max_bytes:
            raise self._no_room(f"more than {num_chars // max_bytes}", is_chat=is_chat)

    def _check_room(self, num_prompt: int, *, is_chat: bool) -> None:
        if num_prompt >= self._n_ctx:
            raise self._no_room(str(num_prompt), is_chat=is_chat)

    def _no_room(self, num_prompt: str, *, is_chat: bool) -> RequestError:
        return RequestError(  # clients recognise the first words and shorten the prompt
            f"this model's maximum context length is {self._n_ctx} tokens, and the prompt has {num_prompt}: "
            "no room is left for an answer",
            hint="a larger --ctx" if self._can_grow else "a shorter prompt: the model was trained for no more",
            parameter="messages" if is_chat else "prompt",
            code="context_length_exceeded",
        )

    # ---- the answer
    def _split(self, asked: ChatRequest, prompt: PromptTokens) -> Split:
        family = self.template.family
        split = dataclasses.replace(
            family.make_split(),
            in_reasoning=prompt.in_reasoning,
            in_text=prompt.in_text,
            tools=list_callable_tools(asked.tools, asked.tool_choice),
            parallel=asked.tool_choice.parallel,
        )
        tokens = self._marker_tokens(split)
        marks = tuple((token, name) for name, token in tokens.items() if not self._vocabulary.piece(token))
        return dataclasses.replace(split, control_tokens=marks)

    def _marker_tokens(self, split: Split) -> dict[str, int]:
        """Return the tokens of those markers that are a single token."""
        found = {
            name: self._vocabulary.tokenize(name, add_special=False, parse_special=True) for name in list_markers(split)
        }
        return {name: tokens[0] for name, tokens in found.items() if len(tokens) == 1}

    def _constraint(self, asked: ChatRequest, split: Split | None) -> Constraint | None:
        """Return the constraint of the answer, compiled once to see that it is usable."""
        if split is None:
            return self._binding.of_text(asked.constraint)
        wish = ConstraintSpec(
            split=split,
            choice=asked.tool_choice,
            wanted=asked.constraint,
            tokens=self._marker_tokens(split),
            is_split=asked.is_split,
        )
        return self._binding.of_split(wish)


def first_text(pieces: Sequence[Span | Image]) -> str:
    return pieces[0][0] if pieces and not isinstance(pieces[0], Image) else ""


def rendered_text(pieces: Iterable[Span | Image]) -> str:
    return "".join(IMAGE_TEXT if isinstance(piece, Image) else piece[0] for piece in pieces)


def values_of(pairs: tuple[tuple[str, str], ...]) -> dict[str, object]:
    """Return the template variables, parsed from JSON. Raises RequestError."""
    try:
        return {name: read_json(value) for name, value in pairs}
    except ValueError as error:
        what = f"a value for the chat template cannot be read: {error}"
        raise RequestError(what, parameter="chat_template_kwargs") from None
