"""The actions of the slash commands: one function a command, in the table ACTIONS.

An action may return a question to ask next (/retry). Actions know the session, the output and the folder
of conversations, not the loop that reads commands.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.answer_stats import ahead, model_lines, total_lines
from eaglelocal.conversation.code_blocks import last_code
from eaglelocal.conversation.markdown_export import export_markdown
from eaglelocal.conversation.message_output import MessageOutput
from eaglelocal.conversation.pictures import paths_in, read_picture
from eaglelocal.conversation.sampling_form import FIELDS, changed, format_field
from eaglelocal.conversation.session import ModelChoice, Session, check_sees
from eaglelocal.conversation.slash_commands import LINE_KEYS, Command, help_lines
from eaglelocal.core.request import AUTO, OFF, Spec, parse_spec
from eaglelocal.core.sampling import fill_recommended
from eaglelocal.errors import UsageError

SPEC_HINT = "/spec auto, /spec off, /spec pid or /spec N"


class LeaveChat(Exception):
    """A request to leave the chat (/exit)."""


Copy = Callable[[str], None]  # copies to the clipboard, and confirms it


def copy_message(text: str) -> str:
    return f"copied {len(text)} {'character' if len(text) == 1 else 'characters'}"


def refuse_to_copy(text: str) -> None:
    """Raise UsageError: the `Copy` of a terminal without a clipboard."""
    raise UsageError("there is no clipboard here", hint="/export writes the conversation to a file")


@dataclass(frozen=True, slots=True)
class ActionContext:
    """The context of an action: session, output, folder of conversations, clipboard."""

    session: Session
    voice: MessageOutput
    conversations: Path
    copy: Copy = refuse_to_copy
    keys: Mapping[str, str] = field(default_factory=lambda: LINE_KEYS)  # the keys that /help lists

    def say(self, *lines: str) -> None:
        for line in lines:
            self.voice.message(line)


Action = Callable[[ActionContext, str], str | None]


def run_command(desk: ActionContext, command: Command) -> str | None:
    """Run a command and return a question to ask next, or None. Raises EagleLocalError, and Leave on /exit."""
    return ACTIONS[command.name](desk, command.argument)


def _help(desk: ActionContext, argument: str) -> None:
    desk.say(*help_lines(desk.keys))


def _stats(desk: ActionContext, argument: str) -> None:
    session = desk.session
    client = session.model.client
    desk.say(*total_lines(session.answers, client.snapshot(), client.restarts))


def _spec(desk: ActionContext, argument: str) -> None:
    if argument:
        _wish(desk, wished(argument))
    desk.say(_spec_line(desk.session))


def wished(argument: str) -> Spec:
    """Parse the argument of `/spec`; `on` means auto. Raises UsageError."""
    try:
        return AUTO if argument == "on" else parse_spec(argument)
    except UsageError:
        raise UsageError(f"not a way to draft: {argument!r}", hint=SPEC_HINT) from None


def _wish(desk: ActionContext, spec: Spec) -> None:
    """Set how requests are drafted for; load the model again if it was loaded without a draft. Raises UsageError."""
    session = desk.session
    if not session.model.takes_spec:
        raise UsageError("this server does not take a wish about drafting", hint="/model demo leaves it")
    if spec != OFF and session.model.plan is not None and not session.model.speculates:
        _load(desk, replace(session.choice, spec=str(spec)))
    session.spec = spec


def _spec_line(session: Session) -> str:
    plan = session.model.plan
    if plan is None and session.spec is None:
        return "speculation: as the server does"
    spec = session.spec or (AUTO if plan is None else plan.spec)
    if spec == OFF:
        return "speculation off: switched off"
    if plan is None:
        return f"speculation asked of the server: {ahead(spec)}"
    if not plan.speculates:
        return f"speculation off: {session.model.info.draft_reason or plan.draft_reason or 'no draft is loaded'}"
    return f"speculation on: {ahead(spec)}, {session.model.info.draft}"


def _set(desk: ActionContext, argument: str) -> None:
    """Set a sampling parameter, `temperature 0.5` or as in Ollama `parameter temperature 0.5`, and list all."""
    session = desk.session
    if argument:
        name, value = (*argument.removeprefix("parameter ").split(maxsplit=1), "", "")[:2]
        session.params = changed(session.params, name, value)
    params = fill_recommended(session.params, session.model.info.sampling)
    desk.say(*(f"{field.name:<16}{format_field(params, field) or field.unset}" for field in FIELDS))


def _system(desk: ActionContext, argument: str) -> None:
    conversation = desk.session.conversation
    if argument:
        conversation.system = "" if argument in ('""', "''") else argument
    desk.say(f"system message: {conversation.system}" if conversation.system else "no system message")


def _clear(desk: ActionContext, argument: str) -> None:
    desk.session.conversation.clear()
    desk.say("the conversation is forgotten")


def _retry(desk: ActionContext, argument: str) -> str:
    """Return the last question; attach its pictures again, before those attached since."""
    desk.session.attach_again()
    question = desk.session.conversation.take_last_question()
    if not question:
        raise UsageError("nothing was asked yet")
    return question


def _image(desk: ActionContext, argument: str) -> None:
    session = desk.session
    if argument == "none":
        session.attached = ()
    elif argument:
        check_sees(session.model)  # before files are read
        session.attach(read_picture(path) for path in paths_in(argument))
    labels = " ".join(picture.label for picture in session.attached)
    desk.say(f"with the next question: {labels}" if labels else "no picture is attached")


def _copy(desk: ActionContext, argument: str) -> None:
    turns = desk.session.conversation.turns
    answer = turns[-1].answer if turns else ""
    if argument not in ("", "code"):
        raise UsageError(f"{argument!r} cannot be copied", hint="/copy or /copy code")
    if not answer:
        raise UsageError("there is no answer yet")
    text = last_code(answer) if argument else answer
    if not text:
        raise UsageError("there is no code block in the last answer", hint="/copy copies all of it")
    desk.copy(text)


def _save(desk: ActionContext, argument: str) -> None:
    conversation = desk.session.conversation
    if not conversation.turns:
        raise UsageError("there is nothing to save yet")
    name = argument or conversation.name or datetime.datetime.now().strftime("chat-%Y-%m-%d-%H%M%S")
    path = conversation_file.path_of(desk.conversations, name)
    if path.exists() and path.stem != conversation.name:
        raise UsageError(
            f"a conversation named {path.stem!r} is there already", hint=f"/save another name, or rm {path}"
        )
    conversation_file.save(conversation, path, target=desk.session.model.info.target)
    conversation.name = path.stem
    desk.say(f"saved as {path.stem}: {path}")


def _load_conversation(desk: ActionContext, argument: str) -> None:
    if not argument:
        known = conversation_file.list_names(desk.conversations)
        return desk.say(*known or ("nothing is saved yet",))
    conversation = conversation_file.load_conversation(desk.conversations, argument)
    desk.session.conversation = conversation
    turns = len(conversation.turns)
    desk.say(f"loaded {conversation.name}, {turns} {'turn' if turns == 1 else 'turns'}")
    if conversation.turns:
        desk.voice.aside(f"last question: {conversation.turns[-1].shown_question}")
    return None


def _rename(desk: ActionContext, argument: str) -> None:
    conversation = desk.session.conversation
    if not argument or not conversation.name:
        raise UsageError("a saved conversation and a name are needed", hint="/save NAME, then /rename NAME")
    conversation.name = conversation_file.rename(desk.conversations, conversation.name, argument)
    desk.say(f"renamed to {conversation.name}")


def _delete(desk: ActionContext, argument: str) -> None:
    """Delete a saved conversation; if it is the open one, that stays open, unsaved."""
    if not argument:
        raise UsageError("which conversation?", hint="/delete NAME; /load lists them")
    name = conversation_file.path_of(desk.conversations, argument).stem
    conversation_file.delete(desk.conversations, name)
    if desk.session.conversation.name == name:
        desk.session.conversation.name = ""
    desk.say(f"deleted {name}")


def _export(desk: ActionContext, argument: str) -> None:
    conversation = desk.session.conversation
    name = argument or f"{conversation.name or 'conversation'}.md"
    path = export_markdown(conversation, name, target=desk.session.model.info.target)
    desk.say(f"written to {path}")


def _draft(desk: ActionContext, argument: str) -> None:
    if argument:
        return _load(desk, replace(desk.session.choice, draft=argument))
    return desk.say(_spec_line(desk.session))


def _model(desk: ActionContext, argument: str) -> None:
    if argument:
        choice = desk.session.choice
        kept = choice.draft if choice.draft in ("auto", "ngram", "none") else None  # a file fits one target
        return _load(desk, replace(choice, target=argument, draft=kept))
    return desk.say(*model_lines(desk.session.model.info, desk.session.model.plan))


def _load(desk: ActionContext, choice: ModelChoice) -> None:
    desk.session.switch(choice)
    desk.say(*model_lines(desk.session.model.info, desk.session.model.plan))


def _exit(desk: ActionContext, argument: str) -> None:
    raise LeaveChat


ACTIONS: dict[str, Action] = {
    "/help": _help,
    "/stats": _stats,
    "/spec": _spec,
    "/set": _set,
    "/system": _system,
    "/clear": _clear,
    "/retry": _retry,
    "/image": _image,
    "/copy": _copy,
    "/save": _save,
    "/load": _load_conversation,
    "/rename": _rename,
    "/delete": _delete,
    "/export": _export,
    "/draft": _draft,
    "/model": _model,
    "/exit": _exit,
}
