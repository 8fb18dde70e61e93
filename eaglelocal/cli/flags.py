"""The flags that several commands share. Those of settings are text: settings.py parses and checks the values.

So a wrong value gives the same message, whether it came from a flag, the environment or the file.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from eaglelocal.cli.completion import Complete, complete_draft, complete_target, complete_words
from eaglelocal.settings import PREFIX, SETTINGS

VARIABLES = (
    "Nearly every option has an environment variable, and most have a line in the config file: "
    "--top-k is EAGLELOCAL_TOP_K and top_k."
)

Images = Annotated[
    list[str] | None, typer.Option("--image", metavar="FILE", help="A picture to ask about; can be repeated.")
]
Continue = Annotated[bool, typer.Option("--continue", help="Go on with the conversation that was saved last.")]
Slots = Annotated[str | None, typer.Option(metavar="N", help="Slots, at most 64; 1 if unset. Each answer takes one.")]

# ---- settings that several commands take as flags; their rows are in settings.py
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "max_tokens", "thinking_budget")
PLACEMENT = ("gpu_layers", "n_cpu_moe", "override_tensor", "device", "split", "rpc", "kv_type", "flash_attn", "ctx")
MACHINE = ("threads", *PLACEMENT)
KEEPING = (  # what is kept of answers
    *("cache_ram", "lookup_memory", "cache_disk", "learn", "learn_gb", "learn_days", "learn_after"),
)
MODEL = ("target", "mmproj", "draft", "draft_type")
UNDONE = frozenset({"stop_loops"})  # switches that are on somewhere unless they are switched off
COMPLETIONS = {"target": complete_target, "draft": complete_draft}

# a head that import and train write
HEAD_TYPES = ("f16", "bf16", "q8_0", "f32")
HeadOut = Annotated[
    str | None, typer.Option(metavar="FILE", help="File to write; unset: where `--draft auto` finds it.")
]
HeadType = Annotated[str, typer.Option(metavar="|".join(HEAD_TYPES), help="Weight type of the written head.")]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

T = TypeVar("T")
MAKE = "make"  # in the metadata of a field: makes its option or argument

Command = Callable[..., None]
KEYWORD = inspect.Parameter.KEYWORD_ONLY


def takes(*names: str, before: str = "") -> Callable[[Command], Command]:
    """Return a decorator that adds the flags of these settings to a command's signature, which typer reads.

    Their values are in the `params` of the command's context. A parameter that the command declares itself stays; one
    that is a dataclass becomes a flag for each field.

    before  the parameter before which --help lists them; without it they stand last
    """

    def decorate(command: Command) -> Command:
        declared = inspect.signature(command, eval_str=True).parameters.values()
        own = {each.name: each for parameter in declared for each in expand(parameter)}
        others = [parameter for name, parameter in own.items() if name not in names]
        place = next((number for number, each in enumerate(others) if each.name == before), len(others))
        parameters = [*others[:place], *(own.get(name) or make_parameter(name) for name in names), *others[place:]]

        @functools.wraps(command)
        def run(**values: object) -> None:
            command(**{parameter.name: bind(parameter, values) for parameter in declared})

        run.__signature__ = inspect.Signature([each.replace(kind=KEYWORD) for each in parameters])  # type: ignore[attr-defined]
        return run

    return decorate


def expand(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """Return the parameter, or one for each field of its dataclass."""
    record = parameter.annotation
    if not dataclasses.is_dataclass(record):
        return [parameter]
    kinds = get_type_hints(record, include_extras=True)
    return [
        inspect.Parameter(
            each.name,
            KEYWORD,
            default=inspect.Parameter.empty if each.default is dataclasses.MISSING else each.default,
            annotation=Annotated[kinds[each.name], each.metadata[MAKE](f"--{each.name.replace('_', '-')}")]
            if MAKE in each.metadata
            else kinds[each.name],
        )
        for each in dataclasses.fields(record)
    ]


def bind(parameter: inspect.Parameter, values: Mapping[str, object]) -> object:
    """Return the value of a parameter, or its dataclass with the values of the fields."""
    record = parameter.annotation
    if not dataclasses.is_dataclass(record):
        return values[parameter.name]
    return record(**{each.name: values[each.name] for each in dataclasses.fields(record)})  # type: ignore[operator]


def flag(
    default: T,
    metavar: str | Sequence[str],
    help: str,
    *names: str,
    min: float | None = None,
    max: float | None = None,
    parser: Callable[[str], Any] | None = None,
    complete: Complete | None = None,
) -> T:
    """Return the field of a dataclass that is a flag of a command.

    metavar  the name of its value, or the words that it can be
    names    unset: that of the field
    """
    if not isinstance(metavar, str):
        metavar, complete = "|".join(metavar), complete_words(*metavar)

    def make(name: str) -> object:
        of_value = {"metavar": metavar or None, "min": min, "max": max, "parser": parser, "autocompletion": complete}
        return typer.Option(*(names or (name,)), help=help, **of_value)  # type: ignore[arg-type]

    made: T = dataclasses.field(default=default, metadata={MAKE: make})
    return made


def argument(metavar: str, help: str, complete: Complete | None = None, *, default: Any = dataclasses.MISSING) -> Any:
    """Return the field of a dataclass that is an argument of a command."""

    def make(name: str) -> object:
        return typer.Argument(metavar=metavar, help=help, autocompletion=complete)

    return dataclasses.field(default=default, metadata={MAKE: make})


def make_parameter(name: str) -> inspect.Parameter:
    """Return the parameter of a command that takes this setting as a flag."""
    flag = SETTINGS[name]
    complete = COMPLETIONS.get(name) or (complete_words(*flag.words) if flag.words else None)
    typed = name.replace("_", "-")
    option = typer.Option(
        f"--{typed}/--no-{typed}" if name in UNDONE else f"--{typed}",
        metavar=flag.metavar or None,
        help=flag.help,
        autocompletion=complete,
    )
    kind = Annotated[flag.kind, option]  # type: ignore[name-defined]
    return inspect.Parameter(name, KEYWORD, default=None, annotation=kind)


# ---- flag variables: environment variables of flags that are no settings: EAGLELOCAL_NO_TUI for --no-tui,
# EAGLELOCAL_SAVE=0 for --no-save
#
# Variables of settings are read by settings.py, together with the config file; it has a list of the other names.
WITHOUT = ("--help", "--version", "--install-completion", "--show-completion")


def list_flag_variables(command: Any) -> Iterator[tuple[str, Any]]:
    """Yield (variable, option) for each such flag of a command that typer built, and of its subcommands."""
    for below in getattr(command, "commands", {}).values():
        yield from list_flag_variables(below)
    for option in command.params:
        name = max(option.opts, key=len)
        if name.startswith("--") and name not in WITHOUT and option.name not in SETTINGS:
            yield PREFIX + name.removeprefix("--").replace("-", "_").upper(), option


def set_variables(command: Any) -> None:
    """Let each of these flags be set by its variable, without showing it in the help of each flag."""
    for variable, option in list_flag_variables(command):
        option.envvar, option.show_envvar = variable, False


# ---- familiar flags: the flags of Ollama and llama-server, and ours that do the same. Pure
FLAGS: Mapping[str, str] = {
    "-m": "--target",
    "--model": "--target",
    "-c": "--ctx",
    "--ctx-size": "--ctx",
    "--num-ctx": "--ctx",
    "-ngl": "--gpu-layers",
    "--n-gpu-layers": "--gpu-layers",
    "-np": "--parallel",
    "-t": "--threads",
    "-md": "--draft",
    "--model-draft": "--draft",
    "-ncmoe": "--n-cpu-moe",
    "-ot": "--override-tensor",
    "-fa": "--flash-attn",
    "-ctk": "--kv-type",
    "--cache-type-k": "--kv-type",
    "-n": "--max-tokens",
    "--n-predict": "--max-tokens",
    "--temp": "--temperature",
    "-s": "--seed",
    "-sys": "--system",
    "--system-prompt": "--system",
    "--no-webui": "--no-tui",
}
OF_OTHER_COMMANDS: Mapping[str, Mapping[str, str]] = {  # flags that have another name in these of our commands
    "chat": {"--no-tui": "--plain", "--no-webui": "--plain"},
    "serve": {"--plain": "--no-tui"},
}
SHORT_FLAG = re.compile(r"(-[a-z]+)([0-9]\S*)?")  # `-c 4096` and `-c4096`


def translate_flags(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command, its name first, with flags of others replaced, before a `--` that ends them.

    >>> translate_flags(["serve", "-m", "x.gguf", "-c4096"])
    ['serve', '--target', 'x.gguf', '--ctx', '4096']
    """
    flags = {**FLAGS, **OF_OTHER_COMMANDS.get(next(iter(arguments), ""), {})}
    translated: list[str] = []
    for number, word in enumerate(arguments):
        if word == "--":
            return [*translated, *arguments[number:]]
        flag, equals, value = word.partition("=")
        short = SHORT_FLAG.fullmatch(word)
        if flag in flags:
            translated.append(f"{flags[flag]}{equals}{value}")
        elif short is not None and short[2] and short[1] in flags:
            translated += [flags[short[1]], short[2]]
        else:
            translated.append(word)
    return translated


def find_familiar_flag(arguments: Sequence[str]) -> str:
    """Return the first flag of another program or command in the arguments; "" if there is none."""
    command = arguments[:1]
    return next((word for word in arguments[1:] if translate_flags([*command, word]) != [*command, word]), "")
