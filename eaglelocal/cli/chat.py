"""`eaglelocal chat`: from flags to a session, then one answer or a conversation.

Combines settings, plan, engine, line mode and the screen; nothing heavy is imported before a model is needed.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from eaglelocal import locations
from eaglelocal.cli import flags
from eaglelocal.cli.answer_printer import Asker
from eaglelocal.cli.chat_connection import choose_spec, join_running_server
from eaglelocal.cli.chat_line import converse
from eaglelocal.cli.chat_once import answer_once, join_question, read_stdin
from eaglelocal.cli.load_model import (
    ENGINE,
    count_slots,
    default_sampling,
    load_model,
    load_settings,
    make_run_options,
    plan_run,
    show_decision,
    write_plan,
)
from eaglelocal.cli.output import Output, standard_output
from eaglelocal.conversation.answer_stats import model_line
from eaglelocal.conversation.conversation import Conversation
from eaglelocal.conversation.message_output import MessageOutput
from eaglelocal.conversation.pictures import Pictures, read_pictures
from eaglelocal.conversation.session import ModelChoice, ModelLoader, Session
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.surrogates import join_surrogates
from eaglelocal.errors import UsageError
from eaglelocal.settings import Settings
from eaglelocal.worker.spare_process import SpareProcess


@flags.add_machine_flags(before="cache_ram")
def chat(  # many parameters: typer reads the flags from the signature
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="Your question.", show_default=False)] = None,
    target: flags.Target = None,
    url: flags.Url = None,
    mmproj: flags.Mmproj = None,
    image: flags.Images = None,
    draft: flags.Draft = None,
    draft_type: flags.DraftType = None,
    spec: flags.Spec = None,
    system: flags.System = None,
    temperature: flags.Temperature = None,
    max_tokens: flags.MaxTokens = None,
    seed: flags.Seed = None,
    top_k: flags.TopK = None,
    top_p: flags.TopP = None,
    min_p: flags.MinP = None,
    cache_ram: flags.CacheRam = None,
    parallel: flags.Slots = None,
    plain: Annotated[bool, typer.Option("--plain", help="Chat line by line, without the full screen.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout, with text and figures.")
    ] = False,
    tint: Annotated[bool | None, typer.Option(help="Color accepted draft tokens; unset: only in line mode.")] = None,
    save: Annotated[bool, typer.Option(help="Save the conversations of the screen on disk.")] = True,
) -> None:
    """Chat with a local model, or ask it one question.

    Without --target, a running eaglelocal server answers.

    \b
    eaglelocal chat
    eaglelocal chat "Why does drafting ahead pay?" --target demo@1b:bf16
    git diff | eaglelocal chat "Explain this change" --json
    """
    settings = load_settings(context.params)
    output = standard_output(colour=settings.colour)
    pictures = read_pictures(image or [])
    question = read_question(prompt, output, as_json=as_json)
    if question is None and not plain and can_show_screen(output):
        raise typer.Exit(show_screen(settings, pictures, keeps=save, tint=bool(tint)))
    session = open_session(settings, output, ModelChoice(), pictures=pictures, is_brief=question is not None)
    try:
        session.check_attached()
        raise typer.Exit(answer_or_converse(session, output, question, as_json=as_json, tint=tint is not False))
    finally:
        session.close()


def answer_or_converse(session: Session, output: Output, question: str | None, *, as_json: bool, tint: bool) -> int:
    """Answer one question, or converse in line mode if `question` is None. Returns the exit code."""
    if question is None:
        return converse(session, output, tint=tint)
    if not as_json:
        show_model(session, output)
    answer_once(Asker(session, output, tint=tint, quiet=as_json), question)
    return 0


def show_model(session: Session, output: Output) -> None:
    """Show target, draft and notes of a model loaded here; a server was already named when it was joined."""
    model = session.model
    if model.plan is not None:
        output.note(model_line(model.info, model.plan))
        for note in model.info.notes:
            output.note(f"note: {note}")


def can_show_screen(output: Output) -> bool:
    """Return whether the output is a terminal that a full screen can be drawn on."""
    knows_terminal = os.name == "nt" or os.environ.get("TERM", "") not in ("", "dumb")
    return output.is_terminal and knows_terminal


def show_screen(settings: Settings, pictures: Pictures, *, keeps: bool, tint: bool) -> int:
    """Run the chat screen until the user leaves; it appears before the model is loaded. Returns the exit code."""
    from eaglelocal.tui.chat.chat_app import ChatApp, ChatPaths, run_chat
    from eaglelocal.tui.display_options import make_display_options
    from eaglelocal.tui.key_bindings import check_display_options

    appearance = make_display_options(settings)
    check_display_options(appearance)
    places = ChatPaths(conversations=locations.conversations_dir(), history=locations.question_history_file())
    return run_chat(
        ChatApp(partial(open_session, settings, pictures=pictures), places, appearance, saves=keeps, marks_drafted=tint)
    )


def read_question(prompt: str | None, output: Output, *, as_json: bool) -> str | None:
    """Return PROMPT joined with stdin, or None if there is no PROMPT and stdin is a terminal.

    Raises UsageError in that case with --json.
    """
    is_person = sys.stdin is not None and sys.stdin.isatty()
    if prompt is None and is_person:
        if as_json:
            raise UsageError("--json needs a PROMPT, or text on stdin", hint='eaglelocal chat "..." --json')
        return None
    return join_question(join_surrogates(prompt or ""), read_stdin(sys.stdin, output))


def open_session(
    settings: Settings, output: MessageOutput, choice: ModelChoice, *, pictures: Pictures = (), is_brief: bool = False
) -> Session:
    """Open a session with a running server's model, or load a model as `choice` or the settings say.

    pictures  attached to the first question
    is_brief  the session ends after one answer
    """

    def options(chosen: ModelChoice) -> RunOptions:
        run_options = make_run_options(settings, chosen, parallel=count_slots(settings))
        return replace(run_options, is_brief=is_brief, cache_ram=settings.cache_ram)

    joined = join_running_server(settings, output) if choice.target is None else None
    model = joined
    if model is None:
        with SpareProcess(ENGINE) as spare:
            from eaglelocal.planning.autoplan import autoplan

            decision = autoplan(options(choice))
            show_decision(decision, output)
            if choice.target is None:  # a target that was chosen here is kept: later less memory is free
                settings = replace(settings, target=decision.target)
            model = load_model(write_plan(decision, output), output, spare)
    loader = ModelLoader(
        plan=lambda choice: plan_run(options(choice), output),
        load=lambda plan: load_model(plan, output),
    )
    return Session(
        loader=loader,
        model=model,
        params=default_sampling(settings),
        conversation=Conversation(settings.system or ""),
        spec=None if joined is None else choose_spec(settings, joined),
        choice=choice,
        attached=pictures,
    )
