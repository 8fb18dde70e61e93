"""Builds token ids of prompts without a chat template: mixed texts and tokens, and infill. Pure, over a vocabulary."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable

from eaglelocal.core.image import ImageRows, PlacedImage, placeholder_ids
from eaglelocal.core.ports import FillTokens, Vocabulary
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest, EmbedRequest, Infill, Mixed, Parts
from eaglelocal.core.tools import ToolUse
from eaglelocal.errors import NOT_SUPPORTED, RequestError

CODE_TOKENS = 2048  # limit of the code around the gap
ANSWER_SHARE = 8  # an eighth of the context is left for the answer
SNIPPET = "\n\n--- snippet ---\n\n"
PROJECT, FILE = "myproject\n", "filename\n"  # requests have no names; llama-server writes these


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The prompt's tokens and images.

    in_reasoning, in_text  the prompt ends within the answer's reasoning, or within its text
    after_reasoning        the prompt ends after the answer's reasoning, or thinking is off
    """

    tokens: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()
    in_reasoning: bool = False
    in_text: bool = False
    after_reasoning: bool = False
    rendered: str = ""  # the template's output, if the request wants the prompt shown

    @property
    def num_rows(self) -> int:
        """The number of cells that the prompt takes."""
        return len(self.tokens) + sum(image.num_hidden for image in self.images)


def place_images(pieces: Iterable[int | ImageRows]) -> PromptTokens:
    """Return the prompt of these tokens and images, with stand-in ids in the images' positions."""
    tokens, images = list[int](), list[PlacedImage]()
    for piece in pieces:
        if isinstance(piece, int):
            tokens.append(piece)
        else:
            images.append(PlacedImage(len(tokens), piece))
            tokens += placeholder_ids(piece)
    return PromptTokens(tuple(tokens), tuple(images))


def tokenize_mixed(mixed: Mixed, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the tokens of a list of texts and tokens."""
    tokens: list[int] = []
    for i, part in enumerate(mixed.parts):
        if isinstance(part, int):
            tokens.append(part)
            continue
        add_special = mixed.add_special and i == 0 and not starts_with_bos(part, vocabulary)
        tokens += vocabulary.tokenize(part, add_special=add_special, parse_special=mixed.parse_special)
    return tuple(tokens)


def starts_with_bos(text: str, vocabulary: Vocabulary) -> bool:
    """Return whether the text begins with BOS: templates often write it, and a second BOS would shift all positions."""
    return bool(vocabulary.bos_text) and text.startswith(vocabulary.bos_text)


def make_infill_prompt(infill: Infill, vocabulary: Vocabulary, n_ctx: int) -> tuple[int, ...]:
    """Return the infill prompt, in llama-server's order (`format_prompt_infill`; https://arxiv.org/abs/2409.12186):

        PROJECT myproject FILE a.py (text of a.py) .. FILE filename BOS PREFIX before begun SUFFIX behind MIDDLE

    Text that does not fit is left out where it is furthest from the gap. The share of snippets depends on the context
    alone: while the code around the gap grows, the prompt keeps its beginning, which is then found in the cache.

    Raises RequestError if the vocabulary has no tokens for infill.
    """
    marks = vocabulary.fill_tokens
    if marks is None:
        raise RequestError("infill is not supported by this model: it has no tokens for it", code=NOT_SUPPORTED)
    num_code = min(CODE_TOKENS, n_ctx // 2)
    num_snippets = n_ctx - num_code - n_ctx // ANSWER_SHARE
    begun = tokenize_mixed(Mixed((infill.begun,), add_special=False), vocabulary)
    num_before = num_code * 3 // 4
    num_behind = max(num_code - num_before - len(begun) - 4, 0)  # four: the marks, and BOS
    return (
        *last_tokens(tokenize_snippets(infill, marks, vocabulary), num_snippets),
        *vocabulary.tokenize("", add_special=True, parse_special=False),
        marks.prefix,
        *last_tokens(tokenize_code(infill.before, vocabulary), num_before),
        *begun,
        marks.suffix,
        *tokenize_code(infill.behind, vocabulary)[:num_behind],
        marks.middle,
    )


def tokenize_snippets(infill: Infill, marks: FillTokens, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the tokens of the snippets from other files, separated by file tokens, or by a text if there are none."""
    tokens: list[int] = []
    if marks.project is not None:
        tokens += [marks.project, *tokenize_code((PROJECT,), vocabulary)]
    for name, text in infill.snippets:
        head = (
            [marks.file, *tokenize_code((f"{name}\n",), vocabulary)]
            if marks.file is not None
            else tokenize_code((SNIPPET,), vocabulary)
        )
        tokens += [*head, *tokenize_code((text,), vocabulary)]
    if marks.file is not None:
        tokens += [marks.file, *tokenize_code((FILE,), vocabulary)]
    return tuple(tokens)


def tokenize_code(parts: Parts, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the tokens of code, in which control tokens are plain text."""
    return tokenize_mixed(Mixed(parts, add_special=False, parse_special=False), vocabulary)


def last_tokens(tokens: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tokens[max(len(tokens) - count, 0) :]


# ---- input size: the size of a request's input, which decides on which executor it is read, and a cache of equal
# prompts
#
# Works on plain data, without measuring anything on this machine.
SHORT_CHARS = 32 * 1024  # of all texts of a request; tokenizing so many takes about ten milliseconds
QUICK_CHARS = 2 * 1024
SURE_TOKEN_BYTES = 16  # every vocabulary has longer tokens
MAX_CACHED_PROMPTS = 2
LONG_EXECUTOR, CONSTRAINT_EXECUTOR, IMAGE_EXECUTOR = 1, 2, 3
QUICK_S, MAX_QUICK = 0.05, 256


class ExecutorChooser:
    """Chooses the executor of a request: 0 if it is short; one each for long texts, for new constraints and for images.

    Only requests with a new schema wait for schemas. A schema that was compiled quickly counts as short from then on.
    """

    def __init__(self) -> None:
        self._quick: OrderedDict[int, None] = OrderedDict()  # hashes of make_constraint_key

    def choose(self, request: ChatRequest, num_executors: int) -> int:
        if num_executors == 1:
            return 0
        if any(message.images for message in request.messages):
            return min(IMAGE_EXECUTOR, num_executors - 1)
        if count_chars(request) > SHORT_CHARS:
            return LONG_EXECUTOR
        return (
            CONSTRAINT_EXECUTOR
            if may_compile_grammar(request) and hash(make_constraint_key(request)) not in self._quick
            else 0
        )

    def learn(self, request: ChatRequest, read_s: float) -> None:
        """Remember a constraint that was compiled, or refused, quickly."""
        if read_s > QUICK_S or not may_compile_grammar(request):
            return
        self._quick[hash(make_constraint_key(request))] = None
        while len(self._quick) > MAX_QUICK:
            self._quick.popitem(last=False)


def choose_embed_executor(request: EmbedRequest, num_executors: int) -> int:
    """Return the index of the executor that reads the request: 0 if it is short."""
    count = sum(map(len, request.inputs)) + (len(request.ranking.query) if request.ranking else 0)
    return 0 if num_executors == 1 or count <= SHORT_CHARS else LONG_EXECUTOR


def may_take_long(request: ChatRequest) -> bool:
    """Return whether reading may take more than about ten milliseconds: long texts, images, constraints."""
    return (
        may_compile_grammar(request)
        or any(message.images for message in request.messages)
        or count_chars(request) > SHORT_CHARS
    )


def is_read_quickly(request: ChatRequest) -> bool:
    """Return whether reading takes a millisecond at most: less than an executor's thread takes to wake up."""
    renders_or_compiles = bool(request.messages) or may_compile_grammar(request)
    return not renders_or_compiles and count_chars(request) <= QUICK_CHARS


def may_compile_grammar(request: ChatRequest) -> bool:
    """Return whether a grammar may have to be compiled for the request."""
    if request.constraint is not None or request.tool_choice.use is ToolUse.REQUIRED:
        return True
    return any(tool.is_strict for tool in request.tools)


def make_constraint_key(request: ChatRequest) -> tuple[object, ...]:
    """Return the fields of the request that determine its grammar, and its owner: see make_prompt_key."""
    return request.owner, request.constraint, request.tools, request.tool_choice, request.is_split


def count_raw_chars(request: ChatRequest) -> int:
    """Return the characters of a prompt without a template. Infill does not count, because it is cut to fit."""
    mixed = request.mixed.parts if request.mixed is not None else ()
    return len(request.text or "") + len(request.suffix) + sum(len(part) for part in mixed if isinstance(part, str))


def count_chars(request: ChatRequest) -> int:
    """Return the characters of all the request's texts; a token counts as one."""
    count = count_raw_chars(request) + len(request.tokens)
    count += sum(len(message.content) + len(message.reasoning) for message in request.messages)
    count += sum(len(call.arguments) for message in request.messages for call in message.tool_calls)
    count += sum(len(tool.parameters) + len(tool.description) for tool in request.tools)
    count += sum(len(value) for _, value in request.template_values)
    if request.infill is not None:
        count += sum(len(text) for _, text in request.infill.snippets)
        around = (*request.infill.before, *request.infill.behind)
        count += sum(len(part) for part in around if isinstance(part, str))
    return count


def make_prompt_key(request: ChatRequest) -> tuple[object, ...]:
    """Return the fields that determine a prompt: requests with equal keys have equal prompts.

    The owner is one of them: a cached prompt would reveal that another owner sent it before.
    """
    begins_anew = request.constraint is not None or request.tool_choice.use is ToolUse.REQUIRED
    content = (request.messages, request.text, request.tokens, request.mixed, request.infill, request.suffix)
    how = (request.tools, request.tool_choice, request.template_values, request.resumes, request.asks, begins_anew)
    return (request.owner, *content, *how, request.params.thinking, request.tells_prompt, request.is_counted)


class PromptCache:
    """A cache of the last prompts that took long to make, or of the errors that making them raised.

    A client that wants sixteen answers sends sixteen requests with one prompt. Safe from any thread.
    """

    def __init__(self, make: Callable[[ChatRequest], PromptTokens]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._prompts: OrderedDict[tuple[object, ...], PromptTokens | RequestError] = OrderedDict()

    def get(self, request: ChatRequest) -> PromptTokens:
        """Return the request's prompt. Raises RequestError as `make` does."""
        if not may_take_long(request):
            return self._make(request)
        key = make_prompt_key(request)
        with self._lock:
            prompt = self._prompts.pop(key, None)
        if prompt is None:
            try:
                prompt = self._make(request)
            except RequestError as error:
                prompt = copy.copy(error)
        with self._lock:
            self._prompts[key] = prompt
            while len(self._prompts) > MAX_CACHED_PROMPTS:
                self._prompts.popitem(last=False)
        if isinstance(prompt, RequestError):
            raise copy.copy(prompt)  # a raised error keeps its traceback's frames alive
        return prompt

    def holds(self, request: ChatRequest) -> bool:
        """Return whether `get` would find a cached prompt."""
        key = make_prompt_key(request)
        with self._lock:
            return key in self._prompts

    def forget_images(self) -> None:
        """Drop the prompts with images."""
        with self._lock:
            for key, prompt in list(self._prompts.items()):
                if isinstance(prompt, PromptTokens) and prompt.images:
                    del self._prompts[key]
