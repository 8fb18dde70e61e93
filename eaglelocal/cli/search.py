"""The command `eaglelocal search`: models of the catalog by words of their names, each with its plan for a machine."""

from __future__ import annotations

from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_machine
from eaglelocal.cli.flags import argument, flag, takes
from eaglelocal.cli.output import standard_output
from eaglelocal.core.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFlags:
    """The arguments and flags of `search`."""

    words: list[str] | None = argument(
        "WORD",
        "Words of a model's name and quantization, such as coder or qwen3.5 q4; unset: all models.",
        default=None,
    )
    machine: str | None = flag(None, "NAME", "Search for another machine: rtx-3090.", complete=complete_machine)
    as_json: flags.AsJson = False


@takes()
def search(wanted: SearchFlags) -> None:
    """Find models by words of their names, with their speed here.

    \b
    eaglelocal search
    eaglelocal search coder
    eaglelocal search qwen3.5 q4 --machine rtx-3090
    """
    from eaglelocal.cli.plan import OF_SETTINGS, options_for
    from eaglelocal.cli.plan_table import show_choices
    from eaglelocal.preparation.model_choices import list_catalog, list_targets

    options = options_for(None, dict.fromkeys(OF_SETTINGS), goal="balanced", is_elsewhere=wanted.machine is not None)
    words = " ".join(wanted.words or ()).split()  # quoted words too
    rows = (
        list_catalog(options, words, machine_name=wanted.machine)
        if words
        else list_targets(options, machine_name=wanted.machine)
    )
    found = sorted(rows, key=lambda choice: -choice.score)
    show_choices(found, words, standard_output(), as_json=wanted.as_json)
