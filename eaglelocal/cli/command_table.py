"""The table of commands, and the program that typer builds of them.

A command is imported when the program is built. So a program of one command starts without importing the others.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Annotated

import typer

from eaglelocal import __version__
from eaglelocal.cli.flags import VARIABLES
from eaglelocal.cli.grouped_help import GroupedCommand, GroupedProgram
from eaglelocal.cli.output import standard_output

PROGRAM = "eaglelocal"
# The file of each command in this folder; its function has the same name.
COMMANDS = {
    "chat": "chat",
    "serve": "serve",
    "top": "top",
    "launch": "launch",
    "bench": "bench",
    "import": "import_head",
    "export": "export",
    "train": "train",
    "tune": "tune",
    "ps": "ps",
    "stop": "stop",
    "probe": "probe",
    "plan": "plan",
    "doctor": "doctor",
    "pull": "pull",
    "ls": "ls",
    "show": "show",
    "rm": "rm",
    "trust": "trust",
    "heads": "heads",
    "forget": "forget",
}
GROUPS = {"config": "config"}  # files with an `app` of several commands
ALL = (*COMMANDS, *GROUPS)
NAMES_ELSEWHERE = {  # of our commands in Ollama, LM Studio and llama.cpp
    **dict.fromkeys(("run", "ask", "load"), "chat"),
    **dict.fromkeys(("server", "start", "up"), "serve"),
    **dict.fromkeys(("list", "models"), "ls"),
    **dict.fromkeys(("get", "download", "install"), "pull"),
    **dict.fromkeys(("delete", "remove", "uninstall"), "rm"),
    "info": "show",
    "status": "ps",
    "down": "stop",
    **dict.fromkeys(("monitor", "log", "logs"), "top"),
    "benchmark": "bench",
    "search": "plan",
    "convert": "import",
    "settings": "config",
    "version": "--version",
    "help": "--help",
}
SUBCOMMANDS_ELSEWHERE = {"start": "serve", "stop": "stop", "status": "ps"}  # of LM Studio's `server`
WITH_VARIABLES = ("chat", "serve")  # whose help ends with a word on variables


def make_app(names: Iterable[str] = ALL) -> typer.Typer:
    """Return the program with these commands."""
    app = typer.Typer(
        name=PROGRAM,
        cls=GroupedProgram,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(invoke_without_command=True)(root)
    for name in names:
        file = GROUPS.get(name) or COMMANDS[name]
        module = importlib.import_module(f"{__package__}.{file}")
        if name in GROUPS:
            app.add_typer(module.app, name=name)
        else:
            epilog = VARIABLES if name in WITH_VARIABLES else None
            app.command(name, cls=GroupedCommand, epilog=epilog)(getattr(module, file))
    return app


def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Run local language models, faster with speculative decoding.

    \b
    eaglelocal chat                         chat with the best model here
    eaglelocal plan                         what this machine can run, how fast
    eaglelocal pull qwen3-8b                get a model and its draft
    eaglelocal chat --target qwen3-8b       chat with it
    eaglelocal serve                        serve it to other programs
    """
    if version:
        standard_output().data(f"{PROGRAM} {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        standard_output().data(context.get_help())
