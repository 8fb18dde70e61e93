"""`eaglelocal config`: show every setting, its value and where it came from."""

from __future__ import annotations

import json
import os

import typer

from eaglelocal import locations
from eaglelocal.cli import flags
from eaglelocal.cli.output import standard_output
from eaglelocal.settings import Settings

UNSET = "-"
MAX_VALUE = 40  # columns: one long value must not push all origins out of sight

app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def root(context: typer.Context) -> None:
    """Show your settings and where they come from."""
    if context.invoked_subcommand is None:
        show()


@app.command("show")
def show(as_json: flags.AsJson = False) -> None:
    """Show every setting, its value and where it came from.

    \b
    eaglelocal config show
    EAGLELOCAL_TEMPERATURE=0 eaglelocal config show
    """
    output = standard_output()
    file = locations.config_file()
    settings = Settings.load({}, os.environ, file)
    rows = {name: (getattr(settings, name), origin) for name, origin in settings.origins().items()}
    if as_json:
        values = {name: {"value": to_json_value(value), "origin": origin} for name, (value, origin) in rows.items()}
        return output.object({"file": str(file), "settings": values})
    output.message(f"config file: {file}{'' if file.exists() else ' (missing)'}; '-': unset or planned")
    shown = {name: format_value(value) for name, (value, _) in rows.items()}
    name_width, width = max(map(len, shown)), min(max(map(len, shown.values())), MAX_VALUE)
    for name, (_, origin) in rows.items():
        output.data(f"{name:<{name_width}}  {shown[name]:<{width}}  {origin}")
    return None


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
