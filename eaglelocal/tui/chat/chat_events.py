"""The events that `ChatController` sends to the chat screen, in the order in which they happen, and its activity."""

from __future__ import annotations

from collections.abc import Callable

from eaglelocal.conversation.ask import AskResult
from eaglelocal.conversation.conversation import ToolRound, Turn
from eaglelocal.conversation.session import ActiveModel
from eaglelocal.conversation.tool_rounds import CallReview
from eaglelocal.core.adapters import AdapterFile
from eaglelocal.core.events import LoadProgress
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EagleLocalError
from eaglelocal.tui.transcript.entries import LiveAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWork:
    """The progress of an answer."""

    phase: str  # waiting, reading, reading images, thinking, answering, summarizing
    seconds: float  # since the phase began
    count: int = 0  # tokens of the phase so far
    total: int | None = None  # tokens of the phase, or their limit; None: not known, or no limit
    num_cached: int = 0  # tokens in the context, as far as is known
    is_stopping: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The activity of the chat at one moment."""

    answer: AnswerWork | None = None
    is_busy: bool = False
    tool_work: str = ""  # with tools, such as `calling time.get_current_time`
    waiting: tuple[str, ...] = ()  # the questions and commands that have not started


@dataclass(frozen=True, slots=True)
class ModelChanged:
    """A model is ready, or its sampling, system message or adapters have changed."""

    model: ActiveModel
    choice: ModelChoice
    params: SamplingParams
    system: str
    adapters: tuple[AdapterFile, ...] = ()  # with the scales that the next question has
    reference: str = ""  # that loads the model here; "": it is at a server


@dataclass(frozen=True, slots=True)
class EngineStateChanged:
    """The engine is in another state, or has restarted."""

    state: str  # as in client.client.Client
    restarts: int


@dataclass(frozen=True, slots=True)
class LoadProgressed:
    """A model is being loaded. `progress` is None when that has ended."""

    progress: LoadProgress | None


@dataclass(frozen=True, slots=True)
class DownloadProgressed:
    """A model is being downloaded. `progress` is None when that has ended."""

    reference: str
    progress: LoadProgress | None


@dataclass(frozen=True, slots=True)
class QuestionSent:
    """A question was sent; its answer grows in `live`."""

    question: str
    live: LiveAnswer
    turn: int  # its index in the conversation


@dataclass(frozen=True, slots=True)
class FirstTokensReceived:
    """The first tokens of an answer have arrived."""


@dataclass(frozen=True, slots=True)
class CallQuestion:
    """The user is asked whether a call may run; `answer` takes the dialog's value, once."""

    call: CallReview
    answer: Callable[[str | None], None]


@dataclass(frozen=True, slots=True)
class CallsCompleted:
    """The calls of a round were run or refused; the answer goes on in `live`."""

    done: ToolRound
    live: LiveAnswer


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    """An answer is complete, was stopped, or has failed. `turn`: its turn, if it has any text."""

    result: AskResult
    turn: Turn | None
    n_ctx: int


@dataclass(frozen=True, slots=True)
class TurnsReplaced:
    """The turns from an index on are other ones, or were removed."""

    index: int
    turns: tuple[Turn, ...] = ()
    first_code: int = 1  # the number of the first code block in them


@dataclass(frozen=True, slots=True)
class ConversationReplaced:
    """The user opened another conversation or began a new one."""

    turns: tuple[Turn, ...]
    is_same: bool = False  # only its summary was removed


@dataclass(frozen=True, slots=True)
class SummaryMade:
    """A summary replaces the first `num_turns` turns in what is sent."""

    text: str
    num_turns: int


@dataclass(frozen=True, slots=True)
class AttachmentsChanged:
    """The pictures that go with the next question have changed."""

    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoteWritten:
    """A note for the transcript."""

    text: str


@dataclass(frozen=True, slots=True)
class CommandReplied:
    """A command was run during an answer: what it says, or its error."""

    reply: str | EagleLocalError


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task failed; the error is for the transcript."""

    error: EagleLocalError


@dataclass(frozen=True, slots=True)
class TextCopied:
    """A text for the clipboard."""

    text: str


@dataclass(frozen=True, slots=True)
class ExitRequested:
    """The user wants to leave."""


ChatEvent = (
    ModelChanged
    | EngineStateChanged
    | LoadProgressed
    | DownloadProgressed
    | QuestionSent
    | FirstTokensReceived
    | CallQuestion
    | CallsCompleted
    | AnswerEnded
    | TurnsReplaced
    | ConversationReplaced
    | SummaryMade
    | AttachmentsChanged
    | NoteWritten
    | CommandReplied
    | TaskFailed
    | TextCopied
    | ExitRequested
)
Emit = Callable[[ChatEvent], None]  # may be called from any thread


class EventOutput:
    """A `MessageOutput` whose messages become notes, unless `say` takes them, and whose progress goes to `show`."""

    def __init__(
        self, emit: Emit, show: Callable[[LoadProgress | None], None], say: Callable[[str], None] | None = None
    ) -> None:
        """show: is given None at the end."""
        self._say, self._show = say or (lambda text: emit(NoteWritten(text))), show

    def message(self, text: str = "") -> None:
        self._say(text)

    note = message

    def progress(self) -> EventProgressBar:
        return EventProgressBar(self._show)


class EventProgressBar:
    """A progress bar that ignores updates once it is finished."""

    def __init__(self, show: Callable[[LoadProgress | None], None]) -> None:
        self._show, self._is_finished = show, False

    def __call__(self, progress: LoadProgress) -> None:
        if not self._is_finished:
            self._show(progress)

    def finish(self) -> None:
        self._is_finished = True
        self._show(None)
