"""One request while it runs: the only place that changes as its tokens come."""

from __future__ import annotations

from dataclasses import dataclass, field

from eaglelocal.core.request import Request


@dataclass(slots=True)
class Sequence:
    """A request in a slot.

    tokens      prompt and everything emitted
    num_cached  rows of `tokens` that lie in the target's cache

    While decoding, all tokens but the last are cached; the last is the root of the next draft.
    """

    request: Request
    slot: int
    n_ctx: int
    tokens: list[int] = field(default_factory=list)
    num_cached: int = 0
    num_reused: int = 0  # prompt rows found in the slot's cache, or copied from another's
    num_prompt: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prompt)
        self.num_prompt = len(self.tokens)

    @property
    def num_emitted(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def is_prefilling(self) -> bool:
        return self.num_cached < self.num_prompt

    @property
    def num_left(self) -> int:
        """Tokens that may still be emitted: by the request's limit and by the context."""
        room = self.n_ctx - len(self.tokens)
        wanted = self.request.params.max_tokens
        return room if wanted is None else min(room, wanted - self.num_emitted)

    @property
    def draft_room(self) -> int:
        """Drafted tokens that can be of use: the last token emitted needs no draft."""
        return max(self.num_left - 1, 0)
