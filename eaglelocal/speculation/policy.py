"""How much to draft. `Fixed` is a chain of constant depth, what `--spec N` means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from eaglelocal.core.draft import Draft


class Policy(Protocol):
    @property
    def max_draft(self) -> int:
        """Most nodes that a slot's draft will ever have."""

    @property
    def needs_confidences(self) -> bool:
        """Must the drafters tell how sure they are of each token?"""

    def extend(self, draft: Draft, room: int) -> int:
        """Levels that this draft should surely grow by, whatever they say; 0: it is done.

        `room` is the most nodes that can still be of use.
        """


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always drafts num_draft_tokens, or as many as there is room for."""

    num_draft_tokens: int
    needs_confidences: bool = False

    @property
    def max_draft(self) -> int:
        return self.num_draft_tokens

    def extend(self, draft: Draft, room: int) -> int:
        return max(min(self.num_draft_tokens, room) - len(draft), 0)
