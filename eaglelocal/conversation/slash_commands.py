"""The slash commands of chat: one function a command, in the table COMMANDS, and the parsing of a line into one.

A command may return a question to ask next (/retry). The loop that reads the lines is elsewhere.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.action_context import ActionContext, LeaveChat
from eaglelocal.conversation.answer_stats import describe_draft_length, model_lines, system_line, total_lines
from eaglelocal.conversation.code_blocks import find_code_blocks
from eaglelocal.conversation.compaction import NUM_KEPT, can_compact, compact, undo_compaction
from eaglelocal.conversation.conversation_file import export_markdown
from eaglelocal.conversation.pictures import parse_paths, read_picture
from eaglelocal.conversation.sampling_form import FIELDS, format_field, set_field
from eaglelocal.conversation.session import Session, check_sees, resume_conversation, save_session
from eaglelocal.conversation.tool_commands import ARGUMENTS as TOOLS_ARGUMENTS
from eaglelocal.conversation.tool_commands import switch_tools
from eaglelocal.core.adapters import describe_adapters, parse_scale
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.draft import SWITCHED_OFF, describe_cut_length, describe_drafting
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import AUTO_SPEC, OFF, Spec, parse_spec
from eaglelocal.core.run_options import ModelChoice, list_draft_words
from eaglelocal.core.sampling import fill_recommended
from eaglelocal.core.spelling import COMMAND_CUTOFF, closest_word
from eaglelocal.core.thinking import LIMITS as THINKING_LIMITS
from eaglelocal.core.thinking import parse_thinking
from eaglelocal.errors import UsageError
from eaglelocal.text.reasoning.efforts import describe_thinking
from eaglelocal.text.reasoning.model_families import detect_family

# ---- model commands: the slash commands on the model of a chat: /model, /draft, /spec and /lora
LORA_HINT = "/lora 0 0.5; /lora 0 0 switches adapter 0 off"
SPEC_HINT = "/spec auto, /spec off, /spec pid or /spec N"


def choose_draft_length(context: ActionContext, argument: str) -> None:
    """Show how many tokens are drafted, after setting it."""
    if argument:
        _choose_spec(context, parse_spec_argument(argument))
    context.say(spec_line(context.session))


def parse_spec_argument(argument: str) -> Spec:
    """Parse the argument of `/spec`; `on` means auto. Raises UsageError."""
    try:
        return AUTO_SPEC if argument == "on" else parse_spec(argument)
    except UsageError as problem:
        raise UsageError(problem.message.replace("--spec", "/spec"), hint=SPEC_HINT) from None


def _choose_spec(context: ActionContext, spec: Spec) -> None:
    """Set the spec of the next requests; load the model again if it was loaded without a draft. Raises UsageError."""
    session = context.session
    if not session.model.takes_spec:
        raise UsageError("this server does not take /spec", hint="/model demo loads a model on this machine")
    if spec != OFF and session.model.plan is not None and not session.model.speculates:
        _load(context, replace(session.choice, spec=str(spec)))
    session.spec = spec


def spec_line(session: Session) -> str:
    """Return how the next answer is drafted for, after `drafting: `."""
    plan = session.model.plan
    if plan is None and session.spec is None:
        return "drafting: set by the server"
    spec = session.spec or (AUTO_SPEC if plan is None else plan.spec)
    if spec == OFF:
        return describe_drafting("off", SWITCHED_OFF)
    most = session.model.info.max_draft
    cut = describe_cut_length(spec.num_draft_tokens, most)
    length = describe_draft_length(spec, most) + (f" ({cut})" if cut else "")
    if plan is None:
        return f"drafting, as requested from the server: {length}"
    if not plan.speculates:
        reason = session.model.info.draft_reason or plan.draft_reason
        return describe_drafting("off", reason or "no draft is loaded")
    return f"drafting: {length}, {session.model.info.draft}"


def choose_draft(context: ActionContext, argument: str) -> None:
    if argument:
        return _load(context, replace(context.session.choice, draft=argument))
    return context.say(spec_line(context.session))


def choose_scale(context: ActionContext, argument: str) -> None:
    """Show the LoRA adapters, after setting the scale of one: `0 0.5`."""
    session = context.session
    if argument:
        try:
            session.set_scale(*parse_scale(argument))
        except ValueError as problem:
            hint = LORA_HINT if session.model.info.adapters else "eaglelocal chat --lora FILE"
            raise UsageError(f"/lora {argument}: {problem}", hint=hint) from None
    shown = session.shown_adapters
    context.say(f"adapters: {describe_adapters(shown)}" if shown else "no adapter is loaded: --lora FILE loads one")


def choose_model(context: ActionContext, argument: str) -> None:
    """Show the model and those on this disk, or load another one."""
    session = context.session
    if argument:
        before = session.choice
        choice, adapters = before.retarget(argument, session.model.local_name), session.model.info.adapters
        try:
            _load(context, choice)
        except UsageError as error:
            raise UsageError(error.message, hint=_suggest_model(context, argument, error.hint)) from error
        if adapters and not session.model.info.adapters:
            context.say("note     the adapters belong to the model before, and are not loaded")
        if before.ctx != choice.ctx:
            context.say(f"note     the context of {before.ctx} tokens was chosen for the model before")
    else:
        context.say(*model_lines(session.model.info, session.model.plan))
        if names := context.list_models():
            context.say("on disk  " + ", ".join(names))


def _suggest_model(context: ActionContext, name: str, hint: str) -> str:
    """Return the hint for a model that is not found: the models on this disk with nearly that name, or where to look.

    hint: that of the error, for a model that cannot run.
    """
    known = context.list_models()
    if name in known:
        return hint
    near = [each for each in known if name.lower() in each.lower()] or list(filter(None, [closest_word(name, known)]))
    names = " or ".join(f"/model {each}" for each in near[:3])
    return names or f"{hint}; `eaglelocal ls` lists the models on this disk".removeprefix("; ")


def _load(context: ActionContext, choice: ModelChoice) -> None:
    before = context.session.model
    context.session.switch(choice)
    if not context.has_screen or context.session.model is before:  # the screen shows another model itself
        context.say(*model_lines(context.session.model.info, context.session.model.plan))


# ---- slash commands
HELP_COLUMN, HELP_WIDTH = 31, 79  # a terminal of 80 columns breaks a line of 80


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A slash command, and its line of /help: its arguments, and its purpose."""

    run: Callable[[ActionContext, str], str | None]
    arguments: str
    purpose: str


@dataclass(frozen=True, slots=True)
class Command:
    """A parsed slash command."""

    name: str
    argument: str = ""


def run_command(context: ActionContext, command: Command) -> str | None:
    """Run a command and return a question to ask next, or None. Raises EagleLocalError, and LeaveChat on /exit."""
    return COMMANDS[command.name].run(context, command.argument)


def _help(context: ActionContext, argument: str) -> None:
    context.say(*help_lines(context.keys))


def _stats(context: ActionContext, argument: str) -> None:
    session = context.session
    client = session.model.client
    context.say(*total_lines(session.answers, client.snapshot(), client.restarts, session.context_use))


def _set(context: ActionContext, argument: str) -> None:
    """Set a sampling parameter, `temperature 0.5` or as in Ollama `parameter temperature 0.5`, and list all."""
    session = context.session
    if argument:
        name, value = (*argument.removeprefix("parameter ").split(maxsplit=1), "", "")[:2]
        session.set_params(set_field(session.params, name, value))
    params = fill_recommended(session.params, session.model.info.sampling)
    context.say(*(f"{field.name:<16}{format_field(params, field) or field.unset}" for field in FIELDS))


def _think(context: ActionContext, argument: str) -> None:
    """Show how long the model may think, after setting it; a number is the most tokens, and switches thinking on."""
    session = context.session
    if argument:
        thinking = parse_thinking(argument, name="/think").switch_on()
        message = session.params.thinking.message
        session.set_params(replace(session.params, thinking=replace(thinking, message=message)))
    context.say(thinking_line(session))


def thinking_line(session: Session) -> str:
    """Return how long the model may think, after `thinking: `."""
    info = session.model.info
    if info.template and not detect_family(info.template).thinks:
        return "thinking: this model does not think"
    return f"thinking: {describe_thinking(session.params.thinking, info.efforts, session.answer_room)}"


def _system(context: ActionContext, argument: str) -> None:
    conversation = context.session.conversation
    if argument:
        conversation.system = "" if argument in ('""', "''") else argument
    text = f"system message: {conversation.system}" if conversation.system else "no system message"
    context.say(*text.split("\n"))


def _clear(context: ActionContext, argument: str) -> None:
    conversation = context.session.conversation
    context.session.begin_conversation()
    context.say("the conversation was cleared")
    if conversation.system and not context.has_screen:  # the screen shows it itself
        context.say(system_line(conversation.system))


def _retry(context: ActionContext, argument: str) -> str:
    """Return the last question, whose answer is kept as another version, with its pictures attached again."""
    question = context.session.cut(len(context.session.conversation.turns) - 1)
    if not question:
        raise UsageError("there is no question yet")
    return question


def _image(context: ActionContext, argument: str) -> None:
    session = context.session
    if argument == "none":
        session.attached = ()
    elif argument:
        check_sees(session.model)  # before files are read
        session.attach(read_picture(path) for path in parse_paths(argument))
    labels = " ".join(picture.label for picture in session.attached)
    context.say(f"with the next question: {labels}" if labels else "no picture is attached")


def _copy(context: ActionContext, argument: str) -> None:
    """Copy the last answer, its last code block (`code`), or a code block of the conversation by its number."""
    answers = context.session.conversation.texts
    if not (argument in ("", "code") or argument.isdecimal()):
        raise UsageError(f"{argument!r} cannot be copied", hint="/copy, /copy code or /copy N")
    if not answers:
        raise UsageError("there is no answer yet")
    context.copy(_find_code(answers, argument) if argument else answers[-1])


def _find_code(answers: Sequence[str], argument: str) -> str:
    """Return the code of the last block of the last answer, or of the block with this number. Raises UsageError."""
    if argument == "code":
        if not (last := find_code_blocks(answers[-1])):
            raise UsageError("there is no code block in the last answer", hint="/copy copies all of it")
        return last[-1].code
    blocks = [block for answer in answers for block in find_code_blocks(answer)]
    found = dict(zip(map(str, range(1, len(blocks) + 1)), blocks, strict=True)).get(argument)
    if found is None:
        hint = f"/copy 1 to /copy {len(blocks)}" if blocks else "/copy copies the last answer"
        raise UsageError(f"there is no code block {argument}", hint=hint)
    return found.code


def _save(context: ActionContext, argument: str) -> None:
    conversation = context.session.conversation
    if not conversation.turns:
        raise UsageError("there is nothing to save yet")
    old = conversation.name
    saved = save_session(context.session, context.conversations, argument)
    was = f", no longer as {old}" if old not in ("", saved.path.stem) and not saved.notice else ""
    context.say(*filter(None, [saved.notice]), f"saved as {saved.path.stem}{was}: {saved.path}")


def _load_conversation(context: ActionContext, argument: str) -> None:
    if not argument:
        known = conversation_file.list_names(context.conversations)
        return context.say(*known or ("no conversation is saved yet",))
    conversation = conversation_file.load_conversation(context.conversations, argument)
    resume_conversation(context.session, conversation, context.output)
    turns = len(conversation.turns)
    context.say(f"loaded {conversation.name}, {count_noun(turns, 'turn')}")
    if conversation.turns:
        for line in f"last question: {conversation.turns[-1].shown_question}".split("\n"):
            context.output.note(line)
    return None


def _rename(context: ActionContext, argument: str) -> None:
    conversation = context.session.conversation
    if not argument or not conversation.name:
        hint = "/rename NAME" if conversation.name else "/save NAME"
        raise UsageError("/rename needs a saved conversation and a new name", hint=hint)
    conversation.name = conversation_file.rename(context.conversations, conversation.name, argument)
    context.say(f"renamed to {conversation.name}")


def _delete(context: ActionContext, argument: str) -> None:
    """Delete a saved conversation; if it is the open one, begin another, or the next answer would save it again."""
    if not argument:
        raise UsageError("/delete needs the name of a conversation", hint="/load lists them")
    name = conversation_file.find_path(context.conversations, argument).stem
    conversation_file.delete(context.conversations, name)
    if context.session.conversation.name == name:
        context.session.begin_conversation()
    context.say(f"deleted {name}")


def _export(context: ActionContext, argument: str) -> None:
    conversation = context.session.conversation
    name = argument or f"{conversation.name or 'conversation'}.md"
    path = export_markdown(conversation, name, target=context.session.model.info.target)
    context.say(f"written to {path}")


def _theme(context: ActionContext, argument: str) -> None:
    """Refuse: the chat screen chooses its theme without the session."""
    raise UsageError("only the chat screen has themes; here your terminal decides the colors", hint="eaglelocal chat")


def _compact(context: ActionContext, argument: str) -> None:
    if not can_compact(context.session.conversation):
        return context.say(f"there is nothing to summarize yet: the last {NUM_KEPT} turns stay as they are")
    if not context.has_screen:
        context.say("summarizing; ctrl-c stops")
    saved = compact(context.session, context.follow)
    summary = context.session.conversation.summary
    if saved and summary is not None and not context.has_screen:  # the screen shows it itself
        context.say(summary.text)
    return context.say(saved or "the summary was stopped, and nothing has changed")


def _undo(context: ActionContext, argument: str) -> None:
    undo_compaction(context.session.conversation)
    context.say("the summary is no longer sent; the turns are")


def _add(context: ActionContext, argument: str) -> None:
    """Refuse: the screen puts the file into its question field before a command gets here."""
    if context.has_screen:
        raise UsageError("/add needs a file", hint="/add FILE; @FILE adds it while you type")
    raise UsageError("/add works on the screen of the chat", hint='eaglelocal chat "QUESTION" < FILE')


def _exit(context: ActionContext, argument: str) -> None:
    raise LeaveChat


COMMANDS: dict[str, SlashCommand] = {
    "/help": SlashCommand(_help, "", "show this list"),
    "/stats": SlashCommand(_stats, "", "show statistics of this session and of the engine"),
    "/spec": SlashCommand(
        choose_draft_length, "[auto|off|pid|N]", "set the draft length: as long as it pays off, none, or N tokens"
    ),
    "/set": SlashCommand(_set, "[NAME VALUE]", "set a sampling parameter, or list them all"),
    "/think": SlashCommand(_think, "[LIMIT]", f"let the model think: {THINKING_LIMITS}"),
    "/system": SlashCommand(_system, "[TEXT]", 'set the system message; "" removes it'),
    "/clear": SlashCommand(_clear, "", "clear the conversation, but keep the system message"),
    "/retry": SlashCommand(_retry, "", "ask the last question again"),
    "/image": SlashCommand(_image, "[PATH|none]", "attach a picture to the next question"),
    "/add": SlashCommand(_add, "FILE", "put a text file into the question, as @FILE does while you type"),
    "/copy": SlashCommand(_copy, "[code|N]", "copy the last answer, its last code block, or code block number N"),
    "/compact": SlashCommand(_compact, "", "let the model summarize old turns, to make room in the context"),
    "/undo": SlashCommand(_undo, "", "send the summarized turns again"),
    "/save": SlashCommand(_save, "[NAME]", "save the conversation"),
    "/load": SlashCommand(_load_conversation, "[NAME]", "continue a saved conversation, or list them"),
    "/rename": SlashCommand(_rename, "NAME", "rename the saved conversation"),
    "/delete": SlashCommand(_delete, "NAME", "delete a saved conversation"),
    "/export": SlashCommand(_export, "[FILE]", "write the conversation to a Markdown file"),
    "/model": SlashCommand(choose_model, "[REF|URL]", "show or change the model, or join a server"),
    "/draft": SlashCommand(choose_draft, f"[{'|'.join(list_draft_words())}|REF],...", "show or change the draft"),
    "/lora": SlashCommand(choose_scale, "[ID SCALE]", "show the LoRA adapters, or set the scale of one; 0 is off"),
    "/tools": SlashCommand(switch_tools, TOOLS_ARGUMENTS, "list tool servers, switch them, or ask again before calls"),
    "/theme": SlashCommand(_theme, "[NAME]", "choose the colors of the screen from a list, or by name"),
    "/exit": SlashCommand(_exit, "", "leave the chat, as ctrl-d and /bye do"),
}
OTHER_NAMES: Mapping[str, str] = {  # names of the same commands in other programs
    "/": "/help",
    "/?": "/help",
    "/bye": "/exit",
    "/quit": "/exit",
    "/q": "/exit",
    "/new": "/clear",
    "/reset": "/clear",
    "/again": "/retry",
    "/regenerate": "/retry",
}


def is_command(text: str) -> bool:
    """Return whether a text is a command: it begins with a slash.

    A text of several lines must name a known command; otherwise it may be, say, a comment in C.
    """
    return text.startswith("/") and ("\n" not in text or text.split()[0] in COMMANDS)


def names_command(line: str) -> bool:
    """Return whether the first word of a line is a command, or its name in another program."""
    return line.startswith("/") and line.split()[0] != "/" and split_command(line).name in COMMANDS


def parse_command(line: str) -> Command:
    """Parse `/spec 4` into Command("/spec", "4"). Raises UsageError with the nearest name."""
    command = split_command(line)
    name, argument = command.name, command.argument
    if name not in COMMANDS:
        close = closest_word(name, COMMANDS, cutoff=COMMAND_CUTOFF)
        near = f"{close}, or " if close else ""
        raise UsageError(f"unknown command {name}", hint=f"{near}/help; to send it as text, put a blank in front")
    if argument and not COMMANDS[name].arguments:
        raise UsageError(f"{name} takes no argument, not {argument!r}", hint=name)
    return command


def split_command(line: str) -> Command:
    """Return the first word of a line, in the name that we use for it, and the rest; the command may be unknown."""
    typed, argument = (*line.strip().split(maxsplit=1), "", "")[:2]
    return Command(OTHER_NAMES.get(typed, typed), argument)


def is_help(text: str) -> bool:
    """Return whether a text is /help under one of its names, and no more."""
    return split_command(text) == Command("/help", "")


def help_lines(keys: Mapping[str, str]) -> list[str]:
    """Return the lines of /help: the commands, then the keys of the mode."""
    commands = ((f"{name} {slash.arguments}".rstrip(), slash.purpose) for name, slash in COMMANDS.items())
    settings = "figures = false in the config file hides the line of figures below answers"
    rows = [*commands, ("", ""), *keys.items(), ("", ""), ("", settings)]
    return [line for first, second in rows for line in _format_help_row(first, second)]


def _format_help_row(first: str, second: str) -> list[str]:
    """Return the lines of a row of /help, broken between words; a long first column has a line of its own."""
    indent = " " * HELP_COLUMN
    lines = textwrap.wrap(second, HELP_WIDTH, initial_indent=indent, subsequent_indent=indent) or [""]
    if len(first) >= HELP_COLUMN:
        return [first, *lines]
    return [first.ljust(HELP_COLUMN) + lines[0].removeprefix(indent), *lines[1:]]
