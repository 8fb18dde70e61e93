"""The controller of the chat screen: its session, engine and commands. Does not know widgets.

Everything that blocks runs as a task on a thread of its own; what happens comes back as events (`News`), in order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eaglelocal.client.server_reading import make_reading
from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.ask import AskResult, ask, follow_answer
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.conversation.markdown_export import export_markdown
from eaglelocal.conversation.message_output import MessageOutput
from eaglelocal.conversation.pictures import describe_question
from eaglelocal.conversation.session import ActiveModel, AnswerEvents, ModelChoice, RequestOutcome, Session
from eaglelocal.conversation.slash_actions import ActionContext, LeaveChat, run_command
from eaglelocal.conversation.slash_commands import Command, parse_command
from eaglelocal.core.events import Finished, LoadProgress, RequestEvent, TextPiece, Tokens
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EagleLocalError, UsageError
from eaglelocal.tui.chat.task_queue import TaskQueue
from eaglelocal.tui.key_bindings import CHAT_KEYS
from eaglelocal.tui.panel.feed import Feed
from eaglelocal.tui.transcript.live_answer import LiveAnswer

OpenSession = Callable[[MessageOutput, ModelChoice], Session]

WATCH_S = 1.0  # between two polls of the engine
SIGN_OF_LIFE_S = 5.0  # between two readings of a joined server that is not answering
CLOSE_S = 5.0


# ---- events for the screen
@dataclass(frozen=True, slots=True)
class ModelChanged:
    """A model is ready, or its sampling or system message has changed."""

    model: ActiveModel
    choice: ModelChoice
    params: SamplingParams
    system: str


@dataclass(frozen=True, slots=True)
class QuestionSent:
    """A question was sent; its answer grows in `live`."""

    question: str
    live: LiveAnswer


@dataclass(frozen=True, slots=True)
class Heard:
    """The first piece of an answer has arrived."""


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    """An answer has ended."""

    asked: AskResult
    n_ctx: int
    name: str  # of the conversation


@dataclass(frozen=True, slots=True)
class NoteWritten:
    """A note for the transcript."""

    text: str


@dataclass(frozen=True, slots=True)
class Copied:
    """A text for the clipboard."""

    text: str


@dataclass(frozen=True, slots=True)
class ErrorShown:
    """An error for the transcript."""

    error: EagleLocalError


@dataclass(frozen=True, slots=True)
class Progressed:
    progress: LoadProgress | None  # None: it is finished


@dataclass(frozen=True, slots=True)
class TookBack:
    """The last question and its answer were removed."""


@dataclass(frozen=True, slots=True)
class Turned:
    """The conversation was replaced by another one, or emptied."""

    turns: tuple[Turn, ...]
    name: str


@dataclass(frozen=True, slots=True)
class Attached:
    """The pictures that go with the next question, by their labels."""

    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StateChanged:
    state: str  # of the engine, as in client.port.Client
    restarts: int


@dataclass(frozen=True, slots=True)
class Left:
    """The user wants to leave."""


News = (
    ModelChanged
    | QuestionSent
    | Heard
    | AnswerEnded
    | NoteWritten
    | Copied
    | ErrorShown
    | Progressed
    | TookBack
    | Turned
    | Attached
    | StateChanged
    | Left
)
Tell = Callable[[News], None]


@dataclass(frozen=True, slots=True)
class LastQuestion:
    """The last question and its place, as they were when an edit of it began."""

    text: str
    conversation: Conversation
    num_turns: int


class _ProgressLine:
    """A progress bar that ignores updates once it is finished."""

    def __init__(self, tell: Tell) -> None:
        self._tell, self._is_finished = tell, False

    def __call__(self, progress: LoadProgress) -> None:
        if not self._is_finished:
            self._tell(Progressed(progress))

    def finish(self) -> None:
        self._is_finished = True
        self._tell(Progressed(None))


class ScreenVoice:
    """A `MessageOutput` that writes to the transcript."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def message(self, text: str = "") -> None:
        self._tell(NoteWritten(text))

    def aside(self, text: str) -> None:
        self._tell(NoteWritten(text))

    def progress(self) -> _ProgressLine:
        return _ProgressLine(self._tell)


class ChatController:
    """The owner of a chat session, which it opens and uses on its own thread. Calls `tell` from several threads."""

    def __init__(self, open_session: OpenSession, tell: Tell, feed: Feed, folder: Path, *, keeps: bool = True) -> None:
        """folder: where conversations are saved. keeps: save them automatically."""
        self._open_session, self._tell, self._feed, self._folder = open_session, tell, feed, folder
        self._keeps = keeps
        self._voice = ScreenVoice(tell)
        self._errands = TaskQueue(lambda error: tell(ErrorShown(error)))
        self._session: Session | None = None
        self._answer: AnswerEvents | None = None
        self._ended, self._is_over = threading.Event(), threading.Event()  # the chat; an answer, not read yet
        self._watch = threading.Thread(target=self._look, name="engine-watch", daemon=True)
        self._state = ("loading", 0)
        self._live = LiveAnswer()
        self._is_stopping = False  # cancelled; images that are being read are read to their end
        self._shown_at: float | None = None  # when a question with pictures was sent; None: it has none

    # ---- called on the screen's thread
    def start(self) -> None:
        self._errands.send(lambda: self._open(ModelChoice()))
        self._errands.start()
        self._watch.start()

    def ask(self, question: str) -> None:
        self._errands.send(lambda: self._ask(question), question=question)

    def ask_instead(self, question: str, last: LastQuestion) -> None:
        """Ask in place of the question `last`, if that is still the last one."""
        self._errands.send(lambda: self._ask_instead(question, last), question=question)

    def run_command(self, line: str) -> None:
        """Run a slash command."""
        self._errands.send(lambda: self._act(line), question=line)

    def set_up(self, params: SamplingParams, system: str) -> None:
        self._errands.send(lambda: self._set_up(params, system))

    def rename(self, old: str, new: str) -> None:
        self._errands.send(lambda: self._rename(old, new))

    def delete(self, name: str) -> None:
        self.run_command(f"/delete {name}")

    def export_markdown(self, name: str) -> None:
        """Write a saved conversation as Markdown into the current folder."""
        self._errands.send(lambda: self._export(name))

    @property
    def is_answering(self) -> bool:
        return self._answer is not None

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    @property
    def looking_s(self) -> float | None:
        """The seconds that pictures have been read for, before the first token; None if none are being read."""
        if self._shown_at is None or self._live.has_begun:
            return None
        return time.monotonic() - self._shown_at

    @property
    def is_busy(self) -> bool:
        return self._errands.is_busy

    @property
    def waiting(self) -> tuple[str, ...]:
        return self._errands.waiting

    def take_back(self) -> tuple[str, ...]:
        """Remove the questions and commands that have not started, and return them."""
        return self._errands.take_back()

    def stop(self) -> bool:
        """Cancel the running answer. Return True if there was one."""
        answer = self._answer
        if answer is not None:
            self._is_stopping = True
            answer.cancel()
        return answer is not None

    @property
    def last_answer(self) -> str:
        """The last answer as the model wrote it, or ""."""
        turns = self._session.conversation.turns if self._session is not None else []
        return turns[-1].answer if turns else ""

    @property
    def last_question(self) -> LastQuestion | None:
        if self._session is None:
            return None
        conversation = self._session.conversation
        text = conversation.unanswered or (conversation.turns[-1].question if conversation.turns else "")
        return LastQuestion(text, conversation, len(conversation.turns)) if text else None

    def close(self) -> None:
        """Stop the answer and all tasks, and end the engine."""
        self._ended.set()
        self._is_over.set()
        self._errands.take_back()
        self.stop()
        if self._session is not None:
            if not self._errands.close(CLOSE_S / 2):
                self._session.close()  # a task that waits for the engine ends with it
                self._errands.close(CLOSE_S / 2)
            self._session.close()

    # ---- on the thread of tasks
    def _open(self, choice: ModelChoice) -> None:
        self._session = self._open_session(self._voice, choice)
        self._model_changed(self._session)
        self._tell_attached(self._session)
        self._session.check_attached()

    def _opened(self) -> Session:
        """Return the session. Raises UsageError while there is no model."""
        if self._session is None:
            raise UsageError("no model is loaded", hint="/model REF loads one, such as /model demo")
        return self._session

    def _model_changed(self, session: Session) -> None:
        is_ours = _is_our_server(session.model)  # an event of it is a whole step; its readings count tokens
        self._feed.count_by(events=not is_ours)
        self._tell(ModelChanged(session.model, session.choice, session.params, session.conversation.system))

    def _ask(self, question: str) -> None:
        session = self._opened()
        pictures = session.take_attached()
        self._tell_attached(session)
        self._live = LiveAnswer()
        self._shown_at = time.monotonic() if pictures else None
        self._tell(QuestionSent(describe_question(question, pictures), self._live))
        asked = ask(session, question, self._follow, pictures)
        self._keep(session)
        self._tell(AnswerEnded(asked, session.model.info.n_ctx, session.conversation.name))

    def _follow(self, answer: AnswerEvents) -> RequestOutcome:
        self._is_stopping, self._answer = False, answer
        if self._ended.is_set():
            answer.cancel()
        try:
            return follow_answer(answer, self._hear)
        finally:
            self._answer = None
            self._is_over.set()

    def _hear(self, event: RequestEvent) -> None:
        self._feed.take(event, time.monotonic())
        match event:
            case Tokens(pieces=pieces):
                is_first = not self._live.has_begun
                self._live.push(pieces)
                if is_first:
                    self._tell(Heard())
            case Finished(text=text, reasoning=reasoning):
                self._live.push((TextPiece(-1, text, False, reasoning=reasoning),))

    def _ask_instead(self, question: str, last: LastQuestion) -> None:
        """Replace the last question. Raises UsageError if another question is the last one by now."""
        conversation = self._opened().conversation
        if self.last_question != last:
            raise UsageError(
                "the question that was edited is not the last one any more, so nothing was replaced",
                hint="up brings back what was typed",
            )
        self._opened().attach_again()
        conversation.take_last_question()
        conversation.unanswered = ""
        self._tell(TookBack())
        self._ask(question)

    def _act(self, line: str) -> None:
        command = parse_command(line)
        if self._session is None and command.name == "/exit":
            self._tell(Left())
        elif self._session is None and command.name == "/model" and command.argument:
            self._open(ModelChoice(target=command.argument))  # the first model could not be loaded
        else:
            self._act_in(self._opened(), command)

    def _act_in(self, session: Session, command: Command) -> None:
        told = (session.model, session.conversation.system, session.params)
        before = (session.conversation, len(session.conversation.turns), told)
        try:
            question = run_command(ActionContext(session, self._voice, self._folder, self._copy, CHAT_KEYS), command)
        except LeaveChat:
            self._tell(Left())
            return
        finally:
            self._after_action(session, *before)
        if question is not None:
            self._tell(TookBack())
            self._ask(question)

    def _copy(self, text: str) -> None:
        self._tell(Copied(text))

    def _after_action(
        self, session: Session, talk: Conversation, num_turns: int, told: tuple[ActiveModel, str, SamplingParams]
    ) -> None:
        now = session.conversation
        if now is not talk or len(now.turns) == 0 < num_turns:
            self._tell(Turned(tuple(now.turns), now.name))
        if (session.model, now.system, session.params) != told:
            self._model_changed(session)
        self._tell_attached(session)

    def _tell_attached(self, session: Session) -> None:
        self._tell(Attached(tuple(picture.label for picture in session.attached)))

    def _set_up(self, params: SamplingParams, system: str) -> None:
        session = self._opened()
        session.params, session.conversation.system = params, system
        self._model_changed(session)

    def _rename(self, old: str, new: str) -> None:
        name = conversation_file.rename(self._folder, old, new)
        session = self._opened()
        if session.conversation.name == old:
            session.conversation.name = name
        self._tell(NoteWritten(f"renamed {old} to {name}"))

    def _export(self, name: str) -> None:
        conversation = conversation_file.load_conversation(self._folder, name)
        path = export_markdown(conversation, f"{name}.md", target=self._opened().model.info.target)
        self._tell(NoteWritten(f"written to {path}"))

    def _keep(self, session: Session) -> None:
        """Save the conversation; after a failure, such as a full disk, report it and save no more."""
        conversation = session.conversation
        if not self._keeps or not conversation.turns:
            return
        name = conversation.name or conversation_file.fresh_name(self._folder, conversation.turns[0].question)
        try:
            path = conversation_file.path_of(self._folder, name)
            conversation_file.save(conversation, path, target=session.model.info.target)
            conversation.name = path.stem
        except EagleLocalError as error:
            self._keeps = False
            self._tell(ErrorShown(error))
            self._tell(NoteWritten("conversations are not kept from here on"))

    # ---- on the watch's thread
    def _look(self) -> None:
        """Poll the engine: its totals while an answer runs and once after it, its state always."""
        is_due, looked_at = True, time.monotonic()
        while not self._ended.is_set():
            is_due |= self._is_over.wait(WATCH_S)  # an answer has ended, however short it was
            self._is_over.clear()
            session, answers = self._session, self.is_answering
            if session is None or self._ended.is_set():
                continue
            client, now = session.model.client, time.monotonic()
            if answers or is_due or (_is_our_server(session.model) and now - looked_at >= SIGN_OF_LIFE_S):
                looked_at = now
                reading = make_reading(client.snapshot(), state=client.state, n_ctx=session.model.info.n_ctx)
                self._feed.read(reading, time.monotonic())
                is_due = False
            self._note_state(client.state, client.restarts)

    def _note_state(self, state: str, restarts: int) -> None:
        if (state, restarts) != self._state:
            self._state = (state, restarts)
            self._tell(StateChanged(state, restarts))


def _is_our_server(model: ActiveModel) -> bool:
    """Return True for an eaglelocal server that was joined, which has to be polled for its state."""
    return model.plan is None and model.takes_spec
