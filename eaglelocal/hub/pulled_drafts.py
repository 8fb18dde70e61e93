"""Which draft was fetched for which target: `--draft auto` takes it again, because a person once asked for the two.

One small file, by the target's repository, so that every quantization of it has the draft. What was removed since, or
cannot be read, is as if it never was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from eaglelocal.core.json_text import read_json
from eaglelocal.core.whole_file import write_whole
from eaglelocal.errors import EagleLocalError
from eaglelocal.hub.on_disk import HubReference, find_cached


def remember_draft(file: Path, *, target_repo: str, draft_repo: str, draft_tag: str) -> None:
    """`draft_tag` is what stands behind the colon. Raises OSError where the file cannot be written."""
    known = {**_read(file), target_repo: f"{draft_repo}:{draft_tag}"}
    write_whole(file, json.dumps(known, indent=1, sort_keys=True))


def forget_draft(file: Path, target_repo: str) -> None:
    """What drafts for it now comes with it. Raises OSError where the file cannot be written."""
    known = _read(file)
    if target_repo in known:
        rest = {repo: draft for repo, draft in known.items() if repo != target_repo}
        write_whole(file, json.dumps(rest, indent=1, sort_keys=True))


def pulled_reference(file: Path, target_repo: str) -> str:
    """`user/repo:Q8_0`; empty where none was fetched."""
    return _read(file).get(target_repo, "")


def pulled_draft(file: Path, cache: Path, target_repo: str) -> Path | None:
    """The draft that was fetched for a target, if it is still on disk."""
    repo, _, tag = pulled_reference(file, target_repo).partition(":")
    if not repo:
        return None
    try:
        return find_cached(cache, HubReference(f"{repo}:{tag}", (repo,), tag, drafts=True)).path
    except EagleLocalError:
        return None


def _read(file: Path) -> Mapping[str, str]:
    try:
        told = read_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(told, dict):
        return {}
    return {target: draft for target, draft in told.items() if isinstance(draft, str)}
