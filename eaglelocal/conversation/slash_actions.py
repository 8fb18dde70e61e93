"""The actions of the slash commands: one function a command, in the table ACTIONS.

An action may return a question to ask next (/retry). The loop that reads the commands is elsewhere.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.answer_stats import describe_draft_length, model_lines, total_lines
from eaglelocal.conversation.code_blocks import find_last_code
from eaglelocal.conversation.markdown_export import export_markdown
from eaglelocal.conversation.message_output import MessageOutput
from eaglelocal.conversation.pictures import parse_paths, read_picture
from eaglelocal.conversation.sampling_form import FIELDS, format_field, set_field
from eaglelocal.conversation.session import ModelChoice, Session, check_sees
from eaglelocal.conversation.slash_commands import LINE_KEYS, Command, help_lines
from eaglelocal.core.request import AUTO, OFF, Spec, parse_spec
from eaglelocal.core.sampling import fill_recommended
from eaglelocal.errors import UsageError

SPEC_HINT = "/spec auto, /spec off, /spec pid or /spec N"


class LeaveChat(Exception):
    """The user asked to leave the chat (/exit)."""


Copy = Callable[[str], None]  # copies a text to the clipboard and reports it


def format_copy_message(text: str) -> str:
    return f"copied {len(text)} {'character' if len(text) == 1 else 'characters'}"


def refuse_to_copy(text: str) -> None:
    """Raise UsageError: the `Copy` of a terminal without a clipboard."""
    raise UsageError("there is no clipboard here", hint="/export writes the conversation to a file")


@dataclass(frozen=True, slots=True)
class ActionContext:
    """The context of an action: session, output, folder of conversations, clipboard."""

    session: Session
    output: MessageOutput
    conversations: Path
    copy: Copy = refuse_to_copy
    keys: Mapping[str, str] = field(default_factory=lambda: LINE_KEYS)  # the keys that /help lists

    def say(self, *lines: str) -> None:
        for line in lines:
            self.output.message(line)


Action = Callable[[ActionContext, str], str | None]


def run_command(context: ActionContext, command: Command) -> str | None:
    """Run a command and return a question to ask next, or None. Raises EagleLocalError, and LeaveChat on /exit."""
    return ACTIONS[command.name](context, command.argument)


def _help(context: ActionContext, argument: str) -> None:
    context.say(*help_lines(context.keys))


def _stats(context: ActionContext, argument: str) -> None:
    session = context.session
    client = session.model.client
    context.say(*total_lines(session.answers, client.snapshot(), client.restarts))


def _spec(context: ActionContext, argument: str) -> None:
    if argument:
        _choose_spec(context, parse_spec_argument(argument))
    context.say(_spec_line(context.session))


def parse_spec_argument(argument: str) -> Spec:
    """Parse the argument of `/spec`; `on` means auto. Raises UsageError."""
    try:
        return AUTO if argument == "on" else parse_spec(argument)
    except UsageError:
        raise UsageError(f"unknown draft length {argument!r}", hint=SPEC_HINT) from None


def _choose_spec(context: ActionContext, spec: Spec) -> None:
    """Set the spec of the next requests; load the model again if it was loaded without a draft. Raises UsageError."""
    session = context.session
    if not session.model.takes_spec:
        raise UsageError("this server does not take /spec", hint="/model demo loads a model on this machine")
    if spec != OFF and session.model.plan is not None and not session.model.speculates:
        _load(context, replace(session.choice, spec=str(spec)))
    session.spec = spec


def _spec_line(session: Session) -> str:
    plan = session.model.plan
    if plan is None and session.spec is None:
        return "speculation: set by the server"
    spec = session.spec or (AUTO if plan is None else plan.spec)
    if spec == OFF:
        return "speculation off: switched off"
    if plan is None:
        return f"speculation requested from the server: {describe_draft_length(spec)}"
    if not plan.speculates:
        return f"speculation off: {session.model.info.draft_reason or plan.draft_reason or 'no draft is loaded'}"
    return f"speculation on: {describe_draft_length(spec)}, {session.model.info.draft}"


def _set(context: ActionContext, argument: str) -> None:
    """Set a sampling parameter, `temperature 0.5` or as in Ollama `parameter temperature 0.5`, and list all."""
    session = context.session
    if argument:
        name, value = (*argument.removeprefix("parameter ").split(maxsplit=1), "", "")[:2]
        session.params = set_field(session.params, name, value)
    params = fill_recommended(session.params, session.model.info.sampling)
    context.say(*(f"{field.name:<16}{format_field(params, field) or field.unset}" for field in FIELDS))


def _system(context: ActionContext, argument: str) -> None:
    conversation = context.session.conversation
    if argument:
        conversation.system = "" if argument in ('""', "''") else argument
    context.say(f"system message: {conversation.system}" if conversation.system else "no system message")


def _clear(context: ActionContext, argument: str) -> None:
    context.session.conversation.clear()
    context.say("the conversation was cleared")


def _retry(context: ActionContext, argument: str) -> str:
    """Return the last question; attach its pictures again, before those attached since."""
    context.session.attach_again()
    question = context.session.conversation.take_last_question()
    if not question:
        raise UsageError("there is no question yet")
    return question


def _image(context: ActionContext, argument: str) -> None:
    session = context.session
    if argument == "none":
        session.detach_all()
    elif argument:
        check_sees(session.model)  # before files are read
        session.attach(read_picture(path) for path in parse_paths(argument))
    labels = " ".join(picture.label for picture in session.attached)
    context.say(f"with the next question: {labels}" if labels else "no picture is attached")


def _copy(context: ActionContext, argument: str) -> None:
    turns = context.session.conversation.turns
    answer = turns[-1].answer if turns else ""
    if argument not in ("", "code"):
        raise UsageError(f"{argument!r} cannot be copied", hint="/copy or /copy code")
    if not answer:
        raise UsageError("there is no answer yet")
    text = find_last_code(answer) if argument else answer
    if not text:
        raise UsageError("there is no code block in the last answer", hint="/copy copies all of it")
    context.copy(text)


def _save(context: ActionContext, argument: str) -> None:
    conversation = context.session.conversation
    if not conversation.turns:
        raise UsageError("there is nothing to save yet")
    name = argument or conversation.name or datetime.datetime.now().strftime("chat-%Y-%m-%d-%H%M%S")
    path = conversation_file.find_path(context.conversations, name)
    if path.exists() and path.stem != conversation.name:
        raise UsageError(f"a conversation named {path.stem!r} already exists", hint=f"/save ANOTHER, or rm {path}")
    conversation_file.save(conversation, path, target=context.session.model.info.target)
    conversation.rename(path.stem)
    context.say(f"saved as {path.stem}: {path}")


def _load_conversation(context: ActionContext, argument: str) -> None:
    if not argument:
        known = conversation_file.list_names(context.conversations)
        return context.say(*known or ("no conversation is saved yet",))
    conversation = conversation_file.load_conversation(context.conversations, argument)
    context.session.conversation = conversation
    turns = len(conversation.turns)
    context.say(f"loaded {conversation.name}, {turns} {'turn' if turns == 1 else 'turns'}")
    if conversation.turns:
        context.output.note(f"last question: {conversation.turns[-1].shown_question}")
    return None


def _rename(context: ActionContext, argument: str) -> None:
    conversation = context.session.conversation
    if not argument or not conversation.name:
        raise UsageError("/rename needs a saved conversation and a new name", hint="/save NAME, then /rename NAME")
    conversation.rename(conversation_file.rename(context.conversations, conversation.name, argument))
    context.say(f"renamed to {conversation.name}")


def _delete(context: ActionContext, argument: str) -> None:
    """Delete a saved conversation; if it is the open one, that stays open, unsaved."""
    if not argument:
        raise UsageError("/delete needs the name of a conversation", hint="/load lists them")
    name = conversation_file.find_path(context.conversations, argument).stem
    conversation_file.delete(context.conversations, name)
    if context.session.conversation.name == name:
        context.session.conversation.rename("")
    context.say(f"deleted {name}")


def _export(context: ActionContext, argument: str) -> None:
    conversation = context.session.conversation
    name = argument or f"{conversation.name or 'conversation'}.md"
    path = export_markdown(conversation, name, target=context.session.model.info.target)
    context.say(f"written to {path}")


def _draft(context: ActionContext, argument: str) -> None:
    if argument:
        return _load(context, replace(context.session.choice, draft=argument))
    return context.say(_spec_line(context.session))


def _model(context: ActionContext, argument: str) -> None:
    if argument:
        choice = context.session.choice
        kept = choice.draft if choice.draft in ("auto", "ngram", "none") else None  # a file fits one target
        return _load(context, replace(choice, target=argument, draft=kept))
    return context.say(*model_lines(context.session.model.info, context.session.model.plan))


def _load(context: ActionContext, choice: ModelChoice) -> None:
    context.session.switch(choice)
    context.say(*model_lines(context.session.model.info, context.session.model.plan))


def _exit(context: ActionContext, argument: str) -> None:
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
