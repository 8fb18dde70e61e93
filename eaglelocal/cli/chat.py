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
from eaglelocal.cli.chat_connection import joined_model, spec_of
from eaglelocal.cli.chat_line import converse
from eaglelocal.cli.chat_once import answer_once, joined, read_stdin
from eaglelocal.cli.load_model import (
    decide,
    load_model,
    options_of,
    plan_run,
    sampling_of,
    settings_of,
    slots_of,
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


def chat(  # many parameters: typer reads the flags from the signature
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="The question.", show_default=False)] = None,
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
    threads: flags.Threads = None,
    gpu_layers: flags.GpuLayers = None,
    n_cpu_moe: flags.NCpuMoe = None,
    device: flags.Device = None,
    split: flags.Split = None,
    kv_type: flags.KvType = None,
    cache_ram: flags.CacheRam = None,
    flash_attn: flags.FlashAttn = None,
    ctx: flags.Ctx = None,
    parallel: flags.Slots = None,
    plain: Annotated[bool, typer.Option("--plain", help="Lines, no full-screen view.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, with text and figures.")] = False,
    tint: Annotated[bool | None, typer.Option(help="Mark accepted draft tokens; unset: in line mode.")] = None,
    save: Annotated[bool, typer.Option(help="The screen keeps conversations on disk.")] = True,
) -> None:
    """Ask a local model; without PROMPT, talk with it. Without --target a running eaglelocal server answers.

    \b
    eaglelocal chat
    eaglelocal chat "Why does drafting ahead pay?" --target demo@1b:bf16
    git diff | eaglelocal chat "Explain this change" --json
    """
    settings = settings_of(context.params)
    output = standard_output(colour=settings.colour)
    pictures = read_pictures(image or [])
    question = question_of(prompt, output, as_json=as_json)
    if question is None and not plain and has_screen(output):
        raise typer.Exit(show_screen(settings, pictures, keeps=save, tint=bool(tint)))
    session = open_session(settings, output, ModelChoice(), pictures=pictures, is_brief=question is not None)
    try:
        session.check_attached()
        raise typer.Exit(talk(session, output, question, as_json=as_json, tint=tint is not False))
    finally:
        session.close()


def talk(session: Session, output: Output, question: str | None, *, as_json: bool, tint: bool) -> int:
    """Answer one question, or converse in line mode if `question` is None. Returns the exit code."""
    if question is None:
        return converse(session, output, tint=tint)
    if not as_json:
        tell_model(session, output)
    answer_once(Asker(session, output, tint=tint, quiet=as_json), question)
    return 0


def tell_model(session: Session, output: Output) -> None:
    """Show target, draft and notes of a model loaded here; a server was already named when it was joined."""
    model = session.model
    if model.plan is not None:
        output.note(model_line(model.info, model.plan))
        for note in model.info.notes:
            output.note(f"note: {note}")


def has_screen(output: Output) -> bool:
    """Return whether the output is a terminal that a full screen can be drawn on."""
    knows_terminal = os.name == "nt" or os.environ.get("TERM", "") not in ("", "dumb")
    return output.is_terminal and knows_terminal


def show_screen(settings: Settings, pictures: Pictures, *, keeps: bool, tint: bool) -> int:
    """Run the chat screen until the user leaves; it appears before the model is loaded. Returns the exit code."""
    from eaglelocal.tui.chat.chat_app import ChatApp, ChatPaths, run_chat
    from eaglelocal.tui.display_options import make_display_options
    from eaglelocal.tui.key_bindings import check_display_options

    look = make_display_options(settings)
    check_display_options(look)
    paths = ChatPaths(conversations=locations.conversations_dir(), history=locations.question_history_file())
    open_chat = partial(open_session, settings, pictures=pictures)
    return run_chat(ChatApp(open_chat, paths, look, saves=keeps, marks_drafted=tint))


def question_of(prompt: str | None, output: Output, *, as_json: bool) -> str | None:
    """Return PROMPT joined with stdin, or None if there is no PROMPT and stdin is a terminal.

    Raises UsageError in that case with --json.
    """
    is_person = sys.stdin is not None and sys.stdin.isatty()
    if prompt is None and is_person:
        if as_json:
            raise UsageError("--json needs a PROMPT, or text on stdin", hint='eaglelocal chat "..." --json')
        return None
    return joined(join_surrogates(prompt or ""), read_stdin(sys.stdin, output))


def open_session(
    settings: Settings, voice: MessageOutput, choice: ModelChoice, *, pictures: Pictures = (), is_brief: bool = False
) -> Session:
    """Open a session with a running server's model, or load a model as `choice` or the settings say.

    pictures  attached to the first question
    is_brief  the session ends after one answer
    """

    def options(chosen: ModelChoice) -> RunOptions:
        said = options_of(settings, chosen, parallel=slots_of(settings))
        return replace(said, is_brief=is_brief, cache_ram=settings.cache_ram)

    joined = joined_model(settings, voice) if choice.target is None else None
    model = joined
    if joined is None and choice.target is None and settings.target is None:  # planned once, while all memory is free
        first = decide(options(choice), voice)
        settings = replace(settings, target=first.target)
        model = load_model(write_plan(first, voice), voice)
    loader = ModelLoader(
        plan=lambda choice: plan_run(options(choice), voice),
        load=lambda plan: load_model(plan, voice),
    )
    return Session(
        loader=loader,
        model=model or loader.load(loader.plan(choice)),
        params=sampling_of(settings),
        conversation=Conversation(settings.system or ""),
        spec=None if joined is None else spec_of(settings, joined),
        choice=choice,
        attached=pictures,
    )
