"""A record of the draft that was pulled with each target; `--draft auto` takes it again.

One small file, by the target's repository, so that all quantizations of a target have the same draft. An entry that
cannot be read, or whose draft was removed, is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.json_text import read_json
from eaglelocal.core.own_files import read_own
from eaglelocal.errors import EagleLocalError
from eaglelocal.hub.cached_files import HubReference, find_cached


def remember_draft(file: Path, *, target_repo: str, draft_repo: str, draft_tag: str) -> None:
    """Record a target's draft; `draft_tag` follows the colon. Raises OSError if the file cannot be written."""
    known = {**_read(file), target_repo: f"{draft_repo}:{draft_tag}"}
    write_atomically(file, json.dumps(known, indent=1, sort_keys=True))


def forget_draft(file: Path, target_repo: str) -> None:
    """Forget the draft that was pulled with a target. Raises OSError if the file cannot be written."""
    known = _read(file)
    if target_repo in known:
        rest = {repo: draft for repo, draft in known.items() if repo != target_repo}
        write_atomically(file, json.dumps(rest, indent=1, sort_keys=True))


def read_pulled_reference(file: Path, target_repo: str) -> str:
    """Return the draft recorded for a target, such as `user/repo:Q8_0`; empty if there is none."""
    return _read(file).get(target_repo, "")


def find_pulled_targets(file: Path) -> Mapping[str, tuple[str, ...]]:
    """Return, for each draft in lower case, the repositories of the targets that it was pulled with."""
    found: dict[str, tuple[str, ...]] = {}
    for target, draft in _read(file).items():
        found[draft.lower()] = (*found.get(draft.lower(), ()), target)
    return found


def find_pulled_draft(file: Path, cache: Path, target_repo: str) -> Path | None:
    """Return the file of the draft that was pulled with a target; None if it is not on disk."""
    repo, _, tag = read_pulled_reference(file, target_repo).partition(":")
    if not repo:
        return None
    try:
        return find_cached(cache, HubReference(f"{repo}:{tag}", (repo,), tag, drafts=True)).path
    except EagleLocalError:
        return None


def _read(file: Path) -> Mapping[str, str]:
    try:
        content = read_json(read_own(file))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {target: draft for target, draft in content.items() if isinstance(draft, str)}
