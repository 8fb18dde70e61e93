"""What is asked of the engine: messages or raw text on the outside, token ids on the inside."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from eaglelocal.core.constraint import Constraint
from eaglelocal.core.image import PlacedImage
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.task import Task
from eaglelocal.core.tools import ANY_TOOL, Split, Tool, ToolCall, ToolChoice
from eaglelocal.errors import UsageError

MAX_DRAFT_TOKENS = 16


class Drafting(Enum):
    """Who decides how much is drafted."""

    AUTO = "auto"  # measured goodput: as much as pays, by any drafter, nothing where nothing pays
    FIXED = "fixed"  # always a chain of a given length, no lookup
    PID = "pid"  # a length that follows the recent acceptance, for comparison
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Spec:
    """What `--spec` says: `auto`, `off`, `pid`, or the number of draft tokens."""

    drafting: Drafting = Drafting.AUTO
    num_draft_tokens: int = 0  # of FIXED

    @property
    def max_draft(self) -> int:
        """Most drafted rows of a slot in one step."""
        if self.drafting is Drafting.FIXED:
            return self.num_draft_tokens
        return 0 if self.drafting is Drafting.OFF else MAX_DRAFT_TOKENS

    def __str__(self) -> str:
        return str(self.num_draft_tokens) if self.drafting is Drafting.FIXED else self.drafting.value


AUTO, OFF, PID = Spec(), Spec(Drafting.OFF), Spec(Drafting.PID)


def fixed(num_draft_tokens: int) -> Spec:
    return Spec(Drafting.FIXED, num_draft_tokens) if num_draft_tokens else OFF


def parse_spec(text: str | int) -> Spec:
    """Raises UsageError for what is none."""
    for spec in (AUTO, OFF, PID):
        if text == spec.drafting.value:
            return spec
    try:
        length = int(text)
    except ValueError:
        length = -1
    if not 0 <= length <= MAX_DRAFT_TOKENS:
        raise UsageError(f"--spec must be auto, off, pid or a number from 0 to {MAX_DRAFT_TOKENS}, not {text!r}")
    return fixed(length)


@dataclass(frozen=True, slots=True)
class Image:
    """A picture in a message."""

    data: bytes = field(repr=False)  # of a file: PNG, JPEG, GIF, WebP or BMP, as it came
    at: int = 0  # characters of the message's text that stand before it


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str  # system, user, assistant, tool
    content: str
    reasoning: str = ""  # what an assistant thought before it said that
    tool_calls: tuple[ToolCall, ...] = ()  # of an assistant
    tool_call_id: str = ""  # of a tool's answer: the call that it answers
    name: str = ""  # of the tool that answers
    images: tuple[Image, ...] = ()  # in the order of their places; for models that see


Parts = tuple[str | int, ...]  # texts, and tokens among them


@dataclass(frozen=True, slots=True)
class Mixed:
    """Texts that are tokenized as they stand, and tokens used as they are."""

    parts: Parts
    add_special: bool = True  # before a text that begins it, as the vocabulary wants it
    parse_special: bool = True  # control tokens may be spelled in the texts


@dataclass(frozen=True, slots=True)
class Infill:
    """Code with a gap, of which as much is read as the context has room for."""

    before: Parts
    behind: Parts
    snippets: tuple[tuple[str, str], ...] = ()  # of other files: name and text
    begun: str = ""  # the first words of what belongs into the gap


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A question as a client sends it. Exactly one of messages, text, tokens, mixed, infill is given.

    messages  rendered with the target's chat template
    text      tokenized as it stands, without a template; control tokens may be spelled in it
    tokens    used as they are (evaluation, benchmarks)
    mixed     texts and tokens
    infill    what stands around the answer, for models that can fill in the middle

    tools, tool_choice  functions offered to the model (messages only)
    constraint          what the answer's text must look like
    template_values     more variables for the chat template, as JSON by name (enable_thinking, reasoning_effort)
    is_split            reasoning and tool calls are told apart from the answer's text, as the template marks them
    suffix              what stands behind the answer: text or tokens are what stands before it (fill in the middle)
    continues_last      the last message is an answer's beginning, and what is told goes on behind it
    is_counted          only the prompt's tokens are counted: it starts and finishes without an answer
    tells_prompt        what the model is given is told before it starts
    reuses_cache        what a cache holds of the prompt is not computed again
    line_limit_s        so long after its first token the answer ends with the line that is being written
    """

    id: str
    messages: tuple[Message, ...] = ()
    text: str | None = None
    tokens: tuple[int, ...] = ()
    mixed: Mixed | None = None
    infill: Infill | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    spec: Spec | None = None  # None: as the engine was started
    owner: str = ""  # who asks; texts of one owner are never drafted from for another
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ANY_TOOL
    constraint: Constraint | None = None
    template_values: tuple[tuple[str, str], ...] = ()
    is_split: bool = False
    suffix: str = ""
    continues_last: bool = False
    is_counted: bool = False
    tells_prompt: bool = False
    reuses_cache: bool = True
    line_limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What documents are ranked by.

    truncates            a document may lose its end where it does not fit; else it is an error
    max_document_tokens  a longer document loses its end in any case; None: no limit but the context
    is_raw               scores are the model's own; else they are probabilities, from 0 to 1
    given_as             the request's field that holds the documents, for errors
    """

    query: str
    truncates: bool = False
    max_document_tokens: int | None = None
    is_raw: bool = False
    given_as: str = "documents"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """Texts of which an embedding model makes a vector each: as text, or as token ids used as they are.

    With a ranking they are documents, of which a reranker says how well each answers the query.
    """

    id: str
    inputs: tuple[str | tuple[int, ...], ...]
    ranking: Ranking | None = None
    owner: str = ""

    @property
    def task(self) -> Task:
        """Of the model that can answer it."""
        return Task.EMBEDDING if self.ranking is None else Task.RANK


AnyRequest = ChatRequest | EmbedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as the engine runs it."""

    id: str
    prompt: tuple[int, ...]  # negative where an image stands
    params: SamplingParams
    images: tuple[PlacedImage, ...] = ()  # of the prompt
    spec: Spec | None = None
    owner: str = ""
    constraint: Constraint | None = None
    compiled: object | None = field(default=None, repr=False, compare=False)  # keeps the constraint compiled
    split: Split | None = None
    reuses_cache: bool = True
    line_limit_s: float | None = None

    @property
    def num_hidden(self) -> int:
        """Cells that images take beyond one for each position."""
        return sum([image.num_hidden for image in self.images])

    @property
    def goes_on_behind_end(self) -> bool:
        """An end-of-generation token does not end the answer. It always ends one that is bound to a grammar."""
        return self.params.ignore_eos and self.constraint is None
