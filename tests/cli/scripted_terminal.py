"""The interactive loop over a scripted client, as a program: what test_terminal.py runs on a pty."""

from __future__ import annotations

import sys

from doubles.scripted_client import Script, ScriptedClient, join_nothing, says, scripted_plan

from eaglelocal.cli import chat_line
from eaglelocal.cli.answer_printer import Asker
from eaglelocal.cli.chat_line import converse
from eaglelocal.cli.main import handle_end_signals
from eaglelocal.cli.output import standard_output
from eaglelocal.conversation.session import ActiveModel, ModelLoader, Session
from eaglelocal.core.plan import Plan
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EngineError

SCRIPTS = (
    says("the first answer", 1),
    Script(("half", " an"), hangs=True),
    Script(("bro", "ken"), fails=EngineError("the engine process ended with signal 9", hint="ask again")),
    Script(("the", " last", " answer"), delay_s=1.0),
)


def plan(choice: ModelChoice) -> Plan:
    return scripted_plan(choice.target or "scripted model")


def load(plan: Plan) -> ActiveModel:
    client = ScriptedClient(SCRIPTS, label=plan.target_label)
    return ActiveModel(client, plan, client.info)


if __name__ == "__main__":
    if "--no-readline" in sys.argv:
        chat_line.readline = None
    session = Session(ModelLoader(plan, load, join_nothing), load(plan(ModelChoice())), SamplingParams())
    handle_end_signals()
    sys.exit(converse(Asker(session, standard_output())))
