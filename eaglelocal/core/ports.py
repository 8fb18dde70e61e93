"""The interfaces between the engine and a model, as Protocols.

`backend` implements them over llama.cpp, `tests/doubles` over tables. Positions are absolute and start at 0; sequence
ids are slots, followed by branches. All methods are called from one thread, unless noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from eaglelocal.core.adapters import AdapterMix
from eaglelocal.core.batch import (
    NO_EXTRA_LEVELS,
    Batch,
    Bytes,
    ExtraLevels,
    FeatureRows,
    Features,
    Floats,
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


class NativeContext(Protocol):
    """A context of the native library."""

    @property
    def native_s(self) -> float:
        """The seconds spent inside the native library so far."""

    def close(self) -> None: ...


class Cache(Protocol):
    """The KV cache of a context."""

    def remove(self, sequence: int, first_position: int) -> None:
        """Remove the cells of a sequence from first_position on."""

    def last_position(self, sequence: int) -> int:
        """Return the highest position held for the sequence; -1 if there is none."""

    def share(self, source: int, target: int, first: int, end: int) -> None:
        """Let `target`, which is empty or ends before `first`, have the cells of `source` at first..end-1 too.

        A target with a cache per sequence copies the cells from position 0 on, and removes the sequence's own.
        """


class Sampler(Protocol):
    """The sampler of one request: penalties, filters, temperature, seed. Advances with each draw."""

    @property
    def problem(self) -> EagleLocalError | None:
        """The error after which nothing more can be drawn, or None. The last draw then was an end token."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Pass tokens that were not drawn here (the prompt), for the penalties."""

    def sample(self, row: int) -> Sampled:
        """Draw from an output row of the context's last decode, and advance."""

    def force(self, row: int, token: int) -> Sampled | None:
        """Advance as if this token had been drawn; None if the constraint does not admit it."""

    def close(self) -> None: ...


class Swappable(Protocol):
    """A context that can move a sequence to RAM and back."""

    def swapped_bytes(self, sequence: int) -> int:
        """Return the bytes that the sequence's cells would take in RAM."""

    def swap_out(self, sequence: int, buffer: Bytes | None = None) -> Bytes:
        """Return a copy of the sequence's cells, which stay where they are. Raises ResourceError.

        buffer  memory for the copy, of `swapped_bytes`; None, or of another size: it is allocated
        """

    def swap_in(self, sequence: int, cells: Bytes) -> None:
        """Replace the sequence's cells, which no other may share.

        Raises ResourceError and leaves it empty if that fails.
        """


class Context(NativeContext, Swappable, Cache, Protocol):
    """A target (or a plain draft model) with its cache."""

    @property
    def n_ctx(self) -> int:
        """The positions per sequence."""

    @property
    def n_batch(self) -> int:
        """The most rows of a decode."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def is_unified(self) -> bool:
        """True if all sequences share one cache. Else each has its own, which costs passes (ubatch_split.py)."""

    @property
    def undivided(self) -> int:
        """The number of a sequence's last rows that must share a pass, because the states after them are kept; or 0."""

    @property
    def num_branches(self) -> int:
        """The number of sequences beyond the slots', for branches of trees; 0: drafts must be chains."""

    def decode_image(self, sequence: int, position: int, rows: ImageRows) -> None:
        """Decode an image into the cache, from `position` on. It gives no output rows.

        Raises ResourceError if that fails; the sequence's cells from `position` on are then void.
        """

    @property
    def is_asynchronous(self) -> bool:
        """True if a device computes beside the processor: `submit` then returns before the rows are decoded."""

    def use_adapters(self, mix: AdapterMix) -> None:
        """Compute later rows and images with these LoRA adapters, and no others."""

    def submit(self, batch: Batch) -> None:
        """Start to decode the rows. Nothing else of the context may be used until `collect`, except `native_s`.

        A row attends to the cells of the first of its sequences, and belongs to all of them.
        Raises ResourceError if the cache is full; the cache is then unchanged.
        """

    def collect(self) -> Outputs:
        """Wait until the submitted rows are decoded, and return their results."""

    def decode(self, batch: Batch) -> Outputs:
        """Submit the rows and collect them."""

    def save(self, sequence: int) -> bytearray:
        """Return the part of the sequence that cannot be cut: recurrent state. Its cells stay where they are."""

    def restore(self, sequence: int, state: bytearray) -> None:
        """Restore a saved state; the caller must then remove the cells after it."""

    def sampler(self, params: SamplingParams, constraint: Constraint | None = None) -> Sampler:
        """Make a sampler. With a constraint, it draws among the admitted tokens; Constraints.check must have passed."""

    def propose(self, rows: Sequence[int], num_choices: int, *, confident: bool) -> Proposals:
        """Return the most likely next tokens at output rows of the last decode (when used as a drafter)."""


class HeadContext(NativeContext, Swappable, Cache, Protocol):
    """An EAGLE head: an encoder from target features to states, and a decoder over (token, state) pairs."""

    @property
    def n_batch(self) -> int: ...

    def attach(self) -> None:
        """Encode the target's rows from now on, in place of another head of it. Call it between decodes."""

    def encode(self, features: Sequence[Features | Floats]) -> list[State]:
        """Return the states of all rows: of the target's last decode, or of kept copies, [rows, taps, n_embd]."""

    def decode(
        self,
        batch: PairBatch,
        num_choices: int,
        *,
        confident: bool,
        depth: int = 1,
        extra_levels: ExtraLevels = NO_EXTRA_LEVELS,
        layer: int = 0,
    ) -> Proposals:
        """Write the pairs, replacing each sequence's cells from its first pair on, and propose at the output rows.

        confident     return confidences too, see backend/top_tokens.py
        depth         number of levels: after each output row the best token is followed, depth - 1 rows more
        extra_levels  optional levels after those; only with `confident`
        layer         first layer to draft, of MTP layers that draft one token each. At 0 all layers keep the pairs.
                      Then the states after every level are returned, level by level; else only those after the last
        """

    def forget(self, sequence: int, end: int) -> None:
        """Remove the cells at positions before `end`: the sequence then begins there."""


class BlockContext(NativeContext, Swappable, Cache, Protocol):
    """A head that keeps target features as keys and values, and proposes all tokens of a block at once."""

    @property
    def n_batch(self) -> int:
        """The most rows of all blocks of one call together."""

    def show(self, pieces: Sequence[FeatureRows]) -> None:
        """Write features, replacing the cells from each piece's position on."""

    def fill(self, roots: Roots, depth: int, num_choices: int) -> Proposals:
        """Propose `depth` tokens after each root, with confidences (backend/top_tokens.py).

        The next call overwrites them.
        """


class MedusaContext(NativeContext, Protocol):
    """A head that drafts several tokens from one state of the target, each independently of the others."""

    @property
    def max_rows(self) -> int:
        """The most tokens that one call drafts, of all states together."""

    def propose(self, states: Sequence[Floats], depth: int, num_choices: int) -> Proposals:
        """Propose `depth` tokens after the root of each state [n_embd], with confidences (backend/top_tokens.py)."""


class FillTokens(NamedTuple):
    """The tokens of fill-in-the-middle prompts: before the prefix, before the suffix, and before the text between them;
    in some models also before the name of a project and of a file.
    """

    prefix: int
    suffix: int
    middle: int
    project: int | None = None
    file: int | None = None


class Vocabulary(Protocol):
    """The token ids of a model and their bytes."""

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
        """The texts of the tokens that only a chat template may write."""

    @property
    def fill_tokens(self) -> FillTokens | None:
        """The fill-in-the-middle tokens; None if the model has none."""

    @property
    def max_token_bytes(self) -> int | None:
        """The most bytes of a text that one token stands for; None if there is no bound."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of a text. Safe from any thread."""

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token stands for; empty for control tokens."""

    def spelled(self, token: int) -> bytes:
        """Return the text of a token, including control tokens."""

    def is_end(self, token: int) -> bool:
        """Return whether this token ends generation."""


class TextPart(NamedTuple):
    """A text in a prompt with images."""

    text: str
    parse_special: bool  # control tokens may be spelled in it


class ImageReader(Protocol):
    """The reader that prepares images for one target, in one engine."""

    def measure(self, files: Sequence[bytes]) -> int:
        """Return how many pixels the files of a request declare. Safe from any thread.

        Raises RequestError, which names the file, if one is not an image or too large, or if all together are too
        large.
        """

    def read(self, file: bytes, name: str) -> object:
        """Decode a file, in another process, for `tokenize`. Errors call it `name`. Safe from any thread.

        Raises RequestError, ResourceError.
        """

    def tokenize(self, parts: Sequence[TextPart | object], *, add_special: bool) -> list[int | ImageRows]:
        """Return the tokens of a prompt of texts and images that were read, with rows in place of images.

        Safe from any thread.
        Raises RequestError if the images are more than this model takes.
        """

    def stop(self) -> None:
        """Make `read` fail, also calls in progress."""

    def close(self) -> None: ...


class Constraints(Protocol):
    """The compiler of constraints for one model."""

    def check(self, constraint: Constraint) -> tuple[str, ...]:
        """Compile a constraint; return the keywords of its schemas that are not enforced.

        Raises RequestError if it is wrong, unknown or too complex. Safe from any thread.
        """

    def hold(self, constraint: Constraint) -> object:
        """Return an object that keeps the constraint compiled while it is referenced. `check` must have passed."""
