"""The command `eaglelocal`: its table of commands, and the handling of every failure.

It knows exit codes (0; 1 the input or the machine; 2 usage; 130 Ctrl-C, 143 SIGTERM) and typer's exceptions.
Commands are in their own files; nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Annotated

import typer

from eaglelocal import __version__
from eaglelocal.cli import (
    bench,
    chat,
    config,
    doctor,
    import_head,
    ls,
    plan,
    probe,
    ps,
    pull,
    rm,
    serve,
    show,
    stop,
    top,
    train,
    tune,
)
from eaglelocal.cli.flag_variables import set_variables
from eaglelocal.cli.flags import VARIABLES
from eaglelocal.cli.output import Output, OutputClosed, standard_output
from eaglelocal.conversation.spelling import closest_word
from eaglelocal.errors import TRACEBACK_VARIABLE, Cancelled, EagleLocalError, UsageError, bug_error

PROGRAM = "eaglelocal"
INTERRUPTED = 130
# The base class of typer's errors about a command line; its module differs between versions.
_TyperUsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name=PROGRAM,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("chat", epilog=VARIABLES)(chat.chat)
app.command("serve", epilog=VARIABLES)(serve.serve)
app.command("top")(top.top)
app.command("bench")(bench.bench)
app.command("import")(import_head.import_head)
app.command("train")(train.train)
app.command("tune")(tune.tune)
app.command("ps")(ps.ps)
app.command("stop")(stop.stop)
app.command("probe")(probe.probe)
app.command("plan")(plan.plan)
app.command("doctor")(doctor.doctor)
app.command("pull")(pull.pull)
app.command("ls")(ls.ls)
app.command("show")(show.show)
app.command("rm")(rm.rm)
app.add_typer(config.app, name="config")


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Run local language models, faster with speculative decoding.

    \b
    eaglelocal chat
    eaglelocal chat "What can you do?"
    """
    if version:
        standard_output().data(f"{PROGRAM} {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        standard_output().data(context.get_help())


def commands() -> list[str]:
    """Return the names of all commands and groups."""
    names = [command.name for command in app.registered_commands] + [group.name for group in app.registered_groups]
    return [name for name in names if name]


def main() -> int:
    """Run the command line and return the exit code; errors are shown on stderr."""
    handle_end_signals()
    open_missing_streams()
    output = standard_output()
    try:
        return run(sys.argv[1:])
    except OutputClosed:
        return 0
    except KeyboardInterrupt:
        output.message()
        return INTERRUPTED
    except Exception as problem:
        return report_failure(problem, output)


def open_missing_streams() -> None:
    """Open /dev/null for standard streams that the caller closed, so that no other file gets their descriptors."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 # open until the end


def handle_end_signals() -> None:
    """Let SIGTERM and SIGHUP raise SystemExit, so that files and the terminal are cleaned up as after Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup sets SIG_IGN, which stays
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def run(arguments: Sequence[str]) -> int:
    _check_command(arguments)
    command = typer.main.get_command(app)
    set_variables(command)
    code = command(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
    return code if isinstance(code, int) else 0


def report_failure(problem: Exception, output: Output) -> int:
    """Show an error and return its exit code; with the traceback if TRACEBACK_VARIABLE is 1."""
    error = convert_error(problem)
    if os.environ.get(TRACEBACK_VARIABLE) == "1":
        output.message("".join(traceback.format_exception(problem)))
    if not isinstance(error, Cancelled):
        output.error(error)
    return error.exit_code


def convert_error(problem: Exception) -> EagleLocalError:
    """Convert an exception to an EagleLocalError; an unexpected one becomes a bug report."""
    if isinstance(problem, EagleLocalError):
        return problem
    if isinstance(problem, _TyperUsageError):
        return _usage(problem)
    if isinstance(problem, typer.Abort):
        return Cancelled("stopped")
    return bug_error(problem)


def _usage(problem: Exception) -> UsageError:
    """Convert an error of typer to a UsageError: lower case, no full stop, and --help as hint."""
    message = getattr(problem, "format_message", problem.__str__)()
    context = getattr(problem, "ctx", None)
    command = getattr(context, "command_path", PROGRAM)
    return UsageError(message[:1].lower() + message[1:].rstrip("."), hint=f"{command} --help")


def _check_command(arguments: Sequence[str]) -> None:
    """Raise UsageError with the nearest name if the first argument is an unknown command.

    The program's own options take no values, so a first argument without a dash is the command.
    """
    words = [argument for argument in arguments[:1] if not argument.startswith("-")]
    if words and words[0] not in commands():
        close = closest_word(words[0], commands())
        raise UsageError(f"no command {words[0]!r}", hint=f"{PROGRAM} {close}" if close else f"{PROGRAM} --help")
