"""Converts client requests to token ids: chat template, tokenizer, and the checks before a slot is taken.

Knows the template and the vocabulary. The format of answers belongs to `text`, compiling constraints to `backend`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from eaglelocal.core.adapters import NO_ADAPTERS, AdapterFile, AdapterMix, make_mix, usual_mix
from eaglelocal.core.constraint import Constraint
from eaglelocal.core.image import name_image
from eaglelocal.core.json_text import read_json
from eaglelocal.core.ports import Constraints, ImageReader, TextPart, Vocabulary
from eaglelocal.core.request import ChatRequest, Image, Message, Mixed, ReasoningLimit, Request, common_prefix
from eaglelocal.core.run_options import suggest_ctx
from eaglelocal.core.sampling import SamplingParams, fill_recommended
from eaglelocal.core.thinking import USUAL, Thinking
from eaglelocal.core.tools import Split, ToolUse
from eaglelocal.engine.answer_constraint import AnswerConstraint, ConstraintSpec
from eaglelocal.engine.prompt_tokens import (
    SURE_TOKEN_BYTES,
    PromptCache,
    PromptTokens,
    count_raw_chars,
    make_infill_prompt,
    place_images,
    starts_with_bos,
    tokenize_mixed,
)
from eaglelocal.errors import NOT_SUPPORTED, RequestError
from eaglelocal.text.reasoning.efforts import choose_budget, fill_values
from eaglelocal.text.reasoning.model_families import list_markers
from eaglelocal.text.templates.chat_template import ChatTemplate, chat_template
from eaglelocal.text.templates.literal_text import HiddenSpellings, Span, Spellings
from eaglelocal.text.templates.template_messages import PrefilledAnswer, read_prefill, reopen_reasoning
from eaglelocal.text.tool_calls.tool_grammar import list_callable_tools

# possible continuations of a shared text: none, more of its last word, other text
SHARED_BEHIND = ("", "e", " a", ".", "\n\nB")
IMAGE_TEXT = "<__media__>"  # stands for an image in a prompt's text, as in llama-server


ReadRequest = tuple[PromptTokens, Request | None]


class NoConstraints:
    """The core.ports.Constraints of an engine that cannot constrain answers."""

    def check(self, constraint: Constraint) -> tuple[str, ...]:
        raise RequestError("this engine cannot constrain answers to a format")

    def hold(self, constraint: Constraint) -> object:
        raise AssertionError("nothing passes `check`")


class InputProcessor:
    """Converts ChatRequests to Requests."""

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

        trained_ctx  positions that the model was trained for; 0: unknown
        sampling     values that the model's makers recommend
        """
        self.template = chat_template(vocabulary) if template is None else template
        self.vocabulary, self._n_ctx, self._sampling = vocabulary, n_ctx, sampling or {}
        self._image_reader = image_reader
        self._num_adapters, self.adapters = 0, NO_ADAPTERS  # of requests that choose none
        self.shared: list[tuple[int, ...]] = []  # beginnings of prompts that owners share
        self._trained_ctx = trained_ctx
        self.prompts = PromptCache(self.make_prompt)
        self._images: dict[str, dict[bytes, object] | Exception] = {}  # decoded, or the error, by the request's id
        self.constraints = NoConstraints() if constraints is None else constraints
        self._answer_constraint = AnswerConstraint(self.constraints)
        self._spellings = Spellings(vocabulary.control_texts)  # walks the vocabulary, so do it before any request

    def offer_adapters(self, files: Sequence[AdapterFile]) -> None:
        """Let requests choose among these LoRA adapters; other requests get all of them, with their scales."""
        self._num_adapters, self.adapters = len(files), usual_mix(files)

    def share(self, text: str, thinking: Thinking = USUAL) -> None:
        """Let owners share the cells of this text, if a system prompt begins with it. Raises RequestError.

        The shared tokens are those at its start that do not depend on what follows the text.
        """
        systems = [Message("system", text + behind) for behind in SHARED_BEHIND]
        params = SamplingParams(thinking=thinking)
        chats = [ChatRequest(id="", messages=(system, Message("user", "?")), params=params) for system in systems]
        tokens, *others = [self.make_prompt(chat).tokens for chat in chats]
        self.shared.append(tokens[: min(common_prefix(tokens, other) for other in others)])

    def close(self) -> None:
        self.template.close()
        if self._image_reader is not None:
            self._image_reader.stop()

    def decode_images(self, request: ChatRequest) -> Iterator[int]:
        """Decode a request's images for `process`, one a step; the first step yields the pixels of all images.

        `process` raises the errors. It also decodes the images itself if this was not called.
        """
        files = [image.data for message in request.messages for image in message.images]
        if self._image_reader is None or not files or self.prompts.holds(request):
            return
        images = self._images[request.id] = dict[bytes, object]()
        try:
            yield self._image_reader.measure(files)
            for i, file in enumerate(files):
                if file not in images:
                    images[file] = self._image_reader.read(file, name_image(i, len(files)))
                    yield 0
        except Exception as error:
            if self._images.get(request.id) is images:
                self._images[request.id] = error

    def forget_images(self, request_id: str) -> None:
        """Drop the decoded images of a request that will not be read."""
        self._images.pop(request_id, None)

    def process(self, request: ChatRequest) -> ReadRequest:
        """Return the prompt and the Request; None instead if only the tokens are counted. Raises RequestError.

        Safe from any thread.
        """
        try:
            prompt = self.prompts.get(request)
        finally:
            self.forget_images(request.id)
        return prompt, None if request.is_counted else self.read(request, prompt)

    def read(self, request: ChatRequest, prompt: PromptTokens | None = None) -> Request:
        """Return the Request, reusing `prompt` if it was made already. Raises RequestError if it cannot be served."""
        prompt = self.make_prompt(request) if prompt is None else prompt
        if not prompt.tokens:
            raise RequestError("the prompt is empty", parameter="messages" if request.messages else "prompt")
        if prompt.num_rows >= self._n_ctx:
            raise self._make_too_long(prompt.num_rows, is_chat=bool(request.messages))
        self._check_tokens(tuple(token for token, _ in request.params.logit_bias))
        split = self._make_split(request, prompt) if request.messages else None
        constraint = self._make_constraint(request, split)
        split = split if request.is_split and split and list_markers(split) else None
        changed = {"params": self._make_params(request, prompt.num_rows), "constraint": constraint}
        return Request(
            **request.options | changed,
            prompt=prompt.tokens,
            images=prompt.images,
            compiled=None if constraint is None else self.constraints.hold(constraint),
            split=split,
            reasoning_limit=None if split is None else self._make_reasoning_limit(request, split, prompt.num_rows),
            num_shared=max((len(each) for each in self.shared if prompt.tokens[: len(each)] == each), default=0),
            adapters=self._read_adapters(request),
        )

    def _read_adapters(self, request: ChatRequest) -> AdapterMix:
        if request.adapters is None:
            return self.adapters
        try:
            return make_mix(request.adapters, self._num_adapters)
        except ValueError as error:
            raise RequestError(str(error), parameter="lora") from None

    def _make_params(self, request: ChatRequest, num_prompt: int) -> SamplingParams:
        """Return the sampling parameters, with recommended values filled in and token counts limited to the context."""
        params = fill_recommended(request.params, self._sampling)
        max_tokens = None if params.max_tokens is None else min(params.max_tokens, self._n_ctx - num_prompt)
        repeat_last_n = min(params.repeat_last_n, self._n_ctx)
        # answers to a fallback template have no end token
        stops = (*request.params.stop, *(self.template.stops if request.messages else ()))
        return dataclasses.replace(params, stop=stops, max_tokens=max_tokens, repeat_last_n=repeat_last_n)

    # ---- the prompt
    def make_prompt(self, request: ChatRequest) -> PromptTokens:
        """Make the prompt, without checking that it fits the context. Raises RequestError."""
        if request.messages:
            return self._make_chat_prompt(request)
        if request.tools:
            raise RequestError("tools need messages, not a raw prompt", parameter="tools")
        if not request.is_counted:
            self._check_length(count_raw_chars(request), is_chat=False)
        if request.infill is not None:
            return PromptTokens(self._check_tokens(make_infill_prompt(request.infill, self.vocabulary, self._n_ctx)))
        if request.mixed is not None:
            return PromptTokens(self._check_tokens(tokenize_mixed(request.mixed, self.vocabulary)))
        if request.suffix:
            return PromptTokens(self._make_fill_prompt(request))
        if request.text is not None:  # raw prompts may spell control tokens
            return PromptTokens(tokenize_mixed(Mixed((request.text,)), self.vocabulary))
        return PromptTokens(self._check_tokens(request.tokens))

    def _make_fill_prompt(self, request: ChatRequest) -> tuple[int, ...]:
        """Return a fill-in-the-middle prompt. Control tokens in the texts around the gap are plain text."""
        marks = self.vocabulary.fill_tokens
        if marks is None:
            what = "this model has no tokens for a suffix: it cannot fill in the middle"
            raise RequestError(what, parameter="suffix", code="unsupported_parameter")
        bos = self.vocabulary.tokenize("", add_special=True, parse_special=False)
        before = self._check_tokens(request.tokens) if request.text is None else self._tokenize_plain(request.text)
        return (*bos, marks.prefix, *before, marks.suffix, *self._tokenize_plain(request.suffix), marks.middle)

    def _tokenize_plain(self, text: str) -> list[int]:
        return self.vocabulary.tokenize(text, add_special=False, parse_special=False)

    def _check_tokens(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        for token in tokens:
            if not 0 <= token < self.vocabulary.n_tokens:
                raise RequestError(f"token {token} is not in the vocabulary of {self.vocabulary.n_tokens}")
        return tokens

    def _make_chat_prompt(self, request: ChatRequest) -> PromptTokens:
        """Render the messages and tokenize them.

        Only the template may write control tokens: those that a message spells become plain text.
        """
        literals, beginning = HiddenSpellings(self._spellings), self._find_beginning(request)
        family, given = self.template.family, read_values(request.template_values)
        values = fill_values(request.params.thinking, given, self.template.text, self.template.efforts)
        text = self.template.render(
            beginning.messages,
            tools=() if request.tool_choice.use is ToolUse.NONE else request.tools,
            values=values,
            literals=literals,
            continues=beginning.has_text,
        )
        if beginning.reasoning:
            text = reopen_reasoning(family, text) + literals.hide(beginning.reasoning)
        in_reasoning = bool(beginning.reasoning) or (not beginning.has_text and family.ends_in_reasoning(text))
        is_off = values.get("enable_thinking") is False and "enable_thinking" in self.template.text
        if not request.is_counted:
            self._check_length(len(text), is_chat=True)
        prompt = self._tokenize(list(literals.pieces(text)), request)
        rendered = ""
        if request.tells_prompt:
            pieces = literals.pieces(text)
            rendered = "".join(IMAGE_TEXT if isinstance(piece, Image) else piece[0] for piece in pieces)
        return dataclasses.replace(
            prompt,
            in_reasoning=in_reasoning,
            in_text=beginning.has_text,
            after_reasoning=not in_reasoning and (is_off or family.ends_after_reasoning(text)),
            rendered=rendered,
        )

    def _find_beginning(self, request: ChatRequest) -> PrefilledAnswer:
        """Return the messages, and the beginning of the answer if the last message is to be continued.

        A constrained answer always starts new, because its constraint applies to the whole answer.
        """
        if request.asks:
            return PrefilledAnswer(request.messages, has_text=True)
        last = request.messages[-1]
        is_bound = request.constraint is not None or request.tool_choice.use is ToolUse.REQUIRED
        if not request.resumes or is_bound or last.role != "assistant" or last.tool_calls:
            return PrefilledAnswer(request.messages)
        return read_prefill(request.messages, self.template.family)

    def _tokenize(self, pieces: Sequence[Span | Image], request: ChatRequest) -> PromptTokens:
        first_text = pieces[0][0] if pieces and not isinstance(pieces[0], Image) else ""
        add_special = not starts_with_bos(first_text, self.vocabulary)
        if any(isinstance(piece, Image) for piece in pieces):
            return self._tokenize_with_images(pieces, request, add_special=add_special)
        tokens: list[int] = []
        for piece in pieces:
            assert not isinstance(piece, Image)
            text, is_literal = piece
            tokens += self.vocabulary.tokenize(
                text, add_special=not tokens and add_special, parse_special=not is_literal
            )
        return PromptTokens(tuple(tokens))

    def _tokenize_with_images(
        self, pieces: Sequence[Span | Image], request: ChatRequest, *, add_special: bool
    ) -> PromptTokens:
        if self._image_reader is None:
            what = "this model reads no images: no projector is loaded"
            hint = "--mmproj FILE, with a projector for this model"
            raise RequestError(what, hint=hint, parameter="messages", code=NOT_SUPPORTED)
        images = self._take_images(request)
        parts = [images[p.data] if isinstance(p, Image) else TextPart(p[0], not p[1]) for p in pieces]
        prompt = place_images(self._image_reader.tokenize(parts, add_special=add_special))
        if prompt.images and prompt.images[-1].end == len(prompt.tokens):
            raise RequestError("the prompt ends with an image, and text must follow it", parameter="messages")
        return prompt

    def _take_images(self, request: ChatRequest) -> dict[bytes, object]:
        """Return the request's decoded images by their files; decode them if that was not done."""
        if request.id not in self._images:
            for _ in self.decode_images(request):
                pass
        images = self._images.pop(request.id)
        if isinstance(images, Exception):
            raise images
        return images

    def _check_length(self, num_chars: int, *, is_chat: bool) -> None:
        """Refuse a text that is too long before tokenizing it: millions of characters would take seconds."""
        if num_chars < self._n_ctx * SURE_TOKEN_BYTES:
            return
        max_bytes = self.vocabulary.max_token_bytes  # walks the vocabulary, once
        if max_bytes is not None and num_chars >= self._n_ctx * max_bytes:
            raise self._make_too_long(num_chars // max_bytes, is_chat=is_chat, is_lower_bound=True)

    def _make_too_long(self, num_prompt: int, *, is_chat: bool, is_lower_bound: bool = False) -> RequestError:
        shown = f"more than {num_prompt}" if is_lower_bound else f"{num_prompt}"
        return RequestError(  # clients recognize these first words and shorten the prompt
            f"this model's maximum context length is {self._n_ctx} tokens, and the prompt has {shown}: "
            "no room is left for an answer",
            hint=suggest_ctx(num_prompt, trained_ctx=self._trained_ctx, is_lower_bound=is_lower_bound),
            parameter="messages" if is_chat else "prompt",
            code="context_length_exceeded",
        )

    # ---- the answer
    def _make_split(self, request: ChatRequest, prompt: PromptTokens) -> Split:
        family = self.template.family
        split = dataclasses.replace(
            family.make_split(),
            in_reasoning=prompt.in_reasoning,
            in_text=prompt.in_text,
            after_reasoning=prompt.after_reasoning,
            tools=list_callable_tools(request.tools, request.tool_choice),
            parallel=request.tool_choice.parallel,
        )
        tokens = self._find_marker_tokens(split)
        marks = tuple((token, name) for name, token in tokens.items() if not self.vocabulary.piece(token))
        return dataclasses.replace(split, control_tokens=marks)

    def _make_reasoning_limit(self, request: ChatRequest, split: Split, num_prompt: int) -> ReasoningLimit | None:
        room = self._n_ctx - num_prompt
        room = min(room, room if request.params.max_tokens is None else request.params.max_tokens)
        budget = choose_budget(request.params.thinking, self.template.efforts, room)
        if budget is None or split.in_text:
            return None
        message = request.params.thinking.message if budget else ""
        closings = self.template.family.list_closings(message, may_call=bool(split.tools))
        tokens = [
            (*self._tokenize_plain(words), *self.vocabulary.tokenize(end, add_special=False, parse_special=True))
            for words, end in closings
        ]
        return ReasoningLimit(budget, tuple(tokens)) if tokens else None

    def _find_marker_tokens(self, split: Split) -> dict[str, int]:
        """Return the tokens of those markers that are a single token."""
        tokens_by_name = {
            name: self.vocabulary.tokenize(name, add_special=False, parse_special=True) for name in list_markers(split)
        }
        return {name: tokens[0] for name, tokens in tokens_by_name.items() if len(tokens) == 1}

    def _make_constraint(self, request: ChatRequest, split: Split | None) -> Constraint | None:
        """Return the answer's constraint, which has been compiled once to check it."""
        given = None if request.constraint is None else dataclasses.replace(request.constraint, owner=request.owner)
        if split is None:
            return self._answer_constraint.fit_text(given)
        spec = ConstraintSpec(
            split=split,
            choice=request.tool_choice,
            constraint=given,
            tokens=self._find_marker_tokens(split),
            is_split=request.is_split,
            owner=request.owner,
        )
        return self._answer_constraint.fit_split(spec)


def read_values(pairs: tuple[tuple[str, str], ...]) -> dict[str, object]:
    """Return the template variables, parsed from JSON. Raises RequestError."""
    try:
        return {name: read_json(value) for name, value in pairs}
    except ValueError as error:
        what = f"a value for the chat template cannot be read: {error}"
        raise RequestError(what, parameter="chat_template_kwargs") from None
