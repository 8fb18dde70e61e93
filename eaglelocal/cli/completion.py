"""The values that a shell completes for options: words, machines of the catalog, models. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from eaglelocal.core.run_options import LOOKUPS, list_draft_words
from eaglelocal.core.user_paths import complete_path
from eaglelocal.errors import EagleLocalError

if TYPE_CHECKING:
    from eaglelocal.client.running_servers import RunningServer

GGUF = ".gguf"
Complete = Callable[[str], list[str]]


def complete_words(*words: str) -> Complete:
    return lambda incomplete: list_matches(words, incomplete)


def complete_machine(incomplete: str) -> list[str]:
    """Return names of machines, also after a comma; `list`, which goes alone, only as the first."""
    from eaglelocal.catalog.catalog import load_machines

    before, comma, begun = incomplete.rpartition(",")
    names = [*([] if comma else ["list"]), *find_or_nothing(lambda: list(load_machines()))]
    taken = before.split(",")
    return [f"{before}{comma}{name}" for name in list_matches(names, begun) if name not in taken]


def complete_draft(incomplete: str) -> list[str]:
    """Return the words of --draft; after a comma, only words that can be combined and were not named yet."""
    before, comma, begun = incomplete.rpartition(",")
    words = tuple(LOOKUPS) if comma else list_draft_words()
    taken = before.split(",")
    return [f"{before}{comma}{word}" for word in list_matches(words, begun) if word not in taken]


def list_known() -> list[str]:
    from eaglelocal.catalog.catalog import load_catalog

    return list(load_catalog().targets)


def list_cached() -> list[str]:
    from eaglelocal.cli.load_model import load_settings
    from eaglelocal.preparation.model_choices import list_names

    return list_names(load_settings({}).model_folders)


def list_head_names() -> list[str]:
    from eaglelocal.hub.inventory import list_imported

    return [entry.path.stem for entry in list_imported()]


def list_servers() -> list[RunningServer]:
    from eaglelocal.client.running_servers import find_running_servers

    return find_running_servers(remove_stale=False)


def complete_port(incomplete: str) -> list[str]:
    return list_matches([*(str(server.port) for server in list_servers()), "all"], incomplete)


def complete_server(incomplete: str) -> list[str]:
    return list_matches([server.url for server in list_servers()], incomplete)


def list_matches(words: Iterable[str], begun: str) -> list[str]:
    return [word for word in words if word.startswith(begun)]


def find_or_nothing(find: Callable[[], list[str]]) -> list[str]:
    """Return what a search finds; nothing if it fails, because a shell would show the error between the words."""
    try:
        return find()
    except (EagleLocalError, OSError):
        return []


def complete_models(*sources: Callable[[], list[str]]) -> Complete:
    """Return a completion of the names that the sources find, and of .gguf files if a path is begun."""

    def complete(incomplete: str) -> list[str]:
        if incomplete.startswith((".", "/", "~")):
            return complete_path(incomplete, [GGUF]) if "/" in incomplete else [f"{incomplete}/"]
        return list_matches(dict.fromkeys(name for find in sources for name in find_or_nothing(find)), incomplete)

    return complete


complete_target = complete_models(lambda: ["demo"], list_cached, list_known)
complete_on_disk = complete_models(list_cached)
complete_head = complete_models(list_head_names)  # imported or trained here
