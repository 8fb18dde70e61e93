"""The process behind one chat page: it runs the chat screen, as `python -m eaglelocal.web.chat_process URL`.

A visitor is not this machine's user. So the chat is only with the model of the watched server, and nothing on this
machine can be read or written through it: no files, no saved conversations, no editor, no other model.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from eaglelocal.backend.parent_watch import end_with_parent
from eaglelocal.client.http_client import HttpClient
from eaglelocal.conversation.answer_stats import MessageOutput
from eaglelocal.conversation.conversation import Conversation
from eaglelocal.conversation.session import ActiveModel, ModelLoader, Session
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.plan import Plan
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.core.sampling import RECOMMENDED, SamplingParams
from eaglelocal.errors import UsageError
from eaglelocal.settings import Settings
from eaglelocal.tui.chat.chat_app import ChatApp, ChatPaths, run_chat
from eaglelocal.tui.chat.chat_dialogs import ChatAccess
from eaglelocal.tui.chat.chat_tasks import OpenSession
from eaglelocal.tui.display_options import make_display_options
from eaglelocal.web.monitor_process import KEY_VARIABLE, load_page_settings
from eaglelocal.web.web_middleware import open_visitor_folder


def main() -> int:
    end_with_parent()
    api_key = os.environ.pop(KEY_VARIABLE, "")
    settings = load_page_settings()
    with open_visitor_folder() as folder:
        return chat(partial(open_session, sys.argv[1], api_key), settings, folder)


def chat(open_chat: OpenSession, settings: Settings, folder: Path) -> int:
    """Run the chat screen of a visitor until they leave; `folder` holds their questions, and is removed afterwards."""
    paths = ChatPaths(conversations=folder / "conversations", history=folder / "questions.jsonl")
    options = make_display_options(settings, keeps_theme=False)
    return run_chat(ChatApp(open_chat, paths, options, access=ChatAccess(is_remote=True, saves=False)))


def open_session(url: str, api_key: str, output: MessageOutput, choice: ModelChoice) -> Session:
    """Open a session with the model of the server at `url`. Raises UsageError if it generates no text."""
    client = HttpClient(url, api_key=api_key, reuses_prompts=True)
    info = client.start()
    if info.task is not ModelTask.TEXT:
        client.close()
        raise UsageError(f"{info.target} does not generate text", hint="the monitor shows what it does")
    return Session(
        loader=ModelLoader(plan=refuse_model, load=refuse_plan),
        model=ActiveModel(client, None, info, takes_spec=client.takes_spec),
        params=SamplingParams(left_open=frozenset(RECOMMENDED)),
        conversation=Conversation(),
    )


def refuse_model(choice: ModelChoice) -> Plan:
    raise UsageError("a page chats with the model of its server")


def refuse_plan(plan: Plan) -> ActiveModel:
    raise UsageError("a page loads no model")


if __name__ == "__main__":
    sys.exit(main())
