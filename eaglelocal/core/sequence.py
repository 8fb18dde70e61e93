"""The state of one running request: the only object that changes as its tokens come."""

from __future__ import annotations

from dataclasses import field

from eaglelocal.core.image import PlacedImage
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import Request


@dataclass(slots=True)
class Sequence:
    """A request in a slot.

    n_ctx       positions that it may have: fewer than the slot's if images take several cells each
    tokens      prompt and all emitted tokens; negative numbers stand for images
    num_cached  leading rows of `tokens` that lie in the target's cache

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
        self.n_ctx -= self.request.num_hidden

    def start_from(self, num_reused: int) -> None:
        """Begin with this many prompt rows that need not be prefilled."""
        self.num_cached = self.num_reused = num_reused

    def advance(self, num_rows: int) -> None:
        """Record that this many more rows lie in the cache."""
        self.num_cached += num_rows

    @property
    def num_emitted(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_prompt_rows(self) -> int:
        """The cells that the prompt takes; shown to users as its number of tokens."""
        return self.rows_before(self.num_prompt)

    @property
    def num_reused_rows(self) -> int:
        return self.rows_before(self.num_reused)

    @property
    def is_prefilling(self) -> bool:
        return self.num_cached < self.num_prompt

    @property
    def next_image(self) -> PlacedImage | None:
        """The first image that is not cached; an image is never cached in part."""
        return next((image for image in self.request.images if image.end > self.num_cached), None)

    @property
    def num_readable(self) -> int:
        """The number of prompt tokens before the next image that are not cached yet."""
        image = self.next_image
        return (self.num_prompt if image is None else image.first) - self.num_cached

    def align_before_image(self, position: int) -> int:
        """Return the last position, up to this one, that does not cut an image."""
        cut = (image.first for image in self.request.images if image.first < position < image.end)
        return next(cut, position)

    def align_after_image(self, position: int) -> int:
        """Return the first position, from this one on, that does not cut an image."""
        cut = (image.end for image in self.request.images if image.first < position < image.end)
        return next(cut, position)

    def rows_before(self, position: int) -> int:
        """Return the cells that the positions before this one take."""
        return position + sum([image.num_hidden for image in self.request.images if image.end <= position])

    @property
    def num_left(self) -> int:
        """The tokens that may still be emitted, by the request's limit and by the context."""
        room = self.n_ctx - len(self.tokens)
        wanted = self.request.params.max_tokens
        return room if wanted is None else min(room, wanted - self.num_emitted)

    @property
    def draft_room(self) -> int:
        """The number of drafted tokens that can be of use: the last emitted token needs no draft."""
        return max(self.num_left - 1, 0)
