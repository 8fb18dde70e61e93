"""The table of commands, and the program that typer builds of them.

A command is imported when the program is built. So a program of one command starts without importing the others.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from eaglelocal import __version__
from eaglelocal.cli.flags import VARIABLES
from eaglelocal.cli.output import standard_output

PROGRAM = "eaglelocal"
COMMAND_GROUPS = {
    "Chat and serve": ("chat", "run", "serve", "launch", "ps", "stop", "top"),
    "Models": ("plan", "search", "pull", "ls", "show", "rm"),
    "Drafting": ("bench", "tune", "import", "export", "train", "heads", "forget"),
    "This machine": ("doctor", "probe", "config", "trust"),
}
ALL = tuple(name for group in COMMAND_GROUPS.values() for name in group)
# A command is a function in the file of its name in this folder, `app` there if it has commands of its own.
FILES = {"import": "import_head"}
NAMES_ELSEWHERE = {  # of our commands in Ollama, LM Studio and llama.cpp
    **dict.fromkeys(("ask", "load"), "chat"),
    **dict.fromkeys(("server", "start", "up"), "serve"),
    **dict.fromkeys(("list", "models"), "ls"),
    **dict.fromkeys(("get", "download", "install"), "pull"),
    **dict.fromkeys(("delete", "remove", "uninstall"), "rm"),
    "info": "show",
    "status": "ps",
    "down": "stop",
    **dict.fromkeys(("monitor", "log", "logs"), "top"),
    "benchmark": "bench",
    "convert": "import",
    "settings": "config",
    "version": "--version",
}
SUBCOMMANDS_ELSEWHERE = {"start": "serve", "stop": "stop", "status": "ps"}  # of LM Studio's `server`
TAKES_OTHERS = {"ignore_unknown_options": True, "allow_extra_args": True}  # for commands that run another one
PASSING_ON = ("run",)
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
        file = FILES.get(name, name)
        module = importlib.import_module(f"{__package__}.{file}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            epilog = VARIABLES if name in WITH_VARIABLES else None
            others = TAKES_OTHERS if name in PASSING_ON else None
            app.command(name, cls=GroupedCommand, epilog=epilog, context_settings=others)(getattr(module, file))
    return app


def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-V", help="Show the version and exit.")] = False,
) -> None:
    """Run local language models, faster with speculative decoding.

    \b
    eaglelocal chat                         chat with the best model on this disk
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


# ---- grouped help: the help of the program and of its commands, in groups: thirty flags in one list are not read
#
# It knows names of commands and parameters, and how typer formats help; flags.py and the commands know their texts.
FLAG_GROUPS = {
    "What to plan": ("goal", "machine", "ram", "show_all"),
    "Model": (
        *("target", "models", "url", "draft", "spec", "draft_type", "image", "mmproj", "lora", "mcp"),
        *("max_loaded", "alias"),
    ),
    "Measurement": (
        *("category", "prompts", "pairs", "repeats", "warm_up", "concurrency", "rate", "skip"),
        *("ignore_eos", "against", "against_model", "against_key_file", "svg"),
    ),
    "Access and limits": (
        *("host", "port", "api_key_file", "shared_prefix", "allowed_hosts", "cors_origins"),
        *("ssl", "ssl_cert", "ssl_key", "max_waiting", "request_timeout", "idle_unload", "drain"),
    ),
    "Memory and processor": (
        *("ctx", "parallel", "kv_type", "gpu_layers", "n_cpu_moe", "override_tensor"),
        *("device", "split", "rpc"),
        *("flash_attn", "threads", "cache_ram", "lookup_memory", "cache_disk"),
    ),
    "Learning": ("learn", "learn_gb", "learn_days", "learn_after"),
    "Answers": (
        "system",
        "temperature",
        "max_tokens",
        "thinking_budget",
        "stop_loops",
        "top_k",
        "top_p",
        "min_p",
        "seed",
    ),
}
OTHERS = "Options"
MIN_FLAGS = 13  # of a command whose flags are grouped


class GroupedCommand(TyperCommand):
    """A command whose help lists many flags in groups, and arguments without the types of Python."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        records = {str(each.name): each.get_help_record(ctx) for each in self.get_params(ctx)}
        options = [str(each.name) for each in self.get_params(ctx) if each.param_type_name == "option"]
        shown = [record for name, record in records.items() if name not in options and record is not None]
        write_section(formatter, "Arguments", ((name.partition(" <")[0], text) for name, text in shown))
        for title, names in list_groups(FLAG_GROUPS if len(options) >= MIN_FLAGS else {}, options):
            write_section(formatter, title, (records[name] for name in names))


class GroupedProgram(TyperGroup):
    """The program, whose help lists its commands in groups, before its own flags."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        write_section(formatter, OTHERS, (each.get_help_record(ctx) for each in self.get_params(ctx)))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        limit = formatter.width - 6 - max(map(len, commands), default=0)
        for title, names in list_groups(COMMAND_GROUPS, list(commands)):
            shown = ((name, command) for name in names if (command := commands[name]) is not None)
            write_section(formatter, title, ((name, command.get_short_help_str(limit)) for name, command in shown))


def list_groups(groups: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Sort the names into the groups that have them, in the groups' order; the other names come last."""
    known = {name for group in groups.values() for name in group}
    found = [(title, [name for name in group if name in names]) for title, group in groups.items()]
    return [*found, (OTHERS, [name for name in names if name not in known])]


def write_section(formatter: Any, title: str, rows: Iterable[tuple[str, str] | None]) -> None:
    """Write a section of the help; nothing if it has no rows."""
    shown = [row for row in rows if row is not None]
    if shown:
        with formatter.section(title):
            formatter.write_dl(shown)
