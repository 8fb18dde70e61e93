"""Do the work of the chat screen on its session: load models, ask, run commands, save. Does not know widgets.

Every public method blocks and runs as a task on the task thread; its results are emitted as events.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.action_context import ActionContext, LeaveChat
from eaglelocal.conversation.answer_stats import MessageOutput
from eaglelocal.conversation.ask import AskResult, ask
from eaglelocal.conversation.code_blocks import number_next_code
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.conversation.conversation_file import export_markdown
from eaglelocal.conversation.pictures import Pictures
from eaglelocal.conversation.session import ActiveModel, RequestOutcome, Session, save_session
from eaglelocal.conversation.slash_commands import Command, parse_command, run_command
from eaglelocal.core.adapters import AdapterMix
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.events import RequestEvent, Started
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EagleLocalError, UsageError, bug_error
from eaglelocal.tui.chat.chat_events import (
    AnswerEnded,
    AttachmentsChanged,
    CommandReplied,
    ConversationReplaced,
    Emit,
    EventOutput,
    ExitRequested,
    LoadProgressed,
    ModelChanged,
    NoteWritten,
    SummaryMade,
    TaskFailed,
    TextCopied,
    TurnsReplaced,
)
from eaglelocal.tui.chat.current_answer import CurrentAnswer
from eaglelocal.tui.chat.tool_dialog import ScreenReviewer
from eaglelocal.tui.panel.feed import Feed

OpenSession = Callable[[MessageOutput, ModelChoice], Session]


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question of a conversation, as it was when somebody began to edit it or pointed at it."""

    text: str
    conversation: Conversation
    index: int  # of its turn
    version: int = 0  # that is chosen, of `num_versions`
    num_versions: int = 1
    has_answer: bool = True


class ChatTasks:
    """The tasks of a chat, and the session that they work on."""

    def __init__(
        self, open_session: OpenSession, emit: Emit, answer: CurrentAnswer, feed: Feed, folder: Path, *, saves: bool
    ) -> None:
        """folder: where conversations are saved. saves: save them automatically."""
        self._open_session, self._emit, self._answer, self._feed = open_session, emit, answer, feed
        self._folder, self._saves = folder, saves
        self._output = EventOutput(emit, lambda progress: emit(LoadProgressed(progress)))
        self.reviewer = ScreenReviewer(emit, answer.go_on)
        answer.on_begin = self._begin_answer
        self.session: Session | None = None  # None until a model is loaded
        self._saving = threading.Lock()  # commands run on a thread of their own during an answer
        self._fed_model: ActiveModel | None = None  # whose figures the feed has

    # ---- for any thread
    @property
    def model(self) -> ActiveModel | None:
        return None if self.session is None else self.session.model

    def find_question(self, index: int | None = None) -> AskedQuestion | None:
        """Return the question at an index, None: the last one; None if there is none."""
        if self.session is None:
            return None
        conversation = self.session.conversation
        index = len(conversation.turns) - 1 if index is None else index
        if not 0 <= index < len(conversation.turns):
            return None
        turn = conversation.turns[index]
        return AskedQuestion(turn.question, conversation, index, turn.version, turn.num_versions, turn.is_answered)

    # ---- tasks
    def open(self, choice: ModelChoice) -> None:
        self.session = self._open_session(self._output, choice)
        self._emit_model(self.session)
        self._emit_attachments(self.session)
        if (conversation := self.session.conversation).turns:  # the conversation is a continued one
            self._emit_conversation(conversation)
        self.session.check_attached()

    def ask(self, question: str) -> None:
        session = self._require_session()
        pictures = session.take_attached()
        self._emit_attachments(session)
        self.reviewer.reset()
        conversation, num_before = session.conversation, len(session.conversation.turns)
        self._answer.begin(question, pictures, conversation.turns, session.thinking_budget)
        result = self._ask_or_fail(session, question, pictures)
        self._save(session)
        has_turn = len(conversation.turns) > num_before and not result.is_restored
        turn = conversation.turns[-1] if has_turn else None
        self._emit(AnswerEnded(result, turn, session.model.info.n_ctx))
        if result.is_restored:
            self._emit_turns(num_before)
            self._emit(NoteWritten("there is no new answer, so the turn stays as it was"))
            if result.outcome.error is not None:
                self._emit(TaskFailed(result.outcome.error))

    def _ask_or_fail(self, session: Session, question: str, pictures: Pictures) -> AskResult:
        """Ask. An exception becomes the result, because the screen shows nothing else until the answer has ended."""
        num_before = len(session.conversation.turns)
        try:
            return ask(session, question, self._answer.follow, pictures, self.reviewer)
        except Exception as problem:
            outcome = RequestOutcome(error=explain(problem))
            is_restored = len(session.conversation.turns) > num_before
            if not is_restored:
                session.record(Turn(question, "", pictures=pictures), outcome, session.conversation.num_forgotten)
            return AskResult(outcome, 0, is_restored)

    def ask_instead(self, question: str, place: AskedQuestion) -> None:
        """Ask in the place of another question, whose turn stays as another version.

        Raises UsageError if that question is no longer there.
        """
        session = self._require_session()
        self._check(place)
        session.cut(place.index)
        self._emit(TurnsReplaced(place.index))
        if num_following := len(session.conversation.replaced) - 1:
            turns = "turn" if num_following == 1 else f"{num_following} turns"
            self._emit(NoteWritten(f"the {turns} after it stays with version {place.version + 1}"))
        self.ask(question)

    def choose_version(self, place: AskedQuestion, version: int) -> None:
        """Go on with another version of a turn. Raises UsageError if it is no longer there."""
        session = self._require_session()
        self._check(place)
        session.conversation.choose_version(place.index, version)
        self._emit_turns(place.index)
        self._save(session)

    def branch(self, place: AskedQuestion) -> None:
        """Go on in a new conversation, which begins with the turns up to this one.

        Raises UsageError if that is no longer there, or if turns would be lost because they are not saved.
        """
        session = self._require_session()
        self._check(place)
        old = session.conversation
        if old.num_saved < len(old.turns):
            raise UsageError("this conversation is not saved, so a branch would lose it", hint="/save NAME")
        with self._emit_changes(session):
            session.conversation = old.branch(place.index)
            session.tools.granted_in_chat.clear()
            self._save(session)
        name = f", saved as {session.conversation.name}" if session.conversation.name else ""
        from_name = f" of {old.name}" if old.name else ""
        num_turns = count_noun(len(session.conversation.turns), "turn")
        self._emit(NoteWritten(f"a new conversation with the first {num_turns}{from_name}{name}"))

    def _check(self, place: AskedQuestion) -> None:
        if self.find_question(place.index) != place:
            raise UsageError(
                "the question is no longer in this conversation, so nothing was changed",
                hint="press up to get back what you typed",
            )

    def _emit_turns(self, index: int) -> None:
        """Emit the turns from an index on, which are other ones than before."""
        turns = self._require_session().conversation.turns
        self._emit(TurnsReplaced(index, tuple(turns[index:]), number_next_code(turns[:index])))

    def run_command(self, line: str) -> None:
        command = parse_command(line)
        if self.session is None and command.name == "/exit":
            self._emit(ExitRequested())
        elif self.session is None and command.name == "/model" and command.argument:
            self.open(ModelChoice(target=command.argument))  # the first model could not be loaded
        else:
            self._run_command(self._require_session(), command, self._output)

    def run_during_answer(self, line: str) -> None:
        """Run a command during an answer, and emit what it says as one reply."""
        messages: list[str] = []
        output = EventOutput(self._emit, lambda progress: self._emit(LoadProgressed(progress)), messages.append)
        try:
            self._run_command(self._require_session(), parse_command(line), output)
        finally:
            if messages:
                self._emit(CommandReplied("\n".join(messages)))

    def change_model(self, choice: ModelChoice) -> None:
        """Load the model of a choice, in place of the current one if there is one."""
        if self.session is None:
            self.open(choice)
            return
        with self._emit_changes(self.session):
            self.session.switch(choice)

    def rejoin(self) -> None:
        """Show the model of a joined server that answers again."""
        if self.session is None:
            return
        with self._emit_changes(self.session):
            self.session.rejoin()

    def change_settings(self, params: SamplingParams, system: str) -> None:
        session = self._require_session()
        with self._emit_changes(session):
            session.set_params(params)
            session.conversation.system = system

    def rename(self, old: str, new: str) -> None:
        name = conversation_file.rename(self._folder, old, new)
        conversation = self._require_session().conversation
        if conversation.name == old:
            conversation.name = name
        self._emit(NoteWritten(f"renamed {old} to {name}"))

    def export_markdown(self, name: str) -> None:
        """Write a saved conversation as Markdown into the current folder."""
        conversation = conversation_file.load_conversation(self._folder, name)
        path = export_markdown(conversation, f"{name}.md", target=self._require_session().model.info.target)
        self._emit(NoteWritten(f"written to {path}"))

    # ---- inside
    def _begin_answer(self, event: RequestEvent) -> None:
        """Show the model that a joined server has now, and save the question, in case this program is killed."""
        self.rejoin()
        if self.session is not None and self.session.conversation.begun and isinstance(event, Started):
            self._save(self.session)

    def _require_session(self) -> Session:
        if self.session is None:
            raise UsageError("no model is loaded", hint="/model REF loads one, such as /model demo")
        return self.session

    def _run_command(self, session: Session, command: Command, output: MessageOutput) -> None:
        context = ActionContext(
            session,
            output,
            self._folder,
            lambda text: self._emit(TextCopied(text)),
            follow=self._answer.follow_summary,
            has_screen=True,
        )
        # a summary is an answer, during which other commands may run
        lock = nullcontext() if command.name == "/compact" else self._saving
        try:
            with self._emit_changes(session, is_cleared=command.name == "/clear"), lock:
                question = run_command(context, command)
        except LeaveChat:
            self._emit(ExitRequested())
            return
        if command.name in ("/compact", "/undo"):
            self._save(session)
        if question is not None:
            self._emit(TurnsReplaced(len(session.conversation.turns)))
            self.ask(question)

    @contextmanager
    def _emit_changes(self, session: Session, *, is_cleared: bool = False) -> Iterator[None]:
        """Emit what changes meanwhile. is_cleared: empty the screen too, also if there was only a note on it."""
        conversation, settings = session.conversation, _list_settings(session)
        summary, has_turns = conversation.summary, bool(conversation.turns)
        try:
            yield
        finally:
            is_undone = summary is not None and conversation.summary is None
            is_cleared = is_cleared or (has_turns and not conversation.kept)
            if session.conversation is not conversation or is_cleared:
                self._emit_conversation(session.conversation)
            elif is_undone:
                self._emit(ConversationReplaced(tuple(conversation.turns), is_same=True))
            elif conversation.summary != summary:
                self._emit_summary(conversation)
            if _list_settings(session) != settings:
                self._emit_model(session)
                if session.conversation is conversation and conversation.name:  # of a saved one they are saved too
                    self._save(session)
            self._emit_attachments(session)

    def _emit_model(self, session: Session) -> None:
        if session.model is not self._fed_model:
            self._fed_model = session.model
            self._feed.forget()
        system, adapters = session.conversation.system, session.shown_adapters
        settings = session.choice, session.params, system, adapters
        self._emit(ModelChanged(session.model, *settings, session.reference))

    def _emit_conversation(self, conversation: Conversation) -> None:
        self._emit(ConversationReplaced(tuple(conversation.turns)))
        self._emit_summary(conversation)

    def _emit_summary(self, conversation: Conversation) -> None:
        if (summary := conversation.summary) is not None:
            self._emit(SummaryMade(summary.text, summary.num_turns))

    def _emit_attachments(self, session: Session) -> None:
        self._emit(AttachmentsChanged(tuple(picture.label for picture in session.attached)))

    def _save(self, session: Session) -> None:
        """Save the conversation. After a failure, such as a full disk, report it and save no more."""
        if not self._saves or not session.conversation.kept:
            return
        try:
            with self._saving:
                notice = save_session(session, self._folder).notice
            if notice:
                self._emit(NoteWritten(notice))
        except EagleLocalError as error:
            self._saves = False
            self._emit(TaskFailed(error))
            self._emit(NoteWritten("conversations are no longer saved"))


def _list_settings(session: Session) -> tuple[ActiveModel, str, SamplingParams, AdapterMix | None]:
    """Return the settings that the screen shows: model, system message, sampling and adapters."""
    return session.model, session.conversation.system, session.params, session.adapters


# ---- task queue: run tasks that block (loading, answering, commands) one after another on a thread of their own
#
# `send` returns at once. Does not know the screen: failures go to a callback, on that thread.
_log = logging.getLogger(__name__)


def explain(problem: Exception) -> EagleLocalError:
    """Return the error that the user is shown for the exception of a task; a bug is logged."""
    if isinstance(problem, EagleLocalError):
        return problem
    _log.error("a chat task failed", exc_info=problem)
    return bug_error(problem)


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """A task in the queue."""

    run: Callable[[], None]
    question: str = ""  # the user's text, to put it back into the prompt


class TaskQueue:
    """A queue of tasks and the thread that runs them."""

    def __init__(self, on_failure: Callable[[EagleLocalError], None], name: str) -> None:
        """name: of the thread."""
        self._on_failure = on_failure
        self._tasks: deque[QueuedTask] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._current: QueuedTask | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, run: Callable[[], None], *, question: str = "") -> None:
        with self._changed:
            self._tasks.append(QueuedTask(run, question))
            self._changed.notify()

    @property
    def is_busy(self) -> bool:
        """True while a task runs or waits."""
        with self._changed:
            return self._current is not None or bool(self._tasks)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The questions whose tasks have not started."""
        with self._changed:
            return tuple(task.question for task in self._tasks if task.question)

    def cancel_waiting(self) -> tuple[str, ...]:
        """Remove the questions whose tasks have not started, and return them."""
        with self._changed:
            questions = tuple(task.question for task in self._tasks if task.question)
            self._tasks = deque(task for task in self._tasks if not task.question)
        return questions

    def close(self, timeout_s: float) -> bool:
        """Start no further task and wait for the running one. Return True if it ended in time."""
        with self._changed:
            self._is_closed = True
            self._tasks.clear()
            self._changed.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            try:
                task.run()
            except Exception as problem:
                self._on_failure(explain(problem))
            finally:
                self._current = None

    def _next(self) -> QueuedTask | None:
        with self._changed:
            self._changed.wait_for(lambda: self._tasks or self._is_closed)
            if self._is_closed:
                return None
            self._current = self._tasks.popleft()
            return self._current
