"""`eaglelocal chat`: from flags to a session, then one answer or a talk.

Composes settings, plan, engine and the two modes; nothing heavy is imported before a model is needed.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.asking import Asker
from eaglelocal.cli.chat_line import converse
from eaglelocal.cli.chat_once import answer_once, joined, read_stdin
from eaglelocal.cli.joining import joined_model, spec_of
from eaglelocal.cli.loading import load_model, make_plan, sampling_of, settings_of, wish_of
from eaglelocal.cli.output import Output, standard_output
from eaglelocal.errors import UsageError
from eaglelocal.settings import Settings
from eaglelocal.talk.conversation import Conversation
from eaglelocal.talk.report import model_line
from eaglelocal.talk.session import Choice, Garage, Session


def chat(  # many parameters: typer reads the flags from the signature
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="The question.", show_default=False)] = None,
    target: flags.Target = None,
    url: flags.Url = None,
    draft: flags.Draft = None,
    spec: flags.Spec = None,
    system: flags.System = None,
    temperature: flags.Temperature = None,
    max_tokens: flags.MaxTokens = None,
    seed: flags.Seed = None,
    top_k: flags.TopK = None,
    top_p: flags.TopP = None,
    min_p: flags.MinP = None,
    threads: flags.Threads = None,
    gpu_layers: flags.GpuLayers = None,
    device: flags.Device = None,
    split: flags.Split = None,
    kv_type: flags.KvType = None,
    flash_attn: flags.FlashAttn = None,
    ctx: flags.Ctx = None,
    plain: Annotated[bool, typer.Option("--plain", help="Lines, no full-screen view (so far the only mode).")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, with text and figures.")] = False,
    tint: Annotated[bool, typer.Option(help="Colour accepted draft tokens on a terminal.")] = True,
) -> None:
    """Ask a local model; without PROMPT, talk with it. Without --target a server of ours that runs answers.

    \b
    eaglelocal chat
    eaglelocal chat "Why does drafting ahead pay?" --target demo@1b:bf16
    git diff | eaglelocal chat "Explain this change" --json
    """
    settings = settings_of(context.params)
    output = standard_output(colour=settings.colour)
    question = question_of(prompt, output, as_json=as_json)
    session = open_session(settings, output)
    try:
        if question is None:
            raise typer.Exit(converse(session, output, tint=tint))
        if not as_json and session.model.plan is not None:  # which server was joined is said already
            output.aside(model_line(session.model.info, session.model.plan))
        answer_once(Asker(session, output, tint=tint, quiet=as_json), question)
    finally:
        session.close()


def question_of(prompt: str | None, output: Output, *, as_json: bool) -> str | None:
    """PROMPT joined with stdin; None: a person sits there and will ask."""
    is_person = sys.stdin is not None and sys.stdin.isatty()
    if prompt is None and is_person:
        if as_json:
            raise UsageError("--json needs a PROMPT, or text on stdin", hint='eaglelocal chat "..." --json')
        return None
    return joined(prompt or "", read_stdin(sys.stdin, output))


def open_session(settings: Settings, output: Output) -> Session:
    garage = Garage(
        plan=lambda choice: make_plan(wish_of(settings, choice), output), load=lambda plan: load_model(plan, output)
    )
    joined = joined_model(settings, output)
    return Session(
        garage=garage,
        model=joined or garage.load(garage.plan(Choice())),
        params=sampling_of(settings),
        conversation=Conversation(settings.system or ""),
        spec=None if joined is None else spec_of(settings, joined),
    )
