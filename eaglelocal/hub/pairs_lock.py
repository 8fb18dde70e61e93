"""The commits of the repositories that were used, in a small file beside the settings: `pairs.lock`.

`pull` and `export` write it, and `export` pins what it says, so that a pair that was measured is the pair that runs
elsewhere, also without the hub. A person may keep it with their settings, edit it, or delete it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from eaglelocal import locations
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.json_text import read_object
from eaglelocal.core.own_files import read_own
from eaglelocal.hub.hub_api import is_commit


def read_commits() -> Mapping[str, str]:
    """Return the commit of each repository; none where the file cannot be read or is something else."""
    try:
        content = read_object(read_own(locations.pairs_lock_file()))
    except (OSError, ValueError):
        return {}
    return {repo: commit for repo, commit in content.items() if isinstance(commit, str) and is_commit(commit)}


def lock_commits(commits: Mapping[str, str]) -> str:
    """Write the commits of these repositories, beside those of others; return why that cannot be done, else empty."""
    known = read_commits()
    if commits.items() <= known.items():
        return ""
    file = locations.pairs_lock_file()
    try:
        write_atomically(file, json.dumps({**known, **commits}, indent=1, sort_keys=True) + "\n")
    except OSError as problem:
        return f"{file} cannot be written: {problem.strerror}"
    return ""
