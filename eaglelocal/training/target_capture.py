"""Outputs of a GGUF target for whole texts: the layer inputs that a head reads, and the logits it should predict.

Runs llama.cpp in this process, so that the head learns from the engine's own states and distributions: those of the
quantized weights, up to the rounding of a batch. Does not use torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from eaglelocal.backend.context import LlamaContext
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel
from eaglelocal.core.batch import Batch
from eaglelocal.core.own_files import append_own, open_own
from eaglelocal.core.plan import Plan
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EngineError
from eaglelocal.gguf.architectures import FinalState
from eaglelocal.gguf.draft_pairing import read_model
from eaglelocal.loading.fit import fit_plan
from eaglelocal.probe.cpuinfo import count_usable_threads
from eaglelocal.probe.probe import probe
from eaglelocal.training.conversations import TrainingConversation
from eaglelocal.training.training_folder import PARTIAL, STATES

CAPTURE_ROWS = 128  # of a decode: llama.cpp keeps logits of the whole vocabulary for each row
NUM_TOP = 64  # tokens whose logits are kept at each position
LEAST_LIKELY = 10.0  # nats below the likeliest token, from where on none is kept
MAX_LOGIT = 6e4  # f16 ends at 65504

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]
Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Captured:
    """The target's output for a text of n tokens, to predict those after the position `first` and one after the last.

    taps    [n, taps, width]
    tokens  [n - first, NUM_TOP] the likeliest tokens after each position from `first` on, at least one, likeliest first
    logits  [n - first, NUM_TOP] of these; -MAX_LOGIT where there are fewer tokens
    """

    taps: Floats
    tokens: Tokens
    logits: Halves


Read = Callable[[TrainingConversation], Captured]


class TargetCapture:
    """A loaded target that reads texts. Use it as a context manager, or close it.

    Raises the loading errors if the target cannot be loaded.
    """

    def __init__(self, plan: Plan, taps: tuple[int, ...]) -> None:
        threads = plan.threads or count_usable_threads()
        library = load_library()
        part = fit_plan(replace(plan, n_batch=CAPTURE_ROWS), probe(), library, threads=threads).target
        with contextlib.ExitStack() as opened:
            model = LlamaModel(library, part.header.path, part.placement)
            opened.callback(model.close)
            info = read_model(part.header)
            final_by_nextn = info.final_state is FinalState.NEXTN
            params = replace(part.context, max_outputs=None)
            self._context = LlamaContext(
                model,
                params,
                taps=taps,
                final_by_nextn=final_by_nextn,
                normed_by_nextn=info.gives_normed_rows,
            )
            self._needs_outputs = model.n_layer + 1 in taps and not info.gives_normed_rows  # see LlamaContext
            opened.callback(self._context.close)
            self._opened = opened.pop_all()

    @property
    def n_ctx(self) -> int:
        return self._context.n_ctx

    def read_conversation(self, one: TrainingConversation) -> Captured:
        """Return the target's output for all tokens but the last, to predict those of the answer after its first."""
        return self.read(one.tokens[:-1], one.num_prompt)

    def read(self, tokens: Sequence[int], first: int) -> Captured:
        """Return the target's output for a text of at most n_ctx tokens. Raises EngineError or ResourceError."""
        if len(tokens) > self.n_ctx:  # llama.cpp would abort if the context were smaller than a batch
            raise EngineError(f"a text of {len(tokens)} tokens does not fit {self.n_ctx}")
        taps, tops = [], []
        for start in range(0, len(tokens), CAPTURE_ROWS):
            part = list(tokens[start : start + CAPTURE_ROWS])
            positions = list(range(start, start + len(part)))
            outputs = [position >= first for position in positions]
            rows = [output or self._needs_outputs for output in outputs]
            self._context.decode(Batch(part, positions, [(0,)] * len(part), rows))
            taps.append(self._context.copy_taps(list(range(len(part)))))
            tops += [find_top(self._context.logits(row)) for row in np.flatnonzero(outputs).tolist()]
        self._context.remove(0, 0)
        top_tokens, top_logits = zip(*tops, strict=True)
        return Captured(np.concatenate(taps), np.stack(top_tokens), np.stack(top_logits))

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> TargetCapture:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def find_top(logits: Floats) -> tuple[Tokens, Halves]:
    """Return the likeliest tokens of logits [vocabulary], and theirs; both [NUM_TOP], see Captured.

    If one of the logits is not a number, none of those returned is.
    """
    near = np.flatnonzero(logits >= logits.max() - LEAST_LIKELY)
    if len(near) > NUM_TOP:
        near = near[np.argpartition(-logits[near], NUM_TOP - 1)[:NUM_TOP]]
    near = near[np.argsort(-logits[near], kind="stable")]
    tokens, top = np.zeros(NUM_TOP, np.int32), np.full(NUM_TOP, -MAX_LOGIT if len(near) else np.nan, np.float16)
    tokens[: len(near)], top[: len(near)] = near, logits[near].clip(-MAX_LOGIT, MAX_LOGIT)
    return tokens, top


# ---- kept states: outputs of conversations that are learned from several times, on disk, because to read them takes a
# small part of the time that the target needs
#
# Layer inputs are written in bfloat16, as f16 does not reach as far as some models' go.
MAX_BYTES = 16 * 2**30
FREE_SHARE = 0.5  # of the disk's free space, at most

Bfloats = npt.NDArray[np.uint16]  # bfloat16


class KeptStates:
    """Reads outputs by `read` once, and later from files of the folder, as many as it has room for.

    taps           whose inputs are read: with others, a conversation is read again
    reserve_bytes  of the disk that are left for other files
    """

    def __init__(self, folder: Path, read: Read, taps: tuple[int, ...], *, reserve_bytes: int = 0) -> None:
        self._folder, self._read, self._taps = folder, read, taps
        held_bytes = held_in(folder)
        all_bytes = held_bytes + shutil.disk_usage(folder).free
        most_bytes = min(MAX_BYTES, int(all_bytes * FREE_SHARE), all_bytes - reserve_bytes)
        self._room_bytes = most_bytes - held_bytes

    def read(self, one: TrainingConversation) -> Captured:
        """Return the target's output, with layer inputs in the precision in which they are kept."""
        path = self._path(one)
        try:
            with open_own(path) as file, np.load(file) as arrays:
                return Captured(widen(arrays["taps"]), arrays["tokens"], arrays["logits"])
        except Exception:  # it is not there, or damaged: zipfile raises many kinds of errors
            captured = self._read(one)
        halves = halve(captured.taps)
        if self._room_bytes > 0:
            self._keep(path, halves, captured)
        return replace(captured, taps=widen(halves))

    def drop_others(self, conversations: Iterable[TrainingConversation]) -> None:
        """Delete the files of all other conversations: those of an earlier run, or cut to another context."""
        used = set(map(self._path, conversations))
        for path in set(self._folder.glob(f"*{STATES}")) - used:
            size_bytes = path.stat().st_size
            path.unlink()
            self._room_bytes += size_bytes

    def _path(self, one: TrainingConversation) -> Path:
        text = repr((self._taps, one.num_prompt, one.tokens)).encode()
        return self._folder / f"{hashlib.blake2b(text, digest_size=12).hexdigest()}{STATES}"

    def _keep(self, path: Path, taps: Bfloats, captured: Captured) -> None:
        """Write outputs; where that fails, nothing more is kept."""
        partial, packed = path.with_suffix(PARTIAL), io.BytesIO()
        np.savez(packed, taps=taps, tokens=captured.tokens, logits=captured.logits)
        try:
            partial.unlink(missing_ok=True)
            with append_own(partial) as file:  # readable to its owner alone, like the answers
                file.write(packed.getbuffer())
            self._room_bytes -= packed.tell()
            partial.replace(path)  # not flushed to disk: what a power cut leaves of it is seen to be damaged
        except OSError:
            self._room_bytes = 0
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def held_in(folder: Path) -> int:
    """Return the bytes of all such files of a folder."""
    return sum(path.stat().st_size for path in folder.glob(f"*{STATES}"))


def halve(values: Floats) -> Bfloats:
    """Round to bfloat16: the upper halves of the numbers."""
    return ((np.ascontiguousarray(values).view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def widen(halves: Bfloats) -> Floats:
    return (halves.astype(np.uint32) << 16).view(np.float32)
