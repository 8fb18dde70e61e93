"""`eaglelocal config`: show every setting, where its value came from and what it does; change one, or edit the file."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from eaglelocal import locations
from eaglelocal.cli import flags
from eaglelocal.cli.command_table import GroupedCommand
from eaglelocal.cli.completion import complete_words
from eaglelocal.cli.output import path_text, standard_output, wrap_text
from eaglelocal.core.atomic_file import make_folder
from eaglelocal.core.toml_text import TomlValue, write_value
from eaglelocal.errors import ResourceError, UsageError
from eaglelocal.processes.editor import run_editor
from eaglelocal.settings import PREFIX, SETTINGS, Settings, check_setting_name, read_setting, write_setting

UNSET = "-"
MAX_VALUE = 40  # columns: one long value must not push all origins out of sight
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The setting's name.", autocompletion=complete_words(*SETTINGS))
]

app = typer.Typer(rich_markup_mode=None)


class ValueCommand(GroupedCommand):
    """A command whose arguments may begin with one dash, such as -1."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = not any(word.startswith("--") for word in args)
        return super().parse_args(ctx, args)


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Show and change your settings."""
    if context.invoked_subcommand is None:
        show()


@app.command("show", cls=GroupedCommand)
def show(as_json: flags.AsJson = False) -> None:
    """Show every setting: its value, its origin, and what it does.

    \b
    eaglelocal config show
    EAGLELOCAL_TEMPERATURE=0 eaglelocal config show
    """
    output = standard_output()
    file = locations.config_file()
    try:
        settings = Settings.load({}, os.environ, file)
    except UsageError as problem:
        settings = Settings.load({}, os.environ, None)
        output.message(f"warning: {problem.message}; the config file is ignored here")
    rows = {name: (getattr(settings, name), origin) for name, origin in settings.origins().items()}
    if as_json:
        values = {
            name: {"value": to_json_value(value), "origin": origin, "help": SETTINGS[name].help}
            for name, (value, origin) in rows.items()
        }
        return output.object({"file": str(file), "settings": values})
    output.message(f"config file: {file}{'' if file.exists() else ' (missing)'}; '-': unset or planned")
    shown = {name: format_value(value) for name, (value, _) in rows.items()}
    name_width, width = max(map(len, shown)), min(max(map(len, shown.values())), MAX_VALUE)
    for name, (_, origin) in rows.items():
        output.data(f"{name:<{name_width}}  {shown[name]:<{width}}  {origin}")
        output.data("\n".join(wrap_text("    ", SETTINGS[name].help)))
    return None


@app.command("get", cls=GroupedCommand)
def get(name: Name) -> None:
    """Print the value of a setting.

    \b
    eaglelocal config get temperature
    """
    value = getattr(Settings.load({}, os.environ, locations.config_file()), check_setting_name(name))
    standard_output().data(format_value(value))


@app.command("set", cls=ValueCommand)
def set_value(
    name: Name, value: Annotated[str, typer.Argument(metavar="VALUE", help="Its value, as of its flag.")]
) -> None:
    """Write a setting to the config file; the rest of it stays.

    \b
    eaglelocal config set temperature 0.5
    eaglelocal config set models demo,qwen3-8b
    """
    written = read_setting(name, value)
    write_checked(name, written, f"{name} = {write_value(written)}, in")


@app.command("unset", cls=GroupedCommand)
def unset(name: Name) -> None:
    """Remove a setting from the config file.

    \b
    eaglelocal config unset ctx
    """
    write_checked(check_setting_name(name), None, f"{name} is not set in")


def write_checked(name: str, value: TomlValue | None, what: str) -> None:
    """Set or remove a setting in the config file, say so, and say which variable decides all the same."""
    file, output = locations.config_file(), standard_output()
    write_setting(file, name, value)
    output.message(f"{what} {path_text(file)}")
    if os.environ.get(variable := PREFIX + name.upper()):
        output.message(f"but {variable} decides here")


@app.command("edit", cls=GroupedCommand)
def edit() -> None:
    """Edit the config file in $EDITOR, and check it.

    \b
    eaglelocal config edit
    """
    file = locations.config_file()
    make_folder(file.parent)
    if not run_editor(file):
        raise ResourceError("the editor failed, so the settings were not checked", hint="eaglelocal config show")
    Settings.load({}, os.environ, file)
    standard_output().message("the settings are valid")


def format_value(value: object) -> str:
    """Return the value as one writes it in the config file; a text is unquoted where that is unambiguous."""
    if isinstance(value, tuple) and value:
        table = to_json_value(value)
        if isinstance(table, dict):
            return f"{{ {', '.join(f'{name} = {_quote(text)}' for name, text in table.items())} }}"
        return f"[{', '.join(map(_quote, value))}]"
    if isinstance(value, str) and (not value.isprintable() or value in ("", UNSET)):
        return _quote(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return UNSET if value is None or value == () else str(value)


def to_json_value(value: object) -> object:
    is_table = isinstance(value, tuple) and value and all(isinstance(entry, tuple) for entry in value)
    return dict(value) if is_table else value  # type: ignore[call-overload]


def _quote(text: object) -> str:
    """Return a text as a JSON string, which is also a basic string of TOML."""
    return json.dumps(text, ensure_ascii=False)
