"""The commits of the repositories that were used, in a small file beside the settings: `pairs.lock`.

`pull` and `export` write it, and `export` pins what it says, so that the pair of original weights that was exported
once is exported again, also without the hub. A person may keep it with their settings, edit it, or delete it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from eaglelocal import locations
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.json_text import read_object
from eaglelocal.core.own_files import read_own
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import UsageError
from eaglelocal.hub.hub_api import is_commit


def read_commits() -> Mapping[str, object]:
    """Return what the file says of each repository: a commit, or what a person wrote. Raises UsageError if no JSON."""
    file = locations.pairs_lock_file()
    try:
        return read_object(read_own(file))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise UsageError(f"{file} cannot be read: {problem}", hint=f"mend or delete {quote_path(file)}") from problem


def find_commit(repo: str) -> str:
    """Return the commit of a repository; empty where the file has none. Raises as read_commits."""
    commit = read_commits().get(repo)
    return commit if isinstance(commit, str) and is_commit(commit) else ""


def lock_commits(commits: Mapping[str, str]) -> str:
    """Write the commits of these repositories, beside what is there; return why that cannot be done, else empty."""
    file = locations.pairs_lock_file()
    try:
        known = read_commits()
        if not commits.items() <= known.items():
            write_atomically(file, json.dumps({**known, **commits}, indent=1, sort_keys=True) + "\n")
    except UsageError as problem:
        return problem.message
    except OSError as problem:
        return f"{file} cannot be written: {problem.strerror}"
    return ""
