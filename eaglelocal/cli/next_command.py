"""The command to run after a head was imported or trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal.core.user_paths import quote_path

if TYPE_CHECKING:
    from eaglelocal.hub.target_resolver import FoundTarget


def make_chat_command(target: str, found: FoundTarget, head: Path) -> str:
    """Return the command that chats with a new head. It names the head only where `--draft auto` takes another."""
    from eaglelocal.hub.draft_resolver import find_draft

    auto = find_draft("auto", found).path
    is_auto = auto is not None and auto.resolve() == head.resolve()
    flag = "" if is_auto else f" --draft {quote_path(head)}"
    return f"eaglelocal chat --target {quote_path(target)}{flag}"
