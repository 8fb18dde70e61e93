"""What the slash commands do to a session. One function a command, chosen from a literal table.

An action may give back a question to ask next (/retry). Knows the session, the output and the folder
of conversations; does not know the loop.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from eaglelocal.cli import conversation_file
from eaglelocal.cli.output import Output
from eaglelocal.cli.report import ahead, model_lines, total_lines
from eaglelocal.cli.session import Choice, Session
from eaglelocal.cli.slash import Command, help_lines
from eaglelocal.core.request import AUTO, OFF, Spec, parse_spec
from eaglelocal.errors import UsageError

SPEC_HINT = "/spec auto, /spec off, /spec pid or /spec N"


class Leave(Exception):
    """The person wants to go."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What an action works with."""

    session: Session
    output: Output
    conversations: Path

    def say(self, *lines: str) -> None:
        for line in lines:
            self.output.message(line)


Action = Callable[[Desk, str], str | None]


def act(desk: Desk, command: Command) -> str | None:
    """Do it. Returns a question to ask next, if there is one. Raises EagleLocalError and Leave."""
    return ACTIONS[command.name](desk, command.argument)


def _help(desk: Desk, argument: str) -> None:
    desk.say(*help_lines())


def _stats(desk: Desk, argument: str) -> None:
    session = desk.session
    client = session.model.client
    desk.say(*total_lines(session.answers, client.snapshot(), client.restarts))


def _spec(desk: Desk, argument: str) -> None:
    if argument:
        _draft(desk, wished(argument))
    desk.say(_spec_line(desk.session))


def wished(argument: str) -> Spec:
    """What `/spec ARGUMENT` asks for. Raises UsageError."""
    try:
        return AUTO if argument == "on" else parse_spec(argument)
    except UsageError:
        raise UsageError(f"not a way to draft: {argument!r}", hint=SPEC_HINT) from None


def _draft(desk: Desk, spec: Spec) -> None:
    """Change what requests ask for; load again when this model was loaded without any draft."""
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


def _system(desk: Desk, argument: str) -> None:
    conversation = desk.session.conversation
    if argument:
        conversation.system = "" if argument in ('""', "''") else argument
    desk.say(f"system message: {conversation.system}" if conversation.system else "no system message")


def _clear(desk: Desk, argument: str) -> None:
    desk.session.conversation.clear()
    desk.say("the conversation is forgotten")


def _retry(desk: Desk, argument: str) -> str:
    question = desk.session.conversation.take_last_question()
    if not question:
        raise UsageError("nothing was asked yet")
    desk.output.aside(question)
    return question


def _save(desk: Desk, argument: str) -> None:
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


def _load_conversation(desk: Desk, argument: str) -> None:
    if not argument:
        known = conversation_file.names(desk.conversations)
        return desk.say(*known or ("nothing is saved yet",))
    conversation = conversation_file.load(desk.conversations, argument)
    desk.session.conversation = conversation
    turns = len(conversation.turns)
    desk.say(f"loaded {conversation.name}, {turns} {'turn' if turns == 1 else 'turns'}")
    if conversation.turns:
        desk.output.aside(f"last question: {conversation.turns[-1].question}")
    return None


def _model(desk: Desk, argument: str) -> None:
    if argument:
        return _load(desk, replace(desk.session.choice, target=argument))
    return desk.say(*model_lines(desk.session.model.info, desk.session.model.plan))


def _load(desk: Desk, choice: Choice) -> None:
    desk.session.switch(choice)
    desk.say(*model_lines(desk.session.model.info, desk.session.model.plan))


def _exit(desk: Desk, argument: str) -> None:
    raise Leave


ACTIONS: dict[str, Action] = {
    "/help": _help,
    "/stats": _stats,
    "/spec": _spec,
    "/system": _system,
    "/clear": _clear,
    "/retry": _retry,
    "/save": _save,
    "/load": _load_conversation,
    "/model": _model,
    "/exit": _exit,
}
