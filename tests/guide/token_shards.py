"""Token rows on disk: written ahead by a background process, read as memory maps.

A shard is the rows of up to STEPS_PER_SHARD training steps. The rows of a step depend on (seed, stage, step) alone, so
a resumed run sees the same ones. Models and losses are elsewhere.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from eaglelocal.backend.parent_watch import end_with_parent
from eaglelocal.core.atomic_file import SHARED, flush_and_rename, make_folder
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError
from guide.document_packing import PackedBatch, PackedDocument, Pieces, encode_document, pack, score
from guide.tokenizer import load_tokenizer

STEPS_PER_SHARD = 64
DocumentSource = Callable[[int], Iterable[Pieces]]  # seed -> documents; must be importable by a fresh process


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of training at one row length."""

    name: str
    row_length: int
    num_tokens: int
    tokens_per_step: int = 8192

    @property
    def rows_per_step(self) -> int:
        return max(1, self.tokens_per_step // self.row_length)

    @property
    def step_tokens(self) -> int:
        return self.rows_per_step * self.row_length

    @property
    def num_steps(self) -> int:
        return max(1, self.num_tokens // self.step_tokens)

    @property
    def num_shards(self) -> int:
        return -(-self.num_steps // STEPS_PER_SHARD)


@dataclass(frozen=True, slots=True)
class Shards:
    """The rows of several stages in one folder."""

    folder: Path
    stages: tuple[Stage, ...]
    seed: int

    def batch(self, stage: Stage, step: int) -> PackedBatch:
        """Return the batch of one step; its shard must be there (`wait_for`)."""
        rows = np.load(self.path(stage, step // STEPS_PER_SHARD), mmap_mode="r")  # [2, rows, row_length]
        order = np.random.default_rng([self.seed, step // STEPS_PER_SHARD]).permutation(rows.shape[1])
        first = (step % STEPS_PER_SHARD) * stage.rows_per_step
        chosen = order[first : first + stage.rows_per_step]
        return score(rows[0, chosen], rows[1, chosen].astype(np.uint8), seed=self.seed + step)

    def path(self, stage: Stage, shard: int) -> Path:
        return self.folder / f"{stage.name}-{stage.row_length}-{shard:05d}.npy"

    def missing(self) -> Iterator[tuple[Stage, int]]:
        every = ((stage, shard) for stage in self.stages for shard in range(stage.num_shards))
        return (pair for pair in every if not self.path(*pair).is_file())


def write_missing(shards: Shards, tokenizer_file: Path, source: DocumentSource) -> None:
    """Write all shards that are not there yet, in the order of their use."""
    tokenizer = load_tokenizer(tokenizer_file)
    make_folder(shards.folder, SHARED)
    for stage, shard in shards.missing():
        seed = _shard_seed(shards, stage, shard)
        documents = (encode_document(pieces, tokenizer) for pieces in _endless(source, seed))
        rows = pack(documents, stage.row_length, tokenizer.end_of_text)
        _write(shards.path(stage, shard), islice(rows, STEPS_PER_SHARD * stage.rows_per_step))


def _write_in_child(shards: Shards, tokenizer_file: Path, source: DocumentSource) -> None:
    end_with_parent()
    write_missing(shards, tokenizer_file, source)


def _shard_seed(shards: Shards, stage: Stage, shard: int) -> int:
    """Return a seed that no other shard of any stage or build has."""
    return (shards.seed * 64 + shards.stages.index(stage)) * 1_000_000 + shard * 100


def _endless(source: DocumentSource, seed: int) -> Iterator[Pieces]:
    """Yield the source's documents, again with the next seed when they run out."""
    return chain.from_iterable(source(next_seed) for next_seed in count(seed))


def _write(path: Path, rows: Iterable[PackedDocument]) -> None:
    stacked: npt.NDArray[np.uint16] = np.stack([np.stack((r.tokens, r.flags.astype(np.uint16))) for r in rows], 1)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.save(file, stacked)
    flush_and_rename(partial, path)


class ShardWriter:
    """A background process that writes shards while training reads them."""

    def __init__(self, shards: Shards, tokenizer_file: Path, source: DocumentSource) -> None:
        self._shards = shards
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_write_in_child, args=(shards, tokenizer_file, source), daemon=True)
        self._process.start()

    def wait_for(self, stage: Stage, step: int) -> None:
        path = self._shards.path(stage, step // STEPS_PER_SHARD)
        while not path.is_file():
            if not self._process.is_alive() and not path.is_file():
                raise EagleLocalError(f"the corpus writer ended with code {self._process.exitcode} before {path.name}")
            time.sleep(0.2)

    def close(self) -> None:
        self._process.terminate()
        self._process.join()
