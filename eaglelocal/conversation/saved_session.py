"""Save a session's conversation, and go on with a saved one: with its model and its settings.

One conversation is one file. What another chat has written to the same file meanwhile is never overwritten.
"""

from __future__ import annotations

from pathlib import Path

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.conversation import Conversation
from eaglelocal.conversation.message_output import MessageOutput
from eaglelocal.conversation.session import ActiveModel, Session
from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import EagleLocalError, UsageError


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
    with conversation_file.lock_folder(folder):
        old = conversation.name
        path = conversation_file.find_path(folder, name or old or _name_after_question(folder, conversation))
        old_path = conversation_file.find_path(folder, old) if old else None
        is_theirs = old_path is not None and conversation_file.is_changed(conversation, old_path)
        notice = ""
        if path != old_path:
            _check_free(path)
        elif is_theirs:
            path = conversation_file.find_path(folder, conversation_file.choose_name(folder, old))
            notice = f"another chat has changed {old!r}, so this one is now saved as {path.stem!r}"
        conversation.record_model(session.model.info.target, session.reference)
        conversation_file.save(conversation, path, target=conversation.target)
        if old_path is not None and path != old_path and old_path.exists() and not is_theirs:
            conversation_file.delete(folder, old)
        conversation.rename(path.stem)
    return SavedSession(path, notice)


def _name_after_question(folder: Path, conversation: Conversation) -> str:
    return conversation_file.choose_name(folder, conversation.turns[0].question)


def _check_free(path: Path) -> None:
    if path.exists():
        raise UsageError(
            f"a conversation named {path.stem!r} already exists", hint=f"/save ANOTHER, or rm {quote_path(path)}"
        )


def resume_conversation(session: Session, conversation: Conversation, output: MessageOutput) -> None:
    """Go on with a saved conversation: with its settings, and with its model if that is found here.

    The model stays if it was named on the command line, or is at a server; then the other one is named.
    """
    session.open_conversation(conversation)
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
