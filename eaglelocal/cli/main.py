"""The command `eaglelocal`: it runs the command line, and handles every failure.

It knows exit codes (0; 1 the input or the machine; 2 usage; 130 Ctrl-C, 143 SIGTERM) and typer's exceptions.
The commands are listed in command_table.py; nothing, not even typer, is imported before an engine's process is started.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from types import FrameType

from eaglelocal import locations
from eaglelocal.cli.early_engine import start_early
from eaglelocal.cli.hint_command import MAX_COMMAND_CHARS
from eaglelocal.cli.output import Output, OutputClosed, standard_output
from eaglelocal.errors import TRACEBACK_VARIABLE, Cancelled, EagleLocalError, UsageError, bug_error
from eaglelocal.processes.this_process import postpone_collections

INTERRUPTED = 130
# pydantic would look for plugins in every installed package while a model waits for its plan; there are none of ours.
NO_PLUGINS = ("PYDANTIC_DISABLE_PLUGINS", "__all__")
NO_HELP = " (Possible options: --help)"  # in typer's errors, where there is no similar option


def main() -> int:
    """Run the command line and return the exit code; errors are shown on stderr."""
    handle_end_signals()
    open_missing_streams()
    standard_output()  # sets how the streams encode what they cannot carry
    try:
        return run(sys.argv[1:])
    except OutputClosed:
        return 0
    except KeyboardInterrupt:
        find_error_output().message()
        return INTERRUPTED
    except Exception as problem:
        return report_failure(problem, find_error_output())


def open_missing_streams() -> None:
    """Open /dev/null for standard streams that the caller closed, so that no other file gets their descriptors."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 # open until the end


def handle_end_signals() -> None:
    """Let SIGTERM, SIGHUP and SIGQUIT raise SystemExit: files and the terminal are cleaned up as after Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup sets SIG_IGN, which stays
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def run(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    with start_early(arguments) or nullcontext() as spare:
        if spare is not None:
            postpone_collections()
            os.environ.setdefault(*NO_PLUGINS)
        from typer.main import get_command

        from eaglelocal.cli.command_table import ALL, PROGRAM, make_app
        from eaglelocal.cli.flags import set_variables

        named = _find_command(arguments, ALL)
        command = get_command(make_app([named] if named else ALL))
        set_variables(command)
        code = command(args=list(arguments), prog_name=PROGRAM, standalone_mode=False, obj=spare)
        return code if isinstance(code, int) else 0


def find_error_output() -> Output:
    """Return the output for what ends the program: records if the command writes records."""
    from eaglelocal.cli.json_output import error_output

    return error_output(sys.argv[1:])


def report_failure(problem: Exception, output: Output) -> int:
    """Show an error and return its exit code; with the traceback if TRACEBACK_VARIABLE is 1."""
    from eaglelocal.cli.command_table import PROGRAM
    from eaglelocal.cli.hint_command import complete_hint, name_origin
    from eaglelocal.settings import Settings

    error = convert_error(problem)
    with suppress(EagleLocalError):  # the settings may be what is wrong
        name_origin(error, sys.argv[1:], dict(Settings.load({}, os.environ, locations.config_file()).set_by))
    error.hint = complete_hint(error.hint, PROGRAM, sys.argv[1:], error.message)
    is_traced = os.environ.get(TRACEBACK_VARIABLE) == "1"
    if is_traced or not isinstance(error, Cancelled):
        output.error(error, traceback="".join(traceback.format_exception(problem)) if is_traced else "")
    return error.exit_code


def convert_error(problem: Exception) -> EagleLocalError:
    """Convert an exception to an EagleLocalError; an unexpected one becomes a bug report."""
    if isinstance(problem, EagleLocalError):
        return problem
    import typer

    # The base class of typer's errors about a command line; its module differs between versions.
    usage_error: type[Exception] = typer.BadParameter.__bases__[0]
    if isinstance(problem, usage_error):
        return _usage(problem)
    if isinstance(problem, typer.Abort):
        return Cancelled("stopped")
    return bug_error(problem)


def _usage(problem: Exception) -> UsageError:
    """Convert an error of typer to a UsageError: lower case, no full stop, and a hint.

    The hint is --help; for a flag of Ollama or llama-server it is the command line with our flag.
    """
    from eaglelocal.cli.command_table import PROGRAM
    from eaglelocal.cli.flags import find_familiar_flag, translate_flags

    message = getattr(problem, "format_message", problem.__str__)()
    context = getattr(problem, "ctx", None)
    command = getattr(context, "command_path", PROGRAM)
    hint = f"{command} --help"
    if hasattr(problem, "option_name"):  # the option does not exist
        arguments = sys.argv[1:]
        if flag := find_familiar_flag(arguments):
            ours = shlex.join([PROGRAM, *translate_flags(arguments)])
            message, hint = f"no such option: {flag}", ours if len(ours) <= MAX_COMMAND_CHARS else hint
        message = message.removesuffix(NO_HELP)
    elif command == f"{PROGRAM} chat" and "extra argument" in message:
        hint = f'{command} "QUESTION", or {PROGRAM} run MODEL "QUESTION"'
    return UsageError(message[:1].lower() + message[1:].rstrip("."), hint=hint)


def _find_command(arguments: Sequence[str], known: Sequence[str]) -> str | None:
    """Return the command that the arguments name, if they name one.

    Raises UsageError with the nearest name if it is unknown. The program's own options take no values, so a first
    argument without a dash is the command.
    """
    word = next(iter(arguments), "-")
    if word.startswith("-"):
        return None
    if word not in known:
        from eaglelocal.cli.command_table import PROGRAM

        meant = guess_command(word, arguments[1:], known)
        raise UsageError(f"no command {word!r}", hint=shlex.join([PROGRAM, *(meant or ["--help"])]))
    return word


def guess_command(word: str, rest: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the command line that was meant by an unknown command; empty if nothing is near."""
    from eaglelocal.cli.command_table import NAMES_ELSEWHERE, SUBCOMMANDS_ELSEWHERE
    from eaglelocal.cli.flags import translate_flags
    from eaglelocal.core.spelling import COMMAND_CUTOFF, closest_word

    if word == "server" and rest and rest[0] in SUBCOMMANDS_ELSEWHERE:
        return translate_flags([SUBCOMMANDS_ELSEWHERE[rest[0]], *rest[1:]])
    close = NAMES_ELSEWHERE.get(word) or closest_word(word, known, cutoff=COMMAND_CUTOFF)
    if word == "create":  # Ollama's: its Modelfile names a GGUF file, which runs as it is
        return ["chat", "--target", "./FILE.gguf"]
    return [close, *translate_flags(rest)] if close else []
