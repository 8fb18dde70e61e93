"""A chat session: the model that answers, the conversation, and the settings of the next request.

It turns questions into requests. The caller gives it a loader of models; clients and terminals are behind Protocols.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import Protocol

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.answer_stats import MessageOutput
from eaglelocal.conversation.chat_tools import ChatTools, ToolOffer
from eaglelocal.conversation.conversation import (
    ContextUse,
    Conversation,
    TokenEstimate,
    ToolRound,
    Turn,
    TurnSummary,
    calibrate_estimate,
    turns_to_forget,
)
from eaglelocal.conversation.pictures import AttachedPicture, Pictures, join_pictures
from eaglelocal.conversation.sampling_form import apply_changes, describe_changes, find_changes
from eaglelocal.core.adapters import AdapterFile, AdapterMix, apply_mix, list_scales, make_mix
from eaglelocal.core.atomic_file import lock_folder
from eaglelocal.core.events import EngineInfo, EngineSnapshot, Finished, RequestEvent
from eaglelocal.core.plan import Plan
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest, Message, Spec
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.stats import LEARNING_OFF, LearningStatus
from eaglelocal.core.terminal_text import clean_line
from eaglelocal.core.thinking import MAX_BUDGET
from eaglelocal.core.tools import ANY_TOOL, CallPart, ToolCall, ToolChoice, join_calls
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import EagleLocalError, RequestError, UsageError
from eaglelocal.text.reasoning.efforts import choose_budget

DEAD = ("failed", "closed")  # states of a client that will not answer any more
BLIND_HINT = (
    "`eaglelocal pull REF` fetches a model that reads images with its mmproj-*.gguf; --mmproj FILE names that file"
)
ENDS_WITH_CALLS = ("tool_calls", "stop")  # reasons; some servers give the second
_ADDRESS = re.compile(r"https?://[^/]+(/v1)?/?")  # of a server: a page of the hub has a longer path
MAYBE_TOO_LONG = ("", "context_length_exceeded")  # codes of a RequestError; some servers give none


class AnswerEvents(Protocol):
    """An iterable over the events of one request, the last of which is Finished or Failed."""

    def __iter__(self) -> Iterator[RequestEvent]: ...

    def cancel(self) -> None: ...


class ChatClient(Protocol):
    """The interface of a client that chat needs: of an engine, or of a server."""

    @property
    def state(self) -> str:
        """The state, as in client.client.Client: loading, ready, restarting, failed, closed."""

    @property
    def restarts(self) -> int: ...

    def stream(self, request: ChatRequest) -> AnswerEvents: ...

    def snapshot(self) -> EngineSnapshot: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ActiveModel:
    """A model that is ready: loaded here by `plan`, or at a server (`plan` None)."""

    client: ChatClient
    plan: Plan | None
    info: EngineInfo
    takes_spec: bool = True  # requests may say how to draft
    read_learning: Callable[[], LearningStatus] = lambda: LEARNING_OFF
    read_info: Callable[[], EngineInfo | None] = lambda: None  # of a server, which may have been restarted

    @property
    def speculates(self) -> bool:
        return self.info.draft != "none" if self.plan is None else self.plan.speculates

    @property
    def local_name(self) -> str:
        """The name of a model that was loaded here; "" at a server."""
        return "" if self.plan is None else self.info.target


def check_sees(model: ActiveModel) -> None:
    """Raise UsageError, with a hint, if the model reads no images."""
    if model.info.sees_images:
        return
    if model.plan is None:
        raise UsageError(f"{model.info.target} reads no images", hint="ask a server whose model does")
    raise UsageError(f"{model.info.target} reads no images", hint=model.plan.projector_note or BLIND_HINT)


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """A loader of models.

    plan  finds the files; raises EagleLocalError if they cannot run
    load  starts the engine
    join  connects to the server at an address; raises EagleLocalError
    """

    plan: Callable[[ModelChoice], Plan]
    load: Callable[[Plan], ActiveModel]
    join: Callable[[str], ActiveModel]


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The outcome of a request: its text, and how it ended."""

    text: str = ""
    reasoning: str = ""  # generated before the text
    finished: Finished | None = None
    error: EagleLocalError | None = None
    started: bool = False
    is_loop: bool = False  # it repeated itself, and was stopped for that
    call_parts: tuple[CallPart, ...] = ()  # of tools
    rounds: tuple[ToolRound, ...] = ()  # of calls, before this answer

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls that a complete answer ended with."""
        is_complete = self.finished is not None and self.finished.reason in ENDS_WITH_CALLS
        return tuple(join_calls(self.call_parts)) if is_complete else ()

    @property
    def stopped(self) -> bool:
        return self.finished is None or self.finished.reason == "cancelled"

    @property
    def missing_text(self) -> str:
        """The reason why an answer that has ended shows no text; "" if it shows some."""
        if self.finished is None or self.text.strip():
            return ""
        is_over = self.finished.reason == "stop"
        if self.reasoning and not self.text:
            return f"the answer ended {'after' if is_over else 'within'} the model's thoughts"
        return f"the answer is empty{'' if self.text else ': the model ended it at once'}" if is_over else ""

    @property
    def refused(self) -> bool:
        """True if the engine refused the request, possibly because it is too long for the context."""
        return isinstance(self.error, RequestError) and self.error.code in MAYBE_TOO_LONG and not self.started


SentParts = tuple[Turn | None, int, TurnSummary | None, str]
NOT_COUNTED = None, 0


@dataclass(slots=True)
class Session:
    """The mutable state of a chat: model, sampling parameters, conversation, attached pictures, answers so far."""

    loader: ModelLoader
    model: ActiveModel
    params: SamplingParams
    conversation: Conversation = field(default_factory=Conversation)
    spec: Spec | None = None  # how requests are drafted for; None: as planned
    adapters: AdapterMix | None = None  # the scales of all LoRA adapters, if they were changed
    choice: ModelChoice = field(default_factory=ModelChoice)
    estimate: TokenEstimate = field(default_factory=TokenEstimate)
    answers: list[Finished] = field(default_factory=list)
    num_asked: int = 0
    attached: Pictures = ()  # sent with the next question
    target: str = ""  # reference of the first model; "": it is at a server
    keeps_model: bool = False  # the user named it, so a saved conversation does not change it
    tools: ChatTools = field(default_factory=ChatTools)
    _counted: tuple[SentParts | None, int] = NOT_COUNTED  # what was sent, in tokens
    _base_params: SamplingParams = field(init=False)  # before anything was set while chatting
    _own_params: SamplingParams = field(init=False)  # with what was set in this chat, not by a saved conversation

    def __post_init__(self) -> None:
        self._base_params = self._own_params = self.params
        self.params = apply_changes(self.params, self.conversation.sampling)

    @property
    def reference(self) -> str:
        """The reference that loads the model here, from any folder; "" for a server's."""
        if self.model.plan is None:
            return ""
        named = self.choice.target or self.target
        return os.path.abspath(os.path.expanduser(named)) if named.endswith(".gguf") else named

    def set_params(self, params: SamplingParams) -> None:
        """Use other sampling parameters, in this conversation from now on."""
        self._own_params = apply_changes(self._own_params, find_changes(params, self.params))
        self.params = params
        self.conversation.sampling = find_changes(params, self._base_params)

    def begin_conversation(self) -> None:
        """Forget the turns, and the settings of a saved conversation; the system message stays."""
        self.conversation.clear()
        self.tools.granted_in_chat.clear()
        self.params = replace(self._own_params, thinking=self.params.thinking)
        self.conversation.sampling = find_changes(self.params, self._base_params)

    def open_conversation(self, conversation: Conversation) -> None:
        """Go on with another conversation, and with what was set in it."""
        self.conversation = conversation
        self.tools.granted_in_chat.clear()
        self.params = apply_changes(replace(self._base_params, thinking=self.params.thinking), conversation.sampling)
        self.adapters = None

    @property
    def answer_room(self) -> int:
        """The tokens that the next answer may have at most, as far as is known here."""
        return min(self.params.max_tokens or MAX_BUDGET, self.model.info.n_ctx or MAX_BUDGET)

    @property
    def thinking_budget(self) -> int | None:
        """The tokens that the next answer may be thought about, as far as is known here."""
        return choose_budget(self.params.thinking, self.model.info.efforts, self.answer_room)

    @property
    def context_use(self) -> ContextUse:
        """The use of the context between two questions: as counted after the last answer, else estimated.

        Of a conversation that was opened, or of another model, what no longer fits is not counted.
        """
        sent, counted = self._counted
        is_counted, begun = sent == self._find_sent(), Turn("", "")
        num_forgotten = None if is_counted else self.count_forgettable(self.conversation, begun, self.params.max_tokens)
        messages = self.conversation.messages(begun, num_forgotten=num_forgotten)[:-1]  # without the next question
        num_first = bool(self.conversation.system)
        system = round(self.estimate.measure(messages[:num_first]) + self.estimate.tool_tokens)
        history = self.estimate.count_tokens(messages[num_first:])
        if is_counted:
            history = max(counted - system, 0)
        return ContextUse(self.model.info.n_ctx, system, history, is_counted=is_counted)

    def _find_sent(self) -> SentParts:
        """Return what decides which part of the conversation is sent."""
        conversation = self.conversation
        last = conversation.turns[-1] if conversation.turns else None
        return last, conversation.num_forgotten, conversation.summary, conversation.system

    def _forget_counts(self) -> None:
        """Forget what was counted with the tokens of another model."""
        self.estimate, self._counted = TokenEstimate(), NOT_COUNTED

    @property
    def shown_adapters(self) -> tuple[AdapterFile, ...]:
        """The LoRA adapters with the scales that the next question has."""
        files = self.model.info.adapters
        return files if self.adapters is None else apply_mix(files, self.adapters)

    def set_scale(self, number: int, scale: float) -> None:
        """Apply a LoRA adapter with this scale from the next question on. Raises ValueError if it cannot."""
        files = self.model.info.adapters
        make_mix([(number, scale)], len(files))
        scales = list_scales(files) if self.adapters is None else self.adapters
        self.adapters = tuple((each, scale if each == number else before) for each, before in scales)

    def attach(self, pictures: Iterable[AttachedPicture]) -> None:
        """Attach pictures to the next question. Raises UsageError if the model reads none, or they are too many."""
        check_sees(self.model)
        self.attached = join_pictures(self.attached, pictures)

    def cut(self, index: int) -> str:
        """Return the question at an index, to ask it again in its place, and attach its pictures; "" if there is none.

        Raises as `attach`; then nothing has changed.
        """
        if not 0 <= index < len(self.conversation.turns):
            return ""
        turn = self.conversation.turns[index]
        if turn.pictures or self.attached:
            check_sees(self.model)
            self.attached = join_pictures(turn.pictures, self.attached)
        self.conversation.cut(index)
        return turn.question

    def check_attached(self) -> None:
        """Raise UsageError if pictures are attached that the model cannot read."""
        if self.attached:
            check_sees(self.model)

    def take_attached(self) -> Pictures:
        """Return the attached pictures and detach them.

        Raises UsageError if a model that reads none was loaded since they were attached.
        """
        if self.attached and not self.model.info.sees_images:
            raise UsageError(f"{self.model.info.target} reads no images", hint="/image none removes the pictures")
        taken, self.attached = self.attached, ()
        return taken

    def request(
        self,
        past: Conversation,
        begun: Turn,
        *,
        num_forgotten: int,
        params: SamplingParams,
        offer: ToolOffer | None = None,
        choice: ToolChoice = ANY_TOOL,
    ) -> ChatRequest:
        """Return the request for the answer of a turn that has begun, for what follows its calls, or for a summary.

        past    the conversation before the turn, without its first `num_forgotten` turns
        params  those of the session, or of a summary
        """
        self.num_asked += 1
        return ChatRequest(
            id=f"chat-{self.num_asked}",
            messages=past.messages(begun, num_forgotten=num_forgotten, sees=self.model.info.sees_images),
            params=params,
            spec=self.spec,
            adapters=self.adapters,
            tools=() if offer is None else offer.tools,
            tool_choice=choice,
            is_split=True,  # keep reasoning apart from the answer; it is not sent again
        )

    def count_forgettable(self, past: Conversation, begun: Turn, max_tokens: int | None) -> int:
        """Return how many of the oldest turns to leave out, as far as is known here; see `turns_to_forget`."""
        n_ctx = self.model.info.n_ctx
        if not n_ctx:  # the server does not report it, and refuses a request that is too long
            return past.num_forgotten
        return turns_to_forget(past, begun, estimate=self.estimate, n_ctx=n_ctx, max_tokens=max_tokens)

    def record(self, begun: Turn, outcome: RequestOutcome, num_forgotten: int, num_tool_chars: int = 0) -> None:
        """Add a turn with its answer to the conversation, unless the question was refused.

        If one without an answer was to replace turns that were cut, `ask` puts these back instead.
        """
        turn = replace(begun, answer=outcome.text, stopped=outcome.stopped, reasoning=outcome.reasoning)
        if not turn.is_answered and (self.conversation.replaced or outcome.refused):
            return
        self.conversation.num_forgotten = num_forgotten
        self.conversation.add(replace(turn, finished=outcome.finished))
        if outcome.finished is not None:
            self.answers.append(outcome.finished)
            self._calibrate(outcome.finished, num_forgotten, num_tool_chars)
            if turn.is_answered and not (
                outcome.reasoning or any(each.reasoning for each in begun.rounds)
            ):  # it is not sent again
                num_tokens = outcome.finished.prompt_tokens + outcome.finished.completion_tokens
                self._counted = self._find_sent(), num_tokens

    def rejoin(self) -> str:
        """Take over the model that a joined server has since it was restarted; return that it is another one, or ""."""
        info, before = self.model.read_info(), self.model.info
        if info is None or info == before:
            return ""
        self.model = replace(self.model, info=info)
        self._forget_counts()
        return "" if info.target == before.target else f"its model is now {clean_line(info.target)}"

    def switch(self, choice: ModelChoice) -> None:
        """Load another model, or the same one with another draft; the old one is unloaded first.

        If loading fails, the old model is loaded again and the error is raised. A server is disconnected.
        A target that is the address of a server is joined.
        """
        if choice.target is not None and _ADDRESS.fullmatch(choice.target):
            joined = self.loader.join(choice.target)
            self.close()
            self.model, self.choice, self.spec, self.adapters = joined, ModelChoice(), None, None
            self._forget_counts()
            return
        if self.model.plan is None and choice.target is None:
            raise UsageError("the server decides how it drafts", hint="/model REF loads a model here")
        old, new, adapters = self.model.plan, self.loader.plan(choice), self.model.info.adapters
        if old is None:
            server, self.model = self.model, self.loader.load(new)
            server.client.close()
            self._forget_counts()
        elif new != old or self.model.client.state in DEAD:
            self._replace(old, choice)
        self.choice, self.spec = choice, None
        if self.model.info.adapters != adapters:
            self.adapters = None

    def _replace(self, old: Plan, choice: ModelChoice) -> None:
        """Unload the old model, then plan again (its memory is free only now) and load."""
        self.close()
        try:
            self.model = self.loader.load(self.loader.plan(choice))
        except (EagleLocalError, KeyboardInterrupt):
            self.model = self.loader.load(old)
            raise
        self._forget_counts()

    def close(self) -> None:
        self.model.client.close()

    def _calibrate(self, finished: Finished, num_forgotten: int, num_tool_chars: int) -> None:
        *turns, last = self.conversation.turns
        past = Conversation(self.conversation.system, turns)
        answer = Message("assistant", last.reasoning + last.answer)  # all that was generated, as counted
        messages = (*past.messages(last, num_forgotten=num_forgotten), answer)
        num_tokens = finished.prompt_tokens + finished.completion_tokens
        self.estimate = calibrate_estimate(messages, num_tokens, num_tool_chars)


# ---- saved session: save a session's conversation, and go on with a saved one: with its model and its settings
#
# One conversation is one file. What another chat has written to the same file meanwhile is never overwritten.
@dataclass(frozen=True, slots=True)
class SavedSession:
    """The file of a saved conversation; `notice` says why it is not under its own name, or is ""."""

    path: Path
    notice: str = ""


def save_session(session: Session, folder: Path, name: str = "") -> SavedSession:
    """Save the conversation under its name, or move it to another one. Raises UsageError, ResourceError.

    name: the new name; "": it keeps its own, or is named after its first question. If another chat has changed the
    file, it is saved under a new name beside it.
    """
    conversation = session.conversation
    with lock_folder(folder):
        old = conversation.name
        first = conversation.kept[0]
        chosen = name or old or conversation_file.choose_name(folder, first.question or first.shown_question)
        path = conversation_file.find_path(folder, chosen)
        old_path = conversation_file.find_path(folder, old) if old else None
        is_theirs = old_path is not None and conversation_file.is_changed(conversation, old_path)
        notice = ""
        if path != old_path and path.exists():
            hint = f"/save ANOTHER, or rm {quote_path(path)}"
            raise UsageError(f"a conversation named {path.stem!r} already exists", hint=hint)
        if path == old_path and is_theirs:
            path = conversation_file.find_path(folder, conversation_file.choose_name(folder, old))
            notice = f"another chat has changed {old!r}, so this one is now saved as {path.stem!r}"
        conversation.reference = session.reference
        conversation_file.save(conversation, path, target=session.model.info.target)
        if old_path is not None and path != old_path and old_path.exists() and not is_theirs:
            conversation_file.delete(folder, old)
        conversation.name = path.stem
    return SavedSession(path, notice)


def resume_conversation(session: Session, conversation: Conversation, output: MessageOutput) -> None:
    """Go on with a saved conversation: with its settings, and with its model if that is found here.

    The model stays if it was named on the command line, or is at a server; then the other one is named.
    """
    session.open_conversation(conversation)
    if conversation.sampling:
        output.note(f"sampling as in {conversation.name}: {describe_changes(conversation.sampling)}")
    target, reference = conversation.target, conversation.reference
    if not (other := describe_other_model(conversation, session.model)):
        return
    if session.model.plan is None or session.keeps_model or not reference:
        output.note(other)
        return
    output.note(f"loading {target}, as before")
    try:
        session.switch(session.choice.retarget(reference))
    except EagleLocalError as error:
        output.note(f"the conversation was held with {target}, which cannot be loaded: {error.message}")


def describe_other_model(conversation: Conversation, model: ActiveModel) -> str:
    """Return the line that says with which model a conversation was held, and how to load it; "" if with this one."""
    if conversation.target in ("", model.info.target):
        return ""
    hint = f"; /model {conversation.reference} loads it" if conversation.reference else ""
    return f"the conversation was held with {conversation.target}{hint}"
