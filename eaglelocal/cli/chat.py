"""`eaglelocal chat`: from flags to a session, then one answer or a conversation.

Combines settings, plan, engine, line mode and the screen; nothing heavy is imported before a model is needed.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from eaglelocal import locations
from eaglelocal.cli import flags
from eaglelocal.cli.answer_printer import Asker
from eaglelocal.cli.chat_connection import choose_spec, join_running_server, join_server
from eaglelocal.cli.chat_line import converse
from eaglelocal.cli.early_engine import ENGINE
from eaglelocal.cli.learning import LazyLearning
from eaglelocal.cli.load_model import (
    count_slots,
    default_sampling,
    is_flag,
    keep_conversations,
    list_model_names,
    load_model,
    load_settings,
    make_model_source,
    make_run_options,
    mention_model,
    plan_run,
    show_decision,
    write_plan,
)
from eaglelocal.cli.output import Output, standard_output
from eaglelocal.cli.tool_calls import can_ask_here, open_tools
from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.action_context import ListModels
from eaglelocal.conversation.added_file import find_mentions
from eaglelocal.conversation.answer_stats import MessageOutput, answer_object, model_line
from eaglelocal.conversation.chat_tools import ChatTools
from eaglelocal.conversation.conversation import Conversation
from eaglelocal.conversation.pictures import Pictures, read_pictures
from eaglelocal.conversation.sampling_form import describe_changes
from eaglelocal.conversation.session import ModelLoader, Session, describe_other_model, save_session
from eaglelocal.conversation.slash_commands import names_command
from eaglelocal.core.image import media_type
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import AUTO, ModelChoice, RunOptions, apply_choice
from eaglelocal.core.terminal_text import join_surrogates
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import Cancelled, EagleLocalError, EngineError, UsageError
from eaglelocal.settings import Settings
from eaglelocal.worker.child import SpareProcess

if TYPE_CHECKING:
    from eaglelocal.learning.idle_learning import IdleLearning
    from eaglelocal.preparation.decision import Decision


@flags.takes(
    "url",
    "spec",
    "lora",
    "system",
    "seed",
    "mcp",
    *flags.MODEL,
    *flags.MACHINE,
    *flags.SAMPLING,
    *flags.KEEPING,
    "stop_loops",
    before="plain",
)
def chat(  # many parameters: typer reads the flags from the signature
    context: typer.Context,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="Your question; -: stdin.", show_default=False)
    ] = None,
    image: flags.Images = None,
    parallel: flags.Slots = None,
    plain: Annotated[bool, typer.Option("--plain", help="Chat line by line, without the full screen.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout, with text and figures.")
    ] = False,
    tint: Annotated[bool | None, typer.Option(help="Color accepted draft tokens; unset: only in line mode.")] = None,
    save: Annotated[bool, typer.Option(help="Save the conversations of the screen on disk.")] = True,
    resumes: flags.Continue = False,
    allow_tools: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Tools, or servers, that need no question in this chat.")
    ] = None,
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
    question = read_question(prompt, settings, output, as_json=as_json)
    conversation = begin_conversation(settings, resumes=resumes)
    has_screen = question is None and not plain and output.can_show_screen
    tools = open_tools(settings, allow_tools, can_ask=has_screen or can_ask_here(is_quiet=as_json))
    with closing(LazyLearning(settings)) as learning, closing(tools.pool):
        start = ChatStart(conversation, pictures, is_brief=question is not None, learning=learning, tools=tools)
        if has_screen:
            raise typer.Exit(show_screen(settings, start, keeps=save, tint=bool(tint)))
        session = open_session(settings, output, ModelChoice(), start=start, early=context.obj)
        asker = Asker(
            session,
            output,
            tint=tint is not False,
            has_figures=settings.figures,
            quiet=as_json,
        )
        with ending_session(session, output, saves=resumes and save):
            raise typer.Exit(answer_or_converse(asker, question, list_models=partial(list_model_names, settings)))


@dataclass(frozen=True, slots=True)
class ChatStart:
    """The beginning of a chat: its conversation, perhaps a continued one, and the pictures of the first question."""

    conversation: Conversation
    pictures: Pictures = ()
    is_brief: bool = False  # the chat ends after one answer
    learning: LazyLearning | None = None  # None: nothing is learned, whatever the settings say
    tools: ChatTools = field(default_factory=ChatTools)

    def open_learning(self, output: MessageOutput) -> IdleLearning | None:
        return None if self.learning is None else self.learning.open(output)


def begin_conversation(settings: Settings, *, resumes: bool) -> Conversation:
    """Return a new conversation, or the one saved last; an explicit --system replaces its system message."""
    if not resumes:
        return Conversation(settings.system or "")
    conversation = conversation_file.load_last(locations.conversations_dir())
    if is_flag(settings, "system"):
        conversation.system = settings.system or ""
    for name in [name for name in conversation.sampling if is_flag(settings, name)]:
        del conversation.sampling[name]
    return conversation


def continue_target(settings: Settings, conversation: Conversation) -> Settings:
    """Return the settings with the model of a continued conversation, unless --target names one.

    What the config file and the environment say of another model's draft and projector is not for this one.
    """
    reference = conversation.reference
    if not reference or is_flag(settings, "target") or reference == settings.target:
        return settings
    return replace(
        settings,
        target=reference,
        draft=settings.draft if is_flag(settings, "draft") else AUTO,
        mmproj=settings.mmproj if is_flag(settings, "mmproj") else AUTO,
        n_cpu_moe=settings.n_cpu_moe if is_flag(settings, "n_cpu_moe") else None,
        override_tensor=settings.override_tensor if is_flag(settings, "override_tensor") else (),
    )


@contextmanager
def ending_session(session: Session, output: Output, *, saves: bool) -> Iterator[None]:
    """Check the session's pictures, and close it after the block.

    saves  save what was added to a named conversation; the screen does so by itself
    """
    try:
        session.check_attached()
        yield
    finally:
        session.close()
        conversation = session.conversation
        if saves and conversation.name and len(conversation.turns) > conversation.num_saved:
            saved = save_session(session, locations.conversations_dir())
            if saved.notice:
                output.note(saved.notice)


def answer_or_converse(asker: Asker, question: str | None, *, list_models: ListModels) -> int:
    """Answer one question, or converse in line mode if `question` is None. Returns the exit code."""
    if question is None:
        return converse(asker, list_models=list_models)
    model = asker.session.model
    if not asker.quiet and model.plan is not None:  # a server was already named when it was joined
        asker.output.note(model_line(model.info, model.plan))
        for note in model.info.notes:
            asker.output.note(f"note: {note}")
    answer_once(asker, question)
    return 0


def show_screen(settings: Settings, start: ChatStart, *, keeps: bool, tint: bool) -> int:
    """Run the chat screen until the user leaves; it appears before the model is loaded. Returns the exit code."""
    from eaglelocal.tui.chat.chat_app import ChatApp, ChatPaths, run_chat
    from eaglelocal.tui.display_options import check_display_options, make_display_options

    appearance = make_display_options(settings)
    check_display_options(appearance)
    places = ChatPaths(conversations=locations.conversations_dir(), history=locations.question_history_file())
    return run_chat(
        ChatApp(
            partial(open_session, settings, start=start),
            places,
            appearance,
            marks_drafted=tint,
            models=make_model_source(settings),
            saves=keeps,
        )
    )


def read_question(prompt: str | None, settings: Settings, output: Output, *, as_json: bool) -> str | None:
    """Return PROMPT joined with stdin, or None if there is no PROMPT and stdin is a terminal. PROMPT may be STDIN.

    Raises UsageError in that case with --json.
    """
    is_person = prompt != STDIN and sys.stdin is not None and sys.stdin.isatty()
    if prompt is None and is_person:
        if as_json:
            raise UsageError("--json needs a PROMPT, or text on stdin", hint='eaglelocal chat "..." --json')
        return None
    mention_model(prompt, settings, output)
    prompt = "" if prompt == STDIN else prompt or ""
    question = join_question(join_surrogates(prompt), "" if is_person else read_stdin(sys.stdin, output))
    mention_command(question, output)
    mention_file(prompt, output)
    return question


def open_session(
    settings: Settings,
    output: MessageOutput,
    choice: ModelChoice,
    *,
    start: ChatStart | None = None,
    early: SpareProcess | None = None,
) -> Session:
    """Open a session with a running server's model, or load a model as `choice` or the settings say.

    start  None: a new conversation
    early  an engine's process that waits for a plan; ended here if a server answers
    """
    begun = start or ChatStart(Conversation(settings.system or ""))
    joined = join_running_server(settings, output) if choice.target is None else None
    model, options = joined, make_chat_options(settings, begun)
    if model is None:
        with early or SpareProcess(ENGINE) as spare:
            options, decision = plan_start(settings, options, choice, begun, output)
            show_decision(decision, output)
            if choice.target is None:  # a target that was chosen here is kept: later less memory is free
                options = replace(options, target=decision.target)
            model = load_model(write_plan(decision, output), output, spare, begun.open_learning(output))
    elif early is not None:
        early.close()
    keeps_model = is_flag(settings, "target")
    other = describe_other_model(begun.conversation, model)
    if other and (joined is not None or keeps_model or not begun.conversation.reference):
        output.note(other)
    if sampling := begun.conversation.sampling:
        output.note(f"sampling as in {begun.conversation.name}: {describe_changes(sampling)}")
    loader = ModelLoader(
        plan=lambda choice: plan_run(apply_choice(options, choice), output),
        load=lambda plan: load_model(plan, output, learning=begun.open_learning(output)),
        join=lambda url: join_server(url, output),
    )
    params = default_sampling(settings)
    return Session(
        loader=loader,
        model=model,
        params=replace(params, thinking=params.thinking.switch_on(), stop_loops=settings.stop_loops is not False),
        conversation=begun.conversation,
        spec=None if joined is None else choose_spec(settings, joined),
        choice=choice,
        attached=begun.pictures,
        target=options.target or "",
        keeps_model=keeps_model,
        tools=begun.tools,
    )


def make_chat_options(settings: Settings, start: ChatStart) -> RunOptions:
    options = make_run_options(settings, parallel=count_slots(settings))
    return replace(keep_conversations(options, settings), is_brief=start.is_brief)


def plan_start(
    settings: Settings, options: RunOptions, choice: ModelChoice, start: ChatStart, output: MessageOutput
) -> tuple[RunOptions, Decision]:
    """Return the options of the chat, and what to load first.

    They are those of a continued conversation's model if it is found and none is named.
    """
    from eaglelocal.preparation.autoplan import autoplan

    continued = continue_target(settings, start.conversation) if choice.target is None else settings
    if continued is not settings:
        own = make_chat_options(continued, start)
        try:
            decision = autoplan(apply_choice(own, choice))
        except EagleLocalError as error:
            output.note(f"{start.conversation.target} cannot be loaded again: {error.message}")
        else:
            output.note(f"loading {start.conversation.target}, as before")
            return own, decision
    return options, autoplan(apply_choice(options, choice))


# ---- chat once: the one-shot chat, `chat PROMPT`: one question, from PROMPT and stdin, and one answer
#
# It decides how stdin is joined to PROMPT and what is printed on stdout.
STDIN = "-"  # as PROMPT
PATIENCE_S = 2.0
MAX_STDIN_BYTES = 8_000_000  # more than any context holds; endless input (`yes |`) must not fill the memory

RECODE = 'iconv -f WINDOWS-1252 -t UTF-8 FILE | eaglelocal chat "..."'
MAX_SCANNED_LINES, MAX_QUOTED_CHARS = 50, 40


def read_stdin(stdin: TextIO | None, output: Output) -> str:
    """Return all of stdin. Raises UsageError if it is too long or not UTF-8.

    Shows a message if nothing arrives within PATIENCE_S, because an open pipe looks like a hang.
    """
    if stdin is None:
        return ""
    if not _is_ready(stdin):
        ending = "Ctrl+D ends it" if stdin.isatty() else "use </dev/null if it has nothing to read"
        output.message(f"waiting for stdin to end ({ending})")
    piped = stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(piped) > MAX_STDIN_BYTES:
        what = f"stdin is longer than {MAX_STDIN_BYTES // 1_000_000} MB, more than a model can read"
        raise UsageError(what, hint='head -c 50000 FILE | eaglelocal chat "..."')
    try:
        return piped.decode("utf-8")
    except UnicodeDecodeError as problem:
        what = f"stdin is not UTF-8 text: byte {problem.start} is 0x{problem.object[problem.start]:02x}"
        raise UsageError(what, hint="--image /dev/stdin" if media_type(piped) else RECODE) from None


def _is_ready(stdin: TextIO) -> bool:
    if os.name == "nt":  # there select takes only sockets
        return True
    return bool(select.select([stdin], [], [], PATIENCE_S)[0])


def join_question(prompt: str, piped: str) -> str:
    """Return PROMPT, an empty line, and the piped text. Raises UsageError if both are empty."""
    parts = [part.strip("\n") for part in (prompt, piped) if part.strip()]
    if not parts:
        raise UsageError("there is no question: PROMPT and stdin are empty", hint='eaglelocal chat "What can you do?"')
    return "\n\n".join(parts)


def mention_command(question: str, output: Output) -> None:
    """Say that a slash command in a question is not obeyed: a question may be any text, also a list of paths."""
    lines = question.splitlines()[:MAX_SCANNED_LINES]
    found = next((line.strip() for line in lines if names_command(line)), "")
    if found:
        shown = found if len(found) <= MAX_QUOTED_CHARS else f"{found[:MAX_QUOTED_CHARS]}..."
        rest = ", with the rest of the question" if len(question.split("\n", 1)) > 1 else ""
        output.note(f"{shown!r} is sent as text{rest}; commands work in a chat: eaglelocal chat")


def mention_file(prompt: str, output: Output) -> None:
    """Say that a file in PROMPT is not read: scripts put any text there."""
    if found := find_mentions(prompt):
        begin, end, path = found[0]
        command = f"cat {quote_path(path)} | eaglelocal chat ..."
        output.note(f"{prompt[begin:end]!r} is sent as text; to send the file: {command}")


def answer_once(asker: Asker, question: str) -> None:
    """Ask a question and show the answer; a quiet asker prints only the JSON object on stdout.

    Raises the error of the answer, or Cancelled if it was stopped.
    """
    outcome = asker.ask(question)
    if outcome.error is not None:
        raise outcome.error
    if outcome.finished is None:
        raise EngineError("the answer ended without a result")
    if asker.quiet:
        asker.output.object(
            answer_object(
                outcome.text,
                outcome.finished,
                asker.session.model.info,
                reasoning=outcome.reasoning,
                is_loop=outcome.is_loop,
                rounds=outcome.rounds,
            )
        )
    if outcome.stopped and not outcome.is_loop:
        raise Cancelled("stopped")
