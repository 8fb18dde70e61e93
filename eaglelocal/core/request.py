"""Requests to the engine: messages or raw text from clients, token ids inside the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from enum import Enum
from types import MappingProxyType
from typing import Any

from eaglelocal.core.adapters import NO_ADAPTERS, AdapterMix
from eaglelocal.core.constraint import Constraint
from eaglelocal.core.image import PlacedImage
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.records import dataclass
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.tools import ANY_TOOL, Split, Tool, ToolCall, ToolChoice
from eaglelocal.errors import UsageError

MAX_DRAFT_TOKENS = 16
LOCAL = "local"  # owner of requests to a server when no key is needed
NO_NAMES: Mapping[str, str] = MappingProxyType({})


def stored_owner(owner: str, names: Mapping[str, str]) -> str:
    """Return the mark of an owner's texts on disk: their name there (see core.plan.Owners), if they have one.

    Chats with an engine of their own and servers without keys are one owner.
    """
    return names.get(owner, owner or LOCAL)


class DraftPolicy(Enum):
    """The policies that decide how many tokens are drafted."""

    AUTO = "auto"  # by measured goodput: as many as pay off, by any drafter; none if none do
    FIXED = "fixed"  # always a chain of a given length, no lookup
    PID = "pid"  # a length that follows the recent acceptance, for comparison
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Spec:
    """A value of `--spec`: `auto`, `off`, `pid`, or the number of draft tokens."""

    drafting: DraftPolicy = DraftPolicy.AUTO
    num_draft_tokens: int = 0  # of FIXED

    @property
    def max_draft(self) -> int:
        """The most drafted rows of a slot in one step."""
        if self.drafting is DraftPolicy.FIXED:
            return self.num_draft_tokens
        return 0 if self.drafting is DraftPolicy.OFF else MAX_DRAFT_TOKENS

    def __str__(self) -> str:
        return str(self.num_draft_tokens) if self.drafting is DraftPolicy.FIXED else self.drafting.value


AUTO_SPEC, OFF, PID = Spec(), Spec(DraftPolicy.OFF), Spec(DraftPolicy.PID)


def fixed_spec(num_draft_tokens: int) -> Spec:
    return Spec(DraftPolicy.FIXED, num_draft_tokens) if num_draft_tokens else OFF


def parse_spec(text: str | int, *, name: str = "--spec", hint: str = "--spec auto") -> Spec:
    """Parse a value of `--spec`, or of the setting of this name. Raises UsageError for any other text."""
    for spec in (AUTO_SPEC, OFF, PID):
        if text == spec.drafting.value:
            return spec
    try:
        length = int(text)
    except ValueError:
        length = -1
    if not 0 <= length <= MAX_DRAFT_TOKENS:
        what = f"{name} must be auto, off, pid or a number from 0 to {MAX_DRAFT_TOKENS}, not {text!r}"
        raise UsageError(what, hint=hint)
    return fixed_spec(length)


@dataclass(frozen=True, slots=True)
class Image:
    """An image in a message."""

    data: bytes = field(repr=False)  # a file's bytes: PNG, JPEG, GIF, WebP or BMP
    at: int = 0  # its position: the number of characters of the message's text before it


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation."""

    role: str  # system, user, assistant, tool
    content: str
    reasoning: str = ""  # an assistant's reasoning before the content
    tool_calls: tuple[ToolCall, ...] = ()  # of an assistant
    tool_call_id: str = ""  # of a tool's answer: the call that it answers
    name: str = ""  # of the tool that answers
    images: tuple[Image, ...] = ()  # in the order of their positions; for models that read images


Parts = tuple[str | int, ...]  # texts, and tokens among them


@dataclass(frozen=True, slots=True)
class Mixed:
    """Texts that are tokenized without a template, and tokens used as they are."""

    parts: Parts
    add_special: bool = True  # add the vocabulary's first tokens (BOS), if a text comes first
    parse_special: bool = True  # control tokens may be spelled in the texts


@dataclass(frozen=True, slots=True)
class Infill:
    """Code with a gap; the part that fits in the context is used."""

    before: Parts
    behind: Parts
    snippets: tuple[tuple[str, str], ...] = ()  # of other files: name and text
    begun: str = ""  # text that is already in the gap


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """The fields that a client's request and the engine's have in common: all are handed on (input_processor.py).

    constraint    a grammar, schema or other constraint on the answer's text
    tells_tokens  Finished gives the prompt and the answer as token ids
    is_private    nothing of it is kept on disk: to learn from, for lookups, or as a cache
    reuses_cache  reuse what a cache holds of the prompt
    line_limit_s  so many seconds after its first token, the answer ends with the current line
    """

    id: str
    params: SamplingParams = field(default_factory=SamplingParams)
    spec: Spec | None = None  # None: as set for the engine
    owner: str = ""  # the user; texts of one owner are never used to draft for another
    constraint: Constraint | None = None
    tells_tokens: bool = False
    is_private: bool = False
    reuses_cache: bool = True
    line_limit_s: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The values of these fields by name, to make another request of."""
        return {each.name: getattr(self, each.name) for each in fields(AnswerOptions)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(AnswerOptions):
    """A request for an answer, as a client sends it. Exactly one of messages, text, tokens, mixed, infill is given.

    messages  rendered with the target's chat template
    text      tokenized without a template; control tokens may be spelled in it
    tokens    used as they are (evaluation, benchmarks)
    mixed     texts and tokens
    infill    the code around the answer, for fill-in-the-middle models

    tools, tool_choice  functions offered to the model (messages only)
    template_values     more variables for the chat template, as JSON by name (enable_thinking, reasoning_effort)
    is_split            reasoning and tool calls are separated from the answer's text, as the template marks them
    suffix              text after the answer (fill in the middle); text or tokens are then the prefix
    resumes             the last message is the beginning of the answer, and events carry only what follows it
    asks                the last message is the beginning of a question, which the model goes on to ask
    is_counted          only count the prompt's tokens: it starts and finishes without an answer
    tells_prompt        emit the model's input (Prompted) before it starts
    adapters            ids of LoRA adapters and their scales; None: as set for the engine
    """

    messages: tuple[Message, ...] = ()
    text: str | None = None
    tokens: tuple[int, ...] = ()
    mixed: Mixed | None = None
    infill: Infill | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ANY_TOOL
    template_values: tuple[tuple[str, str], ...] = ()
    is_split: bool = False
    suffix: str = ""
    resumes: bool = False
    asks: bool = False
    is_counted: bool = False
    tells_prompt: bool = False
    adapters: tuple[tuple[int, float], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The query that documents are ranked by, and how.

    truncates            cut the end off a document that does not fit; else that is an error
    max_document_tokens  cut longer documents in any case; None: no limit but the context
    is_raw               return the model's own scores; else probabilities, from 0 to 1
    parameter            the request's field that holds the documents, for errors
    """

    query: str
    truncates: bool = False
    max_document_tokens: int | None = None
    is_raw: bool = False
    parameter: str = "documents"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """A request for one vector per text: as text, or as token ids used as they are.

    With a ranking the texts are documents, and a reranker scores how well each answers the query.

    truncates  cut the end off a text that does not fit, before the vocabulary's last tokens; else that is an error
    """

    id: str
    inputs: tuple[str | tuple[int, ...], ...]
    ranking: Ranking | None = None
    truncates: bool = False
    owner: str = ""

    @property
    def task(self) -> ModelTask:
        """The task of a model that can answer it."""
        return ModelTask.EMBEDDING if self.ranking is None else ModelTask.RANK


AnyRequest = ChatRequest | EmbedRequest


@dataclass(frozen=True, slots=True)
class ReasoningLimit:
    """The limit of an answer's reasoning.

    budget    tokens of reasoning
    closings  tokens that end it: the first time, and whenever it begins again or they do not fit
    """

    budget: int
    closings: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(AnswerOptions):
    """A request as the engine runs it: token ids, and everything the scheduler and samplers need."""

    prompt: tuple[int, ...]  # negative stand-ins for images
    images: tuple[PlacedImage, ...] = ()  # of the prompt
    compiled: object | None = field(default=None, repr=False, compare=False)  # keeps the constraint compiled
    split: Split | None = None
    reasoning_limit: ReasoningLimit | None = None  # only with a split
    num_shared: int = 0  # first tokens of the prompt that the operator shares between owners (--shared-prefix)
    adapters: AdapterMix = NO_ADAPTERS

    def count_reusable(self, held: Sequence[int], owner: str) -> int:
        """Return how many tokens at the start of a held text the request begins with and may reuse.

        Of another owner's text that is the shared beginning, whole or not at all: partial reuse would reveal where that
        text differs.
        """
        if owner == self.owner:
            return common_prefix(held, self.prompt)
        is_shared = common_prefix(held[: self.num_shared], self.prompt) == self.num_shared
        return self.num_shared if is_shared else 0

    @property
    def num_hidden(self) -> int:
        """The cells that images take beyond one per position."""
        return sum([image.num_hidden for image in self.images])

    @property
    def continues_after_eos(self) -> bool:
        """True if an end-of-generation token does not end the answer. With a constraint it always does."""
        return self.params.ignore_eos and self.constraint is None


# ---- common prefix
BLOCK = 256  # tokens compared at a time, as tuples in C


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    length = min(len(a), len(b))
    for first in range(0, length, BLOCK):
        x, y = tuple(a[first : first + BLOCK]), tuple(b[first : first + BLOCK])
        if x != y:
            return first + next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))
    return length
