"""The seams: what the engine needs of a model, as Protocols.

`backend` implements them over llama.cpp, `tests/doubles` over tables. Positions are absolute and
start at 0; sequence ids are slots, and behind them branches. Every method is called from one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from eaglelocal.core.batch import (
    NO_FURTHER,
    Batch,
    Bytes,
    FeatureRows,
    Features,
    Floats,
    Further,
    Outputs,
    PairBatch,
    Proposals,
    Roots,
    State,
)
from eaglelocal.core.constraint import Constraint
from eaglelocal.core.image import ImageRows
from eaglelocal.core.sampling import Sampled, SamplingParams
from eaglelocal.errors import EagleLocalError


class Cache(Protocol):
    """The KV cache of a context."""

    def remove(self, sequence: int, first_position: int) -> None:
        """Forget the cells of a sequence from first_position on."""

    def last_position(self, sequence: int) -> int:
        """Highest position held for the sequence; -1 if there is none."""


class Sampler(Protocol):
    """One request's sampler: penalties, filters, temperature, seed. Advances with each draw."""

    @property
    def problem(self) -> EagleLocalError | None:
        """Why nothing more can be drawn, if so. What was drawn then is a token that ends the answer."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Show tokens that were not drawn here (the prompt), for the penalties."""

    def sample(self, row: int) -> Sampled:
        """Draw from an output row of the context's last decode, and advance."""

    def close(self) -> None: ...


class Swappable(Protocol):
    """What can move a sequence to main memory and back."""

    def swapped_bytes(self, sequence: int) -> int:
        """That its cells would take there."""

    def swap_out(self, sequence: int) -> Bytes:
        """A copy of its cells, which stay where they are. Raises ResourceError."""

    def swap_in(self, sequence: int, cells: Bytes) -> None:
        """In place of what the sequence holds, which no other may share. Raises ResourceError; it is empty then."""


class Context(Swappable, Cache, Protocol):
    """A target (or a plain draft model) with its cache."""

    @property
    def native_s(self) -> float:
        """Seconds spent inside the native library so far."""

    @property
    def n_ctx(self) -> int:
        """Positions per sequence."""

    @property
    def n_batch(self) -> int:
        """Rows a decode may have."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def is_unified(self) -> bool:
        """Do all sequences share one cache? Else each has its own, which costs passes (speculation/layout.py)."""

    @property
    def undivided(self) -> int:
        """Last rows of a sequence that one pass must take, for the states behind them are kept; 0: none."""

    @property
    def num_branches(self) -> int:
        """Sequences behind those of the slots, for the branches of trees; 0: drafts must be chains."""

    def share(self, source: int, target: int, first: int, end: int) -> None:
        """Let `target` have the cells of `source` at positions first..end-1 too.

        Sequences with caches of their own are copied from position 0 on, and what the target held is void.
        """

    def look(self, sequence: int, position: int, rows: ImageRows) -> None:
        """Put an image into the cache, from `position` on. It gives no output rows.

        Raises ResourceError where that fails; what the sequence then holds from there on is void.
        """

    def decode(self, batch: Batch) -> Outputs:
        """Run the rows. A row attends to the cells of the first of its sequences, and belongs to all of them.

        Raises ResourceError when the cache has no room; the cache is then unchanged.
        """

    def save(self, sequence: int) -> bytearray:
        """What of the sequence cannot be cut: recurrent state. Its cells stay where they are."""

    def restore(self, sequence: int, state: bytearray) -> None:
        """Go back to a state that was saved; the cells behind it are then to be removed."""

    def sampler(self, params: SamplingParams, constraint: Constraint | None = None) -> Sampler:
        """Under a constraint the same draw, among the tokens that it admits. It must have passed Constraints.check."""

    def propose(self, rows: Sequence[int], branches: int, *, confident: bool) -> Proposals:
        """The most likely next tokens at output rows of the last decode (when used as a drafter)."""

    def close(self) -> None: ...


class HeadContext(Swappable, Cache, Protocol):
    """An EAGLE head: an encoder from target features to states, and a decoder over (token, state) pairs."""

    @property
    def native_s(self) -> float:
        """Seconds spent inside the native library so far."""

    @property
    def n_batch(self) -> int: ...

    def encode(self, features: Sequence[Features | Floats]) -> list[State]:
        """The states of all rows: of the target's last decode, or of copies that were kept [rows, taps, n_embd]."""

    def decode(
        self, batch: PairBatch, branches: int, *, confident: bool, depth: int = 1, further: Further = NO_FURTHER
    ) -> Proposals:
        """Write pairs over what the cache holds from each sequence's first one on, and propose at the output rows.

        confident  with how sure it is of each, see backend/choices.py
        depth      levels: behind each output row the best token is followed, depth - 1 rows more
        further    levels behind those; only with `confident`
        """

    def forget(self, sequence: int, end: int) -> None:
        """Remove the cells at positions before `end`: the sequence then begins there."""

    def share(self, source: int, target: int, first: int, end: int) -> None:
        """Let `target`, which is empty, have the cells of `source` at positions first..end-1 too."""

    def close(self) -> None: ...


class BlockContext(Swappable, Cache, Protocol):
    """A head that keeps target features as keys and values, and says all tokens of a block at once."""

    @property
    def native_s(self) -> float:
        """Seconds spent inside the native library so far."""

    @property
    def n_batch(self) -> int:
        """Rows that all blocks of one call may have together."""

    def show(self, pieces: Sequence[FeatureRows]) -> None:
        """Write features over what the cache holds from each piece's position on."""

    def fill(self, roots: Roots, depth: int, branches: int) -> Proposals:
        """`depth` tokens behind each root, and how sure each is (backend/choices.py). The next call writes over it."""

    def share(self, source: int, target: int, first: int, end: int) -> None:
        """Let `target`, which is empty, have the cells of `source` at positions first..end-1 too."""

    def close(self) -> None: ...


class FillTokens(NamedTuple):
    """What stands before a prefix, before a suffix, and before the text between them; and, where there are such, before
    the name of a project and of a file."""

    prefix: int
    suffix: int
    middle: int
    project: int | None = None
    file: int | None = None


class Vocabulary(Protocol):
    """Token ids and their bytes."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def chat_template(self) -> str | None: ...

    @property
    def bos_text(self) -> str: ...

    @property
    def eos_text(self) -> str: ...

    @property
    def control_texts(self) -> tuple[str, ...]:
        """How the tokens are spelled that only a chat template may write."""

    @property
    def fill_tokens(self) -> FillTokens | None:
        """Of a model that fills in the middle."""

    @property
    def max_token_bytes(self) -> int | None:
        """The most bytes of a text that one token stands for; None where there is no bound."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Safe from any thread."""

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; empty for control tokens."""

    def spelled(self, token: int) -> bytes:
        """How it is written, control tokens too."""

    def is_end(self, token: int) -> bool:
        """Does this token end generation?"""


class TextPart(NamedTuple):
    """Of a prompt."""

    text: str
    parse_special: bool  # control tokens may be spelled in it


class ImageReader(Protocol):
    """What makes images readable for a target. Of one engine."""

    def tokenize(self, parts: Sequence[TextPart | bytes], *, add_special: bool) -> list[int | ImageRows]:
        """Return the tokens of a prompt of texts and image files, with rows in place of each image, or of its parts.

        Safe from any thread.
        Raises RequestError for what is no image, too large, or more than this model takes.
        """

    def close(self) -> None: ...


class Constraints(Protocol):
    """What answers can be bound to."""

    def check(self, constraint: Constraint) -> None:
        """Compile it. Raises RequestError where it is wrong, unknown or too complex. Safe from any thread."""

    def hold(self, constraint: Constraint) -> object:
        """Return what keeps it compiled while somebody refers to it. It must have passed `check`."""
